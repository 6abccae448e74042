"""Read and change what a table shows, on behalf of one claim of a pipeline: one catalog commit for each change.

Vitrina's state is in properties of the table. A commit succeeds only if two references are unchanged: the branch
`main`, and a tag that belongs to the claim. Taking over replaces the tag.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from vitrina.connectors.files.manifest import BaseLedger, DataFile, Manifest, Writing
from vitrina.connectors.files.objects import Changed
from vitrina.connectors.iceberg import catalogs, data_files, schemas
from vitrina.connectors.iceberg.data_files import RememberedObjects
from vitrina.connectors.iceberg.urls import CatalogUrl
from vitrina.errors import FatalError
from vitrina.ports.schema import Column

# Properties of a table.
STATE, WRITER = "vitrina.state", "vitrina.writer."
# Keys in the summary of a snapshot.
PIPELINE, EPOCH, CHANGE, LOAD, CHECKPOINT = (
    f"vitrina.{name}" for name in ("pipeline", "epoch", "change", "load", "checkpoint")
)
# Stands for all files of the table, because no operation here has to list them.
WHATEVER_IS_THERE = "*"
# Prefix of the tags of claims.
TAGS = "vitrina_"
_MAIN = "main"
_DAY_MS = 86_400_000
# A tag whose pipeline no longer exists keeps its snapshot for this long.
TAG_AGE_MS = 30 * _DAY_MS
_PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True)
class Place:
    """Locate a table: its name in the catalog, and its folder in the warehouse."""

    catalog: Catalog
    url: CatalogUrl
    identifier: tuple[str, ...]
    folder: str
    objects: RememberedObjects

    @property
    def location(self) -> str:
        return f"{self.url.location}/{self.folder}"

    def load(self) -> Table | None:
        """Return the table as it is now; None if it does not exist. Refuse one that Vitrina did not create."""
        with catalogs.translated(self.url):
            try:
                table = self.catalog.load_table(self.identifier)
            except NoSuchTableError:
                return None
        name = ".".join(self.identifier)
        if STATE not in table.properties:
            raise FatalError(f"iceberg:{name} exists, and Vitrina did not make it: choose another name")
        if table.location().rstrip("/") != self.location:
            raise FatalError(
                f"iceberg:{name} is at {table.location()}, not at {self.location}: correct the connection's warehouse"
            )
        return table

    def create(self) -> None:
        """Create the table with only Vitrina's own columns. Raise `Changed` if another runner was faster."""
        with catalogs.translated(self.url):
            for depth in range(1, len(self.identifier)):
                self._create_namespace(self.identifier[:depth])
            state = {STATE: _state(Manifest())}
            self.catalog.create_table(
                self.identifier, schemas.empty(), location=self.location, properties=_PROPERTIES | state
            )

    def _create_namespace(self, name: tuple[str, ...]) -> None:
        try:
            if not self.catalog.namespace_exists(name):
                self.catalog.create_namespace(name)
        except NamespaceAlreadyExistsError:
            return


@dataclass(frozen=True)
class Seen:
    """Hold a table as it was loaded, and its manifest."""

    table: Table
    manifest: Manifest


class TableLedger(BaseLedger):
    """Keep the manifest in a table of a catalog."""

    def __init__(self, place: Place, *, pipeline: str, epoch: int, wait: Callable[[float], object]) -> None:
        super().__init__(f"iceberg:{'.'.join(place.identifier)}", pipeline=pipeline, epoch=epoch, wait=wait)
        self._place = place

    @property
    def tag(self) -> str:
        """Return the tag of this claim."""
        return f"{self._tags}{self._epoch}"

    @property
    def _tags(self) -> str:
        return f"{TAGS}{self._pipeline}_"

    def reserve(self, columns: tuple[Column, ...]) -> Schema:
        """Assign ids to these columns that no other column has. They become visible with the rows, not before."""
        for _ in range(5):
            table = self._place.load()
            if table is None:
                raise FatalError(f"{self._name} was dropped while it was written")
            schema = schemas.planned(table.metadata, columns)
            if any(known.schema_id == schema.schema_id for known in table.metadata.schemas):
                return schema
            change = Change(self._place, table)
            self._fence(change)
            change.add_schema(schema, show=False)
            try:
                change.commit()
            except Changed:
                continue
        raise FatalError(f"{self._name} keeps changing its columns: other programs change them all the time")

    def _find(self) -> tuple[Manifest, Seen | None]:
        table = self._place.load()
        if table is None:
            return Manifest(), None
        manifest = _manifest(table)
        return manifest, Seen(table, manifest)

    def _is_applied(self, change: str, found: Manifest, version: Seen | None) -> bool:
        """Recognise a change whose reply was lost, even if other writers have changed the table since."""
        snapshots = version.table.metadata.snapshots if version else ()
        return found.change == change or any(
            snapshot.summary is not None and snapshot.summary.get(CHANGE) == change for snapshot in snapshots
        )

    def _store(self, wanted: Manifest, version: Seen | None, record: bytes) -> None:
        if version is None:
            self._place.create()
            raise Changed(self._name)  # load it, then change it
        change = Change(self._place, version.table)
        shows = _is_shown_otherwise(version.manifest, wanted)
        if shows:
            change.require_unchanged()
            if wanted.shown:
                change.show_columns(wanted.shown.columns)
        summary = self._summary(wanted, record)
        change.show_files(version.manifest, wanted, summary)
        self._fence(change, summary)
        own = wanted.writers.get(self._pipeline, Writing())
        if own != version.manifest.writers.get(self._pipeline):
            change.set(f"{WRITER}{self._pipeline}", json.dumps(vars(own)))
        if shows:
            change.set(STATE, _state(wanted))
        change.commit()

    def _summary(self, wanted: Manifest, record: bytes) -> dict[str, str]:
        load = wanted.writers.get(self._pipeline, Writing()).load
        return {
            PIPELINE: self._pipeline,
            EPOCH: str(self._epoch),
            CHANGE: wanted.change,
            **({LOAD: load} if load else {}),
            **({CHECKPOINT: record.decode()} if record else {}),
        }

    def _fence(self, change: "Change", summary: dict[str, str] | None = None) -> None:
        """Require the claim's tag. A claim without one replaces the tag of the pipeline's previous claim."""
        refs = change.table.metadata.refs
        if self.tag in refs:
            change.require(self.tag)
            return
        before = [name for name in refs if name.startswith(self._tags)]
        for name in before:
            if int(name.removeprefix(self._tags)) > self._epoch:
                raise self._late()
            change.require(name)
        if not before:
            # A missing tag cannot be required, so an empty snapshot makes two first claims exclude each other.
            change.require_unchanged()
            change.append_nothing(summary or {})
        change.move_tag(before, self.tag)


class Change:
    """Assemble one commit."""

    def __init__(self, place: Place, table: Table) -> None:
        self.table = table
        self._place = place
        self._staged: Transaction = table.transaction()
        self._requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
        self._has_snapshot = False

    def require(self, ref: str) -> None:
        found = self.table.metadata.refs.get(ref)
        self._requirements.append(AssertRefSnapshotId(ref=ref, snapshot_id=found.snapshot_id if found else None))

    def require_unchanged(self) -> None:
        """Require that rows and columns are those that were seen."""
        self.require(_MAIN)
        self._requirements.append(AssertCurrentSchemaId(current_schema_id=self.table.metadata.current_schema_id))

    def set(self, name: str, value: str) -> None:
        self._staged._stage((SetPropertiesUpdate(updates={name: value}),))

    def show_columns(self, columns: tuple[Column, ...]) -> None:
        metadata = self.table.metadata
        schema = schemas.planned(metadata, columns)
        if any(known.schema_id == schema.schema_id for known in metadata.schemas):
            self._staged._stage((SetCurrentSchemaUpdate(schema_id=schema.schema_id),))
        else:
            self.add_schema(schema, show=True)

    def add_schema(self, schema: Schema, *, show: bool) -> None:
        last = self.table.metadata.last_column_id
        self._requirements.append(AssertLastAssignedFieldId(last_assigned_field_id=last))
        self._staged._stage((AddSchemaUpdate(schema=schema),))
        if show:
            self._staged._stage((SetCurrentSchemaUpdate(schema_id=-1),))

    def show_files(self, found: Manifest, wanted: Manifest, summary: dict[str, str]) -> None:
        """Add files, and remove those of a replaced generation, in one snapshot."""
        if wanted.shown is None:
            return
        added = [file for file in wanted.shown.files if file.path != WHATEVER_IS_THERE]
        replaces = found.shown is not None and len(added) == len(wanted.shown.files)
        if not added and not replaces:
            return
        producing = self._staged.update_snapshot(snapshot_properties=summary)
        metadata = self._staged.table_metadata
        with producing.overwrite() if replaces else producing.merge_append() as snapshot:
            for file in added:
                name = f"{self._place.folder}/{file.path}"
                footer, size = self._place.objects.footer(name)
                snapshot.append_data_file(
                    data_files.entry(f"{self._place.location}/{file.path}", footer, size, metadata)
                )
            for old in self._shown_files() if replaces else ():
                snapshot.delete_data_file(old)
        self._has_snapshot = True

    def append_nothing(self, summary: dict[str, str]) -> None:
        if not self._has_snapshot:
            with self._staged.update_snapshot(snapshot_properties=summary).fast_append():
                self._has_snapshot = True

    def move_tag(self, before: list[str], tag: str) -> None:
        shown = self._staged.table_metadata.current_snapshot_id
        removed = tuple(RemoveSnapshotRefUpdate(ref_name=name) for name in before)
        made = SetSnapshotRefUpdate(
            ref_name=tag, type=SnapshotRefType.TAG, snapshot_id=shown, max_ref_age_ms=TAG_AGE_MS
        )
        self._staged._stage((*removed, made))

    def stage(self, *updates: TableUpdate) -> None:
        self._staged._stage(updates)

    def commit(self) -> None:
        """Commit the change. Raise `Changed` if a requirement is no longer met.

        Manifests of a refused commit stay until they are old: a server, or a proxy in front of it, may have sent the
        request twice and refused what it had already done.
        """
        if self._staged._updates:
            with catalogs.translated(self._place.url):
                self.table._do_commit(self._staged._updates, tuple(self._requirements))

    def _shown_files(self) -> Iterator[IcebergFile]:
        snapshot = self.table.current_snapshot()
        for manifest in snapshot.manifests(self.table.io) if snapshot else ():
            if manifest.content == ManifestContent.DATA:
                entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
                yield from (entry.data_file for entry in entries)


def _manifest(table: Table) -> Manifest:
    properties = table.properties
    writers = {
        name.removeprefix(WRITER): Writing(**json.loads(value))
        for name, value in properties.items()
        if name.startswith(WRITER)
    }
    found = replace(Manifest.from_bytes(properties[STATE].encode()), writers=writers)
    if found.shown is None:
        return found
    files = (DataFile(WHATEVER_IS_THERE, rows_in(table), 0),)
    return replace(found, shown=replace(found.shown, files=files))


def rows_in(table: Table) -> int:
    """Return how many rows the table has, including deleted ones and older versions."""
    snapshot = table.current_snapshot()
    return int(snapshot.summary.get("total-records") or 0) if snapshot and snapshot.summary else 0


def _is_shown_otherwise(found: Manifest, wanted: Manifest) -> bool:
    files = [manifest.shown.files if manifest.shown else None for manifest in (found, wanted)]
    return files[0] != files[1] or _state(wanted) != _state(replace(found, change=wanted.change))


def _state(manifest: Manifest) -> str:
    """Return the state that the pipelines of a table share: all except the claims of each, and the files."""
    shown = replace(manifest.shown, files=()) if manifest.shown else None
    return replace(manifest, shown=shown, previous=(), writers={}).to_bytes().decode()
