"""Stale keys, derived from changed rows: marts that are kept by them alone equal their queries."""

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import followed
from tests.support.followed import QUERIES, Mart
from tests.support.random_queries import Author
from vitrina.connectors.postgres.derive import rules
from vitrina.connectors.postgres.derive.blocks import Shape
from vitrina.connectors.postgres.derive.paths import Search
from vitrina.connectors.postgres.derive.statements import _Writer
from vitrina.errors import SourceQueryFailed
from vitrina.settings import Settings
from vitrina.store import database as postgres
from vitrina.store.database import Connection

BATCHES = 60


@pytest.fixture
def source(database: Settings) -> Iterator[Connection]:
    assert database.admin_url is not None
    with postgres.connect(database.admin_url.get_secret_value(), "vitrina:test-followed") as session:
        session.execute("SET search_path = ''")
        followed.set_up(session)
        chance = random.Random(7)
        for _ in range(25):
            followed.change_at_random(session, chance)
        yield session


@pytest.mark.parametrize("seed", [1, 2])
def test_marts_follow_random_changes(source: Connection, seed: int) -> None:
    marts = [Mart.loaded(source, query) for query in QUERIES]
    assert list(followed.differences(source, marts, BATCHES, random.Random(seed))) == []
    assert [mart.followed.name for mart in marts if not mart.asked] == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_marts_of_random_queries_follow(source: Connection, seed: int) -> None:
    marts = list(_followed(source, seed))
    assert len(marts) > 10
    assert list(followed.differences(source, marts, 15, random.Random(seed))) == []


def _followed(source: Connection, seed: int) -> Iterator[Mart]:
    for query in Author(seed).queries(40):
        with contextlib.suppress(SourceQueryFailed):
            yield Mart.loaded(source, query)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_what_is_derived(source: Connection, query: Any) -> None:
    mart = Mart.loaded(source, query)
    assert {table.relation for table in mart.derivation.tables if table.every_key} == query.every_key


def _nothing(*_: Any, **__: Any) -> frozenset[int]:
    return frozenset()


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _current_only(self: Any, place: int, lookup: Any) -> str:
    text = STAGE(self, place, lookup)
    return text.replace(" UNION SELECT", ") /* SELECT", 1) + " */" if " UNION SELECT" in text else text


def _old_only(self: Any) -> str:
    return FIRST(self).replace("UNION ALL SELECT * FROM new", "UNION ALL SELECT * FROM old")


def _new_only(self: Any) -> str:
    return FIRST(self).replace("SELECT * FROM old", "SELECT * FROM new")


def _by_equality(self: Any, condition: Any, leaf: int) -> str:
    return CONDITION(self, condition._replace(null_safe=False), leaf)


def _without_distinct_on(self: Any) -> Iterator[Any]:
    if self._groups is not None:
        yield self._groups
    yield from rules.partitions(self._windows())


def _without_absent(self: Any, place: int, leaf: int, kept: Any) -> str:
    return ABSENT(self, place, leaf, kept) + " WHERE false"


def _any_branch(self: Any, term: Any) -> Any:
    return VALUES(self, dataclasses.replace(term, branch=None))


def _even_unstrict(one: Any, two: Any) -> bool:
    return bool(one.atoms and two.atoms and one.leaves != two.leaves)


def _ungrouped(self: Any) -> Any:
    return self._outputs


STAGE, FIRST, CONDITION = _Writer._stage, _Writer._first, _Writer._condition
ABSENT, VALUES = _Writer._absent, Search._values
# What is left out, and what takes its place.
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "old images of tables that are looked up": (_Writer, "_stage", _current_only),
    "new images": (_Writer, "_first", _old_only),
    "old images": (_Writer, "_first", _new_only),
    "groups of NULL": (_Writer, "_condition", _by_equality),
    "rows that are found nowhere": (_Writer, "_absent", _without_absent),
    "windows": (rules, "partitions", lambda _: iter(())),
    "DISTINCT ON": (Shape, "_unions_of_rows", _without_distinct_on),
    "columns of groups": (Shape, "columns", _ungrouped),
    "stable columns": (rules, "may_leave", _yes),
    "blocks that are not entered": (rules, "may_enter", _yes),
    "directions of outer joins": (rules, "maybe_null", _nothing),
    "groups of the nullable side": (rules, "may_identify_group", _yes),
    "NOT IN and NULL": (rules, "membership_is_equality", _yes),
    "keys of the nullable side": (rules, "may_be_key", _yes),
    "branches of a UNION": (Search, "_values", _any_branch),
    "equalities that NULL satisfies": (rules, "is_usable_equality", _even_unstrict),
}


@pytest.mark.parametrize("rule", MUTANTS)
def test_each_rule_is_needed(source: Connection, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    where, name, instead = MUTANTS[rule]
    monkeypatch.setattr(where, name, instead)
    marts = [Mart.loaded(source, query) for query in QUERIES]
    found = next(followed.differences(source, marts, 2 * BATCHES, random.Random(3)), None)
    assert found, f"no mart differs without {rule}"
