"""What to select, so that the driver carries every value exactly. Apart from `arrow_types`: workers load no driver."""

from collections.abc import Sequence

from psycopg.sql import SQL, Composable, Identifier, Literal

from vitrina.ports.schema import Column
from vitrina.transforms.arrow_types import UNFIT, is_array, read_as


def outputs(columns: Sequence[Column]) -> list[Composable]:
    """Select each column as it is read; with arrays, UNFIT names the column of a row that the driver cannot carry."""
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
    """Detect an array of two dimensions, which the driver would flatten silently, or of bounds that stop the driver."""
    return SQL("(pg_catalog.array_ndims(q.{0}) > 1 OR pg_catalog.array_lower(q.{0}, 1) <> 1)").format(Identifier(name))
