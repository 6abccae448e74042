import { expect, test } from "vitest";
import { merged } from "./lines";

const line = (id: string, name: string, status = "IDLE") => ({ id, name, status });

test("lines that came take the place of the old ones, and the others stay", () => {
  const lines = [line("1", "a"), line("2", "b"), line("3", "c")];
  expect(merged(lines, ["2"], [line("2", "b", "RUNNING")])).toEqual([line("1", "a"), line("2", "b", "RUNNING"), line("3", "c")]);
});

test("a line that was asked for and did not come is gone", () => {
  expect(merged([line("1", "a"), line("2", "b")], ["2"], [])).toEqual([line("1", "a")]);
});

test("a new line stands where its name belongs", () => {
  const names = merged([line("1", "a"), line("3", "c")], ["2", "3"], [line("2", "b"), line("3", "c")]).map(({ name }) => name);
  expect(names).toEqual(["a", "b", "c"]);
});
