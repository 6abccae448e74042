/** What is in the target: rows, size, and what each column holds, looked at on request. */
import { useState } from "react";
import { post } from "../api/client";
import { awaitRequest, useLatest, useMay, useRefresh } from "../api/queries";
import type { ColumnProfile, Pipeline, RunnerRequest, TargetProfile } from "../api/types";
import { Ago, Button, Figures, Panel } from "../ui/basics";
import { toastError } from "../ui/toasts";
import { bytes, count, percent } from "../words/format";
import { t } from "../words/language";

const WAIT_SECONDS = 3600;

export function DataTab({ pipeline }: { pipeline: Pipeline }) {
  const [busy, setBusy] = useState(false);
  const mayOperate = useMay("operator");
  const refresh = useRefresh();
  const last = useLatest(pipeline.name, "profile");
  const found = last.data;
  const profile = found?.result as unknown as TargetProfile | null | undefined;
  const look = async (): Promise<void> => {
    setBusy(true);
    try {
      await awaitRequest(await post<RunnerRequest>(`/pipelines/${encodeURIComponent(pipeline.name)}/profile`), WAIT_SECONDS);
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
      refresh(pipeline.name, pipeline.id);
    }
  };
  return (
    <Panel title={t("Data")} action={mayOperate && <Button busy={busy} onClick={() => void look()}>{t("Profile now")}</Button>}>
      <div className="space-y-4" aria-live="polite">
        {busy && <p className="text-muted">{t("A runner is working on it…")}</p>}
        {found?.error && <p className="text-bad">{found.error.message ?? t("It failed.")}</p>}
        {!found && !busy && <p className="text-muted">{t("Shows the number of rows, the size and the contents of the target's columns.")}</p>}
        {profile && found && <Profile profile={profile} at={found.finished_at} />}
      </div>
    </Panel>
  );
}

function Profile({ profile, at }: { profile: TargetProfile; at: string | null }) {
  return (
    <>
      <Figures
        items={[
          { name: t("Rows in the target"), value: count(profile.rows) },
          { name: t("Size"), value: profile.size_bytes === null ? "—" : bytes(profile.size_bytes) },
          { name: t("Columns"), value: count(profile.columns.length) },
          { name: t("Profiled"), value: <Ago at={at} />, note: profile.profiled_rows < profile.rows ? t("a sample of {rows} rows", { rows: count(profile.profiled_rows) }) : undefined },
        ]}
      />
      <div className="overflow-auto rounded-lg border" tabIndex={0} role="region" aria-label={t("Columns")}>
        <table className="num w-full min-w-[48rem] text-xs">
          <thead>
            <tr className="border-b bg-panel text-left [&>th]:px-3 [&>th]:py-2 [&>th]:font-medium">
              <th scope="col">{t("Column")}</th>
              <th scope="col">{t("Type")}</th>
              <th scope="col" className="text-right">NULL</th>
              <th scope="col" className="text-right">{t("Distinct")}</th>
              <th scope="col">{t("Least")}</th>
              <th scope="col">{t("Greatest")}</th>
              <th scope="col">{t("Most frequent")}</th>
            </tr>
          </thead>
          <tbody>
            {profile.columns.map((column) => (
              <Column key={column.name} column={column} rows={profile.profiled_rows} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Column({ column, rows }: { column: ColumnProfile; rows: number }) {
  const top = column.top_values;
  return (
    <tr className="border-b last:border-0 [&>td]:px-3 [&>td]:py-1.5 [&>td]:align-top">
      <td className="font-medium">{column.name}</td>
      <td className="text-muted">{column.type}</td>
      <td className="text-right">{column.nulls ? `${count(column.nulls)} (${percent(column.nulls / rows)})` : "0"}</td>
      <td className="text-right">{count(column.distinct)}</td>
      <td className="max-w-48 break-words">{column.min_value ?? "—"}</td>
      <td className="max-w-48 break-words">{column.max_value ?? "—"}</td>
      <td className="max-w-80 break-words">{Array.isArray(top) ? top.map((one) => `${one.value} (${count(one.rows)})`).join(", ") || "—" : top}</td>
    </tr>
  );
}
