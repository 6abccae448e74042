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


@pytest.mark.parametrize("history", [False, True])
def test_a_new_table_is_made_as_it_was_asked_for(workbench: Workbench, history: bool) -> None:
    workbench.source(ITEMS)
    options: dict[str, Any] = {"table": TABLE, **({"history": {}} if history else {})}
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
        ({"partition_by": {"hash": "name"}}, "no part of the key"),
        ({"indexes": [{"columns": ["nothing"]}]}, "nothing"),
        ({"grants": [{"role": "nobody_here"}]}, "nobody_here"),
    ],
)
def test_what_cannot_be_made_is_named_and_nothing_is_left(workbench: Workbench, table: Any, said: str) -> None:
    workbench.source(ITEMS)
    workbench.pipeline("items", QUERY, target_key=["id"], options={"table": table})
    done = workbench.run("items")
    assert done["status"] == "FAILED"
    assert said in done["error_message"]
    assert workbench.sql("SELECT to_regclass('analytics.items') AS table") == [{"table": None}]


def test_other_targets_have_no_tables() -> None:
    with pytest.raises(ValidationError, match="a table in Postgres"):
        Definition.model_validate(
            {"name": "items", "source_query": QUERY, "target_table": "es:items", "options": {"table": {}}}
        )
