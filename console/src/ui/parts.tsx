/** Parts that the pages of a pipeline and of a run share. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Plan, Run } from "../api/types";
import { count, duration } from "../words/format";
import { t } from "../words/language";
import { Ago, Facts, Panel, PipelineLink, StatusChip, Tag, cx, tableLook } from "./basics";
import { Icon } from "./icons";
import { Labels } from "./labels";

/** What happened, and what to do next. */
export function FailureCard(props: { title: string; code: string; message: string; nextStep: string | null; at: string | null; actions?: ReactNode }) {
  return (
    <section aria-label={t("What went wrong")} className="rounded-lg border border-bad-fill/40 bg-bad-soft">
      <div className="flex flex-wrap items-start gap-x-4 gap-y-3 p-4">
        <span className="mt-0.5 text-bad">
          <Icon name="warn" />
        </span>
        <div className="min-w-0 flex-1 basis-72">
          <div className="flex flex-wrap items-center gap-2">
            <h2 className="font-semibold">{props.title}</h2>
            <Tag tone="bad">{props.code}</Tag>
            <span className="text-xs text-muted">
              <Ago at={props.at} />
            </span>
          </div>
          <p className="mt-1.5 font-mono text-xs leading-relaxed break-words whitespace-pre-wrap">{props.message}</p>
          {props.nextStep && (
            <p className="mt-3 flex gap-2">
              <b className="shrink-0 font-medium">{t("What to do")}</b>
              <span>{props.nextStep}</span>
            </p>
          )}
        </div>
        <div className="flex flex-wrap gap-2">{props.actions}</div>
      </div>
    </section>
  );
}

export function PlanPanel({ plan, none }: { plan: Plan | undefined; none: string }) {
  return (
    <Panel title={t("Plan")}>
      {plan ? (
        <>
          <Facts
            items={[
              [t("Route"), plan.route],
              [t("Reading"), t(plan.paging)],
              [t("Key"), plan.key.join(", ") || "—"],
              [t("Deletes rows"), plan.deletes ? t("yes, those that left the source") : t("no")],
              [t("Guarantee"), <Guarantee key="g" level={plan.guarantee} />],
            ]}
          />
          <h3 className="mt-4 mb-1.5 text-xs font-medium text-muted">{t("Why")}</h3>
          <ul className="space-y-1.5">
            {plan.reasons.map((reason) => (
              <li key={reason} className="flex gap-2">
                <span className="mt-0.5 text-ok">
                  <Icon name="check" size={14} />
                </span>
                <span>{reason}</span>
              </li>
            ))}
            {plan.warnings.map((warning) => (
              <li key={warning} className="flex gap-2">
                <span className="mt-0.5 text-warn">
                  <Icon name="warn" size={14} />
                </span>
                <span>{warning}</span>
              </li>
            ))}
          </ul>
        </>
      ) : (
        <p className="text-muted">{none}</p>
      )}
    </Panel>
  );
}

const MEANING: Record<string, string> = {
  exact: "Every committed row is in the mart.",
  "bounded-lag": "Rows arrive within the lookback window.",
  reconciled: "Differences are found and repaired by reconciling.",
};

export function Guarantee({ level }: { level: string | null }) {
  if (!level) return <span className="text-faint">—</span>;
  return (
    <span title={t(MEANING[level] ?? level)} className={cx(level === "exact" && "text-ok")}>
      {t(level)}
    </span>
  );
}

export function RunTable({ runs, withPipeline }: { runs: Run[]; withPipeline?: boolean }) {
  return (
    <div className="overflow-x-auto" tabIndex={0} role="region" aria-label={t("Runs")}>
      <table className="num w-full min-w-[46rem]">
        <thead>
          <tr className={tableLook.head}>
            <th scope="col">{t("Status")}</th>
            {withPipeline && <th scope="col">{t("Pipeline")}</th>}
            <th scope="col">{t("Started")}</th>
            <th scope="col">{t("Trigger")}</th>
            <th scope="col" className="text-right">{t("Duration")}</th>
            <th scope="col" className="text-right">{t("Read")}</th>
            <th scope="col" className="text-right">{t("Written")}</th>
            <th scope="col" className="text-right">{t("Deleted")}</th>
            <th scope="col" className="text-right">{t("Rejected")}</th>
            <th scope="col">{t("Version")}</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run.id} className={tableLook.row}>
              <td>
                <Link to="/runs/$id" params={{ id: run.id }} className="hover:underline" title={run.error_message ?? run.id}>
                  <StatusChip status={run.status} />
                </Link>
              </td>
              {withPipeline && (
                <td className="max-w-64">
                  <PipelineLink name={run.pipeline} /> <Labels labels={run.labels} />
                </td>
              )}
              <td className="text-muted">
                <Ago at={run.started_at} />
              </td>
              <td className="text-muted">{t(run.trigger)}</td>
              <td className="text-right">{duration(run.duration_seconds)}</td>
              <td className="text-right">{count(run.rows_read)}</td>
              <td className="text-right">{count(run.rows_written)}</td>
              <td className={cx("text-right", run.rows_deleted === 0 && "text-faint")}>{count(run.rows_deleted)}</td>
              <td className={cx("text-right", run.rows_rejected > 0 ? "text-bad" : "text-faint")}>{count(run.rows_rejected)}</td>
              <td className="text-muted">v{run.pipeline_version}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
