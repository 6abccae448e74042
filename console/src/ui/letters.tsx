/** Documents and rows that were refused: by what stood against them, what they were, and sending them again. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { post } from "../api/client";
import { awaitRequest, useDeadLetterGroups, useDeadLetters, useMay, useRefresh } from "../api/queries";
import type { DeadLetter, DeadLetterGroup, RunnerRequest } from "../api/types";
import { count } from "../words/format";
import { t } from "../words/language";
import { Ago, Button, Empty, Failure, Loading, PipelineLink, Tag } from "./basics";
import { cx } from "./classes";
import { Icon } from "./icons";
import { Json } from "./sql";
import { toast, toastError } from "./toasts";

/** Hundreds of letters have a handful of causes: one line for each. */
export function LetterGroups({ pipeline, resolved = false }: { pipeline?: string; resolved?: boolean }) {
  const groups = useDeadLetterGroups(pipeline, resolved);
  const items = groups.data?.items ?? [];
  if (groups.error && items.length === 0) return <Failure error={groups.error} onRetry={() => void groups.refetch()} />;
  if (groups.isPending) return <Loading />;
  if (items.length === 0) {
    return (
      <Empty icon="letters" title={t("No dead letters")}>
        {t("A row that is rejected permanently is kept here and does not stop the pipeline.")}
      </Empty>
    );
  }
  return (
    <div className="space-y-3">
      {pipeline && !resolved && <ReplayAll pipeline={pipeline} onDone={() => void groups.refetch()} />}
      <ul aria-label={t("Dead letters by error")} className="overflow-hidden rounded-lg border bg-panel">
        {items.map((group) => (
          <li key={group.pipeline_id + group.reason} className="border-b last:border-b-0">
            <Group group={group} withPipeline={!pipeline} resolved={resolved} onDone={() => void groups.refetch()} />
          </li>
        ))}
      </ul>
    </div>
  );
}

function Group({ group, withPipeline, resolved, onDone }: { group: DeadLetterGroup; withPipeline: boolean; resolved: boolean; onDone: () => void }) {
  const [open, setOpen] = useState(false);
  const sending = useReplay(group.pipeline, onDone);
  return (
    <details className="group" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className="grid grid-cols-[1rem_1fr_auto] items-center gap-x-3 gap-y-0.5 px-4 py-2.5 hover:bg-line/35 sm:grid-cols-[1rem_auto_1fr_auto]">
        <span className="text-faint transition-transform group-open:rotate-90">
          <Icon name="chevron" size={12} />
        </span>
        <span className="num min-w-12 font-semibold">{count(group.letters)}</span>
        <span className="order-last col-span-2 col-start-2 min-w-0 sm:order-none sm:col-span-1 sm:col-start-auto">
          {withPipeline && <b className="block truncate font-medium">{group.pipeline}</b>}
          <span title={group.reason} className={cx("line-clamp-2 break-words", withPipeline && "text-muted")}>{group.error}</span>
        </span>
        <span className="text-xs text-muted">
          <Ago at={group.last_at} />
        </span>
      </summary>
      {open && (
        <div className="space-y-3 px-4 pb-4 sm:pl-11">
          <div className="flex flex-wrap items-center gap-x-4 gap-y-2 text-xs text-muted">
            <span>
              {t("first")} <Ago at={group.first_at} />
            </span>
            {withPipeline && <PipelineLink name={group.pipeline} />}
            {sending && !resolved && group.letters > 1 && (
              <Button icon="undo" busy={sending.busy} onClick={() => sending.replay({ reason: group.reason })}>
                {t("Replay these {n}", { n: count(group.letters) })}
              </Button>
            )}
          </div>
          <LettersOf group={group} resolved={resolved} onDone={onDone} />
        </div>
      )}
    </details>
  );
}

function LettersOf({ group, resolved, onDone }: { group: DeadLetterGroup; resolved: boolean; onDone: () => void }) {
  const letters = useDeadLetters(group.pipeline, resolved, group.reason);
  const items = letters.data?.pages.flatMap((page) => page.items) ?? [];
  if (letters.error && items.length === 0) return <Failure error={letters.error} onRetry={() => void letters.refetch()} />;
  if (letters.isPending) return <Loading lines={2} />;
  return (
    <>
      <ul aria-label={t("Dead letters with this error")} className="overflow-hidden rounded-md border">
        {items.map((letter) => (
          <li key={letter.id} className="border-b last:border-b-0">
            <Letter
              letter={letter}
              onDone={() => {
                void letters.refetch();
                onDone();
              }}
            />
          </li>
        ))}
      </ul>
      {letters.hasNextPage && (
        <Button onClick={() => void letters.fetchNextPage()} busy={letters.isFetchingNextPage}>
          {t("Show older")}
        </Button>
      )}
    </>
  );
}

function ReplayAll({ pipeline, onDone }: { pipeline: string; onDone: () => void }) {
  const sending = useReplay(pipeline, onDone);
  if (!sending) return null;
  return (
    <div className="flex flex-wrap items-center gap-3">
      <Button icon="undo" busy={sending.busy} onClick={() => sending.replay()}>
        {sending.busy ? t("A runner is sending…") : t("Replay all")}
      </Button>
      <span className="text-muted">{t("Their rows are read again; those that are accepted now are resolved.")}</span>
    </div>
  );
}

function Letter({ letter, onDone }: { letter: DeadLetter; onDone: () => void }) {
  const sending = useReplay(letter.pipeline, onDone);
  return (
    <details className="group/letter">
      <summary className="grid grid-cols-[1rem_1fr_auto] items-center gap-x-3 px-3 py-2 hover:bg-line/35">
        <span className="text-faint transition-transform group-open/letter:rotate-90">
          <Icon name="chevron" size={12} />
        </span>
        <span className="min-w-0 truncate font-mono text-xs">{letter.document_id || "—"}</span>
        <span className="flex items-center gap-3 text-xs text-muted">
          {letter.resolved_at && <Tag tone="ok">{t("resolved")}</Tag>}
          <Ago at={letter.created_at} />
        </span>
      </summary>
      <div className="space-y-3 px-3 pb-3 sm:pl-10">
        <p className="break-words text-bad">{letter.error}</p>
        {letter.run_id && (
          <p className="text-xs text-muted">
            <Link to="/runs/$id" params={{ id: letter.run_id }} className="hover:text-accent hover:underline">
              {t("Open the run")}
            </Link>
          </p>
        )}
        <Json value={letter.document} />
        {sending && !letter.resolved_at && (
          <Button icon="undo" busy={sending.busy} onClick={() => sending.replay({ letters: [letter.id] })}>
            {t("Replay now")}
          </Button>
        )}
      </div>
    </details>
  );
}

/** Sends letters of a pipeline again, or some of them; null for whoever may only look. */
function useReplay(pipeline: string, onDone: () => void): { replay: (which?: { letters?: number[]; reason?: string }) => void; busy: boolean } | null {
  const [busy, setBusy] = useState(false);
  const mayOperate = useMay("operator");
  const refresh = useRefresh();
  if (!mayOperate) return null;
  const send = async (which: { letters?: number[]; reason?: string } = {}): Promise<void> => {
    setBusy(true);
    try {
      const done = await awaitRequest(await post<RunnerRequest>("/dead-letters/replay", { pipeline, ...which }));
      if (done.error) toast(done.error.message ?? t("It failed."), true);
      else toast(done.finished_at ? outcome(done.result as unknown as ReplayReport) : t("A runner is still working on it."));
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
      refresh(pipeline);
      onDone();
    }
  };
  return { replay: (which) => void send(which), busy };
}

interface ReplayReport {
  sent: number;
  refused: number;
  gone: number;
  unclear: number;
  remaining: number;
}

function outcome(report: ReplayReport): string {
  return t("{sent} accepted, {refused} rejected again, {gone} no longer in the source; {remaining} remain.", {
    sent: count(report.sent),
    refused: count(report.refused + report.unclear),
    gone: count(report.gone),
    remaining: count(report.remaining),
  });
}
