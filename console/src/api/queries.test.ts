import { afterEach, expect, test, vi } from "vitest";
import { queryClient, refreshOverview, refreshWaiting } from "./queries";

const lines = (count: number) => Array.from({ length: count }, (_, n) => ({ id: `id${n}`, name: `p${String(n).padStart(5, "0")}`, status: n === 7 ? "RUN_REQUESTED" : "IDLE", waiting: null }));

function answering(): string[] {
  const asked: string[] = [];
  vi.stubGlobal("localStorage", { getItem: () => null });
  vi.stubGlobal("fetch", (path: string) => {
    asked.push(path);
    const ids = new URLSearchParams(path.split("?")[1]).getAll("pipeline");
    const items = lines(5000).filter((line) => ids.includes(line.id)).map((line) => ({ ...line, status: "RUNNING" }));
    return Promise.resolve(new Response(JSON.stringify({ items, next_cursor: null }), { headers: { "Content-Type": "application/json" } }));
  });
  return asked;
}

afterEach(() => {
  vi.unstubAllGlobals();
  queryClient.clear();
});

test("changed lines are asked for in slices, and all others stay as they are", async () => {
  const asked = answering();
  queryClient.setQueryData(["overview"], lines(5000));
  await refreshOverview(lines(450).map((line) => line.id));
  expect(asked).toHaveLength(3);
  const shown = queryClient.getQueryData<{ status: string }[]>(["overview"]) ?? [];
  expect(shown).toHaveLength(5000);
  expect(shown.filter((line) => line.status === "RUNNING")).toHaveLength(450);
});

test("when a runner comes or goes, only the lines that wait for one are asked for", async () => {
  const asked = answering();
  queryClient.setQueryData(["overview"], lines(5000));
  await refreshWaiting();
  expect(asked).toEqual(["/api/v1/overview?pipeline=id7"]);
});
