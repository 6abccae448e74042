"""Run alternative tools, each from PyPI in a separate environment, in its best configuration."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.cinema import Cinema

HERE = Path(__file__).parent
DLT = ["dlt[postgres,parquet]>=1.4", "sqlalchemy>=2.0", "psycopg2-binary>=2.9", "pyarrow>=18"]
# Later releases fetch a program at run time.
INGESTR = ["ingestr==1.1.22"]
ELASTICSEARCH = ["elasticsearch>=8.19,<9", "psycopg[binary]>=3.2"]
PACKAGES = {"dlt": DLT, "ingestr": INGESTR}

# Neither keeps arrays or uuids; these expressions restore a film's own types.
PLAIN_COLUMNS = (
    "id::uuid, title::text, rating::numeric(3,1),"
    " ARRAY(SELECT jsonb_array_elements_text(genres::jsonb)) AS genres, modified::timestamptz"
)


@dataclass(frozen=True)
class Peer:
    """Represent a tool in its own virtual environment."""

    name: str
    packages: list[str]
    home: Path

    @property
    def bin(self) -> Path:
        return self.home / self.name / "bin"

    @property
    def version(self) -> str:
        ask = f"import importlib.metadata; print(importlib.metadata.version({self.name!r}))"
        return self.call([str(self.bin / "python"), "-c", ask]).strip()

    def install(self) -> None:
        if (self.bin / "installed").exists():
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.home / self.name)], check=True)
        subprocess.run([str(self.bin / "pip"), "install", "-q", *self.packages], check=True)
        (self.bin / "installed").touch()

    def call(self, command: list[str], **environment: str) -> str:
        done = subprocess.run(
            command, env=os.environ | environment, cwd=self.home, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {(done.stdout + done.stderr)[-2000:]}")
        return done.stdout


def dlt_load(peer: Peer, cinema: Cinema, disposition: str) -> None:
    """Run dlt with the pyarrow backend; `merge` uses the upsert strategy."""
    peer.call(
        [str(peer.bin / "python"), str(HERE / "dlt_load.py"), disposition],
        SOURCE_URL=cinema.admin_url,
        DLT_DATA_DIR=str(peer.home / "dlt-data"),
        RUNTIME__LOG_LEVEL="CRITICAL",
        RUNTIME__DLTHUB_TELEMETRY="false",
    )


def ingestr_load(
    peer: Peer, cinema: Cinema, target: Cinema, *, source_table: str, target_table: str, strategy: str, key: str
) -> None:
    """Run ingestr; array columns are declared json, because it drops them otherwise."""
    peer.call(
        [
            str(peer.bin / "ingestr"),
            "ingest",
            *("--source-uri", cinema.admin_url, "--source-table", source_table),
            *("--dest-uri", target.admin_url, "--dest-table", target_table),
            *("--incremental-strategy", strategy, "--primary-key", key),
            *(("--columns", "genres:json") if source_table == "content.films" else ()),
            *(("--incremental-key", "modified") if strategy == "merge" else ()),
            *("--progress", "log", "--yes"),
        ],
        DISABLE_TELEMETRY="true",
        INGESTR_DISABLE_TELEMETRY="true",
    )


def streaming_bulk(peer: Peer, cinema: Cinema, search_url: str, query: str) -> None:
    """Run the official client's helper, fed from a server-side cursor."""
    peer.call(
        [str(peer.bin / "python"), str(HERE / "elasticsearch_load.py"), query],
        SOURCE_URL=cinema.admin_url,
        SEARCH_URL=search_url,
    )
