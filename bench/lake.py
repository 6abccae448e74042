"""Full loads into Parquet files in a folder, against COPY read by pyarrow and written by `pyarrow.parquet`.

    python -m bench.lake [--rows 1000000] [--repeat 3] [--growth 1000000,10000000]

Both write the same columns with zstd. Growth is the runner's peak memory; a fresh runner loads each size.
"""

import argparse
import re
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench import report
from bench.cinema import FILMS, Cinema
from bench.ours import Platform
from bench.servers import prepared
from vitrina.settings import Settings

TYPES = {
    "id": pa.string(),
    "title": pa.string(),
    "rating": pa.decimal128(3, 1),
    "genres": pa.string(),
    "modified": pa.string(),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--growth", default="")
    arguments = parser.parse_args()
    with prepared({"fsync": "off"}) as (settings, directory), tempfile.TemporaryDirectory() as lake:
        platform = _platform(settings, Path(lake))
        platform.start(directory / "runner.log")
        try:
            figures = _race(settings, platform, Path(lake), arguments.rows, arguments.repeat)
            for size in filter(None, arguments.growth.split(",")):
                figures[f"runner's_peak_memory_MB_at_{int(size):,}_rows"] = _growth(settings, platform, int(size))
        finally:
            platform.stop()
    intro = f"{arguments.rows:,} films, {arguments.repeat} pairs; the ratio is our speed in units of the reference's."
    report.write_figures("lake", "Parquet files", intro, figures)


def _platform(settings: Settings, lake: Path) -> Platform:
    assert settings.reader_url
    environment = {
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_READER_URL": settings.reader_url.get_secret_value(),
        "VITRINA_CONN_LAKE": f"file://{lake}",
        "VITRINA_ALLOWED_TARGETS": "files:*",
    }
    return Platform(settings, environment)


def _race(settings: Settings, platform: Platform, lake: Path, rows: int, repeat: int) -> dict[str, object]:
    cinema = _films(settings, rows)
    _define(platform)
    pairs = []
    for _ in range(repeat):
        ours = report.timed(lambda: platform.run("films"))
        theirs = report.timed(lambda: _reference(cinema, lake / "reference.parquet"))
        pairs.append((ours, theirs))
    written = sum(pq.read_metadata(file).num_rows for file in (lake / "films").rglob("*.parquet"))
    if written < rows:
        raise SystemExit(f"{written} of {rows} rows were written")
    return {
        "ours_seconds": round(statistics.median(ours for ours, _ in pairs), 2),
        "reference_seconds": round(statistics.median(theirs for _, theirs in pairs), 2),
        "ratio": round(statistics.median(theirs / ours for ours, theirs in pairs), 2),
    }


def _growth(settings: Settings, platform: Platform, rows: int) -> int:
    _films(settings, rows)
    platform.restart()
    _define(platform)
    platform.run("films")
    assert platform.process is not None
    status = Path(f"/proc/{platform.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found
    return int(found[1]) >> 10


def _films(settings: Settings, rows: int) -> Cinema:
    assert settings.admin_url
    cinema = Cinema(settings.admin_url.get_secret_value(), rows)
    cinema.make(ratings=False)
    return cinema


def _define(platform: Platform) -> None:
    options = {"target_connection": "lake", "allow_shrink": True}
    platform.define("films", FILMS, target_table="files:films", target_key=["id"], batch_size=20_000, options=options)


def _reference(cinema: Cinema, path: Path) -> None:
    """COPY in the order of the key, parsed and written as it comes."""
    read, written = pa.csv.ReadOptions(column_names=list(TYPES)), pa.csv.ConvertOptions(column_types=TYPES)
    with cinema.connect() as source, source.cursor().copy(f"COPY ({FILMS} ORDER BY id) TO STDOUT (FORMAT csv)") as rows:
        stream = pa.PythonFile(_Stream(rows), mode="r")
        batches = pa.csv.open_csv(stream, read_options=read, convert_options=written)
        with pq.ParquetWriter(path, pa.schema(TYPES), compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)


class _Stream:
    """What COPY gives, as a file."""

    closed = False

    def __init__(self, rows: Iterable[bytes]) -> None:
        self._rows = iter(rows)
        self._left = bytearray()

    def read(self, size: int = -1) -> bytes:
        while len(self._left) < size or size < 0:
            piece = next(self._rows, None)
            if piece is None:
                break
            self._left += piece
        end = len(self._left) if size < 0 else size
        taken = bytes(self._left[:end])
        del self._left[:end]
        return taken

    def close(self) -> None:
        self.closed = True


if __name__ == "__main__":
    main()
