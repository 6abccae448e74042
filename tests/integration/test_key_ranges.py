"""Ranges of a key: whatever the keys are and wherever they are cut, each row is in exactly one range."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Composable, Identifier

from tests.support.workbench import Workbench
from vitrina.connectors.postgres import key_ranges
from vitrina.connectors.postgres.query_source import QuerySource
from vitrina.connectors.postgres.source import Bounds, Order
from vitrina.loads import opening
from vitrina.ports.ranges import KeyRange
from vitrina.ports.source import Window
from vitrina.store import pipelines

TEXTS = st.text(st.sampled_from("aAbBäÄßsSzZéE e-_.'\"\\09\u0130ıi"), max_size=5)
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-50, 50),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-99, max_value=99),
    "double precision": st.floats(),
    "text": TEXTS,
    'text COLLATE "C"': TEXTS,
    'text COLLATE "en-x-icu"': TEXTS,
    "text COLLATE content.no_case": TEXTS,
    "character varying(9)": TEXTS,
    "uuid": st.uuids(),
    "date": st.dates(),
    "timestamp with time zone": st.datetimes(timezones=st.just(None)).map(str),
    "boolean": st.booleans(),
}
# Not every build of PostgreSQL has ICU; PostgreSQL 15 of Debian has (`make test-postgres`).
NO_CASE = "CREATE COLLATION content.no_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
OF_ICU = ("en-x-icu", "content.no_case")


@st.composite
def tables(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]], bool]:
    """Draw the types of a key, its rows with NULLs and repeats among them, and whether the table says NOT NULL."""
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3)))
    has_nulls = draw(st.booleans())
    values = [st.none() | KEYS[kind] if has_nulls else KEYS[kind] for kind in kinds]
    return kinds, draw(st.lists(st.tuples(*values), max_size=60)), not has_nulls


@contextmanager
def opened(bench: Workbench, query: str, key: list[str]) -> Iterator[QuerySource]:
    """Open the source of a pipeline as `validate` does, and describe it."""
    row = pipelines.find(bench.metastore, "things")
    if row is None:
        bench.pipeline("things", query, target_key=key)
        row = pipelines.find(bench.metastore, "things")
    assert row is not None
    row = row | {"source_query": query, "target_key": key}
    with ExitStack() as sessions:
        source = opening.open_for_inspection(row, bench.settings, bench.metastore, sessions).source
        assert isinstance(source, QuerySource)
        source.describe(Window())
        yield source


def counted(source: QuerySource, names: list[str], ranges: list[KeyRange]) -> dict[int, int]:
    """Count, for each row, the ranges that it is read in."""
    order = source.order_of(Window(order=tuple(names)))
    found: dict[int, int] = {}
    for one in ranges:
        statement = source.query.select([SQL("q.row")], Bounds(after=one.after, upto=one.upto), order=order)
        for row in source.reader.connection.execute(statement).fetchall():
            found[row["row"]] = found.get(row["row"], 0) + 1
    return found


def make_table(bench: Workbench, kinds: tuple[str, ...], rows: list[tuple[Any, ...]], never_null: bool) -> list[str]:
    names = [f"k{place}" for place in range(len(kinds))]
    if not bench.sql("SELECT 1 FROM pg_collation WHERE collname = 'en-x-icu'"):
        kinds = tuple("text" if any(name in kind for name in OF_ICU) else kind for kind in kinds)
    elif not bench.sql("SELECT 1 FROM pg_collation WHERE collname = 'no_case'"):
        bench.sql(NO_CASE)
    columns = ", ".join(
        f"{name} {kind}{' NOT NULL' if never_null else ''}" for name, kind in zip(names, kinds, strict=True)
    )
    bench.sql(f"DROP TABLE IF EXISTS content.things; CREATE TABLE content.things (row int, {columns})")
    bench.sql("GRANT SELECT ON content.things TO vitrina_reader")
    with bench.admin.cursor() as cursor:
        places = ", ".join(["%s"] * (len(kinds) + 1))
        cursor.executemany(
            f"INSERT INTO content.things VALUES ({places})", [(place, *row) for place, row in enumerate(rows)]
        )
    return names


@pytest.mark.timeout(300)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(table=tables(), ranges=st.integers(1, 12), analysed=st.booleans(), seed=st.integers(0, 9))
def test_every_row_is_in_exactly_one_range(
    workbench: Workbench,
    table: tuple[tuple[str, ...], list[tuple[Any, ...]], bool],
    ranges: int,
    analysed: bool,
    seed: int,
) -> None:
    kinds, rows, never_null = table
    names = make_table(workbench, kinds, rows, never_null)
    if analysed:
        workbench.sql("ANALYZE content.things")
    with opened(workbench, f"SELECT row, {', '.join(names)} FROM content.things", names) as source:
        found = key_ranges.split(source, names, KeyRange(), ranges)
        # What a worker left of a range is cut again, and again.
        for _ in range(2):
            at = random.Random(seed).randrange(len(found))
            found[at : at + 1] = key_ranges.split(source, names, found[at], 3)

        assert counted(source, names, found) == dict.fromkeys(range(len(rows)), 1)


ORDINARY = """
CREATE TABLE content.things (row int, k0 int);
INSERT INTO content.things SELECT i, i FROM generate_series(0, 99) AS i;
"""


def overlapping(order: Order, last: tuple[str | None, ...]) -> Composable:
    """Take the first key of the next range as well."""
    kind = SQL(order.types[0])
    return SQL("{} <= ({}::text)::{} + 1").format(order.columns[0], last[0], kind)


def test_overlapping_bounds_are_noticed(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property above can fail: a mutant whose ranges overlap does."""
    workbench.source(ORDINARY)
    with opened(workbench, "SELECT row, k0 FROM content.things", ["k0"]) as source:
        monkeypatch.setattr(Order, "upto", overlapping)

        found = counted(source, ["k0"], key_ranges.split(source, ["k0"], KeyRange(), 4))

    assert set(found.values()) == {1, 2}


@pytest.mark.parametrize(
    ("query", "analysed"),
    [
        ("SELECT row, k0 FROM content.things", True),
        ("SELECT row, k0 FROM content.things", False),
        ("SELECT row, k0 FROM content.seen", False),
        ("SELECT row, k0 + 1 AS k0 FROM content.things", False),
    ],
    ids=["histogram", "sample of the table", "sample of a view", "sample of the query"],
)
def test_ranges_are_even(workbench: Workbench, query: str, analysed: bool) -> None:
    """Nine tenths of the rows are in a hundredth of the keys."""
    workbench.source(
        """
        CREATE TABLE content.things (row int, k0 int PRIMARY KEY);
        INSERT INTO content.things SELECT i, CASE WHEN i % 10 = 0 THEN i * 1000 ELSE 5000000 + i END
        FROM generate_series(1, 20000) AS i;
        CREATE VIEW content.seen AS TABLE content.things;
        """
    )
    if analysed:
        workbench.sql("ANALYZE content.things")
    with opened(workbench, query, ["k0"]) as source:
        found = key_ranges.split(source, ["k0"], KeyRange(), 8)
        rows = [len(counted(source, ["k0"], [one])) for one in found]

    assert len(found) == 8
    assert sum(rows) == 20_000
    assert max(rows) < 2 * 20_000 / 8


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT row, k0 FROM content.things ORDER BY k0 LIMIT 5", "sorts, groups or limits"),
        ("SELECT max(row) AS row, k0 FROM content.things GROUP BY k0", "sorts, groups or limits"),
        ("SELECT row, k0 FROM content.things WHERE random() < 0.5", "random"),
        ("SELECT k0 AS row, row AS k0 FROM content.things", "an index on (k0) is missing"),
    ],
)
def test_a_query_that_is_better_read_at_once_is_not_cut(workbench: Workbench, query: str, said: str) -> None:
    workbench.source("CREATE TABLE content.things (row int, k0 int PRIMARY KEY)")
    workbench.sql("INSERT INTO content.things SELECT i, i FROM generate_series(1, 20000) AS i; ANALYZE content.things")
    with opened(workbench, query, ["k0"]) as source:
        found = key_ranges.plan_cut(source, ["k0"], 100, 50)

    assert found.ranges == 0
    assert said in (found.obstacle or "")


def test_one_large_range_does_not_make_all_of_them_costly(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range in the middle has 40 % of the rows."""
    workbench.source("CREATE TABLE content.things (row int, k0 int PRIMARY KEY)")
    workbench.sql("INSERT INTO content.things SELECT i, i FROM generate_series(1, 20000) AS i; ANALYZE content.things")
    keys = [*range(120, 6_001, 120), *range(14_000, 19_761, 120)]
    bounds = [(str(key),) for key in keys]
    monkeypatch.setattr(key_ranges, "_cheap_candidates", lambda *given: bounds)
    with opened(workbench, "SELECT row, k0 FROM content.things", ["k0"]) as source:
        found = key_ranges.plan_cut(source, ["k0"], 100, 100)

    assert (found.ranges, found.obstacle) == (100, None)


def test_names_of_columns_are_quoted(workbench: Workbench) -> None:
    workbench.source('CREATE TABLE content.things (row int, "a ""b" int PRIMARY KEY)')
    workbench.sql("INSERT INTO content.things SELECT i, i FROM generate_series(1, 500) AS i")
    with opened(workbench, 'SELECT row, "a ""b" FROM content.things', ['a "b']) as source:
        found = key_ranges.split(source, ['a "b'], KeyRange(), 4)

        assert Identifier('a "b').as_string(None) == '"a ""b"'
        assert counted(source, ['a "b'], found) == dict.fromkeys(range(1, 501), 1)
