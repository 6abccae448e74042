/** A schedule by choosing, beside its text; and when it would be due. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { get } from "../api/client";
import { dayAndTime, zone } from "../words/format";
import { t } from "../words/language";
import { dayName } from "../words/schedule";
import { changedKind, partsOf, textOf, type Parts, type PartsKind } from "../words/schedule-parts";
import { inputLook } from "./basics";
import { cx } from "./classes";

const KINDS: { kind: PartsKind; words: string }[] = [
  { kind: "manual", words: "Only on request" },
  { kind: "every", words: "Every …" },
  { kind: "daily", words: "Every day at …" },
  { kind: "weekdays", words: "On weekdays at …" },
  { kind: "weekly", words: "Every week on …" },
  { kind: "monthly", words: "Every month on …" },
  { kind: "own", words: "As an expression" },
];

const UNITS: { unit: "m" | "h" | "d"; words: string }[] = [
  { unit: "m", words: "minutes" },
  { unit: "h", words: "hours" },
  { unit: "d", words: "days" },
];

export function ScheduleBuilder({ value, onChange }: { value: string; onChange: (next: string) => void }) {
  // A text that could be built is still somebody's own while they write it.
  const [own, setOwn] = useState(partsOf(value).kind === "own");
  const parts: Parts = own ? { kind: "own", text: value } : partsOf(value);
  const take = (next: Parts): void => {
    setOwn(next.kind === "own");
    onChange(textOf(next));
  };
  return (
    <div className="space-y-2">
      <div className="flex flex-wrap gap-2">
        <select aria-label={t("How often")} className={cx(inputLook, "!w-auto flex-1 basis-40")} value={parts.kind} onChange={(event) => take(changedKind(parts, event.target.value as PartsKind, zone.name()))}>
          {KINDS.map((one) => (
            <option key={one.kind} value={one.kind}>
              {t(one.words)}
            </option>
          ))}
        </select>
        <Details parts={parts} onChange={take} />
      </div>
      <NextTimes schedule={value} />
    </div>
  );
}

function Details({ parts, onChange }: { parts: Parts; onChange: (next: Parts) => void }) {
  if (parts.kind === "every") {
    return (
      <span className="flex gap-2">
        <input type="number" min={1} aria-label={t("Amount")} className={cx(inputLook, "!w-20")} value={parts.amount} onChange={(event) => event.target.value && onChange({ ...parts, amount: Number(event.target.value) })} />
        <select aria-label={t("Unit")} className={cx(inputLook, "!w-auto")} value={parts.unit} onChange={(event) => onChange({ ...parts, unit: event.target.value as "m" | "h" | "d" })}>
          {UNITS.map((one) => (
            <option key={one.unit} value={one.unit}>
              {t(one.words)}
            </option>
          ))}
        </select>
      </span>
    );
  }
  if (!("at" in parts)) return null;
  return (
    <span className="flex flex-wrap gap-2">
      {parts.kind === "weekly" && (
        <select aria-label={t("Day")} className={cx(inputLook, "!w-auto")} value={parts.day} onChange={(event) => onChange({ ...parts, day: Number(event.target.value) })}>
          {[1, 2, 3, 4, 5, 6, 0].map((day) => (
            <option key={day} value={day}>
              {dayName(day)}
            </option>
          ))}
        </select>
      )}
      {parts.kind === "monthly" && (
        <input type="number" min={1} max={31} aria-label={t("Day")} className={cx(inputLook, "!w-20")} value={parts.day} onChange={(event) => event.target.value && onChange({ ...parts, day: Number(event.target.value) })} />
      )}
      <input type="time" aria-label={t("Time")} className={cx(inputLook, "!w-auto")} value={parts.at} onChange={(event) => event.target.value && onChange({ ...parts, at: event.target.value })} />
      <select aria-label={t("Time zone")} className={cx(inputLook, "!w-40")} value={parts.zone} onChange={(event) => onChange({ ...parts, zone: event.target.value })}>
        {zones(parts.zone).map((one) => (
          <option key={one}>{one}</option>
        ))}
      </select>
    </span>
  );
}

const zones = (current: string): string[] => [...new Set(["UTC", current, ...Intl.supportedValuesOf("timeZone")])];

const PAUSE_MS = 400;

/** The API's own reckoning, a moment after the last key. */
function NextTimes({ schedule }: { schedule: string }) {
  const [asked, setAsked] = useState(schedule);
  useEffect(() => {
    const timer = setTimeout(() => setAsked(schedule), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [schedule]);
  const text = asked.trim();
  const { data } = useQuery({
    queryKey: ["schedule", text],
    queryFn: ({ signal }) => get<{ times: string[] }>(`/schedule?interval=${encodeURIComponent(text)}`, signal),
    enabled: text !== "",
    retry: false,
    staleTime: 30_000,
  });
  if (!text || !data || asked !== schedule) return null;
  return (
    <div className="text-xs text-muted">
      <p>{t("Next times, in {zone}", { zone: zone.name() })}</p>
      <ol aria-label={t("Next times")} className="num mt-0.5 space-y-0.5">
        {data.times.map((time) => (
          <li key={time}>
            <time dateTime={time}>{dayAndTime(time)}</time>
          </li>
        ))}
      </ol>
    </div>
  );
}
