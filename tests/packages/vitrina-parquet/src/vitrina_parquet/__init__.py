"""Parquet files as a target: the connector's description. Every process loads it, so it imports no pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from vitrina.ports.connector import Connector, Finding, Opening

if TYPE_CHECKING:
    from vitrina.ports.target import Target
    from vitrina.settings import Settings


class ParquetOptions(BaseModel):
    """Options of one pipeline, in `options.parquet`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    compression: Literal["zstd", "snappy", "none"] = Field("zstd", description="How files are packed.")
    rows_per_group: int = Field(100_000, ge=1, description="Rows of a row group, at most.")


def _open_target(opening: Opening) -> "Target":
    from vitrina_parquet.target import ParquetTarget

    return ParquetTarget(opening, directory(opening.url or "") / opening.name)


def directory(url: str) -> Path:
    """Take the directory from `parquet:///var/lib/marts`."""
    return Path(urlsplit(url).path)


def _check(url: str, settings: "Settings") -> Iterator[Finding]:
    place = directory(url)
    made = Finding("OK", f"{place}")
    yield made if place.is_dir() else Finding("PROBLEM", f"{place} is no directory", "make it, for the runners' login")


connector = Connector(
    name="parquet",
    summary="Parquet files in a directory: `parquet:<name>`, one directory for each.",
    schemes=("parquet",),
    prefix="parquet",
    options=ParquetOptions,
    open_target=_open_target,
    url_problem=lambda url: None if url.startswith("parquet:///") else "write parquet:///DIRECTORY, without a host",
    # A directory is the machine's: only who runs it may name one.
    kept_url_problem=lambda _: "a directory of the runner's machine can only be set in its environment",
    check=_check,
    dataset=lambda url, name: ("file", str(directory(url or "") / name)),
)
