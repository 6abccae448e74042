/** Dead letters of every pipeline. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { useOverview } from "../api/queries";
import { PageHead, inputLook } from "../ui/basics";
import { LetterGroups } from "../ui/letters";
import { t } from "../words/language";

export function LettersPage() {
  const { pipeline } = useSearch({ from: "/dead-letters" });
  const [resolved, setResolved] = useState(false);
  const navigate = useNavigate({ from: "/dead-letters" });
  const names = useOverview().data?.filter((line) => line.dead_letters > 0 || line.name === pipeline) ?? [];
  return (
    <>
      <PageHead title={t("Dead letters")} note={t("Rows that a target, a step or a check rejected")}>
        <label className="flex items-center gap-2 text-muted">
          <input type="checkbox" className="accent-accent-solid" checked={resolved} onChange={(event) => setResolved(event.target.checked)} />
          {t("Resolved ones")}
        </label>
        <span className="w-48">
          <select aria-label={t("Pipeline")} className={inputLook} value={pipeline ?? ""} onChange={(event) => void navigate({ search: { pipeline: event.target.value || undefined } })}>
            <option value="">{t("All pipelines")}</option>
            {names.map((line) => (
              <option key={line.id} value={line.name}>
                {line.name} ({line.dead_letters})
              </option>
            ))}
          </select>
        </span>
      </PageHead>
      <div className="border-t p-4 sm:p-6">
        <LetterGroups pipeline={pipeline} resolved={resolved} />
      </div>
    </>
  );
}
