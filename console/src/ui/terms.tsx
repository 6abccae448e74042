/** Words of the field, explained where they stand: by pointing, by the keyboard, or by a tap. */
import { useEffect, useId, useRef, useState, type ReactNode } from "react";
import { createPortal } from "react-dom";
import { t } from "../words/language";

const TERMS = {
  guarantee: { words: "What a finished run guarantees. Exact: every committed row is in the mart. Bounded lag: rows arrive within the lookback window. Reconciled: a comparison finds and repairs what reading alone can miss." },
  watermark: { words: "The position up to which everything in the source has been read; the next run starts there. An open transaction in the source may hold it back." },
  checkpoint: { words: "Where the next run continues. It is written together with the data, so that nothing is lost or read twice when a runner dies." },
  generation: { words: "A new copy of a search index that is filled beside the old one. When it is complete, the name switches to it." },
  "dead letter": { words: "A row or document that was rejected permanently. It is kept with the reason, and can be replayed once the cause is fixed." },
  cursor: { words: "The column that shows which rows are new, such as the time of the last change." },
  "tie-breaker": { words: "A second column that orders rows with equal cursor values, so that a page boundary between them neither repeats nor skips any." },
  lag: { words: "How far the mart is behind its source." },
  route: { words: "How rows are moved: inside the database, through COPY, or through the runner as Arrow batches." },
} as const;

export type TermName = keyof typeof TERMS;

const WIDTH = 288;

export function Term({ name, children }: { name: TermName; children: ReactNode }) {
  const id = useId();
  const place = useRef<HTMLButtonElement>(null);
  const [at, setAt] = useState<{ left: number; top: number } | null>(null);
  const show = (): void => {
    const box = place.current?.getBoundingClientRect();
    if (box) setAt({ left: Math.max(8, Math.min(box.left, innerWidth - WIDTH - 8)), top: box.bottom + 6 });
  };
  const hide = (): void => setAt(null);
  useEffect(() => {
    if (!at) return;
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === "Escape") setAt(null);
    };
    addEventListener("keydown", onKey);
    addEventListener("scroll", hide, true);
    return () => {
      removeEventListener("keydown", onKey);
      removeEventListener("scroll", hide, true);
    };
  }, [at]);
  return (
    <>
      <button
        ref={place}
        type="button"
        aria-describedby={at ? id : undefined}
        onMouseEnter={show}
        onMouseLeave={hide}
        onFocus={show}
        onBlur={hide}
        onClick={show}
        className="max-w-full cursor-help truncate text-left underline decoration-dotted decoration-faint underline-offset-[3px]"
      >
        {children}
      </button>
      {at &&
        createPortal(
          <span id={id} role="tooltip" style={{ ...at, width: WIDTH }} className="fixed z-50 rounded-lg border border-line-strong bg-raised px-3 py-2 text-sm font-normal text-text shadow-(--shadow)">
            {t(TERMS[name].words)}
          </span>,
          document.body,
        )}
    </>
  );
}
