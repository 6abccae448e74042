"""Manage a target in ClickHouse: a view under the plain name, the generation that it shows, and what is being built.

The order of steps keeps a late runner out:

- An object that can become visible is created first, then the metastore is asked whether the claim still holds, then
  the object is used. A runner that takes over moves the claim first and then removes what older attempts created.
- Taking over drops the views of older attempts before it reads what is shown. From then on no other runner can switch
  the view, so what is not shown now stays unshown and may be renamed.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrina import failpoints
from vitrina.connectors.clickhouse.client import Exists, Missing, Session, literal, quoted
from vitrina.connectors.clickhouse.names import Kind, Named, Owner, new_load, parse
from vitrina.connectors.clickhouse.options import ClickHouseOptions
from vitrina.connectors.clickhouse.types import Field
from vitrina.errors import FatalError, LeaseLost, TargetMismatch, TransientError
from vitrina.ports.checkpoint import Accepted

VERSION, DELETED = "_version", "_deleted"
_PART_BITS = 22
# How many insert tokens a table remembers, by which the server recognises a repeated insert of a part.
_REMEMBERED_INSERTS = 10_000
_ENDING_SECONDS = 60.0


def version_of(epoch: int, number: int) -> int:
    """Return the version of a part's rows. It grows with the claim, then with the part."""
    if not 0 <= number < 1 << _PART_BITS:
        raise FatalError(f"part {number:,} does not fit a row's version: raise batch_size")
    return epoch << _PART_BITS | number


@dataclass(frozen=True)
class Shown:
    """Describe what the plain name shows."""

    generation: str
    load: str
    key: tuple[str, ...]
    is_versioned: bool


@dataclass(frozen=True)
class Layout:
    """Describe how a generation is built."""

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    options: ClickHouseOptions

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.fields]


class Tables:
    """Manage the objects of one target on behalf of one attempt of a claim."""

    def __init__(self, session: Session, database: str, table: str, owner: Owner, *, shared: bool) -> None:
        self._session = session
        self.database = database
        self.table = table
        self.owner = owner
        self._shared = shared

    def __str__(self) -> str:
        return f"clickhouse:{self.database}.{self.table}"

    def path(self, name: object) -> str:
        return f"{quoted(self.database)}.{quoted(str(name))}"

    def shown(self) -> Shown | None:
        """Return what the plain name shows. Refuse an object that Vitrina did not create."""
        found = self._session.rows(
            "SELECT engine, comment FROM system.tables WHERE database = {db:String} AND name = {name:String}",
            {"db": self.database, "name": self.table},
        )
        if not found:
            return None
        engine, comment = found[0]
        notes = _notes(comment)
        if engine != "View" or notes is None:
            raise TargetMismatch(
                f"{self} is a {engine} that Vitrina did not make; move it away, or choose another name: a target is a"
                " view over the table that Vitrina fills"
            )
        return Shown(notes["generation"], notes["load"], tuple(notes["key"]), notes["versioned"])

    def objects(self, *kinds: Kind) -> list[Named]:
        """Return the objects beside the plain name. On a shared target, only those of this pipeline."""
        found = self._session.rows(
            "SELECT name FROM system.tables WHERE database = {db:String} AND startsWith(name, {prefix:String})",
            {"db": self.database, "prefix": f"{self.table}__"},
        )
        named = [one for (name,) in found if (one := parse(self.table, name))]
        return [
            one
            for one in named
            if one.kind in kinds and not (self._shared and one.owner.pipeline != self.owner.pipeline)
        ]

    def generation(self, load: str) -> Named | None:
        """Return the generation of an unfinished load that this attempt has taken over."""
        return next((one for one in self.objects("g") if one.load == load and one.owner == self.owner), None)

    def columns(self, name: str) -> dict[str, str]:
        found = self._session.rows(
            "SELECT name, type FROM system.columns WHERE database = {db:String} AND table = {name:String}"
            " ORDER BY position",
            {"db": self.database, "name": name},
        )
        return {name: kind for name, kind in found if name not in (VERSION, DELETED)}

    def count(self, name: object, *, final: bool) -> int:
        return int(self._session.value(f"SELECT count() FROM {self.path(name)}{' FINAL' if final else ''}"))

    def is_empty(self, name: object, *, final: bool) -> bool:
        return not self._session.rows(f"SELECT 1 FROM {self.path(name)}{' FINAL' if final else ''} LIMIT 1")

    def seize(self) -> None:
        """Take over from older attempts: nothing that they send from now on becomes visible."""
        found = self.objects("g", "s", "v")
        self._leave_if_late(found)
        for one in found:
            if one.kind != "g" and one.owner != self.owner:
                self.drop(one)
        shown = self.shown()
        for one in self.objects("g"):
            if one.owner != self.owner and (shown is None or str(one) != shown.generation):
                self._take(one)
        self._end_older_statements()
        self._leave_if_late(self.objects("g", "s", "v"))

    def _leave_if_late(self, found: Sequence[Named]) -> None:
        later = [one for one in found if one.owner.epoch > self.owner.epoch and self._counts_as_later(one)]
        if later:
            raise LeaseLost(f"{self} is written by a later claim than {self.owner.epoch}")

    def _counts_as_later(self, one: Named) -> bool:
        return one.owner.pipeline == self.owner.pipeline or not self._shared

    def _take(self, one: Named) -> None:
        """Rename a generation that is not shown, so that the server refuses inserts under its old name."""
        try:
            self._session.command(f"RENAME TABLE {self.path(one)} TO {self.path(one.owned_by(self.owner))}")
        except Missing:
            self._leave_if_late(self.objects("g", "s", "v"))

    def _end_older_statements(self) -> None:
        """Kill statements of older attempts and wait for their end. A rename does not stop an insert into the table."""
        deadline = time.monotonic() + _ENDING_SECONDS
        while running := self._older_statements():
            if time.monotonic() > deadline:
                raise TransientError(f"a statement of an older run is still running on {self}: {running[0]}")
            names = ", ".join(map(literal, running))
            self._session.command(f"KILL QUERY WHERE query_id IN ({names}) SYNC")

    def _older_statements(self) -> list[str]:
        found = self._session.rows(
            "SELECT query_id, Settings['log_comment'] FROM system.processes"
            " WHERE startsWith(Settings['log_comment'], {prefix:String})",
            {"prefix": f"{comment_prefix(self.database, self.table)} "},
        )
        return [query_id for query_id, comment in found if self._is_older(str(comment).rpartition(" ")[2])]

    def _is_older(self, owner: str) -> bool:
        epoch, _, rest = owner.partition("x")
        same_pipeline = rest.endswith(f"_{self.owner.pipeline}")
        if owner == str(self.owner) or (self._shared and not same_pipeline):
            return False
        return epoch.isdigit() and int(epoch) <= self.owner.epoch

    def create_generation(self, layout: Layout, load: str | None = None) -> Named:
        made = Named(self.table, "g", self.owner, load or new_load())
        self._session.command(_create(self.path(made), layout))
        return made

    def create_like(self, name: str, kind: Kind, load: str) -> Named:
        made = Named(self.table, kind, self.owner, load)
        self._session.command(f"CREATE TABLE IF NOT EXISTS {self.path(made)} AS {self.path(name)}")
        return made

    def add_columns(self, name: str, fields: Sequence[Field]) -> None:
        for one in fields:
            self._session.command(
                f"ALTER TABLE {self.path(name)} ADD COLUMN IF NOT EXISTS {quoted(one.name)} {one.full_kind}"
                f" AFTER {quoted(list(self.columns(name))[-1])}"
            )

    def discard_uncounted(self, name: object, accepted: Accepted) -> int:
        """Delete the rows of parts that the checkpoint does not count."""
        where = f"NOT ({counted(accepted)})"
        left = int(self._session.value(f"SELECT count() FROM {self.path(name)} WHERE {where}"))
        if left:
            self._session.command(f"ALTER TABLE {self.path(name)} DELETE WHERE {where}")
        return left

    def attach(self, source: Named, into: str) -> None:
        """Add all rows of one table to another, in one step. Repeating it is safe, because rows have versions."""
        try:
            self._session.command(f"ALTER TABLE {self.path(into)} ATTACH PARTITION ALL FROM {self.path(source)}")
        except Missing as exc:
            raise self._too_late(exc) from exc

    def snapshot(self, name: str, into: Named) -> None:
        """Add the current rows of a table to another; parts are linked, not copied."""
        self._session.command(f"ALTER TABLE {self.path(into)} ATTACH PARTITION ALL FROM {self.path(name)}")

    def drop_left_comparisons(self) -> None:
        """Drop comparison tables that are older than a day, which no running comparison is."""
        found = self._session.rows(
            "SELECT name FROM system.tables WHERE database = {db:String} AND startsWith(name, {prefix:String})"
            " AND metadata_modification_time < now() - INTERVAL 1 DAY",
            {"db": self.database, "prefix": f"{self.table}__r"},
        )
        for (name,) in found:
            if parse(self.table, name):
                self.drop(name)

    def merge_pieces(self, name: Named) -> None:
        self._session.command(f"OPTIMIZE TABLE {self.path(name)} FINAL")

    def drop(self, name: object) -> None:
        self._session.command(f"DROP TABLE IF EXISTS {self.path(name)}")

    def show(self, generation: str, load: str, key: Sequence[str], columns: Sequence[str], *, versioned: bool,
             still_held: Callable[[], object], again: bool = False) -> None:  # fmt: skip
        """Point the plain name at a generation, in one step. Repeating it after a lost reply is safe.

        Each attempt creates its own view and drops those of earlier attempts, so a delayed request finds nothing to
        exchange.
        """
        before = self.shown()
        if before and before.load == load and not again:
            return
        for left in self.objects("v"):
            if left.owner == self.owner:
                self.drop(left)
        view = Named(self.table, "v", self.owner, new_load())
        notes = {"vitrina": 1, "generation": generation, "load": load, "key": list(key), "versioned": versioned}
        try:
            self._session.command(
                f"CREATE VIEW {self.path(view)} DEFINER = CURRENT_USER SQL SECURITY DEFINER"
                f" AS SELECT {', '.join(map(quoted, columns))} FROM {self.path(generation)}"
                f"{' FINAL' if versioned else ''}"
                f" COMMENT {literal(json.dumps(notes))}"
            )
            still_held()
            failpoints.hit("clickhouse.viewed")
            if before is None:
                self._session.command(f"RENAME TABLE {self.path(view)} TO {self.path(self.table)}")
            else:
                self._session.command(f"EXCHANGE TABLES {self.path(self.table)} AND {self.path(view)}")
        except Missing as exc:
            raise self._too_late(exc) from exc
        except Exists as exc:
            raise TransientError(f"{self} was created by another process just now") from exc
        self.drop(view)

    def _too_late(self, exc: Missing) -> LeaseLost:
        return LeaseLost(f"{self} is not changed: another runner took the pipeline over ({exc.message})")

    def discard_unshown(self) -> list[str]:
        """Drop what this claim and earlier ones left that is not shown."""
        shown = self.shown()
        if shown is None:
            return []
        left = [one for one in self.objects("g", "s", "v") if one.owner.epoch <= self.owner.epoch]
        dropped = [str(one) for one in left if str(one) != shown.generation]
        for name in dropped:
            self.drop(name)
        return dropped

    def clean_tombstones(self, shown: Shown, before_epoch: int, at_least: int) -> int:
        """Remove permanently what earlier claims deleted long ago: the rows first, then their tombstones.

        In the other order a row would become visible again in between.
        """
        name, key = self.path(shown.generation), ", ".join(map(quoted, shown.key))
        horizon = before_epoch << _PART_BITS
        keys = (
            f"SELECT {key} FROM {name} GROUP BY {key}"
            f" HAVING argMax({DELETED}, {VERSION}) = 1 AND max({VERSION}) < {horizon}"
        )
        found = int(self._session.value(f"SELECT count() FROM {name} WHERE {DELETED} = 1 AND {VERSION} < {horizon}"))
        if found < at_least:
            return 0
        for deleted in (0, 1):
            self._session.command(f"ALTER TABLE {name} DELETE WHERE {DELETED} = {deleted} AND ({key}) IN ({keys})")
        return found


def comment_prefix(database: str, table: str) -> str:
    """Return the text that precedes the owner in the server's process list."""
    return f"vitrina {database}.{table}"


def counted(accepted: Accepted) -> str:
    ranges = [
        f"{VERSION} BETWEEN {version_of(epoch, first)} AND {version_of(epoch, last)}"
        for epoch, (first, last) in accepted
    ]
    return " OR ".join(ranges) or "0"


def _notes(comment: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(comment)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("vitrina") == 1 else None


def _create(path: str, layout: Layout) -> str:
    options = layout.options
    columns = [f"{quoted(one.name)} {one.full_kind}" for one in layout.fields]
    columns += [f"{VERSION} UInt64", f"{DELETED} UInt8"]
    versions = f"({VERSION}, {DELETED})" if options.is_versioned else ""
    # Only this attempt uses the name: if the table exists, a reply was lost.
    clauses = [f"CREATE TABLE IF NOT EXISTS {path} ({', '.join(columns)})", f"ENGINE = {options.engine}{versions}"]
    if options.partition:
        function, column = options.partition
        clauses.append(f"PARTITION BY {function}({quoted(column)})" if function else f"PARTITION BY {quoted(column)}")
    order = ", ".join(map(quoted, options.order_by or layout.key))
    clauses.append(f"ORDER BY ({order})")
    if options.expiry:
        column, number, unit = options.expiry
        clauses.append(f"TTL toDateTime({quoted(column)}) + INTERVAL {number} {unit}")
    settings: dict[str, int | str] = dict(options.settings)
    if "Replicated" not in options.engine:
        settings["non_replicated_deduplication_window"] = _REMEMBERED_INSERTS
    if set(options.order_by or ()) - set(layout.key) or (options.partition and options.partition[1] not in layout.key):
        settings["allow_nullable_key"] = 1
    told = ", ".join(
        f"{name} = {literal(value) if isinstance(value, str) else value}" for name, value in settings.items()
    )
    return " ".join([*clauses, f"SETTINGS {told}"] if told else clauses)
