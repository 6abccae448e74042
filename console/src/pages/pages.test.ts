/** Rules behind the pages: what a list shows, what a form is made of, what a schedule is built from. */
import { describe, expect, it } from "vitest";
import type { PipelineOverview } from "../api/types";
import { isLoad, ratesOf } from "../ui/scales";
import { firstValue, humanName, kindOf, numberOr, type Schema } from "../ui/schema";
import { fieldName, problemInWords } from "../words/fields";
import { changedKind, partsOf, textOf } from "../words/schedule-parts";
import { NEW_DRAFT, definitionOf, problemsOfReading, readingPart } from "./draft";
import { chosen, hasLabel, sortBy } from "./pipelines-search";

const line = (name: string, fields: Partial<PipelineOverview> = {}): PipelineOverview =>
  ({ name, target_table: `analytics.${name}`, description: "", status: "IDLE", labels: {}, enabled: true, dead_letters: 0, is_held: false, last_success_at: null, next_run_at: null, schedule_interval: null, ...fields }) as PipelineOverview;

describe("the list of pipelines", () => {
  const lines = [line("a", { status: "FAILED" }), line("b", { labels: { team: "core" }, last_success_at: "2026-01-02" }), line("c", { last_success_at: "2026-01-01", next_run_at: "2026-01-03" })];
  const names = (search: Parameters<typeof chosen>[1]): string => chosen(lines, search).map((one) => one.name).join("");
  it("is filtered by words, kind and label", () => {
    expect([names({ q: "analytics.b" }), names({ q: "TEAM=core" }), names({ show: "attention" }), names({ label: "team" }), names({ label: "team=other" })]).toEqual(["b", "b", "a", "b", ""]);
  });
  it("is sorted by columns, in both directions, and stays as it came", () => {
    expect([names({}), names({ sort: "-name" }), names({ sort: "freshness" }), names({ sort: "-freshness" }), names({ sort: "next" }), names({ sort: "status" })]).toEqual(["abc", "cba", "acb", "bca", "cab", "abc"]);
    expect(lines.map((one) => one.name).join("")).toBe("abc");
  });
  it("turns the order round at the second click", () => expect([sortBy("status", undefined), sortBy("status", "status"), sortBy("status", "-status"), sortBy("name", undefined), sortBy("name", "-name")]).toEqual(["status", "-status", "status", "-name", undefined]));
  it("knows labels without a value, and values with an equals sign", () => {
    expect(hasLabel(line("x", { labels: { live: "" } }), "live")).toBe(true);
    expect(hasLabel(line("x", { labels: { rule: "a=b" } }), "rule=a=b")).toBe(true);
  });
});

describe("a schedule in parts", () => {
  it.each(["", "15m", "2h", "1d", "0 3 * * *", "30 7 * * 1-5 Europe/Moscow", "0 3 * * 1", "5 0 31 * *", "PT15M", "*/5 * * * *", "0 3 1-7 * 2", "61 3 * * *", "0 3 1 * 1"])("%s is built again as it was", (text) => expect(textOf(partsOf(text))).toBe(text));
  it("keeps the time when the kind changes", () => {
    expect(textOf(changedKind(partsOf("30 7 * * * Europe/Moscow"), "weekly", "UTC"))).toBe("30 7 * * 1 Europe/Moscow");
    expect(textOf(changedKind(partsOf("15m"), "daily", "Europe/Moscow"))).toBe("0 3 * * * Europe/Moscow");
    expect(textOf(changedKind(partsOf("15m"), "own", "UTC"))).toBe("15m");
  });
});

describe("a form from a schema", () => {
  const definitions: Record<string, Schema> = { Check: { type: "object", properties: { interval: { type: "string" } }, required: ["interval"] } };
  const nothing: Schema = { type: "null" };
  it.each<[Schema, string]>([
    [{ type: "boolean" }, "flag"],
    [{ type: "string", enum: ["a", "b"] }, "choice"],
    [{ anyOf: [{ type: "integer", minimum: 1 }, nothing] }, "number"],
    [{ anyOf: [{ type: "integer" }, { type: "string", const: "auto" }] }, "number or text"],
    [{ type: "array", items: { type: "string" } }, "list"],
    [{ anyOf: [{ type: "array", items: { type: "string", enum: ["x"] } }, nothing] }, "choices"],
    [{ anyOf: [{ $ref: "#/$defs/Check" }, nothing] }, "object"],
    [{ anyOf: [{ type: "string", enum: ["none"] }, { $ref: "#/$defs/Check" }, nothing] }, "object"],
    [{ type: "object" }, "json"],
    [{ type: "array", items: { type: "object" } }, "json"],
  ])("%j is a %s", (schema, kind) => expect(kindOf(schema, definitions).kind).toBe(kind));
  it("begins with the default, else with something of the right kind", () => {
    expect(firstValue({ type: "string", enum: ["a"], default: "a" }, {})).toBe("a");
    expect(firstValue({ anyOf: [{ type: "integer", minimum: 3 }, nothing], default: null }, {})).toBe(3);
    expect(firstValue({ $ref: "#/$defs/Check" }, definitions)).toEqual({ interval: "" });
  });
  it("leaves it to the API to refuse what is no number", () => expect([numberOr("12"), numberOr("1e3"), numberOr("many"), numberOr("")]).toEqual([12, 1000, "many", ""]));
  it("writes names for people", () => expect(humanName("max_lag_seconds")).toBe("Max lag seconds"));
});

describe("what the API says about a field", () => {
  it.each([
    ["batch_size", "batch_size must be greater than or equal to 1, not 0", "Batch size must be greater than or equal to 1, not 0"],
    ["name", "name needs 1 to 100 letters", "Name needs 1 to 100 letters"],
    ["source_query", "a SQL pipeline needs source_query or tasks", "A SQL pipeline needs “Source query” or tasks"],
    ["options.max_cost", "options.max_cost must be greater than 0", "Options: Max cost must be greater than 0"],
    ["target_table", "line 1, column 2: no", "Line 1, column 2: no"],
  ])("%s: %s", (path, message, said) => expect(problemInWords({ path, message })).toBe(said));
  it("is named as in the form", () => expect([fieldName("target_table"), fieldName("tasks.1.body"), fieldName("options.index")]).toEqual(["Target", "Step 2", "Options: Index"]));
});

describe("what a preview sends", () => {
  const problem = (path: string) => ({ path, message: "", code: "" });
  const definition = definitionOf({ ...NEW_DRAFT, mode: "incremental", incremental_key: "x" });
  it("is what is read, without what is wrong beside it", () => {
    expect(Object.keys(readingPart(definition, []))).toEqual(["type", "source_connection", "source_query", "python_task", "tasks", "mode", "incremental_key", "incremental_id_key", "options"]);
    expect(Object.keys(readingPart(definition, [problem("incremental_key"), problem("options.x"), problem("name")], "films"))).toEqual(["type", "source_connection", "source_query", "python_task", "tasks", "name"]);
  });
  it("waits for the query alone", () => expect(problemsOfReading([problem("name"), problem("target_table"), problem("tasks.0.body")]).map((one) => one.path)).toEqual(["tasks.0.body"]));
});

describe("runs in figures", () => {
  it("has the speed between points", () => expect(ratesOf([{ at: 0, rows: 0 }, { at: 1000, rows: 10 }, { at: 1000, rows: 20 }, { at: 3000, rows: 60 }])).toEqual([10, 20]));
  it("gathers very many points", () => expect(ratesOf(Array.from({ length: 1000 }, (_, n) => ({ at: n * 1000, rows: n * 5 }))).length).toBeLessThanOrEqual(61));
  it("knows repairs and replays", () => expect([{}, { repair: {} }, { replay: {} }].map((metrics) => isLoad({ metrics }))).toEqual([true, false, false]));
});
