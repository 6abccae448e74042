"""A catalog with its warehouse, looked at from outside: by pyiceberg with its own files, and by DuckDB."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from tests.lake.s3_server import KEY, SECRET, S3Server

# As docs/how-to/iceberg.md has it.
LATEST = """
SELECT * EXCLUDE (_version, _deleted, latest) FROM (
    SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _version DESC) AS latest
    FROM entries
) WHERE latest = 1 AND NOT _deleted
ORDER BY {key}
"""


@dataclass(frozen=True)
class Tables:
    """Tables of one connection."""

    url: str
    folder: Path
    server: S3Server | None = None

    @property
    def database(self) -> str:
        """The database that holds the catalog."""
        return self.url.partition("?")[0].removeprefix("iceberg+")

    def catalog(self) -> SqlCatalog:
        """Open the catalog as a reader that has nothing of Vitrina does."""
        found = {"uri": self.database.replace("postgresql://", "postgresql+psycopg://")}
        name = dict(parse_qsl(urlsplit(self.url).query))["catalog"]
        if self.server:
            endpoint = f"http://127.0.0.1:{self.server.port}"
            found |= {"s3.endpoint": endpoint, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
            found |= {"s3.region": "us-east-1"}
        return SqlCatalog(name, **found)

    def table(self, name: str = "marts.films") -> Table | None:
        catalog = self.catalog()
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            return None
        finally:
            catalog.engine.dispose()

    def loaded(self, name: str = "marts.films") -> Table:
        table = self.table(name)
        assert table
        return table

    def entries(self, name: str = "marts.films") -> pa.Table:
        """Read everything that is in the table."""
        return self.loaded(name).scan().to_arrow()

    def latest(self, key: str = "id", name: str = "marts.films") -> list[dict[str, Any]]:
        """Ask DuckDB for the latest row of each key."""
        table = self.table(name)
        if table is None or key.partition(",")[0] not in table.schema().column_names:
            return []
        return latest(table.scan().to_arrow(), key)

    def titles(self, name: str = "marts.films") -> dict[int, str]:
        return {row["id"]: row["title"] for row in self.latest(name=name)}

    def snapshots(self, name: str = "marts.films") -> list[Any]:
        return list(self.loaded(name).metadata.snapshots)

    def stored(self, name: str = "marts.films") -> set[str]:
        """List the data files that are in the warehouse, finished or not."""
        folder = self.folder / name.replace(".", "/") / "data"
        return {path.name for path in folder.rglob("*") if path.is_file()}

    def named(self, name: str = "marts.films") -> set[str]:
        """List the data files that some snapshot names."""
        table = self.loaded(name)
        return {
            entry.data_file.file_path.rpartition("/")[2]
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }


def latest(entries: pa.Table, key: str = "id") -> list[dict[str, Any]]:
    with duckdb.connect() as session:
        session.register("entries", entries)
        rows: list[dict[str, Any]] = session.sql(LATEST.format(key=key)).to_arrow_table().to_pylist()
        return rows
