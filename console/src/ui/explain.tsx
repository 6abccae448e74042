/** How the server would run a query: what it expects to read, and through which steps. */
import type { Outline, Plan } from "../api/types";
import { compact } from "../words/format";
import { t } from "../words/language";
import { cx } from "./classes";
import { Icon } from "./icons";

export function Explain({ outline, plan, waiting }: { outline: Outline | null; plan: Plan | null; waiting: boolean }) {
  if (!outline) return <p className="p-4 text-muted sm:px-6">{waiting ? t("A runner is working on it…") : t("The plan appears here once the query can be run.")}</p>;
  const whole = outline.steps.filter((step) => step.node === "Seq Scan" && step.relation && (step.rows ?? 0) > 0);
  return (
    <div className="space-y-4 p-4 sm:px-6" role="region" aria-label={t("Explain")}>
      <p className="num flex flex-wrap gap-x-6 gap-y-1">
        <span>{t("about {n} {n|row|rows}", { n: Math.round(outline.rows) })}</span>
        <span className="text-muted">{t("cost {n}", { n: compact(outline.cost) })}</span>
        {whole.length > 0 && <span className="text-muted">{t("reads all of {tables}", { tables: [...new Set(whole.map((step) => step.relation))].join(", ") })}</span>}
      </p>
      <ol className="num overflow-x-auto rounded-lg border bg-panel py-1 font-mono text-xs" tabIndex={0} aria-label={t("Steps of the query")}>
        {outline.steps.map((step, index) => (
          <li key={index} className="flex justify-between gap-6 px-3 py-1 whitespace-nowrap hover:bg-line/35">
            <span style={{ paddingLeft: `${step.depth * 1.25}rem` }}>
              <span className={cx(step.node === "Seq Scan" && (step.rows ?? 0) > 100_000 && "text-warn")}>{step.node}</span>
              {step.relation && <span className="text-muted"> {step.relation}</span>}
              {step.index && <span className="text-faint"> {step.index}</span>}
            </span>
            <span className="text-muted">{t("{n} {n|row|rows}", { n: Math.round(step.rows ?? 0) })}</span>
          </li>
        ))}
      </ol>
      {plan && (
        <ul className="space-y-1.5" aria-label={t("Why")}>
          {[...plan.reasons.map((text) => ({ text, tone: "text-ok", icon: "check" as const })), ...plan.warnings.map((text) => ({ text, tone: "text-warn", icon: "warn" as const }))].map((line) => (
            <li key={line.text} className="flex gap-2">
              <span className={cx("mt-0.5", line.tone)}>
                <Icon name={line.icon} size={14} />
              </span>
              <span className="min-w-0 break-words">{line.text}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
