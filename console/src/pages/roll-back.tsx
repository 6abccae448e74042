/** Before an older version is put back: what would change, and whether it can run today. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { post, request } from "../api/client";
import { awaitRequest, useRefresh } from "../api/queries";
import type { Pipeline, ValidationReport, Version } from "../api/types";
import { Button, Dialog } from "../ui/basics";
import { Changes, compare } from "../ui/diff";
import { Icon } from "../ui/icons";
import { toast, toastError } from "../ui/toasts";
import { t } from "../words/language";

export function RollBack({ pipeline, version, inForce, onClose }: { pipeline: Pipeline; version: Version; inForce: Version; onClose: () => void }) {
  const [busy, setBusy] = useState(false);
  const refresh = useRefresh();
  const wanted = { ...version.definition, name: pipeline.name };
  const changes = compare(inForce.definition, wanted);
  const verdict = useVerdict(pipeline, version);
  const rollBack = (): void => {
    setBusy(true);
    request("POST", `/pipelines/${encodeURIComponent(pipeline.name)}/versions/${version.version}/rollback`, { ifMatch: pipeline.version })
      .then(() => toast(t("Version {n} is current again.", { n: version.version })), toastError)
      .finally(() => {
        refresh(pipeline.name, pipeline.id);
        onClose();
      });
  };
  const isRefused = verdict.data?.isRefused ?? false;
  return (
    <Dialog
      open
      wide
      onClose={onClose}
      title={t("Roll back to version {n}?", { n: version.version })}
      footer={
        <>
          <Button onClick={onClose}>{t("Cancel")}</Button>
          <Button look={isRefused ? "danger" : "primary"} busy={busy} disabled={changes.length === 0} onClick={rollBack}>
            {isRefused ? t("Roll back anyway") : t("Roll back")}
          </Button>
        </>
      }
    >
      <CanRun verdict={verdict.data} waiting={verdict.isPending} />
      <h3 className="mt-4 mb-2 text-xs font-medium text-muted">{t("Changes from the current version {n}", { n: inForce.version })}</h3>
      <Changes changes={changes} />
    </Dialog>
  );
}

interface Found {
  problems: string[];
  /** The platform would not take it at all, or a run of it would fail. */
  isRefused: boolean;
  isTried: boolean;
}

/** As the platform and, if there is one, a runner see it now: tables and rules may have changed since. */
function useVerdict(pipeline: Pipeline, version: Version) {
  return useQuery({
    queryKey: ["can-run", pipeline.name, version.version, pipeline.version],
    queryFn: async (): Promise<Found> => {
      const report = await post<ValidationReport>("/explain", { ...version.definition, name: pipeline.name });
      const deep = report.deep && !report.deep.finished_at ? await awaitRequest(report.deep, 30) : report.deep;
      const late = deep !== report.deep && deep?.error?.message ? [deep.error.message] : [];
      const problems = [...report.errors.map((error) => error.message), ...late];
      return { problems, isRefused: problems.length > 0, isTried: deep?.status === "DONE" };
    },
    staleTime: 0,
    gcTime: 0,
  });
}

function CanRun({ verdict, waiting }: { verdict: Found | undefined; waiting: boolean }) {
  if (waiting) return <p role="status" className="text-muted">{t("A runner is checking whether it can run…")}</p>;
  if (!verdict) return <p className="text-warn">{t("Whether it can run is unknown.")}</p>;
  if (verdict.problems.length > 0) {
    return (
      <div role="status" className="text-bad">
        <p className="flex items-center gap-2 font-medium">
          <Icon name="warn" size={14} /> {t("It cannot run at present:")}
        </p>
        <ul className="mt-1 list-disc space-y-1 pl-6">
          {verdict.problems.map((problem) => (
            <li key={problem} className="break-words">
              {problem}
            </li>
          ))}
        </ul>
      </div>
    );
  }
  return (
    <p role="status" className={verdict.isTried ? "flex items-center gap-2 text-ok" : "flex items-center gap-2 text-warn"}>
      <Icon name={verdict.isTried ? "check" : "warn"} size={14} /> {verdict.isTried ? t("It can run: a runner has checked it.") : t("The definition is valid; no runner is alive to check it against the source.")}
    </p>
  );
}
