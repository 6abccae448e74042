/** Figures, durations and moments the way people read them. */
import { locale, t } from "./language";

const ZONE_KEY = "vitrina.zone";

export type Zone = "local" | "utc";

export const zone = {
  read: (): Zone => (localStorage.getItem(ZONE_KEY) === "utc" ? "utc" : "local"),
  keep: (value: Zone): void => localStorage.setItem(ZONE_KEY, value),
  name: (): string => (zone.read() === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone),
};

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "—" : new Intl.NumberFormat(locale()).format(value);
}

export function compact(value: number): string {
  return new Intl.NumberFormat(locale(), { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function percent(share: number | null): string {
  return share === null ? "—" : new Intl.NumberFormat(locale(), { style: "percent", maximumFractionDigits: 1 }).format(share);
}

/** Bytes in units of 1024, as Postgres counts them. */
export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  const shown = value / 1024 ** step;
  return `${shown >= 100 || step === 0 ? Math.round(shown) : shown.toFixed(1)} ${units[step]}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "—";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ${t("ms")}`;
  if (seconds < 10) return `${new Intl.NumberFormat(locale(), { minimumFractionDigits: 1, maximumFractionDigits: 1 }).format(seconds)} ${t("s")}`;
  if (Math.round(seconds) < 60) return `${Math.round(seconds)} ${t("s")}`;
  if (Math.round(seconds) < 3600) return pair(seconds, 60, t("min"), 1, t("s"));
  if (Math.round(seconds / 60) < 1440) return pair(seconds, 3600, t("h"), 60, t("min"));
  return pair(seconds, 86_400, t("d"), 3600, t("h"));
}

function pair(seconds: number, big: number, bigName: string, small: number, smallName: string): string {
  const units = Math.round(seconds / small);
  const [whole, rest] = [Math.floor((units * small) / big), Math.round(((units * small) % big) / small)];
  return rest ? `${whole} ${bigName} ${rest} ${smallName}` : `${whole} ${bigName}`;
}

/** One unit is enough for an age. */
export function age(seconds: number): string {
  const sizes: [number, string][] = [
    [86_400, t("d")],
    [3600, t("h")],
    [60, t("min")],
  ];
  for (const [size, name] of sizes) if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  return `${Math.max(0, Math.floor(seconds))} ${t("s")}`;
}

export function ago(moment: string | null, now: number): string {
  if (!moment) return "—";
  const seconds = (now - Date.parse(moment)) / 1000;
  if (seconds < -1) return t("in {time}", { time: age(-seconds) });
  return seconds < 3 ? t("just now") : t("{time} ago", { time: age(seconds) });
}

export function clock(moment: string | null): string {
  return moment ? formatter("clock", { year: "numeric", month: "short", day: "2-digit", timeZoneName: "short" }).format(new Date(moment)) : "—";
}

/** Without year and seconds: where space is short and the moment is near. */
export function shortClock(moment: string): string {
  return formatter("short", { month: "short", day: "2-digit", second: undefined }).format(new Date(moment));
}

/** With the day of the week, for what is to come. */
export function dayAndTime(moment: string): string {
  return formatter("day", { weekday: "short", month: "short", day: "numeric", second: undefined }).format(new Date(moment));
}

export function timeOfDay(moment: string): string {
  return formatter("time", {}).format(new Date(moment));
}

/** The hour on a line of time. */
export function hourOfDay(moment: number): string {
  return formatter("hour", { second: undefined }).format(new Date(moment));
}

const formatters = new Map<string, Intl.DateTimeFormat>();

/** Making one costs more than using it a hundred times, and a list shows thousands of moments. */
function formatter(name: string, fields: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = [name, locale(), zone.read()].join();
  const found = formatters.get(key);
  if (found) return found;
  const timeZone = zone.read() === "utc" ? "UTC" : undefined;
  const made = new Intl.DateTimeFormat(locale(), { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone, ...fields });
  formatters.set(key, made);
  return made;
}
