"""Maintain the publication of a feed: which tables it contains, and why others cannot be added.

A table without a replica identity is never added: the application's own UPDATE and DELETE would fail. Partitions are
added one by one, never by their root, so that a later partition is checked first. There are no column lists or filters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from vitrina.errors import ConfigError
from vitrina.ports.live import FeedNames, Published
from vitrina.store import database
from vitrina.store.database import Connection

# If a lock is not available soon, the attempt is repeated later, so that the application's sessions do not queue for
# long.
_LOCK_TIMEOUT = "2000"

_OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"


def ensure(session: Connection, names: FeedNames) -> None:
    """Create the publication, empty, unless it exists; refuse one that was changed by hand."""
    found = session.execute(
        """
        SELECT p.puballtables OR p.pubviaroot OR NOT (p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate)
               OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = p.oid)
               OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
                          WHERE r.prpubid = p.oid AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)) AS is_other
        FROM pg_catalog.pg_publication p WHERE p.pubname = %s
        """,
        [names.publication],
    ).fetchone()
    if found and found["is_other"]:
        raise ConfigError(
            f"the publication {names.publication} was changed (schemas, all tables, column lists, filters or options):"
            f" DROP PUBLICATION {names.publication}; it is made again as it has to be"
        )
    if found is None:
        _make(session, names)


def _make(session: Connection, names: FeedNames) -> None:
    statement = sql.SQL("CREATE PUBLICATION {} WITH ({})").format(sql.Identifier(names.publication), sql.SQL(_OPTIONS))
    try:
        session.execute(statement)
    except psycopg.errors.InsufficientPrivilege as exc:
        login = sql.Identifier(session.info.user).as_string(session)
        place = sql.Identifier(session.info.dbname).as_string(session)
        raise ConfigError(
            f"the login {session.info.user} may not make a publication: GRANT CREATE ON DATABASE {place} TO {login}"
        ) from exc


def publish(session: Connection, names: FeedNames, wanted: Mapping[str, frozenset[str]]) -> Published:
    """Make the publication contain exactly these tables, as far as they may be published."""
    found = _find(session, sorted(wanted))
    problems = {
        name: problem for name, rows in found.items() if (problem := _problem(session, name, rows, wanted[name]))
    }
    usable = {row["oid"]: row for name, rows in found.items() if name not in problems for row in rows}
    members = _members(session, names)
    surplus = members.keys() - usable.keys()
    for oid in surplus:
        _drop(session, names, members[oid])
    missing = usable.keys() - members.keys()
    refused = {oid: reason for oid in sorted(missing) if (reason := _add(session, names, usable[oid]))}
    for name, rows in found.items():
        reasons = [refused[row["oid"]] for row in rows if row["oid"] in refused]
        if reasons:
            problems[name] = "; ".join(dict.fromkeys(reasons))
    tables = {name: frozenset(row["oid"] for row in rows) for name, rows in found.items() if name not in problems}
    added = frozenset(
        name for name, rows in found.items() if any(row["oid"] in missing - refused.keys() for row in rows)
    )
    return Published(tables, problems, added, changed=bool(added or surplus))


def _find(session: Connection, relations: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Find each table, or its partitions and the tables that inherit from it, with their replica identities."""
    rows = session.execute(
        """
        WITH RECURSIVE found AS (
            SELECT w.relation, c.oid
            FROM unnest(%s::text[], %s::text[], %s::text[]) AS w (relation, schema, name)
            JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
            JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
            UNION
            SELECT f.relation, i.inhrelid FROM pg_catalog.pg_inherits i JOIN found f ON f.oid = i.inhparent
        )
        SELECT f.relation, c.oid, n.nspname AS schema, c.relname AS name, c.relkind AS kind,
               c.relpersistence AS persistence,
               ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                     WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped) AS generated,
               CASE c.relreplident
                   WHEN 'f' THEN true
                   WHEN 'd' THEN EXISTS (SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = c.oid
                                         AND x.indisprimary AND x.indisvalid AND x.indimmediate)
                   WHEN 'i' THEN EXISTS (SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = c.oid
                                         AND x.indisreplident AND x.indisvalid)
                   ELSE false END AS has_identity
        FROM found f JOIN pg_catalog.pg_class c USING (oid)
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind <> 'p' ORDER BY n.nspname, c.relname
        """,
        [list(relations), *map(list, zip(*(_parts(name) for name in relations), strict=True))]
        if relations
        else [[], [], []],
    ).fetchall()
    return {name: [row for row in rows if row["relation"] == name] for name in relations}


def _parts(relation: str) -> tuple[str, str]:
    schema, _, name = relation.partition(".")
    return schema, name


_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


def _problem(
    session: Connection, relation: str, rows: Sequence[Mapping[str, Any]], columns: frozenset[str]
) -> str | None:
    """Return why a table cannot be followed, with the statements that make it possible."""
    if not rows and not _exists(session, relation):
        return f"there is no table {relation}"
    for row in rows:
        shown = f"{row['schema']}.{row['name']}"
        if row["kind"] != "r":
            return f"{shown} is {_KINDS.get(row['kind'], 'not a table')}, whose changes are not in the log"
        if row["persistence"] != "p":
            return f"{shown} is unlogged: its changes are not in the log"
        if computed := sorted(columns & {*row["generated"]}):
            return f"{shown}.{computed[0]} is a generated column, whose values are not in the log"
    lacking = [row for row in rows if not row["has_identity"]]
    return _identity_wanted(session, lacking) if lacking else None


def _identity_wanted(session: Connection, rows: Iterable[Mapping[str, Any]]) -> str:
    names = [(f"{row['schema']}.{row['name']}", _quoted(session, row)) for row in rows]
    statements = "; ".join(f"ALTER TABLE {quoted} REPLICA IDENTITY FULL" for _, quoted in names)
    shown = ", ".join(name for name, _ in names)
    return (
        f"{shown} has no replica identity, so its application could not update it while it is followed: give it a"
        f" primary key, or run: {statements}"
    )


def _exists(session: Connection, relation: str) -> bool:
    """Return whether a table exists, including a partitioned one without partitions."""
    return bool(
        session.execute(
            """
            SELECT 1 AS found FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relname = %s
            """,
            _parts(relation),
        ).fetchone()
    )


def _members(session: Connection, names: FeedNames) -> dict[int, dict[str, Any]]:
    rows = session.execute(
        """
        SELECT c.oid, n.nspname AS schema, c.relname AS name
        FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
        JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE p.pubname = %s
        """,
        [names.publication],
    ).fetchall()
    return {row["oid"]: row for row in rows}


def _add(session: Connection, names: FeedNames, row: Mapping[str, Any]) -> str | None:
    """Add a table, unless it has lost its replica identity; return why it was not added."""
    publication, table = sql.Identifier(names.publication), sql.Identifier(row["schema"], row["name"])
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(publication, table)
    try:
        with session.transaction() as transaction:
            session.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT}")
            session.execute(statement)
            # Adding locks the table against changes of its identity, so this check is the decisive one.
            name = f"{row['schema']}.{row['name']}"
            if any(each["oid"] == row["oid"] and each["has_identity"] for each in _find(session, [name])[name]):
                return None
            raise psycopg.Rollback(transaction)
    except psycopg.errors.InsufficientPrivilege:
        return _right_wanted(session, statement.as_string(session), table.as_string(session))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable) as exc:
        return f"{row['schema']}.{row['name']} is not in the publication yet: {database.sql_message(exc)}"
    return _identity_wanted(session, [row])


def _right_wanted(session: Connection, statement: str, table: str) -> str:
    login = sql.Identifier(session.info.user).as_string(session)
    return (
        f"the login {session.info.user} does not own {table}, and only an owner may publish a table. A superuser runs:"
        f" {statement}; or GRANT the role that owns it TO {login}"
    )


def _drop(session: Connection, names: FeedNames, row: Mapping[str, Any]) -> None:
    publication, table = sql.Identifier(names.publication), sql.Identifier(row["schema"], row["name"])
    try:
        with session.transaction():
            session.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT}")
            session.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(publication, table))
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject):
        return  # it was dropped or renamed in the meantime: the next check reports it


def _quoted(session: Connection, row: Mapping[str, Any]) -> str:
    return sql.Identifier(row["schema"], row["name"]).as_string(session)
