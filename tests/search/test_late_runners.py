"""A runner that lost its pipeline without knowing it: whatever it does late, what is shown and filled stays."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import unquote

import pytest
from pydantic import SecretStr

from tests.chaos import mutants
from tests.search.conftest import Target
from tests.search.test_generations import FIRST, MAPPING, PIPELINE, StoppedBeforeActing, alias, fill, publish
from tests.search.test_run_faults import bench, change_source, make, violations
from tests.support.http_fault_proxy import Answer, Forward, HttpFault, HttpFaultProxy, Request
from tests.support.workbench import Workbench
from vitrina import errors
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations, Standing
from vitrina.store import sessions

__all__ = ["bench"]

pytestmark = pytest.mark.two_servers


class StopAt(HttpFault):
    """The runner is stopped with a request on its way, the first one that fits, until `go_on` is set."""

    def __init__(self, fits: Callable[[Request], bool], *, behind: Callable[[Request], bool] | None) -> None:
        super().__init__(times=1)
        self._fits = fits
        self._behind = behind
        self.reached, self.go_on = threading.Event(), threading.Event()

    def handle(self, request: Request, forward: Forward) -> Answer:
        if self._behind is None and self._fits(request) and self._takes():
            self.reached.set()
            assert self.go_on.wait(240)
        elif self._behind and self._behind(request):
            self._behind = None
        return forward(request)


def lists(request: Request) -> bool:
    return request.method == "GET" and unquote(request.path).split("?")[0].endswith("-*")


def swaps(request: Request) -> bool:
    """What it adds is the target's own name, not one to write under."""
    if "_aliases" not in request.path:
        return False
    added = (action["add"]["alias"] for action in json.loads(request.body)["actions"] if "add" in action)
    return any(".w." not in alias for alias in added)


def claims(request: Request) -> bool:
    return "_aliases" in request.path and not swaps(request)


def creates(request: Request) -> bool:
    return request.method == "PUT" and request.path.count("/") == 1


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("mode", "fits", "behind"),
    [
        pytest.param("full", lists, swaps, id="full: what may be cleaned is listed"),
        pytest.param("full", swaps, None, id="full: the swap"),
        pytest.param("full", claims, None, id="full: the claim of writes"),
        pytest.param("incremental", creates, None, id="incremental: the index is made"),
        pytest.param("incremental", claims, None, id="incremental: the claim of writes"),
    ],
)
def test_a_runner_that_wakes_after_the_takeover_leaves_what_is_shown(
    *,
    bench: Workbench,
    client: SearchClient,
    index: str,
    search: Target,
    proxy: HttpFaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    fits: Callable[[Request], bool],
    behind: Callable[[Request], bool] | None,
) -> None:
    # Whoever takes over ends the late runner's sessions; here it is left to itself.
    monkeypatch.setattr(sessions, "end_older", lambda connection, claim: 0)
    make(bench, index, mode, options={"keep_generations": 0}, batch_size=1000)
    bench.request("films")
    late, claim = StopAt(fits, behind=behind), bench.claim()
    proxy.fault = late
    stopped = threading.Thread(target=bench.perform, args=[claim])
    stopped.start()
    assert late.reached.wait(60)

    bench.recover()
    bench.settings = bench.settings.model_copy(update={"elasticsearch_url": SecretStr(search.url)})
    bench.perform(bench.claim())
    change_source(bench, 2)
    assert bench.run("films")["status"] == "SUCCESS"
    shown = Generations(client, index).standing()
    assert violations(bench, client, index) == []
    bench.sql("INSERT INTO content.film_work VALUES (1000, 'Too late', 1, clock_timestamp())")
    late.go_on.set()
    stopped.join(60)

    assert not stopped.is_alive()
    assert Generations(client, index).standing() == shown
    assert violations(bench, client, index) == ["lost 1000"], "the late runner wrote nothing"
    assert bench.run("films")["status"] == "SUCCESS"
    assert violations(bench, client, index) == []
    assert set(client.list_indexes(f"{index}*")) == {Generations(client, index).standing().concrete}, "no leftover"


# --- one move at a time: the world changes at the moment of the move -------------------------------------------------


def nothing() -> None:
    """Nobody took the pipeline over."""


def test_cleaning_ends_when_the_claim_is_no_longer_ours(client: SearchClient, generations: Generations) -> None:
    names = [publish(client, generations, 1, epoch=n + 1, now=FIRST + timedelta(days=n)) for n in range(3)]

    def taken_over() -> None:
        raise errors.LeaseLost("another runner took over")

    with pytest.raises(errors.LeaseLost):
        generations.remove_old(names[2], epoch=3, keep=0, still_held=taken_over)
    assert set(client.list_indexes(f"{generations.index}-*")) == set(names)


def test_cleaning_deletes_nothing_once_the_name_shows_something_else(
    client: SearchClient, generations: Generations
) -> None:
    """The metastore was asked; behind the answer a newer claim publishes, or a person moves the alias back."""
    names = [publish(client, generations, 1, epoch=n + 1, now=FIRST + timedelta(days=n)) for n in range(3)]

    def moved_back() -> None:
        seen = generations.standing()
        if seen.concrete == names[2]:
            generations.swap(names[0], seen)

    assert generations.remove_old(names[2], epoch=3, keep=0, still_held=moved_back) == []

    assert generations.standing() == Standing(names[0], is_alias=True)
    assert set(client.list_indexes(f"{generations.index}-*")) == set(names)


def test_what_newer_claims_fill_and_what_an_alias_shows_is_not_cleaned(
    client: SearchClient, generations: Generations
) -> None:
    names = [publish(client, generations, 1, epoch=n + 1, now=FIRST + timedelta(days=n)) for n in range(3)]
    client.update_aliases([{"add": {"index": names[1], "alias": f"{generations.index}.yesterday"}}])
    filled = generations.create(PIPELINE, MAPPING, epoch=9, now=FIRST + timedelta(days=9))

    assert generations.remove_old(names[2], epoch=3, keep=0, still_held=nothing) == [names[0]]

    assert set(client.list_indexes(f"{generations.index}-*")) == {names[1], names[2], filled}


def test_what_was_given_up_is_removed_only_under_the_claims_own_alias(
    client: SearchClient, generations: Generations
) -> None:
    given_up = generations.create(PIPELINE, MAPPING, epoch=1, now=FIRST)
    ours = generations.create(PIPELINE, MAPPING, epoch=2, now=FIRST + timedelta(days=1))
    claimed = fill(client, generations, ours, 1, epoch=2)

    def taken_over() -> None:
        generations.claim_writes(ours, alias(generations, 3))

    assert generations.discard_unfinished(ours, claimed, still_held=taken_over) == []
    assert generations.discard_unfinished(ours, alias(generations, 3), still_held=nothing) == [given_up]


def test_the_filter_of_an_alias_outlives_the_cleaning(client: SearchClient, generations: Generations) -> None:
    names = [publish(client, generations, 4, epoch=n + 1, now=FIRST + timedelta(days=n)) for n in range(2)]
    only_small = {"range": {"n": {"lt": 2}}}
    client.update_aliases([{"add": {"index": names[1], "alias": generations.index, "filter": only_small}}])

    assert generations.remove_old(names[1], epoch=2, keep=0, still_held=nothing) == [names[0]]

    assert client.count(generations.index) == 2


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("mutant", "caught_by"),
    [
        ("cleaning_unasked", test_cleaning_ends_when_the_claim_is_no_longer_ours),
        ("cleaning_unlooked", test_cleaning_deletes_nothing_once_the_name_shows_something_else),
        ("cleaning_unlooked", test_what_was_given_up_is_removed_only_under_the_claims_own_alias),
    ],
)
def test_cleaning_without_a_protection_is_caught(
    client: SearchClient,
    generations: Generations,
    mutant: str,
    caught_by: Callable[[SearchClient, Generations], None],
) -> None:
    caught_by_it = (AssertionError, pytest.fail.Exception)
    with mutants.applied(mutant), pytest.raises(caught_by_it):
        caught_by(client, generations)


def test_an_index_that_somebody_made_at_the_same_moment_stays_the_only_one(
    client: SearchClient, generations: Generations
) -> None:
    """A late runner saw none, and makes one when its successor has made and filled another."""
    stopped = StoppedBeforeCreating(client, lambda: generations.ensure_current(PIPELINE, MAPPING))

    name = Generations(stopped, generations.index).ensure_current(PIPELINE, MAPPING)

    assert generations.standing() == Standing(name, is_alias=True)
    assert set(client.list_indexes(f"{generations.index}-*")) == {name}


class StoppedBeforeCreating(StoppedBeforeActing):
    """Lets somebody else go first, once, before an index is made."""

    def create_index(self, name: str, body: object) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        SearchClient.create_index(self, name, body)  # type: ignore[arg-type]
