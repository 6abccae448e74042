"""Create the metastore: definitions, state, runs, leases, requests, audit and events."""

from alembic import op

revision = "0001"
down_revision = None

PIPELINES = """
CREATE TABLE etl.etl_pipelines (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name               text NOT NULL UNIQUE CHECK (name <> ''),
    description        text NOT NULL DEFAULT '',
    type               text NOT NULL DEFAULT 'SQL' CHECK (type IN ('SQL', 'PYTHON')),
    source_type        text NOT NULL DEFAULT 'postgres',
    source_connection  text NOT NULL DEFAULT 'default',
    source_query       text,
    python_task        text,
    target_table       text NOT NULL,
    target_key         text[],
    mode               text NOT NULL DEFAULT 'full' CHECK (mode IN ('full', 'incremental')),
    incremental_key    text,
    incremental_id_key text,
    batch_size         integer NOT NULL DEFAULT 5000 CHECK (batch_size > 0),
    enabled            boolean NOT NULL DEFAULT true,
    schedule_interval  text,
    status             text NOT NULL DEFAULT 'IDLE' CHECK (status IN
                           ('IDLE', 'RUN_REQUESTED', 'RUNNING', 'PAUSE_REQUESTED', 'PAUSED', 'FAILED')),
    status_since       timestamptz NOT NULL DEFAULT now(),
    options            jsonb NOT NULL DEFAULT '{}',
    version            integer NOT NULL DEFAULT 1,
    managed_by         text,
    -- the lease
    epoch              bigint NOT NULL DEFAULT 0,
    claim_id           uuid,
    runner_id          uuid,
    lease_until        timestamptz,
    holds_target       text,
    -- requests and what became of them
    run_requested_at   timestamptz,
    requested_trigger  text,
    requested_range    jsonb,
    attempts           integer NOT NULL DEFAULT 0,
    next_run_at        timestamptz,
    last_error         text,
    hold               jsonb,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    CHECK (mode = 'full' OR incremental_key IS NOT NULL OR type = 'PYTHON')
);
-- One writer per target.
CREATE UNIQUE INDEX etl_pipelines_one_writer ON etl.etl_pipelines (holds_target) WHERE holds_target IS NOT NULL;
-- What runners look for: little of a large table, so that thousands of idle pipelines cost nothing.
CREATE INDEX etl_pipelines_requested ON etl.etl_pipelines (run_requested_at, id) WHERE status = 'RUN_REQUESTED';
CREATE INDEX etl_pipelines_active ON etl.etl_pipelines (lease_until)
    WHERE status IN ('RUNNING', 'PAUSE_REQUESTED');
CREATE INDEX etl_pipelines_due ON etl.etl_pipelines (next_run_at)
    WHERE next_run_at IS NOT NULL AND enabled;

CREATE TABLE etl.etl_pipeline_tasks (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pipeline_id  uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    order_index  integer NOT NULL CHECK (order_index >= 0),
    task_type    text NOT NULL CHECK (task_type IN ('SQL', 'PYTHON')),
    body         text NOT NULL,
    params       jsonb NOT NULL DEFAULT '{}',
    source_table text,
    target_table text,
    UNIQUE (pipeline_id, order_index)
);

CREATE TABLE etl.etl_pipeline_versions (
    pipeline_id    uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    version        integer NOT NULL,
    definition     jsonb NOT NULL,
    changed_by     text NOT NULL,
    changed_at     timestamptz NOT NULL DEFAULT now(),
    change_summary text NOT NULL DEFAULT '',
    PRIMARY KEY (pipeline_id, version)
);
"""

RUNS = """
CREATE TABLE etl.etl_runs (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pipeline_id      uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    pipeline_version integer NOT NULL DEFAULT 1,
    trigger          text NOT NULL CHECK (trigger IN ('manual', 'schedule', 'api', 'recovery')),
    started_at       timestamptz NOT NULL DEFAULT now(),
    finished_at      timestamptz,
    status           text NOT NULL CHECK (status IN ('RUNNING', 'SUCCESS', 'FAILED', 'PAUSED', 'CANCELLED')),
    rows_read        bigint NOT NULL DEFAULT 0,
    rows_written     bigint NOT NULL DEFAULT 0,
    rows_deleted     bigint NOT NULL DEFAULT 0,
    rows_rejected    bigint NOT NULL DEFAULT 0,
    batches          bigint NOT NULL DEFAULT 0,
    attempts         integer NOT NULL DEFAULT 1,
    runner_id        uuid,
    epoch            bigint,
    cursor_from      text,
    cursor_to        text,
    error_code       text,
    error_message    text CHECK (length(error_message) <= 4000),
    metrics          jsonb NOT NULL DEFAULT '{}',
    updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX etl_runs_of_pipeline ON etl.etl_runs (pipeline_id, started_at DESC, id DESC);
CREATE INDEX etl_runs_recent ON etl.etl_runs (started_at DESC, id DESC);
CREATE INDEX etl_runs_open ON etl.etl_runs (pipeline_id) WHERE status = 'RUNNING';

CREATE TABLE etl.etl_state (
    pipeline_id        uuid PRIMARY KEY REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    last_processed_key text,
    last_processed_id  text,
    safe_upto          text,
    held_upto          text,
    epoch              bigint NOT NULL DEFAULT 0,
    claim_id           uuid,
    batch_no           bigint NOT NULL DEFAULT 0,
    segments           jsonb NOT NULL DEFAULT '{}',
    rows               bigint NOT NULL DEFAULT 0,
    stage              text,
    fingerprint        text,
    load_started_at    timestamptz,
    run_id             uuid,
    updated_at         timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE etl.etl_runners (
    id           uuid PRIMARY KEY,
    host         text NOT NULL,
    pid          integer NOT NULL,
    version      text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    capacity     integer NOT NULL,
    running      integer NOT NULL DEFAULT 0,
    transforms   jsonb NOT NULL DEFAULT '[]'
);

-- What the API asks of a runner because it needs a source or a sink: preview, validate, reconcile.
CREATE TABLE etl.etl_requests (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind         text NOT NULL,
    pipeline_id  uuid REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    payload      jsonb NOT NULL DEFAULT '{}',
    status       text NOT NULL DEFAULT 'QUEUED' CHECK (status IN ('QUEUED', 'WORKING', 'DONE', 'FAILED')),
    runner_id    uuid,
    lease_until  timestamptz,
    result       jsonb,
    error        jsonb,
    requested_by text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL DEFAULT now(),
    finished_at  timestamptz
);
CREATE INDEX etl_requests_queued ON etl.etl_requests (created_at) WHERE status IN ('QUEUED', 'WORKING');
CREATE INDEX etl_requests_of_pipeline ON etl.etl_requests (pipeline_id, kind, created_at DESC);

CREATE TABLE etl.etl_dead_letters (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    run_id      uuid REFERENCES etl.etl_runs ON DELETE SET NULL,
    document_id text NOT NULL,
    error       text NOT NULL,
    document    jsonb,
    created_at  timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz
);
CREATE INDEX etl_dead_letters_open ON etl.etl_dead_letters (pipeline_id, id) WHERE resolved_at IS NULL;
"""

ACCESS = """
CREATE TABLE etl.etl_api_tokens (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name         text NOT NULL UNIQUE,
    role         text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    token_hash   bytea NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz
);

CREATE TABLE etl.etl_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    who        text NOT NULL,
    action     text NOT NULL,
    object     text NOT NULL,
    before     jsonb,
    after      jsonb,
    request_id text
);
CREATE INDEX etl_audit_of_object ON etl.etl_audit (object, id DESC);

CREATE FUNCTION etl.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'etl.% is append-only', TG_TABLE_NAME;
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON etl.etl_audit
    FOR EACH STATEMENT EXECUTE FUNCTION etl.refuse_change();

CREATE TABLE etl.etl_idempotency_keys (
    key         text PRIMARY KEY,
    pipeline_id uuid NOT NULL REFERENCES etl.etl_pipelines ON DELETE CASCADE,
    response    jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE etl.etl_events (
    id      bigserial PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    topic   text NOT NULL,
    payload jsonb NOT NULL
);
CREATE INDEX etl_events_by_age ON etl.etl_events (at);

CREATE FUNCTION etl.announce_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('vitrina_events', NEW.id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT ON etl.etl_events FOR EACH ROW EXECUTE FUNCTION etl.announce_event();

-- The API, a runner or a person with psql may move a status: each wakes the runners and is told to listeners.
CREATE FUNCTION etl.stamp_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.status_since := clock_timestamp();
    RETURN NEW;
END $$;
CREATE TRIGGER stamp_status BEFORE UPDATE OF status ON etl.etl_pipelines
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION etl.stamp_status();

CREATE FUNCTION etl.announce_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO etl.etl_events (topic, payload) VALUES ('status', jsonb_build_object(
        'pipeline_id', NEW.id, 'pipeline', NEW.name, 'from', OLD.status, 'to', NEW.status, 'epoch', NEW.epoch));
    IF NEW.status IN ('RUN_REQUESTED', 'PAUSE_REQUESTED') THEN
        PERFORM pg_notify('vitrina_wake', NEW.id::text);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER announce_status AFTER UPDATE OF status ON etl.etl_pipelines
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION etl.announce_status();

CREATE FUNCTION etl.announce_request() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('vitrina_wake', NEW.id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER announce_request AFTER INSERT ON etl.etl_requests
    FOR EACH ROW EXECUTE FUNCTION etl.announce_request();
"""

LEDGER = """
-- The checkpoint row of pipelines whose target lives in this database but whose metastore does not; there already
-- where one of those has run before this database got a metastore of its own (vitrina.store.target_schema).
CREATE TABLE IF NOT EXISTS etl_stage.ledger (LIKE etl.etl_state INCLUDING DEFAULTS INCLUDING INDEXES);
"""


def upgrade() -> None:
    # With the driver's own cursor: SQLAlchemy would take the `%` of a plpgsql message for a placeholder.
    cursor = op.get_bind().connection.cursor()
    for statements in (PIPELINES, RUNS, ACCESS, LEDGER):
        cursor.execute(statements)
