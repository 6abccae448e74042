"""Encode Arrow record batches as bulk actions: ids from the key, documents from the columns, NDJSON for each row."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from vitrina import errors
from vitrina.connectors.search import encoding
from vitrina.connectors.search.batch import Actions, Rejected
from vitrina.ports.batch import Key
from vitrina.ports.types import base_type
from vitrina.sentences import say

Action = Literal["update", "index"]

# Key types whose text in PostgreSQL equals the text in a document's id, and those of them that are integers.
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_SAME_TEXT = frozenset({"text", "character varying", "uuid", *_INTEGERS})

LONGEST_ID_BYTES = 512  # limit of both servers
HASH_PREFIX = "sha256:"
# Arrow's string columns are limited to 2 GB, and escaping may make text six times longer.
_SLICE_BYTES = 64 * 1024 * 1024


@dataclass
class Prepared:
    """Hold a batch ready to send, and the rows that cannot be sent."""

    actions: Actions
    rejected: list[Rejected] = field(default_factory=list)
    # Rows whose id occurs again later in the batch; only the last one counts.
    duplicates: int = 0
    hashed_ids: int = 0
    # Columns that hold an object in some row: `update` merges objects instead of replacing them.
    objects: set[str] = field(default_factory=set)


class DocumentEncoder:
    """Encode batches of one query as bulk actions for one index.

    `types` are the columns' PostgreSQL types as `format_type` writes them, `field_types` those of the index mapping.
    `delete_when` names a boolean column that is not part of the document; where it is true, the document is deleted.
    """

    def __init__(
        self,
        *,
        types: Mapping[str, str],
        field_types: Mapping[str, str],
        key: Sequence[str],
        action: Action = "update",
        delete_when: str | None = None,
    ) -> None:
        self._types = types
        self._field_types = field_types
        self._key = tuple(key)
        self._action = action
        self._delete_when = delete_when

    def encode(self, batch: pa.RecordBatch, *, version: int | None = None) -> Prepared:
        """Encode a batch. `index` needs `version`: the server refuses a document older than the existing one."""
        missing = [name for name in self._key if name not in batch.schema.names]
        if missing:
            raise errors.BadKey(f"the query's result has no column {', '.join(missing)} for target_key")
        prepared = Prepared(Actions([], []))
        ids: list[str] = []
        lines: list[bytes] = []
        for part in _slices(batch):
            part_ids, part_lines = self._encode_slice(part, version, prepared)
            ids += part_ids
            lines += part_lines
        prepared.actions = self._last_of_each(ids, lines, prepared)
        return prepared

    def _encode_slice(
        self, batch: pa.RecordBatch, version: int | None, prepared: Prepared
    ) -> tuple[list[str], list[bytes]]:
        encoded = {
            name: encoding.encode(column, self._types.get(name, ""), self._field_types.get(name, ""))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        if self._action == "update":
            prepared.objects |= {name for name, texts in encoded.items() if texts.has_objects()}
        ids, problems = self._ids(encoded, prepared)
        deleted = self._deleted(batch)
        lines = self._lines(encoded, ids, deleted, version).cast(pa.binary()).to_pylist()
        id_texts = ids.to_pylist()
        self._collect_problems(encoded, problems, deleted)
        for position, reason in sorted(problems.items()):
            prepared.rejected.append(Rejected(id_texts[position] or "", reason, _rejected_json(batch, position)))
        if not problems:
            return id_texts, lines
        kept = [position for position in range(len(lines)) if position not in problems]
        return [id_texts[position] for position in kept], [lines[position] for position in kept]

    def _ids(self, encoded: Mapping[str, encoding.Texts], prepared: Prepared) -> tuple[pa.StringArray, dict[int, str]]:
        """Return the document ids, and the problems of rows that cannot have one."""
        parts = [_id_text(encoded[name], self._types.get(name, "")) for name in self._key]
        ids = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*[_escaped(part) for part in parts], "|")
        problems = {
            position: f"{name}: {reason}" for name in self._key for position, reason in encoded[name].problems.items()
        }
        for position in pc.indices_nonzero(ids.is_null()).to_pylist():
            problems.setdefault(position, f"NULL in the key ({', '.join(self._key)}): every document needs its own id")
        return self._hash_long(ids, prepared), problems

    def ids_of(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the ids of the documents that rows become; None for a row that cannot have one."""
        found: list[str | None] = []
        for part in _slices(batch):
            encoded = {
                name: encoding.encode(part.column(name), self._types.get(name, ""), self._field_types.get(name, ""))
                for name in self._key
            }
            ids, _ = self._ids(encoded, Prepared(Actions([], [])))
            found += ids.to_pylist()
        return found

    def ids_of_texts(self, keys: Sequence[Key]) -> list[str]:
        """Return the ids of documents by their keys, as PostgreSQL writes them; rows may be missing from the source."""
        if not keys:
            return []
        arrays = [self._of_texts(name, [key[place] for key in keys]) for place, name in enumerate(self._key)]
        found = self.ids_of(pa.RecordBatch.from_arrays(arrays, names=list(self._key)))
        return [identity for identity in found if identity is not None]

    def _of_texts(self, name: str, texts: Sequence[str]) -> pa.Array:
        kind = base_type(self._types.get(name, ""))
        if kind not in _SAME_TEXT:
            raise errors.FatalError(say("run.live_key_type", column=name, type=kind))
        return pa.array(map(int, texts), pa.int64()) if kind in _INTEGERS else pa.array(texts, pa.string())

    def _hash_long(self, ids: pa.StringArray, prepared: Prepared) -> pa.StringArray:
        """Hash long ids, and also those that look like a hash, so that no two keys can have the same id."""
        mask = pc.or_(pc.greater(pc.binary_length(ids), LONGEST_ID_BYTES), pc.starts_with(ids, HASH_PREFIX))
        mask = pc.fill_null(mask, False)
        if not pc.any(mask, min_count=0).as_py():
            return ids
        hashed = [HASH_PREFIX + hashlib.sha256(text.encode()).hexdigest() for text in ids.filter(mask).to_pylist()]
        prepared.hashed_ids += len(hashed)
        return pc.replace_with_mask(ids, mask, pa.array(hashed, pa.string()))

    def without_deleted(self, table: pa.Table) -> pa.Table:
        """Return the table without deleted rows, for a new index that has nothing to delete."""
        deleted = self._deleted(table)
        return table if deleted is None else table.filter(pc.invert(deleted))

    def _deleted(self, batch: pa.RecordBatch | pa.Table) -> pa.BooleanArray | None:
        if self._delete_when is None:
            return None
        if self._delete_when not in batch.schema.names:
            raise errors.FatalError(f"delete_when names {self._delete_when!r}, which the query's result does not have")
        column = batch.column(self._delete_when)
        if not pa.types.is_boolean(column.type):
            raise errors.FatalError(f"delete_when names {self._delete_when!r}, which is {column.type} and not boolean")
        return pc.fill_null(column, False)

    def deletion(self, document_id: str, *, version: int | None = None) -> bytes:
        """Return the action that deletes one document, whatever row it came from."""
        return b'{"delete":{"_id":%s%s}}\n' % (orjson.dumps(document_id), self._versioned(version).encode())

    def _versioned(self, version: int | None) -> str:
        """Return the version parameters. `update` has none: it raises the document's version past that of any batch."""
        if version is None or self._action == "update":
            return ""
        return f',"version":{version},"version_type":"external_gte"'

    def _lines(
        self,
        encoded: Mapping[str, encoding.Texts],
        ids: pa.StringArray,
        deleted: pa.BooleanArray | None,
        version: int | None,
    ) -> pa.StringArray:
        documents = encoding.objects({name: texts for name, texts in encoded.items() if name != self._delete_when})
        id_tokens = pc.fill_null(encoding.json_strings(ids, plain=False), "null")
        versioned = self._versioned(version)
        if self._action == "update":
            before, between, after = '{"update":{"_id":', '}}\n{"doc":', ',"doc_as_upsert":true}\n'
        else:
            before, between, after = '{"index":{"_id":', f"{versioned}}}}}\n", "\n"
        lines = pc.binary_join_element_wise(before, id_tokens, between, documents, after, "")
        if deleted is None:
            return lines
        deletions = pc.binary_join_element_wise('{"delete":{"_id":', id_tokens, f"{versioned}}}}}\n", "")
        return pc.if_else(deleted, deletions, lines)

    def _collect_problems(
        self, encoded: Mapping[str, encoding.Texts], problems: dict[int, str], deleted: pa.BooleanArray | None
    ) -> None:
        for name, texts in encoded.items():
            for position, reason in texts.problems.items():
                if deleted is None or not deleted[position].as_py():  # a delete carries no values
                    problems.setdefault(position, f"{name}: {reason}")

    def _last_of_each(self, ids: list[str], lines: list[bytes], prepared: Prepared) -> Actions:
        last = dict(zip(ids, range(len(ids)), strict=True))
        objects = sorted(prepared.objects)
        if len(last) == len(ids):
            return Actions(ids, lines, objects)
        prepared.duplicates = len(ids) - len(last)
        return Actions(list(last), [lines[position] for position in last.values()], objects)


def _slices(batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
    if not batch.num_rows:
        return []
    rows = max(1, batch.num_rows * _SLICE_BYTES // max(batch.nbytes, 1))
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def _id_text(encoded: encoding.Texts, pg_type: str) -> pa.StringArray:
    """Strip trailing zeros of fractions: 1.0 and 1.00 are equal keys in PostgreSQL, as are 12:00:00 and 12:00:00.0."""
    texts = encoded.texts if encoded.in_id is None else encoded.in_id
    if not pg_type.startswith(("numeric", "time")):
        return texts
    without_zeros = pc.replace_substring_regex(texts, r"(\.\d*?)0+(Z?)$", r"\1\2")
    return pc.replace_substring_regex(without_zeros, r"\.(Z?)$", r"\1")


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), "|", "\\|")


def _rejected_json(batch: pa.RecordBatch, position: int) -> bytes:
    """Return a rejected row as JSON for people to read, with text for values that JSON lacks."""
    row = {name: column[position] for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return orjson.dumps({name: _readable(value) for name, value in row.items()}, default=_as_text)


def _readable(scalar: pa.Scalar) -> Any:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # dates outside Python's range of years
        return scalar.cast(pa.string()).as_py()
    if isinstance(value, list):
        return [_as_text(item) if isinstance(item, float) and not math.isfinite(item) else item for item in value]
    return _as_text(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
