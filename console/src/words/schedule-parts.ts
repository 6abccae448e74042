/** A schedule in parts, as one builds it, and the text that they make. What is none of these is written by hand. */
export type Parts =
  | { kind: "manual" }
  | { kind: "every"; amount: number; unit: "m" | "h" | "d" }
  | { kind: "daily" | "weekdays"; at: string; zone: string }
  | { kind: "weekly"; day: number; at: string; zone: string }
  | { kind: "monthly"; day: number; at: string; zone: string }
  | { kind: "own"; text: string };

export type PartsKind = Parts["kind"];

export function partsOf(text: string): Parts {
  const given = text.trim();
  if (!given) return { kind: "manual" };
  const every = /^(\d{1,6})\s*([mhd])$/.exec(given);
  if (every) return { kind: "every", amount: Number(every[1]), unit: every[2] as "m" | "h" | "d" };
  const cron = /^(\d{1,2}) (\d{1,2}) (\*|\d{1,2}) \* (\*|1-5|[0-7])(?: (\S+))?$/.exec(given);
  if (!cron) return { kind: "own", text };
  const [, minute = "0", hour = "0", day = "*", weekday = "*", zone = "UTC"] = cron;
  const at = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  if (Number(hour) > 23 || Number(minute) > 59) return { kind: "own", text };
  if (day === "*" && weekday === "*") return { kind: "daily", at, zone };
  if (day === "*" && weekday === "1-5") return { kind: "weekdays", at, zone };
  if (day === "*") return { kind: "weekly", day: Number(weekday) % 7, at, zone };
  return weekday === "*" ? { kind: "monthly", day: Number(day), at, zone } : { kind: "own", text };
}

export function textOf(parts: Parts): string {
  switch (parts.kind) {
    case "manual":
      return "";
    case "own":
      return parts.text;
    case "every":
      return `${parts.amount}${parts.unit}`;
    case "daily":
      return cron(parts.at, "*", "*", parts.zone);
    case "weekdays":
      return cron(parts.at, "*", "1-5", parts.zone);
    case "weekly":
      return cron(parts.at, "*", String(parts.day), parts.zone);
    case "monthly":
      return cron(parts.at, String(parts.day), "*", parts.zone);
  }
}

function cron(at: string, day: string, weekday: string, zone: string): string {
  const [hour = "0", minute = "0"] = at.split(":");
  const fields = `${Number(minute)} ${Number(hour)} ${day} * ${weekday}`;
  return zone === "UTC" ? fields : `${fields} ${zone}`;
}

/** Another kind, with what carries over from the one before. */
export function changedKind(before: Parts, kind: PartsKind, zone: string): Parts {
  const timed = { at: "at" in before ? before.at : "03:00", zone: "zone" in before ? before.zone : zone };
  switch (kind) {
    case "manual":
      return { kind };
    case "every":
      return { kind, amount: 15, unit: "m" };
    case "weekly":
      return { kind, day: 1, ...timed };
    case "monthly":
      return { kind, day: 1, ...timed };
    case "own":
      return { kind, text: textOf(before) };
    default:
      return { kind, ...timed };
  }
}
