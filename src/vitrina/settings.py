"""Read the operator's settings from environment variables, `<VAR>_FILE` for mounted secrets, and a `.env` file."""

import base64
import binascii
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from vitrina import dsn, environment
from vitrina.errors import ConfigError
from vitrina.ports import registry
from vitrina.targets import TargetPolicy

if TYPE_CHECKING:
    from vitrina.sqlguard import SqlPolicy

READER_ROLE = "vitrina_reader"
APP_ROLE = "vitrina_app"
DEFAULT_CONNECTION = "default"
SECRET_KEY_BYTES = 32

_CONNECTION_VARIABLE = re.compile(
    r"VITRINA_CONN_([A-Z0-9_]+?)(_MAX_CONNECTIONS|_STATEMENT_TIMEOUT_SECONDS|_FEED)?(_FILE)?"
)


class ConnectionLimits(BaseModel):
    """Hold the limits of one named connection (`VITRINA_CONN_<NAME>_<LIMIT>`). No connection's name ends like that."""

    model_config = ConfigDict(frozen=True)

    # A run needs two at once where it reads, and two where it writes.
    max_connections: int | None = Field(None, ge=2)
    # Postgres counts in whole milliseconds, and zero would mean no limit.
    statement_timeout_seconds: float | None = Field(None, ge=0.001, le=2_147_483, allow_inf_nan=False)


class Settings(BaseModel):
    """Hold the settings of all processes. Variables are named `VITRINA_` and the field name in upper case."""

    model_config = ConfigDict(extra="forbid")

    database_url: SecretStr | None = Field(None, description="Metastore (and default source and target) database.")
    admin_url: SecretStr | None = Field(None, description="Login that `vitrina migrate` uses; default: database_url.")
    app_password: SecretStr | None = Field(
        None, description=("Password that `vitrina migrate` sets for the role vitrina_app.")
    )
    reader_url: SecretStr | None = Field(None, description="Login under which users' SQL runs.")
    reader_password: SecretStr | None = Field(None, description="Password of the role vitrina_reader.")

    allowed_targets: str = Field(
        "analytics.*,es:film_dim,es:film_rating_agg", description="Where pipelines may write, comma-separated."
    )
    allowed_source_schemas: str = Field("content,ugc", description="Schemas that users' SQL may read, comma-separated.")
    allowed_functions: str = Field(
        "",
        description=("Functions that users' SQL may call in addition to the built-in list: `public.f`, `public.st_*`."),
    )
    trusted_extensions: str = Field(
        "", description="Extensions whose functions, types and operators users' SQL may use, comma-separated."
    )
    allowed_relations: str = Field(
        "",
        description=(
            "Relations in other schemas that views and partitions of source schemas may read: `raw.films, old.*`."
        ),
    )
    transforms: str = Field("", description="Modules with registered Python steps, comma-separated.")
    step_env: str = Field(
        "", description="Environment variables that are passed to Python steps, comma-separated; `TMDB_*` for several."
    )
    hash_key: SecretStr | None = Field(
        None, description=("Key of the step hash_columns. The same key produces the same hashes.")
    )
    secret_key: SecretStr | None = Field(
        None,
        description=(
            "Key that opens connections stored in the metastore. Several are comma-separated; the first one seals."
        ),
    )

    elasticsearch_url: SecretStr | None = Field(
        None,
        description="Search server(s), comma-separated.",
    )
    elasticsearch_api_key: SecretStr | None = Field(None, description="Sent as `Authorization: ApiKey`.")
    elasticsearch_ca_file: Path | None = Field(
        None, description=("File with the CA certificates that sign the search server's certificate.")
    )
    elasticsearch_fingerprint: str | None = Field(None, description="SHA-256 of the search server's certificate.")

    auth: Literal["token", "off"] = Field("token", description="`off` is accepted on loopback addresses only.")
    api_url: str = Field(environment.API_URL, description="Address of the API for the command line.")
    token: SecretStr | None = Field(None, description="Bearer token that the command line sends.")
    trusted_proxies: str = Field(
        "", description="Proxies whose X-Forwarded-For is trusted: addresses or networks, comma-separated."
    )
    api_max_connections: int = Field(
        500,
        ge=8,
        le=100_000,
        description=("Maximum number of connections to the API at a time, at most half of the open files allowed."),
    )

    log_format: Literal["console", "json"] = Field(
        "console", description=("Log format: `console` for people, or `json`, one object per line.")
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")

    concurrency: int = Field(4, ge=1, le=64, description="Pipelines that one runner runs at a time.")
    followers: int = Field(
        64,
        ge=1,
        le=1000,
        description=("Live pipelines that one runner follows at a time, in addition to VITRINA_CONCURRENCY."),
    )
    source_concurrency: int | None = Field(
        None, ge=1, description="Maximum number of runs of all runners that read from one connection at a time."
    )
    lease_ttl_seconds: float = Field(
        30.0, gt=0, description=("How long a runner without heartbeats keeps its pipelines.")
    )
    poll_seconds: float = Field(1.0, gt=0, description="How often a runner looks for work without being notified.")
    max_attempts: int = Field(
        3, ge=1, description=("Attempts of one run, and lost leases without progress, before the pipeline is FAILED.")
    )
    backoff_seconds: tuple[float, ...] = Field((1.0, 2.0, 4.0), description="Waits between attempts, in seconds.")
    statement_timeout_seconds: float = Field(
        3600.0, gt=0, description="Longest single statement on a source or target."
    )
    merge_memory_mb: int = Field(
        128,
        ge=4,
        le=16_384,
        description="work_mem of a merge. Building the indexes of an empty mart may use twice as much.",
    )
    max_value_mb: int = Field(
        256,
        ge=1,
        le=1024,
        description=(
            "Largest value that a runner handles. It takes up to 3 times as much memory, or 5 times with steps."
        ),
    )
    connect_timeout_seconds: int = Field(10, ge=1, description="Longest wait for a connection.")
    keep_sessions_seconds: float = Field(
        60.0, ge=0, description="How long a runner keeps an idle PostgreSQL session for the next run; 0: not at all."
    )
    feed_url: SecretStr | None = Field(
        None, description="Login that follows the log of the default database, for live pipelines: needs REPLICATION."
    )
    feed_unlimited_wal: bool = Field(
        False, description="Follow sources whose max_slot_wal_keep_size is -1, although their disks may fill up."
    )
    max_change_backlog: int = Field(
        5_000_000,
        ge=1_000,
        description=("Number of stored changes that a live pipeline may lag behind before it is loaded again."),
    )
    runs_retention_days: int = Field(90, ge=1, description="How long the history of runs is kept.")
    events_retention_hours: int = Field(48, ge=1, description="How long `GET /events` can replay.")
    logs_retention_days: int = Field(14, ge=1, description="How long logs of runs and sent notifications are kept.")
    metrics_port: int | None = Field(None, ge=0, le=65_535, description="Port of a runner's /metrics, /livez, /readyz.")
    metrics_host: str = Field("127.0.0.1", description="Address on which a runner serves them.")

    webhook_url: SecretStr | None = Field(
        None, description=("Webhook that is notified when a pipeline fails, recovers or drifts.")
    )
    webhook_secret: SecretStr | None = Field(None, description="Key that signs messages to the webhook.")
    slack_webhook_url: SecretStr | None = Field(None, description="Incoming webhook of a Slack-compatible chat.")

    lineage_url: SecretStr | None = Field(None, description="Address that receives an OpenLineage event for every run.")
    lineage_api_key: SecretStr | None = Field(None, description="Bearer token for OpenLineage events.")
    lineage_file: Path | None = Field(None, description="File to which OpenLineage events are appended, one per line.")
    lineage_namespace: str = Field("vitrina", min_length=1, description="Namespace of the jobs in OpenLineage events.")

    # `VITRINA_CONN_<NAME>`: named source (and target) databases, operator only. Filled by `load`.
    connections: dict[str, SecretStr] = Field(default_factory=dict)
    connection_limits: dict[str, ConnectionLimits] = Field(
        default_factory=dict, description="Limits of named connections: `VITRINA_CONN_<NAME>_<LIMIT>`."
    )
    feeds: dict[str, SecretStr] = Field(
        default_factory=dict, description="Logins that follow the logs of named databases: `VITRINA_CONN_<NAME>_FEED`."
    )
    shut_connections: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Connections stored in the metastore that cannot be opened here, with the reason. Filled by a runner."
        ),
    )

    @field_validator("database_url", "admin_url", "reader_url", "feed_url")
    @classmethod
    def _url_says_where_and_who(cls, url: SecretStr | None) -> SecretStr | None:
        found = dsn.problem(url.get_secret_value()) if url else None
        if found:
            raise ValueError(found)
        return url

    @field_validator("connections")
    @classmethod
    def _connections_say_where_and_who(cls, connections: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, url in connections.items():
            found = connection_problem(url.get_secret_value())
            if found:
                raise ValueError(f"VITRINA_CONN_{name.upper()}: {found}")
        return connections

    @field_validator("feeds")
    @classmethod
    def _feeds_say_where_and_who(cls, feeds: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, url in feeds.items():
            found = dsn.problem(url.get_secret_value())
            if found:
                raise ValueError(f"VITRINA_CONN_{name.upper()}_FEED: {found}")
        return feeds

    @field_validator("secret_key")
    @classmethod
    def _secret_keys_are_keys(cls, value: SecretStr | None) -> SecretStr | None:
        for number, part in enumerate(_listed(value.get_secret_value()) if value else [], 1):
            if len(_decoded(part)) != SECRET_KEY_BYTES:
                raise ValueError(
                    f"key {number} is not {SECRET_KEY_BYTES} bytes in base64: generate one with"
                    " `openssl rand -base64 32`"
                )
        return value

    @model_validator(mode="after")
    def _limits_are_of_connections(self) -> Self:
        for name, limits in self.connection_limits.items():
            if name not in self.connections:
                variable = limit_variable(name, next(iter(limits.model_fields_set)))
                raise ValueError(f"{variable}: there is no connection to limit, set VITRINA_CONN_{name.upper()}")
        return self

    @property
    def secret_keys(self) -> list[bytes]:
        """List the secret keys, the newest first."""
        return [_decoded(part) for part in _listed(self.secret_key.get_secret_value())] if self.secret_key else []

    @cached_property
    def target_policy(self) -> TargetPolicy:
        return TargetPolicy.of(self.allowed_targets.split(","))

    @cached_property
    def source_schemas(self) -> frozenset[str]:
        return frozenset(_listed(self.allowed_source_schemas))

    @cached_property
    def extra_functions(self) -> frozenset[str]:
        return frozenset(_listed(self.allowed_functions))

    @cached_property
    def extensions(self) -> frozenset[str]:
        return frozenset(_listed(self.trusted_extensions))

    @field_validator("trusted_extensions")
    @classmethod
    def _extensions_are_known(cls, value: str) -> str:
        from vitrina.sqlguard import extensions

        unknown = sorted(set(_listed(value)) - extensions.KNOWN.keys())
        if unknown:
            raise ValueError(
                f"{unknown[0]} is not an extension that Vitrina knows ({', '.join(sorted(extensions.KNOWN))}); list the"
                " functions themselves in VITRINA_ALLOWED_FUNCTIONS"
            )
        return value

    @cached_property
    def sql_policy(self) -> "SqlPolicy":
        """Return what users' SQL may use."""
        from vitrina.sqlguard import SqlPolicy  # most commands never read SQL

        return SqlPolicy(self.source_schemas, self.extra_functions, extensions=self.extensions)

    @field_validator("allowed_relations")
    @classmethod
    def _relations_are_not_the_server_s(cls, value: str) -> str:
        for pattern in _listed(value):
            schema, dot, name = pattern.partition(".")
            if not dot or not name or "*" in schema:
                raise ValueError(f"{pattern} is not schema.name or schema.*")
            if cls.is_never_reached(schema):
                raise ValueError(f"{pattern}: the server's catalogs and the metastore cannot be opened to queries")
        return value

    @staticmethod
    def is_never_reached(schema: str) -> bool:
        """Return whether no setting can open the schema: the server's catalogs and Vitrina's own schemas."""
        return schema.startswith("pg_") or schema in ("information_schema", "etl", "etl_stage", "")

    def may_be_reached(self, schema: str, name: str) -> bool:
        """Return whether a query may read it, directly or through views, partitions and SQL functions."""
        if schema in self.source_schemas:
            return True
        patterns = _listed(self.allowed_relations)
        return not self.is_never_reached(schema) and any(fnmatchcase(f"{schema}.{name}", p) for p in patterns)

    @cached_property
    def step_environment(self) -> tuple[str, ...]:
        return tuple(_listed(self.step_env))

    def require_database_url(self) -> str:
        if self.database_url is None:
            raise ConfigError(
                "VITRINA_DATABASE_URL is not set: set it to the metastore's postgresql:// URL, or use"
                " `vitrina dev` or `vitrina demo`, which bring an embedded PostgreSQL"
            )
        return self.database_url.get_secret_value()

    def connection_url(self, name: str | None) -> str:
        """Return the URL of a named connection; the metastore's database is called `default`."""
        if name is None or name == DEFAULT_CONNECTION:
            return self.require_database_url()
        found = self.connections.get(name.lower())
        if found is None:
            if name.lower() in self.shut_connections:
                raise ConfigError(self.shut_connections[name.lower()])
            known = ", ".join(sorted([DEFAULT_CONNECTION, *self.connections]))
            raise ConfigError(
                f"connection {name!r} is not configured (known: {known}); the operator sets VITRINA_CONN_{name.upper()}"
                f" or adds it with `vitrina connections add {name.lower()}`"
            )
        return found.get_secret_value()

    def find_feed_url(self, name: str | None) -> str | None:
        """Find the login that follows a database's log. It can copy a whole cluster, so no users' SQL runs under it."""
        found = self.feed_url if name in (None, DEFAULT_CONNECTION) else self.feeds.get(str(name).lower())
        return found.get_secret_value() if found else None

    @property
    def feed_connections(self) -> list[str]:
        """Return the names of the connections whose logs this process can follow."""
        return [*([DEFAULT_CONNECTION] if self.feed_url else []), *sorted(self.feeds)]

    def connector_of(self, name: str | None) -> str | None:
        """Return the name of the connector that opens a connection. None: a stored one that cannot be opened here."""
        if name is None or name.lower() == DEFAULT_CONNECTION:
            return registry.POSTGRES
        if name.lower() in self.shut_connections and name.lower() not in self.connections:
            return None
        found = registry.of_url(self.connection_url(name))
        return found.name if found else None

    def target_url(self, connector: str, name: str | None) -> str | None:
        """Return where targets of a connector are: a named connection, else the connector's own default.

        ELASTICSEARCH_URL is the default of the search connector.
        """
        if name is None and connector == registry.SEARCH:
            return self.elasticsearch_url.get_secret_value() if self.elasticsearch_url else None
        if name is None and connector != registry.POSTGRES:
            return None
        return self.connection_url(name)

    def statement_timeout_on(self, connection: str | None) -> float:
        """Return the statement timeout of a connection in seconds, for pipelines without their own."""
        limits = self.connection_limits.get((connection or DEFAULT_CONNECTION).lower(), ConnectionLimits())
        return limits.statement_timeout_seconds or self.statement_timeout_seconds

    @property
    def max_connections(self) -> dict[str, int]:
        """Return how many sessions runs may have open at a time, by connection; unlimited ones are left out."""
        return {name: at.max_connections for name, at in self.connection_limits.items() if at.max_connections}


def connection_problem(url: str) -> str | None:
    """Return why the URL of a connection is refused, in the words of the connector that opens it.

    A URL that no connector opens is no problem of the settings; it becomes one when something uses it.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() in ("postgresql", "postgres"):
        return dsn.problem(url)  # without looking up installed connectors: most installations have no other
    found = registry.of_url(url)
    return found.url_problem(url) if found and found.url_problem else None


def feed_variable(connection: str | None) -> str:
    """Name the variable that holds the login of a feed."""
    return (
        f"VITRINA_CONN_{connection.upper()}_FEED"
        if connection not in (None, DEFAULT_CONNECTION)
        else "VITRINA_FEED_URL"
    )


def limit_variable(connection: str, limit: str) -> str:
    return f"VITRINA_CONN_{connection.upper()}_{limit.upper()}"


def load(
    environ: Mapping[str, str] | None = None, *, dotenv: Path | None = environment.DOTENV, **overrides: Any
) -> Settings:
    """Load settings from the environment, over `.env`, with `<VAR>_FILE` read from disk; `overrides` win."""
    variables = environment.with_files(environment.read(environ, dotenv=dotenv))
    known = {name.upper() for name in Settings.model_fields.keys() - {"shut_connections"}}
    values: dict[str, Any] = {
        name.lower(): variables[variable]
        for name in known
        for variable in (f"VITRINA_{name}", name if name.startswith("ELASTICSEARCH") else "")
        if variables.get(variable)
    }
    if isinstance(values.get("backoff_seconds"), str):
        values["backoff_seconds"] = tuple(float(part) for part in _listed(values["backoff_seconds"]))
    values["connections"], values["connection_limits"], values["feeds"] = _connections(variables)
    try:
        return Settings(**(values | overrides))
    except ValidationError as exc:
        problems = "; ".join(_words(error["loc"], error["msg"]) for error in exc.errors(include_input=False))
        raise ConfigError(f"wrong settings: {problems}") from None


def _words(location: tuple[int | str, ...], message: str) -> str:
    """Name the variable in a validator's message, unless the message does so itself."""
    message = message.removeprefix("Value error, ")
    if location[:1] == ("connection_limits",):
        return f"{limit_variable(str(location[1]), str(location[2]))}: {message} (no connection's name ends like that)"
    return message if message.startswith("VITRINA_") else f"VITRINA_{str(location[0]).upper()}: {message}"


def _connections(
    variables: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, str]]:
    """Return URLs by the names of connections, their limits, and the logins of their feeds."""
    urls: dict[str, str] = {}
    limits: dict[str, dict[str, str]] = {}
    feeds: dict[str, str] = {}
    for variable, value in variables.items():
        match = _CONNECTION_VARIABLE.fullmatch(variable)
        if not match or match[3] or not value:
            continue
        name, suffix = match[1].lower(), match[2]
        if suffix == "_FEED":
            feeds[name] = value
        elif suffix:
            limits.setdefault(name, {})[suffix.removeprefix("_").lower()] = value
        else:
            urls[name] = value
    return urls, limits, feeds


def _decoded(key: str) -> bytes:
    """Decode base64 of either alphabet. Return nothing for a text that is neither."""
    try:
        return base64.b64decode(key.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
