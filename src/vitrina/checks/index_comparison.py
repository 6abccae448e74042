"""A search index and its source as the two sides of a comparison: rows become documents as the writer makes them.

The source is read as a whole for every question: behind steps, and behind an id, nobody can ask for single rows.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
from psycopg.sql import SQL, Composable, Identifier

from vitrina import deep_json
from vitrina.checks import comparison, recomputed
from vitrina.checks.compare import Difference
from vitrina.checks.documents import Document, DocumentSide, place_of
from vitrina.checks.opened import cursor_of, is_recomputed, query_of
from vitrina.checks.repair import Correction
from vitrina.connectors.postgres.compare import Field, TableSide
from vitrina.connectors.postgres.source import Bounds, translate_read
from vitrina.connectors.search import mapping, objects, values
from vitrina.connectors.search.documents import Prepared
from vitrina.connectors.search.load import IndexTarget
from vitrina.connectors.search.target import ElasticsearchWriter
from vitrina.errors import FatalError
from vitrina.loads.job import Job, Opened
from vitrina.ports.compare import Extent, Side
from vitrina.store import state

PAGE_DOCUMENTS = 2_000
# A page is held several times over, here and by the server: of large documents it has fewer.
PAGE_BYTES = 8 << 20
PROBED_DOCUMENTS = 20
# Of rows that a repair sends at once, whatever comes first.
BATCH_BYTES = 16 << 20
IDS_AT_ONCE = 1_000


class IndexComparison:
    """A pipeline whose target is an index."""

    full_guarantee = "every document by a 64-bit hash of its id and fields, as the writer would write them"

    def __init__(self, opened: Opened) -> None:
        self.job = inspect(opened)

    @property
    def compared(self) -> list[str]:
        options = self.job.definition.options
        return [name for name in index_of(self.job).columns if name != options.delete_when and name not in self._stamps]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in index_of(self.job).columns if name in self._stamps]

    @property
    def _stamps(self) -> frozenset[str]:
        return stamps(self.job) - set(self.job.key)

    @contextmanager
    def both_sides(self) -> Iterator[tuple[Side, Side]]:
        found = state.peek(self.job.metastore, self.job.claim.pipeline_id)
        job = self.job = replace(self.job, checkpoint=found)
        # With `update`, other pipelines may fill other fields of the same documents.
        whole = job.definition.options.action == "index" and not self.not_compared
        fields = None if whole else self.compared
        source = DocumentSide(SourceShelf(job), fields, repeats=cursor_of(job) is not None)
        target = DocumentSide(IndexShelf(job), fields)
        with target.snapshot(), source.snapshot():
            yield source, target

    # --- repairing -------------------------------------------------------------------------------------------------

    arrives_as = None

    def refuse_shrinking(self, deletes: int) -> None:
        index, concrete = index_of(self.job), _concrete(self.job)
        target_of(self.job).patiently(lambda: index.client.refresh(concrete))
        index.refuse_shrinking(deletes, index.client.count(concrete))

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """One reading of the source gives what it has now; what was not met in it has left."""
        left = {difference.key[0] for difference in wanted}
        ids = frozenset(left)
        waiting = _Rows()
        for table, _ in recomputed.read(self.job, in_order=True):
            for batch in table.select(index_of(self.job).columns).combine_chunks().to_batches() if table else ():
                found = SourceShelf(self.job).ids_of(batch)
                waiting.add(batch, [one if one in ids else None for one in found])
                left.difference_update(filter(None, found))
                yield from waiting.full(batch_rows)
        yield from waiting.rest()
        absent = sorted(left)
        for start in range(0, len(absent), batch_rows):
            yield Correction(absent=[(one,) for one in absent[start : start + batch_rows]])


class _Rows:
    """Rows that wait until they are a batch: five thousand may be anything between a megabyte and all memory."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._ids: list[str] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch, ids: Sequence[str | None]) -> None:
        """Keep the rows that have an id here."""
        kept = batch.filter(pa.array([one is not None for one in ids], pa.bool_()))
        if kept.num_rows:
            self._batches.append(kept)
            self._ids += [one for one in ids if one is not None]
            self._size += kept.nbytes

    def full(self, rows: int) -> Iterator[Correction]:
        while len(self._ids) >= rows or self._size >= BATCH_BYTES:
            yield self._taken(min(rows, max(1, len(self._ids) * BATCH_BYTES // max(self._size, 1))))

    def rest(self) -> Iterator[Correction]:
        if self._ids:
            yield self._taken(len(self._ids))

    def _taken(self, rows: int) -> Correction:
        table, ids = pa.Table.from_batches(self._batches), self._ids
        self._batches, self._ids = table.slice(rows).to_batches(), ids[rows:]
        self._size = sum(batch.nbytes for batch in self._batches)
        return Correction([(one,) for one in ids[:rows]], table.slice(0, rows))


def _concrete(job: Job) -> str:
    seen = index_of(job).seen
    if seen is None or seen.concrete is None:
        raise FatalError(f"{job.definition.final_target} does not exist yet: run the pipeline first")
    return seen.concrete


def inspect(opened: Opened) -> Job:
    job = comparison.look_into(opened)
    if not job.output:
        raise FatalError(
            f"source {job.definition.python_source} gives no row now, so nobody can tell which fields its documents"
            f" have: run the pipeline, which empties {job.definition.final_target} if it may, instead of comparing"
        )
    concrete = _concrete(job)
    kept = index_of(job).client.get_mapping(concrete).get("_source", {})
    mode = kept.get("mode") or index_of(job).client.get_settings(concrete).get("index.mapping.source.mode")
    if kept.get("enabled") is False or kept.get("includes") or kept.get("excludes") or mode not in (None, "stored"):
        raise FatalError(
            f"{job.definition.final_target} does not keep its documents as they were written (`_source` in its mapping"
            " or settings), so nobody can tell what is in them: keep `_source`, rebuild the index with a full load, and"
            " ask again"
        )
    return job


def target_of(job: Opened) -> IndexTarget:
    if not isinstance(job.target, IndexTarget):
        raise FatalError(f"{job.definition.final_target} is no search index")
    return job.target


def index_of(job: Opened) -> ElasticsearchWriter:
    return target_of(job).writer


def stamps(job: Job) -> frozenset[str]:
    """Columns that differ in every run by nature."""
    return frozenset(job.definition.options.stamps) | job.fitted.stamps


class SourceShelf:
    """The rows of the source as the documents that the writer would make of them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # `index` has the document alone in its second line.
        self._encoder = index_of(job).encoder("index")

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def extent(self) -> Extent:
        job = self._job
        if is_recomputed(job):
            return self._counted()
        query, cursor = query_of(job), cursor_of(job)
        head, source = query.query.wrapped(Bounds())
        side = TableSide(
            connection=query.reader.connection,
            head=head,
            source=source,
            key=tuple(self._field(name) for name in job.key),
            columns=(),
            translate=translate_read,
            condition=self._condition(),
            young=comparison.young(job),
            latest=tuple(cursor.columns("q")) if cursor else (),
            cursor=self._field(cursor.key) if cursor else None,
        )
        with side.snapshot():
            return _Ends(job).as_documents(side.extent())

    def _field(self, name: str) -> Field:
        return Field(name, SQL("q.{}").format(Identifier(name)), query_of(self._job).types[name])

    def _counted(self) -> Extent:
        """What Python makes cannot be counted in SQL."""
        ages: dict[int, bool] = {}
        for document in self.documents(in_order=True):
            place = place_of(document.id)
            if document.content is None:
                ages.pop(place, None)
            else:
                ages[place] = document.young
        return Extent(len(ages), sum(ages.values()), {}, {})

    def _condition(self) -> Composable:
        parts = [comparison.is_read(self._job)]
        gone = self._job.definition.options.delete_when
        if gone:
            parts.append(SQL("q.{} IS NOT TRUE").format(Identifier(gone)))
        return SQL(" AND ").join(parts)

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for table, young in recomputed.read(self._job, in_order=in_order):
            yield from self._documents_of(table, young)

    def ids_of(self, batch: pa.RecordBatch) -> list[str | None]:
        return self._encoder.ids_of(batch)

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]:
        return (document for document in self.documents(in_order=True) if document.id in ids)

    def random_ids(self, count: int) -> list[str]:
        if not count:
            return []
        found = (
            document
            for table, young in recomputed.read(self._job, sample=count)
            for document in self._documents_of(table, young)
        )
        ids = [document.id for document in found if document.content is not None]
        return secrets.SystemRandom().sample(ids, min(count, len(ids)))

    def _documents_of(self, table: pa.Table, young: bool) -> Iterator[Document]:
        if not table.num_rows:
            return
        for batch in table.select(index_of(self._job).columns).combine_chunks().to_batches():
            prepared = self._encoder.encode(batch)
            yield from self._prepared_documents(prepared, young)

    def _prepared_documents(self, prepared: Prepared, young: bool) -> Iterator[Document]:
        for position, document_id in enumerate(prepared.actions.ids):
            text = prepared.actions.document(position)
            yield Document(document_id, objects.parsed(text) if text else None, young)
        for refused in prepared.rejected:
            if refused.id:  # no document can be like this one, and the report says why
                yield Document(refused.id, {}, young, refused.reason)


class IndexShelf:
    """The documents of the index that the target's name shows."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._client = index_of(job).client
        self._concrete = ""
        self._page = PAGE_DOCUMENTS

    @contextmanager
    def opened(self) -> Iterator[None]:
        """What was acknowledged before is found from here on, and nobody's new generation comes between."""
        self._concrete = index_of(self._job).generations.standing().concrete or index_of(self._job).generations.index
        self._client.refresh(self._concrete)
        self._page = self._fitting_page()
        yield

    def _fitting_page(self) -> int:
        """By a look at some documents: how large the others are, only reading them would tell."""
        score = {"function_score": {"random_score": {}, "boost_mode": "replace"}}
        hits = self._client.search(self._concrete, {"size": PROBED_DOCUMENTS, "query": score})["hits"]["hits"]
        size = sum(len(deep_json.dumps(hit["_source"])) for hit in hits)
        return max(1, min(PAGE_DOCUMENTS, PAGE_BYTES * len(hits) // max(size, 1)))

    def extent(self) -> Extent:
        made = is_recomputed(self._job)
        ends = {} if made else _Ends(self._job).found_in(self._client.get_mapping(self._concrete))
        return Extent(
            self._client.count(self._concrete),
            0,
            {name: self._end(name, by, "asc") for name, by in ends.items()},
            {name: self._end(name, by, "desc") for name, by in ends.items()},
        )

    def _end(self, name: str, by: str, direction: str) -> str | None:
        found = self._client.search(
            self._concrete, {"size": 1, "sort": [{by: {"order": direction, "missing": "_last"}}], "_source": [name]}
        )["hits"]["hits"]
        return _as_text(found[0]["_source"].get(name)) if found else None

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for hits in self._client.scroll(self._concrete, {"size": self._page}):
            yield from map(_document, hits)

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]:
        wanted = sorted(filter(None, ids))  # a server takes no empty id, and fails when it is asked for one
        for start in range(0, len(wanted), IDS_AT_ONCE):
            part = wanted[start : start + IDS_AT_ONCE]
            query = {"size": min(len(part), self._page), "query": {"ids": {"values": part}}}
            for hits in self._client.scroll(self._concrete, query):
                yield from map(_document, hits)

    def random_ids(self, count: int) -> list[str]:
        if not count:
            return []
        score = {"function_score": {"random_score": {}, "boost_mode": "replace"}}
        found = self._client.search(self._concrete, {"size": count, "query": score, "_source": False})
        return [hit["_id"] for hit in found["hits"]["hits"]]


def _document(hit: Mapping[str, Any]) -> Document:
    return Document(hit["_id"], hit["_source"])


class _Ends:
    """Least and greatest of key and cursor, where both sides have the same order and the same exactness."""

    # By the type of the field, where a document is found when it is sorted by it.
    _ORDERED = (
        (mapping.LONG, ""),
        (mapping.DOUBLE, ""),
        (mapping.DATE, ""),
        ({"type": "date_nanos"}, ""),
        (mapping.KEYWORD, ""),
        (mapping.TEXT, ".keyword"),
    )
    # Those whose order in the source is that of their text, bytewise, or of the number or moment itself.
    _TYPES = frozenset(
        {
            "smallint", "integer", "bigint", "real", "double precision", "numeric", "date", "uuid", "text",
            "character varying", "timestamp with time zone", "timestamp without time zone",
        }
    )  # fmt: skip

    def __init__(self, job: Job) -> None:
        cursor, types = cursor_of(job), query_of(job).types
        names = [*job.key, *([cursor.key] if cursor and cursor.key not in job.key else [])]
        self._field_types = mapping.field_types(index_of(job).mappings)
        self._types = {
            name: types[name]
            for name in names
            if name in types and values.base_type(types[name]) in self._TYPES and name in self._field_types
        }

    def found_in(self, found: Mapping[str, Any]) -> dict[str, str]:
        """What to sort by, for each column that the index can sort exactly."""
        properties = found.get("properties", {})
        return {
            name: f"{name}{suffix}"
            for name in self._types
            for field, suffix in self._ORDERED
            if properties.get(name) == field
        }

    def as_documents(self, extent: Extent) -> Extent:
        return Extent(extent.rows, extent.young, self._converted(extent.least), self._converted(extent.greatest))

    def _converted(self, ends: Mapping[str, str | None]) -> dict[str, str | None]:
        converted: dict[str, str | None] = {}
        for name, text in ends.items():
            # Longer ones are not indexed as keywords, so the index does not find them either.
            if name in self._types and (text is None or len(text) <= mapping.KEYWORD_LIMIT):
                with suppress(values.NotJson):  # no document can have it
                    converted[name] = self._convert(name, text)
        return converted

    def _convert(self, name: str, text: str | None) -> str | None:
        token = values.text_token(self._types[name], self._field_types[name])
        return None if text is None else _as_text(orjson.loads(token(text)))


def _as_text(value: Any) -> str | None:
    """7.0 and 7 are one number, however it travelled."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
