"""Compare a search index with its source, whose rows are turned into documents as the writer does.

The whole source is read for every question, because a query cannot select single rows by the output of steps or by
document ids.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from vitrina import deep_json
from vitrina.connectors.search import mapping, objects, values
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.documents import Prepared
from vitrina.errors import FatalError
from vitrina.ports import corrections
from vitrina.ports.batch import Key
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import ComparableSide, Correction, Difference, Extent, Looked, Rescans
from vitrina.ports.documents import Document, DocumentSide, place_of

if TYPE_CHECKING:
    from vitrina.connectors.search.target import ElasticsearchWriter

PAGE_DOCUMENTS = 2_000
# A page is held several times, here and in the server, so pages of large documents hold fewer.
PAGE_BYTES = 8 << 20
PROBED_DOCUMENTS = 20
IDS_AT_ONCE = 1_000


class IndexComparison:
    """Compare a pipeline's source with its index."""

    full_guarantee = "every document by a 64-bit hash of its id and fields, as the writer would write them"
    # Corrections arrive like the rows of a run.
    arrives_as = None

    def __init__(
        self,
        index: "ElasticsearchWriter",
        looked: Looked,
        retry_while_blocked: Callable[[Callable[[], object]], object],
    ) -> None:
        self._index = index
        self._retry_while_blocked = retry_while_blocked
        self._looked = looked
        self._found = looked.checkpoint
        self._concrete = self._standing()
        refuse_altered_documents(index.client, self._concrete, looked.definition.final_target)

    def _standing(self) -> str:
        definition = self._looked.definition
        if not self._looked.output:
            raise FatalError(
                f"source {definition.python_source} returns no rows now, so the fields of its documents are"
                f" unknown: run the pipeline, which empties {definition.final_target} if it may, instead of comparing"
            )
        seen = self._index.seen
        if seen is None or seen.concrete is None:
            raise FatalError(f"{definition.final_target} does not exist yet: run the pipeline first")
        return seen.concrete

    @property
    def compared(self) -> list[str]:
        deleted_column = self._looked.definition.options.delete_when
        return [name for name in self._index.columns if name != deleted_column and name not in self._stamps]

    @property
    def not_compared(self) -> list[str]:
        return [name for name in self._index.columns if name in self._stamps]

    @property
    def _stamps(self) -> frozenset[str]:
        return self._looked.stamps - set(self._looked.key)

    @contextmanager
    def sides(self, found: Checkpoint) -> Iterator[tuple[ComparableSide, ComparableSide]]:
        self._found = found
        # With `update`, other pipelines may fill other fields of the same documents.
        whole = self._looked.definition.options.action == "index" and not self.not_compared
        fields = None if whole else self.compared
        asked, ends = _asked(self._looked), None
        if asked is not None:
            ends = _Ends(self._index, asked, self._looked.key)
        repeats = isinstance(self._looked.source, Rescans) and self._looked.source.cursor_name is not None
        source = DocumentSide(SourceDocuments(self._index, self._looked, found, ends), fields, repeats=repeats)
        target = DocumentSide(IndexDocuments(self._index, ends), fields)
        with target.snapshot(), source.snapshot():
            yield source, target

    def refuse_shrinking(self, deletes: int) -> None:
        index, concrete = self._index, self._concrete
        self._retry_while_blocked(lambda: index.client.refresh(concrete))
        index.refuse_shrinking(deletes, index.client.count(concrete))

    def corrections(self, wanted: Sequence[Difference], batch_rows: int) -> Iterator[Correction]:
        """Read the source once and yield the wanted rows. A wanted key that is not found has left the source."""
        return corrections.of_reading(self._batches(), {one.key for one in wanted}, batch_rows)

    def _batches(self) -> "Iterator[tuple[pa.RecordBatch, list[Key | None]]]":
        encoder = self._index.encoder("index")
        for table, _ in self._looked.rows(self._found, in_order=True):
            for batch in table.select(self._index.columns).combine_chunks().to_batches() if table else ():
                yield batch, [(found,) if found is not None else None for found in encoder.ids_of(batch)]


def _asked(looked: Looked) -> Rescans | None:
    """Return the source if SQL can count its rows; None if only the rows after the steps can be counted."""
    return looked.source if isinstance(looked.source, Rescans) and not looked.has_steps else None


class SourceDocuments:
    """Provide the rows of the source as the documents that the writer would build from them."""

    def __init__(self, index: "ElasticsearchWriter", looked: Looked, found: Checkpoint, ends: "_Ends | None") -> None:
        self._columns = index.columns
        self._looked = looked
        self._found = found
        self._ends = ends
        # `index` puts the document alone into its second line.
        self._encoder = index.encoder("index")

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def extent(self) -> Extent:
        asked = _asked(self._looked)
        if asked is None or self._ends is None:
            return self._counted()
        deleted_column = self._looked.definition.options.delete_when
        return self._ends.as_documents(asked.extent(self._found, self._looked.key, unless=deleted_column))

    def _counted(self) -> Extent:
        """Count the rows in Python, if SQL cannot."""
        ages: dict[int, bool] = {}
        for document in self.documents(in_order=True):
            place = place_of(document.id)
            if document.content is None:
                ages.pop(place, None)
            else:
                ages[place] = document.in_flight
        return Extent(len(ages), sum(ages.values()), {}, {})

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        for table, in_flight in self._looked.rows(self._found, in_order=in_order):
            yield from self._documents_of(table, in_flight)

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]:
        return (document for document in self.documents(in_order=True) if document.id in ids)

    def random_ids(self, count: int) -> list[str]:
        if not count:
            return []
        found = (
            document
            for table, in_flight in self._looked.rows(self._found, sample=count)
            for document in self._documents_of(table, in_flight)
        )
        ids = [document.id for document in found if document.content is not None]
        return secrets.SystemRandom().sample(ids, min(count, len(ids)))

    def _documents_of(self, table: pa.Table, in_flight: bool) -> Iterator[Document]:
        if not table.num_rows:
            return
        for batch in table.select(self._columns).combine_chunks().to_batches():
            prepared = self._encoder.encode(batch)
            yield from self._prepared_documents(prepared, in_flight)

    def _prepared_documents(self, prepared: Prepared, in_flight: bool) -> Iterator[Document]:
        for position, document_id in enumerate(prepared.actions.ids):
            text = prepared.actions.document(position)
            yield Document(document_id, objects.parsed(text) if text else None, in_flight)
        for refused in prepared.rejected:
            if refused.id:  # differs from every document; the report says why
                yield Document(refused.id, {}, in_flight, refused.reason)


class IndexDocuments:
    """Provide the documents of the index that the target's name shows."""

    def __init__(self, index: "ElasticsearchWriter", ends: "_Ends | None") -> None:
        self._index = index
        self._ends = ends
        self._client = index.client
        self._concrete = ""
        self._page = PAGE_DOCUMENTS

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open a block that sees what was acknowledged before it. No new generation can appear meanwhile."""
        generations = self._index.generations
        self._concrete = generations.standing().concrete or generations.index
        self._client.refresh(self._concrete)
        self._page = fitting_page(self._client, self._concrete)
        yield

    def extent(self) -> Extent:
        ends = self._ends.found_in(self._client.get_mapping(self._concrete)) if self._ends else {}
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
        wanted = sorted(filter(None, ids))  # a server rejects a search for an empty id
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


def refuse_altered_documents(client: SearchClient, concrete: str, name: str) -> None:
    kept = client.get_mapping(concrete).get("_source", {})
    mode = kept.get("mode") or client.get_settings(concrete).get("index.mapping.source.mode")
    if kept.get("enabled") is False or kept.get("includes") or kept.get("excludes") or mode not in (None, "stored"):
        raise FatalError(
            f"{name} does not keep its documents as they were written (`_source` in its mapping or settings), so"
            " their contents are unknown: keep `_source`, rebuild the index with a full load, and ask again"
        )


def fitting_page(client: SearchClient, concrete: str) -> int:
    """Return how many documents to read per page, judged from a sample, because the server does not report sizes."""
    score = {"function_score": {"random_score": {}, "boost_mode": "replace"}}
    hits = client.search(concrete, {"size": PROBED_DOCUMENTS, "query": score})["hits"]["hits"]
    size = sum(len(deep_json.dumps(hit["_source"])) for hit in hits)
    return max(1, min(PAGE_DOCUMENTS, PAGE_BYTES * len(hits) // max(size, 1)))


def _document(hit: Mapping[str, Any]) -> Document:
    return Document(hit["_id"], hit["_source"])


class _Ends:
    """Convert the least and greatest key and cursor, for types that both sides order and represent exactly alike."""

    # For each field type, the suffix of the field to sort by.
    _ORDERED = (
        (mapping.LONG, ""),
        (mapping.DOUBLE, ""),
        (mapping.DATE, ""),
        ({"type": "date_nanos"}, ""),
        (mapping.KEYWORD, ""),
        (mapping.TEXT, ".keyword"),
    )
    # Types that the source orders by the number or instant itself, or bytewise by their text.
    _TYPES = frozenset(
        {
            "smallint", "integer", "bigint", "real", "double precision", "numeric", "date", "uuid", "text",
            "character varying", "timestamp with time zone", "timestamp without time zone",
        }
    )  # fmt: skip

    def __init__(self, index: "ElasticsearchWriter", asked: Rescans, key: Sequence[str]) -> None:
        cursor, types = asked.cursor_name, asked.types
        names = [*key, *([cursor] if cursor and cursor not in key else [])]
        self._field_types = mapping.field_types(index.mappings)
        self._types = {
            name: types[name]
            for name in names
            if name in types and values.base_type(types[name]) in self._TYPES and name in self._field_types
        }

    def found_in(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Return the field to sort by, for each column that the index can sort exactly."""
        properties = found.get("properties", {})
        return {
            name: f"{name}{suffix}"
            for name in self._types
            for field, suffix in self._ORDERED
            if properties.get(name) == field
        }

    def as_documents(self, extent: Extent) -> Extent:
        return Extent(extent.rows, extent.in_flight, self._converted(extent.least), self._converted(extent.greatest))

    def _converted(self, ends: Mapping[str, str | None]) -> dict[str, str | None]:
        converted: dict[str, str | None] = {}
        for name, text in ends.items():
            # Longer values are not indexed as keywords, so the index cannot find them either.
            if name in self._types and (text is None or len(text) <= mapping.KEYWORD_LIMIT):
                with suppress(values.NotJson):  # no document can hold it
                    converted[name] = self._convert(name, text)
        return converted

    def _convert(self, name: str, text: str | None) -> str | None:
        token = values.text_token(self._types[name], self._field_types[name])
        return None if text is None else _as_text(orjson.loads(token(text)))


def _as_text(value: Any) -> str | None:
    """Return a value as text. 7.0 and 7 are the same number, however it was transferred."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
