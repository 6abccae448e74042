/** Checks of a pipeline: against its source before it runs, and of its target against the source afterwards. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { download, post } from "../api/client";
import { awaitRequest, useMay, useReconcile, useRefresh, verb } from "../api/queries";
import type { Pipeline, ReconcileReport, RunnerRequest, ValidationReport } from "../api/types";
import { Ago, Button, Dialog, Facts, Figures, Mono, Panel, Tag, given, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { Icon } from "../ui/icons";
import { toastError } from "../ui/toasts";
import { count, duration } from "../words/format";
import { t } from "../words/language";

export function Checks({ pipeline }: { pipeline: Pipeline }) {
  return (
    <div className="space-y-4">
      <Reconcile pipeline={pipeline} />
      <Validation name={pipeline.name} />
    </div>
  );
}

// --- before it runs ---------------------------------------------------------------------------------------------

function Validation({ name }: { name: string }) {
  const [report, setReport] = useState<ValidationReport | null>(null);
  const [busy, setBusy] = useState(false);
  const check = async (): Promise<void> => {
    setBusy(true);
    try {
      const found = await post<ValidationReport>(`/pipelines/${encodeURIComponent(name)}/validate`);
      setReport(found.deep ? withRunner(found, await awaitRequest(found.deep)) : found);
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Panel title={t("Validation")} action={<Button busy={busy} onClick={() => void check()}>{t("Check against the source")}</Button>}>
      {!report ? (
        <p className="text-muted">{t("Plans the query on the real source and compares it with the target; nothing is written.")}</p>
      ) : (
        <ul className="space-y-2" aria-live="polite">
          {report.valid && <Verdict good text={t("Nothing prevents it from running.")} />}
          {report.errors.map((error) => (
            <Verdict key={error.path + error.message} text={`${error.path ? `${error.path}: ` : ""}${error.message}`} />
          ))}
          {report.warnings.map((warning) => (
            <Verdict key={warning} text={warning} warning />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function withRunner(report: ValidationReport, deep: RunnerRequest): ValidationReport {
  if (!deep.error || !report.valid) return { ...report, deep };
  return { ...report, deep, valid: false, errors: [{ path: "", message: deep.error.message ?? "", code: deep.error.code ?? "" }] };
}

function Verdict({ text, good, warning }: { text: string; good?: boolean; warning?: boolean }) {
  return (
    <li className="flex gap-2">
      <span className={cx("mt-0.5", good ? "text-ok" : warning ? "text-warn" : "text-bad")}>
        <Icon name={good ? "check" : "warn"} size={14} />
      </span>
      <span className="min-w-0 break-words">{text}</span>
    </li>
  );
}

// --- afterwards -------------------------------------------------------------------------------------------------

type Level = ReconcileReport["level"];

const LEVELS: Record<Level, string> = {
  full: "Every row and column",
  sample: "A sample of keys",
  quick: "Counts, minimum and maximum only",
};

function Reconcile({ pipeline }: { pipeline: Pipeline }) {
  const [level, setLevel] = useState<Level>("full");
  const last = useReconcile(pipeline.name);
  const refresh = useRefresh();
  const mayOperate = useMay("operator");
  const found = last.data;
  const working = !!found && !found.finished_at;
  const ask = (repair: boolean): void => {
    verb(pipeline.name, "reconcile", { level, repair }).catch(toastError).finally(() => refresh(pipeline.name, pipeline.id));
  };
  const report = found?.result as unknown as ReconcileReport | null | undefined;
  return (
    <Panel
      title={t("Reconciliation")}
      action={
        mayOperate && (
          <span className="flex flex-wrap items-center gap-2">
            <span className="w-52">
              <select aria-label={t("How closely")} className={inputLook} value={level} onChange={(event) => setLevel(event.target.value as Level)}>
                {(Object.keys(LEVELS) as Level[]).map((one) => (
                  <option key={one} value={one}>
                    {t(LEVELS[one])}
                  </option>
                ))}
              </select>
            </span>
            <Button onClick={() => ask(false)} busy={working}>
              {t("Compare now")}
            </Button>
          </span>
        )
      }
    >
      <div className="space-y-4" aria-live="polite">
        {!found && <p className="text-muted">{t("Compares source and target row by row and shows what differs.")}</p>}
        {working && <p className="text-muted">{t("A runner is comparing…")}</p>}
        {found?.error && <ul><Verdict text={found.error.message ?? t("It failed.")} /></ul>}
        {found && report && <Report pipeline={pipeline} asked={found} report={report} onRepair={mayOperate ? () => ask(true) : null} />}
      </div>
    </Panel>
  );
}

function Report({ pipeline, asked, report, onRepair }: { pipeline: Pipeline; asked: RunnerRequest; report: ReconcileReport; onRepair: (() => void) | null }) {
  return (
    <>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <p className={cx("flex items-center gap-2 text-base font-semibold", report.remaining ? "text-warn" : "text-ok")}>
          <Icon name={report.remaining ? "warn" : "check"} />
          {verdictOf(report)}
        </p>
        <span className="num text-muted">
          <Ago at={asked.finished_at} /> · {t(LEVELS[report.level])} · {duration(report.duration_seconds)}
        </span>
        <span className="ml-auto flex flex-wrap gap-2">
          {report.keys.length > 0 && (
            <Button look="quiet" icon="download" onClick={() => void save(pipeline.name)}>
              CSV
            </Button>
          )}
          {onRepair && report.repair && !report.repair.done && <Repair pipeline={pipeline} plan={report.repair} onRepair={onRepair} />}
        </span>
      </div>
      {report.repair?.done && <Repaired repair={report.repair} />}
      {report.repair?.done && !report.remaining ? (
        <details>
          <summary className="text-muted">{t("What differed before the repair")}</summary>
          <div className="mt-3 space-y-4">
            <Found report={report} />
          </div>
        </details>
      ) : (
        <Found report={report} />
      )}
      <Facts
        items={[
          [t("Key"), <Mono key="k">{report.key.join(", ")}</Mono>],
          [t("Compared"), <Mono key="c">{report.compared.join(", ")}</Mono>],
          ...given(t("Not compared"), report.not_compared.join(", ")),
          ...given(t("On their way"), report.in_flight ? count(report.in_flight) : null),
        ]}
      />
    </>
  );
}

/** What the comparison saw: after a repair, that is the past. */
function Found({ report }: { report: ReconcileReport }) {
  const side = (rows: number | null): string => (rows === null ? "—" : count(rows));
  return (
    <>
      <Figures
        items={[
          { name: t("Rows in the source"), value: side(report.source.rows) },
          { name: t("Rows in the target"), value: side(report.target.rows) },
          { name: t("Missing in the target"), value: count(report.missing), tone: report.missing ? "warn" : "idle" },
          { name: t("Only in the target"), value: count(report.extra), tone: report.extra ? "warn" : "idle" },
          { name: t("Differing"), value: count(report.differing), tone: report.differing ? "warn" : "idle" },
        ]}
      />
      {report.findings.length > 0 && (
        <ul className="space-y-2">
          {report.findings.map((finding) => (
            <Verdict key={finding} text={finding} warning />
          ))}
        </ul>
      )}
      {report.keys.length > 0 && <Keys report={report} />}
    </>
  );
}

function verdictOf(report: ReconcileReport): string {
  if (report.repair?.done) return report.remaining ? t("{n} {n|row still differs|rows still differ}", { n: report.remaining }) : t("Repaired: target and source are equal");
  return report.equal ? t("Target and source are equal") : t("{n} {n|row differs|rows differ}", { n: report.differences });
}

const save = (name: string): Promise<void> => download(`/pipelines/${encodeURIComponent(name)}/reconcile/differences?format=csv`, `${name}-differences.csv`).catch(toastError);

/** Offered once a comparison has said what it would do. */
function Repair({ pipeline, plan, onRepair }: { pipeline: Pipeline; plan: { upserts: number; deletes: number }; onRepair: () => void }) {
  const [asking, setAsking] = useState(false);
  // A live pipeline is repaired between two batches.
  const rests = pipeline.status === "IDLE" || pipeline.status === "PAUSED" || (pipeline.mode === "live" && pipeline.status === "RUNNING");
  return (
    <>
      <Button look="primary" disabled={!rests} title={rests ? undefined : t("Rows cannot be repaired during a run: pause it, or wait.")} onClick={() => setAsking(true)}>
        {t("Repair…")}
      </Button>
      <Dialog
        open={asking}
        onClose={() => setAsking(false)}
        title={t("Repair {table}?", { table: pipeline.target_table })}
        footer={
          <>
            <Button onClick={() => setAsking(false)}>{t("Cancel")}</Button>
            <Button
              look="primary"
              onClick={() => {
                setAsking(false);
                onRepair();
              }}
            >
              {t("Repair")}
            </Button>
          </>
        }
      >
        <p>{t("{upserts} {upserts|row is|rows are} written as the source has {upserts|it|them}, {deletes} that it does not have {deletes|is|are} deleted.", { upserts: plan.upserts, deletes: plan.deletes })}</p>
        <p className="mt-2 text-muted">{t("Both sides are compared again first; only rows that still differ are changed.")}</p>
      </Dialog>
    </>
  );
}

function Repaired({ repair }: { repair: { inserted: number; updated: number; deleted: number; run_id: string } }) {
  return (
    <p className="num rounded-md bg-sunken px-3 py-2">
      {t("{inserted} inserted, {updated} updated, {deleted} deleted.", { inserted: count(repair.inserted), updated: count(repair.updated), deleted: count(repair.deleted) })}{" "}
      <Link to="/runs/$id" params={{ id: repair.run_id }} className="text-accent underline">
        {t("Open the run")}
      </Link>
    </p>
  );
}

const KINDS = { missing: "missing", extra: "only in the target", differing: "differs" } as const;

function Keys({ report }: { report: ReconcileReport }) {
  return (
    <div className="max-h-96 overflow-auto rounded-lg border" tabIndex={0} role="region" aria-label={t("What differs")}>
      <table className="num w-full min-w-[40rem] text-xs">
        <thead>
          <tr className="sticky top-0 border-b bg-panel text-left [&>th]:px-3 [&>th]:py-2 [&>th]:font-medium">
            <th scope="col">{t("Row")}</th>
            <th scope="col">{report.key.join(", ")}</th>
            <th scope="col">{t("Column")}</th>
            <th scope="col">{t("Source")}</th>
            <th scope="col">{t("Target")}</th>
          </tr>
        </thead>
        <tbody>
          {report.keys.flatMap((one, index) => {
            const columns = Object.entries(one.columns);
            const lines = columns.length ? columns : [["", null] as const];
            return lines.map(([column, values], line) => (
              <tr key={`${index}.${column}`} className={cx("[&>td]:px-3 [&>td]:py-1.5 [&>td]:align-top", line === lines.length - 1 && "border-b last:border-b-0")}>
                <td>{line === 0 && <Tag tone="warn">{t(KINDS[one.kind])}</Tag>}</td>
                <td className="font-mono">{line === 0 && report.key.map((name) => one.key[name] ?? "null").join(", ")}</td>
                <td className="font-mono text-muted">{column}</td>
                <td className="max-w-64 truncate font-mono text-ok">{values && (values.source ?? <span className="text-faint">null</span>)}</td>
                <td className="max-w-64 truncate font-mono text-bad">{values && (values.target ?? <span className="text-faint">null</span>)}</td>
              </tr>
            ));
          })}
        </tbody>
      </table>
    </div>
  );
}
