"""Each of the four layers around users' SQL, with the three others off, against the corpus of hostile queries."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pytest
from psycopg import sql
from psycopg.sql import SQL

from tests.conftest import admin, settings_for, url_of
from tests.corpus import queries
from tests.corpus.queries import Query as Hostile
from vitrina import sqlguard
from vitrina.connectors.postgres import plan_check
from vitrina.connectors.postgres.pushdown import Paging, PushdownSource
from vitrina.connectors.postgres.source import Bounds, Query, SqlReader
from vitrina.connectors.postgres.stage import Stage, StageColumn, Turns
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import InvalidQuery, RunError, SourceQueryFailed
from vitrina.settings import Settings
from vitrina.sqlguard import CheckedQuery, SqlPolicy
from vitrina.store import database
from vitrina.targets import PostgresTarget

CANARY = "canary-7f3a"
DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"


@dataclass(frozen=True)
class Kind:
    """A row of the table in docs/security.md: attacks of one kind, told by how their titles in the corpus begin."""

    name: str
    titles: str
    must_be_stopped_by: str = "1234"

    def has(self, hostile: Hostile) -> bool:
        return re.match(self.titles, hostile.title) is not None


# The first that fits.
KINDS = (
    Kind("more than one statement", r"second statement|statement ;|statement \)|syntax at \)"),
    Kind("statements that change, lock or configure", r"statement |SELECT INTO|FOR (?!READ)|empty query"),
    Kind("tables of the metastore, other schemas, catalogs", r"table "),
    Kind(
        "files, programs, replication, signals",
        r"function (lo_import|lo_export|binary_upgrade|pg_(read|ls|stat_file|hba|current_logfile|terminate|cancel"
        r"|reload|rotate|promote|switch|create|drop|export|logical|stat_reset))",
    ),
    Kind(
        "owners' functions, text that runs as SQL, other databases",
        r"function (\w+_to_xml|ts_stat|ts_rewrite|dblink|public|run_as_owner|content\.|crosstab|pg_temp)",
        "23",
    ),
    Kind(
        "large objects, sequences, settings, locks, waiting",
        r"function (pg_catalog\.)?(lo_|loread|lowrite|nextval|setval|currval|lastval|set_config|setseed|pg_advisory"
        r"|pg_try_advisory|pg_sleep|pg_notify|txid|pg_current_xact|brin_)",
        "23",
    ),
    Kind("names looked up, facts about the server", r"function|type |column |collation ", "3"),
    Kind("texts that two readers could take differently", r"", "3"),
)


def kind_of(hostile: Hostile) -> Kind:
    return next(kind for kind in KINDS if kind.has(hostile))


@dataclass
class Place:
    """A migrated database with sources, secrets and careless functions."""

    settings: Settings
    admin: psycopg.Connection
    stage: Stage
    seen: str = ""

    @property
    def reader_url(self) -> str:
        return database.reader_url(self.settings, None)

    def is_as_seen(self) -> bool:
        """Whether everything that outlives a session is as it was when this was asked last."""
        before, self.seen = self.seen, fingerprint(self)
        return self.seen == before


@pytest.fixture(scope="module")
def place(server: TemporaryServer, template: str) -> Iterator[Place]:
    name = f"layers_{uuid4().hex[:8]}"
    admin(server, SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    settings = settings_for(server, name)
    stage = Stage("p_layers", (StageColumn("row", "text", "text"),), ())
    with psycopg.connect(url_of(server.urls.admin, name), autocommit=True) as session:
        session.execute(_sources().encode())
        with database.connect(settings.require_database_url(), "vitrina:test") as app:
            app.execute(stage.creation(fillable_by="vitrina_reader"))
        yield Place(settings, session, stage)
    admin(server, SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _sources() -> str:
    """The corpus's tables in a real metastore's database; functions as careless owners write them."""
    before, _ = queries.schema().split("-- What no query of an author may reach.")
    return (
        re.sub(r"CREATE SCHEMA \w+;\n", "", before)
        + f"""
        INSERT INTO etl.etl_api_tokens (name, role, token_hash) VALUES ('{CANARY}', 'admin', '{CANARY}');
        CREATE TABLE public.secrets (id int, secret text);
        INSERT INTO public.secrets VALUES (1, '{CANARY}');
        CREATE FUNCTION public.run_as_owner(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
            AS $$ BEGIN EXECUTE statement; END $$;
        CREATE TABLE ugc.calls (at timestamptz);
        -- Leaves a trace also when there is nothing left to delete.
        CREATE FUNCTION content.delete_everything() RETURNS int LANGUAGE sql SECURITY DEFINER
            AS $$ INSERT INTO ugc.calls VALUES (now()); DELETE FROM ugc.ratings; SELECT 1 $$;
        CREATE VIEW content.leak AS SELECT token_hash FROM etl.etl_api_tokens;
        CREATE VIEW content.secrets AS SELECT secret FROM public.secrets;
        SELECT lo_from_bytea(424242, 'kept');
        GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO vitrina_reader;
        """
    )


FINGERPRINT = """
SELECT md5(concat_ws('|',
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM content.film_work AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM content.genre AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM content.person AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t) FROM content.genre_film_work AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t) FROM content.person_film_work AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM ugc.ratings AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t) FROM ugc.views AS t),
    (SELECT count(*) FROM ugc.calls), (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM public.secrets AS t),
    (SELECT string_agg(t::text, ',' ORDER BY t.id) FROM etl.etl_api_tokens AS t),
    (SELECT count(*) FROM etl.etl_runs), (SELECT count(*) FROM etl.etl_pipelines),
    (SELECT last_value || is_called::text FROM content.numbers),
    (SELECT string_agg(concat(c.oid, relname, reltype, relacl::text), ',' ORDER BY c.oid) FROM pg_class AS c
     WHERE relkind <> 't' AND relnamespace::regnamespace::text !~ '^(pg_temp|pg_toast_temp)'),
    (SELECT string_agg(concat(oid, proacl::text), ',' ORDER BY oid) FROM pg_proc),
    (SELECT string_agg(concat(oid, nspacl::text), ',' ORDER BY oid) FROM pg_namespace
     WHERE nspname !~ '^pg_(temp|toast)'),
    (SELECT string_agg(concat(oid, lomacl::text, encode(lo_get(oid), 'hex')), ',' ORDER BY oid)
     FROM pg_largeobject_metadata),
    (SELECT string_agg(r::text, ',' ORDER BY oid) FROM pg_authid AS r),
    (SELECT string_agg(s::text, ',' ORDER BY s) FROM pg_db_role_setting AS s),
    (SELECT count(*) FROM pg_replication_slots),
    (SELECT string_agg(name || setting, ',' ORDER BY name) FROM pg_settings WHERE name <> 'application_name')
))
"""


def fingerprint(place: Place) -> str:
    """Rows, objects, rights, roles, settings, sequences, large objects."""
    row = place.admin.execute(FINGERPRINT).fetchone()
    assert row is not None
    return str(row[0])


def believed(text: str, policy: SqlPolicy | None = None) -> CheckedQuery:
    """The guard switched off: whatever the author wrote counts as one harmless SELECT."""
    return CheckedQuery(text, (), frozenset(), frozenset(), frozenset(), False, 0, ())


# --- the layers, each by itself ------------------------------------------------------------------------------------


def stopped_by_roles(place: Place, hostile: Hostile) -> bool:
    """Layer 1 alone: the reader's login, a session that may write, the protocol that takes many statements."""
    said = ""
    with psycopg.connect(place.reader_url, autocommit=True, options=f"{_LOOSE} {_patience(hostile, 200)}") as session:
        with suppress(psycopg.Error, UnicodeEncodeError):
            cursor = session.execute(hostile.sql.encode())
            said = str(cursor.fetchall()) if cursor.description else ""
        with suppress(psycopg.Error):  # a COMMIT of the query's own is a COMMIT
            session.execute("COMMIT")
    return place.is_as_seen() and CANARY not in said


_LOOSE = "-c default_transaction_read_only=off -c search_path="


def _patience(hostile: Hostile, milliseconds: int) -> str:
    """Only those that wait run into it: what does harm counts as harm, however busy the machine is."""
    return f"-c statement_timeout={milliseconds if 'sleep' in hostile.sql else 5_000}"


def stopped_by_session(place: Place, hostile: Hostile) -> bool:
    """Layer 2 alone: the role may do everything but log in as somebody else; nothing judges, nothing explains."""
    judged = believed(hostile.sql)
    with _reader(place, hostile) as reader:
        for route in (_look, _stream, _fill):
            with suppress(RunError, UnicodeEncodeError):
                route(place, reader, judged)
    return place.is_as_seen()


def _look(place: Place, reader: SqlReader, judged: CheckedQuery) -> None:
    """What a run asks before it reads: the result's shape, the plan, a count."""
    with suppress(RunError):
        reader.describe(judged)
    head, source = Query(judged).wrapped(Bounds())
    reader.value(SQL("{} SELECT count(*) FROM {} AS q").format(head, source))


def _stream(place: Place, reader: SqlReader, judged: CheckedQuery) -> None:
    """Alone and wrapped: the driver must not be talked into a second statement either."""
    statements = [Query(judged).select([SQL("q::text AS row")], Bounds())]
    if ";" in judged.text:
        statements.append(SQL("{}").format(SQL(judged.text)))
    for statement in statements:
        with suppress(RunError), reader.stream(statement) as batches:
            for _ in batches:
                pass


def _fill(place: Place, reader: SqlReader, judged: CheckedQuery) -> None:
    """As a run does: beside the stage when the plan is known to compute only, else read-only first."""
    query = Query(judged)
    plan = reader.explain(query.select([SQL("q.*")], Bounds())).plan
    source = PushdownSource(
        reader,
        lambda: reader.connection,
        _AsText(judged),
        bounds=Bounds(),
        turns=Turns(place.stage),
        paging=Paging(),
        epoch=1,
        target=PostgresTarget("analytics", "layers"),
        isolate=bool(plan_check.functions_of_unknown_effect(plan)),
    )
    for _ in source.parts(1, None):
        pass


class _AsText(Query):
    """The stage has one column, so that one stage holds the rows of any query."""

    def select(self, outputs, bounds, **order):  # type: ignore[no-untyped-def]
        return super().select([SQL("q::text AS row")], bounds, **order)


@contextmanager
def _reader(place: Place, hostile: Hostile) -> Iterator[SqlReader]:
    timeout = "50" if "sleep" in hostile.sql else "2000"
    limits = database.READ_ONLY | {"statement_timeout": timeout, "lock_timeout": timeout}
    with database.connect(place.reader_url, "vitrina:test", settings=limits) as connection:
        yield SqlReader(connection, place.reader_url, "vitrina:test")


def stopped_by_guard(place: Place, hostile: Hostile) -> bool:
    """Layer 3 alone: the text, and nothing but the text."""
    try:
        sqlguard.check(hostile.sql, SqlPolicy(place.settings.source_schemas))
    except InvalidQuery as exc:
        return bool(exc.message) and exc.line >= 1
    return False


def stopped_by_plan(place: Place, hostile: Hostile) -> bool:
    """Layer 4 alone: a superuser's session that may write; the plan decides, before anything has run."""
    url = place.settings.admin_url
    assert url is not None
    refused = False
    with database.connect(url.get_secret_value(), "vitrina:test") as connection:
        reader = SqlReader(connection, url.get_secret_value(), "vitrina:test")
        try:
            plan_check.admit(reader, Query(believed(hostile.sql)), place.settings, "it")
        except (SourceQueryFailed, UnicodeEncodeError):
            refused = True
    return place.is_as_seen() and refused


LAYERS: tuple[Callable[[Place, Hostile], bool], ...] = (
    stopped_by_roles,
    stopped_by_session,
    stopped_by_guard,
    stopped_by_plan,
)


@pytest.fixture
def quick_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each statement still has a session of its own; only the driver's table of types, 100 ms a time, is read once."""
    with ExitStack() as opened:

        @cache
        def first(url: str) -> adbc.Connection:
            return opened.enter_context(connect(url, autocommit=True))

        def another(url: str, *, autocommit: bool) -> adbc.Connection:
            kept = first(url)._db
            return adbc.Connection(kept, adbc_driver_manager.AdbcConnection(kept._db), autocommit=autocommit)

        connect = adbc.connect
        monkeypatch.setattr(adbc, "connect", another)
        yield


@pytest.fixture
def almighty_reader(place: Place) -> Iterator[None]:
    """Layer 1 off: the reader may write, execute and use whatever there is."""
    schemas = "content, ugc, public, etl, etl_stage, analytics"
    rights = ("TABLES", "SEQUENCES", "FUNCTIONS")
    place.admin.execute(f"GRANT ALL ON SCHEMA {schemas} TO vitrina_reader".encode())
    for kind in rights:
        place.admin.execute(f"GRANT ALL ON ALL {kind} IN SCHEMA {schemas} TO vitrina_reader".encode())
    place.admin.execute("GRANT UPDATE ON LARGE OBJECT 424242 TO vitrina_reader")
    yield
    for kind in rights:
        place.admin.execute(f"REVOKE ALL ON ALL {kind} IN SCHEMA {schemas} FROM vitrina_reader".encode())
    place.admin.execute(f"REVOKE ALL ON SCHEMA {schemas} FROM vitrina_reader".encode())
    place.admin.execute("REVOKE ALL ON LARGE OBJECT 424242 FROM vitrina_reader")
    place.admin.execute("GRANT USAGE ON SCHEMA content, ugc, etl_stage TO vitrina_reader")
    place.admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content, ugc TO vitrina_reader")
    place.admin.execute("GRANT INSERT ON etl_stage.p_layers TO vitrina_reader")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_layer_alone(place: Place, request: pytest.FixtureRequest, quick_sessions: None, number: int) -> None:
    """Stops what it must, and the table in the documentation says how much of everything it stops."""
    if number == 2:
        request.getfixturevalue("almighty_reader")
    place.seen = fingerprint(place)
    missed = [hostile for hostile in queries.hostile() if not LAYERS[number - 1](place, hostile)]

    assert [hostile for hostile in missed if str(number) in kind_of(hostile).must_be_stopped_by] == known_gaps(
        place, number
    )
    if place.admin.info.server_version >= 180_000:
        assert documented(number) == stopped_counts(missed)


def known_gaps(place: Place, number: int) -> list[Hostile]:
    """A read-only transaction of 15 may still make large objects."""
    if number != 2 or place.admin.info.server_version >= 160_000:
        return []
    return [
        hostile for hostile in queries.hostile() if hostile.title in ("function lo_create", "function lo_from_bytea")
    ]


def stopped_counts(missed: list[Hostile]) -> dict[str, str]:
    total = Counter(kind_of(hostile).name for hostile in queries.hostile())
    lost = Counter(kind_of(hostile).name for hostile in missed)
    return {
        kind.name: f"{total[kind.name] - lost[kind.name]} of {total[kind.name]}"
        if lost[kind.name]
        else f"all {total[kind.name]}"
        for kind in KINDS
    }


def documented(number: int) -> dict[str, str]:
    """One column of the table in docs/security.md."""
    rows = [line.strip("| ").split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if "|" in line]
    cells = {row[0].strip(): row[number].strip() for row in rows if len(row) == 5}
    return {kind.name: cells.get(kind.name, "missing") for kind in KINDS}


@pytest.mark.parametrize("broken", ["stage filled without reading first", "transactions that may write"])
def test_the_session_layer_can_fail(
    place: Place, almighty_reader: None, quick_sessions: None, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Without one of its parts the same queries leave a trace, so that the test above means something."""
    if broken == "stage filled without reading first":
        monkeypatch.setattr(plan_check, "functions_of_unknown_effect", lambda plan: set())
    else:
        monkeypatch.setattr(SqlReader, "reading", lambda reader, settings=None: reader.connection.transaction())
        monkeypatch.setattr(database, "READ_ONLY", {"default_transaction_read_only": "off"})
    place.seen = fingerprint(place)
    careless = [hostile for hostile in queries.hostile() if hostile.title == "function content.delete_everything"]
    assert not all(stopped_by_session(place, hostile) for hostile in careless)
