/** Which pipelines a list shows, and in which order; kept in the address, and as views in this browser. */
import type { PipelineOverview } from "../api/types";
import { labelTexts } from "../ui/label-words";

export type Show = "attention" | "running" | "paused" | "scheduled" | "disabled";
export type Column = "name" | "status" | "target" | "freshness" | "next";
/** A minus in front turns the order round. */
export type Sort = Column | `-${Column}`;

export interface PipelinesSearch {
  q?: string;
  show?: Show;
  sort?: Sort;
  /** `key=value`, or `key` alone. */
  label?: string;
}

export const needsAttention = (line: PipelineOverview): boolean => line.status === "FAILED" || line.dead_letters > 0 || line.is_held;

export const KINDS: Record<Show, { words: string; fits: (line: PipelineOverview) => boolean }> = {
  attention: { words: "Needs attention", fits: needsAttention },
  running: { words: "Running", fits: (line) => ["RUNNING", "RUN_REQUESTED", "PAUSE_REQUESTED"].includes(line.status) },
  paused: { words: "Paused", fits: (line) => line.status === "PAUSED" },
  scheduled: { words: "Scheduled", fits: (line) => line.schedule_interval !== null && line.enabled },
  disabled: { words: "Disabled", fits: (line) => !line.enabled },
};

const STATUS_ORDER = ["FAILED", "RUNNING", "PAUSE_REQUESTED", "RUN_REQUESTED", "PAUSED", "IDLE"];
const AT_THE_END = "~";

const text = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

const ORDERS: Record<Column, (a: PipelineOverview, b: PipelineOverview) => number> = {
  name: (a, b) => text(a.name, b.name),
  status: (a, b) => STATUS_ORDER.indexOf(a.status) - STATUS_ORDER.indexOf(b.status),
  target: (a, b) => text(a.target_table, b.target_table),
  freshness: (a, b) => text(a.last_success_at ?? "", b.last_success_at ?? ""),
  next: (a, b) => text(a.next_run_at ?? AT_THE_END, b.next_run_at ?? AT_THE_END),
};

export const columnOf = (sort: Sort | undefined): Column => (sort ?? "name").replace("-", "") as Column;

/** Once more on the same column turns the order round. */
export const sortBy = (column: Column, before: Sort | undefined): Sort | undefined => {
  const next = columnOf(before) === column && !before?.startsWith("-") ? (`-${column}` as const) : column;
  return next === "name" ? undefined : next;
};

/** What is searched in, lower-cased once: fifty thousand lines are looked through at every key. */
const haystacks = new WeakMap<PipelineOverview, string>();

function haystack(line: PipelineOverview): string {
  const known = haystacks.get(line);
  if (known !== undefined) return known;
  const made = [line.name, line.target_table, line.description, line.status, ...labelTexts(line.labels)].join(" ").toLowerCase();
  haystacks.set(line, made);
  return made;
}

export function hasLabel(line: PipelineOverview, wanted: string): boolean {
  const [key = "", ...rest] = wanted.split("=");
  const value = line.labels[key];
  return value !== undefined && (rest.length === 0 || value === rest.join("="));
}

/** `lines` stand in the order of their names. */
export function chosen(lines: PipelineOverview[], search: PipelinesSearch): PipelineOverview[] {
  const words = (search.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const fits = search.show ? KINDS[search.show]?.fits : undefined;
  const { label, sort } = search;
  const found = lines.filter((line) => (!fits || fits(line)) && (!label || hasLabel(line, label)) && words.every((word) => haystack(line).includes(word)));
  const column = columnOf(sort);
  if (column !== "name") found.sort(ORDERS[column] ?? ORDERS.name);
  return sort?.startsWith("-") ? found.reverse() : found;
}

// --- views ------------------------------------------------------------------------------------------------------

const KEY = "vitrina.views";

export interface View {
  name: string;
  search: PipelinesSearch;
}

export function readViews(): View[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one): one is View => typeof (one as View)?.name === "string" && typeof (one as View).search === "object") : [];
  } catch {
    return [];
  }
}

export function keepViews(views: View[]): void {
  localStorage.setItem(KEY, JSON.stringify(views));
}

const FIELDS = ["q", "show", "sort", "label"] as const;

export const isSame = (a: PipelinesSearch, b: PipelinesSearch): boolean => FIELDS.every((field) => (a[field] ?? "") === (b[field] ?? ""));
export const isPlain = (search: PipelinesSearch): boolean => isSame(search, {});
