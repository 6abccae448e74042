"""How a table would be copied: key, cursor, mode and promise out of what its catalog says, and the reasons."""

from typing import Any

import pytest
import yaml

from tests.support.workbench import Workbench
from vitrina.errors import ConfigError, NotFound
from vitrina.services import manifest_files, policy, suggestions
from vitrina.services.suggestions import Preferences, Suggestion

STAMP = """
CREATE FUNCTION content.stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $$;
"""


def suggest(bench: Workbench, table: str, **wishes: Any) -> Suggestion:
    found = suggestions.find_table(bench.metastore, "content", table)
    return suggestions.suggest(found, suggestions.target_for(found, "analytics"), Preferences(**wishes))


def test_a_trigger_that_stamps_every_row_makes_it_exact(workbench: Workbench) -> None:
    workbench.source(
        "CREATE TABLE content.orders (id bigint PRIMARY KEY, total numeric, created_at timestamptz NOT NULL,"
        f" updated_at timestamptz NOT NULL); CREATE INDEX ON content.orders (updated_at); {STAMP}"
        "CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON content.orders FOR EACH ROW EXECUTE FUNCTION content.stamp()"
    )
    found = suggest(workbench, "orders")
    assert found.guarantee == "exact"
    assert found.definition == {
        "name": "orders",
        "description": "A copy of content.orders.",
        "source_query": "SELECT id, total, created_at, updated_at FROM content.orders",
        "target_table": "analytics.orders",
        "target_key": ["id"],
        "mode": "incremental",
        "schedule_interval": "5m",
        "incremental_key": "updated_at",
        "incremental_id_key": "id",
        "options": {"reconcile": {"interval": "1d", "level": "full"}, "cursor_clock": "database"},
    }
    assert "key id: the primary key of content.orders" in found.reasons
    assert "mode incremental by updated_at: a trigger sets it whenever a row is changed" in found.reasons


def test_a_trigger_on_updates_alone_is_no_promise_about_inserts(workbench: Workbench) -> None:
    workbench.source(
        "CREATE TABLE content.orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now());"
        f"{STAMP} CREATE TRIGGER stamp BEFORE UPDATE ON content.orders FOR EACH ROW EXECUTE FUNCTION content.stamp()"
    )
    found = suggest(workbench, "orders")
    assert found.guarantee == "bounded-lag"
    assert found.definition["options"]["lookback_seconds"] == 600
    assert "cursor_clock" not in found.definition["options"]


@pytest.mark.parametrize(
    ("columns", "cursor"),
    [
        ("created_at timestamptz, modified timestamptz", "modified"),
        ("updated_at timestamp, last_changed timestamptz", "last_changed"),  # a zone cannot be misread
        ('"LastModified" timestamptz', "LastModified"),
        ("updated_at date", None),  # a day says too little
        ("created_at timestamptz", None),  # a change does not move it
        ("valid_until timestamptz, shipped_at timestamptz", None),
    ],
)
def test_the_cursor_is_the_time_of_the_last_change(workbench: Workbench, columns: str, cursor: str | None) -> None:
    workbench.source(f"CREATE TABLE content.t (id int PRIMARY KEY, {columns})")
    found = suggest(workbench, "t")
    assert found.definition.get("incremental_key") == cursor
    assert found.definition["mode"] == ("incremental" if cursor else "full")


def test_without_such_a_column_everything_is_compared(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.shops (id int PRIMARY KEY, name text)")
    found = suggest(workbench, "shops")
    assert (found.definition["mode"], found.guarantee) == ("full", "exact")
    assert "options" not in found.definition
    assert any("no timestamp column that shows when a row was last changed" in reason for reason in found.reasons)


def test_rows_without_a_stamp_are_read_too(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.t (id int PRIMARY KEY, updated_at timestamptz)")
    assert suggest(workbench, "t").definition["options"]["null_cursor"] == "read"


def test_a_missing_index_is_named(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    assert any("CREATE INDEX CONCURRENTLY ON content.t (updated_at)" in r for r in suggest(workbench, "t").reasons)


def test_a_unique_index_stands_in_for_a_primary_key(workbench: Workbench) -> None:
    workbench.source(
        "CREATE TABLE content.t (shop int NOT NULL, number int NOT NULL, code text UNIQUE, x int NOT NULL);"
        "CREATE UNIQUE INDEX ON content.t (x) WHERE x > 0; CREATE UNIQUE INDEX ON content.t ((x + 1));"
        "CREATE UNIQUE INDEX ON content.t (shop, number)"
    )
    found = suggest(workbench, "t")
    assert found.definition["target_key"] == ["shop", "number"]
    assert "incremental_id_key" not in found.definition


def test_a_view_needs_a_key_from_its_author(workbench: Workbench) -> None:
    workbench.source("CREATE VIEW content.v AS SELECT 1 AS id, 2 AS other")
    with pytest.raises(ConfigError, match=r"the view content.v has neither a primary key .* --key \(id, other\)"):
        suggest(workbench, "v")
    assert suggest(workbench, "v", key=("id",)).definition["target_key"] == ["id"]


def test_what_the_author_says_counts(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.t (id int PRIMARY KEY, seq bigint NOT NULL, updated_at timestamptz)")
    found = suggest(workbench, "t", name="mine", cursor="seq", schedule="0 3 * * *")
    assert (found.definition["name"], found.definition["incremental_key"]) == ("mine", "seq")
    assert found.definition["schedule_interval"] == "0 3 * * *"
    assert suggest(workbench, "t", mode="full").definition["mode"] == "full"
    with pytest.raises(NotFound, match=r"--cursor nothing: content.t has no such column; it has id, seq, updated_at"):
        suggest(workbench, "t", cursor="nothing")


def test_odd_names_are_quoted_and_pass_the_guard(workbench: Workbench) -> None:
    workbench.source(
        'CREATE TABLE content."Заказы 2026" '
        '("Id" int PRIMARY KEY, "select" int, "a ""b""" int, "Updated_At" timestamptz)'
    )
    found = suggestions.find_table(workbench.metastore, "content", "Заказы 2026")
    made = suggestions.suggest(found, "analytics.orders", Preferences())
    assert made.definition["source_query"] == (
        'SELECT "Id", "select", "a ""b""", "Updated_At" FROM content."Заказы 2026"'
    )
    policy.check(policy.parse(made.definition), workbench.settings)
    assert suggestions.target_for(found, "analytics") == "analytics.t_2026"


def test_what_is_suggested_runs_and_is_equal(workbench: Workbench) -> None:
    workbench.source(
        'CREATE TABLE content."Orders" ("Id" int PRIMARY KEY, total numeric(12, 2), updated_at timestamptz NOT NULL);'
        """INSERT INTO content."Orders" SELECT i, i / 7.0, now() FROM generate_series(1, 100) AS i"""
    )
    made = suggest(workbench, "Orders").definition
    query = made.pop("source_query")
    workbench.pipeline(made.pop("name"), query, **made)
    assert workbench.run("orders")["status"] == "SUCCESS"
    assert workbench.reconcile("orders")["equal"]


def test_the_document_is_what_apply_takes(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.t (id int PRIMARY KEY, updated_at timestamptz)")
    written = manifest_files.write([suggest(workbench, "t").document])
    assert yaml.safe_load(written)["spec"]["target_table"] == "analytics.t"


def test_a_table_that_is_not_there_is_named_with_those_that_are(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.orders (id int PRIMARY KEY)")
    with pytest.raises(NotFound, match=r"there is no table content.order; content has: orders"):
        suggest(workbench, "order")
    with pytest.raises(NotFound, match=r"there is no schema 'shop'; there are: analytics, content, public, ugc"):
        suggestions.find_table(workbench.metastore, "shop", "orders")
