/** What the API answers (src/vitrina/schemas.py), as far as the console shows it. */

export type Status = "IDLE" | "RUN_REQUESTED" | "RUNNING" | "PAUSE_REQUESTED" | "PAUSED" | "FAILED";
export type RunStatus = "RUNNING" | "SUCCESS" | "FAILED" | "PAUSED" | "CANCELLED";
export type Role = "viewer" | "operator" | "admin";

export interface Page<Item> {
  items: Item[];
  next_cursor: string | null;
}

export interface FieldProblem {
  path: string;
  message: string;
  code: string;
  /** Of a query: where in its text, counted from 1. */
  line?: number | null;
  column?: number | null;
}

export interface Me {
  name: string;
  role: Role;
  auth: "off" | "token";
}

export interface RecentRun {
  id: string;
  status: RunStatus;
  started_at: string;
  seconds: number;
  rows_written: number;
}

export interface PipelineOverview {
  id: string;
  name: string;
  description: string;
  type: string;
  mode: Mode;
  source_connection: string;
  target_table: string;
  enabled: boolean;
  schedule_interval: string | null;
  next_run_at: string | null;
  status: Status;
  status_since: string;
  version: number;
  managed_by: string | null;
  labels: Record<string, string>;
  last_error: string | null;
  /** Why no live runner takes it up. */
  waiting: string | null;
  is_held: boolean;
  last_success_at: string | null;
  dead_letters: number;
  recent: RecentRun[];
}

export type AttentionKind = "failed" | "stale" | "overdue" | "differs" | "dead_letters" | "blocked" | "held" | "queued";

export interface Attention {
  kind: AttentionKind;
  pipeline_id: string;
  pipeline: string;
  since: string | null;
  count: number | null;
  seconds: number | null;
  limit_seconds: number | null;
  message: string | null;
}

export interface ActivityRun {
  id: string;
  status: RunStatus;
  trigger: string;
  started_at: string;
  seconds: number;
}

export interface Activity {
  pipeline_id: string;
  pipeline: string;
  runs: ActivityRun[];
}

/** What needs attention, what ran lately, what comes next, who works. */
export interface Home {
  at: string;
  hours: number;
  pipelines: number;
  statuses: Partial<Record<Status, number>>;
  dead_letters: number;
  attention: Attention[];
  attention_counts: Partial<Record<AttentionKind, number>>;
  activity: Activity[];
  activity_left_out: number;
  upcoming: { pipeline_id: string; pipeline: string; next_run_at: string; schedule_interval: string }[];
  runners: { alive: number; capacity: number; running: number };
}

export interface RunAfter {
  pipeline: string;
  only_if_changed: boolean;
}

export interface GraphNode {
  id: string;
  kind: "table" | "index" | "python" | "pipeline";
  name: string;
  connection: string | null;
  status: Status | null;
  enabled: boolean;
  data_as_of: string | null;
}

export interface GraphEdge {
  source: string;
  target: string;
  kind: "reads" | "writes" | "run_after";
  arrived: boolean | null;
  only_if_changed: boolean;
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
  next_cursor: string | null;
}

export interface Task {
  order_index: number;
  task_type: "SQL" | "PYTHON";
  body: string;
  params: Record<string, unknown>;
  source_table: string | null;
  target_table: string | null;
}

/** The fields that an author sets. */
export interface Definition {
  name: string;
  description: string;
  type: "SQL" | "PYTHON";
  source_type: string;
  source_connection: string;
  source_query: string | null;
  source_table: string | null;
  python_task: string | null;
  target_table: string;
  target_key: string[] | null;
  mode: Mode;
  incremental_key: string | null;
  incremental_id_key: string | null;
  batch_size: number;
  enabled: boolean;
  schedule_interval: string | null;
  run_after: RunAfter[];
  options: Record<string, unknown>;
  checks?: Record<string, unknown>[];
  tasks: Task[];
}

export interface Pipeline extends Definition {
  id: string;
  labels: Record<string, string>;
  status: Status;
  status_since: string;
  version: number;
  managed_by: string | null;
  next_run_at: string | null;
  last_error: string | null;
  created_at: string;
  updated_at: string;
}

export interface Plan {
  key: string[];
  route: string;
  paging: string;
  deletes: boolean;
  guarantee: string;
  loads_at_once: boolean;
  reasons: string[];
  warnings: string[];
}

/** What came of one check of a run; viewers are not shown the rows. */
export interface CheckOutcome {
  name: string;
  kind: string;
  result: "passed" | "warned" | "accepted" | "rejected" | "failed";
  found: string;
  rows?: number;
  offending_rows?: Record<string, unknown>[] | string;
}

export interface RunMetrics {
  checks?: CheckOutcome[];
  plan?: Plan;
  inserted?: number;
  updated?: number;
  deleted?: number;
  unchanged?: number;
  rejected?: number;
  rows_estimate?: number;
  stage_seconds?: Record<string, number>;
  batch_ms?: { p50: number | null; p95: number | null; max: number | null };
  guarantee?: string;
  consistency?: string;
  repair?: unknown;
  replay?: unknown;
}

export interface Run {
  id: string;
  pipeline_id: string;
  pipeline: string;
  pipeline_version: number;
  trigger: string;
  status: RunStatus;
  started_at: string;
  finished_at: string | null;
  duration_seconds: number;
  rows_read: number;
  rows_written: number;
  rows_deleted: number;
  rows_rejected: number;
  rows_per_second: number | null;
  batches: number;
  attempts: number;
  runner_id: string | null;
  cursor_from: string | null;
  cursor_to: string | null;
  error_code: string | null;
  error_message: string | null;
  next_step: string | null;
  metrics: RunMetrics;
  answers_request: string | null;
  labels: Record<string, string>;
}

export interface RangesProgress {
  done: number;
  left: number;
  workers: number;
  /** Rows read so far; executors of a cluster do not report them. */
  under_way?: { part: number; range: string; rows?: number | null }[];
  /** Of a cluster: how many of those it runs now. */
  running?: number | null;
}

export interface Progress {
  rows_read: number;
  rows_written: number;
  batches: number;
  elapsed_seconds: number;
  rows_per_second: number | null;
  rows_estimate: number | null;
  percent: number | null;
  eta_seconds: number | null;
  /** Of a load that processes bring side by side. */
  ranges?: RangesProgress | null;
}

export type Mode = "full" | "incremental" | "live";

/** Where a live pipeline stands: its target is the query's result at that moment. */
export interface Following {
  as_of: string;
  lag_seconds: number;
}

export interface Lag {
  last_success_at: string | null;
  seconds_since_success: number | null;
  cursor_lag_seconds: number | null;
  data_as_of: string | null;
}

export interface PipelineStatus {
  pipeline_id: string;
  pipeline: string;
  status: Status;
  since: string;
  enabled: boolean;
  version: number;
  next_run_at: string | null;
  waiting: string | null;
  runner: { id: string; host: string; pid: number; alive: boolean } | null;
  run: Run | null;
  /** The same without repairs and replays, which correct some rows only. */
  last_load: Run | null;
  progress: Progress | null;
  following: Following | null;
  checkpoint: {
    last_processed_key: string | null;
    last_processed_id: string | null;
    safe_upto: string | null;
    held_upto: string | null;
    batch_no: number;
    rows: number;
    stage: string | null;
    updated_at: string | null;
  } | null;
  lag: Lag;
  hold: Record<string, unknown> | null;
  guarantee: string | null;
  last_error: { code: string; message: string; next_step: string; run_id: string | null; at: string | null } | null;
  recent: {
    runs: number;
    succeeded: number;
    failed: number;
    success_rate: number | null;
    p50_seconds: number | null;
    p95_seconds: number | null;
    rows_written: number;
  };
}

export interface Version {
  version: number;
  definition: Record<string, unknown>;
  changed_by: string;
  changed_at: string;
  change_summary: string;
}

export interface FieldChange {
  path: string;
  before: unknown;
  after: unknown;
}

export interface RunnerRequest {
  id: string;
  kind: string;
  status: "QUEUED" | "WORKING" | "DONE" | "FAILED";
  result: Record<string, unknown> | null;
  error: { code?: string; message?: string; line?: number; column?: number } | null;
  created_at: string;
  finished_at: string | null;
}

/** A kind of source, of target, or of both. */
export interface Connector {
  name: string;
  summary: string;
  package: string;
  version: string;
  schemes: string[];
  prefix: string | null;
  source: boolean;
  target: boolean;
  /** JSON Schema of `options.<name>`. */
  options: Record<string, unknown> | null;
  runners: number;
}

export interface Connection {
  name: string;
  connector: string | null;
  set_in: "environment" | "metastore";
  pipelines: string[];
  updated_at: string | null;
  updated_by: string | null;
}

/** What a runner found when it tried a connection. */
export interface Finding {
  status: "OK" | "WARNING" | "PROBLEM";
  finding: string;
  next_step: string;
}

export interface Column {
  name: string;
  type: string;
}

export interface Rows {
  columns: Column[];
  rows: Record<string, unknown>[];
}

/** What would be written; `before` is what the query gives where Python steps follow it. */
export interface Preview extends Rows {
  before?: Rows;
  /** Why rows would become dead letters. */
  rejected?: string[];
}

export interface Table {
  schema: string;
  name: string;
  columns: Column[];
}

export interface Side {
  rows: number | null;
  least?: string | null;
  greatest?: string | null;
}

/** What is in a target. */
export interface TargetProfile {
  target: string;
  rows: number;
  size_bytes: number | null;
  profiled_rows: number;
  columns: ColumnProfile[];
}

/** Viewers get a word in place of values. */
export interface ColumnProfile {
  name: string;
  type: string;
  nulls: number;
  distinct: number;
  min_value: string | null;
  max_value: string | null;
  top_values: { value: string; rows: number }[] | string;
}

/** What a full load would change in a target. */
export interface DataPlan {
  id: string;
  pipeline: string;
  target: string;
  target_exists: boolean;
  columns: { added: PlannedColumn[]; removed: PlannedColumn[]; retyped: { name: string; before: string; after: string }[] };
  rows: {
    before: number;
    after: number;
    added: number;
    changed: number;
    removed: number;
    unchanged: number;
    stay: number | null;
    rejected: number;
    changed_columns: Record<string, number> | null;
    /** Viewers get a word in their place. */
    sample_rows: PlannedRow[] | string;
  } | null;
  checks: { name: string; result: string; found: string }[];
  refusals: string[];
  warnings: string[];
  notes: string[];
  downstream: { pipelines: string[]; targets: string[] };
  seconds: number;
}

export interface PlannedColumn {
  name: string;
  type: string;
}

export interface PlannedRow {
  kind: "added" | "changed" | "removed";
  before: Record<string, string | null> | null;
  after: Record<string, string | null> | null;
}

export interface PlanSummary {
  id: string;
  base_version: number | null;
  created_at: string;
  created_by: string;
  applied_by: string | null;
  applied_version: number | null;
  added: number | null;
  changed: number | null;
  removed: number | null;
  refused: boolean;
}

/** What a comparison of source and target found. */
export interface ReconcileReport {
  level: "quick" | "full" | "sample";
  equal: boolean;
  differences: number;
  remaining: number;
  missing: number;
  extra: number;
  differing: number;
  in_flight: number;
  findings: string[];
  source: Side;
  target: Side;
  key: string[];
  compared: string[];
  not_compared: string[];
  keys: { kind: "missing" | "extra" | "differing"; key: Record<string, string | null>; columns: Record<string, { source: string | null; target: string | null }> }[];
  repair: ({ done: false; upserts: number; deletes: number } | { done: true; inserted: number; updated: number; deleted: number; remaining: number; run_id: string }) | null;
  started_at: string;
  duration_seconds: number;
}

export interface Reconciliation {
  id: string;
  created_at: string;
  finished_at: string | null;
  status: RunnerRequest["status"];
  requested_by: string;
  level: ReconcileReport["level"];
  repair: boolean;
  differences: number | null;
  remaining: number | null;
  error: string | null;
}

export interface Alert {
  id: string;
  kind: "failed" | "recovered" | "drift" | "warned";
  at: string;
  run_id: string | null;
  error: string | null;
  failing_since: string | null;
  differences: number | null;
  checks: string[] | null;
  delivered: string[];
  delivery_error: string | null;
}

export interface ValidationReport {
  valid: boolean;
  errors: FieldProblem[];
  warnings: string[];
  deep: RunnerRequest | null;
}

export interface Runner {
  id: string;
  host: string;
  pid: number;
  version: string;
  started_at: string;
  heartbeat_at: string;
  alive: boolean;
  capacity: number;
  running: number;
  pipelines: Record<string, unknown>[];
}

/** A live pipeline and how far it is behind its feed. */
export interface FeedFollower {
  pipeline: string;
  tables: string[];
  is_ready: boolean;
  backlog_changes: number | null;
  must_reload: string | null;
  problem: string | null;
}

/** The log of a source database, read by one runner for all live pipelines. */
export interface Feed {
  id: string;
  connection: string;
  slot: string;
  publication: string;
  is_owned: boolean;
  host: string | null;
  problem: string | null;
  problem_since: string | null;
  lag_seconds: number | null;
  behind_bytes: number | null;
  retained_bytes: number | null;
  keep_bytes: number | null;
  wal_status: string | null;
  stored_changes: number;
  kept_changes: number;
  segments: number;
  stored_commit_at: string | null;
  measured_at: string | null;
  followers: FeedFollower[];
}

export interface LiveEvent {
  id: number;
  at: string;
  topic: string;
  payload: Record<string, unknown>;
}

export interface LogLine extends LiveEvent {
  level: "info" | "warning" | "error";
}

export interface AuditEntry {
  id: number;
  at: string;
  who: string;
  action: string;
  object: string;
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
  request_id: string | null;
}

export interface DeadLetter {
  id: number;
  pipeline_id: string;
  pipeline: string;
  run_id: string | null;
  document_id: string;
  error: string;
  document: unknown;
  created_at: string;
  resolved_at: string | null;
}

/** Dead letters of one pipeline that were refused for one reason. */
export interface DeadLetterGroup {
  pipeline: string;
  pipeline_id: string;
  /** The error without the values that it quotes. */
  reason: string;
  error: string;
  letters: number;
  first_at: string;
  last_at: string;
}

/** What the server expects of a query. */
export interface Outline {
  cost: number;
  rows: number;
  steps: { depth: number; node: string; relation: string | null; index: string | null; rows: number | null; cost: number | null }[];
  complete: boolean;
}

export interface Receiver {
  name: "webhook" | "slack";
  is_set: boolean;
  setting: string;
  /** Of a test: what stood against it. */
  error?: string | null;
}

export interface Notifications {
  receivers: Receiver[] | null;
  latest: (Alert & { pipeline: string })[];
}

export interface Token {
  id: string;
  name: string;
  role: Role;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}
