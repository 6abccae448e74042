/** What the pages read: one hook a question, refreshed by events and, while those are away, by asking often. */
import { QueryClient, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { ApiError, get, post } from "./client";
import { useConnection } from "./connection";
import { merged } from "./lines";
import type { Schema } from "../ui/schema";
import { t } from "../words/language";
import type {
  Alert,
  AuditEntry,
  Connection,
  Connector,
  DeadLetter,
  DeadLetterGroup,
  Feed,
  Graph,
  Home,
  LogLine,
  Me,
  Notifications,
  Page,
  Pipeline,
  PipelineOverview,
  PipelineStatus,
  Reconciliation,
  Role,
  Run,
  Runner,
  RunnerRequest,
  Table,
  Token,
  Version,
} from "./types";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      retry: (count, error) => count < 2 && !isRefusal(error),
      refetchOnWindowFocus: true,
    },
  },
});

/** Whether the same request would be refused again; 429 asks to come later. */
function isRefusal(error: unknown): boolean {
  return error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429;
}

const CALM_MS = 20_000;
const BUSY_MS = 4_000;

/** Events bring news at once; without them the page asks every few seconds. */
function useInterval(): number {
  return useConnection() === "live" ? CALM_MS : BUSY_MS;
}

export function useMe() {
  return useQuery({ queryKey: ["me"], queryFn: ({ signal }) => get<Me>("/me", signal), staleTime: 60_000 });
}

const RANKS: Role[] = ["viewer", "operator", "admin"];

/** Whether the caller may do what needs `role`; controls that it may not use are not shown. */
export function useMay(role: Role): boolean {
  const { data } = useMe();
  return data !== undefined && RANKS.indexOf(data.role) >= RANKS.indexOf(role);
}

export function useHome() {
  return useQuery({ queryKey: ["home"], queryFn: ({ signal }) => get<Home>("/home", signal), refetchInterval: useInterval() });
}

/** Events keep the lines up to date, so all of them are asked for anew now and then only. */
const RARELY_MS = 600_000;
/** So many lines take a while, also when events are away. */
const MANY = 2000;

export function useOverview() {
  const isLive = useConnection() === "live";
  const many = (queryClient.getQueryData<PipelineOverview[]>(["overview"])?.length ?? 0) > MANY;
  return useQuery({
    queryKey: ["overview"],
    queryFn: ({ signal }) => loadOverview(signal),
    // Comparing ten thousand lines field by field costs more than drawing the few that are seen.
    structuralSharing: false,
    // Without the last answer, the lines are out of date although events arrive.
    refetchInterval: ({ state }) => (isLive && state.status !== "error" ? RARELY_MS : many ? 3 * CALM_MS : BUSY_MS),
    refetchOnWindowFocus: !many,
  });
}

const FIRST_LINES = 200;

/** Ids that one request names: each takes 46 characters of the request line, and many proxies accept 8 kB. */
const SLICE = 100;
const AGAIN_MS = 5_000;

/** What has come is shown while the rest is on its way: the first lines must not wait for the fifty-thousandth. */
async function loadOverview(signal: AbortSignal): Promise<PipelineOverview[]> {
  const shown = queryClient.getQueryData(["overview"]) !== undefined;
  const found: PipelineOverview[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<PipelineOverview> = await get(`/overview?${cursor ? `cursor=${cursor}` : `limit=${FIRST_LINES}`}`, signal);
    for (const line of page.items) found.push(line);
    cursor = page.next_cursor;
    if (cursor && !shown) queryClient.setQueryData(["overview"], [...found]);
  } while (cursor);
  return found;
}

/** Only these lines anew: an event about one pipeline does not load ten thousand. Lines that fail are asked for again. */
export async function refreshOverview(ids: string[]): Promise<void> {
  if (ids.length === 0 || ids.length > MANY || !queryClient.getQueryData(["overview"])) {
    await queryClient.invalidateQueries({ queryKey: ["overview"] });
    return;
  }
  for (let start = 0; start < ids.length; start += SLICE) {
    try {
      await refreshSlice(ids.slice(start, start + SLICE));
    } catch (error) {
      await recover(ids.slice(start), error);
      return;
    }
  }
}

async function refreshSlice(ids: string[]): Promise<void> {
  const page = await get<Page<PipelineOverview>>(`/overview?${ids.map((id) => `pipeline=${id}`).join("&")}`);
  queryClient.setQueryData<PipelineOverview[]>(["overview"], (lines) => lines && merged(lines, ids, page.items));
}

const missed = new Set<string>();
let asksAgain: ReturnType<typeof setTimeout> | undefined;

/** A refused request would be refused again, so all lines are loaded; a server that is away or busy gets a pause. */
async function recover(ids: string[], error: unknown): Promise<void> {
  if (isRefusal(error)) {
    await queryClient.invalidateQueries({ queryKey: ["overview"] });
    return;
  }
  for (const id of ids) missed.add(id);
  asksAgain ??= setTimeout(() => {
    const again = [...missed];
    missed.clear();
    asksAgain = undefined;
    void refreshOverview(again);
  }, AGAIN_MS);
}

/** Whether a pipeline can be run depends on which runners there are. */
export async function refreshWaiting(): Promise<void> {
  const lines = queryClient.getQueryData<PipelineOverview[]>(["overview"]) ?? [];
  const waiting = lines.filter((line) => line.waiting || line.status === "RUN_REQUESTED").map((line) => line.id);
  if (waiting.length > 0) await refreshOverview(waiting);
}

/** Of pipelines by name, as many as the API draws in one answer; `name` is a part of the name. */
export function useGraph(name: string) {
  return useQuery({
    queryKey: ["graph", name],
    queryFn: ({ signal }) => get<Graph>(`/graph${name ? `?${new URLSearchParams({ name }).toString()}` : ""}`, signal),
    refetchInterval: useInterval(),
    placeholderData: (before) => before,
  });
}

export function usePipeline(name: string) {
  return useQuery({
    queryKey: ["pipeline", name],
    queryFn: ({ signal }) => get<Pipeline>(`/pipelines/${encodeURIComponent(name)}`, signal),
    refetchInterval: useInterval(),
  });
}

export function useStatus(name: string) {
  const interval = useInterval();
  return useQuery({
    queryKey: ["status", name],
    queryFn: ({ signal }) => get<PipelineStatus>(`/pipelines/${encodeURIComponent(name)}/status`, signal),
    refetchInterval: (query) => (query.state.data?.progress ? 2_000 : interval),
  });
}

/** `filter`: what the API narrows the list to, such as `status=FAILED&label=team%3Dcore`. */
export function useRuns(pipeline?: string, limit = 50, filter = "") {
  const path = pipeline ? `/pipelines/${encodeURIComponent(pipeline)}/runs` : "/runs";
  return useInfiniteQuery({
    queryKey: ["runs", pipeline ?? "", limit, filter],
    queryFn: ({ pageParam, signal }) =>
      get<Page<Run>>(`${path}?limit=${limit}${filter && `&${filter}`}${pageParam ? `&cursor=${pageParam}` : ""}`, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: useInterval(),
  });
}

export function useRun(id: string) {
  const interval = useInterval();
  return useQuery({
    queryKey: ["run", id],
    queryFn: ({ signal }) => get<Run>(`/runs/${id}`, signal),
    refetchInterval: (query) => (query.state.data?.status === "RUNNING" ? 2_000 : interval),
  });
}

export function useRunLog(id: string, isRunning: boolean) {
  return useQuery({
    queryKey: ["run-log", id],
    queryFn: ({ signal }) => get<Page<LogLine>>(`/runs/${id}/logs`, signal),
    refetchInterval: isRunning ? 2_000 : false,
  });
}

export function useVersions(name: string) {
  return useQuery({
    queryKey: ["versions", name],
    queryFn: ({ signal }) => get<Page<Version>>(`/pipelines/${encodeURIComponent(name)}/versions`, signal),
  });
}

export function useAudit(filter: { object?: string; who?: string; action?: string }) {
  const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value)).toString();
  return useInfiniteQuery({
    queryKey: ["audit", query],
    queryFn: ({ pageParam, signal }) =>
      get<Page<AuditEntry>>(`/audit?${query}${pageParam ? `&cursor=${pageParam}` : ""}`, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: useInterval(),
  });
}

export function useRunners() {
  return useQuery({
    queryKey: ["runners"],
    queryFn: ({ signal }) => get<Page<Runner>>("/runners", signal),
    refetchInterval: 5_000,
  });
}

export function useDeadLetterGroups(pipeline?: string, resolved = false) {
  const query = `resolved=${resolved}${pipeline ? `&pipeline=${encodeURIComponent(pipeline)}` : ""}`;
  return useQuery({
    queryKey: ["dead-letter-groups", query],
    queryFn: ({ signal }) => get<Page<DeadLetterGroup>>(`/dead-letters/groups?limit=200&${query}`, signal),
    refetchInterval: useInterval(),
  });
}

export function useDeadLetters(pipeline?: string, resolved = false, reason?: string) {
  const narrowed = { resolved: String(resolved), ...(pipeline && { pipeline }), ...(reason !== undefined && { reason }) };
  const query = new URLSearchParams(narrowed).toString();
  return useInfiniteQuery({
    queryKey: ["dead-letters", query],
    queryFn: ({ pageParam, signal }) =>
      get<Page<DeadLetter>>(`/dead-letters?${query}${pageParam ? `&cursor=${pageParam}` : ""}`, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: useInterval(),
  });
}

export const useReconcile = (name: string) => useLatest(name, "reconcile");

/** The latest that a runner was asked for about a pipeline; null if it never was. */
export function useLatest(name: string, kind: "profile" | "reconcile") {
  return useQuery({
    queryKey: [kind, name],
    queryFn: async ({ signal }) => {
      try {
        return await get<RunnerRequest>(`/pipelines/${encodeURIComponent(name)}/${kind}`, signal);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
      }
    },
    refetchInterval: (query) => (query.state.data && !query.state.data.finished_at ? 1_500 : false),
  });
}

export function useReconciles(name: string) {
  return useQuery({
    queryKey: ["reconciles", name],
    queryFn: ({ signal }) => get<Page<Reconciliation>>(`/pipelines/${encodeURIComponent(name)}/reconciles?limit=30`, signal),
    refetchInterval: useInterval(),
  });
}

export function useAlerts(name: string) {
  return useQuery({
    queryKey: ["alerts", name],
    queryFn: ({ signal }) => get<Page<Alert>>(`/pipelines/${encodeURIComponent(name)}/alerts?limit=30`, signal),
    refetchInterval: useInterval(),
  });
}

/** What a runner was asked for and could not do, in its words. */
export class RunnerRefused extends Error {}

/** What queries on a connection may read, as far as a runner is there to say. */
export function useTables(connection: string) {
  return useQuery({
    queryKey: ["tables", connection],
    queryFn: async ({ signal }): Promise<Table[]> => {
      const asked = await get<RunnerRequest>(`/connections/${encodeURIComponent(connection)}/tables`, signal);
      const { result, error } = await awaitRequest(asked, 30);
      if (error?.message) throw new RunnerRefused(error.message);
      if (!result) throw new Error(t("No runner has taken it. Is one running?"));
      return result["tables"] as Table[];
    },
    staleTime: 60_000,
    retry: false,
    // The runner may come later than the page; a login that was refused is not tried every few seconds.
    refetchInterval: ({ state }) => (state.data ? false : state.error instanceof RunnerRefused ? 60_000 : 5_000),
  });
}

export function useNotifications() {
  return useQuery({ queryKey: ["notifications"], queryFn: ({ signal }) => get<Notifications>("/notifications", signal) });
}

export function useTokens(enabled: boolean) {
  return useQuery({ queryKey: ["tokens"], queryFn: ({ signal }) => get<Page<Token>>("/tokens", signal), enabled });
}

export function useNames(kind: "connections" | "transforms") {
  return useQuery({
    queryKey: [kind],
    queryFn: ({ signal }) => get<Page<{ name: string; doc?: string; params?: Schema | null }>>(`/${kind}`, signal),
    staleTime: 60_000,
  });
}

/** How options may be set: the same schema that the API checks with. */
export function useOptionsSchema() {
  return useQuery({
    queryKey: ["schema"],
    queryFn: async ({ signal }) => {
      const found = await get<Schema>("/schema/pipeline.json", signal);
      const definitions = found.$defs ?? {};
      return { options: definitions["Options"] ?? {}, definitions };
    },
    staleTime: Infinity,
  });
}

export function useConnections() {
  return useQuery({ queryKey: ["connections"], queryFn: ({ signal }) => get<Page<Connection>>("/connections", signal) });
}

export function useConnectors() {
  return useQuery({ queryKey: ["connectors"], queryFn: ({ signal }) => get<Page<Connector>>("/connectors", signal), staleTime: 60_000 });
}

export function useFeeds() {
  return useQuery({ queryKey: ["feeds"], queryFn: ({ signal }) => get<Page<Feed>>("/feeds", signal), refetchInterval: 5_000 });
}

export function useTargets() {
  return useQuery({
    queryKey: ["targets"],
    queryFn: ({ signal }) => get<{ allowed: string[]; items: { target: string }[] }>("/targets", signal),
    staleTime: 60_000,
  });
}

/** Work of a runner takes its time: asks until it is done. */
export async function awaitRequest(asked: RunnerRequest, seconds = 60): Promise<RunnerRequest> {
  const deadline = Date.now() + seconds * 1000;
  let found = asked;
  while (!found.finished_at && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 700));
    found = await get<RunnerRequest>(`/requests/${asked.id}`);
  }
  return found;
}

/** After a verb: everything about the pipeline is asked anew. */
export function useRefresh() {
  const client = useQueryClient();
  return (name: string, id?: string): void => {
    for (const key of ["pipeline", "status", "runs", "versions", "reconcile", "reconciles", "plans", "profile", "alerts"]) {
      void client.invalidateQueries({ queryKey: [key, name] });
    }
    void client.invalidateQueries({ queryKey: ["audit"] });
    void client.invalidateQueries({ queryKey: ["home"] });
    void refreshOverview(id ? [id] : []);
  };
}

export const verb = (name: string, action: string, body?: unknown): Promise<{ message: string }> =>
  post(`/pipelines/${encodeURIComponent(name)}/${action}`, body);
