"""Small rules of the control plane that need no database: differences, masks, roles, cursors, the brake on guessing."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrina import sentences
from vitrina.api import paging
from vitrina.api.failed_attempts import FailedAttempts
from vitrina.api.security import is_loopback
from vitrina.definition import Definition, Options
from vitrina.errors import FieldError, InvalidField
from vitrina.loads import opening
from vitrina.services import advice, audit, policy, versions
from vitrina.services.callers import Role
from vitrina.settings import Settings

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_each_role_may_do_what_the_ones_below_it_may() -> None:
    ranks = [Role.VIEWER, Role.OPERATOR, Role.ADMIN]
    assert [[one.includes(other) for other in ranks] for one in ranks] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


@given(JSON)
def test_everything_is_the_same_as_itself(value: Any) -> None:
    assert versions.same(value, value)
    assert versions.compare({"a": value}, {"a": value}) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1e23, 10**23, True),
        (False, 0, False),
        (True, 1.0, False),
        (None, False, False),
        ([1, False], [1, 0], False),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ("1", 1, False),
    ],
)
def test_sameness_is_json_s_not_python_s(one: Any, other: Any, same: bool) -> None:
    assert versions.same(one, other) is same
    assert versions.same(other, one) is same


def test_differences_are_named_by_path() -> None:
    before = {"options": {"a": 1}, "tasks": [{"body": "x"}, {"body": "y"}], "key": ["id"], "same": 1}
    after = {"options": {"b": 2}, "tasks": [{"body": "x"}, {"body": "z"}], "key": ["id", "no"], "same": 1}
    assert [(change.path, change.before, change.after) for change in versions.compare(before, after)] == [
        ("key", ["id"], ["id", "no"]),
        ("options.a", 1, None),
        ("options.b", None, 2),
        ("tasks.1.body", "y", "z"),
    ]


def test_secrets_are_masked_wherever_they_stand() -> None:
    masked = audit.masked(
        {
            "tasks": [{"params": {"API_Key": "k", "nested": {"db_password": "p"}, "column": "title"}}],
            "description": "see postgresql://user:hunter2@host/db and http://plain.example/",
            "tokens": ["a", "b"],
            "batch_size": 5,
        }
    )
    assert masked == {
        "tasks": [{"params": {"API_Key": "***", "nested": {"db_password": "***"}, "column": "title"}}],
        "description": "see postgresql://user:***@host/db and http://plain.example/",
        "tokens": ["***", "***"],
        "batch_size": 5,
    }


def test_every_error_has_a_next_step() -> None:
    assert advice.next_step("bad_key").startswith("Make target_key unique")
    assert advice.next_step("never heard of").startswith("Open the run's log")


def test_advice_names_what_the_message_names() -> None:
    """Also of a message that was kept as text: nobody is told to do what the message says."""
    refused = "the source query is refused at line 2, column 3: column x does not exist"
    assert advice.next_step("source_query_failed", refused) == (
        "Edit the pipeline: the query is marked at line 2, column 3. Correct it there, then run again."
    )
    backfill = f"the backfill failed: {refused}"
    assert advice.next_step("source_query_failed", backfill) == advice.next_step("source_query_failed", refused)
    missing = "cannot create shop.films: schema shop does not exist"
    assert advice.next_step("fatal", missing).startswith("Create it (CREATE SCHEMA shop), or choose a target")
    assert sentences.said(advice.next_step("fatal", missing)) == {
        "code": "advice.create_schema",
        "params": {"schema": "shop"},
    }


def test_every_advice_can_be_given() -> None:
    """What an advice names is among what its message names."""
    for code, chosen in advice.BY_MESSAGE.items():
        assert set(sentences.params_of(sentences.CATALOG[chosen])) <= set(sentences.params_of(sentences.CATALOG[code]))
    for code in advice.BY_CODE:
        assert sentences.params_of(sentences.CATALOG[f"advice.{code}"]) == []
    assert not any("as the message says" in text for text in map(advice.next_step, advice.BY_CODE))


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_a_cursor_comes_back_as_it_was_given(moment: datetime, identity: Any) -> None:
    cursor = paging.encode([moment.isoformat(), str(identity)])
    assert paging.decode(cursor, datetime.fromisoformat, type(identity)) == [moment, identity]


@given(st.text(max_size=50))
def test_any_other_cursor_is_refused_politely(text: str) -> None:
    with pytest.raises(InvalidField, match="the cursor is not valid"):
        paging.decode(text, int, lambda part: uuid4() if part == "never" else int("x"))


def test_the_brake_forgets_after_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("vitrina.api.failed_attempts.time.monotonic", lambda: now)
    brake = FailedAttempts(limit=2, window_seconds=60)
    assert [brake.failed("10.0.0.1") for _ in range(3)] == [False, False, True]
    assert not brake.failed("10.0.0.2")
    now = 61.0
    assert not brake.failed("10.0.0.1")


def test_more_problems_than_anybody_reads_are_counted_not_listed() -> None:
    found = policy.invalid([FieldError(f"f{n}", f"field {n} is wrong") for n in range(250)])
    assert len(found.fields) == 100
    assert found.message.startswith("250 fields are not valid: field 0 is wrong; ")
    assert found.message.endswith("; and 150 more")


@pytest.mark.parametrize(("seconds", "is_refused"), [(10.0, False), (60.0, False), (60.5, True)])
def test_a_timeout_stays_under_the_installation_s(seconds: float, is_refused: bool) -> None:
    settings = Settings(statement_timeout_seconds=60.0)
    definition = Definition(
        name="films",
        source_query="SELECT 1 AS id",
        target_table="analytics.films",
        options=Options(statement_timeout_seconds=seconds),
    )
    said = [problem.message for problem in policy.problems(definition, settings)]
    assert bool(said) == is_refused
    assert all("VITRINA_STATEMENT_TIMEOUT_SECONDS" in message for message in said)
    assert opening.statement_timeout(definition, settings, None) == min(seconds, 60.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "localhost.evil.example", "", "::"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
