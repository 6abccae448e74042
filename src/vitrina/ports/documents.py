"""Compare documents as one side of a comparison: read, count and hash them here, which a search server cannot do."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from vitrina import deep_json
from vitrina.errors import BadKey
from vitrina.ports.batch import Key
from vitrina.ports.compare import Extent, RowImage

# Sums are kept for this many buckets; coarser buckets are added up from them.
_FINEST_MASK = 65_535
# At most this many documents are kept in memory while they wait to be joined.
LISTED_AT_ONCE = 200_000
# For at most this many keys the contents are kept as well, so that showing details needs no second read.
_KEPT_CONTENTS = 1_000
# They are dropped above this size, because a thousand documents may be large.
KEPT_BYTES = 16 << 20


class Document(NamedTuple):
    """Hold one document. `content` is None if the source says that no document with this id must exist.

    `problem` says why a row of the source cannot become a document; it differs from every document of an index.
    """

    id: str
    content: Mapping[str, Any] | None
    in_flight: bool = False
    problem: str | None = None


class DocumentStore(Protocol):
    """Define a place that holds documents: an index, or a query whose rows become documents."""

    def opened(self) -> AbstractContextManager[None]:
        """Open a block that finds everything written before it began."""
        ...

    def extent(self) -> Extent: ...

    def documents(self, *, in_order: bool) -> Iterator[Document]:
        """Yield all documents. `in_order`: of several with one id, the last one is current."""
        ...

    def with_ids(self, ids: Collection[str]) -> Iterator[Document]: ...

    def random_ids(self, count: int) -> list[str]: ...


@dataclass
class DocumentSide:
    """Compare documents by field; if `fields` is None, by all fields they have. A null field equals a missing one."""

    store: DocumentStore
    fields: Sequence[str] | None
    # An id may occur several times; the last document is current.
    repeats: bool = False
    _sums: tuple[list[int], list[int]] | None = field(default=None, init=False)
    _looked_up: dict[str, Document | None] = field(default_factory=dict, init=False)

    key_names = ("_id",)
    listed_at_once = LISTED_AT_ONCE

    def snapshot(self) -> AbstractContextManager[None]:
        return self.store.opened()

    def extent(self) -> Extent:
        return self.store.extent()

    def total(self) -> tuple[int, str]:
        rows, sums = self._summed()
        return sum(rows), str(sum(sums))

    def buckets(self, mask: int) -> dict[int, tuple[int, str]]:
        coarse: dict[int, tuple[int, int]] = {}
        for number, (rows, total) in enumerate(zip(*self._summed(), strict=True)):
            if rows:
                before = coarse.get(number & mask, (0, 0))
                coarse[number & mask] = before[0] + rows, before[1] + total
        return {bucket: (rows, str(total)) for bucket, (rows, total) in coarse.items()}

    def _summed(self) -> tuple[list[int], list[int]]:
        """Read the documents once to compute the sums of all buckets."""
        if self._sums is None:
            rows, sums = [0] * (_FINEST_MASK + 1), [0] * (_FINEST_MASK + 1)
            for document in self.store.documents(in_order=False):
                if document.content is not None:
                    bucket = place_of(document.id) & _FINEST_MASK
                    rows[bucket] += 1
                    sums[bucket] += self._image(document)
            self._sums = rows, sums
        return self._sums

    def images_in(self, mask: int, buckets: Sequence[int]) -> Iterator[RowImage]:
        wanted = frozenset(buckets)
        found = (
            document
            for document in self.store.documents(in_order=self.repeats)
            if place_of(document.id) & mask in wanted
        )
        return self._sorted(found)

    def images_of(self, keys: Sequence[Key]) -> Iterator[RowImage]:
        ids = [key[0] for key in keys]
        self._looked_up = {}
        found = self.store.with_ids(frozenset(ids))
        return self._sorted(found if len(ids) > _KEPT_CONTENTS else self._keeping(found, ids))

    def _keeping(self, documents: Iterator[Document], ids: Sequence[str]) -> Iterator[Document]:
        """Yield the same documents, and keep them for `texts` if they are few and small enough."""
        kept: dict[str, Document | None] = dict.fromkeys(ids)
        size = 0
        for document in documents:
            size += len(deep_json.dumps(document.content))
            if size <= KEPT_BYTES:
                kept[document.id] = document
            else:
                kept.clear()
            yield document
        self._looked_up = kept

    def _sorted(self, documents: Iterator[Document]) -> Iterator[RowImage]:
        images: dict[str, RowImage] = {}
        for document in documents:
            if document.id in images and not self.repeats:
                raise BadKey(f"the id {document.id} comes more than once; an index has one document per id")
            image = None if document.content is None else self._image(document)
            images[document.id] = RowImage(
                place_of(document.id), document.id, (document.id,), image, document.in_flight
            )
        return iter(sorted(images.values(), key=lambda image: image.position))

    def random_keys(self, count: int) -> list[Key]:
        return [(found,) for found in self.store.random_ids(count)]

    def texts(self, keys: Sequence[Key]) -> dict[Key, dict[str, str | None]]:
        ids = [key[0] for key in keys]
        if any(one not in self._looked_up for one in ids):
            self._looked_up = dict.fromkeys(ids) | {
                document.id: document for document in self.store.with_ids(frozenset(ids))
            }
        found = {one: self._looked_up[one] for one in ids}
        return {
            (one,): self._text(document)
            for one, document in found.items()
            if document is not None and document.content is not None
        }

    def _text(self, document: Document) -> dict[str, str | None]:
        """Return the fields as JSON, which distinguishes a number from a string of digits. Null fields are left out."""
        texts: dict[str, str | None] = {
            name: deep_json.dumps(value).decode() for name, value in self._said(document).items()
        }
        return texts | ({"(cannot be a document)": document.problem} if document.problem else {})

    def _image(self, document: Document) -> int:
        """Return the same number for documents with equal content, whatever the order and spelling of their fields."""
        return _hash(deep_json.dumps([self._said(document), document.problem]))

    def _said(self, document: Document) -> dict[str, Any]:
        content = document.content or {}
        names = content if self.fields is None else self.fields
        return {name: content[name] for name in names if content.get(name) is not None}


def place_of(document_id: str) -> int:
    return _hash(document_id.encode())


def _hash(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)
