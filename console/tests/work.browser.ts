/** What people do with a pipeline beyond its first life: write its query, look for runs, roll back, look at what was refused, be told. */
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type { Run } from "../src/api/types";
import { launch, openPage, runToItsEnd, see, startPlatform, until, type Platform } from "./platform";

let platform: Platform;
let browser: Browser;
let page: Page;
let misdeeds: string[];
let receiver: Server;
const received: { type: string }[] = [];
const began = Date.now();

beforeAll(async () => {
  receiver = createServer((request, response) => {
    let body = "";
    request.on("data", (part: Buffer) => (body += part.toString()));
    request.on("end", () => {
      received.push(JSON.parse(body) as { type: string });
      response.end();
    });
  }).listen(0, "127.0.0.1");
  await new Promise((listening) => receiver.once("listening", listening));
  const hook = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hook`;
  [platform, browser] = await Promise.all([startPlatform({ VITRINA_WEBHOOK_URL: hook }), launch()]);
  ({ page, misdeeds } = await openPage(browser));
});

afterEach(async ({ task }) => {
  if (task.result?.state === "fail") await page.screenshot({ path: join(tmpdir(), "vitrina-work-failure.png") });
});

afterAll(async () => {
  await browser?.close();
  await platform?.stop();
  receiver?.close();
  console.log(`the work of people took ${Math.round((Date.now() - began) / 1000)} s`);
});

const open = (path: string): Promise<unknown> => page.goto(`${platform.url}/ui${path}`);

async function writeQuery(text: string): Promise<void> {
  await page.locator(".cm-content").click();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(text);
}

const query = async (): Promise<string> => (await page.locator(".cm-line").allTextContents()).join("\n");

// --- the editor -------------------------------------------------------------------------------------------------

test("a missing column is no valid query: it is said and underlined where it stands", async () => {
  await open("/new");
  await page.locator(".cm-content").waitFor();
  await page.getByLabel("Name", { exact: true }).fill("stars");
  await page.getByLabel("Target", { exact: true }).fill("analytics.stars");
  await page.getByLabel("Key columns", { exact: true }).first().fill("id");
  await writeQuery("SELECT id,\n  no_such_column\nFROM ugc.ratings");
  await page.locator(".cm-lintRange-error", { hasText: /^no_such_column$/ }).waitFor();
  expect(await page.locator(".cm-lintRange-error").count()).toBe(1);
  await page.getByLabel("Source query").locator("li").getByText(/no_such_column/).waitFor();
  await see(page, "1 to correct");
  expect(await page.getByText("Valid", { exact: true }).count()).toBe(0);
});

test("a query that a runner has tried is valid, and its plan is shown", async () => {
  await writeQuery("SELECT r.id, r.rating FROM ugc.ratings r");
  await page.getByText("Valid", { exact: true }).waitFor();
  expect(await page.locator(".cm-lintRange-error").count()).toBe(0);
  await page.getByRole("tab", { name: "Explain" }).click();
  const explained = page.getByRole("region", { name: "Explain" });
  await explained.getByText("Seq Scan").waitFor();
  expect(await explained.textContent()).toContain("ugc.ratings");
  expect(await explained.textContent()).toContain("pushdown: source and target are in one database");
  await page.getByRole("tab", { name: "Preview" }).click();
});

test("columns are completed behind an alias", async () => {
  await writeQuery("SELECT r. FROM ugc.ratings AS r");
  await page.keyboard.press("Home");
  for (let step = 0; step < "SELECT r.".length; step++) await page.keyboard.press("ArrowRight");
  const offered = page.locator(".cm-tooltip-autocomplete li");
  await until(async () => {
    await page.keyboard.press("Escape");
    await page.keyboard.press("Control+Space");
    await page.waitForTimeout(150);
    return (await offered.allTextContents()).some((text) => text.startsWith("rating"));
  }, 60);
  await page.keyboard.press("Escape");
});

test("a query is put into its standard form, and earlier previews are kept with their queries", async () => {
  await writeQuery("select id, rating from ugc.ratings where rating is not null and id is not null");
  await page.getByRole("button", { name: "Format" }).click();
  expect(await query()).toBe("SELECT\n  id,\n  rating\nFROM ugc.ratings\nWHERE rating IS NOT NULL\n  AND id IS NOT NULL");
  await page.getByText("Valid", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Preview 20 rows" }).click();
  await page.getByRole("region", { name: "Preview" }).waitFor();
  await writeQuery("SELECT id FROM ugc.ratings LIMIT 3");
  await page.getByText("Valid", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Preview 20 rows" }).click();
  const earlier = page.getByRole("region", { name: "Earlier previews" });
  await earlier.getByRole("listitem").nth(1).waitFor();
  await earlier.getByRole("listitem").nth(1).getByRole("button", { name: "Use this query" }).click();
  expect(await query()).toContain("AND id IS NOT NULL");
});

// --- labels and runs --------------------------------------------------------------------------------------------

test("labels are written with a pipeline and shown with it", async () => {
  await page.getByLabel("Labels", { exact: true }).fill("team=core, tier=1");
  await page.getByText("Valid", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Create", exact: true }).click();
  await page.getByRole("heading", { name: "stars" }).waitFor();
  await page.getByText("team=core", { exact: true }).first().waitFor();
  expect((await platform.api<{ labels: object }>("GET", "/pipelines/stars")).labels).toEqual({ team: "core", tier: "1" });
});

test("runs are found by status, pipeline, trigger, time and label, and the address keeps it", async () => {
  await runToItsEnd(platform, "stars");
  await open("/runs");
  const rows = page.getByRole("region", { name: "Runs" }).locator("tbody tr");
  await rows.first().waitFor();
  const all = await rows.count();
  expect(all).toBeGreaterThan(1);
  const filters = page.getByRole("search", { name: "Filters" });
  await filters.getByLabel("Label").fill("team=core");
  await filters.getByLabel("Label").press("Enter");
  await until(async () => (await rows.count()) === 1 && ((await rows.first().textContent()) ?? "").includes("stars"), 60);
  expect(await rows.first().textContent()).toContain("team=core");
  await page.waitForURL(/label=/);
  await page.reload();
  await until(async () => (await rows.count()) === 1, 60);
  await filters.getByLabel("Status").selectOption("FAILED");
  await see(page, "Nothing matches these filters");
  await filters.getByLabel("Status").selectOption("SUCCESS");
  await filters.getByLabel("Trigger").selectOption("manual");
  await filters.getByLabel("Time").selectOption("1h");
  await until(async () => (await rows.count()) === 1, 60);
  await filters.getByRole("button", { name: "Show all" }).click();
  await filters.getByLabel("Pipeline").fill("film_dim_full");
  await page.waitForURL(/pipeline=film_dim_full/);
  await until(async () => (await rows.allTextContents()).every((text) => text.includes("film_dim_full")), 60);
});

// --- going back -------------------------------------------------------------------------------------------------

test("rolling back shows what would change and whether it can run, and asks", async () => {
  await platform.api("PATCH", "/pipelines/stars", { source_query: "SELECT id, rating, film_id FROM ugc.ratings" });
  await open("/pipelines/stars?tab=versions");
  await page.getByRole("button", { name: "Roll back to version 1" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("It can run: a runner has checked it.").waitFor();
  await dialog.locator("ins, pre").first().waitFor();
  expect(await dialog.textContent()).toContain("source_query");
  await dialog.getByRole("button", { name: "Cancel" }).click();
  expect((await platform.api<{ version: number }>("GET", "/pipelines/stars")).version).toBe(2);
});

test("an older version that cannot run any more says so before it is put back", async () => {
  await platform.api("PATCH", "/pipelines/stars", { source_query: "SELECT id, gone FROM ugc.ratings" });
  await platform.api("PATCH", "/pipelines/stars", { source_query: "SELECT id, rating FROM ugc.ratings" });
  await page.reload();
  await page.getByRole("button", { name: "Roll back to version 3" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("It cannot run at present:").waitFor();
  expect(await dialog.textContent()).toContain("gone");
  await dialog.getByRole("button", { name: "Roll back anyway" }).click();
  await see(page, /Version 3 is current again/);
});

// --- what went wrong --------------------------------------------------------------------------------------------

test("advice about a failure says what to do and where", async () => {
  await runToItsEnd(platform, "stars");
  await open("/pipelines/stars");
  const card = page.getByRole("region", { name: "What went wrong" });
  await card.getByText("Edit the pipeline: the query is marked at line 1, column 12. Correct it there, then run again.").waitFor();
});

test("the same in Russian: errors, advice, notes and reasons, not the frame alone", async () => {
  await open("/settings");
  await page.getByLabel("Language").selectOption("ru");
  await page.getByRole("heading", { name: "Настройки" }).waitFor();
  await open("/pipelines/stars");
  const card = page.getByRole("region", { name: "Что случилось" });
  await card.getByText("Измените пайплайн: запрос отмечен в строке 1, столбце 12. Исправьте его там, затем запустите снова.").waitFor();
  await card.getByText(/запрос отвергнут, строка 1, столбец 12/).waitFor();
  await open("/pipelines/stars?tab=versions");
  await see(page, /изменено: source_query/);
  await see(page, /откат к версии 3/);
  await open("/pipelines/stars/edit");
  await page.locator(".cm-content").waitFor();
  await writeQuery("DELETE FROM ugc.ratings");
  await see(page, /[Сс]трока 1, столбец 1: запрос начинается с SELECT, WITH или VALUES, а не с DELETE/);
  await writeQuery("SELECT id, rating FROM ugc.ratings");
  await page.getByText("Ошибок нет", { exact: true }).waitFor();
  await page.getByRole("tab", { name: "План запроса" }).click();
  await see(page, "pushdown: источник и приёмник в одной базе данных, и строк не касается ни один шаг");
  await open("/settings");
  await page.getByLabel("Язык").selectOption("en");
  await page.getByRole("heading", { name: "Settings" }).waitFor();
});

const PICKY = {
  name: "choosy",
  target_table: "analytics.choosy",
  target_key: ["id"],
  tasks: [
    { order_index: 1, task_type: "SQL", body: "SELECT g AS id, CASE WHEN g > 2 THEN 'no number ' || g ELSE '7' END AS code FROM generate_series(1, 300) AS g" },
    { order_index: 2, task_type: "PYTHON", body: "cast_columns", params: { types: { code: "integer" }, on_error: "dead_letter", max_dead_letters: 1000 } },
  ],
};

test("hundreds of letters with one cause are one line", async () => {
  await platform.api("POST", "/pipelines", PICKY);
  await runToItsEnd(platform, "choosy");
  await open("/dead-letters?pipeline=choosy");
  const groups = page.getByRole("list", { name: "Dead letters by error" }).locator("> li");
  await groups.first().waitFor();
  expect(await groups.count()).toBe(1);
  expect(await groups.first().textContent()).toContain("298");
  await groups.first().locator("summary").first().click();
  const letters = page.getByRole("list", { name: "Dead letters with this error" }).locator("> li");
  await letters.first().waitFor();
  expect(await letters.count()).toBe(50);
  await letters.first().locator("summary").click();
  expect(await letters.first().textContent()).toContain('"code": "no number');
  await platform.api("PATCH", "/pipelines/choosy", { tasks: PICKY.tasks.map((task) => ({ ...task, body: task.body.replace("g > 2", "g > 200") })) });
  await page.getByRole("button", { name: "Replay these 298" }).click();
  await see(page, "198 accepted, 100 rejected again, 0 no longer in the source; 100 remain.", 120);
  await until(async () => ((await groups.first().textContent()) ?? "").includes("100"), 60);
});

// --- being told -------------------------------------------------------------------------------------------------

test("a test of the notifications arrives and says so", async () => {
  await open("/settings");
  const receivers = page.getByRole("list", { name: "Receivers" });
  await receivers.getByText("VITRINA_SLACK_WEBHOOK_URL").waitFor();
  await page.getByRole("button", { name: "Send a test" }).click();
  await receivers.getByText("The test arrived.").waitFor();
  expect(received.map((message) => message.type)).toContain("test");
  await see(page, "It fails");
});

test("nothing went wrong in the browser's console", async () => {
  expect(misdeeds).toEqual([]);
  const latest = await platform.api<{ items: Run[] }>("GET", "/pipelines/stars/runs?limit=1");
  expect(latest.items[0]?.status).toBe("FAILED");
});
