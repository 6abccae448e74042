"""Steps that take and give polars or pandas frames: what they change is changed, and every type comes back."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas as pd
import polars as pl
import pytest

from tests.integration.test_step_types import pass_all_types
from tests.support.workbench import Workbench
from vitrina.errors import StepFailed
from vitrina.testing import run_step
from vitrina.transforms import transform

ROWS: list[dict[str, Any]] = [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 3, "name": "eve"}]


@transform("types_polars")
def polars_identity(frame: pl.DataFrame) -> pl.DataFrame:
    """Nothing."""
    return frame


@transform("types_pandas")
def pandas_identity(frame: pd.DataFrame) -> pd.DataFrame:
    """Nothing."""
    return frame


@transform("frames_upper")
def upper(frame: pl.DataFrame) -> pl.DataFrame:
    """Upper case."""
    return frame.with_columns(pl.col("name").str.to_uppercase(), length=pl.col("name").str.len_chars())


@transform("frames_filter")
def keep(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Filters."""
    return frame[frame["id"] > 1].assign(half=frame["id"] / 2)


@transform("frames_wrong")
def wrong(frame: pd.DataFrame) -> Any:
    """Gives no frame."""
    return frame["id"]


def test_frames_in_frames_out() -> None:
    assert run_step(upper, ROWS).rows[0] == {"id": 1, "name": "ANN", "length": 3}
    assert run_step(keep, ROWS).rows == [{"id": 2, "name": "bob", "half": 1.0}, {"id": 3, "name": "eve", "half": 1.5}]


def test_a_result_that_is_no_frame_is_named() -> None:
    with pytest.raises(StepFailed, match="it returned Series, not a pandas"):
        run_step(wrong, ROWS)


@pytest.mark.parametrize("step", ["types_polars", "types_pandas"])
def test_frames_give_back_the_postgres_types_they_cannot_carry(step: str) -> None:
    types = {"id": "smallint", "name": "character varying(10)", "u": "uuid", "n": "numeric(50,2)", "t": "timestamptz"}
    rows = [{"id": 2, "name": "x", "u": UUID(int=7), "n": Decimal("1.50"), "t": None}]
    made = run_step(step, rows, types=types)
    assert [field.metadata[b"vitrina:type"].decode() for field in made.batch.schema] == [
        "smallint",
        "character varying(10)",
        "uuid",
        "numeric(50,2)",
        "timestamp with time zone",
    ]
    assert made.rows == rows


@pytest.mark.parametrize("form", ["polars", "pandas"])
def test_every_type_arrives_as_it_left(workbench: Workbench, form: str) -> None:
    pass_all_types(workbench, form)
