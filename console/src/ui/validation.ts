/** What stands against a draft, told while it is written: its form at once, then what a runner finds in the source. */
import { useEffect, useRef, useState } from "react";
import { post } from "../api/client";
import { awaitRequest } from "../api/queries";
import type { Column, FieldProblem, Outline, Plan, ValidationReport } from "../api/types";

const TYPING_MS = 400;
const RUNNER_SECONDS = 30;

export interface Verdict {
  report: ValidationReport | null;
  /** A runner is looking at it. */
  waiting: boolean;
  /** A runner has looked at it as it is now. */
  tried: boolean;
  columns: Column[];
  outline: Outline | null;
  plan: Plan | null;
}

const UNKNOWN: Verdict = { report: null, waiting: false, tried: false, columns: [], outline: null, plan: null };

/** A moment after the last key; what was asked about an earlier draft is forgotten. */
export function useValidation(definition: Record<string, unknown>, touched: boolean): Verdict {
  const [verdict, setVerdict] = useState(UNKNOWN);
  const asked = useRef(0);
  useEffect(() => {
    if (!touched) return;
    const mine = ++asked.current;
    const tell = (change: (before: Verdict) => Verdict): void => {
      if (mine === asked.current) setVerdict(change);
    };
    const timer = setTimeout(() => void judge(definition, tell, () => mine === asked.current), TYPING_MS);
    tell((before) => ({ ...before, tried: false }));
    return () => clearTimeout(timer);
  }, [definition, touched]);
  return verdict;
}

async function judge(definition: Record<string, unknown>, tell: (change: (before: Verdict) => Verdict) => void, isCurrent: () => boolean): Promise<void> {
  try {
    const form = await post<ValidationReport>("/validate", definition);
    tell((before) => ({ ...before, report: form, waiting: true }));
    if (!isCurrent()) return;
    const report = await explained(definition);
    const found = report.deep?.result as { columns?: Column[]; explain?: Outline | null; plan?: Plan } | null | undefined;
    tell(() => ({ report, waiting: false, tried: report.deep?.status === "DONE", columns: found?.columns ?? [], outline: found?.explain ?? null, plan: found?.plan ?? null }));
  } catch {
    // The page says elsewhere that the server does not answer; the form's own verdict stays.
    tell((before) => ({ ...before, waiting: false }));
  }
}

async function explained(definition: Record<string, unknown>): Promise<ValidationReport> {
  const report = await post<ValidationReport>("/explain", definition);
  if (!report.deep || report.deep.finished_at) return report;
  const deep = await awaitRequest(report.deep, RUNNER_SECONDS);
  const problem = deep.error && !NO_FINDINGS.has(deep.error.code ?? "") ? [problemOf(deep.error, definition)] : [];
  return { ...report, deep, valid: report.valid && problem.length === 0, errors: [...report.errors, ...problem] };
}

/** A later question took its place, or the runner is older than the question. */
const NO_FINDINGS = new Set(["superseded", "not_found"]);

const PATHS: Record<string, string> = { forbidden_target: "target_table", target_mismatch: "target_table", bad_key: "target_key" };

function problemOf(error: { code?: string; message?: string; line?: number; column?: number }, definition: Record<string, unknown>): FieldProblem {
  const code = error.code ?? "error";
  const isQuery = code === "source_query_failed" || code === "invalid_query";
  return { path: isQuery ? queryPath(definition) : (PATHS[code] ?? ""), code, message: error.message ?? code, line: error.line ?? null, column: error.column ?? null };
}

function queryPath(definition: Record<string, unknown>): string {
  const tasks = definition["tasks"] as { order_index: number }[] | undefined;
  if (!tasks?.length) return "source_query";
  const first = tasks.reduce((least, task, index) => (task.order_index < (tasks[least]?.order_index ?? 0) ? index : least), 0);
  return `tasks.${first}.body`;
}
