"""What the API and its runners answer to a request."""

SENTENCES = {
    "request.bad_request": "the body cannot be read as JSON",
    "request.body_too_large": "the body is too large; send less at a time",
    "request.body_too_slow": "the body did not come in time; send less at a time",
    "request.cursor_of_other_sort": "the cursor belongs to sort={sort}: leave it out to start over",
    "request.foreign_cursor": "the cursor is not one of ours, or belongs to other filters: leave it out to start over",
    "request.foreign_page": "auth is off, so requests of pages from {origin} are not served",
    "request.internal": "something unexpected went wrong; the log has it under {reference}",
    "request.key_of_other_body": "Idempotency-Key {key!r} was used with another body; use a new key for each request",
    "request.key_of_other_pipeline": (
        "Idempotency-Key {key!r} was used for another pipeline; use a new key for each request"
    ),
    "request.metastore_away": (
        "the metastore (Postgres) does not answer or is too busy: try again in a moment; if it stays so, the operator"
        " checks VITRINA_DATABASE_URL and GET /health"
    ),
    "request.method_not_allowed": "{method} cannot be used on {path}; the Allow header says what can",
    "request.moment": "a moment is written like 2026-01-31T12:00:00Z",
    "request.nested": "the body is nested deeper than {levels} levels: send flatter values",
    "request.no_events": "the metastore does not answer, so there are no events to follow: try again shortly",
    "request.no_json": "the body is not valid JSON: {reason}",
    "request.no_json_at": "the body is not valid JSON: {reason} (at character {character})",
    "request.no_token": "no token came with the request: send `Authorization: Bearer <token>`",
    "request.none": "there is no request {id}",
    "request.not_found": "there is nothing at {path}; /docs lists what there is",
    "request.role_too_low": "the token {name!r} has the role {role}; this needs {needed}",
    "request.superseded": "a later question took its place",
    "request.test_is_for_admins": "the token {name!r} has the role {role}; the test of a connection is for admins",
    "request.this_machine_only": "auth is off, so only this machine is served, under localhost or 127.0.0.1",
    "request.too_many_attempts": "too many wrong tokens from your address: wait a minute, then try again",
    "request.too_many_streams": (
        "{most} streams of events are open, half of the connections that this API serves: close some, or raise"
        " VITRINA_API_MAX_CONNECTIONS"
    ),
    "request.unknown_to_runner": "this runner does not know how to perform {kind!r}; is it older than the API?",
    "request.unknown_token": "the token is unknown, revoked or expired: ask an admin for a new one",
    "request.unparsable": "it cannot be parsed",
    "request.unstorable": "a value cannot be stored: it holds characters that Postgres refuses",
    "pipeline.about_to_pause": (
        "pipeline {name} is about to pause (PAUSE_REQUESTED): wait until it is PAUSED, then resume it"
    ),
    "pipeline.asked_while_paused": (
        "pipeline {name} waits for a runner; a load that was paused is continued first, and a second run follows it,"
        " with the trigger `follow-up`, for what it could not see (`resume` continues it and asks for nothing else)"
    ),
    "pipeline.at_work": "pipeline {name} is at work; another run follows this one",
    "pipeline.backfill_first": "pipeline {name} has a backfill to do first; the run that was asked for follows it",
    "pipeline.became": "pipeline {name} became {status} meanwhile; wait until it is IDLE, ask again",
    "pipeline.cancelled": "the run of pipeline {name} is cancelled; `run` starts from the checkpoint",
    "pipeline.changed_now": "pipeline {name} was changed at the same moment; read it again, then repeat",
    "pipeline.changed_since": (
        "pipeline {name} is at version {version}, not {expected}: somebody changed it; read it again, then repeat your"
        " change"
    ),
    "pipeline.deleted": "pipeline {pipeline_id} was deleted meanwhile",
    "pipeline.disabled": "pipeline {name} is disabled",
    "pipeline.disabled_no_resume": "pipeline {name} is disabled: enable it, then resume it",
    "pipeline.disabled_no_run": "pipeline {name} is disabled: enable it, then run it",
    "pipeline.empty_range": "until is {until!r}, which is not behind since, {since!r}: nothing lies between",
    "pipeline.enabled": "pipeline {name} is enabled",
    "pipeline.from_next_batch": "pipeline {name} uses version {version} from the next batch on",
    "pipeline.from_next_run": "pipeline {name} uses version {version} from the next run on",
    "pipeline.goes_on": "pipeline {name} goes on where it stopped",
    "pipeline.locked": (
        "pipeline {name} is {status}: {fields} cannot change under a run; pause it, wait until it is PAUSED, then"
        " change it"
    ),
    "pipeline.name_taken": "a pipeline named {name!r} exists already: choose another name, or change that one",
    "pipeline.no_accept_now": (
        "pipeline {name} is {status}: checks are accepted for a run that has not begun; wait for its end, then ask"
        " again"
    ),
    "pipeline.no_backfill_now": (
        "pipeline {name} is {status}: a backfill starts from IDLE or FAILED; wait for the run to end, or cancel it"
    ),
    "pipeline.no_check": "pipeline {name} has no check {check!r} to accept; it has: {known}",
    "pipeline.no_cursor": "pipeline {name} is a {mode} load: only incremental has a cursor",
    "pipeline.no_cursor_to_backfill": "pipeline {name} is in mode 'full': it has no cursor to backfill by",
    "pipeline.no_delete_now": (
        "pipeline {name} is {status} and cannot be deleted now: pause it, wait until it is PAUSED, then delete it"
    ),
    "pipeline.no_letters_of_group": "pipeline {name} has no open dead letters of this group any more",
    "pipeline.no_repair_now": (
        "pipeline {name} is {status}: nothing is repaired beside a run; pause it or wait until it is IDLE, then ask"
        " again (without `repair`, it is compared at any time)"
    ),
    "pipeline.no_replay_now": (
        "pipeline {name} is {status}: nothing is sent again beside a run; pause it or wait until it is IDLE, then ask"
        " again"
    ),
    "pipeline.no_report": "pipeline {name} has no finished reconcile report yet: POST .../reconcile asks for one",
    "pipeline.no_report_of_kind": "pipeline {name} has no {kind} report yet: POST to the same address asks for one",
    "pipeline.no_reset_now": (
        "pipeline {name} is {status}: its checkpoint belongs to the run at work; pause it, wait until it is PAUSED,"
        " then reset"
    ),
    "pipeline.no_value_of_cursor": (
        "{field} is {value!r}, which is no value of incremental_key {column} ({type}); nothing was started: write it as"
        " the source does"
    ),
    "pipeline.no_version": "pipeline {name} has no version {version}; it is at {newest}",
    "pipeline.none": "there is no pipeline {name!r}; `vitrina pipelines` or GET /pipelines lists the ones there are",
    "pipeline.none_but": "there is no pipeline {name!r}: did you mean {near!r}?",
    "pipeline.not_paused": (
        "pipeline {name} is {status}: only a PAUSED one is resumed; `run` asks for a run in any other status"
    ),
    "pipeline.nothing_to_cancel": "pipeline {name} is {status} and no run of it waits or works",
    "pipeline.history_has_a_writer": (
        "target {target} is written by pipeline {other} already, and a mart with options.history is written by one"
        " pipeline alone; choose another target"
    ),
    "pipeline.nothing_to_pause": (
        "pipeline {name} is {status} and nothing of it runs, so there is nothing to pause; disable it to keep it from"
        " starting"
    ),
    "pipeline.others_wait": (
        "pipeline {name} cannot be deleted, because {waiting} would wait for it for ever: take it out of their"
        " run_after first"
    ),
    "pipeline.paused": "pipeline {name} is paused; `resume` continues it",
    "pipeline.request_is_over": (
        "pipeline {name} is {status}, and the run that was asked for at {at} is over, or another one was asked for"
        " since; without `run_requested_at`, `cancel` ends whatever waits or works"
    ),
    "pipeline.run_when_paused": "pipeline {name} is {status}: wait until it is PAUSED, then run it",
    "pipeline.target_busy": "another pipeline writes to the same target just now: wait until it is done, ask again",
    "pipeline.target_has_a_writer": (
        "target {target} is written by pipeline {other} already, and a full load deletes what its own source does not"
        " have; choose another target, or set options.shared_target on both"
    ),
    "pipeline.waits_for": "waits for a runner with {what}",
    "pipeline.waits_for_runner": "pipeline {name} waits for a runner",
    "pipeline.will_pause": (
        "pipeline {name} will pause at the next batch boundary, or at once where it runs as one statement; `resume`"
        " continues it"
    ),
    "token.bad_name": "token name {name!r} is not acceptable: up to 100 letters, digits and _ . @ -",
    "token.exists": "a token named {name!r} exists already, perhaps a revoked one: choose another name",
    "token.expiry": "expires_in_days must be from 1 to {most}",
    "token.none": "there is no token {name!r}",
    "connection.bad_name": (
        "connection name {name!r} is not acceptable: up to 63 small letters, digits and _, not ending in {endings}"
    ),
    "connection.bad_url": "url: {why}",
    "connection.default": "the connection 'default' is the metastore's own database: choose another name",
    "connection.exists": "there is a connection {name!r} already: replace it (`--replace`, PUT), or remove it first",
    "connection.hba": "have the server's administrator let this login in from here (pg_hba.conf)",
    "connection.in_environment": "connection {name!r} is set in the environment ({variable}): remove it there",
    "connection.in_environment_first": "connection {name!r} is set in the environment ({variable}), which goes first",
    "connection.in_use": "connection {name!r} is used by {pipelines}: change or delete these first",
    "connection.lists_no_tables": "connection {name!r} is one of the connector {connector}, which lists no tables",
    "connection.make_a_key": "make one with `openssl rand -base64 32`, set it for every runner and restart them",
    "connection.name_schemas": "name its schemas in VITRINA_ALLOWED_SOURCE_SCHEMAS",
    "connection.no_database": "create the database, or correct its name in {place}",
    "connection.no_host": "correct the host's name in {place}",
    "connection.no_key": (
        "no runner that is alive has VITRINA_SECRET_KEY, and only a runner's key can seal a connection: {remedy}"
    ),
    "connection.no_login": "create the login on the server, or correct it in {place}",
    "connection.no_password": "put the password into {place}",
    "connection.no_runner": "no runner is alive, and only a runner's key can seal a connection: {remedy}",
    "connection.no_schema": "none of the schemas that may be read is there ({schemas})",
    "connection.nobody_answers": "start that server, open its port to this machine, or correct {place}",
    "connection.none": "there is no connection {name!r}; there are: {known}",
    "connection.not_kept": "no connection {name!r} is kept in the metastore",
    "connection.not_kept_add": "no connection {name!r} is kept in the metastore: add it first",
    "connection.other_version": "it is PostgreSQL {version}",
    "connection.pooled": "use the server's own address, or a pool in session mode (pgbouncer: pool_mode = session)",
    "connection.sees_nothing": (
        "{login} cannot see other sessions' transactions, so incremental pipelines read much twice"
    ),
    "connection.ssl": "set sslmode and sslrootcert in {place} as the server asks for",
    "connection.superuser": "its login {login} is a superuser: a mistake in a query could do anything there",
    "connection.url_at": "the URL has more than one @: in a password, write it as %40",
    "connection.url_files": "the URL must not set {settings}: files of the runner's machine are set in its environment",
    "connection.url_host": (
        "the URL must name a host: a socket of the runner's machine can only be set in its environment"
    ),
    "connection.url_kind": "{why}, and no connector for URLs of this kind is installed here: {known}",
    "connection.url_lacks": "the URL does not say the {part}: postgresql://USER:PASSWORD@HOST:5432/DATABASE",
    "connection.url_session": "the URL must not set {settings}: how sessions behave is set by the platform",
    "connection.url_too_long": "it is too long",
    "connection.use_reader": "use a login that may only read, or ALTER ROLE {login} NOSUPERUSER",
    "connection.use_version": "use PostgreSQL {versions}",
    "connection.wrong_password": "correct login or password in {place}; the server does not say which",
    "suggestion.bounded_lag": (
        "guarantee bounded-lag: {column} may be written by another clock than the database's, so each pass reads"
        " {minutes} minutes back (does only the database write it? options.cursor_clock: database makes it exact)"
    ),
    "suggestion.daily": (
        "compared with its source once a day: a deleted row has no cursor (`vitrina reconcile --repair`)"
    ),
    "request.no_plan": "there is no plan {id}: `vitrina plan` makes one, and says its id",
    "request.not_planned": (
        "pipeline {pipeline} would change, and none of the plans is about it: make one with `vitrina plan -f`, or apply"
        " the file without it"
    ),
    "request.plan_of_another": (
        "plan {id} is about pipeline {pipeline}, which is not applied here (only {declared}): leave the plan out"
    ),
    "request.plan_of_other_definition": (
        "plan {id} of pipeline {pipeline} looked at another definition than the one to be applied: make a plan of this"
        " one with `vitrina plan -f`"
    ),
    "request.plan_of_other_version": (
        "plan {id} of pipeline {pipeline} was made beside version {looked_at}, and it is at version {version} now: make"
        " a new plan with `vitrina plan -f`"
    ),
    "request.prune_not_planned": (
        "{pipelines} would be deleted, which no plan looks at: apply without prune, and prune in a step of its own"
    ),
    "suggestion.exact": "guarantee exact: triggers set {column} by the database's clock for every row",
    "suggestion.full_as_said": "mode full: as you said",
    "suggestion.full_equals": (
        "each run reads everything, writes what differs and deletes what is gone: the mart equals its source after it"
    ),
    "suggestion.full_no_cursor": (
        "mode full: {table} has no timestamp that says when a row was last changed (such as updated_at)"
    ),
    "suggestion.live": "mode live: as you said; the source needs wal_level = logical (docs/how-to/live.md)",
    "suggestion.incremental": "mode incremental by {column}: {moved}",
    "suggestion.key_as_said": "key {columns}: as you said",
    "suggestion.name_tells": (
        "its name says when a row was last changed; nothing in the database makes sure that a change sets it"
    ),
    "suggestion.no_column": "{flag} {name}: {table} has no such column; it has {there}",
    "suggestion.no_index": (
        "no index starts with {column}, so each pass reads the whole table: CREATE INDEX CONCURRENTLY ON"
        " {schema}.{table} ({indexed})"
    ),
    "suggestion.no_schema": "there is no schema {schema!r}; there are: {schemas}",
    "suggestion.no_table": "there is no table {schema}.{name}; {schema} has: {there}",
    "suggestion.null_cursor": "{column} may be NULL: rows without it are read on every pass",
    "suggestion.primary_key": "key {columns}: the primary key of {table}",
    "suggestion.schema_not_allowed": "schema {schema!r} may not be read; allowed are {allowed_source_schemas}",
    "suggestion.trigger_moves": "a trigger sets it whenever a row is changed",
    "suggestion.unique_index": "key {columns}: a unique index without NULL; {table} has no primary key",
    "wait.arrived": "{name} has succeeded: the run is used as soon as the others have, too",
    "wait.changing_success": "a success that changed rows",
    "wait.for_disabled": "waits for {news} of {name}, which is disabled",
    "wait.for_failed": "waits for {news} of {name}, which is FAILED: see what is wrong with it, then run it",
    "wait.for_news": "waits for {news} of {name}, which is {status}",
    "wait.success": "a success",
    "version.changed": "changed {fields}",
    "version.created": "created",
    "version.disabled": "disabled",
    "version.edited": "edited by hand",
    "version.enabled": "enabled",
    "version.found": "found in the metastore",
    "version.rolled_back": "rolled back to version {version}",
}
