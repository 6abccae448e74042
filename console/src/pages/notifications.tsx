/** Who is told of failures, a test of it, and what was told lately. */
import { useState } from "react";
import { post } from "../api/client";
import { awaitRequest, useMay, useNotifications } from "../api/queries";
import type { Notifications, Receiver, RunnerRequest } from "../api/types";
import { Ago, Button, Failure, Loading, Panel, PipelineLink, Tag } from "../ui/basics";
import { toastError } from "../ui/toasts";
import { t } from "../words/language";

const RECEIVERS: Record<Receiver["name"], string> = { webhook: "Webhook", slack: "Slack" };
const KINDS: Record<string, string> = { failed: "It fails", recovered: "It works again", drift: "It differs from its source", warned: "Checks warn" };

export function NotificationsPanel() {
  const told = useNotifications();
  const isAdmin = useMay("admin");
  const [tested, setTested] = useState<Receiver[] | null>(null);
  const [busy, setBusy] = useState(false);
  const test = async (): Promise<void> => {
    setBusy(true);
    try {
      const done = await awaitRequest(await post<RunnerRequest>("/notifications/test"));
      if (done.result) setTested(done.result["receivers"] as Receiver[]);
      else throw new Error(done.error?.message ?? t("No runner has taken it. Is one running?"));
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
    }
  };
  const receivers = tested ?? told.data?.receivers ?? null;
  return (
    <Panel
      title={t("Notifications")}
      action={
        isAdmin && (
          <Button icon="play" busy={busy} disabled={receivers !== null && !receivers.some((one) => one.is_set)} onClick={() => void test()}>
            {busy ? t("A runner is sending…") : t("Send a test")}
          </Button>
        )
      }
    >
      {told.error ? (
        <Failure error={told.error} />
      ) : told.isPending ? (
        <Loading lines={3} />
      ) : (
        <div className="space-y-4">
          <p className="text-muted">{t("Notifications are sent when a pipeline fails, recovers, or differs from its source. The operator sets the receivers for every runner; options.notify limits them for a pipeline.")}</p>
          <Receivers receivers={receivers} tested={tested !== null} />
          <Latest latest={told.data.latest} />
        </div>
      )}
    </Panel>
  );
}

function Receivers({ receivers, tested }: { receivers: Receiver[] | null; tested: boolean }) {
  if (!receivers) return <p className="text-warn">{t("No runner has answered yet. Is one alive?")}</p>;
  return (
    <ul aria-label={t("Receivers")} className="divide-y rounded-lg border">
      {receivers.map((one) => (
        <li key={one.name} className="flex flex-wrap items-center gap-x-3 gap-y-1 px-3 py-2">
          <b className="min-w-24 font-medium">{RECEIVERS[one.name] ?? one.name}</b>
          {one.is_set ? <Tag tone="ok">{t("set")}</Tag> : <Tag>{t("not set")}</Tag>}
          {!one.is_set && <code className="font-mono text-xs text-muted">{one.setting}</code>}
          {tested && one.is_set && (
            <span role="status" className={one.error ? "text-bad" : "text-ok"}>
              {one.error ? t("The test did not arrive: {error}", { error: one.error }) : t("The test arrived.")}
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}

function Latest({ latest }: { latest: Notifications["latest"] }) {
  if (latest.length === 0) return <p className="text-muted">{t("No notifications yet.")}</p>;
  return (
    <section>
      <h3 className="mb-1.5 text-xs font-medium text-muted">{t("Recent notifications")}</h3>
      <ul className="divide-y">
        {latest.slice(0, 8).map((one) => (
          <li key={one.id} className="flex flex-wrap items-baseline gap-x-3 gap-y-0.5 py-1.5">
            <span className="text-xs text-muted">
              <Ago at={one.at} />
            </span>
            <PipelineLink name={one.pipeline} />
            <span>{t(KINDS[one.kind] ?? one.kind)}</span>
            <span className={one.delivery_error ? "text-xs text-bad" : "text-xs text-muted"}>
              {one.delivery_error ? t("not delivered: {error}", { error: one.delivery_error }) : one.delivered.length ? t("sent to {receivers}", { receivers: one.delivered.join(", ") }) : t("no receiver is configured")}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
