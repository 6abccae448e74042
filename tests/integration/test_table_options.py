"""How the table of a mart is made: partitions, indexes, comments and grants; what one that is there lacks is said."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.workbench import Workbench
from vitrina.definition import Definition

ITEMS = """
CREATE TABLE content.items (id bigint PRIMARY KEY, name text, tags text[]);
INSERT INTO content.items SELECT n, 'item ' || n, ARRAY['a'] FROM generate_series(1, 500) n;
"""
QUERY = "SELECT id, name, tags FROM content.items"
TABLE = {
    "partition_by": {"hash": "id", "partitions": 3},
    "indexes": [{"columns": ["name", "id"]}, {"columns": ["tags"], "method": "gin"}],
    "comment": "Items, whole",
    "comments": {"name": "It's the name"},
    "grants": [{"role": "vitrina_reader"}],
}


def run(bench: Workbench, **fields: Any) -> dict[str, Any]:
    bench.pipeline("items", QUERY, target_key=["id"], **fields)
    done = bench.run("items")
    assert done["status"] == "SUCCESS", done["error_message"]
    return done


@pytest.mark.parametrize("unique_by", [None, "valid_from", "valid_to"])
def test_a_new_table_is_made_as_it_was_asked_for(workbench: Workbench, unique_by: str | None) -> None:
    workbench.source(ITEMS)
    options: dict[str, Any] = {"table": TABLE, **({"history": {"unique_by": unique_by}} if unique_by else {})}
    done = run(workbench, options=options)
    assert done["metrics"]["plan"]["warnings"] == []
    found = workbench.sql(
        """
        SELECT pg_get_partkeydef(c.oid) AS cut, obj_description(c.oid) AS comment, col_description(c.oid, 2) AS of_name,
               has_table_privilege('vitrina_reader', c.oid, 'SELECT') AS may_read,
               (SELECT count(*) FROM pg_inherits WHERE inhparent = c.oid) AS partitions,
               (SELECT array_agg(pg_get_indexdef(i.indexrelid) ORDER BY i.indexrelid) FROM pg_index i
                WHERE i.indrelid = c.oid AND NOT i.indisunique) AS indexes
        FROM pg_class c WHERE c.oid = 'analytics.items'::regclass
        """
    )
    [indexes] = [row.pop("indexes") for row in found]
    assert found == [
        {"cut": "HASH (id)", "comment": "Items, whole", "of_name": "It's the name", "may_read": True, "partitions": 3}
    ]
    assert [each.partition(" USING ")[2] for each in indexes] == ["btree (name, id)", "gin (tags)"]
    workbench.sql("UPDATE content.items SET name = 'x' WHERE id = 1; DELETE FROM content.items WHERE id = 2")
    done = workbench.run("items")
    assert (done["status"], done["rows_written"], done["rows_deleted"]) == ("SUCCESS", 1, 1)
    assert done["metrics"]["plan"]["warnings"] == []


def test_what_a_table_lacks_is_said_and_left(workbench: Workbench) -> None:
    workbench.source(ITEMS)
    run(workbench)
    workbench.sql("CREATE INDEX by_hand ON analytics.items (name)")
    workbench.change("items", options={"table": TABLE})
    done = workbench.run("items")
    warnings = done["metrics"]["plan"]["warnings"]
    said = "\n".join(warnings)
    assert len(warnings) == 6
    for statement in (
        'CREATE INDEX ON "analytics"."items" USING btree ("name", "id")',
        'CREATE INDEX ON "analytics"."items" USING gin ("tags")',
        """COMMENT ON TABLE "analytics"."items" IS 'Items, whole'""",
        """COMMENT ON COLUMN "analytics"."items"."name" IS 'It''s the name'""",
        'GRANT SELECT ON "analytics"."items" TO "vitrina_reader"',
        "not partitioned by the hash of id",
    ):
        assert statement in said
    assert len(workbench.sql("SELECT indexrelid FROM pg_index WHERE indrelid = 'analytics.items'::regclass")) == 2
    # Each statement does what it says.
    for warning in warnings:
        if "to add it: " in warning:
            workbench.sql(warning.partition("to add it: ")[2])
    assert len(workbench.run("items")["metrics"]["plan"]["warnings"]) == 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"partition_by": {"hash": "name"}}, "not part of the key"),
        ({"partition_by": {"range": "name"}}, "not part of the key"),
        ({"partition_by": {"range": "id"}}, "by a date or a timestamp"),
        (
            {"indexes": [{"columns": ["name"]}, {"columns": ["id", "nothing"]}]},
            (
                "options.table.indexes.1.columns names the column 'nothing', which analytics.items does not have"
                " (it has: id, name, tags); correct the name"
            ),
        ),
        (
            {"indexes": [{"columns": ["name"], "method": "gin"}]},
            (
                "options.table.indexes.0 asks for something that analytics.items cannot have: data type text has no"
                ' default operator class for access method "gin"'
            ),
        ),
        (
            {"comments": {"nothing": "x"}},
            "options.table.comments names the column 'nothing', which analytics.items does not have",
        ),
        (
            {"grants": [{"role": "vitrina_reader"}, {"role": "nobody_here"}]},
            (
                "options.table.grants.1.role names the role 'nobody_here', which the database of analytics.items does"
                " not have; correct the name, or CREATE ROLE first"
            ),
        ),
    ],
)
def test_what_cannot_be_made_is_named_and_nothing_is_left(workbench: Workbench, table: Any, said: str) -> None:
    workbench.source(ITEMS)
    workbench.pipeline("items", QUERY, target_key=["id"], options={"table": table})
    done = workbench.run("items")
    assert done["status"] == "FAILED"
    assert said in done["error_message"]
    assert "cast the column" not in done["error_message"]
    assert workbench.sql("SELECT to_regclass('analytics.items') AS table") == [{"table": None}]


def test_names_that_a_table_does_not_know_are_said_and_nothing_is_asked_for(workbench: Workbench) -> None:
    workbench.source(ITEMS)
    run(workbench)
    table = {
        "indexes": [{"columns": ["nothing"]}],
        "comments": {"never": "x"},
        "grants": [{"role": "nobody_here"}],
    }
    workbench.change("items", options={"table": table})
    done = workbench.run("items")
    assert done["status"] == "SUCCESS"
    warnings = done["metrics"]["plan"]["warnings"]
    assert len(warnings) == 3
    for said, warning in zip(("'nothing'", "'never'", "'nobody_here'"), warnings, strict=True):
        assert said in warning
        assert "to add it" not in warning


def test_an_empty_comment_is_none_and_public_is_everyone(workbench: Workbench) -> None:
    workbench.source(ITEMS)
    table = {"comment": "", "comments": {"name": ""}, "grants": [{"role": "public"}]}
    assert run(workbench, options={"table": table})["metrics"]["plan"]["warnings"] == []
    assert workbench.run("items")["metrics"]["plan"]["warnings"] == []
    [found] = workbench.sql("SELECT relacl::text AS acl FROM pg_class WHERE oid = 'analytics.items'::regclass")
    assert "=r/vitrina_app" in found["acl"].replace("vitrina_app=", "")
    workbench.sql(
        """
        COMMENT ON TABLE analytics.items IS 'old'; COMMENT ON COLUMN analytics.items.name IS 'old';
        REVOKE ALL ON analytics.items FROM PUBLIC
        """
    )
    warnings = workbench.run("items")["metrics"]["plan"]["warnings"]
    assert len(warnings) == 3
    for warning in warnings:
        workbench.sql(warning.partition("to add it: ")[2])
    assert workbench.run("items")["metrics"]["plan"]["warnings"] == []


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"columns": ["tags"], "method": "gin", "unique": True}, "the method gin cannot be unique: use btree"),
        ({"columns": ["id", "name"], "method": "hash"}, "the method hash has one column, not id, name"),
    ],
)
def test_an_index_that_its_method_cannot_make_is_refused(index: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Definition.model_validate(
            {
                "name": "x",
                "source_query": QUERY,
                "target_table": "analytics.x",
                "options": {"table": {"indexes": [index]}},
            }
        )


SALES = """
CREATE TABLE content.sales (
    id bigint, sold {kind} NOT NULL, price int, changed timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id, sold));
INSERT INTO content.sales SELECT n, '2026-01-15'::date + n, n FROM generate_series(0, 59) n;
"""
BY_MONTH = {"partition_by": {"range": "sold"}}
PARTITIONS = """
SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bound, c.reltuples
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'analytics.sales'::regclass ORDER BY 1
"""


def sell(bench: Workbench, options: dict[str, Any], *, mode: str = "full", kind: str = "date") -> None:
    bench.source(SALES.format(kind=kind))
    cursor = {"incremental_key": "changed", "incremental_id_key": "id"} if mode == "incremental" else {}
    bench.pipeline(
        "sales",
        "SELECT id, sold, price, changed FROM content.sales",
        target_key=["id", "sold"],
        mode=mode,
        options={"table": BY_MONTH, "cursor_clock": "database", **options},
        **cursor,
    )


def succeed(bench: Workbench) -> dict[str, Any]:
    done = bench.run("sales")
    assert done["status"] == "SUCCESS", done["error_message"]
    assert not [warning for warning in done["metrics"]["plan"]["warnings"] if "options.table" in warning]
    return done


def names(bench: Workbench) -> list[str]:
    return [row["name"] for row in bench.sql(PARTITIONS)]


@pytest.mark.parametrize("unique_by", [None, "valid_from", "valid_to"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_partitions_of_months_are_made_as_rows_come(workbench: Workbench, mode: str, unique_by: str | None) -> None:
    sell(workbench, {"history": {"unique_by": unique_by}} if unique_by else {}, mode=mode)
    succeed(workbench)
    assert names(workbench) == ["sales_2026_01", "sales_2026_02", "sales_2026_03"]
    assert workbench.sql("SELECT count(*) AS rows FROM analytics.sales_2026_02") == [{"rows": 28}]
    workbench.sql("INSERT INTO content.sales VALUES (900, '2026-03-31', 1), (901, '2027-12-01', 2)")
    done = succeed(workbench)
    assert done["rows_written"] == 2
    assert names(workbench)[-1] == "sales_2027_12"
    assert workbench.differences("SELECT id, sold, price FROM content.sales", "analytics.sales", "id, sold, price") == 0
    again = succeed(workbench)
    assert (again["rows_written"], len(names(workbench))) == (0, 4)


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "timestamptz(3)"])
def test_spans_of_timestamps_begin_at_midnight_in_utc(workbench: Workbench, kind: str) -> None:
    [row] = workbench.sql("SELECT current_database() AS name")
    workbench.sql(f"ALTER DATABASE {row['name']} SET timezone = 'Asia/Tokyo'")
    workbench.sql("SET timezone = 'UTC'")
    sell(workbench, {"table": {"partition_by": {"range": "sold", "every": "year"}}}, kind=kind)
    workbench.sql("INSERT INTO content.sales VALUES (900, '2026-12-31 23:59:59', 1), (901, '2027-01-01 00:00:00', 2)")
    succeed(workbench)
    assert names(workbench) == ["sales_2026", "sales_2027"]
    assert workbench.sql("SELECT id FROM analytics.sales_2027") == [{"id": 901}]


def test_partitions_that_were_made_by_hand_are_used(workbench: Workbench) -> None:
    sell(workbench, {})
    succeed(workbench)
    workbench.sql(
        """
        CREATE TABLE analytics.later PARTITION OF analytics.sales FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');
        INSERT INTO content.sales VALUES (900, '2027-05-05', 1), (901, '2027-11-05', 1)
        """
    )
    succeed(workbench)
    assert workbench.sql("SELECT count(*) AS rows FROM analytics.later") == [{"rows": 2}]
    workbench.sql("CREATE TABLE analytics.rest PARTITION OF analytics.sales DEFAULT")
    workbench.sql("INSERT INTO content.sales VALUES (902, '2031-05-05', 1), (903, 'infinity', 1)")
    succeed(workbench)
    assert workbench.sql("SELECT count(*) AS rows FROM analytics.rest") == [{"rows": 2}]


def test_rows_that_no_partition_can_take_are_named(workbench: Workbench) -> None:
    sell(workbench, {})
    succeed(workbench)
    workbench.sql("INSERT INTO content.sales VALUES (900, 'infinity', 1)")
    assert "sold of a row is infinity" in workbench.run("sales")["error_message"]
    workbench.sql("UPDATE content.sales SET sold = '2027-05-05' WHERE id = 900")
    workbench.sql(
        "CREATE TABLE analytics.half PARTITION OF analytics.sales FOR VALUES FROM ('2027-05-10') TO ('2027-05-20')"
    )
    said = workbench.run("sales")["error_message"]
    assert "cannot create the partition analytics.sales_2027_05" in said
    assert "would overlap" in said
    assert "analytics.sales_2027_05" not in [f"analytics.{name}" for name in names(workbench)]


def test_a_table_that_is_not_cut_so_is_said_and_left(workbench: Workbench) -> None:
    sell(workbench, {"table": {}})
    succeed(workbench)
    workbench.change("sales", options={"table": BY_MONTH})
    done = workbench.run("sales")
    assert done["status"] == "SUCCESS"
    [warning] = done["metrics"]["plan"]["warnings"]
    assert "not partitioned by ranges of sold" in warning
    assert workbench.sql("SELECT relkind::text AS kind FROM pg_class WHERE oid = 'analytics.sales'::regclass") == [
        {"kind": "r"}
    ]


@pytest.mark.parametrize(
    ("cut", "said"),
    [({}, "in either hash or range"), ({"hash": "id", "range": "sold"}, "in either hash or range")],
)
def test_a_table_is_cut_in_one_way(cut: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Definition.model_validate(
            {
                "name": "x",
                "source_query": QUERY,
                "target_table": "analytics.x",
                "options": {"table": {"partition_by": cut}},
            }
        )


def test_other_targets_have_no_tables() -> None:
    with pytest.raises(ValidationError, match="a table in Postgres"):
        Definition.model_validate(
            {"name": "items", "source_query": QUERY, "target_table": "es:items", "options": {"table": {}}}
        )
