"""What `vitrina doctor` says about the two roles: nothing after a migration, and every right that somebody changed."""

from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.conftest import admin, settings_for, url_of
from tests.support.workbench import Workbench
from vitrina.embedded.temporary import TemporaryServer
from vitrina.errors import ConfigError
from vitrina.store import rights
from vitrina.store.migrate import migrate

SOURCE = "CREATE TABLE content.films (id int); CREATE SEQUENCE content.numbers; CREATE TABLE public.t (i int)"


def reader_faults(bench: Workbench) -> list[rights.Fault]:
    return list(rights.faults_of_reader(bench.admin, "vitrina_reader", bench.settings.source_schemas))


def application_faults(bench: Workbench) -> list[rights.Fault]:
    return list(rights.faults_of_application(bench.metastore, bench.settings.source_schemas))


def test_a_migrated_database_is_as_it_should_be(workbench: Workbench) -> None:
    workbench.source(
        "CREATE TABLE content.films (id int); CREATE SEQUENCE content.numbers; CREATE TABLE public.t (i int)"
    )
    assert reader_faults(workbench) == []
    assert application_faults(workbench) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ("REVOKE SELECT ON content.films FROM vitrina_reader", "may not read content.films"),
        ("GRANT UPDATE (id) ON content.films TO vitrina_reader", "may write to content.films"),
        ("GRANT TRUNCATE ON content.films TO PUBLIC", "may write to content.films"),
        ("GRANT SELECT ON public.t TO PUBLIC", "may read public.t"),
        ("GRANT USAGE ON SCHEMA etl TO vitrina_reader", "may look into etl"),
        ("REVOKE USAGE ON SCHEMA content FROM vitrina_reader", "may not look into content"),
        ("GRANT CREATE ON SCHEMA public TO PUBLIC", "may create objects in public"),
        ("GRANT USAGE ON SEQUENCE content.numbers TO vitrina_reader", "may move the sequence content.numbers"),
        (
            "CREATE FUNCTION content.f(int) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'",
            "may call content.f(integer), which runs with its owner's rights",
        ),
    ],
)
def test_every_wrong_right_of_the_reader_is_named_and_its_remedy_helps(
    workbench: Workbench, change: str, finding: str
) -> None:
    workbench.source(
        "CREATE TABLE content.films (id int); CREATE SEQUENCE content.numbers; CREATE TABLE public.t (i int)"
    )
    workbench.sql(change)

    found = reader_faults(workbench)

    assert f"vitrina_reader {finding}" in [fault.finding for fault in found]
    for fault in found:
        workbench.sql(fault.remedy)
    assert [fault for fault in reader_faults(workbench) if "content.films" not in fault.finding] == []


@pytest.mark.parametrize(
    ("role_change", "undo", "finding"),
    [
        ("CREATEROLE", "NOCREATEROLE", "is CREATEROLE"),
        ("SET default_transaction_read_only = off", "SET default_transaction_read_only = on", "do not begin read-only"),
    ],
)
def test_the_role_itself(workbench: Workbench, role_change: str, undo: str, finding: str) -> None:
    """Roles are the whole server's: put back whatever happens."""
    workbench.sql(f"ALTER ROLE vitrina_reader {role_change}")
    try:
        [fault] = reader_faults(workbench)
        workbench.sql(fault.remedy)
        assert reader_faults(workbench) == []
    finally:
        workbench.sql(f"ALTER ROLE vitrina_reader {undo}")
    assert finding in fault.finding


def test_a_member_of_the_application_is_named(workbench: Workbench) -> None:
    workbench.sql("GRANT vitrina_app TO vitrina_reader")
    try:
        found = [fault.finding for fault in reader_faults(workbench)]
    finally:
        workbench.sql("REVOKE vitrina_app FROM vitrina_reader")
    assert "vitrina_reader is a member of vitrina_app" in found


def test_an_application_that_writes_to_sources_is_named(workbench: Workbench) -> None:
    workbench.source("CREATE TABLE content.films (id int)")
    workbench.sql("GRANT DELETE ON content.films TO vitrina_app")
    [fault] = application_faults(workbench)
    assert "may write to tables of content" in fault.finding


def test_casts_and_domains_that_run_with_their_owners_rights_are_named(workbench: Workbench) -> None:
    """No query names such a function, and the reader needs no right to its schema."""
    workbench.sql(
        """
        CREATE SCHEMA hidden;
        CREATE TYPE content.mood AS ENUM ('sad', 'glad');
        CREATE FUNCTION hidden.to_mood(text) RETURNS content.mood LANGUAGE sql SECURITY DEFINER
            AS $$ SELECT 'sad'::content.mood $$;
        CREATE CAST (text AS content.mood) WITH FUNCTION hidden.to_mood(text);
        CREATE FUNCTION hidden.is_fine(int) RETURNS bool LANGUAGE sql SECURITY DEFINER AS $$ SELECT true $$;
        CREATE DOMAIN content.fine AS int CHECK (hidden.is_fine(VALUE));
        """
    )
    found = reader_faults(workbench)
    said = [fault.finding for fault in found]
    assert "the cast from text to content.mood calls hidden.to_mood(text), which runs with its owner's rights" in said
    assert "the domain content.fine calls hidden.is_fine(integer), which runs with its owner's rights" in said
    for fault in found:
        workbench.sql(fault.remedy)
    assert reader_faults(workbench) == []


def test_a_schema_of_our_name_that_somebody_else_made_is_named(server: TemporaryServer) -> None:
    name = f"foreign_{uuid4().hex[:8]}"
    admin(server, SQL("CREATE DATABASE {}").format(Identifier(name)))
    settings = settings_for(server, name)
    with psycopg.connect(url_of(server.urls.admin, name), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA etl; CREATE TABLE etl.jobs (id int)")
    with pytest.raises(ConfigError, match=r"a schema etl that is not Vitrina's: it belongs to \w+ and holds jobs"):
        migrate(settings)
    with psycopg.connect(url_of(server.urls.admin, name), autocommit=True) as connection:
        connection.execute("ALTER SCHEMA etl RENAME TO etl_of_others")
    assert migrate(settings)
    admin(server, SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))
