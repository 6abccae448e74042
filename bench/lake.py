"""Measure full loads into Parquet files and Iceberg tables in a folder, against COPY and `pyarrow.parquet`.

    python -m bench.lake [--rows 1000000] [--repeat 3] [--growth 1000000,10000000]

All write the same columns with zstd. The catalog of the Iceberg table is in the same Postgres. Growth is the runner's
peak memory; a fresh runner loads each size. `PYTHONPATH` names where `make test-lake` installed what both need: .lake.
"""

import argparse
import re
import statistics
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from bench import report
from bench.cinema import FILMS, Cinema
from bench.ours import Platform
from bench.servers import prepared
from vitrina.settings import Settings

# By the names of their pipelines and connections.
TARGETS = {"files": "files:films", "iceberg": "iceberg:marts.films"}
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
                _films(settings, int(size))
                for name in TARGETS:
                    figures[f"{name}:_peak_memory_MB_at_{int(size):,}_rows"] = _growth(platform, name)
        finally:
            platform.stop()
    intro = f"{arguments.rows:,} films, {arguments.repeat} pairs; the ratio is our speed in units of the reference's."
    report.write_figures("lake", "Parquet files", intro, figures)


def _platform(settings: Settings, lake: Path) -> Platform:
    assert settings.reader_url
    assert settings.admin_url
    catalog = settings.admin_url.get_secret_value()
    environment = {
        "VITRINA_DATABASE_URL": settings.require_database_url(),
        "VITRINA_READER_URL": settings.reader_url.get_secret_value(),
        "VITRINA_CONN_FILES": f"file://{lake}",
        "VITRINA_CONN_ICEBERG": f"iceberg+{catalog}?warehouse=file://{lake}",
        "VITRINA_ALLOWED_TARGETS": ",".join(f"{name}:*" for name in TARGETS),
    }
    return Platform(settings, environment)


def _race(settings: Settings, platform: Platform, lake: Path, rows: int, repeat: int) -> dict[str, object]:
    cinema = _films(settings, rows)
    for name in TARGETS:
        _define(platform, name)
    turns = []
    for _ in range(repeat):
        ours = {name: report.timed(partial(platform.run, name)) for name in TARGETS}
        turns.append(ours | {"reference": report.timed(lambda: _reference(cinema, lake / "reference.parquet"))})
    for name, target in TARGETS.items():
        _require(rows, lake / target.partition(":")[2].replace(".", "/"), name)
    figures: dict[str, object] = {
        f"{name}_seconds": round(statistics.median(turn[name] for turn in turns), 2) for name in (*TARGETS, "reference")
    }
    ratios = {name: statistics.median(turn["reference"] / turn[name] for turn in turns) for name in TARGETS}
    return figures | {f"{name}_ratio": round(ratio, 2) for name, ratio in ratios.items()}


def _require(rows: int, folder: Path, name: str) -> None:
    written = sum(pq.read_metadata(file).num_rows for file in folder.rglob("*.parquet"))
    if written < rows:
        raise SystemExit(f"{written} of {rows} rows were written by {name}")


def _growth(platform: Platform, name: str) -> int:
    platform.restart()
    _define(platform, name)
    platform.run(name)
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


def _define(platform: Platform, name: str) -> None:
    options = {"target_connection": name, "allow_shrink": True}
    platform.define(name, FILMS, target_table=TARGETS[name], target_key=["id"], batch_size=20_000, options=options)


def _reference(cinema: Cinema, path: Path) -> None:
    """COPY in the order of the key, parsed and written as it arrives."""
    read, written = pa.csv.ReadOptions(column_names=list(TYPES)), pa.csv.ConvertOptions(column_types=TYPES)
    with cinema.connect() as source, source.cursor().copy(f"COPY ({FILMS} ORDER BY id) TO STDOUT (FORMAT csv)") as rows:
        stream = pa.PythonFile(_Stream(rows), mode="r")
        batches = pa.csv.open_csv(stream, read_options=read, convert_options=written)
        with pq.ParquetWriter(path, pa.schema(TYPES), compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)


class _Stream:
    """Read the output of COPY as a file."""

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
