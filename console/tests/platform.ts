/** A whole platform for a test: embedded Postgres with the cinema, API, runner, and a browser in front of it. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium, type Browser, type BrowserContextOptions, type ConsoleMessage, type Page } from "playwright-core";

const root = resolve(import.meta.dirname, "../..");
const program = process.env["VITRINA"] ?? join(root, ".venv/bin/vitrina");

export interface Platform {
  url: string;
  /** The same installation, but only with a token. */
  guardedUrl: string;
  api: <Answer>(method: string, path: string, body?: unknown) => Promise<Answer>;
  /** Statements on its metastore, past the API; in CONSOLE_HOME where it was up already. */
  sql: (statements: string) => void;
  stop: () => Promise<void>;
}

/** A new one; or, to try things quickly, the one that is up at CONSOLE_PLATFORM ("url url-with-tokens"). */
export async function startPlatform(more: NodeJS.ProcessEnv = {}): Promise<Platform> {
  const [running, guarded] = (process.env["CONSOLE_PLATFORM"] ?? "").split(" ");
  if (running && guarded) return { url: running, guardedUrl: guarded, api: caller(running), sql: psql(process.env["CONSOLE_HOME"] ?? ".", cleanEnvironment()), stop: () => Promise.resolve() };
  const home = mkdtempSync(join(tmpdir(), "vitrina-console-"));
  const environment = { ...cleanEnvironment(), ...more };
  execFileSync(program, ["demo", "--no-search"], { cwd: home, env: environment, stdio: "pipe" });
  const [port, guardedPort] = [await freePort(), await freePort()];
  const url = `http://127.0.0.1:${port}`;
  const guardedUrl = `http://127.0.0.1:${guardedPort}`;
  const children = [
    spawn(program, ["dev", "--port", String(port)], { cwd: home, env: environment, stdio: "ignore" }),
    spawn(program, ["api", "--port", String(guardedPort)], { cwd: home, env: { ...environment, VITRINA_AUTH: "token" }, stdio: "ignore" }),
  ];
  await until(async () => (await fetch(`${url}/readyz`)).ok && (await fetch(`${guardedUrl}/readyz`)).ok, 180);
  return { url, guardedUrl, api: caller(url), sql: psql(home, environment), stop: () => stop(children, home) };
}

/** Settings of the person who runs the tests must not reach the platform under test. */
function cleanEnvironment(): NodeJS.ProcessEnv {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("VITRINA_") && !name.startsWith("PG"));
  return { ...Object.fromEntries(kept), NODE_ENV: undefined };
}

async function stop(children: ChildProcess[], home: string): Promise<void> {
  await Promise.all(
    children.map(
      (child) =>
        new Promise<void>((done) => {
          if (child.exitCode !== null || child.signalCode !== null) return done();
          child.once("exit", () => done());
          child.kill("SIGTERM");
        }),
    ),
  );
  rmSync(home, { recursive: true, force: true });
}

function psql(home: string, environment: NodeJS.ProcessEnv): Platform["sql"] {
  return (statements) => void execFileSync(program, ["psql", "-v", "ON_ERROR_STOP=1", "-c", statements], { cwd: home, env: environment, stdio: "pipe" });
}

function caller(url: string): Platform["api"] {
  return async <Answer>(method: string, path: string, body?: unknown): Promise<Answer> => {
    const response = await fetch(`${url}/api/v1${path}`, {
      method,
      headers: { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return (response.status === 204 ? undefined : await response.json()) as Answer;
  };
}

export async function until(condition: () => Promise<boolean>, seconds: number): Promise<void> {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    if (await condition().catch(() => false)) return;
    if (Date.now() > deadline) throw new Error(`waited ${seconds} s in vain for ${condition.toString()}`);
    await new Promise((done) => setTimeout(done, 200));
  }
}

function freePort(): Promise<number> {
  return new Promise((found) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => found(typeof address === "object" && address ? address.port : 0));
    });
  });
}

/** Asks for a run and waits for its end. */
export async function runToItsEnd({ api }: Pick<Platform, "api">, name: string): Promise<void> {
  await api("POST", `/pipelines/${name}/run`, { trigger: "manual" });
  await until(async () => !["RUN_REQUESTED", "RUNNING"].includes((await api<{ status: string }>("GET", `/pipelines/${name}`)).status), 120);
}

/** Fills the mart by another query than its own, as somebody might by hand. */
export async function makeDrift(platform: Pick<Platform, "api">, name: string, query: string): Promise<void> {
  const { source_query } = await platform.api<{ source_query: string }>("GET", `/pipelines/${name}`);
  await platform.api("PATCH", `/pipelines/${name}`, { source_query: query });
  await runToItsEnd(platform, name);
  await platform.api("PATCH", `/pipelines/${name}`, { source_query });
}

// --- the browser ------------------------------------------------------------------------------------------------

export function launch(): Promise<Browser> {
  const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
  if (!executablePath) throw new Error("no Chromium found: run scripts/install-system-packages chromium");
  const quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"];
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", ...quiet] });
}

/** A page that writes down whatever must not happen: errors in its console, requests to elsewhere. */
export async function openPage(browser: Browser, options: BrowserContextOptions = {}): Promise<{ page: Page; misdeeds: string[] }> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, locale: "en-GB", reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000); // only bounds a hang: the machine may have other things to do
  const misdeeds: string[] = [];
  page.on("console", (message) => {
    if (isExpected(message)) return;
    if (message.type() === "error" || message.type() === "warning") misdeeds.push(`${message.type()}: ${message.text()} ${message.location().url}`);
  });
  page.on("pageerror", (error) => misdeeds.push(`exception: ${error.message}`));
  page.on("request", (request) => {
    if (!/^(http:\/\/127\.0\.0\.1[:/]|data:|blob:)/.test(request.url())) misdeeds.push(`request to ${request.url()}`);
  });
  page.on("dialog", (dialog) => void dialog.accept());
  return { page, misdeeds };
}

/** The browser itself reports answers that are no success: a conflict, and a comparison or a profile that nobody asked for yet. */
function isExpected(message: ConsoleMessage): boolean {
  return /status of 412/.test(message.text()) || (/status of 404/.test(message.text()) && /\/(profile|reconcile)$/.test(message.location().url));
}

export const see = async (page: Page, text: string | RegExp, seconds = 60): Promise<void> =>
  void (await page.getByText(text).first().waitFor({ timeout: seconds * 1000 }));
