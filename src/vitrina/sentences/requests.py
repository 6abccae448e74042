"""What the API and its runners answer to a request."""

SENTENCES = {
    "request.bad_request": "the body cannot be read as JSON",
    "request.body_too_large": "the body is too large; send less at a time",
    "request.body_too_slow": "the body did not arrive in time; send less at a time",
    "request.cursor_of_other_sort": "the cursor belongs to sort={sort}: omit it to start over",
    "request.foreign_cursor": "the cursor is not valid, or belongs to other filters: omit it to start over",
    "request.foreign_page": "authentication is off, so requests from pages of {origin} are refused",
    "request.internal": "an unexpected error occurred; the log has the details under {reference}",
    "request.key_of_other_body": "Idempotency-Key {key!r} was used with another body; use a new key for each request",
    "request.key_of_other_pipeline": (
        "Idempotency-Key {key!r} was used for another pipeline; use a new key for each request"
    ),
    "request.metastore_away": (
        "the metastore (Postgres) does not answer or is too busy: try again in a moment; if this persists, the operator"
        " should check VITRINA_DATABASE_URL and GET /health"
    ),
    "request.method_not_allowed": "{method} is not allowed on {path}; the Allow header lists the methods that are",
    "request.moment": "write a time such as 2026-01-31T12:00:00Z",
    "request.nested": "the body is nested more than {levels} levels deep: send flatter values",
    "request.no_events": "the metastore does not answer, so there are no events to follow: try again shortly",
    "request.no_json": "the body is not valid JSON: {reason}",
    "request.no_json_at": "the body is not valid JSON: {reason} (at character {character})",
    "request.no_token": "the request has no token: send `Authorization: Bearer <token>`",
    "request.none": "there is no request {id}",
    "request.not_found": "there is nothing at {path}; /docs lists the API's paths",
    "request.role_too_low": "the token {name!r} has the role {role}; this request needs {needed}",
    "request.superseded": "a later request replaced this one",
    "request.test_is_for_admins": "the token {name!r} has the role {role}; only admins may test a connection",
    "request.this_machine_only": (
        "authentication is off, so the API serves only this machine, as localhost or 127.0.0.1"
    ),
    "request.too_many_attempts": "too many wrong tokens from your address: wait a minute, then try again",
    "request.too_many_streams": (
        "{most} event streams are open, half of the connections that this API accepts: close some, or raise"
        " VITRINA_API_MAX_CONNECTIONS"
    ),
    "request.unknown_to_runner": "this runner does not support requests of kind {kind!r}; it may be older than the API",
    "request.unknown_token": "the token is unknown, revoked or expired: ask an admin for a new one",
    "request.unparsable": "it cannot be parsed",
    "request.unstorable": "a value cannot be stored: it contains characters that Postgres does not accept",
    "pipeline.about_to_pause": (
        "pipeline {name} is about to pause (PAUSE_REQUESTED): wait until it is PAUSED, then resume it"
    ),
    "pipeline.asked_while_paused": (
        "pipeline {name} waits for a runner; the paused load is continued first, and a second run with the trigger"
        " `follow-up` then reads what that load could not see (`resume` only continues the load)"
    ),
    "pipeline.at_work": "pipeline {name} is running; another run follows this one",
    "pipeline.backfill_first": "pipeline {name} has a backfill to do first; the requested run follows it",
    "pipeline.became": "the status of pipeline {name} has changed to {status}; wait until it is IDLE, then try again",
    "pipeline.cancelled": "the run of pipeline {name} is cancelled; `run` starts from the checkpoint",
    "pipeline.changed_now": "pipeline {name} was changed at the same time; read it again, then repeat your change",
    "pipeline.changed_since": (
        "pipeline {name} was changed and is now at version {version}, not {expected}; read it again, then repeat your"
        " change"
    ),
    "pipeline.deleted": "pipeline {pipeline_id} has been deleted",
    "pipeline.disabled": "pipeline {name} is disabled",
    "pipeline.disabled_no_resume": "pipeline {name} is disabled: enable it, then resume it",
    "pipeline.disabled_no_run": "pipeline {name} is disabled: enable it, then run it",
    "pipeline.empty_range": "until is {until!r}, which is not after since, {since!r}, so the range is empty",
    "pipeline.enabled": "pipeline {name} is enabled",
    "pipeline.from_next_batch": "pipeline {name} uses version {version} from the next batch on",
    "pipeline.from_next_run": "pipeline {name} uses version {version} from the next run on",
    "pipeline.goes_on": "pipeline {name} resumes where it stopped",
    "pipeline.locked": (
        "pipeline {name} is {status}: {fields} cannot change during a run; pause it, wait until it is PAUSED, then"
        " change it"
    ),
    "pipeline.name_taken": "a pipeline named {name!r} already exists: choose another name, or change that one",
    "pipeline.no_accept_now": (
        "pipeline {name} is {status}: checks can be accepted only for a run that has not started; wait until this run"
        " ends, then try again"
    ),
    "pipeline.no_backfill_now": (
        "pipeline {name} is {status}: a backfill can start only from IDLE or FAILED; wait until the run ends, or cancel"
        " it"
    ),
    "pipeline.no_check": "pipeline {name} has no check {check!r} to accept; it has: {known}",
    "pipeline.no_cursor": "pipeline {name} is in mode {mode!r}: only mode 'incremental' has a cursor",
    "pipeline.no_cursor_to_backfill": "pipeline {name} is in mode 'full': it has no cursor to backfill by",
    "pipeline.no_delete_now": (
        "pipeline {name} is {status} and cannot be deleted now: pause it, wait until it is PAUSED, then delete it"
    ),
    "pipeline.no_letters_of_group": "pipeline {name} has no open dead letters in this group any more",
    "pipeline.no_repair_now": (
        "pipeline {name} is {status}: rows cannot be repaired during a run; pause it or wait until it is IDLE, then try"
        " again (a comparison without `repair` is possible at any time)"
    ),
    "pipeline.no_replay_now": (
        "pipeline {name} is {status}: dead letters cannot be replayed during a run; pause it or wait until it is IDLE,"
        " then try again"
    ),
    "pipeline.no_report": "pipeline {name} has no finished reconcile report yet: request one with POST .../reconcile",
    "pipeline.no_report_of_kind": "pipeline {name} has no {kind} report yet: request one with POST to the same address",
    "pipeline.no_reset_now": (
        "pipeline {name} is {status}: its checkpoint belongs to the current run; pause it, wait until it is PAUSED,"
        " then reset"
    ),
    "pipeline.no_value_of_cursor": (
        "{field} is {value!r}, which is not a valid value of incremental_key {column} ({type}); nothing was started:"
        " write it as the source does"
    ),
    "pipeline.no_version": "pipeline {name} has no version {version}; the latest is {newest}",
    "pipeline.none": "there is no pipeline {name!r}; `vitrina pipelines` or GET /pipelines lists all pipelines",
    "pipeline.none_but": "there is no pipeline {name!r}: did you mean {near!r}?",
    "pipeline.not_paused": (
        "pipeline {name} is {status}: only a PAUSED pipeline can be resumed; in any other status, start one with `run`"
    ),
    "pipeline.nothing_to_cancel": (
        "pipeline {name} is {status}: no run of it is waiting or running, so there is nothing to cancel"
    ),
    "pipeline.history_has_a_writer": (
        "target {target} is already written by pipeline {other}, and a mart with options.history can have only one"
        " writer; choose another target"
    ),
    "pipeline.nothing_to_pause": (
        "pipeline {name} is {status}: no run of it is running, so there is nothing to pause; disable it to keep it from"
        " starting"
    ),
    "pipeline.others_wait": (
        "pipeline {name} cannot be deleted, because {waiting} would wait for it forever: remove it from their run_after"
        " first"
    ),
    "pipeline.paused": "pipeline {name} is paused; `resume` continues it",
    "pipeline.request_is_over": (
        "pipeline {name} is {status}, and the run requested at {at} has ended, or another one was requested since;"
        " without `run_requested_at`, `cancel` ends any run that is waiting or running"
    ),
    "pipeline.run_when_paused": "pipeline {name} is {status}: wait until it is PAUSED, then run it",
    "pipeline.target_busy": "another pipeline is writing to the same target: wait until it is done, then try again",
    "pipeline.target_has_a_writer": (
        "target {target} is already written by pipeline {other}, and a full load deletes rows that its own source does"
        " not have; choose another target, or set options.shared_target on both"
    ),
    "pipeline.waits_for": "waits for a runner with {what}",
    "pipeline.waits_for_runner": "pipeline {name} waits for a runner",
    "pipeline.will_pause": (
        "pipeline {name} will pause at the next batch boundary, or at once if it runs as one statement; `resume`"
        " continues it"
    ),
    "token.bad_name": "token name {name!r} is not valid: use up to 100 letters, digits and _ . @ -",
    "token.exists": "a token named {name!r} already exists, or existed and was revoked: choose another name",
    "token.expiry": "expires_in_days must be from 1 to {most}",
    "token.none": "there is no token {name!r}",
    "connection.bad_name": (
        "connection name {name!r} is not valid: use up to 63 lower-case letters, digits and _, not ending in {endings}"
    ),
    "connection.bad_url": "url: {why}",
    "connection.default": "the connection 'default' is the metastore's own database: choose another name",
    "connection.exists": "connection {name!r} already exists: replace it (`--replace`, PUT), or remove it first",
    "connection.hba": "ask the server's administrator to allow this login from here (pg_hba.conf)",
    "connection.in_environment": "connection {name!r} is set in the environment ({variable}): remove it there",
    "connection.in_environment_first": (
        "connection {name!r} is set in the environment ({variable}), which takes precedence"
    ),
    "connection.in_use": "connection {name!r} is used by {pipelines}: change or delete these first",
    "connection.lists_no_tables": "connection {name!r} belongs to connector {connector}, which cannot list tables",
    "connection.make_a_key": "generate one with `openssl rand -base64 32`, set it for every runner and restart them",
    "connection.name_schemas": "name its schemas in VITRINA_ALLOWED_SOURCE_SCHEMAS",
    "connection.no_database": "create the database, or correct its name in {place}",
    "connection.no_host": "correct the host's name in {place}",
    "connection.no_key": (
        "no live runner has VITRINA_SECRET_KEY, and only a runner's key can seal a connection: {remedy}"
    ),
    "connection.no_login": "create the login on the server, or correct it in {place}",
    "connection.no_password": "put the password into {place}",
    "connection.no_runner": "no runner is alive, and only a runner's key can seal a connection: {remedy}",
    "connection.no_schema": "none of the schemas that may be read exists ({schemas})",
    "connection.nobody_answers": "start that server, open its port to this machine, or correct {place}",
    "connection.none": "there is no connection {name!r}; there are: {known}",
    "connection.not_kept": "connection {name!r} is not stored in the metastore",
    "connection.not_kept_add": "connection {name!r} is not stored in the metastore: add it first",
    "connection.other_version": "it is PostgreSQL {version}",
    "connection.pooled": "use the server's own address, or a pool in session mode (pgbouncer: pool_mode = session)",
    "connection.sees_nothing": (
        "{login} cannot see other sessions' transactions, so incremental pipelines read many rows twice"
    ),
    "connection.ssl": "set sslmode and sslrootcert in {place} as the server requires",
    "connection.superuser": "its login {login} is a superuser, so a mistake in a query could change anything there",
    "connection.url_at": "the URL has more than one @: write an @ in the password as %40",
    "connection.url_files": (
        "the URL must not set {settings}: files on the runner's machine can be set only in its environment"
    ),
    "connection.url_host": (
        "the URL must name a host: a socket on the runner's machine can be set only in its environment"
    ),
    "connection.url_kind": "{why}, and no connector for URLs of this kind is installed here; installed: {known}",
    "connection.url_lacks": "the URL has no {part}: write postgresql://USER:PASSWORD@HOST:5432/DATABASE",
    "connection.url_session": "the URL must not set {settings}: the platform sets the parameters of its sessions",
    "connection.url_too_long": "it is too long",
    "connection.use_reader": "use a read-only login, or ALTER ROLE {login} NOSUPERUSER",
    "connection.use_version": "use PostgreSQL {versions}",
    "connection.wrong_password": "correct the login or the password in {place}; the server does not say which is wrong",
    "suggestion.bounded_lag": (
        "guarantee bounded-lag: a clock other than the database's may write {column}, so each pass reads {minutes}"
        " minutes back (if only the database writes it, options.cursor_clock: database makes the guarantee exact)"
    ),
    "suggestion.daily": (
        "compared with its source once a day, because a deleted row has no cursor (`vitrina reconcile --repair`)"
    ),
    "request.no_plan": "there is no plan {id}: `vitrina plan` creates one and prints its id",
    "request.not_planned": (
        "pipeline {pipeline} would change, and no plan covers it: create one with `vitrina plan -f`, or apply the file"
        " without this pipeline"
    ),
    "request.plan_of_another": (
        "plan {id} is about pipeline {pipeline}, which is not applied here (only {declared}): omit the plan"
    ),
    "request.plan_of_other_definition": (
        "plan {id} of pipeline {pipeline} was created for another definition than the one to be applied: create a new"
        " plan with `vitrina plan -f`"
    ),
    "request.plan_of_other_version": (
        "plan {id} of pipeline {pipeline} was created for version {looked_at}, and the pipeline is now at version"
        " {version}: create a new plan with `vitrina plan -f`"
    ),
    "request.prune_not_planned": (
        "{pipelines} would be deleted, which no plan covers: apply without prune, and prune in a separate step"
    ),
    "suggestion.exact": "guarantee exact: triggers set {column} from the database's clock for every row",
    "suggestion.full_as_said": "mode full: as requested",
    "suggestion.full_equals": (
        "each run reads everything, writes what differs and deletes rows that left the source, so the mart then equals"
        " its source"
    ),
    "suggestion.full_no_cursor": (
        "mode full: {table} has no timestamp column that shows when a row was last changed (such as updated_at)"
    ),
    "suggestion.live": "mode live: as requested; the source needs wal_level = logical (docs/how-to/live.md)",
    "suggestion.incremental": "mode incremental by {column}: {moved}",
    "suggestion.key_as_said": "key {columns}: as requested",
    "suggestion.name_tells": (
        "its name suggests the time of a row's last change, but nothing in the database makes sure that a change sets"
        " it"
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
    "suggestion.schema_not_allowed": "schema {schema!r} may not be read; allowed: {allowed_source_schemas}",
    "suggestion.trigger_moves": "a trigger sets it whenever a row is changed",
    "suggestion.unique_index": "key {columns}: a unique index without NULL; {table} has no primary key",
    "wait.arrived": "{name} has succeeded: the run counts as soon as the others have succeeded too",
    "wait.changing_success": "a success that changed rows",
    "wait.for_disabled": "waits for {news} of {name}, which is disabled",
    "wait.for_failed": "waits for {news} of {name}, which is FAILED: fix it, then run it",
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
