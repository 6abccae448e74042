/** One pipeline: how it is, what it did, how it is defined, and the levers. */
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useState, type ReactNode } from "react";
import { post, request } from "../api/client";
import { useRates } from "../api/live";
import { awaitRequest, useAudit, useDeadLetters, useMay, usePipeline, useReconcile, useRefresh, useRuns, useStatus, useVersions, verb } from "../api/queries";
import type { AuditEntry, Pipeline, PipelineStatus, Run, RunnerRequest, ValidationReport, Version } from "../api/types";
import { Ago, Button, Dialog, Empty, Facts, Failure, Figures, Loading, Menu, Panel, Since, Sql, StatusChip, Switch, Tag, cx, fillOf, inputLook, statusWords, useCopyCurl, type MenuEntry } from "../ui/basics";
import { History, Sparkline } from "../ui/charts";
import { Changes, changeInBrief, compare } from "../ui/diff";
import { Icon } from "../ui/icons";
import { LetterList } from "../ui/letters";
import { FailureCard, Guarantee, PlanPanel, RunTable } from "../ui/parts";
import { toast, toastError } from "../ui/toasts";
import { actionInWords } from "../words/actions";
import { compact, count, duration, percent } from "../words/format";
import { t } from "../words/language";
import { scheduleInWords } from "../words/schedule";

export function PipelinePage() {
  const { name } = useParams({ from: "/pipelines/$name" });
  const pipeline = usePipeline(name);
  const status = useStatus(name);
  const error = pipeline.error ?? status.error;
  if (error && !(pipeline.data && status.data)) return <Failure error={error} onRetry={() => void Promise.all([pipeline.refetch(), status.refetch()])} />;
  if (!pipeline.data || !status.data) return <Loading lines={12} />;
  return (
    <div className="mx-auto max-w-6xl space-y-4 p-4 sm:p-6">
      <Head pipeline={pipeline.data} status={status.data} />
      {status.data.last_error && <LastError pipeline={pipeline.data} status={status.data} />}
      {status.data.progress && <AtWork status={status.data} />}
      {status.data.hold && <Hold hold={status.data.hold} />}
      <Headline pipeline={pipeline.data} status={status.data} />
      <Tabs pipeline={pipeline.data} status={status.data} />
    </div>
  );
}

// --- the head ---------------------------------------------------------------------------------------------------

function useVerbs(pipeline: Pipeline) {
  const refresh = useRefresh();
  const [busy, setBusy] = useState(false);
  const act = (action: string, body?: unknown): void => {
    setBusy(true);
    verb(pipeline.name, action, body)
      .then((answer) => toast(answer.message ?? t("Done")), toastError)
      .finally(() => {
        setBusy(false);
        refresh(pipeline.name, pipeline.id);
      });
  };
  return { act, busy };
}

function Head({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  return (
    <header className="flex flex-wrap items-start justify-between gap-x-6 gap-y-3">
      <div className="min-w-0 flex-1 basis-80">
        <p className="flex items-center gap-1.5 text-muted">
          <Link to="/" className="hover:text-text hover:underline">
            {t("Pipelines")}
          </Link>
          <Icon name="chevron" size={12} />
          <span className="truncate">{pipeline.target_table}</span>
        </p>
        <div className="mt-1 flex flex-wrap items-center gap-x-4 gap-y-1">
          <h1 className="truncate text-xl font-semibold tracking-tight">{pipeline.name}</h1>
          <StatusChip status={status.status} large />
          <span className="text-muted">
            <Since at={status.since} />
          </span>
          {status.runner && (
            <Tag tone={status.runner.alive ? "idle" : "bad"} title={status.runner.id}>
              {t("on {runner}", { runner: `${status.runner.host}:${status.runner.pid}` })}
            </Tag>
          )}
          {pipeline.managed_by && <Tag title={t("Change it in its file, then apply.")}>{t("managed by {owner}", { owner: pipeline.managed_by })}</Tag>}
        </div>
        {pipeline.description && <p className="mt-1 max-w-prose text-muted">{pipeline.description}</p>}
      </div>
      <Levers pipeline={pipeline} status={status} />
    </header>
  );
}

function Levers({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const mayOperate = useMay("operator");
  const { act, busy } = useVerbs(pipeline);
  const copyCurl = useCopyCurl();
  const [asking, setAsking] = useState<"reset" | "delete" | null>(null);
  const path = `/pipelines/${pipeline.name}`;
  const extras: MenuEntry[] = [{ label: t("Copy as curl"), icon: "copy", onSelect: () => copyCurl("GET", `${path}/status`) }];
  if (mayOperate) {
    extras.push(
      { label: t("Copy the run as curl"), icon: "copy", onSelect: () => copyCurl("POST", `${path}/run`) },
      { label: t("Reset the checkpoint…"), icon: "undo", onSelect: () => setAsking("reset") },
      { label: t("Delete…"), icon: "trash", danger: true, onSelect: () => setAsking("delete") },
    );
  }
  return (
    <div className="flex flex-wrap items-center gap-2">
      {mayOperate && (
        <>
          <label className="mr-1 flex items-center gap-2 text-muted">
            <Switch checked={pipeline.enabled} label={t("Enabled")} disabled={busy} onChange={(next) => act(next ? "enable" : "disable")} />
            <span aria-hidden="true">{t("Enabled")}</span>
          </label>
          <Link to="/pipelines/$name/edit" params={{ name: pipeline.name }}>
            <Button icon="edit" tabIndex={-1}>
              {t("Edit")}
            </Button>
          </Link>
          <MainLever status={status} busy={busy} act={act} />
        </>
      )}
      <Menu label={t("More")} items={extras} />
      <Ask pipeline={pipeline} what={asking} onClose={() => setAsking(null)} />
    </div>
  );
}

function MainLever({ status, busy, act }: { status: PipelineStatus; busy: boolean; act: (action: string, body?: unknown) => void }) {
  if (status.status === "RUNNING" || status.status === "PAUSE_REQUESTED") {
    return (
      <Button icon="pause" busy={busy} disabled={status.status === "PAUSE_REQUESTED"} onClick={() => act("pause")}>
        {t("Pause")}
      </Button>
    );
  }
  if (status.status === "RUN_REQUESTED") {
    return (
      <Button icon="close" busy={busy} onClick={() => act("cancel")}>
        {t("Cancel")}
      </Button>
    );
  }
  return (
    <Button look="primary" icon="play" busy={busy} disabled={!status.enabled} onClick={() => act("run", { trigger: "manual" })}>
      {status.status === "PAUSED" ? t("Resume") : status.status === "FAILED" ? t("Retry") : t("Run now")}
    </Button>
  );
}

function Ask({ pipeline, what, onClose }: { pipeline: Pipeline; what: "reset" | "delete" | null; onClose: () => void }) {
  const [cursor, setCursor] = useState("");
  const refresh = useRefresh();
  const navigate = useNavigate();
  const perform = (): void => {
    const done =
      what === "delete"
        ? request("DELETE", `/pipelines/${pipeline.name}`, { ifMatch: pipeline.version }).then(() => void navigate({ to: "/" }))
        : verb(pipeline.name, "reset-state", { cursor: cursor || null }).then(() => toast(t("The next run starts there.")));
    done.catch(toastError).finally(() => {
      refresh(pipeline.name);
      onClose();
    });
  };
  const words = {
    delete: { title: t("Delete {name}?", { name: pipeline.name }), text: t("Its history and checkpoint go with it. The table {table} stays.", { table: pipeline.target_table }), button: t("Delete") },
    reset: { title: t("Reset the checkpoint?"), text: t("The next run starts over, or at the value you give."), button: t("Reset") },
  };
  const shown = words[what ?? "reset"];
  return (
    <Dialog
      open={what !== null}
      onClose={onClose}
      title={shown.title}
      footer={
        <>
          <Button onClick={onClose}>{t("Cancel")}</Button>
          <Button look="danger" onClick={perform}>
            {shown.button}
          </Button>
        </>
      }
    >
      <p className="text-muted">{shown.text}</p>
      {what === "reset" && pipeline.incremental_key && (
        <label className="mt-3 block space-y-1">
          <span className="text-muted">{t("Value of {column} (empty: from the beginning)", { column: pipeline.incremental_key })}</span>
          <input className={inputLook} value={cursor} onChange={(event) => setCursor(event.target.value)} />
        </label>
      )}
    </Dialog>
  );
}

// --- how it is --------------------------------------------------------------------------------------------------

function LastError({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const error = status.last_error;
  const mayOperate = useMay("operator");
  if (!error) return null;
  return (
    <FailureCard
      code={error.code}
      message={error.message}
      nextStep={error.next_step}
      at={error.at}
      actions={
        <>
          {error.run_id && (
            <Link to="/runs/$id" params={{ id: error.run_id }}>
              <Button tabIndex={-1}>{t("Open the run")}</Button>
            </Link>
          )}
          {mayOperate && (
            <Link to="/pipelines/$name/edit" params={{ name: pipeline.name }}>
              <Button icon="edit" tabIndex={-1}>
                {t("Edit")}
              </Button>
            </Link>
          )}
        </>
      }
    />
  );
}

function AtWork({ status }: { status: PipelineStatus }) {
  const progress = status.progress;
  const rates = useRates(status.pipeline_id);
  if (!progress) return null;
  return (
    <section aria-label={t("Progress")} className="rounded-lg border border-accent/35 bg-accent-soft px-4 py-3">
      <div className="num flex flex-wrap items-center justify-between gap-x-6 gap-y-1">
        <span className="font-medium">{t("{n} rows read", { n: count(progress.rows_read) })}</span>
        <span className="text-muted">{t("{n} batches", { n: count(progress.batches) })}</span>
        <span className="text-muted">{progress.rows_per_second ? t("{n} rows/s", { n: compact(progress.rows_per_second) }) : "—"}</span>
        <Sparkline values={rates} width={120} label={t("Rows a second")} />
        <span className="text-muted">
          {progress.eta_seconds !== null ? t("about {time} left", { time: duration(progress.eta_seconds) }) : duration(progress.elapsed_seconds)}
        </span>
      </div>
      <div
        role="progressbar"
        aria-label={t("Progress")}
        aria-valuenow={progress.percent ?? undefined}
        aria-valuemin={0}
        aria-valuemax={100}
        className="mt-2 h-1.5 overflow-hidden rounded-full bg-line"
      >
        <div
          className={cx("h-full rounded-full bg-accent-solid transition-[width] duration-700", progress.percent === null && "shimmering")}
          style={{ width: `${progress.percent ?? 100}%` }}
        />
      </div>
    </section>
  );
}

function Hold({ hold }: { hold: Record<string, unknown> }) {
  return (
    <section className="flex gap-3 rounded-lg border border-warn-fill/40 bg-warn-soft p-4">
      <span className="mt-0.5 text-warn">
        <Icon name="warn" />
      </span>
      <div>
        <p className="font-medium">{t("Somebody's open transaction holds the checkpoint back")}</p>
        <p className="mt-1 font-mono text-xs">
          {Object.entries(hold)
            .map(([name, value]) => `${name}: ${String(value)}`)
            .join("  ")}
        </p>
      </div>
    </section>
  );
}

function Headline({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const { recent, lag, run } = status;
  return (
    <Figures
      items={[
        {
          name: t("Freshness"),
          value: <Ago at={lag.last_success_at} />,
          note: lag.cursor_lag_seconds !== null ? t("cursor {time} behind", { time: duration(lag.cursor_lag_seconds) }) : t("last success"),
        },
        {
          name: t("Last run"),
          value: run ? duration(run.duration_seconds) : "—",
          note: recent.p50_seconds !== null ? t("median {time}", { time: duration(recent.p50_seconds) }) : undefined,
        },
        { name: t("Rows written"), value: run ? count(run.rows_written) : "—", note: run ? t("of {n} read", { n: count(run.rows_read) }) : undefined },
        {
          name: t("Success"),
          value: percent(recent.success_rate),
          note: t("of {n} runs", { n: recent.runs }),
          tone: recent.success_rate !== null && recent.success_rate < 0.9 ? "warn" : "idle",
        },
        {
          name: t("Next run"),
          value: pipeline.enabled && status.next_run_at ? <Ago at={status.next_run_at} /> : t("manual"),
          note: scheduleInWords(pipeline.schedule_interval),
        },
        { name: t("Guarantee"), value: <Guarantee level={status.guarantee} />, note: pipeline.mode === "full" ? t("full load") : t("incremental") },
      ]}
    />
  );
}

// --- tabs -------------------------------------------------------------------------------------------------------

const TABS = ["overview", "runs", "definition", "versions", "checks", "letters"] as const;
const TAB_WORDS: Record<(typeof TABS)[number], string> = {
  overview: "Overview",
  runs: "Runs",
  definition: "Definition",
  versions: "Versions",
  checks: "Checks",
  letters: "Dead letters",
};

function Tabs({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const search = useSearch({ from: "/pipelines/$name" });
  const current = TABS.find((tab) => tab === search.tab) ?? "overview";
  return (
    <>
      <nav aria-label={t("Parts of the pipeline")} className="flex gap-1 overflow-x-auto border-b">
        {TABS.map((tab) => (
          <Link
            key={tab}
            to="/pipelines/$name"
            params={{ name: pipeline.name }}
            search={{ tab: tab === "overview" ? undefined : tab }}
            aria-current={tab === current ? "page" : undefined}
            className={cx("-mb-px border-b-2 px-3 py-2 whitespace-nowrap", tab === current ? "border-accent font-medium" : "border-transparent text-muted hover:text-text")}
          >
            {t(TAB_WORDS[tab])}
            {tab === "versions" && <span className="num ml-1.5 text-xs text-faint">{pipeline.version}</span>}
          </Link>
        ))}
      </nav>
      {current === "overview" && <Overview pipeline={pipeline} status={status} />}
      {current === "runs" && <Runs name={pipeline.name} />}
      {current === "definition" && <DefinitionTab pipeline={pipeline} />}
      {current === "versions" && <Versions pipeline={pipeline} />}
      {current === "checks" && <Checks pipeline={pipeline} />}
      {current === "letters" && <Letters name={pipeline.name} />}
    </>
  );
}

const HISTORY = 50;

function Overview({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const runs = useRuns(pipeline.name, HISTORY).data?.pages[0]?.items ?? [];
  const oldestFirst = [...runs].reverse();
  const checkpoint = status.checkpoint;
  return (
    <div className="space-y-4">
      <Panel>
        {runs.length === 0 ? (
          <Empty icon="runs" title={t("No runs yet")}>
            {t("Its history is drawn here.")}
          </Empty>
        ) : (
          <div className="grid gap-6 md:grid-cols-2">
            <History runs={oldestFirst} value={(run) => run.rows_written + run.rows_deleted} show={(value) => count(value)} label={t("Rows changed")} />
            <History runs={oldestFirst} value={(run) => run.duration_seconds} show={duration} label={t("Duration")} />
          </div>
        )}
      </Panel>
      <div className="grid gap-4 lg:grid-cols-[3fr_2fr]">
        <Timeline name={pipeline.name} runs={runs} />
        <div className="space-y-4">
          <PlanPanel plan={status.run?.metrics.plan} />
          <Panel title={t("Checkpoint")}>
            {checkpoint ? (
              <Facts
                items={[
                  [t("Reached"), <Mono key="k">{checkpoint.last_processed_key}</Mono>],
                  [t("Safe up to"), <Mono key="s">{checkpoint.safe_upto}</Mono>],
                  ...(checkpoint.held_upto ? ([[t("Held at"), <Mono key="h">{checkpoint.held_upto}</Mono>]] as [string, ReactNode][]) : []),
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

function Mono({ children }: { children: string | null }) {
  return children ? <span className="font-mono text-xs break-all">{children}</span> : <span className="text-faint">—</span>;
}

type Happening = { at: string; key: string; run?: Run; entry?: AuditEntry };

/** Runs and changes in one line of time: what was done, and what came of it. */
function Timeline({ name, runs }: { name: string; runs: Run[] }) {
  const audit = useAudit({ object: `pipeline:${name}` }).data?.pages[0]?.items ?? [];
  const happenings: Happening[] = [
    ...runs.map((run) => ({ at: run.started_at, key: run.id, run })),
    ...audit.map((entry) => ({ at: entry.at, key: `audit-${entry.id}`, entry })),
  ].sort((a, b) => b.at.localeCompare(a.at));
  return (
    <Panel title={t("Timeline")} flush>
      {happenings.length === 0 ? (
        <p className="p-4 text-muted">{t("Nothing happened yet.")}</p>
      ) : (
        <ol className="max-h-[34rem] overflow-auto py-1" tabIndex={0} aria-label={t("Timeline")}>
          {happenings.slice(0, 60).map((one) => (
            <li key={one.key} className="flex items-start gap-3 px-4 py-1.5">
              <span className="mt-1.5 size-2 shrink-0 rounded-full" style={{ background: one.run ? fillOf(one.run.status) : "transparent", boxShadow: one.run ? undefined : "inset 0 0 0 1.5px var(--faint)" }} />
              <span className="min-w-0 flex-1">{one.run ? <RunLine run={one.run} /> : one.entry && <AuditLine entry={one.entry} />}</span>
              <span className="shrink-0 text-xs text-muted">
                <Ago at={one.at} />
              </span>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

function RunLine({ run }: { run: Run }) {
  return (
    <span className="num">
      <Link to="/runs/$id" params={{ id: run.id }} className="font-medium hover:text-accent hover:underline">
        {t("Run")} · {statusWords(run.status)}
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

function Runs({ name }: { name: string }) {
  const runs = useRuns(name);
  const items = runs.data?.pages.flatMap((page) => page.items) ?? [];
  if (runs.isPending) return <Loading />;
  if (items.length === 0) return <Empty icon="runs" title={t("No runs yet")} />;
  return (
    <>
      <RunTable runs={items} />
      {runs.hasNextPage && (
        <Button onClick={() => void runs.fetchNextPage()} busy={runs.isFetchingNextPage}>
          {t("Show older")}
        </Button>
      )}
    </>
  );
}

function DefinitionTab({ pipeline }: { pipeline: Pipeline }) {
  const options = Object.entries(pipeline.options);
  return (
    <div className="grid gap-4 lg:grid-cols-[3fr_2fr]">
      <div className="min-w-0 space-y-4">
        {pipeline.tasks.length > 0 ? (
          <Panel title={t("Task plan")}>
            <ol className="space-y-4">
              {pipeline.tasks.map((task, index) => (
                <li key={task.order_index} className="space-y-1.5">
                  <p className="flex items-center gap-2">
                    <span className="num text-muted">{index + 1}.</span>
                    <Tag>{task.task_type}</Tag>
                    {task.task_type === "PYTHON" && <b className="font-mono text-xs font-medium">{task.body}</b>}
                    {task.target_table && <span className="text-muted">→ {task.target_table}</span>}
                  </p>
                  {task.task_type === "SQL" && <Sql>{task.body}</Sql>}
                  {Object.keys(task.params).length > 0 && <Sql>{JSON.stringify(task.params, null, 2)}</Sql>}
                </li>
              ))}
            </ol>
          </Panel>
        ) : (
          <Panel title={t("Source query")}>
            <Sql>{pipeline.source_query ?? "—"}</Sql>
          </Panel>
        )}
      </div>
      <Panel title={t("Fields")}>
        <Facts
          items={[
            [t("Type"), pipeline.type],
            [t("Source"), pipeline.source_connection],
            [t("Target"), <Mono key="t">{pipeline.target_table}</Mono>],
            [t("Key"), <Mono key="k">{pipeline.target_key?.join(", ") ?? null}</Mono>],
            [t("Mode"), pipeline.mode === "full" ? t("full load") : t("incremental")],
            [t("Cursor"), <Mono key="c">{[pipeline.incremental_key, pipeline.incremental_id_key].filter(Boolean).join(", ") || null}</Mono>],
            [t("Python step"), <Mono key="p">{pipeline.python_task}</Mono>],
            [t("Batch size"), count(pipeline.batch_size)],
            [t("Schedule"), scheduleInWords(pipeline.schedule_interval)],
            ...options.map(([name, value]): [string, ReactNode] => [name, <Mono key={name}>{JSON.stringify(value)}</Mono>]),
            [t("Created"), <Ago key="cr" at={pipeline.created_at} />],
            [t("Changed"), <Ago key="ch" at={pipeline.updated_at} />],
          ]}
        />
      </Panel>
    </div>
  );
}

function Versions({ pipeline }: { pipeline: Pipeline }) {
  const versions = useVersions(pipeline.name);
  const items = versions.data?.items ?? [];
  if (versions.isPending) return <Loading />;
  if (versions.error) return <Failure error={versions.error} />;
  return (
    <ol className="space-y-3">
      {items.map((version, index) => (
        <li key={version.version}>
          <VersionCard pipeline={pipeline} version={version} before={items[index + 1]} isNewest={index === 0} />
        </li>
      ))}
    </ol>
  );
}

function VersionCard({ pipeline, version, before, isNewest }: { pipeline: Pipeline; version: Version; before?: Version; isNewest: boolean }) {
  const mayOperate = useMay("operator");
  const refresh = useRefresh();
  const rollBack = (): void => {
    request("POST", `/pipelines/${pipeline.name}/versions/${version.version}/rollback`, { ifMatch: pipeline.version })
      .then(() => toast(t("Version {n} is in force again.", { n: version.version })), toastError)
      .finally(() => refresh(pipeline.name, pipeline.id));
  };
  return (
    <Panel
      title={
        <span className="flex flex-wrap items-center gap-2">
          <span className="num">v{version.version}</span>
          {isNewest && <Tag tone="ok">{t("in force")}</Tag>}
          <span className="font-normal text-muted">
            {version.changed_by} · <Ago at={version.changed_at} /> {version.change_summary && `· ${version.change_summary}`}
          </span>
        </span>
      }
      action={
        mayOperate &&
        !isNewest && (
          <Button look="quiet" icon="undo" onClick={rollBack} aria-label={t("Roll back to version {n}", { n: version.version })}>
            {t("Roll back")}
          </Button>
        )
      }
    >
      {before ? <Changes changes={compare(before.definition, version.definition)} /> : <p className="text-muted">{t("The first version.")}</p>}
    </Panel>
  );
}

// --- checks -----------------------------------------------------------------------------------------------------

function Checks({ pipeline }: { pipeline: Pipeline }) {
  return (
    <div className="grid gap-4 lg:grid-cols-2">
      <Validation name={pipeline.name} />
      <Reconcile name={pipeline.name} />
    </div>
  );
}

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
          {report.valid && <Verdict good text={t("Nothing stands against running it.")} />}
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

function Reconcile({ name }: { name: string }) {
  const last = useReconcile(name);
  const mayOperate = useMay("operator");
  const ask = (repair: boolean): void => {
    verb(name, "reconcile", { repair }).catch(toastError).finally(() => void last.refetch());
  };
  const found = last.data;
  return (
    <Panel
      title={t("Reconciliation")}
      action={
        mayOperate && (
          <span className="flex flex-wrap gap-2">
            <Button onClick={() => ask(false)} busy={!!found && !found.finished_at}>
              {t("Compare now")}
            </Button>
            <Button look="quiet" onClick={() => ask(true)} disabled={!!found && !found.finished_at}>
              {t("Compare and repair")}
            </Button>
          </span>
        )
      }
    >
      {!found ? (
        <p className="text-muted">{t("Compares source and target row by row and says what differs.")}</p>
      ) : (
        <div className="space-y-2" aria-live="polite">
          <p className="text-muted">
            {t("Asked")} <Ago at={found.created_at} />
          </p>
          {!found.finished_at && <p>{t("A runner is comparing…")}</p>}
          {found.error && <ul><Verdict text={found.error.message ?? t("It failed.")} /></ul>}
          {found.result && <Facts items={Object.entries(found.result).map(([key, value]) => [key, <Mono key={key}>{typeof value === "object" ? JSON.stringify(value) : String(value)}</Mono>])} />}
        </div>
      )}
    </Panel>
  );
}

function Letters({ name }: { name: string }) {
  return <LetterList letters={useDeadLetters(name)} pipeline={name} />;
}

