"""How many queries of the kind that analysts write can be followed: the shares that the documentation names."""

import sys
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from tests.corpus import queries
from tests.support.followed import described
from vitrina import sqlguard
from vitrina.connectors.postgres.derive.derivation import derive
from vitrina.errors import SourceQueryFailed
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection

RANK = ["derived", "every k", "refused"]
POLICY = sqlguard.SqlPolicy(frozenset({"content", "ugc"}))


@pytest.fixture
def source(database: Settings) -> Iterator[Connection]:
    assert database.admin_url is not None
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-shares") as session:
        session.execute("DROP SCHEMA content CASCADE; DROP SCHEMA ugc CASCADE")
        session.execute("DROP SCHEMA IF EXISTS etl, analytics CASCADE")
        session.execute(queries.schema())
        session.execute("SET search_path = ''")
        yield session


def outcome(session: Connection, sql: str) -> str:
    """Follow a query by the column that serves best as its key."""
    judged = sqlguard.check(sql, POLICY)
    if judged.parameters:
        return "has :since or :until"
    try:
        with session.transaction(force_rollback=True):
            names, types = described(session, judged.text)
    except psycopg.Error as exc:
        return f"does not run here: {str(exc).splitlines()[0]}"
    keys = zip(names, types, strict=True)
    return min((_followed(session, judged, key) for key in keys), key=lambda said: (RANK.index(said[:7]), said))


def _followed(session: Connection, judged: sqlguard.CheckedQuery, key: tuple[str, str]) -> str:
    try:
        found = derive(session, judged.text, [key], stamps=judged.volatile_columns)
    except SourceQueryFailed as exc:
        return f"refused: {exc.message}"
    return "every key for a table" if any(table.every_key for table in found.tables) else "derived"


def test_shares_of_the_legitimate_corpus(source: Connection) -> None:
    _make_all_full(source)
    found = Counter(outcome(source, query.sql) for query in queries.legitimate())
    apart = ("has :since", "does not run here", "refused: the query reads no table")
    asked = sum(count for said, count in found.items() if not said.startswith(apart))
    sys.stdout.write("\n".join([f"{asked} queries", *(f"{count} {said}" for said, count in found.most_common())]))
    # docs/explanation/live.md names these shares.
    assert found["derived"] / asked >= 0.58
    assert found["every key for a table"] / asked <= 0.05


def _make_all_full(session: Connection) -> None:
    rows = session.execute(
        "SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname IN ('content', 'ugc') AND c.relkind IN ('r', 'p')"
    ).fetchall()
    for row in rows:
        session.execute(f"ALTER TABLE {row['name']} REPLICA IDENTITY FULL".encode())
