/** One pipeline: how it is, what it did, how it is defined, and the levers. */
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { request } from "../api/client";
import { useRates } from "../api/live";
import { useMay, usePipeline, useRefresh, useRuns, useStatus, verb } from "../api/queries";
import type { Lag, Pipeline, PipelineStatus, Progress } from "../api/types";
import { Ago, Button, Dialog, Empty, Failure, Figures, Loading, Menu, Since, StatusChip, Switch, Tag, inputLook, useCopyCurl, type MenuEntry } from "../ui/basics";
import { cx } from "../ui/classes";
import { Icon } from "../ui/icons";
import { Labels } from "../ui/labels";
import { LetterGroups } from "../ui/letters";
import { AtWork, FailureCard, Guarantee, RunTable } from "../ui/parts";
import { dataAsOf } from "../ui/scales";
import { Term } from "../ui/terms";
import { toast, toastError } from "../ui/toasts";
import { count, duration, percent } from "../words/format";
import { t } from "../words/language";
import { MODE_WORDS } from "../words/modes";
import { scheduleInWords } from "../words/schedule";
import { Checks } from "./pipeline-checks";
import { DataTab } from "./pipeline-data";
import { DefinitionTab, Versions } from "./pipeline-definition";
import { Overview } from "./pipeline-overview";
import { PlanTab } from "./pipeline-plan";

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
      {status.data.progress && <Live status={status.data} progress={status.data.progress} />}
      {status.data.waiting && (
        <p role="status" className="rounded-lg border border-warn px-4 py-3 text-sm">
          {status.data.waiting}
        </p>
      )}
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
          <Link to="/pipelines" className="hover:text-text hover:underline">
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
          <Labels labels={pipeline.labels} />
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
    <Button look="primary" icon="play" busy={busy} disabled={!status.enabled} onClick={() => (status.status === "PAUSED" ? act("resume") : act("run", { trigger: "manual" }))}>
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
        ? request("DELETE", `/pipelines/${pipeline.name}`, { ifMatch: pipeline.version }).then(() => void navigate({ to: "/pipelines" }))
        : verb(pipeline.name, "reset-state", { cursor: cursor || null }).then(() => toast(t("The next run starts there.")));
    done.catch(toastError).finally(() => {
      refresh(pipeline.name);
      onClose();
    });
  };
  const words = {
    delete: { title: t("Delete {name}?", { name: pipeline.name }), text: t("Its history and checkpoint are deleted too. The table {table} stays.", { table: pipeline.target_table }), button: t("Delete") },
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
      title={t("The last run failed")}
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

function Live({ status, progress }: { status: PipelineStatus; progress: Progress }) {
  return <AtWork progress={progress} rates={useRates(status.pipeline_id)} following={status.following} />;
}

function Hold({ hold }: { hold: Record<string, unknown> }) {
  return (
    <section className="flex gap-3 rounded-lg border border-warn-fill/40 bg-warn-soft p-4">
      <span className="mt-0.5 text-warn">
        <Icon name="warn" />
      </span>
      <div>
        <p className="font-medium">{t("An open transaction holds the checkpoint back")}</p>
        <p className="mt-1 font-mono text-xs">
          {Object.entries(hold)
            .map(([name, value]) => `${name}: ${String(value)}`)
            .join("  ")}
        </p>
      </div>
    </section>
  );
}

function freshnessNote(pipeline: Pipeline, lag: Lag): string {
  if (pipeline.mode === "live") return t("as of this moment of the source");
  if (pipeline.run_after.length > 0) return t("the oldest data that it is built on");
  return lag.cursor_lag_seconds !== null ? t("cursor {time} behind", { time: duration(lag.cursor_lag_seconds) }) : t("last success");
}

function Headline({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const { recent, lag, last_load: run } = status;
  return (
    <Figures
      items={[
        {
          name: <Term name="lag">{t("Freshness")}</Term>,
          value: <Ago at={dataAsOf(pipeline, lag)} />,
          note: freshnessNote(pipeline, lag),
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
          note: t("of {n} {n|run|runs}", { n: recent.runs }),
          tone: recent.success_rate !== null && recent.success_rate < 0.9 ? "warn" : "idle",
        },
        {
          name: t("Next run"),
          value: pipeline.enabled && status.next_run_at ? <Ago at={status.next_run_at} /> : "—",
          note: scheduleInWords(pipeline.schedule_interval),
        },
        { name: <Term name="guarantee">{t("Guarantee")}</Term>, value: <Guarantee level={status.guarantee} />, note: t(MODE_WORDS[pipeline.mode]) },
      ]}
    />
  );
}

// --- tabs -------------------------------------------------------------------------------------------------------

const TABS = ["overview", "runs", "definition", "versions", "plan", "data", "checks", "letters"] as const;
const TAB_WORDS: Record<(typeof TABS)[number], string> = {
  overview: "Overview",
  runs: "Runs",
  definition: "Definition",
  versions: "Versions",
  plan: "Plan",
  data: "Data",
  checks: "Checks",
  letters: "Dead letters",
};

function Tabs({ pipeline, status }: { pipeline: Pipeline; status: PipelineStatus }) {
  const search = useSearch({ from: "/pipelines/$name" });
  const current = TABS.find((tab) => tab === search.tab) ?? "overview";
  const bar = useRef<HTMLElement>(null);
  // On a phone the chosen tab may stand beyond the edge.
  useEffect(() => {
    // In newer browsers it answers with a promise, which must not become the effect's clean-up.
    void bar.current?.querySelector(`[data-tab=${current}]`)?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [current]);
  return (
    <>
      <nav ref={bar} aria-label={t("Parts of the pipeline")} className="flex gap-1 overflow-x-auto border-b">
        {TABS.map((tab) => (
          <Link
            key={tab}
            to="/pipelines/$name"
            params={{ name: pipeline.name }}
            search={{ tab: tab === "overview" ? undefined : tab }}
            // By itself the router takes every tab of this page for the current one.
            activeOptions={{ exact: true, includeSearch: true, explicitUndefined: true }}
            data-tab={tab}
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
      {current === "plan" && <PlanTab pipeline={pipeline} />}
      {current === "data" && <DataTab pipeline={pipeline} />}
      {current === "checks" && <Checks pipeline={pipeline} />}
      {current === "letters" && <LetterGroups pipeline={pipeline.name} />}
    </>
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


