/** A schedule in words: `15m`, an ISO-8601 duration, or cron with a zone. What has no short words stays as written. */
import { locale, t } from "./language";

export function scheduleInWords(schedule: string | null): string {
  if (!schedule) return t("manual");
  const text = schedule.trim();
  return interval(text) ?? cron(text) ?? text;
}

const UNITS: Record<string, string> = { s: "s", m: "min", h: "h", d: "d" };

const SINGLE: Record<string, string> = {
  s: "every second",
  min: "every minute",
  h: "every hour",
  d: "every day",
  wk: "every week",
};

function interval(text: string): string | null {
  const short = /^(\d+)\s*([smhd])$/.exec(text);
  if (short) return every(Number(short[1]), UNITS[short[2] ?? ""] ?? "");
  const iso = /^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$/.exec(text);
  const parts = iso?.slice(1).map((part) => (part ? Number(part) : 0)) ?? [];
  const given = parts.flatMap((amount, index) => (amount ? [[amount, ["wk", "d", "h", "min", "s"][index] ?? ""] as const] : []));
  const [only] = given;
  return given.length === 1 && only ? every(only[0], only[1]) : null;
}

function every(amount: number, unit: string): string {
  return amount === 1 ? t(SINGLE[unit] ?? unit) : t("every {n} {unit}", { n: amount, unit: t(unit) });
}

function cron(text: string): string | null {
  const fields = text.split(/\s+/);
  const zone = fields.length === 6 ? (fields.pop() ?? "UTC") : "UTC";
  if (fields.length !== 5) return null;
  const [minute = "", hour = "", day = "", month = "", weekday = ""] = fields;
  if (month !== "*") return null;
  const step = /^\*\/(\d+)$/.exec(minute);
  if (hour === "*" && day === "*" && weekday === "*") {
    if (minute === "*") return every(1, "min");
    if (step) return every(Number(step[1]), "min");
    return /^\d+$/.test(minute) ? t("hourly at :{minute}", { minute: two(minute) }) : null;
  }
  if (!/^\d+$/.test(minute) || !/^\d+$/.test(hour)) return null;
  const at = `${two(hour)}:${two(minute)} ${zone}`;
  if (day === "*" && weekday === "*") return t("daily at {at}", { at });
  if (day === "*" && weekday === "1-5") return t("weekdays at {at}", { at });
  if (day === "*" && /^[0-7]$/.test(weekday)) return t("{day} at {at}", { day: dayName(Number(weekday)), at });
  if (/^\d+$/.test(day) && weekday === "*") return t("monthly on day {day} at {at}", { day, at });
  return null;
}

const two = (text: string): string => text.padStart(2, "0");

/** 4 January 1970 was a Sunday. */
export function dayName(weekday: number): string {
  return new Intl.DateTimeFormat(locale(), { weekday: "short", timeZone: "UTC" }).format(
    new Date(Date.UTC(1970, 0, 4 + (weekday % 7))),
  );
}
