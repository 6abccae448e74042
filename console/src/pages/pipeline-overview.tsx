/** A pipeline at a glance: its history in charts, what happened to it, its plan and its checkpoint. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { useAlerts, useAudit, useReconciles, useRuns } from "../api/queries";
import type { Alert, AuditEntry, Pipeline, PipelineStatus, Reconciliation, Run } from "../api/types";
import { Ago, Empty, FILL, Facts, Failure, Loading, Panel, fillOf, given, statusWords } from "../ui/basics";
import { History, Lag } from "../ui/charts";
import { changeInBrief, compare } from "../ui/diff";
import { Icon, type IconName } from "../ui/icons";
import { PlanPanel } from "../ui/parts";
import { isLoad } from "../ui/scales";
import { Term } from "../ui/terms";
import { actionInWords, runWords } from "../words/actions";
import { age, count, duration } from "../words/format";
import { t } from "../words/language";

const HISTORY = 50;

export function Overview({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const found = useRuns(pipeline.name, HISTORY);
  const runs = found.data?.pages[0]?.items ?? [];
  const oldestFirst = runs.filter(isLoad).reverse();
  const checkpoint = status.checkpoint;
  return (
    <div className="space-y-4">
      <Panel>
        {found.isPending ? (
          <Loading lines={4} />
        ) : found.error && !found.data ? (
          <Failure error={found.error} onRetry={() => void found.refetch()} />
        ) : runs.length === 0 ? (
          <Empty icon="runs" title={t("No runs yet")}>
            {t("Its history is drawn here.")}
          </Empty>
        ) : (
          <div className="grid gap-6 md:grid-cols-3">
            <History runs={oldestFirst} value={(run) => run.rows_written + run.rows_deleted} show={(value) => count(value)} label={t("Rows changed")} />
            <History runs={oldestFirst} value={(run) => run.duration_seconds} show={duration} label={t("Duration")} />
            <Lag runs={oldestFirst} />
          </div>
        )}
      </Panel>
      <div className="grid gap-4 lg:grid-cols-[3fr_2fr]">
        <Timeline name={pipeline.name} runs={runs} isPending={found.isPending} />
        <div className="space-y-4">
          <PlanPanel plan={status.last_load?.metrics.plan ?? runs.find((run) => run.metrics.plan)?.metrics.plan} none={t("The first run chooses a plan and shows the reasons.")} />
          <Panel title={<Term name="checkpoint">{t("Checkpoint")}</Term>}>
            {checkpoint ? (
              <Facts
                items={[
                  ...given(t("Reached"), checkpoint.last_processed_key),
                  ...given(<Term name="watermark">{t("Safe up to")}</Term>, checkpoint.safe_upto),
                  ...given(t("Held at"), checkpoint.held_upto),
                  [t("Batch"), count(checkpoint.batch_no)],
                  [t("Updated"), <Ago key="u" at={checkpoint.updated_at} />],
                ]}
              />
            ) : (
              <p className="text-muted">{t("None yet: the first run starts at the beginning.")}</p>
            )}
          </Panel>
        </div>
      </div>
    </div>
  );
}

// --- the timeline -----------------------------------------------------------------------------------------------

interface Happening {
  at: string;
  key: string;
  mark: ReactNode;
  line: ReactNode;
}

const SHOWN = 60;

/** Runs, changes, comparisons and alerts in one line of time: what was done, and what came of it. */
function Timeline({ name, runs, isPending }: { name: string; runs: Run[]; isPending: boolean }) {
  const changes = useAudit({ object: `pipeline:${name}` });
  const audit = changes.data?.pages[0]?.items ?? [];
  const alerts = useAlerts(name).data?.items ?? [];
  const reconciles = useReconciles(name).data?.items ?? [];
  const happenings: Happening[] = [
    ...runs.map((run) => ({ at: run.started_at, key: run.id, mark: <Dot fill={fillOf(run.status)} />, line: <RunLine run={run} /> })),
    ...audit.filter(isShown).map((entry) => ({ at: entry.at, key: `audit-${entry.id}`, mark: <Dot />, line: <AuditLine entry={entry} /> })),
    ...alerts.map((alert) => ({ at: alert.at, key: alert.id, mark: <Mark icon={ALERTS[alert.kind].icon} fill={ALERTS[alert.kind].fill} />, line: <AlertLine alert={alert} /> })),
    ...reconciles.map((found) => ({ at: found.created_at, key: found.id, mark: <Mark icon="scale" fill={fillOfReconcile(found)} />, line: <ReconcileLine name={name} found={found} /> })),
  ].sort((a, b) => b.at.localeCompare(a.at));
  return (
    <Panel title={t("Timeline")} flush>
      {happenings.length === 0 && (isPending || changes.isPending) ? (
        <Loading lines={5} />
      ) : happenings.length === 0 ? (
        <p className="p-4 text-muted">{t("Nothing happened yet.")}</p>
      ) : (
        <ol className="max-h-[34rem] overflow-auto py-1" tabIndex={0} aria-label={t("Timeline")}>
          {happenings.slice(0, SHOWN).map((one) => (
            <li key={one.key} className="flex items-start gap-3 px-4 py-1.5">
              <span className="grid h-5 w-3.5 shrink-0 place-items-center">{one.mark}</span>
              <span className="min-w-0 flex-1">{one.line}</span>
              <span className="shrink-0 text-xs leading-5 text-muted">
                <Ago at={one.at} />
              </span>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

/** A comparison has a line of its own, with its outcome; looking at rows or checking changes nothing. */
const isShown = (entry: AuditEntry): boolean => !["reconcile", "preview", "validate"].includes(entry.action);

function Dot({ fill }: { fill?: string }) {
  return <span className="size-2 rounded-full" style={fill ? { background: fill } : { boxShadow: "inset 0 0 0 1.5px var(--faint)" }} />;
}

function Mark({ icon, fill }: { icon: IconName; fill: string }) {
  return (
    <span style={{ color: fill }}>
      <Icon name={icon} size={14} />
    </span>
  );
}

function RunLine({ run }: { run: Run }) {
  return (
    <span className="num">
      <Link to="/runs/$id" params={{ id: run.id }} className="font-medium hover:text-accent hover:underline">
        {runWords(run)} · {statusWords(run.status)}
      </Link>
      <span className="text-muted">
        {" "}
        {t("{n} written", { n: count(run.rows_written) })} · {duration(run.duration_seconds)} · {t(run.trigger)}
      </span>
      {run.error_message && <span className="block truncate text-xs text-bad">{run.error_message}</span>}
    </span>
  );
}

function AuditLine({ entry }: { entry: AuditEntry }) {
  const changed = entry.before && entry.after ? compare(entry.before, entry.after).filter((change) => change.path !== "status") : [];
  const short = changed.map(changeInBrief).join(", ");
  return (
    <span className="block">
      <b className="font-medium">{entry.who}</b> <span className="text-muted">{actionInWords(entry.action)}</span>
      {short && (
        <span className="block truncate font-mono text-xs text-muted" title={short}>
          {short}
        </span>
      )}
    </span>
  );
}

const ALERTS: Record<Alert["kind"], { words: string; icon: IconName; fill: string }> = {
  failed: { words: "Alert · It fails", icon: "bell", fill: "var(--bad)" },
  recovered: { words: "Alert · It works again", icon: "bell", fill: "var(--ok)" },
  drift: { words: "Alert · It differs from its source", icon: "bell", fill: "var(--warn)" },
  warned: { words: "Alert · Checks warn", icon: "bell", fill: "var(--warn)" },
};

function AlertLine({ alert }: { alert: Alert }) {
  const failing = alert.failing_since ? age((Date.parse(alert.at) - Date.parse(alert.failing_since)) / 1000) : null;
  return (
    <span className="block">
      <b className="font-medium">{t(ALERTS[alert.kind].words)}</b>{" "}
      <span className="text-muted">
        {alert.kind === "drift" && alert.differences !== null && t("{n} {n|row|rows}", { n: alert.differences })}
        {alert.kind === "warned" && alert.checks?.join(", ")}
        {alert.kind === "recovered" && failing && t("after {time}", { time: failing })}
      </span>
      <span className="block truncate text-xs text-muted" title={alert.delivery_error ?? undefined}>
        {alert.delivered.length > 0 ? t("sent to {receivers}", { receivers: alert.delivered.join(", ") }) : alert.delivery_error ? t("not delivered: {error}", { error: alert.delivery_error }) : t("no receiver is configured")}
      </span>
    </span>
  );
}

function ReconcileLine({ name, found }: { name: string; found: Reconciliation }) {
  return (
    <span className="block">
      <Link to="/pipelines/$name" params={{ name }} search={{ tab: "checks" }} className="font-medium hover:text-accent hover:underline">
        {found.repair ? t("Repair") : t("Comparison")} · {outcomeOf(found)}
      </Link>{" "}
      <span className="text-muted">
        {found.requested_by} · {t(found.level)}
      </span>
      {found.error && <span className="block truncate text-xs text-bad">{found.error}</span>}
    </span>
  );
}

function outcomeOf(found: Reconciliation): string {
  if (found.error) return t("Failed");
  if (!found.finished_at) return t("Running");
  if (!found.differences) return t("nothing differs");
  const differ = t("{n} {n|differs|differ}", { n: found.differences });
  return found.repair ? `${differ}, ${t("{n} {n|remains|remain}", { n: found.remaining ?? 0 })}` : differ;
}

function fillOfReconcile(found: Reconciliation): string {
  if (found.error) return FILL.bad;
  if (!found.finished_at) return FILL.busy;
  return (found.remaining ?? found.differences) ? FILL.warn : FILL.ok;
}
