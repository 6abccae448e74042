/** Earlier previews of this editing: what the query was, what it gave, and taking it back. */
import type { Preview } from "../api/types";
import { t } from "../words/language";
import { Ago, Button } from "./basics";
import { cx } from "./classes";

const KEPT = 10;

export interface PreviewEntry {
  at: string;
  query: string;
  found: Preview;
}

/** Newest first; the rows stay in this page's memory and nowhere else. */
export function withPreview(history: PreviewEntry[], query: string, found: Preview): PreviewEntry[] {
  return [{ at: new Date().toISOString(), query, found }, ...history].slice(0, KEPT);
}

export function PreviewHistory(props: { history: PreviewEntry[]; shown: Preview | null; onShow: (entry: PreviewEntry) => void; onTake: (entry: PreviewEntry) => void }) {
  if (props.history.length < 2) return null;
  return (
    <section aria-label={t("Earlier previews")} className="px-4 pb-6 sm:px-6">
      <h3 className="mb-2 text-xs font-medium text-muted">{t("Earlier previews")}</h3>
      <ol className="divide-y rounded-lg border bg-panel">
        {props.history.map((entry) => (
          <li key={entry.at} className={cx("flex flex-wrap items-center gap-x-3 gap-y-1 px-3 py-1.5", entry.found === props.shown && "bg-accent-soft")}>
            <button type="button" aria-pressed={entry.found === props.shown} onClick={() => props.onShow(entry)} className="min-w-0 flex-1 basis-64 truncate text-left font-mono text-xs hover:text-accent">
              {entry.query.replace(/\s+/g, " ")}
            </button>
            <span className="num text-xs text-muted">{t("{n} {n|row|rows}", { n: entry.found.rows.length })}</span>
            <span className="text-xs text-muted">
              <Ago at={entry.at} />
            </span>
            <Button look="quiet" icon="undo" onClick={() => props.onTake(entry)}>
              {t("Use this query")}
            </Button>
          </li>
        ))}
      </ol>
    </section>
  );
}
