/** Why no runner takes a pipeline up: the API says it in English, with the names of what is missing. */
import { t } from "./language";

const BEGINNING = "waits for a runner with ";

export function waitingInWords(said: string): string {
  if (!said.startsWith(BEGINNING)) return said;
  return t("waits for a runner with {what}", { what: said.slice(BEGINNING.length) });
}
