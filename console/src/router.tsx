/** Which address shows which page. Pages beyond the first are loaded when they are opened. */
import { Link, createRootRoute, createRoute, createRouter, lazyRouteComponent, redirect } from "@tanstack/react-router";
import { HomePage } from "./pages/home";
import type { PipelinesSearch } from "./pages/pipelines-search";
import type { GraphSearch } from "./pages/graph";
import type { RunsSearch } from "./pages/runs";
import { Shell } from "./shell";
import { Empty, PageHead } from "./ui/basics";
import { t } from "./words/language";

const root = createRootRoute({
  component: Shell,
  notFoundComponent: () => (
    <>
      <PageHead title={t("There is no such page")} />
      <Empty icon="search" title={location.pathname}>
        <Link to="/pipelines" className="text-accent underline">
          {t("All pipelines")}
        </Link>
      </Empty>
    </>
  ),
});

const text = (value: unknown): string | undefined => (typeof value === "string" && value !== "" ? value : undefined);

const listSearch = (search: Record<string, unknown>): PipelinesSearch => ({
  q: text(search["q"]),
  show: text(search["show"]) as PipelinesSearch["show"],
  sort: text(search["sort"]) as PipelinesSearch["sort"],
  label: text(search["label"]),
});

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  component: HomePage,
  validateSearch: listSearch,
  // The list of pipelines stood here once, and people keep addresses.
  beforeLoad: ({ search }) => {
    if (search.q || search.show || search.sort) throw redirect({ to: "/pipelines", search });
  },
});
const pipelines = createRoute({
  getParentRoute: () => root,
  path: "/pipelines",
  component: lazyRouteComponent(() => import("./pages/pipelines"), "PipelinesPage"),
  validateSearch: listSearch,
});
const pipeline = createRoute({
  getParentRoute: () => root,
  path: "/pipelines/$name",
  component: lazyRouteComponent(() => import("./pages/pipeline"), "PipelinePage"),
  validateSearch: (search): { tab?: string } => ({ tab: text(search["tab"]) }),
});
const edit = createRoute({
  getParentRoute: () => root,
  path: "/pipelines/$name/edit",
  component: lazyRouteComponent(() => import("./pages/edit"), "EditPage"),
});
const create = createRoute({
  getParentRoute: () => root,
  path: "/new",
  component: lazyRouteComponent(() => import("./pages/edit"), "CreatePage"),
});
const runs = createRoute({
  getParentRoute: () => root,
  path: "/runs",
  component: lazyRouteComponent(() => import("./pages/runs"), "RunsPage"),
  validateSearch: (search): RunsSearch => ({
    status: text(search["status"]) as RunsSearch["status"],
    trigger: text(search["trigger"]),
    pipeline: text(search["pipeline"]),
    label: text(search["label"]),
    within: text(search["within"]) as RunsSearch["within"],
  }),
});
const run = createRoute({
  getParentRoute: () => root,
  path: "/runs/$id",
  component: lazyRouteComponent(() => import("./pages/run"), "RunPage"),
});
const graph = createRoute({
  getParentRoute: () => root,
  path: "/graph",
  component: lazyRouteComponent(() => import("./pages/graph"), "GraphPage"),
  validateSearch: (search): GraphSearch => ({ name: text(search["name"]) }),
});
const runners = createRoute({
  getParentRoute: () => root,
  path: "/runners",
  component: lazyRouteComponent(() => import("./pages/runners"), "RunnersPage"),
});
const feeds = createRoute({
  getParentRoute: () => root,
  path: "/feeds",
  component: lazyRouteComponent(() => import("./pages/feeds"), "FeedsPage"),
});
const connections = createRoute({
  getParentRoute: () => root,
  path: "/connections",
  component: lazyRouteComponent(() => import("./pages/connections"), "ConnectionsPage"),
});
const letters = createRoute({
  getParentRoute: () => root,
  path: "/dead-letters",
  component: lazyRouteComponent(() => import("./pages/letters"), "LettersPage"),
  validateSearch: (search): { pipeline?: string } => ({ pipeline: text(search["pipeline"]) }),
});
const audit = createRoute({
  getParentRoute: () => root,
  path: "/audit",
  component: lazyRouteComponent(() => import("./pages/audit"), "AuditPage"),
  validateSearch: (search): { who?: string; object?: string; action?: string } => ({
    who: text(search["who"]),
    object: text(search["object"]),
    action: text(search["action"]),
  }),
});
const settings = createRoute({
  getParentRoute: () => root,
  path: "/settings",
  component: lazyRouteComponent(() => import("./pages/settings"), "SettingsPage"),
});

export const router = createRouter({
  routeTree: root.addChildren([home, pipelines, pipeline, edit, create, graph, runs, run, connections, feeds, runners, letters, audit, settings]),
  basepath: "/ui",
  defaultPreload: "intent",
  scrollRestoration: false,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
