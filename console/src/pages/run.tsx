/** One run: how it ended, what it changed, where its time went, what it said. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useState } from "react";
import { useMay, useRefresh, useRun, useRunLog, useStatus, verb } from "../api/queries";
import type { CheckOutcome, LogLine, Run } from "../api/types";
import { Ago, Button, Dialog, Facts, Failure, Figures, Loading, Menu, Moment, Panel, StatusChip, given, inputLook, useCopyCurl } from "../ui/basics";
import { cx } from "../ui/classes";
import { Speed, Stages, Throughput } from "../ui/charts";
import { Icon } from "../ui/icons";
import { AtWork, FailureCard, Guarantee, PlanPanel } from "../ui/parts";
import { ratesOf, type Point } from "../ui/scales";
import { Term } from "../ui/terms";
import { toast, toastError } from "../ui/toasts";
import { count, duration, timeOfDay } from "../words/format";
import { t } from "../words/language";

export function RunPage() {
  const { id } = useParams({ from: "/runs/$id" });
  const run = useRun(id);
  if (run.error && !run.data) return <Failure error={run.error} onRetry={() => void run.refetch()} />;
  if (!run.data) return <Loading lines={10} />;
  return <Story run={run.data} />;
}

function Story({ run }: { run: Run }) {
  const log = useRunLog(run.id, run.status === "RUNNING").data?.items ?? [];
  const { metrics } = run;
  return (
    <div className="mx-auto max-w-6xl space-y-4 p-4 sm:p-6">
      <Head run={run} />
      {run.status === "RUNNING" && <Live run={run} log={log} />}
      {run.error_message && (
        <FailureCard
          title={t("This run failed")}
          code={run.error_code ?? "error"}
          message={run.error_message}
          nextStep={run.next_step}
          at={run.finished_at}
          actions={<Retry run={run} />}
        />
      )}
      <Figures
        items={[
          { name: t("Read"), value: count(run.rows_read), note: run.rows_per_second ? t("{n} rows/s", { n: count(Math.round(run.rows_per_second)) }) : undefined },
          { name: t("Inserted"), value: count(metrics.inserted ?? 0) },
          { name: t("Updated"), value: count(metrics.updated ?? 0) },
          { name: t("Deleted"), value: count(run.rows_deleted) },
          { name: t("Unchanged"), value: count(metrics.unchanged ?? 0) },
          { name: t("Rejected"), value: count(run.rows_rejected), tone: run.rows_rejected ? "bad" : "idle" },
        ]}
      />
      <div className="grid gap-4 lg:grid-cols-[3fr_2fr]">
        <div className="min-w-0 space-y-4">
          <Panel title={t("Where the time went")}>
            <Stages stages={metrics.stage_seconds ?? {}} total={run.duration_seconds} />
            <dl className="num mt-4 flex flex-wrap gap-x-8 gap-y-2 border-t pt-3">
              {(
                [
                  [t("Batches"), count(run.batches)],
                  [t("Median batch"), milliseconds(metrics.batch_ms?.p50)],
                  [t("95th percentile"), milliseconds(metrics.batch_ms?.p95)],
                  [t("Slowest batch"), milliseconds(metrics.batch_ms?.max)],
                ] as const
              ).map(([name, value]) => (
                <div key={name}>
                  <dt className="text-xs text-muted">{name}</dt>
                  <dd className="font-medium">{value}</dd>
                </div>
              ))}
            </dl>
          </Panel>
          <Batches log={log} />
          <Log events={log} />
        </div>
        <div className="min-w-0 space-y-4">
          <Panel title={t("Facts")}>
            <Facts
              items={[
                [t("Started"), <Moment key="s" at={run.started_at} />],
                [t("Finished"), <Moment key="f" at={run.finished_at} />],
                [t("Duration"), duration(run.duration_seconds)],
                [t("Trigger"), t(run.trigger)],
                [t("Version"), `v${run.pipeline_version}`],
                [t("Attempts"), count(run.attempts)],
                [<Term key="t" name="guarantee">{t("Guarantee")}</Term>, <Guarantee key="g" level={metrics.guarantee ?? null} />],
                ...given(t("Consistency"), metrics.consistency ?? null),
                ...given(<Term name="cursor">{t("Cursor")}</Term>, run.cursor_to && `${run.cursor_from ?? t("beginning")} → ${run.cursor_to}`),
                ...given(t("Runner"), run.runner_id?.slice(0, 8) ?? null),
                [t("Run id"), <span key="id" className="font-mono text-xs break-all">{run.id}</span>],
              ]}
            />
          </Panel>
          {metrics.checks && <Checks outcomes={metrics.checks} />}
          <PlanPanel plan={metrics.plan} none={t("This run ended before it had a plan.")} />
        </div>
      </div>
    </div>
  );
}

/** What came of the checks of the definition, with the first rows that broke one. */
function Checks({ outcomes }: { outcomes: CheckOutcome[] }) {
  return (
    <Panel title={t("Checks")}>
      <ul className="space-y-3">
        {outcomes.map((outcome) => (
          <li key={outcome.name}>
            <p className="flex flex-wrap items-baseline justify-between gap-x-3">
              <span className="font-mono text-xs">{outcome.name}</span>
              <span className={outcome.result === "failed" ? "text-bad" : outcome.result === "passed" ? "text-muted" : ""}>{t(outcome.result)}</span>
            </p>
            {outcome.result !== "passed" && <p className="mt-1 text-muted">{outcome.found}</p>}
            {Array.isArray(outcome.offending_rows) && (
              <pre tabIndex={0} className="mt-1 max-h-40 overflow-auto font-mono text-xs">{outcome.offending_rows.map((row) => JSON.stringify(row)).join("\n")}</pre>
            )}
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Head({ run }: { run: Run }) {
  const copyCurl = useCopyCurl();
  return (
    <header className="flex flex-wrap items-center justify-between gap-3">
      <div className="min-w-0">
        <p className="flex items-center gap-1.5 text-muted">
          <Link to="/pipelines/$name" params={{ name: run.pipeline }} search={{ tab: "runs" }} className="hover:text-text hover:underline">
            {run.pipeline}
          </Link>
          <Icon name="chevron" size={12} />
          {t("Run")}
        </p>
        <h1 className="mt-1 flex flex-wrap items-center gap-x-4 gap-y-1 text-lg font-semibold tracking-tight">
          <StatusChip status={run.status} large />
          <span className="text-base font-normal text-muted">
            <Ago at={run.started_at} /> · {duration(run.duration_seconds)}
          </span>
        </h1>
      </div>
      <div className="flex gap-2">
        {run.status === "RUNNING" ? <Levers run={run} /> : !run.error_message && <Retry run={run} again />}
        <Menu label={t("More")} items={[{ label: t("Copy as curl"), icon: "copy", onSelect: () => copyCurl("GET", `/runs/${run.id}`) }]} />
      </div>
    </header>
  );
}

/** How far it is, how fast, and how long it will still take; the same as on the page of its pipeline. */
function Live({ run, log }: { run: Run; log: LogLine[] }) {
  const status = useStatus(run.pipeline).data;
  if (!status?.progress || status.run?.id !== run.id) return null;
  return <AtWork progress={status.progress} rates={ratesOf(pointsOf(log))} following={status.following} />;
}

function Levers({ run }: { run: Run }) {
  const mayOperate = useMay("operator");
  const status = useStatus(run.pipeline).data;
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const refresh = useRefresh();
  const client = useQueryClient();
  if (!mayOperate) return null;
  const act = (action: "pause" | "cancel", body?: unknown): void => {
    setBusy(true);
    verb(run.pipeline, action, body)
      .then((answer) => toast(answer.message), toastError)
      .finally(() => {
        setBusy(false);
        refresh(run.pipeline, run.pipeline_id);
        void client.invalidateQueries({ queryKey: ["run", run.id] });
      });
  };
  // Only this run is meant, and not one that followed it meanwhile.
  const cancel = (): void => act("cancel", run.answers_request ? { run_requested_at: run.answers_request } : undefined);
  return (
    <>
      <Button icon="pause" busy={busy} disabled={status?.status === "PAUSE_REQUESTED"} onClick={() => act("pause")}>
        {t("Pause")}
      </Button>
      <Button look="danger" icon="stop" busy={busy} onClick={() => setAsking(true)}>
        {t("Cancel the run")}
      </Button>
      <Dialog
        open={asking}
        onClose={() => setAsking(false)}
        title={t("Cancel the run?")}
        footer={
          <>
            <Button onClick={() => setAsking(false)}>{t("Keep running")}</Button>
            <Button
              look="danger"
              onClick={() => {
                setAsking(false);
                cancel();
              }}
            >
              {t("Cancel the run")}
            </Button>
          </>
        }
      >
        <p className="text-muted">{t("It ends at once. Committed rows stay; the next run starts from the checkpoint.")}</p>
      </Dialog>
    </>
  );
}

function Retry({ run, again }: { run: Run; again?: boolean }) {
  const mayOperate = useMay("operator");
  const refresh = useRefresh();
  const navigate = useNavigate();
  if (!mayOperate) return null;
  const retry = (): void => {
    verb(run.pipeline, "run", { trigger: "manual" })
      .then((answer) => {
        toast(answer.message);
        void navigate({ to: "/pipelines/$name", params: { name: run.pipeline } });
      }, toastError)
      .finally(() => refresh(run.pipeline, run.pipeline_id));
  };
  return (
    <>
      {!again && (
        <Link to="/pipelines/$name/edit" params={{ name: run.pipeline }}>
          <Button icon="edit" tabIndex={-1}>
            {t("Edit")}
          </Button>
        </Link>
      )}
      <Button look={again ? "plain" : "primary"} icon="play" onClick={retry}>
        {again ? t("Run again") : t("Retry")}
      </Button>
    </>
  );
}

function pointsOf(log: LogLine[]): Point[] {
  return log.filter((event) => event.topic === "batch.done").map((event) => ({ at: Date.parse(event.at), rows: Number(event.payload["rows_read"]) }));
}

function Batches({ log }: { log: LogLine[] }) {
  const points = pointsOf(log);
  if (points.length < 2) return null;
  return (
    <div className="grid gap-4 sm:grid-cols-2">
      <Panel title={t("Rows read over time")}>
        <Throughput points={points} />
      </Panel>
      <Panel title={t("Rows a second over time")}>
        <Speed points={points} />
      </Panel>
    </div>
  );
}

function Log({ events }: { events: LogLine[] }) {
  const [query, setQuery] = useState("");
  const [least, setLeast] = useState<LogLine["level"]>("info");
  const lines = events
    .filter((event) => LEVELS.indexOf(event.level) >= LEVELS.indexOf(least))
    .map((event) => ({ event, text: described(event) }))
    .filter(({ event, text }) => `${event.topic} ${text}`.toLowerCase().includes(query.toLowerCase()));
  return (
    <Panel
      flush
      title={t("Log")}
      action={
        <span className="flex flex-wrap gap-2">
          <span className="w-48">
            <select aria-label={t("Level")} className={inputLook} value={least} onChange={(event) => setLeast(event.target.value as LogLine["level"])}>
              <option value="info">{t("All lines")}</option>
              <option value="warning">{t("Warnings and errors")}</option>
              <option value="error">{t("Errors")}</option>
            </select>
          </span>
          <span className="w-40">
            <input type="search" className={inputLook} placeholder={t("Search")} aria-label={t("Search the log")} value={query} onChange={(event) => setQuery(event.target.value)} />
          </span>
        </span>
      }
    >
      {lines.length === 0 ? (
        <p className="p-4 text-muted">{events.length ? t("Nothing found") : t("This run logged nothing, or its log is no longer kept.")}</p>
      ) : (
        <ol tabIndex={0} aria-label={t("Log")} className="num max-h-96 overflow-auto py-2 font-mono text-xs leading-5">
          {lines.map(({ event, text }) => (
            <li key={event.id} className="flex flex-wrap gap-x-3 px-4 py-0.5 hover:bg-line/35 sm:flex-nowrap">
              <time dateTime={event.at} className="shrink-0 text-faint">{timeOfDay(event.at)}</time>
              <span className={cx("shrink-0 sm:w-32", LEVEL_INK[event.level])}>{event.topic}</span>
              <span className="min-w-0 break-words">{text}</span>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

const LEVELS: LogLine["level"][] = ["info", "warning", "error"];
const LEVEL_INK: Record<LogLine["level"], string> = { info: "text-accent", warning: "text-warn", error: "text-bad" };
const KNOWN = new Set(["pipeline", "pipeline_id", "run_id", "level", "epoch", "attempt"]);

function described(event: LogLine): string {
  return Object.entries(event.payload)
    .filter(([name, value]) => !KNOWN.has(name) && value !== null)
    .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
    .join("  ");
}

function milliseconds(value: number | null | undefined): string {
  return value === null || value === undefined ? "—" : duration(value / 1000);
}

