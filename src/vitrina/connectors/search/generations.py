"""Manage the indexes of a search target: generations that are built aside and swapped in, and fencing aliases."""

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

# No search uses a generation while it is filled, and it can be built again.
_FILLING = {"index.refresh_interval": "-1", "index.number_of_replicas": 0}
# How many copies a write waits for. The server refuses fewer copies than that: it is removed first and restored last.
_AWAITED = "index.write.wait_for_active_shards"

# With this, the server refuses a second index under the same name, so a late creator fails.
_ONLY_ONE = {"is_write_index": True}


class IncompleteGeneration(errors.FatalError):
    """Signal that the generation does not hold what was acknowledged, so it must not be published."""

    code = "incomplete_generation"
    discards_load = True


@dataclass(frozen=True)
class Standing:
    """Hold what currently has the target's name: an alias of one index, an index, or nothing."""

    concrete: str | None
    is_alias: bool


@dataclass(frozen=True)
class Checked:
    """Hold the documents of a verified generation and of the target now, which the shrink guard compares."""

    documents: int
    documents_before: int


@dataclass(frozen=True)
class _Generation:
    """Describe an index that Vitrina created for the target, with its notes and aliases."""

    name: str
    notes: Json
    aliases: frozenset[str]


@dataclass(frozen=True, order=True)
class WriteAlias:
    """Name the alias `<index>.w.<pipeline>.<epoch>` under which one claim may write. The next claim removes it.

    `renewal` counts how often that claim replaced it after a lost reply.
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
    """Manage the generations `<index>-<timestamp>` of one target. Its name is an alias of the one that is searched."""

    def __init__(self, client: SearchClient, index: str) -> None:
        self._client = client
        self.index = index

    def standing(self) -> Standing:
        found = self._client.find_index(self.index)
        if not found:
            return Standing(None, is_alias=False)
        if any(name != self.index and self.index not in entry.get("aliases", {}) for name, entry in found.items()):
            raise errors.TargetMismatch(
                f"es:{self.index} is a data stream, which is append-only: name an index, or an alias of one"
            )
        if len(found) > 1:
            raise errors.TargetMismatch(
                f"es:{self.index} is an alias of several indexes ({', '.join(sorted(found))}): keep it on one of them"
            )
        (concrete,) = found
        return Standing(concrete, is_alias=concrete != self.index)

    def create(
        self,
        pipeline: str,
        mappings: Json,
        settings: Mapping[str, Any] | None = None,
        *,
        epoch: int = 0,
        now: datetime | None = None,
    ) -> str:
        """Create an empty generation, not yet under the target's name, with settings for filling."""
        flat = _flat_settings(settings or {})
        return self._create(pipeline, mappings, flat, filling=True, epoch=epoch, now=now)

    def ensure_current(self, pipeline: str, mappings: Json, settings: Mapping[str, Any] | None = None) -> str:
        """Return the index that has the target's name, or create it; for pipelines that only add."""
        standing = self.standing()
        if standing.concrete:
            return standing.concrete
        try:
            return self._create(pipeline, mappings, _flat_settings(settings or {}), filling=False)
        except errors.FatalError:
            # Only one index may be written under a name: another process has created it since we looked.
            made = self.standing().concrete
            if made is None:
                raise
            return made

    def is_resumable(self, name: str, pipeline: str) -> bool:
        """Return whether the generation of an interrupted load still exists.

        A complete one counts too: the load may have been interrupted just before or after the swap.
        """
        found = self._client.find_index(name)
        return bool(found and name in found and _ours(found[name]).get("pipeline") == pipeline)

    def is_published(self, name: str) -> bool:
        """Return whether the target's name shows the generation and it is complete. People may move the name."""
        if self.standing() != Standing(name, is_alias=True):
            return False
        return bool(_ours(self._get_index(name)).get("complete"))

    def was_written_by(self, pipeline: str) -> bool:
        """Return whether this pipeline has written to the index that has the target's name."""
        (entry,) = (self._client.find_index(self.index) or {"": {}}).values()
        aliases = (WriteAlias.parse(self.index, name) for name in entry.get("aliases", {}))
        return _ours(entry).get("pipeline") == pipeline or any(a and a.pipeline == pipeline for a in aliases)

    def identity(self, name: str | None = None) -> str | None:
        """Return the uuid of the index of this name, or of the target's index; None if it does not exist."""
        concrete = name or self.standing().concrete
        if concrete is None or not (found := self._client.find_index(concrete)):
            return None
        return str(found[concrete]["settings"]["index"]["uuid"])

    def uncounted(self, name: str, accepted: Accepted) -> list[str]:
        """Return the ids of documents outside the accepted parts.

        The parts are known only from the documents' versions, and no query can select by version.
        """
        pages = self._client.scroll(name, {"size": 10_000, "_source": False, "version": True})
        hits = (hit for page in pages for hit in page)
        return [hit["_id"] for hit in hits if not is_counted(hit["_version"], accepted)]

    def check(self, name: str, acknowledged: int) -> Checked:
        """Refresh the generation and check that it holds every acknowledged document."""
        self._client.refresh(name)
        documents = self._client.count(name)
        if documents != acknowledged:
            raise IncompleteGeneration(
                f"generation {name} holds {documents:,} documents and {acknowledged:,} were acknowledged: either the "
                f"target_key is not unique in the source, or the server lost documents. es:{self.index} stays as it was"
            )
        # Count in the index itself, because the alias may have a filter.
        shown = self.standing().concrete
        before = self._client.count(shown) if shown else 0
        return Checked(documents, before)

    def finish(self, name: str) -> None:
        """Apply the settings for searching, and note in the index that it is complete."""
        wanted = _ours(self._get_index(name)).get("settings", {})
        self._client.put_settings(name, {setting: wanted.get(setting) for setting in _FILLING})
        if wanted.get(_AWAITED):
            self._client.put_settings(name, {_AWAITED: wanted[_AWAITED]})
        self._mark_complete(name)

    def swap(
        self,
        name: str,
        seen: Standing,
        write_alias: WriteAlias | None = None,
        *,
        on_concrete_index: OnConcreteIndex = "take_over",
    ) -> str:
        """Point the target's name at the new generation, atomically; return what was done.

        This succeeds only if the name still shows what was `seen` when the load began and our write alias still exists,
        so a runner that has lost its lease publishes nothing. Repeating it after a lost reply is safe.
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
            # An alias that was removed since then must not prevent the swap.
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
            return f"{self.index} was an index, not an alias; it was replaced by an alias of {name} and deleted{along}"
        return f"es:{self.index} shows {name} instead of {seen.concrete or 'nothing'}{along}"

    def _aliases_for(self, name: str, seen: Standing) -> dict[str, Json]:
        """Return the aliases that will point to the generation, each with its filter and routing.

        They are the target's name, the aliases that people gave to the current index, and those of a template.
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
        """Refuse a concrete index before the load begins, so that the operator learns it at once."""
        if on_concrete_index == "refuse" and seen.concrete and not seen.is_alias:
            raise errors.TargetMismatch(
                f"{self.index} is an index, not an alias, and a full load replaces it by an alias of a new generation. "
                'Set options.on_concrete_index to "take_over" to let the load delete it once the new one is complete, '
                "or move it away"
            )

    def discard_unfinished(self, generation: str, alias: WriteAlias, *, still_held: Callable[[], object]) -> list[str]:
        """Remove what abandoned loads of this pipeline left, which would otherwise occupy disk space permanently.

        `generation` is what this claim fills under `alias`. A later claim removes that alias, and with it our right to
        remove anything.
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
        """Remove an unfinished generation that this pipeline began for another target.

        `concrete` is the index that this claim writes to under `alias`.
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
        """Delete generations except the `keep` newest ones that were shown before; also delete what failed loads left.

        `current` was published by the claim with this `epoch`. If the name shows another index by now, even one set by
        hand, nothing is deleted.
        """
        entry = (self._client.find_index(current) or {}).get(current, {})
        if self.index not in entry.get("aliases", {}):
            return []
        found = self._unseen(epoch, but=current)
        # Ordered by claim, because the timestamps in names come from the clocks of different machines.
        by_claim = sorted(found, key=lambda one: (one.notes.get("epoch", 0), one.name), reverse=True)
        complete = [one.name for one in by_claim if one.notes.get("complete")]
        unfinished = [one.name for one in found if not one.notes.get("complete")]
        shown = _stays(current, self.index, entry["aliases"][self.index])
        return self._remove_while(shown, complete[keep:] + unfinished, still_held)

    def _unseen(self, epoch: int, *, but: str) -> list[_Generation]:
        """Return generations that no alias shows and no later claim created.

        Those of this claim are from its earlier attempts.
        """
        return [
            one
            for one in self._generations()
            if one.name != but
            and one.notes.get("epoch", 0) <= epoch
            and all(WriteAlias.parse(self.index, name) for name in one.aliases)
        ]

    def _remove_while(self, stays: Sequence[Json], names: Sequence[str], still_held: Callable[[], object]) -> list[str]:
        """Delete each index in a request that also checks that `stays` holds; `still_held` asks the metastore first.

        A runner may be suspended after any check that it makes. Only the server can check and delete atomically.
        """
        removed = []
        for name in names:
            still_held()
            try:
                self._client.update_aliases([*stays, {"remove_index": {"index": name}}])
            except Missing:
                if self._client.find_index(name):  # so the condition has failed
                    break
            removed.append(name)
        return removed

    def _generations(self) -> list[_Generation]:
        """Return the generations that Vitrina created for this target, each with its notes."""
        found = self._client.list_indexes(f"{self.index}-*").items()
        made = (_Generation(name, _ours(entry), frozenset(entry.get("aliases", {}))) for name, entry in found)
        return [one for one in made if one.notes.get("index") == self.index]

    def claim_writes(self, concrete: str, alias: WriteAlias, *, shared: bool = False) -> None:
        """Make `alias` the only name under which this target can be written; late requests under older names get 404.

        Other pipelines write to a `shared` target at the same time; their aliases stay.
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
                continue  # another process moved one of them: read them again
        else:
            raise errors.TransientError(
                f"the write aliases of es:{self.index} keep changing: another runner is claiming them too"
            )
        # A claim that began before ours but got here later must detect that it is late.
        try:
            self._leave_if_late(alias, self._write_aliases())
        except errors.LeaseLost:
            self.release_writes(alias)
            raise

    def next_alias(self, pipeline: str, epoch: int) -> WriteAlias:
        """Return a new write alias for the claim; each attempt gets its own, so that earlier ones are fenced too."""
        ours = [a.renewal for a, _ in self._write_aliases() if (a.pipeline, a.epoch) == (pipeline, epoch)]
        return WriteAlias(self.index, pipeline, epoch, renewal=max(ours) + 1 if ours else 0)

    def release_writes(self, alias: WriteAlias) -> None:
        """Remove the write alias, if it exists."""
        for index in self._client.list_aliases(str(alias)).get(str(alias), ()):
            try:
                self._client.update_aliases([_remove(index, str(alias))])
            except Missing:
                continue

    def _write_aliases(self) -> list[tuple[WriteAlias, str]]:
        """Return the write aliases, so that they can be removed by name: OpenSearch accepts no wildcard for removal."""
        listed = self._client.list_aliases(f"{self.index}.w.*")
        parsed = ((WriteAlias.parse(self.index, name), indexes) for name, indexes in listed.items())
        return [(alias, index) for alias, indexes in parsed if alias for index in indexes]

    def _leave_if_late(self, alias: WriteAlias, existing: Iterable[tuple[WriteAlias, str]]) -> None:
        later = [other for other, _ in existing if other.pipeline == alias.pipeline and other > alias]
        if later:
            raise errors.LeaseLost(f"es:{self.index} is written under {max(later)}, a later claim than {alias}")

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
            # As requested, which may differ from how the server shows them.
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
        """Apply settings for filling. Note what a template set, to restore it when the index is complete."""
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
            raise errors.FatalError(f"generation {name} was deleted by another user or process")
        entry: Json = found[name]
        return entry


def _remove(index: str, alias: str) -> Json:
    return {"remove": {"index": index, "alias": alias, "must_exist": True}}


def _stays(index: str, alias: str, properties: Mapping[str, Any] | None = None) -> list[Json]:
    """Return actions that change nothing, but make the whole request fail if the index does not have the alias."""
    return [_remove(index, alias), {"add": {"index": index, "alias": alias, **(properties or {})}}]


def _ours(entry: Mapping[str, Any]) -> Json:
    return noted(entry.get("mappings", {}))


def _timestamp(now: datetime) -> str:
    return f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"


def _flat_settings(settings: Mapping[str, Any], path: Sequence[str] = ()) -> Json:
    """Return settings such as `{"number_of_replicas": 2}`, nested or not, as `index.number_of_replicas`."""
    flat: Json = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat_settings(value, (*path, name))
        else:
            dotted = ".".join((*path, name))
            flat[dotted if dotted.startswith("index.") else f"index.{dotted}"] = value
    return flat
