/** Draws every page of the console for the documentation, in dark and in light, with a cinema at work behind them. */
import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Page } from "playwright-core";
import { expect, test } from "vitest";
import type { Run } from "../src/api/types";
import { launch, makeDrift, openPage, runToItsEnd, startPlatform, until, type Platform } from "./platform";

const images = resolve(import.meta.dirname, "../../docs/images");

test("screenshots", async () => {
  const [platform, browser] = await Promise.all([startPlatform(), launch()]);
  try {
    const run = await furnish(platform);
    mkdirSync(images, { recursive: true });
    const pages: [string, string][] = [
      ["home", "/"],
      ["pipelines", "/pipelines"],
      ["pipeline", "/pipelines/film_dim_full"],
      ["failure", "/pipelines/weekly_top_films"],
      ["checks", "/pipelines/genres?tab=checks"],
      ["plan", "/pipelines/genres?tab=plan"],
      ["data", "/pipelines/film_dim_full?tab=data"],
      ["versions", "/pipelines/film_dim_full?tab=versions"],
      ["definition", "/pipelines/film_dim_full?tab=definition"],
      ["edit", "/pipelines/film_codes/edit"],
      ["new", "/new"],
      ["run", `/runs/${run.id}`],
      ["graph", "/graph"],
      ["runs", "/runs"],
      ["feeds", "/feeds"],
      ["live", "/pipelines/film_votes_live"],
      ["runners", "/runners"],
      ["dead-letters", "/dead-letters"],
      ["audit", "/audit"],
      ["settings", "/settings"],
    ];
    for (const theme of ["light", "dark"] as const) {
      const { page, misdeeds } = await openPage(browser, { colorScheme: theme, viewport: { width: 1280, height: 820 } });
      for (const [name, path] of pages) {
        await page.goto(`${platform.url}/ui${path}`);
        await page.locator("h1").first().waitFor();
        await ACTS[name]?.(page);
        await page.waitForTimeout(900);
        await page.screenshot({ path: join(images, `console-${name}-${theme}.png`) });
        await page.setViewportSize({ width: 1280, height: 820 });
      }
      await page.keyboard.press("Control+k");
      await page.waitForTimeout(400);
      await page.screenshot({ path: join(images, `console-palette-${theme}.png`) });
      expect(misdeeds).toEqual([]);
      await page.context().close();
    }
    const phone = await openPage(browser, { viewport: { width: 390, height: 780 } });
    await phone.page.goto(`${platform.url}/ui/`);
    await phone.page.getByText("film_dim_full").first().waitFor();
    await phone.page.screenshot({ path: join(images, "console-phone.png") });
    for (const name of ["pipelines", "runs"]) {
      await phone.page.goto(`${platform.url}/ui/${name}`);
      await phone.page.getByText("film_dim_full").first().waitFor();
      await phone.page.screenshot({ path: join(images, `console-phone-${name}.png`) });
    }
    const russian = await openPage(browser, { locale: "ru-RU", viewport: { width: 1280, height: 820 } });
    await russian.page.goto(`${platform.url}/ui/pipelines/film_dim_full`);
    await russian.page.locator("h1").waitFor();
    await russian.page.waitForTimeout(900);
    await russian.page.screenshot({ path: join(images, "console-russian.png") });
  } finally {
    await browser.close();
    await platform.stop();
  }
}, 1_200_000);

/** What somebody has done on a page before it is drawn. */
const ACTS: Record<string, (page: Page) => Promise<unknown>> = {
  edit: async (page) => {
    await page.setViewportSize({ width: 1280, height: 1240 });
    await page.getByRole("button", { name: /^Preview/ }).click();
    await page.locator("[role=region] td").first().waitFor({ timeout: 40_000 });
  },
  new: async (page) => {
    await page.getByLabel("Queries may read").waitFor();
    await page.locator(".cm-content").click();
    await page.keyboard.press("Control+a");
    await page.keyboard.insertText("SELECT id, title, rat FROM content.film_work");
    for (let step = 0; step < " FROM content.film_work".length; step++) await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("Control+Space");
  },
  plan: async (page) => {
    await page.getByRole("button", { name: "Plan now" }).click();
    await page.getByRole("region", { name: "Some of the rows" }).waitFor({ timeout: 40_000 });
  },
  data: (page) => page.locator("main td").first().waitFor({ timeout: 40_000 }),
  "dead-letters": (page) => page.locator("main summary").first().click(),
};

/** A few marts in the states that people meet: fresh, paused, failed, disabled, on schedule. */
export async function furnish({ api, sql }: Platform): Promise<Run> {
  const mart = (name: string, fields: Record<string, unknown>): Promise<unknown> =>
    api("POST", "/pipelines", { name, target_table: `analytics.${name}`, target_key: ["id"], ...fields });
  const run = (name: string): Promise<void> => runToItsEnd({ api }, name);
  await mart("ratings", {
    description: "Every rating, as it changes.",
    source_query: "SELECT\n  id,\n  film_id,\n  user_id,\n  rating,\n  modified\nFROM ugc.ratings",
    mode: "incremental",
    incremental_key: "modified",
    incremental_id_key: "id",
    schedule_interval: "15m",
  });
  await mart("weekly_top_films", {
    description: "The best of the week, for the front page.",
    source_query: "SELECT\n  f.id,\n  f.title,\n  f.rating\nFROM content.film_work f\nWHERE f.rating >= 8",
    schedule_interval: "0 3 * * 1 Europe/Moscow",
  });
  await mart("people", { description: "People for the search box.", source_query: "SELECT id, full_name FROM content.person", enabled: false });
  await mart("genres", { description: "Genres for the menu.", source_query: "SELECT id, name FROM content.genre" });
  await api("POST", "/pipelines", STEPS);
  await api("PATCH", "/pipelines/film_dim_full", { schedule_interval: "1h", batch_size: 2000 });
  await api("PATCH", "/pipelines/daily_views", { schedule_interval: "15 * * * *" });
  for (let round = 0; round < 5; round++) await Promise.all(["film_dim_full", "daily_views", "ratings", "user_activity"].map(run));
  await run("weekly_top_films");
  await api("PATCH", "/pipelines/weekly_top_films", { source_query: "SELECT\n  f.id,\n  f.title,\n  f.score\nFROM content.film_work f\nWHERE f.rating >= 8" });
  await run("weekly_top_films");
  await api("PATCH", "/pipelines/film_dim_full", { batch_size: 5000, description: "Films with their genres, actors and directors, one row each." });
  await api("POST", "/pipelines/user_activity/pause");
  await run("film_codes");
  await run("genres");
  await makeDrift({ api }, "genres", "SELECT id, CASE WHEN name < 'C' THEN upper(name) ELSE name END AS name FROM content.genre WHERE name <> 'Drama'");
  const { id } = await api<{ id: string }>("POST", "/pipelines/genres/reconcile");
  await until(async () => (await api<{ finished_at: string | null }>("GET", `/requests/${id}`)).finished_at !== null, 60);
  const { id: profile } = await api<{ id: string }>("POST", "/pipelines/film_dim_full/profile");
  await until(async () => (await api<{ finished_at: string | null }>("GET", `/requests/${profile}`)).finished_at !== null, 60);
  await api("PATCH", "/pipelines/film_dim_full", { labels: { team: "films" } });
  await api("PATCH", "/pipelines/ratings", { labels: { team: "viewers", tier: "1" } });
  sql(OVER_THE_DAY);
  const { items } = await api<{ items: Run[] }>("GET", "/pipelines/film_dim_full/runs?limit=100");
  return (items.find((run) => run.rows_written > 0) ?? items[0]) as Run;
}

/** The runs of these minutes as if they had been some hours apart, so that a day can be seen. */
const OVER_THE_DAY = `
  WITH older AS (
    SELECT id, make_interval(mins => 250 * (row_number() OVER (PARTITION BY pipeline_id ORDER BY started_at DESC)::int - 1)) AS by
    FROM etl.etl_runs WHERE finished_at IS NOT NULL
  ), logs AS (UPDATE etl.etl_run_logs l SET at = l.at - older.by FROM older WHERE older.id = l.run_id)
  UPDATE etl.etl_runs r SET started_at = r.started_at - older.by, finished_at = r.finished_at - older.by FROM older WHERE older.id = r.id`;

/** Films whose code is no number stay behind as dead letters. */
const STEPS = {
  name: "film_codes",
  description: "Codes of films for the box office.",
  target_table: "analytics.film_codes",
  target_key: ["id"],
  tasks: [
    {
      order_index: 1,
      task_type: "SQL",
      body: "SELECT\n  id,\n  title,\n  type,\n  CASE WHEN title LIKE 'Star Trek V%' THEN 'STAR-' || length(title)\n       ELSE (1000 + length(title))::text END AS code\nFROM content.film_work\nORDER BY title",
    },
    { order_index: 2, task_type: "PYTHON", body: "normalise_text", params: { columns: ["title"], case: "upper" } },
    { order_index: 3, task_type: "PYTHON", body: "cast_columns", params: { types: { code: "integer" }, on_error: "dead_letter" } },
  ],
};
