/** Words: schedules, durations, differences, and a dictionary without holes. */
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { changesBetween, definitionOf, draftOf, NEW_DRAFT } from "../pages/draft";
import { age, duration, percent } from "./format";
import { setLanguage, t } from "./language";
import { lineDiff } from "./lines";
import sentences from "./ru-sentences";
import { scheduleInWords } from "./schedule";
import { retold, told } from "./told";

describe("a schedule in words", () => {
  it.each([
    [null, "manual"],
    ["30s", "every 30 s"],
    ["15m", "every 15 min"],
    ["1h", "every hour"],
    ["PT15M", "every 15 min"],
    ["P1D", "every day"],
    ["P1DT2H", "P1DT2H"],
    ["*/5 * * * *", "every 5 min"],
    ["15 * * * *", "hourly at :15"],
    ["0 3 * * *", "daily at 03:00 UTC"],
    ["0 3 * * * Europe/Moscow", "daily at 03:00 Europe/Moscow"],
    ["30 7 * * 1-5", "weekdays at 07:30 UTC"],
    ["0 3 * * 1", "Mon at 03:00 UTC"],
    ["0 3 1 * *", "monthly on day 1 at 03:00 UTC"],
    ["0 3 1-7 * 2", "0 3 1-7 * 2"],
  ])("%s is %s", (schedule, words) => expect(scheduleInWords(schedule)).toBe(words));
});

describe("durations", () => {
  it.each([
    [0.0421, "42 ms"],
    [1.04, "1.0 s"],
    [59.4, "59 s"],
    [90, "1 min 30 s"],
    [3600, "1 h"],
    [3599.9, "1 h"],
    [90_000, "1 d 1 h"],
    [null, "—"],
  ])("%s s is %s", (seconds, words) => expect(duration(seconds)).toBe(words));
  it("gives an age one unit", () => expect([age(59), age(3601), age(200_000)]).toEqual(["59 s", "1 h", "2 d"]));
});

describe("differences of texts", () => {
  it("keeps common lines and marks the others", () => {
    expect(lineDiff("a\nb\nc", "a\nx\nc").map((line) => line.sign + line.text)).toEqual([" a", "-b", "+x", " c"]);
  });
  it("finds nothing in equal texts", () => expect(lineDiff("a\nb", "a\nb").every((line) => line.sign === " ")).toBe(true));
});

describe("a draft", () => {
  const saved = definitionOf({ ...NEW_DRAFT, name: "films", options: '{"allow_shrink": true}' });
  it("sends only what changed", () => {
    const next = definitionOf({ ...NEW_DRAFT, name: "films", batch_size: "10", options: '{"allow_shrink": true}' });
    expect(changesBetween(saved, next)).toEqual({ batch_size: 10 });
  });
  it("takes an option back with null", () => {
    expect(changesBetween(saved, definitionOf({ ...NEW_DRAFT, name: "films", options: "{}" }))).toEqual({ options: { allow_shrink: null } });
  });
  it("leaves it to the API to refuse what is no number", () => {
    expect(definitionOf({ ...NEW_DRAFT, batch_size: "many" })["batch_size"]).toBe("many");
  });
  it("survives being written down and read again", () => {
    const definition = definitionOf({ ...NEW_DRAFT, name: "films", target_key: "a, b" });
    expect(definitionOf(draftOf(definition as never))).toEqual(definition);
  });
});

describe("numbers and words that go with them", () => {
  const rows = (n: number): string => t("{n} {n|row|rows}", { n });
  afterEach(() => speak("en"));
  it("agree in English", () => expect([0, 1, 2, 21, 1234].map(rows)).toEqual(["0 rows", "1 row", "2 rows", "21 rows", "1,234 rows"]));
  it("agree in Russian", async () => {
    await speak("ru");
    expect([0, 1, 2, 5, 11, 21, 22].map(rows)).toEqual(["0 строк", "1 строка", "2 строки", "5 строк", "11 строк", "21 строка", "22 строки"]);
  });
  it("leave what was not given", () => expect(t("{a} {a|one|more} {b}", { a: 1 })).toBe("1 one {b}"));
});

/** The page is not there in a unit test. */
async function speak(language: "en" | "ru"): Promise<void> {
  Object.assign(globalThis, { document: { documentElement: {} } });
  await setLanguage(language, false);
}

const DICTIONARIES = ["ru.ts", "ru-pages.ts"];

describe("what the API tells", () => {
  const disabled = { code: "pipeline.disabled", params: { name: "films" } };
  beforeAll(() => {
    vi.stubGlobal("document", { documentElement: {} });
    return setLanguage("ru", false);
  });
  afterAll(async () => {
    await setLanguage("en", false);
    vi.unstubAllGlobals();
  });
  it("is said in Russian by its code", () => expect(told("pipeline films is disabled", disabled)).toBe("пайплайн films выключен"));
  it("stays English where there is no Russian", () => {
    expect(told("whatever a driver says", null)).toBe("whatever a driver says");
    expect(told("from a newer server", { code: "run.never_heard_of", params: {} })).toBe("from a newer server");
  });
  it("says sentences within sentences", () => {
    const because = { text: "the stage is gone", code: "plan.stage_gone", params: {} };
    expect(told("…", { code: "plan.starts_over", params: { because } })).toBe("начинает сначала: промежуточной таблицы больше нет");
    expect(told("…", { code: "version.changed", params: { fields: ["mode", "tasks"] } })).toBe("изменено: mode, tasks");
  });
  it("is found wherever it stands in an answer, and nowhere in what people wrote", () => {
    const own = { message: "mine", message_said: disabled };
    const answer = { items: [{ message: "pipeline films is disabled", message_said: disabled, rows: [own] }], reasons: ["a", "b"], reasons_said: [null, disabled], needs_attention: { schedule: "x" }, needs_attention_said: { schedule: disabled } };
    expect(retold(answer)).toMatchObject({
      items: [{ message: "пайплайн films выключен", rows: [own] }],
      reasons: ["a", "пайплайн films выключен"],
      needs_attention: { schedule: "пайплайн films выключен" },
    });
  });
  it("has figures and units as Russian writes them", () => {
    expect([percent(0.125), duration(1.25), duration(90)].map((text) => text.replace(/\u00a0/g, " "))).toEqual(["12,5 %", "1,3 с", "1 мин 30 с"]);
  });
  it("keeps the words of the page beside it", () => expect(t("Runs")).toBe("Запуски"));
  it("has no empty sentence", () => expect(Object.entries(sentences).filter(([, text]) => !text.trim())).toEqual([]));
});

describe("the Russian dictionary", () => {
  const ru: Record<string, string> = {};
  const root = join(import.meta.dirname, "..");
  beforeAll(async () => {
    for (const name of DICTIONARIES) {
      const part = ((await import(join(import.meta.dirname, name))) as { default: Record<string, string> }).default;
      expect(Object.keys(part).filter((text) => text in ru), `${name} says again what another part says`).toEqual([]);
      Object.assign(ru, part);
    }
  });
  const sources = readdirSync(root, { recursive: true, encoding: "utf8" })
    .filter((path) => /\.tsx?$/.test(path) && !path.endsWith(".test.ts") && !/ru(-\w+)?\.ts$/.test(path))
    .map((path) => readFileSync(join(root, path), "utf8"));
  const used = new Set(sources.flatMap((text) => [...text.matchAll(/\bt\(\s*"((?:[^"\\]|\\.)*)"/g), ...text.matchAll(/\b(?:words|ask): "([^"]+)"/g)].map((match) => match[1] ?? "")));
  it("has every text of the interface", () => expect([...used].filter((text) => !(text in ru))).toEqual([]));
  it("gives three forms of a word where English gives two", () => {
    const wrong = Object.values(ru).flatMap((text) => [...text.matchAll(/\{\w+\|([^{}]*)\}/g)].filter((match) => match[1]?.split("|").length !== 3).map((match) => match[0]));
    expect(wrong).toEqual([]);
  });
  it("fills in the same values", () => {
    const names = (text: string): string[] => [...new Set([...text.matchAll(/\{(\w+)(?:\|[^{}]*)?\}/g)].map((match) => match[1] ?? ""))].sort();
    expect(Object.entries(ru).filter(([english, russian]) => names(english).join() !== names(russian).join())).toEqual([]);
  });
});
