/** Events of the platform as they happen, over one stream; who listens is told whether it holds. */
import { useSyncExternalStore } from "react";
import { headers } from "./client";
import { isLost, setConnection } from "./connection";
import { queryClient, refreshOverview, refreshWaiting } from "./queries";
import type { LiveEvent } from "./types";

const RETRY_MS = [500, 1_000, 2_000, 5_000];
const GATHER_MS = 250;
const SAMPLES = 40;

let lastId: string | null = null;
const listeners = new Set<() => void>();
const rates = new Map<string, number[]>();
const changedPipelines = new Map<string, string>();
let gathering: ReturnType<typeof setTimeout> | undefined;

const NOTHING: number[] = [];

/** Rows per second of the run at work, as the last events told. */
export function useRates(pipelineId: string): number[] {
  return useSyncExternalStore(subscribe, () => rates.get(pipelineId) ?? NOTHING);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(): void {
  for (const listener of listeners) listener();
}

/** Follows the events until `signal` ends it. */
export async function follow(signal: AbortSignal): Promise<void> {
  let failures = 0;
  while (!signal.aborted) {
    try {
      await readStream(signal, () => {
        // Without the id of an event, the stream does not begin where it ended.
        if (isLost() || (failures > 0 && !lastId)) void queryClient.invalidateQueries();
        failures = 0;
        setConnection("live");
      });
    } catch {
      // Told below, like an end of the stream: both mean that news stop coming.
    }
    if (signal.aborted) return;
    failures += 1;
    if (failures > 1) setConnection("lost");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(failures, RETRY_MS.length) - 1]));
  }
}

async function readStream(signal: AbortSignal, onOpen: () => void): Promise<void> {
  const sent = headers({ Accept: "text/event-stream" });
  if (lastId) sent["Last-Event-ID"] = lastId;
  const response = await fetch("/api/v1/events", { headers: sent, signal });
  if (!response.ok || !response.body) throw new Error(`events: HTTP ${response.status}`);
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text = (text + value).replaceAll("\r\n", "\n");
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) take(block);
  }
}

function take(block: string): void {
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("id:")) lastId = line.slice(3).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  if (data.length > 0) react(JSON.parse(data.join("\n")) as LiveEvent);
}

function react(event: LiveEvent): void {
  const { pipeline_id: id, pipeline: name } = event.payload as { pipeline_id?: string; pipeline?: string };
  if (!id || !name) {
    if (event.topic.startsWith("runner")) {
      void queryClient.invalidateQueries({ queryKey: ["runners"] });
      void refreshWaiting();
    }
    return;
  }
  if (event.topic === "progress") sample(id, Number(event.payload["rows_read"]), Date.parse(event.at));
  changedPipelines.set(id, name);
  gathering ??= setTimeout(refreshChanged, GATHER_MS);
}

const lastRead = new Map<string, { rows: number; at: number }>();

function sample(id: string, rows: number, at: number): void {
  const before = lastRead.get(id);
  lastRead.set(id, { rows, at });
  if (!before || rows < before.rows || at <= before.at) return;
  const rate = ((rows - before.rows) * 1000) / (at - before.at);
  rates.set(id, [...(rates.get(id) ?? []), rate].slice(-SAMPLES));
  tell();
}

function refreshChanged(): void {
  gathering = undefined;
  const changed = [...changedPipelines];
  changedPipelines.clear();
  void refreshOverview(changed.map(([id]) => id));
  for (const [, name] of changed) {
    for (const key of ["status", "pipeline", "runs", "alerts", "reconciles"]) void queryClient.invalidateQueries({ queryKey: [key, name] });
  }
  refreshWhole("home", HOME_MS);
  refreshWhole("graph", GRAPH_MS);
  void queryClient.invalidateQueries({ queryKey: ["runs", ""] });
  void queryClient.invalidateQueries({ queryKey: ["run"] });
  void queryClient.invalidateQueries({ queryKey: ["runners"] });
}

const HOME_MS = 3_000;
const GRAPH_MS = 10_000;
const due = new Set<string>();
const refreshedAt = new Map<string, number>();

/** These look over all pipelines, so a busy installation must not ask for them at every event. */
function refreshWhole(key: string, everyMs: number): void {
  if (due.has(key)) return;
  due.add(key);
  const since = Date.now() - (refreshedAt.get(key) ?? 0);
  setTimeout(() => {
    due.delete(key);
    refreshedAt.set(key, Date.now());
    void queryClient.invalidateQueries({ queryKey: [key] });
  }, Math.max(0, everyMs - since));
}
