"""Write to a search target: its index, mapping and generations, and batches sent under a write alias."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from vitrina.connectors.search import mapping
from vitrina.connectors.search.batch import Actions, BulkOutcome, Rejected
from vitrina.connectors.search.bulk import BulkEngine, Delivery, Limits
from vitrina.connectors.search.client import Blocked, SearchClient
from vitrina.connectors.search.connection import ConnectionOptions
from vitrina.connectors.search.documents import Action, DocumentEncoder, Prepared
from vitrina.connectors.search.generations import Generations, Standing, WriteAlias
from vitrina.connectors.search.versions import write_version
from vitrina.data_checks import EMPTY
from vitrina.definition import Options
from vitrina.errors import CannotConnect, ConfigError, Disconnected, LeaseLost, ShrinkRefused, TargetMismatch
from vitrina.ports.batch import Counts, DeadLetter, Key, PartId, Written
from vitrina.ports.checkpoint import Accepted
from vitrina.ports.schema import Column
from vitrina.ports.target import Receipt
from vitrina.settings import Settings
from vitrina.store.leases import Claim
from vitrina.targets import SearchTarget

# Ids in one request.
_IDS_AT_ONCE = 10_000


def open_client(settings: Settings, connection: str | None = None) -> SearchClient:
    return SearchClient(connection_options(settings, connection))


def connection_options(settings: Settings, connection: str | None = None) -> ConnectionOptions:
    """Return the servers of a named connection; without a name, those of ELASTICSEARCH_URL."""
    if connection is not None:
        return ConnectionOptions.of_cluster(settings.connection_url(connection))
    if settings.elasticsearch_url is None:
        raise ConfigError(
            "ELASTICSEARCH_URL is not set, so es: targets cannot be written: set it to http://host:9200, or start a"
            " server beside the platform with `vitrina dev --search`"
        )
    api_key = settings.elasticsearch_api_key
    return ConnectionOptions.from_url(
        settings.elasticsearch_url.get_secret_value(),
        api_key=api_key.get_secret_value() if api_key else None,
        ca_file=settings.elasticsearch_ca_file,
        fingerprint=settings.elasticsearch_fingerprint,
    )


@dataclass
class Waiting:
    """Hold the callbacks through which a delivery reports to its run while it waits for the server."""

    on_wait: Callable[[str | None], None]
    should_stop: Callable[[], bool]


class ElasticsearchWriter:
    """Provide the target side of one run into Elasticsearch or OpenSearch."""

    # A request that the server was processing when its alias was removed has ended after this time.
    fence_grace_seconds = Limits().fence_grace_seconds

    def __init__(self, client: SearchClient, claim: Claim, target: SearchTarget, options: Options) -> None:
        self._client = client
        self._claim = claim
        self._target = target
        self._options = options
        self._key: tuple[str, ...] = ()
        self._types: dict[str, str] = {}
        self._mappings: dict[str, Any] = {}
        self.generations = Generations(client, target.index)
        self.seen: Standing | None = None

    def prepare(self, result: Sequence[Column], *, wanted_key: Sequence[str] | None, **_: object) -> tuple[str, ...]:
        """Determine the key and the mapping; create nothing yet."""
        names = [column.name for column in result]
        if not wanted_key:
            raise TargetMismatch(f"{self._target} needs target_key, the columns whose values make a document's id")
        for name in (*wanted_key, *filter(None, [self._options.delete_when])):
            if name not in names:
                raise TargetMismatch(f"column {name!r} is not in the query's result (it has: {', '.join(names)})")
        self._key = tuple(wanted_key)
        self._types = {column.name: column.type for column in result}
        documented = {name: kind for name, kind in self._types.items() if name != self._options.delete_when}
        schema = pa.schema([(name, pa.string()) for name in documented])
        self._mappings = mapping.derive(schema, documented, self._options.index.get("mappings"))
        self.seen = self._look()
        return self._key

    def prepare_nothing(self) -> bool:
        """Keep the mapping of the index that is shown, if any, for a source without rows and so without columns."""
        self.seen = self._look()
        if self.seen.concrete is None:
            return False
        self._mappings = self._client.get_mapping(self.seen.concrete)
        return True

    def _look(self) -> Standing:
        """Turn an outage into `CannotConnect`: nothing is written yet, so the run can wait and try again."""
        try:
            return self.generations.standing()
        except (Disconnected, Blocked) as exc:  # a server that is starting is blocked
            raise CannotConnect(exc.message) from exc

    @property
    def _prepared(self) -> Standing:
        if self.seen is None:
            raise RuntimeError("prepare() comes first")
        return self.seen

    @property
    def exists(self) -> bool:
        return self.seen is not None and self.seen.concrete is not None

    def is_empty(self) -> bool:
        return not self.exists

    @property
    def client(self) -> SearchClient:
        return self._client

    @property
    def columns(self) -> list[str]:
        return list(self._types)

    @property
    def mappings(self) -> dict[str, Any]:
        """Return the mapping that the query's result and the options require."""
        return self._mappings

    def current_index(self) -> str:
        """Return the index that incremental pipelines add to, created if missing, after comparing its mapping."""
        name = self.generations.ensure_current(self._pipeline, self._mappings, self._options.index.get("settings"))
        found = self._client.get_mapping(name)
        differences = mapping.compare(self._mappings, found)
        missing = [item for item in differences if item.found is None]
        if len(missing) < len(differences) or (missing and self._options.on_schema_change != "add_columns"):
            told = "; ".join(map(str, differences))
            raise TargetMismatch(
                f"the mapping of {self._target} does not fit the query: {told}. Map the fields in"
                " options.index.mappings, let a full load build a new generation, or set options.on_schema_change to"
                " 'add_columns' for fields that are only missing"
            )
        if missing:
            self._client.put_mapping(name, mapping.additions(self._mappings, found, missing))
        return name

    def is_new_here(self) -> bool:
        """Return whether this pipeline has never filled the index, or there is none."""
        return not self.generations.was_written_by(self._pipeline)

    def identity(self, concrete: str | None = None) -> str | None:
        """Return what distinguishes the index from any other, even of the same name; None if it does not exist."""
        return self.generations.identity(concrete)

    def count(self, concrete: str) -> int:
        """Count acknowledged documents, including those that searches do not see yet."""
        self._client.refresh(concrete)
        return self._client.count(concrete)

    def count_of(self, concrete: str, ids: Sequence[str]) -> int:
        """Count how many of these documents searches find."""
        parts = (ids[start : start + _IDS_AT_ONCE] for start in range(0, len(ids), _IDS_AT_ONCE))
        return sum(self._client.count_ids(concrete, part) for part in parts)

    def uncounted(self, generation: str, accepted: Accepted) -> list[str]:
        return self.generations.uncounted(generation, accepted)

    def new_generation(self) -> str:
        self.generations.refuse_concrete(self._prepared, self._options.on_concrete_index)
        settings = self._options.index.get("settings")
        return self.generations.create(self._pipeline, self._mappings, settings, epoch=self._claim.epoch)

    def can_continue(self, generation: str) -> bool:
        return self.generations.is_resumable(generation, self._pipeline)

    def shows(self, generation: str) -> bool:
        """Return whether a load was interrupted after its swap."""
        return self.generations.is_published(generation)

    def publish(self, generation: str, documents: int, alias: WriteAlias) -> str:
        """Check the generation and point the target's name at it."""
        if not self.shows(generation):
            checked = self.generations.check(generation, documents)
            self._refuse_shrinking(checked.documents, checked.documents_before)
            self.generations.finish(generation)
        return self.generations.swap(
            generation, self._prepared, alias, on_concrete_index=self._options.on_concrete_index
        )

    def clean(self, current: str, still_held: Callable[[], object]) -> list[str]:
        """Remove the generations that are no longer kept."""
        keep = self._options.keep_generations
        return self.generations.remove_old(current, self._claim.epoch, keep, still_held=still_held)

    def refuse_shrinking(self, deletes: int, before: int) -> None:
        """Apply the shrink guard of a publish for a caller that deletes documents in another way."""
        self._refuse_shrinking(before - deletes, before)

    def _refuse_shrinking(self, documents: int, before: int) -> None:
        if documents == 0 and before and not self._options.allow_empty:
            raise ShrinkRefused(
                f"the source has no rows, but {self._target} shows {before:,} documents; if it should be emptied, set"
                " options.allow_empty",
                EMPTY,
            )
        if documents < before * (1 - self._options.shrink_limit):
            raise ShrinkRefused(
                f"publishing would leave {documents:,} of {before:,} documents in {self._target}; if the source really"
                " shrank that much, set options.allow_shrink and run again"
            )

    @property
    def _pipeline(self) -> str:
        return str(self._claim.pipeline_id)

    def claim_writes(self, concrete: str, still_held: Callable[[], object]) -> WriteAlias:
        """Take the write alias. The server then refuses requests of an older claim or of an earlier attempt.

        The order matters: a late runner takes the alias, and gives it up if `still_held` raises. If it asked first, it
        could be suspended after the answer and then write to what its successor has published.
        """
        alias = self.generations.next_alias(self._pipeline, self._claim.epoch)
        self.generations.claim_writes(concrete, alias, shared=self._options.shared_target)
        try:
            still_held()
        except LeaseLost:
            self.generations.release_writes(alias)
            raise
        return alias

    def discard_unfinished(
        self, concrete: str, alias: WriteAlias, still_held: Callable[[], object], *, left: str | None = None
    ) -> None:
        """Discard what abandoned loads of this pipeline were building; `left` may belong to another target."""
        self.generations.discard_unfinished(concrete, alias, still_held=still_held)
        if left and left != concrete:
            self.generations.discard_elsewhere(left, concrete, alias, still_held=still_held)

    def refresh(self, concrete: str) -> None:
        """Make searches find all acknowledged documents."""
        self._client.refresh(concrete)

    def sender(self, concrete: str, alias: WriteAlias, waiting: Waiting, *, is_new: bool = False) -> "DocumentSender":
        """Create a sender. A new index has nothing to update, and whole documents cost the server less."""
        encoder = self.encoder("index" if is_new else self._options.action)
        return DocumentSender(
            self._client,
            self.generations,
            encoder,
            self.columns,
            concrete=concrete,
            alias=alias,
            shared=self._options.shared_target,
            waiting=waiting,
            is_new=is_new,
        )

    def encoder(self, action: Action) -> DocumentEncoder:
        """Create the encoder that turns rows into documents of this index."""
        return DocumentEncoder(
            types=self._types,
            field_types=mapping.field_types(self._mappings),
            key=self._key,
            action=action,
            delete_when=self._options.delete_when,
        )

    def close(self) -> None:
        self._client.close()


class DocumentSender:
    """Send batches and account for every document: acknowledged, or recorded as a dead letter."""

    timed_as = "index"
    # More batches are sent before the last one is acknowledged. So the server never waits for the runner, and one
    # request that it delays while it writes a segment does not hold up the others.
    ahead = 3

    def __init__(
        self,
        client: SearchClient,
        generations: Generations,
        encoder: DocumentEncoder,
        columns: list[str],
        *,
        concrete: str,
        alias: WriteAlias,
        shared: bool,
        waiting: Waiting,
        is_new: bool,
    ) -> None:
        self.alias = alias
        # Rows followed by another one with the same key; in a pass they are history.
        self.duplicates = 0
        # Documents whose key is too long to be their id.
        self.hashed_ids = 0
        # Ids of documents that were rejected before. None: the caller need not know whether they are accepted now.
        self.watched: set[str] | None = None
        self._encoder = encoder
        self._columns = columns
        self._generations = generations
        self.concrete = concrete
        self._shared = shared
        # Whether the index was empty when the load began. Rows marked as deleted are then left out.
        self._is_new = is_new
        self._engine = BulkEngine(
            client,
            str(alias),
            should_stop=waiting.should_stop,
            on_wait=waiting.on_wait,
            renew_target=self._renew_alias,
        )

    def write(self, rows: pa.Table, part: PartId) -> Receipt:
        """Send a batch. The returned receipt waits until every document of it is acknowledged or rejected."""
        under_way = [(prepared, self._engine.start(prepared.actions)) for prepared in self.prepare(rows, part.number)]
        self._count_ids([prepared for prepared, _ in under_way])
        return partial(self._arrive, under_way)

    def _arrive(self, under_way: Sequence[tuple[Prepared, Delivery]]) -> Written:
        outcome = BulkOutcome()
        letters: list[DeadLetter] = []
        delivered: set[str] = set()
        for prepared, delivery in under_way:
            sent = delivery.finish()
            letters += letters_of([*prepared.rejected, *sent.rejected])
            delivered |= self.watched.intersection(prepared.actions.ids) if self.watched else set()
            outcome.add({"created": sent.created, "updated": sent.updated, "deleted": sent.deleted, "noop": sent.noop})
        if self.watched is not None:
            self.watched.update(letter.document_id for letter in letters)
        return Written(outcome.acknowledged, tuple(letters), frozenset(delivered), Counts(**counts_of(outcome)))

    def prepare(self, table: pa.Table, number: int) -> Iterator[Prepared]:
        """Yield the actions that write these rows as a part of batch `number`."""
        if not table.num_rows:  # an empty table may lack its columns
            return
        if self._is_new:
            table = self._encoder.without_deleted(table)
        version = write_version(self.alias.epoch, number)
        for batch in table.select(self._columns).combine_chunks().to_batches():
            yield self._encoder.encode(batch, version=version)

    def deletions(self, ids: Sequence[str], number: int) -> Actions:
        version = write_version(self.alias.epoch, number)
        return Actions(ids, [self._encoder.deletion(one, version=version) for one in ids])

    def ids_of_keys(self, keys: Sequence[Key]) -> list[str]:
        """Return the ids of the documents with these keys, which are text as PostgreSQL writes it."""
        return self._encoder.ids_of_texts(keys)

    def deliver(self, actions: Actions) -> BulkOutcome:
        return self._engine.send(actions)

    def close(self) -> None:
        """Close the sender, from any thread. Callers that wait for documents are interrupted."""
        self._engine.close()

    def drain(self) -> None:
        """Wait until no sent request is still in flight, unless the server hangs. Another attempt can then begin."""
        self._engine.close()
        self._engine.drain()

    def _count_ids(self, parts: Sequence[Prepared]) -> None:
        ids = [identity for part in parts for identity in part.actions.ids]
        self.duplicates += sum(part.duplicates for part in parts) + len(ids) - len(set(ids))
        self.hashed_ids += sum(part.hashed_ids for part in parts)

    def _renew_alias(self) -> str:
        self.alias = replace(self.alias, renewal=self.alias.renewal + 1)
        self._generations.claim_writes(self.concrete, self.alias, shared=self._shared)
        return str(self.alias)


def letters_of(refused: Sequence[Rejected]) -> list[DeadLetter]:
    return [DeadLetter.about(one.id, one.reason, one.document) for one in refused]


def counts_of(outcome: BulkOutcome) -> Mapping[str, int]:
    """Return the counts of an outcome in the terms of a merge."""
    return {
        "inserted": outcome.created,
        "updated": outcome.updated,
        "deleted": outcome.deleted,
        "unchanged": outcome.noop,
    }
