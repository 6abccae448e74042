/** What charts are drawn from: how old the data were, and round figures for the grid. */
import type { Lag, Pipeline, Run } from "../api/types";

/** Since when the data are what they are: what runs after others is no fresher than the oldest that it is built on. */
export function dataAsOf({ run_after, mode }: Pick<Pipeline, "run_after" | "mode">, lag: Pick<Lag, "last_success_at" | "data_as_of">): string | null {
  return run_after.length > 0 || mode === "live" ? (lag.data_as_of ?? lag.last_success_at) : lag.last_success_at;
}

export function lagOf(runs: Pick<Run, "status" | "started_at" | "finished_at">[], now: number): { at: number; seconds: number }[] {
  const points: { at: number; seconds: number }[] = [];
  let asOf: number | null = null;
  for (const run of runs) {
    if (run.status !== "SUCCESS" || !run.finished_at) continue;
    const [start, end] = [Date.parse(run.started_at), Date.parse(run.finished_at)];
    if (asOf !== null) points.push({ at: end, seconds: (end - asOf) / 1000 });
    points.push({ at: end, seconds: (end - start) / 1000 });
    asOf = start;
  }
  if (asOf !== null) points.push({ at: now, seconds: Math.max(now - asOf, 0) / 1000 });
  return points;
}

/** Round as clocks are. */
export function niceSeconds(seconds: number): number {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800];
  return steps.find((step) => step >= seconds) ?? niceTop(seconds);
}

/** The next round number above, so that the grid has figures one can name. */
export function niceTop(value: number): number {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((one) => one * size >= value) ?? 10;
  return step * size;
}

/** How many rows had been read at a moment. */
export interface Point {
  at: number;
  rows: number;
}

const SPANS = 60;

/** Rows a second between the points; of very many, over a few spans of them. */
export function ratesOf(points: Point[]): number[] {
  const stride = Math.max(Math.ceil((points.length - 1) / SPANS), 1);
  const kept = points.filter((_, index) => index % stride === 0 || index === points.length - 1);
  return kept.slice(1).flatMap((point, index) => {
    const before = kept[index];
    if (!before || point.at <= before.at || point.rows < before.rows) return [];
    return [((point.rows - before.rows) * 1000) / (point.at - before.at)];
  });
}

/** Repairs and replays correct some rows: they say nothing about how long loads take, or how fresh the mart is. */
export const isLoad = (run: Pick<Run, "metrics">): boolean => !("repair" in run.metrics) && !("replay" in run.metrics);
