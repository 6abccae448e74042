"""CSV files as a source: the connector's description. Every process loads it, so it imports no pyarrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from vitrina.errors import ConfigError
from vitrina.ports.connector import Connector, Finding, Opening

if TYPE_CHECKING:
    from vitrina.ports.source import Source
    from vitrina.settings import Settings


class CsvOptions(BaseModel):
    """Options of one pipeline, in `options.csv`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    delimiter: str = Field(",", min_length=1, max_length=1, description="What stands between values.")


def _open_source(opening: Opening) -> "Source":
    from vitrina_csv.source import CsvSource

    root = Path(urlsplit(opening.url or "").path).resolve()
    file = (root / opening.name).resolve()
    if not file.is_relative_to(root):
        raise ConfigError(f"source_table {opening.name!r} leads out of the connection's directory {opening.url}")
    options = opening.options if isinstance(opening.options, CsvOptions) else CsvOptions()
    return CsvSource(file, options.delimiter, cursor=opening.definition.incremental_key)


def _check(url: str, settings: "Settings") -> Iterator[Finding]:
    place = Path(urlsplit(url).path)
    if not place.is_dir():
        raise NotADirectoryError(f"{url} leads to no directory")
    yield Finding("OK", f"{place} of {url}")


connector = Connector(
    name="csv",
    summary="CSV files in a directory: `source_table` is the name of a file.",
    schemes=("csv",),
    options=CsvOptions,
    secrets=frozenset({"passphrase"}),
    check=_check,
    open_source=_open_source,
    kept_url_problem=lambda _: "a directory of the runner's machine can only be set in its environment",
    dataset=lambda url, name: ("file", str(Path(urlsplit(url or "").path) / name)),
)
