/** One action for many pipelines: a few at a time, and in the end what was refused and why. */
import { useState } from "react";
import { request } from "../api/client";
import { queryClient, refreshOverview, verb } from "../api/queries";
import type { PipelineOverview } from "../api/types";
import { Button, Dialog, inputLook } from "../ui/basics";
import type { IconName } from "../ui/icons";
import { toast } from "../ui/toasts";
import { t } from "../words/language";

type Action = "run" | "pause" | "enable" | "disable" | "label";

const ACTIONS: Record<Action, { words: string; ask: string; icon: IconName }> = {
  run: { words: "Run", ask: "Run {n} {n|pipeline|pipelines}?", icon: "play" },
  pause: { words: "Pause", ask: "Pause {n} {n|pipeline|pipelines}?", icon: "pause" },
  enable: { words: "Enable", ask: "Enable {n} {n|pipeline|pipelines}?", icon: "check" },
  disable: { words: "Disable", ask: "Disable {n} {n|pipeline|pipelines}?", icon: "close" },
  label: { words: "Label…", ask: "Label {n} {n|pipeline|pipelines}", icon: "tag" },
};

const AT_ONCE = 4;
const SHOWN = 8;

interface Refused {
  name: string;
  why: string;
}

export function Bulk({ chosen, onClear }: { chosen: PipelineOverview[]; onClear: () => void }) {
  const [asked, setAsked] = useState<Action | null>(null);
  const [done, setDone] = useState<number | null>(null);
  const [refused, setRefused] = useState<Refused[]>([]);
  const [label, setLabel] = useState({ key: "", value: "" });
  const busy = done !== null;
  const perform = async (action: Action): Promise<void> => {
    setAsked(null);
    setDone(0);
    const wrong = await forEach(chosen, (line) => act(line, action, label), () => setDone((n) => (n ?? 0) + 1));
    setDone(null);
    setRefused(wrong);
    void refreshOverview(chosen.map((line) => line.id)).catch(() => undefined);
    void queryClient.invalidateQueries({ queryKey: ["home"] });
    if (wrong.length < chosen.length) toast(t("{n} of {all} done.", { n: chosen.length - wrong.length, all: chosen.length }));
    if (wrong.length === 0) onClear();
  };
  return (
    <div role="toolbar" aria-label={t("Selected pipelines")} className="flex flex-wrap items-center gap-2 border-t bg-accent-soft px-4 py-2 sm:px-6">
      <span role="status" className="mr-2 font-medium">
        {busy ? t("{n} of {all} done.", { n: done, all: chosen.length }) : t("{n} {n|pipeline|pipelines} selected", { n: chosen.length })}
      </span>
      {(Object.keys(ACTIONS) as Action[]).map((action) => (
        <Button key={action} icon={ACTIONS[action].icon} busy={busy} onClick={() => setAsked(action)}>
          {t(ACTIONS[action].words)}
        </Button>
      ))}
      <Button look="quiet" icon="close" onClick={onClear}>
        {t("Clear selection")}
      </Button>
      <Dialog
        open={asked !== null}
        onClose={() => setAsked(null)}
        title={asked ? t(ACTIONS[asked].ask, { n: chosen.length }) : ""}
        footer={
          <>
            <Button onClick={() => setAsked(null)}>{t("Cancel")}</Button>
            <Button look="primary" disabled={asked === "label" && label.key.trim() === ""} onClick={() => asked && void perform(asked)}>
              {asked === "label" ? t("Label") : asked && t(ACTIONS[asked].words)}
            </Button>
          </>
        }
      >
        {asked === "label" && <LabelFields label={label} onChange={setLabel} />}
        <p className="text-muted">{names(chosen)}</p>
      </Dialog>
      <Dialog open={refused.length > 0} onClose={() => setRefused([])} wide title={t("{n} {n|was|were} refused", { n: refused.length })} footer={<Button onClick={() => setRefused([])}>{t("Done")}</Button>}>
        <ul className="space-y-2">
          {refused.map((one) => (
            <li key={one.name}>
              <b className="font-medium">{one.name}</b>
              <span className="block break-words text-muted">{one.why}</span>
            </li>
          ))}
        </ul>
      </Dialog>
    </div>
  );
}

function LabelFields({ label, onChange }: { label: { key: string; value: string }; onChange: (next: { key: string; value: string }) => void }) {
  return (
    <div className="mb-3 grid grid-cols-2 gap-3">
      <label className="space-y-1">
        <span className="text-muted">{t("Label")}</span>
        <input className={inputLook} value={label.key} placeholder="team" onChange={(event) => onChange({ ...label, key: event.target.value })} />
      </label>
      <label className="space-y-1">
        <span className="text-muted">{t("Value (empty: remove the label)")}</span>
        <input className={inputLook} value={label.value} onChange={(event) => onChange({ ...label, value: event.target.value })} />
      </label>
    </div>
  );
}

function names(lines: PipelineOverview[]): string {
  const shown = lines.slice(0, SHOWN).map((line) => line.name).join(", ");
  return lines.length > SHOWN ? shown + t(" and {n} more", { n: lines.length - SHOWN }) : shown;
}

function act(line: PipelineOverview, action: Action, label: { key: string; value: string }): Promise<unknown> {
  if (action !== "label") return verb(line.name, action, action === "run" ? { trigger: "manual" } : undefined);
  // Key by key: the others stay, null takes this one off.
  const labels = { [label.key.trim()]: label.value || null };
  return request("PATCH", `/pipelines/${encodeURIComponent(line.name)}`, { body: { labels } });
}

/** A few at a time: the API has other callers too. */
async function forEach(lines: PipelineOverview[], perform: (line: PipelineOverview) => Promise<unknown>, onDone: () => void): Promise<Refused[]> {
  const waiting = [...lines];
  const refused: Refused[] = [];
  const work = async (): Promise<void> => {
    for (let line = waiting.shift(); line; line = waiting.shift()) {
      const { name } = line;
      await perform(line).catch((error: unknown) => refused.push({ name, why: error instanceof Error ? error.message : String(error) }));
      onDone();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return refused;
}
