/** The interface in English and Russian: the English text is its own key. */
import { useSyncExternalStore } from "react";

export type Language = "en" | "ru";

const KEY = "vitrina.language";
let dictionary: Record<string, string> = {};
let sentences: Record<string, string> = {};
let language: Language = "en";
const listeners = new Set<() => void>();

export async function startLanguage(): Promise<void> {
  const kept = localStorage.getItem(KEY);
  await setLanguage(kept === "ru" || kept === "en" ? kept : navigator.language.startsWith("ru") ? "ru" : "en", false);
}

export async function setLanguage(next: Language, keep = true): Promise<void> {
  [dictionary, sentences] = next === "ru" ? await russian() : [{}, {}];
  language = next;
  document.documentElement.lang = next;
  if (keep) localStorage.setItem(KEY, next);
  for (const listener of listeners) listener();
}

async function russian(): Promise<[Record<string, string>, Record<string, string>]> {
  const [words, told] = await Promise.all([import("./ru"), import("./ru-sentences")]);
  return [words.default, told.default];
}

/** The API's sentence of this code; none: its English is shown. */
export const sentenceOf = (code: string): string | undefined => sentences[code];

export function useLanguage(): Language {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => language,
  );
}

export const currentLanguage = (): Language => language;

/** The text in the chosen language, with `{name}` filled in. */
export function t(text: string, values: Record<string, string | number> = {}): string {
  const found = dictionary[text] ?? text;
  return found.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
