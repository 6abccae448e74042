"""`vitrina init`: set up an installation in an existing PostgreSQL, with a first mart on request."""

import os
import secrets
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from vitrina.cli import doctor, env_file, first_pipeline, local, new
from vitrina.cli.exits import ExitCode
from vitrina.errors import CannotConnect, ConfigError, Conflict

if TYPE_CHECKING:
    from vitrina.settings import Settings
    from vitrina.store.setup import Plan

TARGET_SCHEMA = "analytics"
SECRET_KEY = "VITRINA_SECRET_KEY"  # noqa: S105 - the variable's name
WRITTEN = ("VITRINA_DATABASE_URL", "VITRINA_READER_URL", "VITRINA_ALLOWED_TARGETS", "VITRINA_ALLOWED_SOURCE_SCHEMAS")


@dataclass(frozen=True)
class Answers:
    """Hold the answers of the user, from flags or prompts."""

    database_url: str
    admin_url: str
    sources: tuple[str, ...]
    target_schema: str
    resets_passwords: bool


def init(
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url", metavar="URL", help="Your database: postgresql://LOGIN:PASSWORD@HOST:5432/NAME."
        ),
    ] = None,
    admin_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Login for the set-up, which may create roles. [default: --database-url]"),
    ] = None,
    sources: Annotated[
        str | None, typer.Option("--sources", metavar="SCHEMAS", help="Schemas to read from, comma-separated.")
    ] = None,
    target_schema: Annotated[
        str | None, typer.Option("--target", metavar="SCHEMA", help=f"Schema of the marts. [default: {TARGET_SCHEMA}]")
    ] = None,
    *,
    table: Annotated[
        str | None, typer.Option(metavar="SCHEMA.TABLE", help="Create a first pipeline that copies this table.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of that pipeline.")] = None,
    key: new.Key = None,
    cursor: new.Cursor = None,
    mode: new.Mode = None,
    schedule: new.Schedule = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the statements for an administrator instead of running them.")
    ] = False,
    reset_passwords: Annotated[
        bool, typer.Option("--reset-passwords", help="Set new passwords for existing roles.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace differing values in .env.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
) -> None:
    """Set up Vitrina in your PostgreSQL.

    Creates the roles vitrina_app and vitrina_reader with new passwords, the schemas and the grants; writes .env;
    migrates; checks the result; and creates a first pipeline if you name a table. A second call changes nothing. The
    administrator's login is not stored.
    """
    from vitrina.services.suggestions import Preferences

    new.check_mode(mode)
    _refuse_other_settings()
    answers = _answers(database_url, admin_url, sources, target_schema, reset_passwords, asks=_may_ask(yes))
    plan = _plan(answers)
    values = _variables(answers, plan)
    must_write = env_file.check(values, force=force)
    if print_sql:
        _print_for_administrator(plan, values, must_write)
        return
    _prepare(answers, plan)
    _write(values, must_write)
    settings = _settled()
    problems = _look()
    first_pipeline.offer(
        settings, table, Preferences(name, tuple(key or ()), cursor, mode, schedule), asks=_may_ask(yes)
    )
    if problems:
        local.say(f"{problems} finding(s) above have to be corrected; `vitrina doctor` checks again")
        raise typer.Exit(ExitCode.FAILED)
    local.say("next: `vitrina dev` serves console, API and runner here, until Ctrl-C")


def _may_ask(yes: bool) -> bool:
    return not yes and sys.stdin.isatty()


def _refuse_other_settings() -> None:
    """Refuse differing variables of the environment: they override the file, so it would have no effect."""
    known = env_file.read()
    for name in WRITTEN:
        if os.environ.get(name) and os.environ[name] != known.get(name):
            raise ConfigError(f"{name} is set in the environment, which overrides .env: unset it, then start again")


def _answers(
    database_url: str | None,
    admin_url: str | None,
    sources: str | None,
    target_schema: str | None,
    reset_passwords: bool,
    *,
    asks: bool,
) -> Answers:
    """Use flags first, then .env, then prompts."""
    known = env_file.read()
    url = database_url or known.get("VITRINA_DATABASE_URL")
    url = url or _ask("--database-url", "Your database (postgresql://LOGIN:PASSWORD@HOST:5432/NAME)", asks)
    _check_url("--database-url", url)
    if admin_url:
        _check_url("--admin-url", admin_url)
    target = target_schema or _target_of(known)
    if target is None:
        target = _ask("--target", "Schema for the marts", asks, TARGET_SCHEMA) if asks else TARGET_SCHEMA
    said = sources or known.get("VITRINA_ALLOWED_SOURCE_SCHEMAS")
    said = said or _ask(
        "--sources", "Schemas to read from, comma-separated", asks, _offered(admin_url or url, target, asks)
    )
    schemas = tuple(dict.fromkeys(part.strip() for part in said.split(",") if part.strip()))
    _check_schemas(schemas, target)
    return Answers(url, admin_url or url, schemas, target, reset_passwords)


def _target_of(known: dict[str, str]) -> str | None:
    schema, _, table = known.get("VITRINA_ALLOWED_TARGETS", "").partition(".")
    return schema if table == "*" else None


def _offered(url: str, target: str, asks: bool) -> str | None:
    """Offer the schemas that have tables."""
    if not asks:
        return None
    from vitrina.store import setup, tables

    with setup.connect(url) as connection:
        there = [name for name in tables.list_schemas(connection) if name != target]
        found = {schema for schema, _ in tables.list_names(connection, there)}
    return ",".join(sorted(found)) or None


def _check_url(flag: str, url: str) -> None:
    from psycopg import ProgrammingError, conninfo

    from vitrina import dsn

    found = dsn.problem(url)
    try:
        parts = conninfo.conninfo_to_dict(url)
    except ProgrammingError:
        found = found or "it is not a valid postgresql:// URL"
        parts = {}
    if not found and not parts.get("dbname"):
        found = "it names no database: postgresql://LOGIN:PASSWORD@HOST:5432/NAME"
    if found:
        raise ConfigError(f"{flag}: {found}{_encoding_hint(url)}")


def _encoding_hint(url: str) -> str:
    """Explain how to encode a password, which may contain characters that a URL may not."""
    if url.count("@") < 2 and "@" not in url.partition("://")[2].partition("/")[2]:
        return ""
    return " (in a password write @ as %40, / as %2F, : as %3A, ? as %3F, # as %23, % as %25)"


def _check_schemas(sources: tuple[str, ...], target: str) -> None:
    from vitrina.settings import Settings
    from vitrina.targets import TargetPolicy, is_allowed_target

    if not is_allowed_target(f"{target}.t", TargetPolicy.of([f"{target}.*"])):
        raise ConfigError(
            f"--target {target!r}: a schema of marts has lower-case letters, digits and _, not etl or pg_"
        )
    if not sources:
        raise ConfigError("--sources: name at least one schema to read from")
    for schema in sources:
        if Settings.is_never_reached(schema):
            raise ConfigError(f"--sources {schema}: queries may not read the server's catalogs or the metastore")
        if schema == target:
            raise ConfigError(f"--sources {schema}: that is the schema of the marts; choose another with --target")


def _plan(answers: Answers) -> "Plan":
    """Plan the roles with the passwords of the environment, those of .env, or new ones."""
    from vitrina.settings import APP_ROLE, READER_ROLE
    from vitrina.store.setup import Plan

    known = env_file.read()
    urls = {APP_ROLE: known.get("VITRINA_DATABASE_URL"), READER_ROLE: known.get("VITRINA_READER_URL")}
    urls[APP_ROLE] = urls[APP_ROLE] or answers.database_url
    variables = {APP_ROLE: "VITRINA_APP_PASSWORD", READER_ROLE: "VITRINA_READER_PASSWORD"}
    found = {
        role: os.environ.get(variables[role])
        or (None if answers.resets_passwords else _password_of(urls[role], role))
        or secrets.token_urlsafe(24)
        for role in variables
    }
    return Plan(answers.sources, answers.target_schema, found[APP_ROLE], found[READER_ROLE], answers.resets_passwords)


def _password_of(url: str | None, role: str) -> str | None:
    from psycopg import conninfo

    parts = conninfo.conninfo_to_dict(url) if url else {}
    return str(parts["password"]) if parts.get("user") == role and parts.get("password") else None


def _variables(answers: Answers, plan: "Plan") -> dict[str, str]:
    from vitrina.settings import APP_ROLE, READER_ROLE
    from vitrina.store.database import with_login

    return dict(
        zip(
            WRITTEN,
            (
                with_login(answers.database_url, APP_ROLE, plan.app_password),
                with_login(answers.database_url, READER_ROLE, plan.reader_password),
                f"{answers.target_schema}.*",
                ",".join(answers.sources),
            ),
            strict=True,
        )
    )


def _print_for_administrator(plan: "Plan", values: dict[str, str], must_write: bool) -> None:
    from vitrina.store import setup

    _write(values, must_write)
    for statement in setup.statements(plan):
        print(f"{statement.as_string()};")
    local.say(
        "to be run by an administrator, in the database itself; the passwords are in .env and stand in the statements"
        " as digests only. Afterwards `vitrina init --yes` goes on from here"
    )


def _prepare(answers: Answers, plan: "Plan") -> None:
    """Create roles, schemas and grants as the administrator."""
    from vitrina.store import database, setup

    try:
        connection = setup.connect(answers.admin_url)
    except CannotConnect as exc:
        raise CannotConnect(f"{exc.message}{_encoding_hint(answers.admin_url)}") from None
    with connection, database.translated("looking at the database"):
        found = setup.inspect(connection, plan)
        _refuse_unknown_passwords(answers, plan, found.roles)
        wanted = setup.statements(plan, found)
        missing = setup.missing_rights(plan, found) if wanted else []
        if missing:
            raise ConfigError(
                f"{found.login} may not {', '.join(missing)}: name a login that may with --admin-url, or ask an"
                " administrator to run the output of --print-sql"
            )
        setup.perform(connection, wanted)
    for statement in wanted:
        local.say(f"  {setup.shown(statement)}")
    local.say(f"database {found.database}: {'prepared' if wanted else 'was prepared already'}")


def _refuse_unknown_passwords(answers: Answers, plan: "Plan", roles: frozenset[str]) -> None:
    """Refuse an existing role whose password is not known: it may belong to another installation on the same server."""
    from vitrina.settings import APP_ROLE, READER_ROLE
    from vitrina.store import database

    if answers.resets_passwords:
        return
    for role, password, variable in (
        (APP_ROLE, plan.app_password, "VITRINA_APP_PASSWORD"),
        (READER_ROLE, plan.reader_password, "VITRINA_READER_PASSWORD"),
    ):
        if role not in roles:
            continue
        try:
            database.connect(database.with_login(answers.database_url, role, password), "vitrina:init").close()
        except CannotConnect as exc:
            raise Conflict(
                f"the role {role} already exists, perhaps for another installation on this server, and its password is"
                f" not known here: set {variable}, or set a new one with --reset-passwords ({exc.message})"
            ) from None


def _write(values: dict[str, str], must_write: bool) -> None:
    if must_write:
        if not (env_file.read().get(SECRET_KEY) or os.environ.get(SECRET_KEY)):
            values = {**values, SECRET_KEY: local.new_secret_key()}
        env_file.write(values)
    local.say(f"{env_file.PATH}: {'written, readable by you alone' if must_write else 'is as it should be'}")


def _settled() -> "Settings":
    """Load the settings as later commands do, and migrate the metastore."""
    from vitrina.store import database, migrate, setup

    # The passwords are already set. Setting them again would need the administrator's privileges.
    settings = local.load_settings(app_password=None, reader_password=None)
    setup.check_logins(settings)
    with database.translated("migrating"):
        local.say(f"metastore: version {migrate.migrate(settings)}")
    return settings


def _look() -> int:
    """Print the findings of `vitrina doctor`, except the missing runner. Return the number of problems."""
    findings = [found for found in doctor.examine() if found.check not in ("runners", "api")]
    doctor.print_findings(findings)
    return doctor.problems(findings)


def _ask(flag: str, question: str, asks: bool, default: str | None = None) -> str:
    if not asks:
        raise typer.BadParameter("set it, because there is no terminal to ask on", param_hint=flag)
    return str(typer.prompt(question, default=default, err=True))
