"""Keys that are equal and yet differ, that are made of NULLs, or that a mart has beside ours."""

import pytest

from tests.support.workbench import Workbench

pytestmark = pytest.mark.usefixtures("either_way")

MODES = pytest.mark.parametrize(
    "fields", [{}, {"mode": "incremental", "incremental_key": "at"}], ids=["full", "incremental"]
)


def make_mart(bench: Workbench, definition: str) -> None:
    bench.sql(definition)
    bench.sql("ALTER TABLE analytics.things OWNER TO vitrina_app")


def run(bench: Workbench) -> dict[str, object]:
    found = bench.run("things")
    assert (found["status"], found["error_message"]) == ("SUCCESS", None)
    return found


@MODES
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("numeric", "1.0", "1.00"),
        ("float8", "0", "-0"),
        ("interval", "1 mon", "30 days"),
        ("numeric[]", "{1}", "{1.0}"),
    ],
)
def test_a_key_is_written_as_the_source_writes_it(
    workbench: Workbench, fields: dict[str, str], kind: str, before: str, after: str
) -> None:
    workbench.source(f"CREATE TABLE content.things (id {kind} PRIMARY KEY, at int NOT NULL)")
    workbench.sql(f"INSERT INTO content.things VALUES ('{before}', 1)")
    workbench.pipeline("things", "SELECT id, at FROM content.things", target_key=["id"], **fields)
    run(workbench)
    workbench.sql(f"UPDATE content.things SET id = '{after}'" + (", at = 2" if fields else ""))

    found = run(workbench)

    assert found["rows_written"] == 1
    assert workbench.sql("SELECT id::text FROM analytics.things") == workbench.sql(
        "SELECT id::text FROM content.things"
    )
    assert run(workbench)["rows_written"] == 0


@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_of_the_mart_without_a_key_leave_once(workbench: Workbench, partitioned: bool) -> None:
    """They cannot have come from the source, which has a key in each row."""
    workbench.source("CREATE TABLE content.things (id int PRIMARY KEY, note text)")
    workbench.sql("INSERT INTO content.things SELECT i, 'x' FROM generate_series(1, 20) AS i")
    make_mart(
        workbench, f"CREATE TABLE analytics.things (id int UNIQUE, note text){' PARTITION BY HASH (id)' * partitioned}"
    )
    if partitioned:
        workbench.sql(
            "CREATE TABLE analytics.part PARTITION OF analytics.things FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
            "ALTER TABLE analytics.part OWNER TO vitrina_app"
        )
    workbench.sql("INSERT INTO analytics.things VALUES (NULL, 'by hand'), (1, 'y')")
    workbench.pipeline("things", "SELECT id, note FROM content.things", target_key=["id"])

    found = run(workbench)

    assert found["rows_deleted"] == 1
    assert workbench.differences("SELECT id, note FROM content.things", "analytics.things") == 0
    assert run(workbench)["rows_written"] == 0


def test_a_composite_key_of_nulls_is_a_key(workbench: Workbench) -> None:
    workbench.sql("CREATE TYPE content.pair AS (n int, t text); GRANT USAGE ON SCHEMA content TO vitrina_app")
    workbench.source("CREATE TABLE content.things (id content.pair PRIMARY KEY, note text)")
    workbench.sql("INSERT INTO content.things VALUES (ROW(1, 'a')::content.pair, 'x'), (ROW(NULL, NULL), 'nulls')")
    workbench.pipeline("things", "SELECT id, note FROM content.things", target_key=["id"])
    run(workbench)
    workbench.sql("UPDATE content.things SET note = 'changed'; INSERT INTO content.things VALUES ('(2,b)', 'new')")

    found = run(workbench)

    assert (found["rows_written"], found["rows_deleted"]) == (3, 0)
    assert workbench.sql("SELECT id::text, note FROM analytics.things ORDER BY 1") == workbench.sql(
        "SELECT id::text, note FROM content.things ORDER BY 1"
    )


def test_a_large_load_into_a_mart_whose_foreign_key_is_checked_late(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.things (id int PRIMARY KEY, kind int)")
    workbench.sql("INSERT INTO content.things SELECT i, i % 5 FROM generate_series(1, 25000) AS i")
    workbench.sql(
        "CREATE TABLE analytics.kinds (id int PRIMARY KEY); INSERT INTO analytics.kinds VALUES (0), (1), (2), (3)"
    )
    workbench.sql("GRANT SELECT, REFERENCES ON analytics.kinds TO vitrina_app")
    make_mart(
        workbench,
        "CREATE TABLE analytics.things (id int PRIMARY KEY, kind int REFERENCES analytics.kinds DEFERRABLE"
        " INITIALLY DEFERRED)",
    )
    workbench.pipeline("things", "SELECT id, kind FROM content.things")
    found = workbench.run("things")
    assert (found["status"], "things_kind_fkey" in found["error_message"]) == ("FAILED", True)

    workbench.sql("INSERT INTO analytics.kinds VALUES (4)")
    run(workbench)

    assert workbench.differences("SELECT id, kind FROM content.things", "analytics.things") == 0


def test_a_mart_of_domains_over_domains(workbench: Workbench) -> None:
    workbench.sql("CREATE DOMAIN analytics.number AS int; CREATE DOMAIN analytics.positive AS analytics.number")
    workbench.sql("ALTER DOMAIN analytics.positive ADD CHECK (VALUE > 0)")
    workbench.source(
        "CREATE TABLE content.things (id int PRIMARY KEY, n int); INSERT INTO content.things VALUES (1, 1)"
    )
    make_mart(workbench, "CREATE TABLE analytics.things (id analytics.positive PRIMARY KEY, n analytics.positive)")
    workbench.pipeline("things", "SELECT id, n FROM content.things")
    run(workbench)
    workbench.sql("UPDATE content.things SET n = 0")

    assert "positive_check" in workbench.run("things")["error_message"]


def test_chunks_of_a_load_follow_the_order_of_the_query(workbench: Workbench) -> None:
    """The mart's own column may be ordered in another way: then the last row of a chunk is not its greatest there."""
    workbench.source("CREATE TABLE content.things (id text PRIMARY KEY)")
    workbench.sql("INSERT INTO content.things SELECT chr(65 + i) FROM generate_series(0, 25) AS i")
    workbench.sql("INSERT INTO content.things SELECT chr(97 + i) FROM generate_series(0, 25) AS i")
    query = "SELECT i.id COLLATE {} AS id FROM content.things AS i"
    other = workbench.sql("SELECT collname FROM pg_collation WHERE collname = 'en-x-icu'")
    make_mart(workbench, 'CREATE TABLE analytics.things (id text COLLATE "C" PRIMARY KEY)')
    collation = '"en-x-icu"' if other else '"ucs_basic"'
    workbench.pipeline("things", query.format(collation), options={"checkpoint_rows": 5})

    assert run(workbench)["batches"] == 11

    assert workbench.differences("SELECT id FROM content.things", "analytics.things") == 0
