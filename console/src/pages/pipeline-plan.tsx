/** What the next full load would change in the target, and the plans that were made before. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../api/client";
import { awaitRequest, useMay, useRefresh } from "../api/queries";
import type { DataPlan, Page, Pipeline, PlanSummary, PlannedRow, RunnerRequest } from "../api/types";
import { Ago, Button, Facts, Figures, Mono, Panel, Tag, given } from "../ui/basics";
import { Icon } from "../ui/icons";
import { toastError } from "../ui/toasts";
import { count, duration } from "../words/format";
import { t } from "../words/language";

const WAIT_SECONDS = 3600;

export function PlanTab({ pipeline }: { pipeline: Pipeline }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const plans = useQuery({
    queryKey: ["plans", pipeline.name],
    queryFn: ({ signal }) => get<Page<PlanSummary>>(`/pipelines/${encodeURIComponent(pipeline.name)}/plans?limit=30`, signal),
  });
  const items = plans.data?.items ?? [];
  const shown = chosen ?? items[0]?.id ?? null;
  return (
    <div className="space-y-4">
      <Latest pipeline={pipeline} shown={shown} onMade={setChosen} />
      {items.length > 0 && <Earlier items={items} shown={shown} onChoose={setChosen} />}
    </div>
  );
}

function Latest({ pipeline, shown, onMade }: { pipeline: Pipeline; shown: string | null; onMade: (id: string) => void }) {
  const [busy, setBusy] = useState(false);
  const mayOperate = useMay("operator");
  const refresh = useRefresh();
  const plan = useQuery({
    queryKey: ["plan", shown],
    queryFn: ({ signal }) => get<{ result: DataPlan }>(`/plans/${shown ?? ""}`, signal),
    enabled: shown !== null,
    staleTime: Infinity,
  });
  const make = async (): Promise<void> => {
    setBusy(true);
    try {
      const done = await awaitRequest(await post<RunnerRequest>(`/pipelines/${encodeURIComponent(pipeline.name)}/plan`), WAIT_SECONDS);
      if (done.error) throw new Error(done.error.message ?? t("It failed."));
      refresh(pipeline.name, pipeline.id);
      onMade(done.id);
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Panel title={t("Plan")} action={mayOperate && <Button busy={busy} onClick={() => void make()}>{t("Plan now")}</Button>}>
      <div className="space-y-4" aria-live="polite">
        {busy && <p className="text-muted">{t("A runner is planning…")}</p>}
        {plan.data ? <Planned plan={plan.data.result} /> : !busy && <p className="text-muted">{t("Shows what the next full load would change in the target; nothing is written there.")}</p>}
      </div>
    </Panel>
  );
}

function Planned({ plan }: { plan: DataPlan }) {
  const rows = plan.rows;
  const columns = plan.columns;
  return (
    <>
      <Sentences plan={plan} />
      {rows && (
        <Figures
          items={[
            { name: t("Rows in the target"), value: count(rows.before) },
            { name: t("Rows added"), value: count(rows.added) },
            { name: t("Rows changed"), value: count(rows.changed), tone: rows.changed ? "warn" : "idle" },
            { name: t("Rows removed"), value: count(rows.removed), tone: rows.removed ? "warn" : "idle" },
            { name: t("Rows rejected"), value: count(rows.rejected), tone: rows.rejected ? "warn" : "idle" },
          ]}
        />
      )}
      <Facts
        items={[
          ...given(t("Columns added"), columns.added.map((one) => `${one.name} ${one.type}`).join(", ")),
          ...given(t("Columns no longer returned"), columns.removed.map((one) => one.name).join(", ")),
          ...given(t("Columns of another type"), columns.retyped.map((one) => `${one.name} ${one.before} → ${one.after}`).join(", ")),
          ...given(t("Changed by column"), Object.entries(rows?.changed_columns ?? {}).map(([name, number]) => `${name}: ${count(number)}`).join(", ")),
          ...given(t("Rows that stay"), rows?.stay ? count(rows.stay) : null),
          ...given(t("Downstream"), [...plan.downstream.pipelines, ...plan.downstream.targets].join(", ")),
          [t("Plan"), <Mono key="p">{plan.id}</Mono>],
          [t("Duration"), duration(plan.seconds)],
        ]}
      />
      {rows && Array.isArray(rows.sample_rows) && rows.sample_rows.length > 0 && <Samples rows={rows.sample_rows} />}
    </>
  );
}

function Sentences({ plan }: { plan: DataPlan }) {
  const failed = plan.checks.filter((check) => check.result !== "passed").map((check) => `${check.name}: ${check.found}`);
  return (
    <ul className="space-y-2">
      {plan.refusals.length === 0 && <Said icon="check" look="text-ok" text={t("The run would be published.")} />}
      {plan.refusals.map((text) => <Said key={text} icon="warn" look="text-bad" text={text} />)}
      {[...failed, ...plan.warnings].map((text) => <Said key={text} icon="warn" look="text-warn" text={text} />)}
      {plan.notes.map((text) => <li key={text} className="text-muted">{text}</li>)}
      {!plan.target_exists && <li className="text-muted">{t("The first run creates the target.")}</li>}
    </ul>
  );
}

function Said({ icon, look, text }: { icon: "check" | "warn"; look: string; text: string }) {
  return (
    <li className="flex gap-2">
      <span className={`mt-0.5 ${look}`}>
        <Icon name={icon} size={14} />
      </span>
      <span className="min-w-0 break-words">{text}</span>
    </li>
  );
}

const KINDS = { added: "added", changed: "changed", removed: "removed" } as const;

function Samples({ rows }: { rows: PlannedRow[] }) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.after ?? row.before ?? {})))];
  return (
    <div className="max-h-96 overflow-auto rounded-lg border" tabIndex={0} role="region" aria-label={t("Some of the rows")}>
      <table className="num w-full min-w-[40rem] text-xs">
        <thead>
          <tr className="sticky top-0 border-b bg-panel text-left [&>th]:px-3 [&>th]:py-2 [&>th]:font-medium">
            <th scope="col">{t("Row")}</th>
            {names.map((name) => <th key={name} scope="col">{name}</th>)}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index} className="border-b last:border-0 [&>td]:px-3 [&>td]:py-1.5">
              <td>{t(KINDS[row.kind])}</td>
              {names.map((name) => <td key={name} className="max-w-80 break-words"><Value row={row} name={name} /></td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A value, or both where it changes. */
function Value({ row, name }: { row: PlannedRow; name: string }) {
  const before = row.before?.[name] ?? null;
  const after = row.after?.[name] ?? null;
  if (row.kind === "changed" && before !== after) {
    return (
      <>
        <del className="text-muted">{before ?? "NULL"}</del> <ins className="font-medium no-underline">{after ?? "NULL"}</ins>
      </>
    );
  }
  return <>{(row.after ? after : before) ?? "NULL"}</>;
}

function Earlier({ items, shown, onChoose }: { items: PlanSummary[]; shown: string | null; onChoose: (id: string) => void }) {
  return (
    <Panel title={t("Plans")} flush>
      <ul>
        {items.map((plan) => (
          <li key={plan.id} className="flex flex-wrap items-center gap-x-3 gap-y-1 border-b px-4 py-2 last:border-0">
            <Button look="quiet" aria-pressed={plan.id === shown} onClick={() => onChoose(plan.id)}>
              <Ago at={plan.created_at} />
            </Button>
            <span className="text-muted">{plan.created_by}</span>
            {plan.changed !== null && (
              <span className="num">{t("{added} added, {changed} changed, {removed} removed", { added: count(plan.added ?? 0), changed: count(plan.changed), removed: count(plan.removed ?? 0) })}</span>
            )}
            {plan.refused && <Tag tone="bad">{t("would be refused")}</Tag>}
            {plan.applied_version !== null && <Tag tone="ok">{t("applied by {who} as version {version}", { who: plan.applied_by ?? "", version: String(plan.applied_version) })}</Tag>}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
