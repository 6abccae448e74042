"""The indexes of a search target: generations built aside and swapped in, and aliases that fence writers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from vitrina import errors
from vitrina.connectors.search.client import Json, Missing, SearchClient
from vitrina.connectors.search.mapping import NOTES, noted
from vitrina.connectors.search.versions import is_counted
from vitrina.ports.checkpoint import Accepted

OnConcreteIndex = Literal["take_over", "refuse"]

# While a generation is filled nobody searches it, and it can be built again.
_FILLING = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
# How many copies a write waits for. The server refuses to have fewer copies than that: it goes first and comes last.
_AWAITED = "index.write.wait_for_active_shards"

# The server refuses a second index that has the name with this: whoever makes one late, makes none.
_ONLY_ONE = {"is_write_index": True}


class IncompleteGeneration(errors.FatalError):
    """The generation does not hold what was acknowledged, so it must not be published."""

    code = "incomplete_generation"
    discards_load = True


@dataclass(frozen=True)
class Standing:
    """What has the target's name at the moment: an alias of one index, an index itself, or nothing."""

    concrete: str | None
    is_alias: bool


@dataclass(frozen=True)
class Checked:
    """A generation that holds what it should, and how many documents the target has now: what the guard compares."""

    documents: int
    documents_before: int


@dataclass(frozen=True)
class _Generation:
    """An index that we made for the target, with our notes in it and the aliases that it has."""

    name: str
    notes: Json
    aliases: frozenset[str]


@dataclass(frozen=True, order=True)
class WriteAlias:
    """`<index>.w.<pipeline>.<epoch>`: the name under which one claim may write, removed by the next claim.

    `renewal` counts how often that claim moved it itself, after a reply was lost.
    """

    index: str
    pipeline: str
    epoch: int
    renewal: int = 0

    def __str__(self) -> str:
        renewed = f".{self.renewal}" if self.renewal else ""
        return f"{self.index}.w.{self.pipeline}.{self.epoch}{renewed}"

    @classmethod
    def parse(cls, index: str, name: str) -> "WriteAlias | None":
        found = re.fullmatch(re.escape(index) + r"\.w\.([0-9a-f-]+)\.(\d+)(?:\.(\d+))?", name)
        return cls(index, found[1], int(found[2]), int(found[3] or 0)) if found else None


class Generations:
    """The generations `<index>-<timestamp>` of one target, whose name is an alias of the one that is searched."""

    def __init__(self, client: SearchClient, index: str) -> None:
        self._client = client
        self.index = index

    def standing(self) -> Standing:
        found = self._client.find_index(self.index)
        if not found:
            return Standing(None, is_alias=False)
        if any(name != self.index and self.index not in entry.get("aliases", {}) for name, entry in found.items()):
            raise errors.TargetMismatch(
                f"es:{self.index} is a data stream, which only takes more: name an index, or an alias of one"
            )
        if len(found) > 1:
            raise errors.TargetMismatch(
                f"es:{self.index} is an alias of several indexes ({', '.join(sorted(found))}): leave it on one of them"
            )
        (concrete,) = found
        return Standing(concrete, is_alias=concrete != self.index)

    # --- building ---

    def create(
        self,
        pipeline: str,
        mappings: Json,
        settings: Mapping[str, Any] | None = None,
        *,
        epoch: int = 0,
        now: datetime | None = None,
    ) -> str:
        """Create an empty generation that no alias shows yet, set up for being filled."""
        flat = _flat_settings(settings or {})
        return self._create(pipeline, mappings, flat, filling=True, epoch=epoch, now=now)

    def ensure_current(self, pipeline: str, mappings: Json, settings: Mapping[str, Any] | None = None) -> str:
        """Find the index that has the target's name, or create it; for pipelines that only add."""
        standing = self.standing()
        if standing.concrete:
            return standing.concrete
        try:
            return self._create(pipeline, mappings, _flat_settings(settings or {}), filling=False)
        except errors.FatalError:
            # The server lets a name write to one index only: somebody made one since we looked.
            made = self.standing().concrete
            if made is None:
                raise
            return made

    def is_resumable(self, name: str, pipeline: str) -> bool:
        """Tell whether the generation that an interrupted load left is still there.

        A complete one counts too: the load may have been interrupted just before, or after, the swap.
        """
        found = self._client.find_index(name)
        return bool(found and name in found and _ours(found[name]).get("pipeline") == pipeline)

    def is_published(self, name: str) -> bool:
        """Tell whether the target's name shows the generation and it is complete; a person may show any index."""
        if self.standing() != Standing(name, is_alias=True):
            return False
        return bool(_ours(self._get_index(name)).get("complete"))

    def was_written_by(self, pipeline: str) -> bool:
        """Tell whether this pipeline has written to the index that has the target's name."""
        (entry,) = (self._client.find_index(self.index) or {"": {}}).values()
        aliases = (WriteAlias.parse(self.index, name) for name in entry.get("aliases", {}))
        return _ours(entry).get("pipeline") == pipeline or any(a and a.pipeline == pipeline for a in aliases)

    def identity(self, name: str | None = None) -> str | None:
        """Return the uuid of the index of this name, or of the target's; None when there is none."""
        concrete = name or self.standing().concrete
        if concrete is None or not (found := self._client.find_index(concrete)):
            return None
        return str(found[concrete]["settings"]["index"]["uuid"])

    def uncounted(self, name: str, accepted: Accepted) -> list[str]:
        """List ids of documents outside the parts that count.

        The documents' versions tell them apart; no query can select by version.
        """
        pages = self._client.scroll(name, {"size": 10_000, "_source": False, "version": True})
        hits = (hit for page in pages for hit in page)
        return [hit["_id"] for hit in hits if not is_counted(hit["_version"], accepted)]

    def check(self, name: str, acknowledged: int) -> Checked:
        """Make the generation searchable; it must hold every acknowledged document."""
        self._client.refresh(name)
        documents = self._client.count(name)
        if documents != acknowledged:
            raise IncompleteGeneration(
                f"generation {name} holds {documents:,} documents and {acknowledged:,} were acknowledged: either the "
                f"target_key is not unique in the source, or the server lost documents. es:{self.index} stays as it was"
            )
        # By the index: a filter of the alias would hide what is there.
        shown = self.standing().concrete
        before = self._client.count(shown) if shown else 0
        return Checked(documents, before)

    def finish(self, name: str) -> None:
        """Give the generation the settings that it is to be searched with, and note that it is complete."""
        wanted = _ours(self._get_index(name)).get("settings", {})
        self._client.put_settings(name, {setting: wanted.get(setting) for setting in _FILLING})
        if wanted.get(_AWAITED):
            self._client.put_settings(name, {_AWAITED: wanted[_AWAITED]})
        self._mark_complete(name)

    # --- publishing ---

    def swap(
        self,
        name: str,
        seen: Standing,
        write_alias: WriteAlias | None = None,
        *,
        on_concrete_index: OnConcreteIndex = "take_over",
    ) -> str:
        """Let the target's name show the new generation, in one step; return what was done.

        Only if the name still shows what was `seen` when the load began and our write alias is still there: a runner
        that lost its lease meanwhile publishes nothing. Asking again after a lost reply is safe.
        """
        if self.standing() == Standing(name, is_alias=True):
            if write_alias:
                self.release_writes(write_alias)
            return f"es:{self.index} shows {name}"
        actions = [_remove(name, str(write_alias))] if write_alias else []
        actions += self._removal(seen, on_concrete_index)
        aliases = self._aliases_for(name, seen)
        moved = sorted(aliases.keys() - {self.index})
        if seen.is_alias:
            # One that is gone by now is no reason to show nothing.
            actions += [{"remove": {"index": seen.concrete, "alias": one, "must_exist": False}} for one in moved]
        actions += [{"add": {"index": name, "alias": one, **how}} for one, how in aliases.items()]
        try:
            self._client.update_aliases(actions)
        except Missing as exc:
            raise errors.LeaseLost(
                f"generation {name} is not published: another runner took the pipeline over, or es:{self.index} no "
                f"longer shows {seen.concrete or 'nothing'}"
            ) from exc
        along = f"; so do {', '.join(moved)}" if moved else ""
        if seen.concrete and not seen.is_alias:
            return f"{self.index} was an index of its own; it was replaced by an alias of {name} and deleted{along}"
        return f"es:{self.index} shows {name} instead of {seen.concrete or 'nothing'}{along}"

    def _aliases_for(self, name: str, seen: Standing) -> dict[str, Json]:
        """Collect the aliases that will show the generation, each with its filter and routing.

        They are the target's name, the aliases that people gave to the index shown now, and those of a template.
        """
        given: dict[str, Json] = dict(_ours(self._get_index(name)).get("aliases", {}))
        shown = (self._client.find_index(seen.concrete) or {}).get(seen.concrete, {}) if seen.concrete else {}
        given |= {
            alias: how for alias, how in shown.get("aliases", {}).items() if not WriteAlias.parse(self.index, alias)
        }
        return given | {self.index: given.get(self.index, {}) | _ONLY_ONE}

    def _removal(self, seen: Standing, on_concrete_index: OnConcreteIndex) -> list[Json]:
        if seen.concrete is None:
            return []
        if seen.is_alias:
            return [_remove(seen.concrete, self.index)]
        self.refuse_concrete(seen, on_concrete_index)
        return [{"remove_index": {"index": seen.concrete}}]

    def refuse_concrete(self, seen: Standing, on_concrete_index: OnConcreteIndex) -> None:
        """Refuse a concrete index before the load begins, so that no operator waits an hour for the answer."""
        if on_concrete_index == "refuse" and seen.concrete and not seen.is_alias:
            raise errors.TargetMismatch(
                f"{self.index} is an index of its own, and a full load replaces it by an alias of a new generation. "
                'Set options.on_concrete_index to "take_over" to let the load delete it once the new one is complete, '
                "or move it away"
            )

    # --- cleaning ---

    def discard_unfinished(self, generation: str, alias: WriteAlias, *, still_held: Callable[[], object]) -> list[str]:
        """Remove what abandoned loads of this pipeline left; otherwise it would occupy disk space for good.

        `generation` is what this claim fills under `alias`. By removing that alias, a later claim takes away the
        right to remove anything.
        """
        left = [
            one.name
            for one in self._unseen(alias.epoch, but=generation)
            if one.notes.get("pipeline") == alias.pipeline and not one.notes.get("complete")
        ]
        return self._remove_while(_stays(generation, str(alias)), left, still_held)

    def discard_elsewhere(
        self, generation: str, concrete: str, alias: WriteAlias, *, still_held: Callable[[], object]
    ) -> list[str]:
        """Remove an unfinished generation of this pipeline that it began for another target.

        `concrete` is what this claim writes to under `alias`.
        """
        entry = (self._client.find_index(generation) or {}).get(generation, {})
        notes = _ours(entry)
        before = str(notes.get("index", ""))
        if notes.get("pipeline") != alias.pipeline or notes.get("complete"):
            return []
        if not all(WriteAlias.parse(before, name) for name in entry.get("aliases", {})):
            return []
        return self._remove_while(_stays(concrete, str(alias)), [generation], still_held)

    def remove_old(self, current: str, epoch: int, keep: int, *, still_held: Callable[[], object]) -> list[str]:
        """Delete generations past the `keep` newest ones that were shown before, and what failed loads left.

        `current` is what the claim with this `epoch` has published. Once the name shows another index, also by hand,
        nothing is deleted.
        """
        entry = (self._client.find_index(current) or {}).get(current, {})
        if self.index not in entry.get("aliases", {}):
            return []
        found = self._unseen(epoch, but=current)
        # By the claims that made them: names have the clocks of the machines that did.
        by_claim = sorted(found, key=lambda one: (one.notes.get("epoch", 0), one.name), reverse=True)
        complete = [one.name for one in by_claim if one.notes.get("complete")]
        unfinished = [one.name for one in found if not one.notes.get("complete")]
        shown = _stays(current, self.index, entry["aliases"][self.index])
        return self._remove_while(shown, complete[keep:] + unfinished, still_held)

    def _unseen(self, epoch: int, *, but: str) -> list[_Generation]:
        """List generations that no alias shows and no later claim made.

        Those of this claim are of its earlier tries.
        """
        return [
            one
            for one in self._generations()
            if one.name != but
            and one.notes.get("epoch", 0) <= epoch
            and all(WriteAlias.parse(self.index, name) for name in one.aliases)
        ]

    def _remove_while(self, stays: Sequence[Json], names: Sequence[str], still_held: Callable[[], object]) -> list[str]:
        """Delete each in one step that also checks what must not have changed; `still_held` asks the metastore first.

        A runner may be suspended after any question that it asks. Only the server can check and delete at once.
        """
        removed = []
        for name in names:
            still_held()
            try:
                self._client.update_aliases([*stays, {"remove_index": {"index": name}}])
            except Missing:
                if self._client.find_index(name):  # so it is what must stay that has changed
                    break
            removed.append(name)
        return removed

    def _generations(self) -> list[_Generation]:
        """List the generations that Vitrina made for this target, each with its notes."""
        found = self._client.list_indexes(f"{self.index}-*").items()
        made = (_Generation(name, _ours(entry), frozenset(entry.get("aliases", {}))) for name, entry in found)
        return [one for one in made if one.notes.get("index") == self.index]

    # --- fencing ---

    def claim_writes(self, concrete: str, alias: WriteAlias, *, shared: bool = False) -> None:
        """Make `alias` the only name under which this target can be written; late bulks under older names get 404.

        A `shared` target is written by other pipelines at the same time, whose names stay.
        """
        for _ in range(3):
            existing = self._write_aliases()
            self._leave_if_late(alias, existing)
            older = [(other, index) for other, index in existing if not shared or other.pipeline == alias.pipeline]
            removals = [_remove(index, str(other)) for other, index in older if (other, index) != (alias, concrete)]
            try:
                self._client.update_aliases([*removals, {"add": {"index": concrete, "alias": str(alias)}}])
                break
            except Missing:
                continue  # somebody moved one of them at the same moment: look again
        else:
            raise errors.TransientError(
                f"the write aliases of es:{self.index} keep changing: another runner claims them too"
            )
        # A claim that began before ours and got here after it must see that it is late.
        try:
            self._leave_if_late(alias, self._write_aliases())
        except errors.LeaseLost:
            self.release_writes(alias)
            raise

    def next_alias(self, pipeline: str, epoch: int) -> WriteAlias:
        """Build the claim's write alias. Each try gets a new one, so that requests of an earlier try are fenced too."""
        ours = [a.renewal for a, _ in self._write_aliases() if (a.pipeline, a.epoch) == (pipeline, epoch)]
        return WriteAlias(self.index, pipeline, epoch, renewal=max(ours) + 1 if ours else 0)

    def release_writes(self, alias: WriteAlias) -> None:
        """Remove the write alias by its name; one that does not exist is no error."""
        for index in self._client.list_aliases(str(alias)).get(str(alias), ()):
            try:
                self._client.update_aliases([_remove(index, str(alias))])
            except Missing:
                continue

    def _write_aliases(self) -> list[tuple[WriteAlias, str]]:
        """List write aliases by pattern, to be removed by name; OpenSearch does not take a wildcard when removing."""
        listed = self._client.list_aliases(f"{self.index}.w.*")
        parsed = ((WriteAlias.parse(self.index, name), indexes) for name, indexes in listed.items())
        return [(alias, index) for alias, indexes in parsed if alias for index in indexes]

    def _leave_if_late(self, alias: WriteAlias, existing: Iterable[tuple[WriteAlias, str]]) -> None:
        later = [other for other, _ in existing if other.pipeline == alias.pipeline and other > alias]
        if later:
            raise errors.LeaseLost(f"es:{self.index} is being written under {max(later)}, a later claim than {alias}")

    # --- one index ---

    def _create(
        self,
        pipeline: str,
        mappings: Json,
        settings: Json,
        *,
        filling: bool,
        epoch: int = 0,
        now: datetime | None = None,
    ) -> str:
        name = f"{self.index}-{_timestamp(now or datetime.now(UTC))}"
        ours = {
            "index": self.index,
            "pipeline": pipeline,
            "epoch": epoch,
            "complete": not filling,
            # As they were asked for, which is not always how the server shows them.
            "fields": mappings.get("properties", {}),
        }
        meta = {**mappings.get("_meta", {}), NOTES: ours}
        body = {
            "settings": settings,
            "mappings": {**mappings, "_meta": meta},
            "aliases": {} if filling else {self.index: _ONLY_ONE},
        }
        self._client.create_index(name, body)
        if filling:
            self._set_up_for_filling(name)
        return name

    def _set_up_for_filling(self, name: str) -> None:
        """Set up the index for filling. Note what a template gave it, which is restored when the index is complete."""
        entry, found = self._get_index(name), self._client.get_settings(name)
        meta = entry["mappings"]["_meta"]
        meta[NOTES] |= {
            "settings": {setting: found.get(setting) for setting in (*_FILLING, _AWAITED)},
            "aliases": entry.get("aliases", {}),
        }
        self._client.put_mapping(name, {"_meta": meta})
        if entry.get("aliases"):
            self._client.update_aliases([_remove(name, alias) for alias in entry["aliases"]])
        if found.get(_AWAITED):
            self._client.put_settings(name, {_AWAITED: "1"})
        self._client.put_settings(name, _FILLING)

    def _mark_complete(self, name: str) -> None:
        meta = self._get_index(name).get("mappings", {}).get("_meta", {})
        meta[NOTES]["complete"] = True
        self._client.put_mapping(name, {"_meta": meta})

    def _get_index(self, name: str) -> Json:
        found = self._client.find_index(name)
        if not found:
            raise errors.FatalError(f"generation {name} is gone: somebody deleted it")
        entry: Json = found[name]
        return entry


def _remove(index: str, alias: str) -> Json:
    return {"remove": {"index": index, "alias": alias, "must_exist": True}}


def _stays(index: str, alias: str, properties: Mapping[str, Any] | None = None) -> list[Json]:
    """Build actions that change nothing, but are refused with all others when the index does not have the alias."""
    return [_remove(index, alias), {"add": {"index": index, "alias": alias, **(properties or {})}}]


def _ours(entry: Mapping[str, Any]) -> Json:
    return noted(entry.get("mappings", {}))


def _timestamp(now: datetime) -> str:
    return f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"


def _flat_settings(settings: Mapping[str, Any], path: Sequence[str] = ()) -> Json:
    """Write `{"index": {"number_of_replicas": 2}}` and `{"number_of_replicas": 2}` as `index.number_of_replicas`."""
    flat: Json = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat_settings(value, (*path, name))
        else:
            dotted = ".".join((*path, name))
            flat[dotted if dotted.startswith("index.") else f"index.{dotted}"] = value
    return flat
