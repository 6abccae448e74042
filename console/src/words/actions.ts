/** What somebody did, as the audit names it, in words. */
import { t } from "./language";

const WORDS: Record<string, string> = {
  create: "created it",
  update: "changed it",
  change: "changed it",
  delete: "deleted it",
  run: "asked for a run",
  pause: "asked for a pause",
  resume: "let it go on",
  cancel: "took the run back",
  enable: "enabled it",
  disable: "disabled it",
  preview: "looked at rows",
  validate: "checked it",
  reconcile: "compared source and target",
  replay: "sent dead letters again",
  rollback: "rolled it back",
  label: "changed its labels",
  reset_state: "reset the checkpoint",
  reload_config: "reloaded it",
  roll_back: "rolled it back",
  replace_tasks: "changed its tasks",
};

/** What kind of run it was. */
export function runWords({ metrics }: { metrics: object }): string {
  return "repair" in metrics ? t("Repair") : "replay" in metrics ? t("Replay") : t("Run");
}

export const actionInWords = (action: string): string => t(WORDS[action] ?? action);
