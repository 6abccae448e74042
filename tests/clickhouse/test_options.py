"""What `options.clickhouse` and the definition make of a table, and what is refused before a row moves."""

from typing import Any

import pytest

from tests.clickhouse.places import Place
from vitrina.errors import ShrinkRefused, TargetMismatch, TransientError
from vitrina.ports.batch import PartId
from vitrina.ports.schema import Column
from vitrina.ports.target import Wanted
from vitrina.testing.contracts import FIRST, SECOND, Attempt, Ledger, table

COLUMNS = (Column("id", "bigint"), Column("title", "text"), Column("day", "date"))


def prepared(place: Place, clickhouse: dict[str, Any] | None = None, key: tuple[str, ...] = ("id",), **how: Any) -> Any:
    target = place.target(1, clickhouse=clickhouse, **how)
    target.seize()
    target.prepare(Wanted(COLUMNS, key), create=True)
    return target


def loaded(place: Place, ledger: Ledger, epoch: int, rows: dict[int, str], **how: Any) -> Attempt:
    made = Attempt(ledger, place.target(epoch, **how), epoch, ("id",))
    made.begin("replace")
    made.add(ledger.checkpoint.batch_no + 1, rows)
    made.publish()
    return made


def test_a_table_is_made_as_the_options_say(place: Place) -> None:
    options = {"order_by": ["day", "id"], "partition_by": "toYYYYMM(day)", "ttl": "day + INTERVAL 9000 DAY"}
    target = prepared(place, {**options, "settings": {"index_granularity": 1024}}, key=("id", "day"))
    made = target.tables.create_generation(target.layout)
    [(said,)] = place.session.rows(
        f"SELECT create_table_query FROM system.tables WHERE database = '{place.database}' AND name = '{made}'"
    )
    for part in ("PARTITION BY toYYYYMM(day)", "ORDER BY (day, id)", "toIntervalDay(9000)", "index_granularity = 1024"):
        assert part in said
    assert "ReplacingMergeTree(_version, _deleted)" in said


@pytest.mark.parametrize(
    ("options", "fields", "said"),
    [
        ({"order_by": ["title"]}, {}, "columns of target_key"),
        ({"order_by": ["nope"]}, {}, "names nope"),
        ({"ttl": "day + INTERVAL 1 DAY"}, {}, "not in target_key"),
        ({"as_string": ["nope"]}, {}, "names nope"),
        ({"engine": "MergeTree"}, {"options": {"shared_target": True}}, "holds no versions"),
        ({}, {"options": {"delete_when": "nope"}}, "'nope' is not in the query's result"),
    ],
)
def test_what_cannot_be_is_refused(place: Place, options: Any, fields: Any, said: str) -> None:
    with pytest.raises(TargetMismatch, match=said):
        prepared(place, options, **fields)


def test_a_table_of_somebody_else_is_left_alone(place: Place) -> None:
    place.session.command(f"CREATE TABLE {place.database}.films (id Int64) ENGINE = MergeTree ORDER BY id")
    with pytest.raises(TargetMismatch, match="Vitrina did not make"):
        prepared(place)
    place.session.command(f"INSERT INTO {place.database}.films VALUES (1)")
    assert place.rows() == [(1,)]


def test_a_load_that_would_take_most_rows_away_is_refused(place: Place) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST | SECOND)
    careful: dict[str, Any] = {"options": {"allow_shrink": False, "allow_empty": False}}
    with pytest.raises(ShrinkRefused, match="1 of 4 rows"):
        loaded(place, ledger, 2, {1: "Alien"}, **careful)
    assert place.titles() == FIRST | SECOND
    ledger.checkpoint = ledger.checkpoint.without_load()
    empty = Attempt(ledger, place.target(3, **careful), 3, ("id",))
    empty.begin("replace")
    with pytest.raises(ShrinkRefused, match="allow_empty"):
        empty.publish()
    assert place.titles() == FIRST | SECOND


def test_a_source_without_rows_and_columns_empties_the_table(place: Place) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    target = place.target(2)
    target.seize()
    found = target.prepare_nothing(replaces=True)
    assert found
    assert found.exists
    nothing = Attempt.__new__(Attempt)
    nothing.ledger, nothing.epoch, nothing.target = ledger, 2, target
    ledger.epoch = 2
    nothing.begin("replace")
    nothing.publish()
    assert place.titles() == {}
    assert place.target(3).prepare_nothing(replaces=False) is None


def test_columns_that_are_new_are_added_only_on_request(place: Place) -> None:
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    cursor: dict[str, Any] = {"mode": "incremental", "incremental_key": "day"}
    with pytest.raises(TargetMismatch, match=r"day \(Nullable\(Date32\)\) is missing"):
        prepared(place, **cursor)
    prepared(place, options={"on_schema_change": "add_columns"}, **cursor)
    with pytest.raises(TargetMismatch, match=r"title is Nullable\(String\) there and Nullable\(Int32\) here"):
        place.target(4, **cursor).prepare(Wanted((COLUMNS[0], Column("title", "integer")), ("id",)), create=True)


def test_several_pipelines_share_a_target(place: Place) -> None:
    """One that takes over leaves what the other is about to merge."""
    shared: dict[str, Any] = {"options": {"shared_target": True}}
    ledger = Ledger()
    loaded(place, ledger, 1, FIRST)
    one = Attempt(ledger, place.target(2, **shared), 2, ("id",))
    one.begin("merge")
    part = one.write(9, {4: "Diva"})
    other = place.target(3, **shared)
    other.tables.owner = type(other.tables.owner)("ffffffff", 3, "00")
    other.seize()
    one.commit(part)
    assert place.titles() == FIRST | {4: "Diva"}


def test_what_comes_after_a_load_was_ended_is_answered(place: Place) -> None:
    """Closed by another thread, as when the lease is over: nobody waits for an insert that never begins."""
    made = Attempt(Ledger(), place.target(1), 1, ("id",))
    made.begin("replace")
    with made.load.writer() as writer:
        first = writer.write(table(FIRST), PartId(1, 1))
        writer.close()
        assert first().rows == len(FIRST)
        with pytest.raises(TransientError, match="was ended"):
            writer.write(table(SECOND), PartId(1, 2))
