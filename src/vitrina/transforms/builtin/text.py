"""Provide the step that normalises text."""

import unicodedata
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from vitrina.definition import ColumnName, Strict
from vitrina.errors import FatalError
from vitrina.transforms.builtin import batches
from vitrina.transforms.registry import transform


class NormaliseText(Strict):
    columns: list[ColumnName] = Field(min_length=1)
    trim: bool = Field(True, description="Remove white space at both ends.")
    collapse_spaces: bool = Field(True, description="Turn each run of white space into one space.")
    case: Literal["lower", "upper", "title"] | None = None
    unicode: Literal["NFC", "NFKC"] | None = Field("NFC", description="Unicode normal form.")
    empty_to_null: bool = Field(False, description="Turn empty text into NULL, afterwards.")


_CASES = {"lower": pc.utf8_lower, "upper": pc.utf8_upper, "title": pc.utf8_title}


@transform("normalise_text", params=NormaliseText)
def normalise_text(batch: pa.RecordBatch, params: NormaliseText) -> pa.RecordBatch:
    """Trim, collapse white space, change case, normalise Unicode.

    Example: `{"columns": ["title", "director"], "case": "title", "empty_to_null": true}`
    """
    for name in params.columns:
        field = batches.field_of(batch, name)
        if not pa.types.is_string(field.type):
            raise FatalError(f"column {name!r} is {field.type}, not text")
        batch = batches.with_column(batch, field, _normalised(batch.column(name), params))
    return batch


def _normalised(column: pa.Array, params: NormaliseText) -> pa.Array:
    if params.unicode and not pc.all(pc.string_is_ascii(column), min_count=0).as_py():
        form = params.unicode
        texts = [None if text is None else unicodedata.normalize(form, text) for text in column.to_pylist()]
        column = pa.array(texts, pa.string())
    if params.collapse_spaces:
        column = pc.replace_substring_regex(column, r"[\s\p{Z}]+", " ")
    if params.trim:
        column = pc.utf8_trim_whitespace(column)
    if params.case:
        column = _CASES[params.case](column)
    if params.empty_to_null:
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    return column
