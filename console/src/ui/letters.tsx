/** Documents that a target refused: what they were, why, and sending them again. */
import { useState } from "react";
import { post } from "../api/client";
import { awaitRequest, useDeadLetters, useMay } from "../api/queries";
import type { RunnerRequest } from "../api/types";
import { t } from "../words/language";
import { Ago, Button, Empty, Failure, Loading, PipelineLink } from "./basics";
import { toast, toastError } from "./toasts";

export function LetterList({ letters, pipeline }: { letters: ReturnType<typeof useDeadLetters>; pipeline?: string }) {
  const items = letters.data?.pages.flatMap((page) => page.items) ?? [];
  if (letters.error && items.length === 0) return <Failure error={letters.error} onRetry={() => void letters.refetch()} />;
  if (letters.isPending) return <Loading />;
  if (items.length === 0) {
    return (
      <Empty icon="letters" title={t("No dead letters")}>
        {t("A document that its target refuses for good waits here instead of stopping the pipeline.")}
      </Empty>
    );
  }
  return (
    <div className="space-y-3">
      {pipeline && <Replay pipeline={pipeline} onDone={() => void letters.refetch()} />}
      <ul className="overflow-hidden rounded-lg border bg-panel">
        {items.map((letter) => (
          <li key={letter.id} className="border-b last:border-b-0">
            <details>
              <summary className="grid grid-cols-[minmax(6rem,12rem)_1fr_auto] items-center gap-4 px-4 py-2.5 hover:bg-line/35">
                <span className="min-w-0 truncate">
                  {pipeline ? <span className="font-mono text-xs">{letter.document_id}</span> : <b className="font-medium">{letter.pipeline}</b>}
                </span>
                <span className="truncate text-bad">{letter.error}</span>
                <span className="text-xs text-muted">
                  <Ago at={letter.created_at} />
                </span>
              </summary>
              <div className="space-y-2 px-4 pb-4">
                <p className="break-words">{letter.error}</p>
                <p className="flex flex-wrap gap-x-4 text-xs text-muted">
                  <span className="font-mono">_id {letter.document_id}</span>
                  {!pipeline && <PipelineLink name={letter.pipeline} />}
                </p>
                <pre tabIndex={0} className="max-h-72 overflow-auto rounded-md bg-sunken p-3 font-mono text-xs">{JSON.stringify(letter.document, null, 2)}</pre>
              </div>
            </details>
          </li>
        ))}
      </ul>
      {letters.hasNextPage && <Button onClick={() => void letters.fetchNextPage()}>{t("Show older")}</Button>}
    </div>
  );
}

export function Replay({ pipeline, onDone }: { pipeline: string; onDone: () => void }) {
  const [busy, setBusy] = useState(false);
  const mayOperate = useMay("operator");
  if (!mayOperate) return null;
  const replay = async (): Promise<void> => {
    setBusy(true);
    try {
      const done = await awaitRequest(await post<RunnerRequest>("/dead-letters/replay", { pipeline }));
      if (done.error) toast(done.error.message ?? t("It failed."), true);
      else toast(t("Sent again."));
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
      onDone();
    }
  };
  return (
    <Button icon="undo" busy={busy} onClick={() => void replay()}>
      {t("Send again")}
    </Button>
  );
}
