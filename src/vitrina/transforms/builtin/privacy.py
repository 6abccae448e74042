"""Provide steps that hide personal data: a keyed hash that keeps rows distinguishable, and a mask."""

import hmac

import pyarrow as pa
from pydantic import Field

from vitrina.definition import ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms import python_values
from vitrina.transforms.builtin import batches
from vitrina.transforms.context import StepContext
from vitrina.transforms.registry import transform

_SHORTEST_KEY_BYTES = 16


class HashColumns(Strict):
    columns: list[ColumnName] = Field(min_length=1)


@transform("hash_columns", params=HashColumns)
def hash_columns(batch: pa.RecordBatch, params: HashColumns, context: StepContext) -> pa.RecordBatch:
    """Replace values by their HMAC-SHA256 in hexadecimal, with the operator's key (VITRINA_HASH_KEY).

    Equal values have equal hashes, so rows can still be joined and counted. Without the key, a hash cannot be reversed
    by trying candidate values. NULL stays NULL.

    Example: `{"columns": ["email", "user_id"]}`
    """
    key = context.hash_key
    if key is None or len(key) < _SHORTEST_KEY_BYTES:
        raise FatalError(f"hash_columns needs VITRINA_HASH_KEY with at least {_SHORTEST_KEY_BYTES} characters")
    for name in params.columns:
        values = python_values.to_python(batch.column(name), batches.field_of(batch, name))
        hashes = [None if value is None else hmac.digest(key, _bytes(value), "sha256").hex() for value in values]
        batch = batches.with_column(batch, pa.field(name, pa.string()), pa.array(hashes, pa.string()))
    return batch


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class MaskColumns(Strict):
    columns: list[ColumnName] = Field(min_length=1)
    keep_first: int = Field(0, ge=0, description="Characters at the beginning that stay.")
    keep_last: int = Field(0, ge=0, description="Characters at the end that stay.")
    character: str = Field("*", min_length=1, max_length=1)


@transform("mask_columns", params=MaskColumns)
def mask_columns(batch: pa.RecordBatch, params: MaskColumns) -> pa.RecordBatch:
    """Replace the characters of text by asterisks, except for some at either end.

    A text that is not longer than the part to keep is masked as a whole. NULL stays NULL.

    Example: `{"columns": ["phone"], "keep_last": 4}`
    """
    for name in params.columns:
        field = batches.field_of(batch, name)
        if not pa.types.is_string(field.type):
            raise FatalError(f"column {name!r} is {field.type}, not text: cast it first")
        texts = [None if text is None else _masked(text, params) for text in batch.column(name).to_pylist()]
        batch = batches.with_column(batch, pa.field(name, pa.string()), pa.array(texts, pa.string()))
    return batch


def _masked(text: str, params: MaskColumns) -> str:
    hidden = len(text) - params.keep_first - params.keep_last
    if hidden <= 0:
        return params.character * len(text)
    return text[: params.keep_first] + params.character * hidden + text[len(text) - params.keep_last :]
