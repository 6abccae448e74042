"""Reading on behind a place: every row comes exactly once, wherever NULL stands, whatever the order is made of."""

import itertools
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.conftest import url_of
from vitrina.connectors.postgres.source import Order
from vitrina.embedded.temporary import TemporaryServer

VALUES = (None, 1, 2)


@pytest.fixture(scope="module")
def session(server: TemporaryServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url_of(server.urls.admin, "postgres"), autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("nullable", [flags for n in (1, 2, 3) for flags in itertools.product((True, False), repeat=n)])
def test_rows_behind_a_place_are_the_rest(session: psycopg.Connection, nullable: tuple[bool, ...]) -> None:
    names = [f"c{i}" for i in range(len(nullable))]
    kept = [VALUES if flag else VALUES[1:] for flag in nullable]
    rows = SQL("(VALUES {}) AS q ({})").format(
        SQL(", ").join(
            SQL("({})").format(SQL(", ").join(SQL("{}::int").format(Literal(value)) for value in row))
            for row in itertools.product(*kept)
        ),
        SQL(", ").join(map(Identifier, names)),
    )
    columns = tuple(SQL("q.{}").format(Identifier(name)) for name in names)
    order = Order(columns, ("int",) * len(names), nullable)
    ordered = SQL("SELECT {0} FROM {1} WHERE {{}} ORDER BY {0}").format(SQL(", ").join(columns), rows).as_string()

    every = session.execute(SQL(ordered).format(SQL("true"))).fetchall()

    assert len(every) == len(list(itertools.product(*kept)))
    for number, row in enumerate(every, 1):
        after = tuple(None if value is None else str(value) for value in row)
        assert session.execute(SQL(ordered).format(order.behind(after))).fetchall() == every[number:], row
