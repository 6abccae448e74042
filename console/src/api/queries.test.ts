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

/** As `answering`, but the first requests fail with these statuses. */
function failing(...statuses: number[]): string[] {
  const asked = answering();
  const answer = fetch;
  vi.stubGlobal("fetch", (path: string) => {
    const status = statuses.shift();
    return status === undefined ? answer(path) : Promise.resolve(new Response("{}", { status }));
  });
  return asked;
}

const running = () => (queryClient.getQueryData<{ status: string }[]>(["overview"]) ?? []).filter(({ status }) => status === "RUNNING");

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  queryClient.clear();
});

test("changed lines are asked for in slices, and all others stay as they are", async () => {
  const asked = answering();
  queryClient.setQueryData(["overview"], lines(5000));
  await refreshOverview(lines(450).map((line) => line.id));
  expect(asked).toHaveLength(5);
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

test("a request names so many lines that its first line passes a proxy", async () => {
  const asked = answering();
  const long = lines(450).map((line, n) => ({ ...line, id: `00000000-0000-4000-8000-${String(n).padStart(12, "0")}` }));
  queryClient.setQueryData(["overview"], long);
  await refreshOverview(long.map((line) => line.id));
  expect(Math.max(...asked.map((path) => `GET ${path} HTTP/1.1`.length))).toBeLessThan(8000);
});

test("lines whose request fails are asked for again, and not lost", async () => {
  vi.useFakeTimers();
  failing(503, 429);
  queryClient.setQueryData(["overview"], lines(5000));
  await refreshOverview(lines(250).map((line) => line.id));
  expect(running()).toHaveLength(0);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(running()).toHaveLength(0);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(running()).toHaveLength(250);
});

test("after a request that is refused, all lines are out of date", async () => {
  vi.useFakeTimers();
  const asked = failing(414);
  queryClient.setQueryData(["overview"], lines(5000));
  await refreshOverview(lines(250).map((line) => line.id));
  expect(queryClient.getQueryState(["overview"])?.isInvalidated).toBe(true);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toEqual([]);
});
