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
  const [words, more, told] = await Promise.all([import("./ru"), import("./ru-pages"), import("./ru-sentences")]);
  return [{ ...words.default, ...more.default }, told.default];
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

export const locale = (): string => (language === "ru" ? "ru-RU" : "en-GB");

type Value = string | number;

/** The text in the chosen language, with `{name}` filled in, and `{name|row|rows}` in the form that fits the number. */
export function t(text: string, values: Record<string, Value> = {}): string {
  const found = dictionary[text] ?? text;
  return found.replace(/\{(\w+)((?:\|[^|{}]*)*)\}/g, (whole, name: string, forms: string) => {
    const value = values[name];
    if (value === undefined) return whole;
    if (forms) return formOf(Number(value), forms.slice(1).split("|"));
    return typeof value === "number" ? numbers().format(value) : value;
  });
}

/** English has two forms, for one and for others; Russian three, for one, for two and for five. */
function formOf(value: number, forms: string[]): string {
  const order = forms.length > 2 ? ["one", "few", "many"] : ["one"];
  const place = order.indexOf(plurals().select(value));
  return (place < 0 ? forms.at(-1) : forms[place]) ?? "";
}

const made = new Map<string, Intl.PluralRules | Intl.NumberFormat>();

/** Making one costs more than using it a hundred times. */
function kept<Kind extends Intl.PluralRules | Intl.NumberFormat>(name: string, make: () => Kind): Kind {
  const key = name + language;
  if (!made.has(key)) made.set(key, make());
  return made.get(key) as Kind;
}

const plurals = (): Intl.PluralRules => kept("plural", () => new Intl.PluralRules(locale()));
const numbers = (): Intl.NumberFormat => kept("number", () => new Intl.NumberFormat(locale()));
