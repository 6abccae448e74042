/** Every run of every pipeline, newest first; what is looked for stands in the address. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState, type ReactNode } from "react";
import { useOverview, useRuns } from "../api/queries";
import type { RunStatus } from "../api/types";
import { Button, Empty, Failure, Loading, PageHead, inputLook, statusWords } from "../ui/basics";
import { labelTexts } from "../ui/label-words";
import { RunTable } from "../ui/parts";
import { t } from "../words/language";

export interface RunsSearch {
  status?: RunStatus;
  trigger?: string;
  pipeline?: string;
  label?: string;
  within?: keyof typeof WITHIN;
}

const STATUSES: RunStatus[] = ["RUNNING", "SUCCESS", "FAILED", "PAUSED", "CANCELLED"];
const TRIGGERS = ["manual", "schedule", "api", "recovery", "follow-up", "run-after"];
const WITHIN = { "1h": 3600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 } as const;
const WITHIN_WORDS: Record<keyof typeof WITHIN, string> = { "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" };

export function RunsPage() {
  const search = useSearch({ from: "/runs" });
  const filter = useFilter(search);
  const runs = useRuns(undefined, 50, filter);
  const items = runs.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <>
      <PageHead title={t("Runs")} />
      <Filters search={search} />
      <div className="border-t sm:px-3">
        {runs.error && items.length === 0 ? (
          <Failure error={runs.error} onRetry={() => void runs.refetch()} />
        ) : runs.isPending ? (
          <Loading />
        ) : items.length === 0 ? (
          <Nothing narrowed={filter !== ""} />
        ) : (
          <RunTable runs={items} withPipeline />
        )}
      </div>
      {runs.hasNextPage && (
        <div className="p-4 text-center">
          <Button onClick={() => void runs.fetchNextPage()} busy={runs.isFetchingNextPage}>
            {t("Show older")}
          </Button>
        </div>
      )}
    </>
  );
}

function Nothing({ narrowed }: { narrowed: boolean }) {
  const navigate = useNavigate({ from: "/runs" });
  if (!narrowed) {
    return (
      <Empty icon="runs" title={t("No runs yet")}>
        {t("Runs appear here as soon as a runner starts one.")}
      </Empty>
    );
  }
  return (
    <Empty icon="filter" title={t("Nothing matches these filters")}>
      <Button onClick={() => void navigate({ search: {} })}>{t("Show all")}</Button>
    </Empty>
  );
}

/** What the API is asked; the moment that a span of time begins at stays the same until the span is chosen anew. */
function useFilter(search: RunsSearch): string {
  return useMemo(() => {
    const query = new URLSearchParams();
    if (search.status) query.append("status", search.status);
    if (search.trigger) query.append("trigger", search.trigger);
    if (search.pipeline) query.append("pipeline", search.pipeline);
    if (search.label) query.append("label", search.label);
    if (search.within) query.append("since", new Date(Date.now() - 1000 * WITHIN[search.within]).toISOString());
    return query.toString();
  }, [search.status, search.trigger, search.pipeline, search.label, search.within]);
}

function Filters({ search }: { search: RunsSearch }) {
  const navigate = useNavigate({ from: "/runs" });
  const lines = useOverview().data ?? [];
  const labels = useMemo(() => [...new Set(lines.flatMap((line) => labelTexts(line.labels)))].sort(), [lines]);
  const change = (part: Partial<RunsSearch>): void => void navigate({ search: (before) => ({ ...before, ...part }), replace: true });
  const isNarrowed = Object.values(search).some(Boolean);
  return (
    <div role="search" aria-label={t("Filters")} className="flex flex-wrap items-end gap-2 px-4 pb-3 sm:px-6">
      <Choice label={t("Status")} value={search.status} all={t("Any status")} options={STATUSES.map((status) => [status, statusWords(status)])} onChange={(status) => change({ status: status as RunStatus | undefined })} />
      <Typed label={t("Pipeline")} value={search.pipeline} list="run-pipelines" onChange={(pipeline) => change({ pipeline })} isKnown={(name) => lines.some((line) => line.name === name)}>
        {lines.slice(0, 1000).map((line) => (
          <option key={line.id} value={line.name} />
        ))}
      </Typed>
      <Choice label={t("Trigger")} value={search.trigger} all={t("Any trigger")} options={TRIGGERS.map((trigger) => [trigger, t(trigger)])} onChange={(trigger) => change({ trigger })} />
      <Choice
        label={t("Time")}
        value={search.within}
        all={t("Any time")}
        options={(Object.keys(WITHIN) as (keyof typeof WITHIN)[]).map((key) => [key, t(WITHIN_WORDS[key])])}
        onChange={(within) => change({ within: within as RunsSearch["within"] })}
      />
      <Typed label={t("Label")} value={search.label} list="run-labels" placeholder="team=core" onChange={(label) => change({ label })} isKnown={() => true}>
        {labels.map((label) => (
          <option key={label} value={label} />
        ))}
      </Typed>
      {isNarrowed && (
        <Button look="quiet" icon="close" onClick={() => void navigate({ search: {}, replace: true })}>
          {t("Show all")}
        </Button>
      )}
    </div>
  );
}

const FILTER = "w-40 space-y-1 max-sm:w-[calc(50%-0.25rem)]";

function Choice(props: { label: string; value: string | undefined; all: string; options: [string, string][]; onChange: (next: string | undefined) => void }) {
  return (
    <label className={FILTER}>
      <span className="block text-xs text-muted">{props.label}</span>
      <select className={inputLook} value={props.value ?? ""} onChange={(event) => props.onChange(event.target.value || undefined)}>
        <option value="">{props.all}</option>
        {props.options.map(([value, words]) => (
          <option key={value} value={value}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Takes effect when it is a whole name, or with Enter: half of one would only find nothing. */
function Typed(props: { label: string; value: string | undefined; list: string; placeholder?: string; onChange: (next: string | undefined) => void; isKnown: (text: string) => boolean; children: ReactNode }) {
  const [typed, setTyped] = useState(props.value ?? "");
  const [shown, setShown] = useState(props.value);
  if (shown !== props.value) {
    setShown(props.value);
    setTyped(props.value ?? "");
  }
  const take = (): void => props.onChange(typed.trim() || undefined);
  return (
    <label className={FILTER}>
      <span className="block text-xs text-muted">{props.label}</span>
      <datalist id={props.list}>{props.children}</datalist>
      <input
        className={inputLook}
        list={props.list}
        placeholder={props.placeholder}
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          if (event.target.value === "") props.onChange(undefined);
          else if (props.list === "run-pipelines" && props.isKnown(event.target.value)) props.onChange(event.target.value);
        }}
        onKeyDown={(event) => event.key === "Enter" && take()}
        onBlur={take}
      />
    </label>
  );
}
