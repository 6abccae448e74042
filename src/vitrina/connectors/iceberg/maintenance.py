"""Expire snapshots that are no longer kept, and remove files that no snapshot names."""

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate

from vitrina.connectors.files import cleaning
from vitrina.connectors.files.cleaning import Cleaner
from vitrina.connectors.files.objects import Changed
from vitrina.connectors.iceberg import catalogs
from vitrina.connectors.iceberg.ledger import TAGS, Change, Place
from vitrina.connectors.iceberg.options import IcebergOptions

# A property of the table: when it was last cleaned, as a Unix time in milliseconds.
CLEANED = "vitrina.cleaned-at-ms"
_DAY_MS = 86_400_000
_DAY_SECONDS = 86_400.0
_METADATA = (".avro", ".metadata.json")


@dataclass(frozen=True)
class Maintenance:
    """Clean a table on behalf of one claim."""

    place: Place
    # The tag of the claim; without it, nothing is expired.
    tag: str
    options: IcebergOptions
    cleaner: Cleaner

    def is_due(self) -> bool:
        """Return whether a day has passed. Cleaning lists the whole folder and reads every manifest."""
        table = self.place.load()
        return table is not None and _now_ms(table) - int(table.properties.get(CLEANED, 0)) >= _DAY_MS

    def clean(self, *, but: frozenset[str]) -> int:
        """Expire snapshots, then remove files, except those of the loads in `but`; return their number."""
        self._expire()
        table = self.place.load()
        if table is None:
            return 0
        with catalogs.translated(self.place.url):
            named = {self._path(location) for location in _named(table)}
        removed = cleaning.clean(self.place.objects, self.place.folder, named, self.cleaner, but=but)
        left = list(self._left_metadata(named))
        if left:
            self.cleaner.require_held()
            self.place.objects.delete(f"{self.place.folder}/{path}" for path in left)
        return removed + len(left)

    def _expire(self) -> None:
        table = self.place.load()
        if table is None or self.tag not in table.metadata.refs:
            return
        change = Change(self.place, table)
        change.require(self.tag)
        change.require_unchanged()
        tags, snapshots = self._expired(table)
        change.stage(*(RemoveSnapshotRefUpdate(ref_name=tag) for tag in tags))
        if snapshots:
            change.stage(RemoveSnapshotsUpdate(snapshot_ids=snapshots))
        change.set(CLEANED, str(_now_ms(table)))
        try:
            change.commit()
        except (Changed, ValueError):
            return  # another program writes to it, or has expired them: try tomorrow

    def _expired(self, table: Table) -> tuple[list[str], list[int]]:
        """Return tags of claims that have ended permanently, and snapshots that nothing keeps."""
        metadata, days = table.metadata, self.options.expire_days
        if days is None:
            return [], []
        ages = {snapshot.snapshot_id: _now_ms(table) - snapshot.timestamp_ms for snapshot in metadata.snapshots}
        tags = [
            name
            for name, ref in metadata.refs.items()
            if name.startswith(TAGS)
            and name != self.tag
            and ref.max_ref_age_ms is not None
            and ages[ref.snapshot_id] > ref.max_ref_age_ms
        ]
        kept = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in tags}
        latest = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0, reverse=True)
        kept |= {snapshot.snapshot_id for snapshot in latest[: self.options.keep_snapshots]}
        return tags, [name for name, age in ages.items() if age > days * _DAY_MS and name not in kept]

    def _left_metadata(self, named: set[str]) -> Iterator[str]:
        """Yield metadata files of failed commits. Only old ones, because a recent one may still be committed."""
        listed = list(self.place.objects.list(f"{self.place.folder}/metadata/"))
        now = max((one.modified for one in listed), default=0.0)
        for one in listed:
            path = one.name.removeprefix(f"{self.place.folder}/")
            is_old = one.modified <= now - self.options.orphan_days * _DAY_SECONDS
            if path.endswith(_METADATA) and path not in named and is_old:
                yield path

    def _path(self, location: str) -> str:
        return location.removeprefix(f"{self.place.location}/")


def _now_ms(table: Table) -> int:
    """Return the time of the last change, made by the claim itself, by the same clock as snapshot times."""
    return table.metadata.last_updated_ms


def _named(table: Table) -> Iterator[str]:
    """Yield the locations of everything that a reader of any snapshot needs, and the metadata history."""
    yield table.metadata_location
    yield from (one.metadata_file for one in table.metadata.metadata_log)
    yield from (one.statistics_path for one in table.metadata.statistics)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        yield path
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path
