"""How to copy a table: the key, the cursor and the mode that its catalog speaks for, and the reasons for each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.sql import Identifier

from vitrina.errors import ConfigError, NotFound
from vitrina.services import policy
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard.vocabulary import FUNCTION_OR_TYPE_KEYWORDS, RESERVED
from vitrina.store import tables
from vitrina.store.database import Connection
from vitrina.store.tables import Column, Table

# What people call the column that says when a row was last changed, most telling first.
CHANGED = re.compile(
    r"(?P<best>(updated|modified|changed|last_?updated|last_?modified|last_?changed)(_?(at|on|ts|time|date|timestamp))?)"
    r"|(?P<good>(date|dt|ts|time)_?(updated|modified|changed)|(update|modification|change)_?(time|date|ts|timestamp))"
    r"|(?P<fair>mtime|row_?changed|sys_?(updated|modified)\w*)",
    re.IGNORECASE,
)
TELLING = ("best", "good", "fair")
CLOCKS = ("timestamp with time zone", "timestamp without time zone")
# Types whose equal values are written alike: rows with one cursor are ordered by them.
ORDERED = ("smallint", "integer", "bigint", "numeric", "uuid", "text", "character varying", *CLOCKS)
LOOKBACK_SECONDS = 600
EVERY = {"incremental": "5m", "full": "1h"}


# Connection, schema, table.
Source = tuple[str, str, str]


@dataclass(frozen=True)
class Suggestion:
    """A pipeline that copies a table, and why it is made so."""

    definition: dict[str, Any]
    guarantee: str
    reasons: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """As `vitrina apply` takes it."""
        spec = {name: value for name, value in self.definition.items() if name != "name"}
        return {
            "apiVersion": "vitrina/v1",
            "kind": "Pipeline",
            "metadata": {"name": self.definition["name"]},
            "spec": spec,
        }


@dataclass(frozen=True)
class Wishes:
    """What the author has decided already; the rest is suggested."""

    name: str | None = None
    key: tuple[str, ...] = ()
    cursor: str | None = None
    mode: str | None = None
    schedule: str | None = None


def find_table(connection: Connection, schema: str, name: str) -> Table:
    found = tables.find(connection, schema, name)
    if found is None:
        schemas = tables.list_schemas(connection)
        if schema not in schemas:
            raise NotFound(f"there is no schema {schema!r}; there are: {', '.join(schemas) or 'none'}")
        there = [name for _, name in tables.list_names(connection, [schema])]
        raise NotFound(f"there is no table {schema}.{name}; {schema} has: {', '.join(there[:20]) or 'no tables'}")
    return found


def propose(session: Connection, settings: Settings, source: Source, target: str | None, wishes: Wishes) -> Suggestion:
    """The pipeline that copies the table, accepted by this installation's rules."""
    connection, schema, name = source
    table = find_table(session, schema, name)
    made = suggest(table, target or target_for(table, default_schema(settings)), wishes, connection)
    policy.check(policy.parse(made.definition), settings)
    return made


def default_schema(settings: Settings) -> str:
    """The first schema of marts that the operator has opened as a whole."""
    for pattern in settings.target_policy.patterns:
        schema, _, table = pattern.partition(".")
        if table == "*" and "*" not in schema:
            return schema
    raise ConfigError(f"say where to write with --to: allowed are {settings.allowed_targets}")


def suggest(table: Table, target: str, wishes: Wishes, connection: str = DEFAULT_CONNECTION) -> Suggestion:
    """A pipeline that fills `target` with a copy of the table."""
    key, reasons = _key(table, wishes.key)
    cursor = _cursor(table, wishes)
    mode = "incremental" if cursor else "full"
    definition: dict[str, Any] = {
        "name": wishes.name or name_for(target),
        "description": f"A copy of {table}.",
        **({"source_connection": connection} if connection != DEFAULT_CONNECTION else {}),
        "source_query": query_of(table),
        "target_table": target,
        "target_key": list(key),
        "mode": mode,
        "schedule_interval": wishes.schedule or EVERY[mode],
    }
    if cursor is None:
        return Suggestion(definition, "exact", (reasons, *_why_full(table, wishes)))
    definition["incremental_key"] = cursor.name
    identity = _identity(table, key)
    if identity:
        definition["incremental_id_key"] = identity
    options, guarantee, why = _care(table, cursor)
    definition["options"] = options
    return Suggestion(definition, guarantee, (reasons, *_why_this_cursor(table, cursor), *why))


def query_of(table: Table) -> str:
    """Every column by its name: one that is added later is a decision, not an accident."""
    columns = ", ".join(_written(column.name) for column in table.columns)
    return f"SELECT {columns} FROM {_written(table.schema)}.{_written(table.name)}"  # noqa: S608 - quoted where needed


def name_for(target: str) -> str:
    """A pipeline is called like what it fills."""
    return target.rpartition(".")[2].rpartition(":")[2]


def target_for(table: Table, schema: str) -> str:
    """Marts have lower-case names, whatever the table is called."""
    plain = re.sub(r"[^a-z0-9_]+", "_", table.name.lower()).strip("_")
    if not plain:
        raise ConfigError(f"{table} has no name that a mart may have: name the target with --to {schema}.NAME")
    return f"{schema}.{plain if plain[0].isalpha() else 't_' + plain}"[: len(schema) + 64]


def _written(name: str) -> str:
    is_plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in RESERVED | FUNCTION_OR_TYPE_KEYWORDS
    return name if is_plain else Identifier(name).as_string()


def _key(table: Table, wanted: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The key, and why that one."""
    if wanted:
        for name in wanted:
            _require_column(table, name, "--key")
        return tuple(wanted), f"key {', '.join(wanted)}: as you said"
    if table.primary_key:
        return table.primary_key, f"key {', '.join(table.primary_key)}: the primary key of {table}"
    if table.unique_keys:
        found = table.unique_keys[0]
        return found, f"key {', '.join(found)}: a unique index without NULL; {table} has no primary key"
    raise ConfigError(
        f"the {table.kind} {table} has neither a primary key nor a unique index on columns that are NOT NULL, so its"
        f" rows cannot be told apart: name the columns that do with --key ({', '.join(c.name for c in table.columns)})"
    )


def _cursor(table: Table, wishes: Wishes) -> Column | None:
    """The column that says when a row was last changed; None: read everything each time."""
    if wishes.cursor:
        return _require_column(table, wishes.cursor, "--cursor")
    if wishes.mode == "full":
        return None
    found = sorted(_candidates(table), key=lambda column: _rank(table, column))
    if not found and wishes.mode == "incremental":
        raise ConfigError(
            f"{table} has no column that looks like the time of a row's last change: name one with --cursor, or leave"
            " --mode incremental out"
        )
    return found[0] if found else None


def _candidates(table: Table) -> list[Column]:
    return [
        column
        for column in table.columns
        if column.type in CLOCKS and (CHANGED.fullmatch(column.name) or table.is_moved_by_trigger(column.name))
    ]


def _rank(table: Table, column: Column) -> tuple[bool, bool, int, bool]:
    """Best first: what a trigger moves cannot be forgotten, a zone cannot be misread, names tell the rest."""
    named = CHANGED.fullmatch(column.name)
    telling = next((place for place, name in enumerate(TELLING) if named and named[name]), len(TELLING))
    return not table.is_moved_by_trigger(column.name), column.type != CLOCKS[0], telling, not column.is_indexed


def _why_full(table: Table, wishes: Wishes) -> tuple[str, ...]:
    first = (
        "mode full: as you said"
        if wishes.mode == "full"
        else f"mode full: {table} has no timestamp that says when a row was last changed (such as updated_at)"
    )
    return (
        first,
        "each run reads everything, writes what differs and deletes what is gone: the mart equals its source after it",
    )


def _why_this_cursor(table: Table, cursor: Column) -> tuple[str, ...]:
    moved = (
        "a trigger sets it whenever a row is changed"
        if table.is_moved_by_trigger(cursor.name)
        else "its name says when a row was last changed; nothing in the database makes sure that a change sets it"
    )
    reasons = [f"mode incremental by {cursor.name}: {moved}"]
    if not cursor.is_indexed:
        reasons.append(
            f"no index starts with {cursor.name}, so each pass reads the whole table: CREATE INDEX CONCURRENTLY ON"
            f" {_written(table.schema)}.{_written(table.name)} ({_written(cursor.name)})"
        )
    return tuple(reasons)


def _care(table: Table, cursor: Column) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Options that go with the cursor, the promise that they make, and why."""
    options: dict[str, Any] = {"reconcile": {"interval": "1d", "level": "full"}}
    reasons = ["compared with its source once a day: a deleted row has no cursor (`vitrina reconcile --repair`)"]
    if not cursor.not_null:
        options["null_cursor"] = "read"
        reasons.append(f"{cursor.name} may be NULL: rows without it are read on every pass")
    if cursor.type not in CLOCKS:
        return options, "bounded-lag", tuple(reasons)
    if cursor.type == CLOCKS[0] and table.is_stamped_by_trigger(cursor.name):
        options["cursor_clock"] = "database"
        reasons.append(f"guarantee exact: triggers set {cursor.name} by the database's clock for every row")
        return options, "exact", tuple(reasons)
    options["lookback_seconds"] = LOOKBACK_SECONDS
    reasons.append(
        f"guarantee bounded-lag: {cursor.name} may be written by another clock than the database's, so each pass reads"
        f" {LOOKBACK_SECONDS // 60} minutes back"
        " (does only the database write it? options.cursor_clock: database makes it exact)"
    )
    return options, "bounded-lag", tuple(reasons)


def _identity(table: Table, key: Sequence[str]) -> str | None:
    """Orders rows whose cursors are equal; one column can."""
    if len(key) != 1:
        return None
    column = table.find(key[0])
    return column.name if column and column.type in ORDERED else None


def _require_column(table: Table, name: str, flag: str) -> Column:
    found = table.find(name)
    if found is None:
        there = ", ".join(column.name for column in table.columns)
        raise NotFound(f"{flag} {name}: {table} has no such column; it has {there}")
    return found
