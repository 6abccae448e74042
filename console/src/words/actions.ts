/** What somebody did, as the audit names it, in words. */
import { t } from "./language";

const WORDS: Record<string, string> = {
  create: "created it",
  update: "changed it",
  change: "changed it",
  delete: "deleted it",
  run: "requested a run",
  pause: "requested a pause",
  resume: "resumed it",
  cancel: "cancelled the run",
  enable: "enabled it",
  disable: "disabled it",
  preview: "previewed rows",
  validate: "checked it",
  reconcile: "compared source and target",
  replay: "replayed dead letters",
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
