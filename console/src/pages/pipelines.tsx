/** The list of pipelines: what needs attention, what is fresh, what runs; ten thousand lines stay fluent. */
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore, type MouseEvent } from "react";
import { useRates } from "../api/live";
import { useMay, useOverview, useRefresh, verb } from "../api/queries";
import type { PipelineOverview } from "../api/types";
import { Ago, Button, Empty, Failure, Loading, PageHead, StatusChip, Switch, Tag, cx, inputLook } from "../ui/basics";
import { RunBars, Sparkline } from "../ui/charts";
import { Icon } from "../ui/icons";
import { toast, toastError } from "../ui/toasts";
import { compact } from "../words/format";
import { t } from "../words/language";
import { scheduleInWords } from "../words/schedule";
import { waitingInWords } from "../words/waiting";

type Show = "attention" | "running" | "paused" | "scheduled" | "disabled";
type Sort = "name" | "freshness" | "status";

export interface PipelinesSearch {
  q?: string;
  show?: Show;
  sort?: Sort;
}

export const needsAttention = (line: PipelineOverview): boolean =>
  line.status === "FAILED" || line.dead_letters > 0 || line.is_held;

const KINDS: Record<Show, { words: string; fits: (line: PipelineOverview) => boolean }> = {
  attention: { words: "Needs attention", fits: needsAttention },
  running: { words: "Running", fits: (line) => ["RUNNING", "RUN_REQUESTED", "PAUSE_REQUESTED"].includes(line.status) },
  paused: { words: "Paused", fits: (line) => line.status === "PAUSED" },
  scheduled: { words: "Scheduled", fits: (line) => line.schedule_interval !== null && line.enabled },
  disabled: { words: "Disabled", fits: (line) => !line.enabled },
};

const STATUS_ORDER = ["FAILED", "RUNNING", "PAUSE_REQUESTED", "RUN_REQUESTED", "PAUSED", "IDLE"];

const ORDERS: Record<Sort, (a: PipelineOverview, b: PipelineOverview) => number> = {
  name: (a, b) => (a.name < b.name ? -1 : 1),
  freshness: (a, b) => (a.last_success_at ?? "").localeCompare(b.last_success_at ?? ""),
  status: (a, b) => STATUS_ORDER.indexOf(a.status) - STATUS_ORDER.indexOf(b.status),
};

export function PipelinesPage() {
  const overview = useOverview();
  const search = useSearch({ from: "/" });
  const mayOperate = useMay("operator");
  const lines = overview.data ?? [];
  const shown = useMemo(() => chosen(lines, search), [lines, search]);
  return (
    <div className="flex h-full flex-col">
      <PageHead title={t("Pipelines")}>
        {mayOperate && (
          <Link to="/new">
            <Button look="primary" icon="plus" tabIndex={-1}>
              {t("New pipeline")}
            </Button>
          </Link>
        )}
      </PageHead>
      <Filters lines={lines} shown={shown.length} />
      {overview.error && !overview.data ? (
        <Failure error={overview.error} onRetry={() => void overview.refetch()} />
      ) : overview.isPending ? (
        <Loading lines={10} />
      ) : lines.length === 0 ? (
        <Empty icon="pipelines" title={t("No pipelines yet")}>
          <p>{t("A pipeline keeps a mart up to date from one SQL query.")}</p>
          {mayOperate && (
            <p className="mt-3">
              <Link to="/new" className="text-accent underline">
                {t("Create the first one")}
              </Link>
            </p>
          )}
        </Empty>
      ) : shown.length === 0 ? (
        <Empty icon="filter" title={t("Nothing fits these filters")}>
          <Link to="/" search={{}} className="text-accent underline">
            {t("Show all")}
          </Link>
        </Empty>
      ) : (
        <List lines={shown} />
      )}
    </div>
  );
}

function chosen(lines: PipelineOverview[], search: PipelinesSearch): PipelineOverview[] {
  const words = (search.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const fits = search.show ? KINDS[search.show]?.fits : undefined;
  const found = lines.filter(
    (line) =>
      (!fits || fits(line)) &&
      words.every((word) => `${line.name} ${line.target_table} ${line.description} ${line.status}`.toLowerCase().includes(word)),
  );
  return found.sort(ORDERS[search.sort ?? "name"] ?? ORDERS.name);
}

function Filters({ lines, shown }: { lines: PipelineOverview[]; shown: number }) {
  const search = useSearch({ from: "/" });
  const navigate = useNavigate({ from: "/" });
  const input = useRef<HTMLInputElement>(null);
  const [typed, setTyped] = useState(search.q ?? "");
  useEffect(() => setTyped(search.q ?? ""), [search.q]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === "/" && !(event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement)) {
        event.preventDefault();
        input.current?.focus();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const change = (part: Partial<PipelinesSearch>): void =>
    void navigate({ search: (before) => ({ ...before, ...part }), replace: true });
  return (
    <div className="flex flex-wrap items-center gap-2 px-4 pb-3 sm:px-6">
      <div className="relative w-full sm:w-64">
        <span className="absolute top-2 left-2.5 text-faint">
          <Icon name="search" />
        </span>
        <input
          ref={input}
          type="search"
          aria-label={t("Filter by name, target or status")}
          placeholder={t("Filter  /")}
          className={cx(inputLook, "pl-8")}
          value={typed}
          onChange={(event) => {
            setTyped(event.target.value);
            change({ q: event.target.value || undefined });
          }}
        />
      </div>
      <div className="flex flex-wrap gap-1" role="group" aria-label={t("Show")}>
        <Pill active={!search.show} onClick={() => change({ show: undefined })} words={t("All")} count={lines.length} />
        {(Object.keys(KINDS) as Show[]).map((key) => {
          const count = lines.filter(KINDS[key].fits).length;
          if (count === 0 && key !== "attention" && search.show !== key) return null;
          return (
            <Pill
              key={key}
              active={search.show === key}
              alarming={key === "attention" && count > 0}
              onClick={() => change({ show: search.show === key ? undefined : key })}
              words={t(KINDS[key].words)}
              count={count}
            />
          );
        })}
      </div>
      <label className="ml-auto flex items-center gap-2 text-muted">
        <span className="sr-only" aria-live="polite">
          {t("{n} pipelines shown", { n: shown })}
        </span>
        {t("Sort")}
        <select className={cx(inputLook, "w-auto")} value={search.sort ?? "name"} onChange={(event) => change({ sort: event.target.value === "name" ? undefined : (event.target.value as Sort) })}>
          <option value="name">{t("Name")}</option>
          <option value="freshness">{t("Oldest data first")}</option>
          <option value="status">{t("Status")}</option>
        </select>
      </label>
    </div>
  );
}

function Pill(props: { active: boolean; alarming?: boolean; onClick: () => void; words: string; count: number }) {
  return (
    <button
      type="button"
      aria-pressed={props.active}
      onClick={props.onClick}
      className={cx(
        "flex h-8 items-center gap-1.5 rounded-md border px-2.5",
        props.active ? "border-line-strong bg-panel font-medium dark:bg-raised" : "border-transparent text-muted hover:bg-line/50 hover:text-text",
      )}
    >
      {props.words}
      <span className={cx("num text-xs", props.alarming ? "font-semibold text-bad" : "text-faint")}>{props.count}</span>
    </button>
  );
}

const wide = matchMedia("(min-width: 1024px)");

function useWide(): boolean {
  return useSyncExternalStore(
    (listener) => {
      wide.addEventListener("change", listener);
      return () => wide.removeEventListener("change", listener);
    },
    () => wide.matches,
  );
}

const COLUMNS = "lg:grid-cols-[6.5rem_minmax(11rem,1.4fr)_minmax(11rem,1.4fr)_4.75rem_6rem_minmax(8rem,0.9fr)_2.25rem_2.25rem]";

function List({ lines }: { lines: PipelineOverview[] }) {
  const scroller = useRef<HTMLDivElement>(null);
  const isWide = useWide();
  const mayOperate = useMay("operator");
  const act = useAct();
  const open = useOpen();
  const keyOf = useCallback((index: number) => lines[index]?.id ?? index, [lines]);
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => (isWide ? 48 : 84),
    overscan: 8,
    getItemKey: keyOf,
  });
  useEffect(() => rows.measure(), [isWide, rows]);
  return (
    <div ref={scroller} tabIndex={0} role="table" aria-label={t("Pipelines")} aria-rowcount={lines.length + 1} className="min-h-0 flex-1 overflow-auto border-t">
      <div role="rowgroup" className={cx("sticky top-0 z-10 border-b bg-bg", !isWide && "sr-only")}>
        <div role="row" aria-rowindex={1} className={cx("items-center gap-4 px-6 py-2 text-xs text-muted lg:grid", COLUMNS)}>
          {["Status", "Pipeline", "Source → target", "Last runs", "Freshness", "Schedule", "On", "Run"].map((name) => (
            <span key={name} role="columnheader" className="truncate">
              {t(name)}
            </span>
          ))}
        </div>
      </div>
      <div role="rowgroup" className="relative" style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((item) => {
          const line = lines[item.index];
          return line ? <Line key={item.key} line={line} index={item.index} top={item.start} height={item.size} open={open} act={mayOperate ? act : null} /> : null;
        })}
      </div>
    </div>
  );
}

type Act = (line: PipelineOverview, action: string, body?: unknown) => void;

function useAct(): Act {
  const refresh = useRefresh();
  const latest = useRef(refresh);
  latest.current = refresh;
  return useCallback((line, action, body) => {
    verb(line.name, action, body).then((answer) => toast(answer.message), toastError).finally(() => latest.current(line.name, line.id));
  }, []);
}

function useOpen(): (name: string) => void {
  const navigate = useNavigate();
  return useCallback((name) => void navigate({ to: "/pipelines/$name", params: { name } }), [navigate]);
}

interface LineProps {
  line: PipelineOverview;
  index: number;
  top: number;
  height: number;
  open: (name: string) => void;
  /** Absent for whoever may only look. */
  act: Act | null;
}

/** Dozens of these come and go with every turn of the wheel, so they are kept cheap: no queries, no router links. */
const Line = memo(function Line({ line, index, top, height, open, act }: LineProps) {
  const follow = (event: MouseEvent): void => {
    event.stopPropagation();
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    open(line.name);
  };
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      onClick={() => open(line.name)}
      style={{ transform: `translateY(${top}px)`, height }}
      className={cx(
        "group absolute inset-x-0 grid cursor-pointer grid-cols-[1fr_5.75rem_2.25rem] items-center gap-x-3 gap-y-0.5 lg:gap-x-4 border-b px-4 py-2 hover:bg-line/35 sm:px-6 lg:py-0",
        COLUMNS,
      )}
    >
      <span role="cell" className="order-2 lg:order-none">
        <StatusChip status={line.status} />
      </span>
      <span role="cell" className="order-1 min-w-0 lg:order-none" title={line.description}>
        <span className="flex min-w-0 items-center gap-2">
          <a href={`/ui/pipelines/${encodeURIComponent(line.name)}`} onClick={follow} className={cx("truncate font-medium group-hover:text-accent", !line.enabled && "text-muted")}>
            {line.name}
          </a>
          {line.dead_letters > 0 && <Tag tone="bad">{t("{n} dead letters", { n: line.dead_letters })}</Tag>}
          {line.is_held && <Tag tone="warn">{t("held")}</Tag>}
        </span>
        {line.waiting && (
          <span className="block truncate text-xs text-warn" title={line.waiting}>
            {waitingInWords(line.waiting)}
          </span>
        )}
        {line.last_error && line.status === "FAILED" && (
          <span className="hidden truncate text-xs text-bad lg:block" title={line.last_error}>
            {line.last_error}
          </span>
        )}
      </span>
      <span role="cell" className="order-4 flex min-w-0 items-center gap-1.5 text-muted lg:order-none">
        <span className="hidden shrink-0 xl:inline">{line.source_connection}</span>
        <span className="hidden text-faint xl:inline">
          <Icon name="arrow" size={12} />
        </span>
        <span className="truncate">{line.target_table}</span>
      </span>
      <span role="cell" className="order-7 hidden sm:block lg:order-none">
        <Pulse line={line} />
      </span>
      <span role="cell" className="order-5 text-muted lg:order-none">
        <Ago at={line.last_success_at} />
      </span>
      <span role="cell" className="order-8 col-span-3 hidden min-w-0 text-muted lg:order-none lg:col-span-1 lg:block">
        <span className="block truncate">{scheduleInWords(line.schedule_interval)}</span>
        <NextRun line={line} />
      </span>
      <Controls line={line} act={act} />
    </div>
  );
});

/** A schedule rests while a pipeline is disabled, paused or failed. */
function NextRun({ line }: { line: PipelineOverview }) {
  if (!line.schedule_interval || !line.enabled) return null;
  const rests = line.status === "PAUSED" || (line.status === "FAILED" && !!line.next_run_at && Date.parse(line.next_run_at) < Date.now());
  return (
    <span className="block truncate text-xs text-faint">
      {rests ? t("waits for you") : line.next_run_at && [t("next"), " ", <Ago key="at" at={line.next_run_at} />]}
    </span>
  );
}

/** While it runs, its speed; else its latest runs. */
function Pulse({ line }: { line: PipelineOverview }) {
  const rates = useRates(line.id);
  const last = rates.at(-1);
  if (line.status === "RUNNING" && rates.length > 1 && last !== undefined) {
    return <Sparkline values={rates} width={70} label={t("{n} rows a second", { n: compact(last) })} />;
  }
  return <RunBars runs={line.recent} />;
}

function Controls({ line, act }: { line: PipelineOverview; act: Act | null }) {
  const stops = line.status === "RUNNING" || line.status === "RUN_REQUESTED";
  return (
    <>
      <span role="cell" className="order-6 flex justify-center lg:order-none lg:justify-start">
        {act ? (
          <Switch checked={line.enabled} label={t("{name} is enabled", { name: line.name })} onChange={(next) => act(line, next ? "enable" : "disable")} />
        ) : (
          <span className="text-xs text-muted">{line.enabled ? t("on") : t("off")}</span>
        )}
      </span>
      <span role="cell" className="order-3 flex justify-center lg:order-none lg:justify-start">
        {act && (
          <Button
            look="quiet"
            icon={stops ? "pause" : "play"}
            disabled={!line.enabled || line.status === "PAUSE_REQUESTED"}
            aria-label={stops ? t("Pause {name}", { name: line.name }) : t("Run {name}", { name: line.name })}
            onClick={(event) => {
              event.stopPropagation();
              if (stops) act(line, "pause");
              else if (line.status === "PAUSED") act(line, "resume");
              else act(line, "run", { trigger: "manual" });
            }}
          />
        )}
      </span>
    </>
  );
}
