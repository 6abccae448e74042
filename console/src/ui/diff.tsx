/** Two definitions side by side in time: field by field, long texts line by line. */
import type { FieldChange } from "../api/types";
import { t } from "../words/language";
import { lineDiff } from "../words/lines";
import { cx } from "./classes";

export function Changes({ changes }: { changes: FieldChange[] }) {
  if (changes.length === 0) return <p className="py-2 text-muted">{t("Nothing differs.")}</p>;
  return (
    <ul className="divide-y">
      {changes.map((change) => (
        <li key={change.path} className="py-2.5 first:pt-0 last:pb-0">
          <p className="mb-1 font-mono text-xs font-medium">{change.path}</p>
          <Change before={shown(change.before)} after={shown(change.after)} />
        </li>
      ))}
    </ul>
  );
}

function Change({ before, after }: { before: string; after: string }) {
  if (!before.includes("\n") && !after.includes("\n") && before.length + after.length < 90) {
    return (
      <p className="font-mono text-xs break-words">
        <del className="text-bad decoration-1">{before}</del> <span className="text-faint">→</span>{" "}
        <ins className="text-ok no-underline">{after}</ins>
      </p>
    );
  }
  return (
    <pre tabIndex={0} className="overflow-auto rounded-md bg-sunken py-2 font-mono text-xs leading-relaxed">
      {lineDiff(before, after).map((line, index) => (
        <div key={index} className={cx("px-3", line.sign === "+" && "bg-ok-fill/12 text-ok", line.sign === "-" && "bg-bad-fill/12 text-bad")}>
          <span className="mr-2 inline-block w-2 select-none">{line.sign}</span>
          {line.text}
        </div>
      ))}
    </pre>
  );
}

function shown(value: unknown): string {
  if (value === null || value === undefined) return "—";
  return typeof value === "string" ? value : JSON.stringify(value, null, typeof value === "object" ? 1 : 0);
}

/** Which fields of two definitions differ; options one by one. */
export function compare(before: Record<string, unknown>, after: Record<string, unknown>, prefix = ""): FieldChange[] {
  const paths = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  return paths.flatMap((path): FieldChange[] => {
    const [old, young] = [before[path] ?? null, after[path] ?? null];
    if (JSON.stringify(old) === JSON.stringify(young)) return [];
    if ((path === "options" || path === "labels") && isRecord(old) && isRecord(young)) return compare(old, young, `${path}.`);
    return [{ path: prefix + path, before: old, after: young }];
  });
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** `batch_size: 5000 → 2000`, cut where it gets long. */
export function changeInBrief(change: FieldChange): string {
  return `${change.path}: ${brief(change.before)} → ${brief(change.after)}`;
}

function brief(value: unknown): string {
  const text = value === null ? "—" : typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 37)}…` : text;
}
