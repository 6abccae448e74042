/** A definition while it is written: texts as typed, and the definition that they make. */
import type { Definition, FieldProblem, Mode, Pipeline, RunAfter, Task } from "../api/types";
import { labelTexts, labelsIn } from "../ui/label-words";

export interface Draft {
  name: string;
  description: string;
  type: "SQL" | "PYTHON";
  source_type: string;
  source_connection: string;
  source_query: string;
  source_table: string;
  python_task: string;
  target_table: string;
  target_key: string;
  mode: Mode;
  incremental_key: string;
  incremental_id_key: string;
  batch_size: string;
  enabled: boolean;
  schedule_interval: string;
  run_after: string;
  options: string;
  labels: string;
  /** Written in files and by the API; the form keeps them as they are. */
  checks: Record<string, unknown>[];
  tasks: Task[];
}

/** What every part of the editor gets. */
export interface DraftPart {
  draft: Draft;
  change: (part: Partial<Draft>) => void;
  problems: FieldProblem[];
}

export const NEW_DRAFT: Draft = {
  name: "",
  description: "",
  type: "SQL",
  source_type: "postgres",
  source_connection: "default",
  source_table: "",
  source_query: "SELECT\n  \nFROM ",
  python_task: "",
  target_table: "analytics.",
  target_key: "",
  mode: "full",
  incremental_key: "",
  incremental_id_key: "",
  batch_size: "5000",
  enabled: true,
  schedule_interval: "",
  run_after: "",
  options: "{}",
  labels: "",
  checks: [],
  tasks: [],
};

/** Behind the name of a pipeline: only its runs that changed something count. */
export const IF_CHANGED = "(if changed)";

function edgeOf(text: string): RunAfter {
  const only_if_changed = text.endsWith(IF_CHANGED);
  return { pipeline: only_if_changed ? text.slice(0, -IF_CHANGED.length).trim() : text, only_if_changed };
}

export function draftOf(pipeline: Definition & { labels?: Record<string, string> }): Draft {
  return {
    name: pipeline.name,
    description: pipeline.description,
    type: pipeline.type,
    source_type: pipeline.source_type ?? "postgres",
    source_connection: pipeline.source_connection,
    source_query: pipeline.source_query ?? "",
    source_table: pipeline.source_table ?? "",
    python_task: pipeline.python_task ?? "",
    target_table: pipeline.target_table,
    target_key: pipeline.target_key?.join(", ") ?? "",
    mode: pipeline.mode,
    incremental_key: pipeline.incremental_key ?? "",
    incremental_id_key: pipeline.incremental_id_key ?? "",
    batch_size: String(pipeline.batch_size),
    enabled: pipeline.enabled,
    schedule_interval: pipeline.schedule_interval ?? "",
    run_after: (pipeline.run_after ?? []).map((edge) => edge.pipeline + (edge.only_if_changed ? ` ${IF_CHANGED}` : "")).join(", "),
    options: JSON.stringify(pipeline.options, null, 2),
    labels: labelTexts(pipeline.labels ?? {}).join(", "),
    checks: pipeline.checks ?? [],
    tasks: pipeline.tasks,
  };
}

/** What is sent. A text that cannot be read as what it should be is sent as it is: the API says what is wrong. */
export function definitionOf(draft: Draft): Record<string, unknown> {
  const key = keyColumns(draft.target_key);
  return {
    name: draft.name,
    description: draft.description,
    type: draft.type,
    source_type: draft.source_type,
    source_connection: draft.source_connection,
    source_query: draft.source_query.trim() ? draft.source_query : null,
    source_table: draft.source_table.trim() || null,
    python_task: draft.python_task || null,
    target_table: draft.target_table,
    target_key: key.length ? key : null,
    mode: draft.mode,
    incremental_key: draft.incremental_key || null,
    incremental_id_key: draft.incremental_id_key || null,
    batch_size: /^\d+$/.test(draft.batch_size.trim()) ? Number(draft.batch_size) : draft.batch_size,
    enabled: draft.enabled,
    schedule_interval: draft.schedule_interval.trim() || null,
    run_after: keyColumns(draft.run_after).map(edgeOf),
    options: parsed(draft.options),
    labels: labelsIn(draft.labels),
    checks: draft.checks,
    tasks: draft.tasks,
  };
}

const READ = ["type", "source_connection", "source_query", "python_task", "tasks"];
const READ_IF_RIGHT = ["mode", "incremental_key", "incremental_id_key", "options"];

/** What a preview needs: the query and how it is read, not where it would go or when. */
export function readingPart(definition: Record<string, unknown>, problems: FieldProblem[], savedName?: string): Record<string, unknown> {
  const wrong = new Set(problems.map((problem) => problem.path.split(".")[0]));
  const cursorIsWrong = wrong.has("mode") || wrong.has("incremental_key") || wrong.has("incremental_id_key");
  const kept = READ_IF_RIGHT.filter((name) => (name === "options" ? !wrong.has(name) : !cursorIsWrong));
  const part = Object.fromEntries([...READ, ...kept].map((name) => [name, definition[name]]));
  return savedName ? { ...part, name: savedName } : part;
}

/** What is wrong with the part that is read. */
export const problemsOfReading = (problems: FieldProblem[]): FieldProblem[] => problems.filter((problem) => READ.includes(problem.path.split(".")[0] ?? ""));

export const keyColumns = (text: string): string[] => text.split(",").map((part) => part.trim()).filter(Boolean);

function parsed(text: string): unknown {
  try {
    return text.trim() ? JSON.parse(text) : {};
  } catch {
    return text;
  }
}

/** The fields of a saved pipeline that an author sets, to compare a draft with. */
export function savedDefinition(pipeline: Pipeline): Record<string, unknown> {
  return definitionOf(draftOf(pipeline));
}

/** Only what differs goes into a change; options that were taken out are set back with null. */
export function changesBetween(saved: Record<string, unknown>, next: Record<string, unknown>): Record<string, unknown> {
  const changes: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(next)) {
    if (JSON.stringify(saved[name]) === JSON.stringify(value)) continue;
    changes[name] = name === "options" || name === "labels" ? withRemoved(saved[name], value) : value;
  }
  return changes;
}

function withRemoved(before: unknown, after: unknown): unknown {
  if (typeof before !== "object" || before === null || typeof after !== "object" || after === null) return after;
  const removed = Object.keys(before).filter((name) => !(name in after));
  return { ...after, ...Object.fromEntries(removed.map((name) => [name, null])) };
}
