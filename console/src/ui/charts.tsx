/** Charts by hand in SVG: bars of runs, history, sparklines. Each says in words what it shows. */
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { RecentRun, Run } from "../api/types";
import { age, clock, compact, duration, shortClock } from "../words/format";
import { t } from "../words/language";
import { fillOf, statusWords, useNow } from "./basics";
import { lagOf, niceSeconds, niceTop, ratesOf, type Point } from "./scales";

const SLOTS = 10;

/** The last ten runs: colour says how they ended, height how long they took. */
export function RunBars({ runs }: { runs: RecentRun[] }) {
  const longest = Math.max(...runs.map((run) => run.seconds), 0.001);
  const failed = runs.filter((run) => run.status === "FAILED").length;
  const label = runs.length
    ? t("Last {n} {n|run|runs}, {failed} failed", { n: runs.length, failed })
    : t("No runs yet");
  return (
    <svg width={SLOTS * 7} height="20" role="img" aria-label={label}>
      <title>{label}</title>
      {Array.from({ length: SLOTS - runs.length }, (_, index) => (
        <rect key={index} x={index * 7} y="17" width="5" height="3" rx="1" fill="var(--line-strong)" />
      ))}
      {runs.map((run, index) => {
        const height = 5 + 15 * Math.sqrt(run.seconds / longest);
        return (
          <rect key={run.id} x={(SLOTS - runs.length + index) * 7} y={20 - height} width="5" height={height} rx="1.5" fill={fillOf(run.status)}>
            <title>{`${statusWords(run.status)} · ${duration(run.seconds)} · ${clock(run.started_at)}`}</title>
          </rect>
        );
      })}
    </svg>
  );
}

export function Sparkline({ values, width = 72, height = 20, label }: { values: number[]; width?: number; height?: number; label: string }) {
  if (values.length < 2) return null;
  const top = Math.max(...values, 1);
  const points = values.map((value, index) => [
    (index / (values.length - 1)) * (width - 2) + 1,
    height - 2 - (value / top) * (height - 4),
  ]);
  const line = points.map(([x, y]) => `${x?.toFixed(1)},${y?.toFixed(1)}`).join(" ");
  return (
    <svg width={width} height={height} role="img" aria-label={label} className="overflow-visible">
      <title>{label}</title>
      <polygon points={`1,${height} ${line} ${width - 1},${height}`} fill="var(--accent)" opacity="0.14" />
      <polyline points={line} fill="none" stroke="var(--accent)" strokeWidth="1.5" strokeLinejoin="round" />
    </svg>
  );
}

/** One figure of the latest runs, oldest on the left; a click opens the run. */
export function History({ runs, value, show, label }: { runs: Run[]; value: (run: Run) => number; show: (value: number) => string; label: string }) {
  const [hovered, setHovered] = useState<Run | null>(null);
  const navigate = useNavigate();
  const [width, height] = [600, 108];
  const values = runs.map(value);
  const top = niceTop(Math.max(...values, 0));
  const step = width / Math.max(runs.length, 28);
  const shown = hovered ?? runs.at(-1) ?? null;
  return (
    <figure className="min-w-0">
      <figcaption className="mb-2 flex items-baseline justify-between gap-2">
        <span className="text-xs text-muted">{label}</span>
        {shown && (
          <span className="num truncate text-xs text-muted">
            <b className="font-semibold text-text">{show(value(shown))}</b> · {shortClock(shown.started_at)}
          </span>
        )}
      </figcaption>
      <div className="relative">
        <svg viewBox={`0 0 ${width} ${height + 2}`} preserveAspectRatio="none" className="h-28 w-full" role="img" aria-label={`${label}: ${t("{n} {n|run|runs}, highest {top}", { n: runs.length, top: show(Math.max(...values, 0)) })}`}>
          <Grid width={width} height={height} />
          {runs.map((run, index) => {
            const tall = Math.max(top ? (value(run) / top) * height : 0, 2);
            const left = width - (runs.length - index) * step;
            return (
              <g
                key={run.id}
                onMouseEnter={() => setHovered(run)}
                onMouseLeave={() => setHovered(null)}
                onClick={() => void navigate({ to: "/runs/$id", params: { id: run.id } })}
                className="cursor-pointer"
                opacity={hovered && hovered !== run ? 0.55 : 1}
              >
                <rect x={left} y="0" width={step} height={height} fill="transparent" />
                <rect x={left + step * 0.14} y={height + 1 - tall} width={step * 0.72} height={tall} rx="1.5" fill={run.status === "SUCCESS" ? "var(--accent)" : fillOf(run.status)} />
              </g>
            );
          })}
        </svg>
        <span className="num pointer-events-none absolute top-1 left-0 text-2xs text-faint">{show(top)}</span>
        <span className="num pointer-events-none absolute top-1/2 left-0 mt-0.5 text-2xs text-faint">{show(top / 2)}</span>
      </div>
    </figure>
  );
}

/** How old the mart's data were: they age until a run succeeds, and are as old as that run's start when it ends. */
export function Lag({ runs }: { runs: Run[] }) {
  const now = useNow();
  const points = lagOf(runs, now);
  const [width, height] = [600, 108];
  const [first, last] = [points[0], points.at(-1)];
  const highest = Math.max(...points.map((point) => point.seconds), 0);
  const top = niceSeconds(highest);
  const span = Math.max((last?.at ?? 0) - (first?.at ?? 0), 1);
  const line = points.map((point) => `${(((point.at - (first?.at ?? 0)) / span) * width).toFixed(1)},${(1 + height - (point.seconds / top) * height).toFixed(1)}`).join(" ");
  return (
    <figure className="min-w-0">
      <figcaption className="mb-2 flex items-baseline justify-between gap-2">
        <span className="text-xs text-muted">{t("Lag")}</span>
        {last && (
          <span className="num truncate text-xs text-muted">
            <b className="font-semibold text-text">{age(last.seconds)}</b> · {t("highest {time}", { time: age(highest) })}
          </span>
        )}
      </figcaption>
      <div className="relative">
        <svg viewBox={`0 0 ${width} ${height + 2}`} preserveAspectRatio="none" className="h-28 w-full" role="img" aria-label={`${t("Lag")}: ${last ? t("{time} now, highest {top}", { time: age(last.seconds), top: age(highest) }) : t("No success yet")}`}>
          <Grid width={width} height={height} />
          {points.length > 1 && (
            <>
              <polygon points={`0,${height + 1} ${line} ${width},${height + 1}`} fill="var(--accent)" opacity="0.12" />
              <polyline points={line} fill="none" stroke="var(--accent)" strokeWidth="1.5" strokeLinejoin="round" vectorEffect="non-scaling-stroke" />
            </>
          )}
        </svg>
        {last && (
          <>
            <span className="num pointer-events-none absolute top-1 left-0 text-2xs text-faint">{duration(top)}</span>
            <span className="num pointer-events-none absolute top-1/2 left-0 mt-0.5 text-2xs text-faint">{duration(top / 2)}</span>
          </>
        )}
      </div>
    </figure>
  );
}

function Grid({ width, height }: { width: number; height: number }) {
  return [0, 0.5, 1].map((part) => <line key={part} x1="0" x2={width} y1={1 + height * part} y2={1 + height * part} stroke="var(--line)" vectorEffect="non-scaling-stroke" />);
}

const soft = (colour: string): string => `color-mix(in srgb, ${colour} 45%, var(--panel))`;
const STAGE_FILL: Record<string, string> = {
  plan: "color-mix(in srgb, var(--accent) 30%, var(--idle-fill))",
  read: "var(--accent)",
  transform: "var(--warn-fill)",
  stage: soft("var(--accent)"),
  merge: "var(--ok-fill)",
  index: soft("var(--warn-fill)"),
  publish: soft("var(--ok-fill)"),
  wait: "var(--idle-fill)",
};
const REST_FILL = "var(--line-strong)";

/** Where the time of a run went. */
export function Stages({ stages, total }: { stages: Record<string, number>; total: number }) {
  const named = Object.entries(stages).filter(([, seconds]) => seconds >= 0.0005);
  const rest = Math.max(total - named.reduce((sum, [, seconds]) => sum + seconds, 0), 0);
  const parts: [string, number][] = [...named, ["other", rest]];
  const whole = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const fill = (name: string): string => STAGE_FILL[name] ?? REST_FILL;
  return (
    <div>
      <div className="flex h-3 overflow-hidden rounded-full bg-line" role="img" aria-label={parts.map(([name, seconds]) => `${t(name)} ${duration(seconds)}`).join(", ")}>
        {parts.map(([name, seconds]) => (
          <div key={name} style={{ width: `${(100 * seconds) / whole}%`, background: fill(name) }} />
        ))}
      </div>
      <ul className="num mt-3 flex flex-wrap gap-x-6 gap-y-1.5">
        {parts.map(([name, seconds]) => (
          <li key={name} className="flex items-center gap-2">
            <span className="size-2 rounded-sm" style={{ background: fill(name) }} />
            <span className="text-muted">{t(name)}</span>
            <span className="font-medium">{duration(seconds)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Rows over time within one run. */
export function Throughput({ points }: { points: Point[] }) {
  const [first, last] = [points[0]?.at ?? 0, points.at(-1)];
  const span = Math.max((last?.at ?? 0) - first, 1);
  const caption = t("{top} rows after {time}", { top: compact(last?.rows ?? 0), time: duration(span / 1000) });
  return <Curve points={points.map((point) => [(point.at - first) / span, point.rows])} label={t("Rows read over time")} caption={caption} />;
}

/** How fast it was, from its beginning to its end. */
export function Speed({ points }: { points: Point[] }) {
  const rates = ratesOf(points);
  const caption = t("highest {n} rows/s", { n: compact(Math.max(...rates, 0)) });
  return <Curve points={rates.map((rate, index) => [index / Math.max(rates.length - 1, 1), rate])} label={t("Rows a second over time")} caption={caption} />;
}

/** `points`: the place from left to right as a share, and the value. */
function Curve({ points, label, caption }: { points: [number, number][]; label: string; caption: string }) {
  const [width, height] = [600, 100];
  const top = niceTop(Math.max(...points.map(([, value]) => value), 0));
  const drawn = points.length === 1 ? [...points, [1, points[0]?.[1] ?? 0] as const] : points;
  const line = drawn.map(([share, value]) => `${share * width},${height - (value / top) * height}`).join(" ");
  return (
    <figure>
      <svg viewBox={`0 -1 ${width} ${height + 2}`} preserveAspectRatio="none" className="h-28 w-full" role="img" aria-label={`${label}: ${caption}`}>
        {[0, 0.5, 1].map((part) => (
          <line key={part} x1="0" x2={width} y1={height * part} y2={height * part} stroke="var(--line)" vectorEffect="non-scaling-stroke" />
        ))}
        <polygon points={`0,${height} ${line} ${width},${height}`} fill="var(--accent)" opacity="0.12" />
        <polyline points={line} fill="none" stroke="var(--accent)" strokeWidth="2" vectorEffect="non-scaling-stroke" />
      </svg>
      <figcaption className="num mt-1 flex justify-between text-2xs text-faint">
        <span>0</span>
        <span>{caption}</span>
      </figcaption>
    </figure>
  );
}
