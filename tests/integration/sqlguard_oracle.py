"""Asks the server itself what a query uses, and whether running it left any trace."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from tests.conftest import admin, url_of
from tests.corpus import queries
from vitrina.embedded.temporary import TemporaryServer
from vitrina.sqlguard import vocabulary

_ALLOWED_FUNCTIONS = sorted(vocabulary.FUNCTIONS)  # as it was before a test tampered with it


@dataclass(frozen=True)
class Seen:
    relations: set[tuple[str, str]]
    functions_not_allowed: set[str]
    types_not_allowed: set[str]


@contextmanager
def scratch_database(server: TemporaryServer, name: str) -> Iterator[str]:
    """A database with the corpus's tables; yields the administrator's URL."""
    identifier = sql.Identifier(name)
    admin(server, sql.SQL("CREATE DATABASE {}").format(identifier))
    url = url_of(server.urls.admin, name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(queries.schema().encode())
    yield url
    admin(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


def seen_by_server(session: psycopg.Connection, text: str) -> Seen:
    """Relations and functions of the parse tree that the server keeps for a view of the query."""
    session.execute(f"CREATE TEMP VIEW guard_probe AS SELECT 1 AS one FROM (\n{text}\n) AS q".encode())
    tree = _value(session, "SELECT ev_action FROM pg_rewrite WHERE ev_class = 'pg_temp.guard_probe'::regclass")
    session.execute("DROP VIEW pg_temp.guard_probe")
    relation_ids = [int(found) for found in re.findall(r":relid (\d+)", tree) if found != "0"]
    function_ids = [int(found) for found in re.findall(r":(?:funcid|aggfnoid|winfnoid|tsmhandler) (\d+)", tree)]
    relations = session.execute(
        """SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
           WHERE c.oid = ANY (%s::oid[]) AND c.relname <> 'guard_probe'""",
        [relation_ids],
    ).fetchall()
    # What syntax calls by itself: casts, EXTRACT, OVERLAPS, and immutable functions as behind LIKE ... ESCAPE.
    functions = session.execute(
        """SELECT p.oid::regprocedure::text FROM pg_proc AS p
           WHERE p.oid = ANY (%s::oid[])
             AND NOT (p.pronamespace = 'pg_catalog'::regnamespace
                      AND (p.proname = ANY (%s::text[])
                           OR p.provolatile = 'i'
                           OR p.oid IN (SELECT castfunc FROM pg_cast)
                           OR p.proname IN ('bernoulli', 'extract', 'overlaps', 'system')))""",
        [function_ids, _ALLOWED_FUNCTIONS],
    ).fetchall()
    # Names of text search configurations and dictionaries become constants of their types.
    types = session.execute(
        """SELECT t.typname FROM pg_type AS t
           WHERE t.oid = ANY (%s::oid[]) AND t.typnamespace = 'pg_catalog'::regnamespace
             AND (t.typname ~ '^_?reg' OR t.typname IN ('aclitem', 'cstring', 'refcursor'))
             -- pg_typeof is accepted where its result is cast to text at once.
             AND t.typname NOT IN ('regconfig', 'regdictionary', 'regtype')""",
        [[int(found) for found in re.findall(r":(?:consttype|resulttype|funcresulttype|vartype) (\d+)", tree)]],
    ).fetchall()
    return Seen(
        {(str(schema), str(name)) for schema, name in relations},
        {str(name) for (name,) in functions},
        {str(name) for (name,) in types},
    )


def fingerprint(session: psycopg.Connection) -> str:
    """Every row, sequence, object, setting and lock that a query could have changed."""
    return _value(session, _FINGERPRINT)


def _value(session: psycopg.Connection, text: str) -> str:
    row = session.execute(text.encode()).fetchone()
    if row is None:
        raise AssertionError(f"no row from: {text}")
    return str(row[0])


_FINGERPRINT = """
SELECT md5(concat_ws('|',
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM content.film_work AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM content.genre AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM content.person AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t) FROM content.genre_film_work AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t) FROM content.person_film_work AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM ugc.ratings AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t) FROM ugc.views AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM etl.etl_api_tokens AS t),
    (SELECT count(*) FROM etl.etl_runs), (SELECT count(*) FROM public.secrets),
    (SELECT last_value || is_called::text FROM content.numbers),
    (SELECT string_agg(oid::text || relname || reltype, ',' ORDER BY oid) FROM pg_class WHERE relkind <> 't'),
    (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_largeobject_metadata),
    (SELECT string_agg(name || setting, ',' ORDER BY name) FROM pg_settings WHERE name <> 'application_name'),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM pg_replication_slots),
    (SELECT count(*) FROM pg_listening_channels()), current_user, session_user,
    pg_current_xact_id_if_assigned()
))
"""
