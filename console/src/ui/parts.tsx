/** Parts that the pages of a pipeline and of a run share. */
import { Link, useNavigate } from "@tanstack/react-router";
import type { MouseEvent, ReactNode } from "react";
import type { Following, Plan, Progress, RangesProgress, Run } from "../api/types";
import { runWords } from "../words/actions";
import { compact, count, duration } from "../words/format";
import { t } from "../words/language";
import { Ago, Facts, Panel, PipelineLink, StatusChip, Tag, tableLook, useMedia } from "./basics";
import { cx } from "./classes";
import { Sparkline } from "./charts";
import { Icon } from "./icons";
import { Labels } from "./labels";
import { isLoad } from "./scales";
import { Term } from "./terms";

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
              [<Term key="t" name="route">{t("Route")}</Term>, plan.route],
              [t("Reading"), t(plan.paging)],
              [t("Key"), plan.key.join(", ") || "—"],
              [t("Deletes rows"), plan.deletes ? t("yes, those that left the source") : t("no")],
              [<Term key="t" name="guarantee">{t("Guarantee")}</Term>, <Guarantee key="g" level={plan.guarantee} />],
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

/** A run that works: how far it is, how fast, and how long it will still take. One that follows its source has no end. */
export function AtWork({ progress, rates, following }: { progress: Progress; rates: number[]; following?: Following | null }) {
  return (
    <section aria-label={t("Progress")} className="rounded-lg border border-accent/35 bg-accent-soft px-4 py-3">
      <div className="num flex flex-wrap items-center justify-between gap-x-6 gap-y-1">
        <span className="font-medium">{t("{n} {n|row|rows} read", { n: progress.rows_read })}</span>
        <span className="text-muted">
          {progress.ranges
            ? t("{done} of {n} {n|range|ranges}", { done: progress.ranges.done, n: progress.ranges.done + progress.ranges.left })
            : t("{n} {n|batch|batches}", { n: progress.batches })}
        </span>
        <span className="text-muted">{progress.rows_per_second ? t("{n} rows/s", { n: compact(progress.rows_per_second) }) : "—"}</span>
        <Sparkline values={rates} width={120} label={t("Rows a second")} />
        <span className="text-muted">{following ? t("follows its source, {time} behind", { time: duration(following.lag_seconds) }) : timeLeft(progress)}</span>
      </div>
      {!following && <Bar percent={progress.percent} />}
      {progress.ranges && <UnderWay ranges={progress.ranges} />}
    </section>
  );
}

/** The ranges of the key that are being loaded. A cluster may have hundreds, of which it runs some. */
function UnderWay({ ranges }: { ranges: RangesProgress }) {
  const all = ranges.under_way ?? [];
  if (!all.length) return null;
  const names = all.slice(0, SHOWN_RANGES).map((one) => (one.rows == null ? one.range : `${one.range} (${compact(one.rows)})`));
  return (
    <p className="num mt-1 text-muted">
      {t("Ranges under way, with rows read: {ranges}", { ranges: names.join(", ") + (all.length > SHOWN_RANGES ? ", …" : "") })}
      {ranges.running != null && ` · ${t("the cluster runs {n} of {all}", { n: ranges.running, all: all.length })}`}
    </p>
  );
}

const SHOWN_RANGES = 8;

function timeLeft(progress: Progress): string {
  if (progress.eta_seconds !== null) return t("about {time} left", { time: duration(progress.eta_seconds) });
  return t("{time} so far, how long it will take is not known", { time: duration(progress.elapsed_seconds) });
}

function Bar({ percent }: { percent: number | null }) {
  return (
    <div
      role="progressbar"
      aria-label={t("Progress")}
      aria-valuenow={percent ?? undefined}
      aria-valuemin={0}
      aria-valuemax={100}
      className="mt-2 h-1.5 overflow-hidden rounded-full bg-line"
    >
      <div className={cx("h-full rounded-full bg-accent-solid transition-[width] duration-700", percent === null && "shimmering")} style={{ width: `${percent ?? 100}%` }} />
    </div>
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

const NARROW = "(max-width: 639px)";

export function RunTable({ runs, withPipeline }: { runs: Run[]; withPipeline?: boolean }) {
  return useMedia(NARROW) ? <RunCards runs={runs} withPipeline={withPipeline} /> : <RunRows runs={runs} withPipeline={withPipeline} />;
}

/** On a phone a table would be cut: two lines for each run. */
function RunCards({ runs, withPipeline }: { runs: Run[]; withPipeline?: boolean }) {
  return (
    <ul aria-label={t("Runs")}>
      {runs.map((run) => (
        <li key={run.id} className="border-b last:border-b-0">
          <Link to="/runs/$id" params={{ id: run.id }} className="num block px-4 py-2.5 hover:bg-line/35">
            <span className="flex items-baseline justify-between gap-3">
              <StatusChip status={run.status} />
              <span className="min-w-0 flex-1 truncate text-right font-medium">{withPipeline ? run.pipeline : `v${run.pipeline_version}`}</span>
            </span>
            <span className="mt-0.5 flex flex-wrap justify-between gap-x-3 text-xs text-muted">
              <span>
                <Ago at={run.started_at} /> · {triggerWords(run)} · {duration(run.duration_seconds)}
              </span>
              <span>
                {t("{read} read, {written} written", { read: run.rows_read, written: run.rows_written })}
                {run.rows_rejected > 0 && <span className="text-bad"> · {t("{n} rejected", { n: run.rows_rejected })}</span>}
              </span>
            </span>
          </Link>
        </li>
      ))}
    </ul>
  );
}

const triggerWords = (run: Run): string => (isLoad(run) ? t(run.trigger) : runWords(run));

function RunRows({ runs, withPipeline }: { runs: Run[]; withPipeline?: boolean }) {
  const navigate = useNavigate();
  /** The whole row leads to the run; what is a link of its own leads where it says. */
  const open = (event: MouseEvent, run: Run): void => {
    if (event.target instanceof Element && event.target.closest("a, button")) return;
    void navigate({ to: "/runs/$id", params: { id: run.id } });
  };
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
            <tr key={run.id} className={cx(tableLook.row, "cursor-pointer")} onClick={(event) => open(event, run)}>
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
              <td className="text-muted">{triggerWords(run)}</td>
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
