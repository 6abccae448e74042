"""Generations are built aside and swapped in; only the runner that holds the claim can write or swap."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.waiting import until
from vitrina import errors
from vitrina.connectors.search.batch import Actions
from vitrina.connectors.search.bulk import BulkEngine
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.generations import Generations, IncompleteGeneration, Standing, WriteAlias
from vitrina.connectors.search.versions import write_version

PIPELINE = "11111111-1111-1111-1111-111111111111"
OTHER_PIPELINE = "22222222-2222-2222-2222-222222222222"
MAPPING = {"dynamic": "strict", "properties": {"n": {"type": "long"}}}
FIRST = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def alias(generations: Generations, epoch: int, pipeline: str = PIPELINE) -> WriteAlias:
    return WriteAlias(generations.index, pipeline, epoch)


def fill(client: SearchClient, generations: Generations, name: str, count: int, epoch: int) -> WriteAlias:
    claimed = alias(generations, epoch)
    generations.claim_writes(name, claimed)
    write(client, claimed, count)
    return claimed


def write(client: SearchClient, claimed: WriteAlias, count: int) -> None:
    ids = [str(number) for number in range(count)]
    lines = [f'{{"index":{{"_id":"{i}"}}}}\n{{"n":{i}}}\n'.encode() for i in ids]
    engine = BulkEngine(client, str(claimed))
    engine.send(Actions(ids, lines))
    engine.close()


def publish(client: SearchClient, generations: Generations, count: int, epoch: int, now: datetime) -> str:
    seen = generations.standing()
    name = generations.create(PIPELINE, MAPPING, epoch=epoch, now=now)
    claimed = fill(client, generations, name, count, epoch)
    generations.check(name, count)
    generations.finish(name)
    generations.swap(name, seen, claimed)
    return name


def test_a_full_load_from_nothing(client: SearchClient, generations: Generations) -> None:
    seen = generations.standing()
    assert seen == Standing(None, is_alias=False)
    settings = {"index": {"number_of_shards": 1, "refresh_interval": "7s"}, "number_of_replicas": 0}

    name = generations.create(PIPELINE, MAPPING, settings, now=FIRST)

    assert name == f"{generations.index}-20260102030405678"
    assert client.get_settings(name)["index.refresh_interval"] == "-1", "no refreshes while it is filled"
    claimed = fill(client, generations, name, 30, epoch=1)
    assert client.find_index(generations.index) is None, "searchers see nothing of it yet"
    checked = generations.check(name, 30)
    assert (checked.documents, checked.documents_before) == (30, 0)
    generations.finish(name)
    assert client.get_settings(name)["index.refresh_interval"] == "7s"
    assert "instead of nothing" in generations.swap(name, seen, claimed)
    assert generations.standing() == Standing(name, is_alias=True)
    assert client.count(generations.index) == 30
    assert client.list_aliases(f"{generations.index}.w.*") == {}, "nobody may write to what is published"


def test_settings_come_back_to_the_servers_defaults(client: SearchClient, generations: Generations) -> None:
    name = publish(client, generations, 1, epoch=1, now=FIRST)

    settings = client.get_settings(name)
    assert "index.refresh_interval" not in settings
    assert settings.get("index.number_of_replicas", "1") == "1"


def test_searchers_see_the_old_or_the_new_generation_and_never_half(
    client: SearchClient, generations: Generations
) -> None:
    publish(client, generations, 10, epoch=1, now=FIRST)
    counts: set[int] = set()
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            found = client.search(generations.index, {"size": 0, "track_total_hits": True})
            counts.add(found["hits"]["total"]["value"])

    searching = threading.Thread(target=search)
    searching.start()
    try:
        until(lambda: 10 in counts)
        for number in range(1, 4):
            publish(client, generations, 10 + 10 * number, epoch=1 + number, now=FIRST + timedelta(seconds=number))
        until(lambda: 40 in counts)
    finally:
        done.set()
        searching.join()

    assert counts <= {10, 20, 30, 40}


def test_a_generation_that_lacks_documents_is_not_published(client: SearchClient, generations: Generations) -> None:
    name = generations.create(PIPELINE, MAPPING)
    fill(client, generations, name, 9, epoch=1)

    with pytest.raises(IncompleteGeneration, match="holds 9 documents and 10 were acknowledged"):
        generations.check(name, 10)


def test_the_shrink_guard_learns_both_numbers(client: SearchClient, generations: Generations) -> None:
    publish(client, generations, 10, epoch=1, now=FIRST)
    name = generations.create(PIPELINE, MAPPING)
    fill(client, generations, name, 3, epoch=2)

    checked = generations.check(name, 3)

    assert (checked.documents, checked.documents_before) == (3, 10)


def test_old_generations_are_kept_and_then_removed(client: SearchClient, generations: Generations) -> None:
    client.create_index(f"{generations.index}-20200101000000000", {})  # somebody's, with a name like ours
    names = [
        publish(client, generations, 1, epoch=number + 1, now=FIRST + timedelta(days=number)) for number in range(4)
    ]
    abandoned = generations.create(PIPELINE, MAPPING, now=FIRST + timedelta(days=9))
    in_progress = generations.create(PIPELINE, MAPPING, epoch=5, now=FIRST + timedelta(days=10))

    removed = generations.remove_old(names[3], epoch=4, keep=1, still_held=lambda: None)

    assert set(removed) == {names[0], names[1], abandoned}
    left = set(client.list_indexes(f"{generations.index}-*"))
    assert left == {names[2], names[3], in_progress, f"{generations.index}-20200101000000000"}


def test_an_index_of_that_name_is_taken_over(client: SearchClient, generations: Generations) -> None:
    client.create_index(generations.index, {})
    seen = generations.standing()
    assert seen == Standing(generations.index, is_alias=False)
    name = generations.create(PIPELINE, MAPPING)
    claimed = fill(client, generations, name, 5, epoch=1)
    generations.finish(name)

    said = generations.swap(name, seen, claimed)

    assert said == f"{generations.index} was an index, not an alias; it was replaced by an alias of {name} and deleted"
    assert generations.standing() == Standing(name, is_alias=True)


def test_an_index_of_that_name_is_refused_when_the_option_says_so(
    client: SearchClient, generations: Generations
) -> None:
    client.create_index(generations.index, {})
    seen = generations.standing()

    with pytest.raises(errors.TargetMismatch, match="is an index, not an alias"):
        generations.refuse_concrete(seen, "refuse")
    with pytest.raises(errors.TargetMismatch):
        generations.swap(generations.create(PIPELINE, MAPPING), seen, on_concrete_index="refuse")
    assert generations.standing() == seen


def test_an_alias_of_several_indexes_is_not_guessed_at(client: SearchClient, generations: Generations) -> None:
    for part in ("-a", "-b"):
        client.create_index(generations.index + part, {"aliases": {generations.index: {}}})

    with pytest.raises(errors.TargetMismatch, match="alias of several indexes"):
        generations.standing()


def test_a_swap_whose_reply_was_lost_can_be_asked_for_again(client: SearchClient, generations: Generations) -> None:
    seen = generations.standing()
    name = generations.create(PIPELINE, MAPPING)
    claimed = fill(client, generations, name, 1, epoch=1)
    generations.swap(name, seen, claimed)

    assert generations.swap(name, seen, claimed) == f"es:{generations.index} shows {name}"


def test_a_runner_that_lost_its_claim_cannot_swap(client: SearchClient, generations: Generations) -> None:
    published = publish(client, generations, 4, epoch=1, now=FIRST)
    seen = generations.standing()
    name = generations.create(PIPELINE, MAPPING)
    late = fill(client, generations, name, 2, epoch=2)
    generations.claim_writes(published, alias(generations, 3))  # the takeover

    with pytest.raises(errors.LeaseLost, match="is not published"):
        generations.swap(name, seen, late)
    assert generations.standing().concrete == published


def test_a_swap_is_refused_when_somebody_else_swapped(client: SearchClient, generations: Generations) -> None:
    publish(client, generations, 4, epoch=1, now=FIRST)
    seen = generations.standing()
    name = generations.create(PIPELINE, MAPPING, now=FIRST + timedelta(days=2))
    elsewhere = publish(client, generations, 5, epoch=2, now=FIRST + timedelta(days=1))

    with pytest.raises(errors.LeaseLost):
        generations.swap(name, seen)
    assert generations.standing().concrete == elsewhere


def test_an_interrupted_load_can_go_on(client: SearchClient, generations: Generations) -> None:
    name = generations.create(PIPELINE, MAPPING)
    assert generations.is_resumable(name, PIPELINE)
    assert not generations.is_resumable(name, OTHER_PIPELINE)
    assert not generations.is_resumable(f"{generations.index}-20000101000000000", PIPELINE)
    seen, claimed = generations.standing(), fill(client, generations, name, 1, epoch=1)
    generations.finish(name)
    assert generations.is_resumable(name, PIPELINE), "interrupted before the swap"
    generations.swap(name, seen, claimed)
    assert generations.is_resumable(name, PIPELINE), "interrupted behind the swap"


def test_what_loads_left_that_were_given_up_is_removed(client: SearchClient, generations: Generations) -> None:
    kept = publish(client, generations, 1, epoch=1, now=FIRST)
    shown = publish(client, generations, 1, epoch=2, now=FIRST + timedelta(days=1))
    elsewhere = generations.create(OTHER_PIPELINE, MAPPING, now=FIRST + timedelta(days=2))
    given_up = generations.create(PIPELINE, MAPPING, epoch=3, now=FIRST + timedelta(days=3))
    successors = generations.create(PIPELINE, MAPPING, epoch=5, now=FIRST + timedelta(days=4))

    ours = generations.create(PIPELINE, MAPPING, epoch=4, now=FIRST + timedelta(days=5))
    claimed = fill(client, generations, ours, 1, epoch=4)

    assert generations.discard_unfinished(ours, claimed, still_held=lambda: None) == [given_up]

    assert set(client.list_indexes(f"{generations.index}-*")) == {kept, shown, elsewhere, successors, ours}


def test_incremental_pipelines_get_an_index_made(client: SearchClient, generations: Generations) -> None:
    name = generations.ensure_current(PIPELINE, MAPPING)

    assert generations.standing() == Standing(name, is_alias=True)
    assert generations.ensure_current(OTHER_PIPELINE, MAPPING) == name
    assert "index.refresh_interval" not in client.get_settings(name)


def test_a_claim_takes_the_alias_from_every_earlier_one(client: SearchClient, generations: Generations) -> None:
    name = generations.ensure_current(PIPELINE, MAPPING)
    elsewhere = generations.create(OTHER_PIPELINE, MAPPING)
    generations.claim_writes(elsewhere, alias(generations, 500, OTHER_PIPELINE))

    generations.claim_writes(name, alias(generations, 100))

    assert client.list_aliases(f"{generations.index}.w.*") == {str(alias(generations, 100)): {name}}
    with pytest.raises(errors.LeaseLost):
        write(client, alias(generations, 500, OTHER_PIPELINE), 1)


def test_a_claim_of_a_shared_target_leaves_the_aliases_of_others(
    client: SearchClient, generations: Generations
) -> None:
    name = generations.ensure_current(PIPELINE, MAPPING)
    generations.claim_writes(name, alias(generations, 500, OTHER_PIPELINE), shared=True)
    generations.claim_writes(name, alias(generations, 100), shared=True)

    generations.claim_writes(name, alias(generations, 101), shared=True)

    left = {str(alias(generations, 500, OTHER_PIPELINE)), str(alias(generations, 101))}
    assert set(client.list_aliases(f"{generations.index}.w.*")) == left
    write(client, alias(generations, 500, OTHER_PIPELINE), 1)


def test_an_index_remembers_who_filled_it(client: SearchClient, generations: Generations) -> None:
    assert not generations.was_written_by(PIPELINE), "it does not exist"
    client.create_index(generations.index, {})
    assert not generations.was_written_by(PIPELINE), "somebody made it by hand"
    generations.claim_writes(generations.index, alias(generations, 1))
    assert generations.was_written_by(PIPELINE)
    assert not generations.was_written_by(OTHER_PIPELINE)


def test_a_late_claim_of_the_same_pipeline_leaves(client: SearchClient, generations: Generations) -> None:
    name = generations.ensure_current(PIPELINE, MAPPING)
    generations.claim_writes(name, alias(generations, 200))

    with pytest.raises(errors.LeaseLost, match="a later claim than"):
        generations.claim_writes(name, alias(generations, 100))
    assert set(client.list_aliases(f"{generations.index}.w.*")) == {str(alias(generations, 200))}


def test_two_claims_at_the_same_moment_leave_the_later_one(client: SearchClient, generations: Generations) -> None:
    """The early claim stops between looking and acting; the later one happens; then the early one acts."""
    name = generations.ensure_current(PIPELINE, MAPPING)
    early, later = alias(generations, 100), alias(generations, 200)
    stopped = StoppedBeforeActing(client, lambda: generations.claim_writes(name, later))

    with pytest.raises(errors.LeaseLost, match="a later claim than"):
        Generations(stopped, generations.index).claim_writes(name, early)
    assert set(client.list_aliases(f"{generations.index}.w.*")) == {str(later)}


class StoppedBeforeActing(SearchClient):
    """Lets somebody else go first, once, before aliases are changed."""

    def __init__(self, client: SearchClient, meanwhile: Any) -> None:
        super().__init__(client.options)
        self._meanwhile = meanwhile

    def update_aliases(self, actions: Any) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        super().update_aliases(actions)


def test_releasing_twice_is_fine(client: SearchClient, generations: Generations) -> None:
    name = generations.ensure_current(PIPELINE, MAPPING)
    generations.claim_writes(name, alias(generations, 1))

    generations.release_writes(alias(generations, 1))
    generations.release_writes(alias(generations, 1))

    assert client.list_aliases(f"{generations.index}.w.*") == {}


def test_write_alias_names_are_read_back() -> None:
    renewed = WriteAlias("film", PIPELINE, 17, renewal=2)

    assert str(WriteAlias("film", PIPELINE, 17)) == f"film.w.{PIPELINE}.17"
    assert WriteAlias.parse("film", str(renewed)) == renewed
    assert WriteAlias.parse("film", f"film.w.x.{PIPELINE}.17") is None
    assert WriteAlias("film", PIPELINE, 17) < renewed < WriteAlias("film", PIPELINE, 18)


def test_versions_grow_with_claim_and_batch() -> None:
    assert (
        write_version(1_790_000_000_000, 3) < write_version(1_790_000_000_000, 4) < write_version(1_790_000_000_001, 0)
    )
    assert write_version(1_790_000_000_000, 2**22 - 1) < 2**63, "the server's limit"
    with pytest.raises(errors.FatalError, match="does not fit"):
        write_version(1, 2**22)
