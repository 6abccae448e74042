/** The first rows that a definition would write; where steps follow the query, those before them stand beside. */
import { useState, type ReactNode } from "react";
import { post } from "../api/client";
import { awaitRequest } from "../api/queries";
import type { Preview, Rows, RunnerRequest } from "../api/types";
import { t } from "../words/language";
import { Button } from "./basics";
import { cx } from "./classes";
import { Icon } from "./icons";

const PREVIEW_ROWS = 20;

/** `blocked` says why nothing can be read yet. */
type Props = { definition: Record<string, unknown>; blocked: string | null; preview: Preview | null; onPreview: (found: Preview) => void };

export function PreviewPane({ definition, blocked, preview, onPreview }: Props) {
  const [failure, setFailure] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const show = async (): Promise<void> => {
    setBusy(true);
    setFailure(null);
    try {
      const done = await awaitRequest(await post<RunnerRequest>("/preview", { definition, limit: PREVIEW_ROWS }), 40);
      if (done.status === "DONE") onPreview(done.result as unknown as Preview);
      else setFailure(done.error?.message ?? t("No runner has taken it. Is one running?"));
    } catch (error) {
      setFailure(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className="p-4 sm:px-6">
      <div className="mb-3 flex flex-wrap items-center gap-3">
        <Button icon="play" busy={busy} disabled={blocked !== null} aria-describedby={blocked ? "preview-blocked" : undefined} onClick={() => void show()}>
          {busy ? t("A runner is reading…") : t("Preview {n} rows", { n: PREVIEW_ROWS })}
        </Button>
        <span id="preview-blocked" className="text-muted">{blocked ?? (preview && !failure ? t("{n} {n|row|rows}", { n: preview.rows.length }) : t("Nothing is written."))}</span>
      </div>
      {failure && (
        <p role="alert" className="rounded-md bg-bad-soft p-3 font-mono text-xs break-words whitespace-pre-wrap text-bad">
          {failure}
        </p>
      )}
      {!failure && !!preview?.rejected?.length && (
        <p className="mb-3 flex gap-2 text-warn">
          <span className="mt-0.5">
            <Icon name="warn" size={14} />
          </span>
          <span className="min-w-0 break-words">
            {t("{n} would become {n|a dead letter|dead letters}: {error}", { n: preview.rejected.length, error: preview.rejected[0] ?? "" })}
          </span>
        </p>
      )}
      {preview && !failure && (preview.before ? <BeforeAndAfter before={preview.before} after={preview} /> : <RowTable label={t("Preview")} found={preview} />)}
    </div>
  );
}

function BeforeAndAfter({ before, after }: { before: Rows; after: Rows }) {
  const known = new Map(before.columns.map((column) => [column.name, column.type]));
  const isNew = (name: string, type: string): boolean => known.get(name) !== type;
  return (
    <div className="grid gap-4 lg:grid-cols-2">
      <figure className="min-w-0">
        <Caption words={t("Before the steps")} found={before} />
        <RowTable label={t("Before the steps")} found={before} />
      </figure>
      <figure className="min-w-0">
        <Caption words={t("After the steps")} found={after} />
        <RowTable label={t("After the steps")} found={after} isNew={isNew} />
      </figure>
    </div>
  );
}

function Caption({ words, found }: { words: string; found: Rows }) {
  return (
    <figcaption className="mb-1.5 flex items-baseline justify-between gap-2">
      <span className="font-medium">{words}</span>
      <span className="num text-xs text-muted">{t("{n} {n|row|rows}", { n: found.rows.length })}</span>
    </figcaption>
  );
}

type TableProps = { label: string; found: Rows; /** Columns that were not there before, or had another type. */ isNew?: (name: string, type: string) => boolean };

function RowTable({ label, found, isNew = () => false }: TableProps) {
  return (
    <div className="overflow-auto rounded-lg border bg-panel" tabIndex={0} role="region" aria-label={label}>
      <table className="num w-full text-xs">
        <thead>
          <tr className="border-b text-left">
            {found.columns.map((column) => (
              <th key={column.name} scope="col" className={cx("px-3 py-2 font-medium whitespace-nowrap", isNew(column.name, column.type) && "text-ok")}>
                {column.name} <span className="font-normal text-faint">{column.type}</span>
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="font-mono">
          {found.rows.map((row, index) => (
            <tr key={index} className="border-b last:border-b-0 hover:bg-line/35">
              {found.columns.map((column) => (
                <td key={column.name} title={plain(row[column.name])} className="max-w-56 truncate px-3 py-1.5 whitespace-nowrap">
                  {cell(row[column.name])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function cell(value: unknown): ReactNode {
  return value === null || value === undefined ? <span className="text-faint">null</span> : plain(value);
}

function plain(value: unknown): string {
  if (value === null || value === undefined) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
