/** Runs of many pipelines on one line of time: a row each, colour says how a run ended. */
import { useNavigate } from "@tanstack/react-router";
import type { Activity } from "../api/types";
import { clock, duration, hourOfDay, zone } from "../words/format";
import { t } from "../words/language";
import { PipelineLink, fillOf, statusWords } from "./basics";

const MARKS = 6;
const HOUR_MS = 3_600_000;

/** Every few hours, on the full hour of the person's clock. */
function marksBetween(start: number, end: number): number[] {
  const step = Math.max(Math.round((end - start) / HOUR_MS / MARKS), 1) * HOUR_MS;
  const offset = zone.read() === "utc" ? 0 : new Date(end).getTimezoneOffset() * 60_000;
  const first = Math.ceil((start - offset) / step) * step + offset;
  return Array.from({ length: MARKS + 1 }, (_, index) => first + index * step).filter((mark) => mark > start + step / 3 && mark < end - step / 3);
}

export function Gantt({ lines, until, hours }: { lines: Activity[]; until: string; hours: number }) {
  const end = Date.parse(until);
  const start = end - hours * HOUR_MS;
  const place = (moment: number): number => Math.min(Math.max(((moment - start) / (end - start)) * 100, 0), 100);
  const marks = marksBetween(start, end);
  return (
    <div className="relative">
      <ul aria-label={t("Runs of the last {n} hours", { n: hours })} className="relative z-10">
        {lines.map((line) => (
          <li key={line.pipeline_id} className="grid grid-cols-[minmax(6rem,11rem)_1fr] items-center gap-3 border-b px-4 py-1 last:border-b-0">
            <span className="truncate">
              <PipelineLink name={line.pipeline} />
              <span className="sr-only">
                {t("{n} {n|run|runs}, {failed} failed", { n: line.runs.length, failed: line.runs.filter((run) => run.status === "FAILED").length })}
              </span>
            </span>
            <Bars line={line} place={place} marks={marks} />
          </li>
        ))}
      </ul>
      <div aria-hidden="true" className="num grid grid-cols-[minmax(6rem,11rem)_1fr] gap-3 px-4 py-1.5 text-2xs text-faint">
        <span />
        <span className="relative h-4">
          {marks.map((mark) => (
            <span key={mark} className="absolute -translate-x-1/2" style={{ left: `${place(mark)}%` }}>
              {hourOfDay(mark)}
            </span>
          ))}
          <span className="absolute right-0">{t("now")}</span>
        </span>
      </div>
    </div>
  );
}

function Bars({ line, place, marks }: { line: Activity; place: (moment: number) => number; marks: number[] }) {
  const navigate = useNavigate();
  // Failures are drawn last, over whatever stands at the same place.
  const runs = [...line.runs].sort((a, b) => Number(a.status === "FAILED") - Number(b.status === "FAILED"));
  return (
    <span className="relative block h-5" aria-hidden="true">
      {marks.map((mark) => (
        <span key={mark} className="absolute inset-y-0 w-px bg-line" style={{ left: `${place(mark)}%` }} />
      ))}
      {runs.map((run) => {
        const began = Date.parse(run.started_at);
        const [left, right] = [place(began), place(began + run.seconds * 1000)];
        return (
          <span
            key={run.id}
            data-status={run.status}
            title={`${statusWords(run.status)} · ${t(run.trigger)} · ${duration(run.seconds)} · ${clock(run.started_at)}`}
            onClick={() => void navigate({ to: "/runs/$id", params: { id: run.id } })}
            className="absolute inset-y-0.5 min-w-[3px] cursor-pointer rounded-[2px] hover:brightness-125"
            style={{ left: `min(${left}%, calc(100% - 3px))`, width: `${right - left}%`, background: fillOf(run.status) }}
          />
        );
      })}
    </span>
  );
}
