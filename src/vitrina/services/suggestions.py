"""Suggest how to copy a table: key, cursor and mode by its catalog, with the reason for each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.sql import Identifier

from vitrina.errors import ConfigError, NotFound
from vitrina.sentences import say
from vitrina.services import policy
from vitrina.settings import DEFAULT_CONNECTION, Settings
from vitrina.sqlguard.vocabulary import FUNCTION_OR_TYPE_KEYWORDS, RESERVED
from vitrina.store import tables
from vitrina.store.database import Connection
from vitrina.store.tables import Column, Table

# Usual names of the column with the time of a row's last change, most specific first.
CHANGED = re.compile(
    r"(?P<best>(updated|modified|changed|last_?updated|last_?modified|last_?changed)(_?(at|on|ts|time|date|timestamp))?)"
    r"|(?P<good>(date|dt|ts|time)_?(updated|modified|changed)|(update|modification|change)_?(time|date|ts|timestamp))"
    r"|(?P<fair>mtime|row_?changed|sys_?(updated|modified)\w*)",
    re.IGNORECASE,
)
TELLING = ("best", "good", "fair")
CLOCKS = ("timestamp with time zone", "timestamp without time zone")
# Types whose equal values have equal texts. They order rows with equal cursor values.
ORDERED = ("smallint", "integer", "bigint", "numeric", "uuid", "text", "character varying", *CLOCKS)
LOOKBACK_SECONDS = 600
# The schedule of a live pipeline requests full loads, so a suggestion has none.
EVERY = {"incremental": "5m", "full": "1h", "live": None}


# Connection, schema, table.
Source = tuple[str, str, str]


@dataclass(frozen=True)
class Suggestion:
    """Represent a pipeline that copies a table, with the reasons for its settings."""

    definition: dict[str, Any]
    guarantee: str
    reasons: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """Return the document that `vitrina apply` takes."""
        spec = {name: value for name, value in self.definition.items() if name != "name"}
        return {
            "apiVersion": "vitrina/v1",
            "kind": "Pipeline",
            "metadata": {"name": self.definition["name"]},
            "spec": spec,
        }


@dataclass(frozen=True)
class Preferences:
    """Hold what the author has decided; the rest is suggested."""

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
            raise NotFound(say("suggestion.no_schema", schema=schema, schemas=", ".join(schemas) or "none"))
        there = [name for _, name in tables.list_names(connection, [schema])]
        raise NotFound(say("suggestion.no_table", schema=schema, name=name, there=", ".join(there[:20]) or "no tables"))
    return found


def propose(
    session: Connection, settings: Settings, source: Source, target: str | None, preferences: Preferences
) -> Suggestion:
    """Suggest the pipeline that copies the table, and check it against this installation's rules."""
    connection, schema, name = source
    table = find_table(session, schema, name)
    made = suggest(table, target or target_for(table, default_schema(settings)), preferences, connection)
    policy.check(policy.parse(made.definition), settings)
    return made


def default_schema(settings: Settings) -> str:
    """Return the first schema of marts that the operator has allowed as a whole."""
    for pattern in settings.target_policy.patterns:
        schema, _, table = pattern.partition(".")
        if table == "*" and "*" not in schema:
            return schema
    raise ConfigError(f"name the target with --to; allowed: {settings.allowed_targets}")


def suggest(table: Table, target: str, preferences: Preferences, connection: str = DEFAULT_CONNECTION) -> Suggestion:
    """Build a pipeline that fills `target` with a copy of the table."""
    key, reasons = _key(table, preferences.key)
    cursor = _cursor(table, preferences)
    mode = "incremental" if cursor else "live" if preferences.mode == "live" else "full"
    definition: dict[str, Any] = {
        "name": preferences.name or name_for(target),
        "description": f"A copy of {table}.",
        **({"source_connection": connection} if connection != DEFAULT_CONNECTION else {}),
        "source_query": query_of(table),
        "target_table": target,
        "target_key": list(key),
        "mode": mode,
        "schedule_interval": preferences.schedule or EVERY[mode],
    }
    if mode == "live":
        return Suggestion(definition, "exact", (reasons, say("suggestion.live")))
    if cursor is None:
        return Suggestion(definition, "exact", (reasons, *_why_full(table, preferences)))
    definition["incremental_key"] = cursor.name
    identity = _identity(table, key)
    if identity:
        definition["incremental_id_key"] = identity
    options, guarantee, why = _care(table, cursor)
    definition["options"] = options
    return Suggestion(definition, guarantee, (reasons, *_why_this_cursor(table, cursor), *why))


def query_of(table: Table) -> str:
    """Select every column by name, so that a column added later is not included by accident."""
    columns = ", ".join(_written(column.name) for column in table.columns)
    return f"SELECT {columns} FROM {_written(table.schema)}.{_written(table.name)}"  # noqa: S608 - quoted where needed


def name_for(target: str) -> str:
    """Name a pipeline after what it fills."""
    return target.rpartition(".")[2].rpartition(":")[2]


def target_for(table: Table, schema: str) -> str:
    """Name the mart in lower case, whatever the table is called."""
    plain = re.sub(r"[^a-z0-9_]+", "_", table.name.lower()).strip("_")
    if not plain:
        raise ConfigError(f"{table} has no name that a mart may have: name the target with --to {schema}.NAME")
    return f"{schema}.{plain if plain[0].isalpha() else 't_' + plain}"[: len(schema) + 64]


def _written(name: str) -> str:
    is_plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in RESERVED | FUNCTION_OR_TYPE_KEYWORDS
    return name if is_plain else Identifier(name).as_string()


def _key(table: Table, wanted: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Choose the key, with the reason."""
    if wanted:
        for name in wanted:
            _require_column(table, name, "--key")
        return tuple(wanted), say("suggestion.key_as_said", columns=", ".join(wanted))
    if table.primary_key:
        return table.primary_key, say("suggestion.primary_key", columns=", ".join(table.primary_key), table=table)
    if table.unique_keys:
        found = table.unique_keys[0]
        return found, say("suggestion.unique_index", columns=", ".join(found), table=table)
    raise ConfigError(
        f"the {table.kind} {table} has neither a primary key nor a unique index on columns that are NOT NULL, so its"
        f" rows cannot be distinguished: name key columns with --key ({', '.join(c.name for c in table.columns)})"
    )


def _cursor(table: Table, preferences: Preferences) -> Column | None:
    """Choose the column with the time of a row's last change. Return None when everything has to be read each time."""
    if preferences.cursor:
        return _require_column(table, preferences.cursor, "--cursor")
    if preferences.mode in ("full", "live"):
        return None
    found = sorted(_candidates(table), key=lambda column: _rank(table, column))
    if not found and preferences.mode == "incremental":
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
    """Order candidates, best first: a trigger sets the column, it has a time zone, then by name and index."""
    named = CHANGED.fullmatch(column.name)
    telling = next((place for place, name in enumerate(TELLING) if named and named[name]), len(TELLING))
    return not table.is_moved_by_trigger(column.name), column.type != CLOCKS[0], telling, not column.is_indexed


def _why_full(table: Table, preferences: Preferences) -> tuple[str, ...]:
    first = (
        say("suggestion.full_as_said") if preferences.mode == "full" else say("suggestion.full_no_cursor", table=table)
    )
    return (
        first,
        say("suggestion.full_equals"),
    )


def _why_this_cursor(table: Table, cursor: Column) -> tuple[str, ...]:
    moved = say("suggestion.trigger_moves") if table.is_moved_by_trigger(cursor.name) else say("suggestion.name_tells")
    reasons = [say("suggestion.incremental", column=cursor.name, moved=moved)]
    if not cursor.is_indexed:
        reasons.append(
            say(
                "suggestion.no_index",
                column=cursor.name,
                schema=_written(table.schema),
                table=_written(table.name),
                indexed=_written(cursor.name),
            )
        )
    return tuple(reasons)


def _care(table: Table, cursor: Column) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Choose the options that go with the cursor, and return them with the resulting guarantee and the reasons."""
    options: dict[str, Any] = {"reconcile": {"interval": "1d", "level": "full"}}
    reasons = [say("suggestion.daily")]
    if not cursor.not_null:
        options["null_cursor"] = "read"
        reasons.append(say("suggestion.null_cursor", column=cursor.name))
    if cursor.type not in CLOCKS:
        return options, "bounded-lag", tuple(reasons)
    if cursor.type == CLOCKS[0] and table.is_stamped_by_trigger(cursor.name):
        options["cursor_clock"] = "database"
        reasons.append(say("suggestion.exact", column=cursor.name))
        return options, "exact", tuple(reasons)
    options["lookback_seconds"] = LOOKBACK_SECONDS
    reasons.append(say("suggestion.bounded_lag", column=cursor.name, minutes=LOOKBACK_SECONDS // 60))
    return options, "bounded-lag", tuple(reasons)


def _identity(table: Table, key: Sequence[str]) -> str | None:
    """Choose the column that orders rows with equal cursors; only a key of one column can."""
    if len(key) != 1:
        return None
    column = table.find(key[0])
    return column.name if column and column.type in ORDERED else None


def _require_column(table: Table, name: str, flag: str) -> Column:
    found = table.find(name)
    if found is None:
        there = ", ".join(column.name for column in table.columns)
        raise NotFound(say("suggestion.no_column", flag=flag, name=name, table=table, there=there))
    return found
