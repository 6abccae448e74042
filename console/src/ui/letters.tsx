/** Documents and rows that were refused: what they were, why, and sending them again. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { post } from "../api/client";
import { awaitRequest, useDeadLetters, useMay, useRefresh } from "../api/queries";
import type { DeadLetter, RunnerRequest } from "../api/types";
import { count } from "../words/format";
import { t } from "../words/language";
import { Ago, Button, Empty, Failure, Loading, PipelineLink, Tag, cx } from "./basics";
import { Icon } from "./icons";
import { Json } from "./sql";
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
      {pipeline && items.some((letter) => !letter.resolved_at) && <ReplayAll pipeline={pipeline} onDone={() => void letters.refetch()} />}
      <ul className="overflow-hidden rounded-lg border bg-panel">
        {items.map((letter) => (
          <li key={letter.id} className="border-b last:border-b-0">
            <Letter letter={letter} withPipeline={!pipeline} onDone={() => void letters.refetch()} />
          </li>
        ))}
      </ul>
      {letters.hasNextPage && <Button onClick={() => void letters.fetchNextPage()}>{t("Show older")}</Button>}
    </div>
  );
}

function ReplayAll({ pipeline, onDone }: { pipeline: string; onDone: () => void }) {
  const sending = useReplay(pipeline, onDone);
  if (!sending) return null;
  return (
    <div className="flex flex-wrap items-center gap-3">
      <Button icon="undo" busy={sending.busy} onClick={() => sending.replay()}>
        {sending.busy ? t("A runner is sending…") : t("Send all again")}
      </Button>
      <span className="text-muted">{t("Their rows are read anew; those that are taken now are resolved.")}</span>
    </div>
  );
}

function Letter({ letter, withPipeline, onDone }: { letter: DeadLetter; withPipeline: boolean; onDone: () => void }) {
  const sending = useReplay(letter.pipeline, onDone);
  return (
    <details className="group">
      <summary className="grid grid-cols-[1rem_1fr_auto] items-center gap-x-3 gap-y-0.5 px-4 py-2.5 hover:bg-line/35 sm:grid-cols-[1rem_minmax(6rem,15rem)_1fr_auto]">
        <span className="text-faint transition-transform group-open:rotate-90">
          <Icon name="chevron" size={12} />
        </span>
        <span className="min-w-0 truncate">
          {withPipeline && <b className="block truncate font-medium">{letter.pipeline}</b>}
          <span className={cx("font-mono text-xs", withPipeline && "text-muted")}>{letter.document_id}</span>
        </span>
        <span className="order-last col-span-2 col-start-2 min-w-0 truncate text-muted sm:order-none sm:col-span-1 sm:col-start-auto">{letter.error}</span>
        <span className="flex items-center gap-3 text-xs text-muted">
          {letter.resolved_at && <Tag tone="ok">{t("resolved")}</Tag>}
          <Ago at={letter.created_at} />
        </span>
      </summary>
      <div className="space-y-3 px-4 pb-4 sm:pl-11">
        <p className="break-words text-bad">{letter.error}</p>
        <p className="flex flex-wrap gap-x-4 gap-y-1 text-xs text-muted">
          <span className="font-mono">_id {letter.document_id}</span>
          {withPipeline && <PipelineLink name={letter.pipeline} />}
          {letter.run_id && (
            <Link to="/runs/$id" params={{ id: letter.run_id }} className="hover:text-accent hover:underline">
              {t("Open the run")}
            </Link>
          )}
        </p>
        <Json value={letter.document} />
        {sending && !letter.resolved_at && (
          <Button icon="undo" busy={sending.busy} onClick={() => sending.replay([letter.id])}>
            {t("Send again")}
          </Button>
        )}
      </div>
    </details>
  );
}

/** Sends letters of a pipeline again, or one of them; null for whoever may only look. */
function useReplay(pipeline: string, onDone: () => void): { replay: (letters?: number[]) => void; busy: boolean } | null {
  const [busy, setBusy] = useState(false);
  const mayOperate = useMay("operator");
  const refresh = useRefresh();
  if (!mayOperate) return null;
  const send = async (letters?: number[]): Promise<void> => {
    setBusy(true);
    try {
      const done = await awaitRequest(await post<RunnerRequest>("/dead-letters/replay", { pipeline, ...(letters && { letters }) }));
      if (done.error) toast(done.error.message ?? t("It failed."), true);
      else toast(done.finished_at ? outcome(done.result as unknown as ReplayReport) : t("A runner is still at it."));
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
      refresh(pipeline);
      onDone();
    }
  };
  return { replay: (letters) => void send(letters), busy };
}

interface ReplayReport {
  sent: number;
  refused: number;
  gone: number;
  unclear: number;
  remaining: number;
}

function outcome(report: ReplayReport): string {
  return t("{sent} taken, {refused} refused again, {gone} gone from the source; {remaining} remain.", {
    sent: count(report.sent),
    refused: count(report.refused + report.unclear),
    gone: count(report.gone),
    remaining: count(report.remaining),
  });
}
