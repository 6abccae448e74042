/** Home, lists, forms and runs as people use them: each test is something that stood in somebody's way once. */
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, Locator, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type { Pipeline, Run } from "../src/api/types";
import { launch, makeDrift, openPage, runToItsEnd, see, startPlatform, until, type Platform } from "./platform";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** The whole of it takes minutes: every page in both themes, sizes and languages. */
const LONG = !!process.env["CONSOLE_LONG"];

const PHONE = { width: 390, height: 800 };
const DESK = { width: 1280, height: 860 };

let platform: Platform;
let browser: Browser;
let page: Page;
let misdeeds: string[];
const began = Date.now();

beforeAll(async () => {
  [platform, browser] = await Promise.all([startPlatform(), launch()]);
  ({ page, misdeeds } = await openPage(browser));
});

afterEach(async ({ task }) => {
  if (task.result?.state === "fail") await page.screenshot({ path: join(tmpdir(), "vitrina-pages-failure.png") });
});

afterAll(async () => {
  await browser?.close();
  await platform?.stop();
  console.log(`pages: ${Math.round((Date.now() - began) / 1000)} s`);
});

async function open(path: string): Promise<void> {
  await page.goto(`${platform.url}/ui${path}`);
}

async function writeQuery(text: string): Promise<void> {
  await page.locator(".cm-content").click();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(text);
}

/** Leaves a form with changes: the page asks, and the dialog is accepted. */
const leave = (path: string): Promise<void> => open(path);

const runsOf = async (name: string): Promise<Run[]> => (await platform.api<{ items: Run[] }>("GET", `/pipelines/${name}/runs?limit=5`)).items;

const mart = (name: string, fields: Record<string, unknown> = {}): Promise<Pipeline> =>
  platform.api<Pipeline>("POST", "/pipelines", {
    name,
    target_table: `analytics.${name}`,
    target_key: ["id"],
    source_query: "SELECT id, name FROM content.genre",
    ...fields,
  });

async function isOnScreen(part: Locator): Promise<boolean> {
  const box = await part.boundingBox();
  const size = page.viewportSize();
  return !!box && !!size && box.x >= 0 && box.x + box.width <= size.width + 1;
}

// --- writing a pipeline -----------------------------------------------------------------------------------------

test("a preview says what it waits for, and needs the query alone", async () => {
  await open("/new");
  const preview = page.getByRole("button", { name: "Preview 20 rows" });
  await see(page, "Write a query first.");
  expect(await preview.isDisabled()).toBe(true);
  await writeQuery("SELECT id, name FROM content.genre");
  await see(page, "Still to fill in: Name, Target");
  expect(await page.locator("[aria-invalid=true]").count()).toBe(0);
  await preview.click();
  await page.getByRole("region", { name: "Preview", exact: true }).locator("tbody tr").first().waitFor();
});

test("a field is found wrong once somebody has come to it, and all of them when they create it", async () => {
  await page.getByLabel("Name", { exact: true }).fill("no good");
  await page.locator("#field-name-wrong").waitFor();
  expect(await page.locator("#field-target_table-wrong").count()).toBe(0);
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.locator("#field-target_table-wrong").waitFor();
});

test("everything that is wrong is said at once, by the names that the form has", async () => {
  await page.getByLabel("Batch size").fill("0");
  await page.getByLabel("Schedule", { exact: true }).fill("whenever");
  await writeQuery("DELETE FROM content.genre");
  await see(page, "5 to correct");
  await page.getByRole("tab", { name: /Problems/ }).click();
  const listed = page.getByRole("region", { name: "Results" }).locator("li");
  expect(await listed.count()).toBe(5);
  const said = (await listed.allTextContents()).join("\n");
  expect(said).toContain("Batch size must be greater than or equal to 1, not 0");
  expect(said).not.toMatch(/batch_size|schedule_interval|target_table|source_query/);
  await page.getByRole("button", { name: "Batch size" }).click();
  expect(await page.evaluate(() => document.activeElement?.id)).toBe("field-batch_size");
});

test("a schedule is built by choosing, and its next five times are told", async () => {
  await page.getByLabel("How often").selectOption("weekly");
  expect(await page.getByLabel("Schedule", { exact: true }).inputValue()).toMatch(/^0 3 \* \* 1/);
  await page.getByLabel("Day").selectOption("5");
  await page.getByLabel("Time", { exact: true }).fill("07:30");
  await page.getByLabel("Time zone").selectOption("Europe/Moscow");
  expect(await page.getByLabel("Schedule", { exact: true }).inputValue()).toBe("30 7 * * 5 Europe/Moscow");
  const times = page.getByRole("list", { name: "Next times" }).locator("time");
  await until(async () => (await times.count()) === 5, 60);
  const moments = await times.evaluateAll((found) => found.map((one) => new Date(one.getAttribute("datetime") ?? "")));
  expect(moments.map((moment) => [moment.getUTCDay(), moment.getUTCHours(), moment.getUTCMinutes()])).toEqual(Array(5).fill([5, 4, 30]));
  await page.getByLabel("How often").selectOption("every");
  expect(await page.getByLabel("Schedule", { exact: true }).inputValue()).toBe("15m");
});

test("options are a form that is made from the schema", async () => {
  await page.getByText("Options", { exact: true }).click();
  await page.getByLabel("Add to Options").selectOption("allow_shrink");
  await page.getByLabel("Allow shrink", { exact: true }).check();
  await page.getByLabel("Add to Options").selectOption("notify");
  await page.getByRole("group", { name: "Options" }).getByLabel("Drift").check();
  await page.getByLabel("Add to Options").selectOption("reconcile");
  await page.getByLabel(/^Interval/).fill("6h");
  await page.getByLabel("Add to Options").selectOption("max_lag_seconds");
  await page.getByLabel("Max lag seconds", { exact: true }).fill("3600");
  await page.getByRole("button", { name: "Remove Allow shrink" }).click();
  await page.getByRole("button", { name: "As JSON" }).click();
  const written: unknown = JSON.parse(await page.getByLabel("Options (JSON)").inputValue());
  expect(written).toEqual({ notify: ["drift"], reconcile: { interval: "6h" }, max_lag_seconds: 3600 });
});

test("a source that cannot be read says so where its tables would stand", async () => {
  await platform.api("POST", "/connections", { name: "elsewhere", url: "postgresql://reader:wrong@127.0.0.1:1/shop" });
  await leave("/new");
  await page.getByLabel("Source", { exact: true }).selectOption("elsewhere");
  const tables = page.getByRole("region", { name: "Queries may read" });
  await tables.getByRole("alert").getByText("The tables of this source are not known:").waitFor();
  expect(await tables.textContent()).toMatch(/elsewhere|127\.0\.0\.1|refused|connect/i);
  await leave("/");
});

// --- runs -------------------------------------------------------------------------------------------------------

test("a run is watched and ended on its own page", async () => {
  await mart("slow_copy", {
    source_query: "SELECT id, film_id, user_id, rating FROM ugc.ratings",
    batch_size: 1,
    options: { route: "arrow" },
  });
  await platform.api("POST", "/pipelines/slow_copy/run", { trigger: "manual" });
  await until(async () => (await runsOf("slow_copy"))[0]?.status === "RUNNING", 60);
  const [run] = await runsOf("slow_copy");
  await open(`/runs/${run?.id}`);
  const progress = page.getByRole("region", { name: "Progress" });
  await progress.getByRole("progressbar").waitFor();
  await until(async () => /\d rows\/s/.test((await progress.textContent()) ?? "") && /left|so far/.test((await progress.textContent()) ?? ""), 60);
  await page.getByRole("img", { name: /^Rows a second over time/ }).waitFor();
  expect(await page.getByRole("button", { name: "Pause", exact: true }).isEnabled()).toBe(true);
  await page.getByRole("button", { name: "Cancel the run" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel the run" }).click();
  await until(async () => (await runsOf("slow_copy"))[0]?.status === "CANCELLED", 60);
  await page.locator("h1").getByText("Cancelled").waitFor();
  expect(await page.getByRole("button", { name: "Cancel the run" }).count()).toBe(0);
});

test("a run that works is paused on its own page", async () => {
  await platform.api("POST", "/pipelines/slow_copy/run", { trigger: "manual" });
  await until(async () => (await runsOf("slow_copy"))[0]?.status === "RUNNING", 60);
  await open(`/runs/${(await runsOf("slow_copy"))[0]?.id}`);
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await until(async () => (await platform.api<Pipeline>("GET", "/pipelines/slow_copy")).status === "PAUSED", 60);
  await page.locator("h1").getByText("Paused").waitFor();
});

test("after a repair the differences are told as past, and the figures are still those of the loads", async () => {
  await mart("genres_copy");
  await makeDrift(platform, "genres_copy", "SELECT id, CASE WHEN id = (SELECT min(id::text)::uuid FROM content.genre) THEN 'x' ELSE name END AS name FROM content.genre");
  const [load] = await runsOf("genres_copy");
  await open("/pipelines/genres_copy?tab=checks");
  await page.getByRole("button", { name: "Compare now" }).click();
  await see(page, "1 row differs");
  const listed = page.getByRole("region", { name: "What differs" });
  await listed.waitFor();
  await page.getByRole("button", { name: "Repair…" }).click();
  await page.getByRole("dialog").getByText(/^1 row is written as the source has it/).waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Repair", exact: true }).click();
  await see(page, "Repaired: target and source are equal");
  expect(await listed.isVisible()).toBe(false);
  await page.getByText("What differed before the repair").click();
  expect(await listed.isVisible()).toBe(true);
  const [repair] = await runsOf("genres_copy");
  expect(repair?.rows_read).toBeLessThan(load?.rows_read ?? 0);
  const figure = page.locator("dl > div", { hasText: "Rows written" }).first();
  await until(async () => ((await figure.textContent()) ?? "").startsWith(`Rows written${load?.rows_written}of ${load?.rows_read} read`), 60);
});

test("a plan says what the next load would change, and the target what it holds", async () => {
  await mart("genres_planned");
  await runToItsEnd(platform, "genres_planned");
  await platform.api("PATCH", "/pipelines/genres_planned", { source_query: "SELECT id, name || '!' AS name FROM content.genre" });
  await open("/pipelines/genres_planned?tab=plan");
  await page.getByRole("button", { name: "Plan now" }).click();
  await see(page, "The run would be published.");
  const changed = page.locator("dl > div", { hasText: "Rows changed" }).first();
  expect(await changed.textContent()).not.toBe("Rows changed0");
  const rows = page.getByRole("region", { name: "Some of the rows" });
  expect(await rows.locator("ins").first().textContent()).toMatch(/!$/);
  await page.getByRole("heading", { name: "Plans" }).waitFor();
  await open("/pipelines/genres_planned?tab=data");
  await page.getByRole("button", { name: "Profile now" }).click();
  const columns = page.getByRole("region", { name: "Columns" });
  await columns.getByText("uuid").waitFor();
  expect(await columns.getByRole("row").count()).toBe(3);
});

test("runs that are on their way are not told as missing", async () => {
  let answer = (): void => undefined;
  const asked = new Promise<void>((done) => (answer = done));
  await page.route("**/pipelines/genres_copy/runs*", async (route) => {
    await asked;
    await route.continue();
  });
  await open("/pipelines/genres_copy");
  await page.getByRole("heading", { name: "genres_copy" }).waitFor();
  await page.getByRole("status", { name: "Loading" }).first().waitFor();
  expect(await page.getByText("No runs yet").count()).toBe(0);
  answer();
  await page.getByRole("img", { name: /^Duration/ }).waitFor();
  await page.unroute("**/pipelines/genres_copy/runs*");
});

test("the whole row of a run leads to it", async () => {
  await open("/runs");
  const row = page.getByRole("row").filter({ hasText: "genres_copy" }).first();
  await row.getByRole("cell").nth(4).click();
  await page.waitForURL(/\/runs\/[0-9a-f-]{36}$/);
});

// --- home and the list ------------------------------------------------------------------------------------------

test("Home says what needs attention, what ran, what comes next and who works", async () => {
  await mart("broken", { source_query: "SELECT id, no_such_column AS name FROM content.genre" });
  await runToItsEnd(platform, "broken");
  await mart("hourly", { schedule_interval: "1h", target_table: "analytics.hourly" });
  await open("/");
  const attention = page.getByRole("list", { name: "Needs attention" });
  await attention.getByRole("link", { name: "broken" }).waitFor();
  expect(await attention.textContent()).toContain("no_such_column");
  await page.getByRole("list", { name: "Next runs" }).getByRole("link", { name: "hourly" }).waitFor();
  await see(page, /^1 alive, \d+ slots, \d+ busy$/);
  const line = page.getByRole("list", { name: "Runs of the last 24 hours" }).getByRole("listitem").filter({ hasText: "broken" });
  await line.locator("[data-status=FAILED]").click();
  await page.getByRole("region", { name: "What went wrong" }).waitFor();
});

test("Feeds says which log is read, what the source keeps for it and who follows", async () => {
  await open("/feeds");
  const line = page.getByRole("region", { name: "Feeds" }).locator("tbody tr");
  await line.getByText("Is read").waitFor();
  await line.getByText("at most").waitFor();
  await line.getByRole("link", { name: "film_votes_live" }).click();
  await page.waitForURL("**/pipelines/film_votes_live");
  await page.getByText(/follows its source, .* behind/).waitFor();
  expect(await page.getByRole("progressbar").count()).toBe(0);
});

test("a run says which check failed, and wide rows that broke it do not hide the result", async () => {
  const wide = "repeat('wide ', 60) || name";
  await mart("checked", {
    source_query: `SELECT id, ${wide} AS name FROM content.genre`,
    checks: [{ kind: "expression", name: "short_names", expression: "length(name) < 100" }],
  });
  await runToItsEnd(platform, "checked");
  const [run] = (await platform.api<{ items: { id: string }[] }>("GET", "/runs?pipeline=checked")).items;
  await open(`/runs/${run?.id}`);
  const checks = page.locator("section", { has: page.getByRole("heading", { name: "Checks", exact: true }) });
  await checks.getByText("short_names").waitFor();
  expect(await isOnScreen(checks.getByText("failed", { exact: true }))).toBe(true);
});

test("headers sort the list, and sort it the other way round", async () => {
  await open("/pipelines");
  const names = async (): Promise<string[]> => page.getByRole("row").locator("a[href^='/ui/pipelines/']").allTextContents();
  await until(async () => (await names()).length > 4, 60);
  const sorted = await names();
  expect(sorted).toEqual([...sorted].sort());
  await page.getByRole("columnheader").getByRole("button", { name: "Pipeline" }).click();
  await page.waitForURL(/sort=-name/);
  await until(async () => (await names()).join() === [...sorted].reverse().join(), 60);
  expect(await page.getByRole("columnheader", { name: "Pipeline" }).getAttribute("aria-sort")).toBe("descending");
  await page.getByRole("columnheader").getByRole("button", { name: "Status" }).click();
  await until(async () => (await names())[0] === "broken", 60);
});

test("a view is saved under a name, found again, and forgotten", async () => {
  await open("/pipelines?q=genre");
  await page.getByRole("button", { name: "Save the view" }).click();
  await page.getByRole("dialog").getByLabel("Name").fill("genres");
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await open("/pipelines");
  await page.getByRole("group", { name: "Saved views" }).getByRole("button", { name: "genres" }).click();
  await page.waitForURL(/q=genre/);
  await page.getByRole("button", { name: "Delete the view genres" }).click();
  expect(await page.getByRole("group", { name: "Saved views" }).count()).toBe(0);
});

test("chosen pipelines are labelled, disabled and enabled together, and what is refused is told", async () => {
  await open("/pipelines");
  for (const name of ["broken", "hourly"]) await page.getByLabel(`Select ${name}`).check();
  const bar = page.getByRole("toolbar", { name: "Selected pipelines" });
  await bar.getByText("2 pipelines selected").waitFor();
  const ask = async (action: string): Promise<void> => {
    await bar.getByRole("button", { name: action }).click();
  };
  await ask("Label…");
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Label", { exact: true }).fill("team");
  await dialog.getByLabel(/^Value/).fill("films");
  await dialog.getByRole("button", { name: "Label" }).click();
  await until(async () => JSON.stringify((await platform.api<{ labels: object }>("GET", "/pipelines/hourly")).labels) === '{"team":"films"}', 60);
  await page.getByRole("row").getByRole("link", { name: "team=films" }).first().click();
  await page.waitForURL(/label=team/);
  await until(async () => (await page.getByRole("row").count()) === 3, 60);
  await page.getByLabel("Select all shown").check();
  await ask("Disable");
  await dialog.getByText("broken, hourly").waitFor();
  await dialog.getByRole("button", { name: "Disable" }).click();
  await until(async () => !(await platform.api<Pipeline>("GET", "/pipelines/broken")).enabled, 60);
  await bar.waitFor({ state: "detached" });
  await page.getByLabel("Select all shown").check();
  await ask("Run");
  await dialog.getByRole("button", { name: "Run" }).click();
  await page.getByRole("dialog", { name: "2 were refused" }).getByText(/broken is disabled/).waitFor();
  await page.getByRole("button", { name: "Done" }).click();
  await ask("Enable");
  await dialog.getByRole("button", { name: "Enable" }).click();
  await until(async () => (await platform.api<Pipeline>("GET", "/pipelines/broken")).enabled, 60);
});

test("? lists the keys, g and a letter go to a page", async () => {
  await open("/");
  await page.getByRole("heading", { name: "Home" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard" }).getByText("Find a pipeline or an action").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("g");
  await page.keyboard.press("p");
  await page.waitForURL(/\/ui\/pipelines$/);
});

test("terms are explained by pointing and by the keyboard", async () => {
  await open("/pipelines/genres_copy");
  await page.getByRole("button", { name: "Guarantee" }).first().hover();
  await page.getByRole("tooltip").getByText(/^What a finished run guarantees/).waitFor();
  await page.getByRole("button", { name: "Checkpoint" }).focus();
  await page.getByRole("tooltip").getByText(/^Where the next run continues/).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("tooltip").waitFor({ state: "detached" });
});

test("one is a row, two are rows, in both languages", async () => {
  await mart("one_row", { source_query: "SELECT id, name FROM content.genre ORDER BY id LIMIT 1" });
  await open("/pipelines/one_row/edit");
  await page.getByRole("button", { name: "Preview 20 rows" }).click();
  await page.getByText("1 row", { exact: true }).waitFor();
  const russian = await openPage(browser, { locale: "ru-RU" });
  await russian.page.goto(`${platform.url}/ui/pipelines/genres_copy?tab=checks`);
  await russian.page.getByText("Что различалось до исправления").click();
  await russian.page.goto(`${platform.url}/ui/`);
  await russian.page.getByText(/^живых: 1, \d+ (место|места|мест), занято: \d+$/).waitFor();
  expect(russian.misdeeds).toEqual([]);
  await russian.page.context().close();
});

// --- on a phone -------------------------------------------------------------------------------------------------

test("on a phone the audit says what was done, the chosen tab is seen, and runs are whole", async () => {
  await page.setViewportSize(PHONE);
  await open("/audit?object=pipeline:genres_copy");
  const action = page.locator("summary").first().getByText("reconcile", { exact: true });
  await action.waitFor();
  expect(await isOnScreen(action)).toBe(true);
  await open("/pipelines/genres_copy?tab=letters");
  const tab = page.getByRole("navigation", { name: "Parts of the pipeline" }).getByRole("link", { name: "Dead letters" });
  await tab.waitFor();
  await until(() => isOnScreen(tab), 60);
  await open("/runs");
  const run = page.getByRole("list", { name: "Runs" }).getByRole("listitem").first();
  await run.getByText(/\d+ read, \d+ written/).waitFor();
  expect(await isOnScreen(run.getByText(/\d+ read, \d+ written/))).toBe(true);
  await page.setViewportSize(DESK);
});

// --- everybody --------------------------------------------------------------------------------------------------

const PAGES = ["/", "/pipelines", "/new", "/pipelines/genres_copy", "/pipelines/broken", "/pipelines/genres_copy?tab=runs", "/pipelines/genres_copy?tab=definition", "/pipelines/genres_copy?tab=versions", "/pipelines/genres_planned?tab=plan", "/pipelines/genres_planned?tab=data", "/pipelines/genres_copy?tab=checks", "/pipelines/genres_copy?tab=letters", "/pipelines/genres_copy/edit", "/graph", "/runs", "/connections", "/runners", "/dead-letters", "/audit", "/settings"];

/** In CI, what the other tests leave out: a phone, in Russian, in the dark; and the new pages as most people see them. */
const LOOKS = LONG
  ? ["en-GB", "ru-RU"].flatMap((locale) => (["light", "dark"] as const).flatMap((colorScheme) => [DESK, PHONE].map((viewport) => ({ locale, colorScheme, viewport }))))
  : [{ locale: "ru-RU", colorScheme: "dark" as const, viewport: PHONE }];

test.each(LOOKS)("every page is accessible: $locale, $colorScheme, $viewport.width px", async (look) => {
  const other = await openPage(browser, look);
  const [run] = await runsOf("broken");
  const wrong: string[] = [];
  for (const path of [...PAGES, `/runs/${run?.id}`]) {
    await other.page.goto(`${platform.url}/ui${path}`);
    await other.page.locator("h1").first().waitFor();
    if (path === "/new" || path.endsWith("/edit")) await other.page.locator(".cm-content").waitFor();
    await until(async () => (await other.page.locator("main [role=status].p-4").count()) === 0, 60);
    wrong.push(...(await violations(other.page, path)));
  }
  expect(wrong).toEqual([]);
  expect(other.misdeeds).toEqual([]);
  await other.page.context().close();
});

async function violations(where: Page, path: string): Promise<string[]> {
  await where.evaluate(axe);
  const found = await where.evaluate(async () => {
    type Found = { violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] };
    type Axe = { run: (options: object) => Promise<Found> };
    const result = await (globalThis as unknown as { axe: Axe }).axe.run({ resultTypes: ["violations"] });
    return result.violations.map((one) => `${one.id}: ${one.nodes.map((node) => `${node.html} ${node.failureSummary}`).join(" | ")}`);
  });
  return found.map((one) => `${path}: ${one}`);
}

// --- size -------------------------------------------------------------------------------------------------------

const MANY = 50_000;

/** Half a million runs are too much for every change: the browser tests beside this one have ten thousand lines. */
test.runIf(LONG)("fifty thousand pipelines of the API: the list and Home stay fluent", async () => {
  platform.sql(`
    INSERT INTO etl.etl_pipelines (name, description, source_query, target_table, target_key, schedule_interval, next_run_at, labels)
    SELECT 'many_' || to_char(n, 'FM00000'), 'One of very many.', 'SELECT id, name FROM content.genre', 'analytics.many_' || n, '{id}',
           '1h', now() + make_interval(hours => 20, secs => n), jsonb_build_object('team', 't' || n % 7)
    FROM generate_series(1, ${MANY}) AS n;
    INSERT INTO etl.etl_runs (pipeline_id, trigger, status, started_at, finished_at, rows_read, rows_written)
    SELECT p.id, 'schedule', 'SUCCESS', now() - make_interval(hours => n, secs => length(p.name)), now() - make_interval(hours => n), 100, 100
    FROM etl.etl_pipelines AS p, generate_series(1, 10) AS n WHERE p.name LIKE 'many_%';
    ANALYZE etl.etl_pipelines, etl.etl_runs`);
  const other = await openPage(browser);
  const seconds = (since: number): string => `${((Date.now() - since) / 1000).toFixed(1)} s`;
  let since = Date.now();
  await other.page.goto(`${platform.url}/ui/`);
  await other.page.getByRole("list", { name: "Runs of the last 24 hours" }).waitFor();
  console.log(`Home of ${MANY} pipelines: ${seconds(since)}`);
  since = Date.now();
  await other.page.goto(`${platform.url}/ui/pipelines`);
  await other.page.getByText("film_dim_full").waitFor();
  console.log(`the first of ${MANY} lines: ${seconds(since)}`);
  await until(async () => ((await other.page.getByRole("button", { name: /^All/ }).textContent()) ?? "").includes("50,0"), 280);
  console.log(`all ${MANY} lines: ${seconds(since)}`);
  const scrolled = await longestTask(other.page, () => other.page.evaluate(() => document.querySelector("[role=table]")?.scrollBy(0, 5_000)), 30);
  await other.page.evaluate(() => document.querySelector("[role=table]")?.scrollBy(0, 1e9));
  await other.page.getByRole("link", { name: "many_50000" }).waitFor();
  expect(await other.page.getByRole("row").count()).toBeLessThan(80);
  const filter = other.page.getByLabel("Filter by name, target or status");
  await filter.focus();
  const typed = await longestTask(other.page, (turn) => other.page.keyboard.press("many_4999".charAt(turn)), 9);
  await other.page.getByRole("link", { name: "many_49990" }).waitFor();
  console.log(`longest task while scrolling ${Math.round(scrolled)} ms, while typing ${Math.round(typed)} ms`);
  // Of the page's own processor time: what else the machine does is not its fault.
  expect(scrolled).toBeLessThan(300);
  expect(typed).toBeLessThan(600);
  await other.page.context().close();
}, 600_000);

/** In milliseconds: no task counts for more than the processor time that the page used meanwhile. */
async function longestTask(where: Page, act: (turn: number) => Promise<unknown>, turns: number): Promise<number> {
  const session = await where.context().newCDPSession(where);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const used = async (): Promise<number> => {
    const { metrics } = await session.send("Performance.getMetrics");
    return 1000 * (metrics.find((metric) => metric.name === "TaskDuration")?.value ?? 0);
  };
  await where.evaluate(() => {
    const kept = globalThis as unknown as { longTasks: number[] };
    kept.longTasks = [];
    new PerformanceObserver((list) => kept.longTasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
  });
  let longest = 0;
  for (let turn = 0; turn < turns; turn++) {
    const before = await used();
    await act(turn);
    await where.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))));
    const seen = await where.evaluate(() => Math.max(0, ...(globalThis as unknown as { longTasks: number[] }).longTasks.splice(0)));
    longest = Math.max(longest, Math.min(seen, (await used()) - before));
  }
  return longest;
}

test("nothing went wrong in the browser's console, and no other host was asked", () => {
  // The browser itself reports every refusal, and some were asked for: a wrong draft and schedule, runs of what is disabled.
  const refusals = /status of 422 .*\/(pipelines|schedule\?interval=whenever)$|status of 409 .*\/run$/;
  expect(misdeeds.filter((one) => !refusals.test(one))).toEqual([]);
});
