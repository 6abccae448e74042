"""Build the SELECT list with which the driver delivers every value exactly. Kept apart, as workers load no driver."""

from collections.abc import Sequence

from psycopg.sql import SQL, Composable, Identifier, Literal

from vitrina.ports.schema import Column
from vitrina.transforms.arrow_types import UNFIT, is_array, read_as


def outputs(columns: Sequence[Column]) -> list[Composable]:
    """Select each column as it is read. With arrays, UNFIT names the column of a row that the driver cannot deliver."""
    unfit = [
        SQL("WHEN {} THEN {}").format(_odd_array(column.name), Literal(column.name))
        for column in columns
        if is_array(column.type)
    ]
    selected = [_output(column) for column in columns]
    if unfit:
        selected.append(SQL("CASE {} END AS {}").format(SQL(" ").join(unfit), Identifier(UNFIT)))
    return selected


def _output(column: Column) -> Composable:
    name, cast = Identifier(column.name), read_as(column.type)
    value: Composable = SQL("q.{}").format(name)
    if is_array(column.type):
        value = SQL("CASE WHEN {} THEN NULL ELSE {} END").format(_odd_array(column.name), value)
    return SQL("({})::{} AS {}").format(value, SQL(cast), name) if cast else SQL("{} AS {}").format(value, name)


def _odd_array(name: str) -> Composable:
    """Detect an array that the driver would flatten silently (two dimensions) or fail on (unusual bounds)."""
    return SQL("(pg_catalog.array_ndims(q.{0}) > 1 OR pg_catalog.array_lower(q.{0}, 1) <> 1)").format(Identifier(name))
