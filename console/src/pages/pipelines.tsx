/** The list of pipelines: what needs attention, what is fresh, what runs; fifty thousand lines stay fluent. */
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useDeferredValue, useEffect, useMemo, useRef, useState, type MouseEvent } from "react";
import { useRates } from "../api/live";
import { useMay, useOverview, useRefresh, verb } from "../api/queries";
import type { PipelineOverview } from "../api/types";
import { Ago, Button, Empty, Failure, Loading, PageHead, StatusChip, Switch, Tag, useMedia } from "../ui/basics";
import { cx } from "../ui/classes";
import { RunBars, Sparkline } from "../ui/charts";
import { Icon } from "../ui/icons";
import { labelTexts } from "../ui/label-words";
import { NoPipelines } from "../ui/no-pipelines";
import { toast, toastError } from "../ui/toasts";
import { compact } from "../words/format";
import { t } from "../words/language";
import { scheduleInWords } from "../words/schedule";
import { Bulk } from "./pipelines-bulk";
import { chosen, columnOf, sortBy, type Column } from "./pipelines-search";
import { Filters } from "./pipelines-views";

const NO_LINES: PipelineOverview[] = [];
const NOBODY: ReadonlySet<string> = new Set();

export function PipelinesPage() {
  const overview = useOverview();
  const search = useSearch({ from: "/pipelines" });
  const mayOperate = useMay("operator");
  const lines = overview.data ?? NO_LINES;
  // While somebody types, the field answers first and the list follows.
  const wanted = useDeferredValue(search);
  const shown = useMemo(() => chosen(lines, wanted), [lines, wanted]);
  const [picked, setPicked] = useState(NOBODY);
  const pickedLines = useMemo(() => (picked.size ? lines.filter((line) => picked.has(line.id)) : NO_LINES), [lines, picked]);
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
        <NoPipelines />
      ) : shown.length === 0 ? (
        <Empty icon="filter" title={t("Nothing matches these filters")}>
          <Link to="/pipelines" search={{}} className="text-accent underline">
            {t("Show all")}
          </Link>
        </Empty>
      ) : (
        <List lines={shown} picked={picked} onPick={setPicked} />
      )}
      {pickedLines.length > 0 && <Bulk chosen={pickedLines} onClear={() => setPicked(NOBODY)} />}
    </div>
  );
}

const COLUMNS = "lg:grid-cols-[1rem_6.5rem_minmax(11rem,1.4fr)_minmax(11rem,1.4fr)_4.75rem_6rem_minmax(8rem,0.9fr)_2.25rem_2.25rem]";

const HEADERS: { words: string; sorts?: Column }[] = [
  { words: "Status", sorts: "status" },
  { words: "Pipeline", sorts: "name" },
  { words: "Source → target", sorts: "target" },
  { words: "Last runs" },
  { words: "Freshness", sorts: "freshness" },
  { words: "Schedule", sorts: "next" },
  { words: "On" },
  { words: "Run" },
];

type Picked = ReadonlySet<string>;

function List({ lines, picked, onPick }: { lines: PipelineOverview[]; picked: Picked; onPick: (next: Picked) => void }) {
  const scroller = useRef<HTMLDivElement>(null);
  const isWide = useMedia("(min-width: 1024px)");
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
  const latest = useRef(picked);
  latest.current = picked;
  const pick = useCallback(
    (id: string) => {
      const next = new Set(latest.current);
      if (!next.delete(id)) next.add(id);
      onPick(next);
    },
    [onPick],
  );
  const all = mayOperate && picked.size > 0 && lines.every((line) => picked.has(line.id));
  return (
    <div ref={scroller} tabIndex={0} role="table" aria-label={t("Pipelines")} aria-rowcount={lines.length + 1} className="min-h-0 flex-1 overflow-auto border-t">
      <div role="rowgroup" className={cx("sticky top-0 z-10 border-b bg-bg", !isWide && "sr-only")}>
        <div role="row" aria-rowindex={1} className={cx("items-center gap-4 px-6 py-2 text-xs text-muted lg:grid", COLUMNS)}>
          <span role="columnheader">
            {mayOperate && (
              <input
                type="checkbox"
                className="accent-accent-solid block"
                aria-label={t("Select all shown")}
                checked={all}
                onChange={() => onPick(all ? NOBODY : new Set(lines.map((line) => line.id)))}
              />
            )}
          </span>
          {HEADERS.map((header) => (
            <Header key={header.words} {...header} />
          ))}
        </div>
      </div>
      <div role="rowgroup" className="relative" style={{ height: rows.getTotalSize() }}>
        {rows.getVirtualItems().map((item) => {
          const line = lines[item.index];
          return line ? <Line key={item.key} line={line} index={item.index} top={item.start} height={item.size} open={open} act={mayOperate ? act : null} isPicked={picked.has(line.id)} pick={pick} /> : null;
        })}
      </div>
    </div>
  );
}

/** A click sorts by it, another one turns the order round. */
function Header({ words, sorts }: { words: string; sorts?: Column }) {
  const { sort } = useSearch({ from: "/pipelines" });
  const navigate = useNavigate({ from: "/pipelines" });
  if (!sorts) {
    return (
      <span role="columnheader" className="truncate">
        {t(words)}
      </span>
    );
  }
  const isSorted = columnOf(sort) === sorts;
  const down = !!sort?.startsWith("-");
  return (
    <span role="columnheader" aria-sort={isSorted ? (down ? "descending" : "ascending") : "none"} className="min-w-0">
      <button
        type="button"
        onClick={() => void navigate({ search: (before) => ({ ...before, sort: sortBy(sorts, before.sort) }), replace: true })}
        className={cx("flex max-w-full items-center gap-1 hover:text-text", isSorted && "font-medium text-text")}
      >
        <span className="truncate">{t(words)}</span>
        {isSorted && (
          <span className={cx(!down && "rotate-180")}>
            <Icon name="down" size={10} />
          </span>
        )}
      </button>
    </span>
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
  isPicked: boolean;
  pick: (id: string) => void;
}

/** Dozens of these come and go with every turn of the wheel, so they are kept cheap: no queries, no router links. */
const Line = memo(function Line({ line, index, top, height, open, act, isPicked, pick }: LineProps) {
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
        "group absolute inset-x-0 grid cursor-pointer grid-cols-[1rem_1fr_5.75rem_2.25rem] items-center gap-x-3 gap-y-0.5 lg:gap-x-4 border-b px-4 py-2 hover:bg-line/35 sm:px-6 lg:py-0",
        COLUMNS,
        isPicked && "bg-accent-soft",
      )}
    >
      <span role="cell" className="row-span-2 self-start pt-2.5 lg:row-span-1 lg:self-center lg:pt-0" onClick={(event) => event.stopPropagation()}>
        {act && <input type="checkbox" className="accent-accent-solid block" aria-label={t("Select {name}", { name: line.name })} checked={isPicked} onChange={() => pick(line.id)} />}
      </span>
      <span role="cell" className="order-2 lg:order-none">
        <StatusChip status={line.status} />
      </span>
      <span role="cell" className="order-1 min-w-0 lg:order-none" title={line.description}>
        <span className="flex min-w-0 items-center gap-2">
          <a href={`/ui/pipelines/${encodeURIComponent(line.name)}`} onClick={follow} className={cx("truncate font-medium group-hover:text-accent", !line.enabled && "text-muted")}>
            {line.name}
          </a>
          {line.dead_letters > 0 && <Tag tone="bad">{t("{n} dead {n|letter|letters}", { n: line.dead_letters })}</Tag>}
          {line.is_held && <Tag tone="warn">{t("held")}</Tag>}
          <Labels line={line} />
        </span>
        {line.waiting && (
          <span className="block truncate text-xs text-warn" title={line.waiting}>
            {line.waiting}
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

/** The first two; the others are told by pointing. */
function Labels({ line }: { line: PipelineOverview }) {
  const labels = labelTexts(line.labels);
  return labels.length ? <LabelLinks labels={labels} /> : null;
}

function LabelLinks({ labels }: { labels: string[] }) {
  const navigate = useNavigate({ from: "/pipelines" });
  return (
    <span className="hidden min-w-0 shrink-[2] gap-1 truncate font-mono text-2xs text-muted sm:flex" title={labels.join("\n")}>
      {labels.slice(0, 2).map((label) => (
        <a
          key={label}
          href={`/ui/pipelines?label=${encodeURIComponent(label)}`}
          className="truncate rounded border px-1 leading-4 hover:text-accent"
          onClick={(event) => {
            event.stopPropagation();
            event.preventDefault();
            void navigate({ search: (before) => ({ ...before, label }) });
          }}
        >
          {label}
        </a>
      ))}
      {labels.length > 2 && <span>+{labels.length - 2}</span>}
    </span>
  );
}

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
