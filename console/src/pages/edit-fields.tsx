/** The fields of a definition beside its query, each with what is wrong with it. */
import { useState, type ReactNode } from "react";
import { useConnections, useConnectors, useOptionsSchema, useTargets } from "../api/queries";
import type { Column, FieldProblem } from "../api/types";
import { Button, Switch, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { Problems } from "../ui/problems";
import { ScheduleBuilder } from "../ui/schedule-builder";
import { SchemaForm } from "../ui/schema-form";
import { Term } from "../ui/terms";
import { problemInWords, topOf } from "../words/fields";
import { t } from "../words/language";
import { MODE_TITLES } from "../words/modes";
import { scheduleInWords } from "../words/schedule";
import { ConnectorParts } from "./edit-connector";
import { IF_CHANGED, keyColumns, type Draft, type DraftPart } from "./draft";

const PLACED = new Set(["name", "description", "source_type", "source_connection", "source_table", "target_table", "target_key", "mode", "incremental_key", "incremental_id_key", "batch_size", "schedule_interval", "run_after", "python_task", "source_query", "labels"]);

type InputExtras = { hint?: ReactNode; mono?: boolean; disabled?: boolean; placeholder?: string; list?: string };

type FieldsProps = DraftPart & { isNew: boolean; /** Of the last preview. */ columns: Column[]; /** Somebody went on to another field. */ onLeave: (name: string) => void };

export function Fields({ draft, change, problems, isNew, columns, onLeave }: FieldsProps) {
  const sources = (useConnectors().data?.items ?? []).filter((one) => one.source && one.name !== "python").map((one) => one.name);
  const connections = (useConnections().data?.items ?? []).filter((one) => one.connector === draft.source_type || one.connector === null);
  const targets = useTargets().data;
  const allowed = targets?.allowed ?? [];
  const input = (name: keyof Draft & string, label: string, extra: InputExtras = {}): ReactNode => (
    <Field name={name} label={label} hint={extra.hint} problems={problems}>
      {(attributes) => (
        <input
          {...attributes}
          className={cx(inputLook, extra.mono && "font-mono")}
          disabled={extra.disabled}
          placeholder={extra.placeholder}
          list={extra.list}
          value={String(draft[name])}
          onChange={(event) => change({ [name]: event.target.value } as Partial<Draft>)}
          onBlur={() => onLeave(name)}
        />
      )}
    </Field>
  );
  return (
    <form className="space-y-4 p-4 sm:px-6 lg:px-4" onSubmit={(event) => event.preventDefault()}>
      {input("name", t("Name"), { mono: true, disabled: !isNew, placeholder: "film_dim_full" })}
      {input("description", t("Description"))}
      {(sources.length > 1 || draft.source_type !== "postgres") && (
        <Field name="source_type" label={t("Kind of source")} problems={problems}>
          {(attributes) => (
            <select {...attributes} className={inputLook} value={draft.source_type} onChange={(event) => change({ source_type: event.target.value })}>
              {[...new Set([draft.source_type, ...sources])].map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
        </Field>
      )}
      <Field name="source_connection" label={t("Source")} problems={problems}>
        {(attributes) => (
          <select {...attributes} className={inputLook} value={draft.source_connection} onChange={(event) => change({ source_connection: event.target.value })}>
            {[...new Set([draft.source_connection, ...connections.map((one) => one.name)])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )}
      </Field>
      {draft.tasks.length === 0 &&
        input("source_table", t("Source table"), { mono: true, placeholder: "content.genre", hint: t("Instead of a query: read whole") })}
      {input("target_table", t("Target"), { mono: true, list: "targets", hint: allowed.length ? t("Allowed: {patterns}", { patterns: allowed.join(", ") }) : undefined })}
      {input("target_key", t("Key columns"), { mono: true, hint: <KeyPicker columns={columns} value={draft.target_key} onChange={(target_key) => change({ target_key })} /> })}
      <ConnectorParts draft={draft} change={change} problems={problems} />
      <fieldset>
        <legend className="mb-1 text-muted">{t("Mode")}</legend>
        <div className="grid grid-cols-3 gap-1 rounded-lg bg-sunken p-1 dark:border">
          {(["full", "incremental", "live"] as const).map((mode) => (
            <label key={mode} className={cx("cursor-pointer rounded-md py-1 text-center has-focus-visible:outline-2", draft.mode === mode ? "bg-panel font-medium shadow-sm dark:bg-line-strong" : "text-muted")}>
              <input type="radio" name="mode" className="sr-only" checked={draft.mode === mode} onChange={() => change({ mode })} />
              {t(MODE_TITLES[mode])}
            </label>
          ))}
        </div>
      </fieldset>
      {draft.mode === "incremental" && (
        <div className="grid grid-cols-2 gap-3">
          {input("incremental_key", t("Cursor column"), { mono: true, list: "columns", placeholder: "updated_at", hint: <Term name="cursor">{t("What is it?")}</Term> })}
          {input("incremental_id_key", t("Tie-breaker"), { mono: true, list: "columns", placeholder: "id", hint: <Term name="tie-breaker">{t("What is it?")}</Term> })}
        </div>
      )}
      {input("schedule_interval", t("Schedule"), { mono: true, placeholder: "15m, 0 3 * * * Europe/Moscow", hint: scheduleInWords(draft.schedule_interval || null) })}
      <ScheduleBuilder value={draft.schedule_interval} onChange={(schedule_interval) => change({ schedule_interval })} />
      {input("run_after", t("Runs after"), { mono: true, placeholder: `film_dim_full, ratings ${IF_CHANGED}`, hint: t("Pipelines, separated by commas: when all of them have succeeded again, this one runs") })}
      {input("batch_size", t("Batch size"), { mono: true })}
      {input("labels", t("Labels"), { mono: true, placeholder: "team=core, tier=1", hint: t("To sort and select pipelines; separated by commas") })}
      <div className="flex items-center justify-between">
        <span className="text-muted">{t("Enabled")}</span>
        <Switch checked={draft.enabled} label={t("Enabled")} onChange={(enabled) => change({ enabled })} />
      </div>
      <Options draft={draft} change={change} problems={problems} />
      <datalist id="columns">
        {columns.map((column) => (
          <option key={column.name} value={column.name}>
            {column.type}
          </option>
        ))}
      </datalist>
      <datalist id="targets">
        {[...new Set(targets?.items.map((item) => item.target))].map((target) => (
          <option key={target} value={target} />
        ))}
      </datalist>
      <Problems items={problems.filter((problem) => !PLACED.has(problem.path) && !problem.path.startsWith("options") && !problem.path.startsWith("tasks.") && !problem.path.startsWith("run_after.") && !problem.path.startsWith("labels."))} />
    </form>
  );
}

/** Made from the schema that the API checks with; as JSON for whoever would rather write. */
function Options({ draft, change, problems }: DraftPart) {
  const schema = useOptionsSchema().data;
  const [raw, setRaw] = useState(false);
  const options = optionsOf(draft.options);
  const mine = problems.filter((problem) => topOf(problem.path) === "options");
  const wrong: Record<string, string[]> = {};
  for (const problem of mine) (wrong[problem.path.split(".")[1] ?? ""] ??= []).push(problemInWords(problem));
  const asText = raw || !schema || !options;
  return (
    <details open={draft.options !== "{}" || mine.length > 0}>
      <summary className="text-muted">{t("Options")}</summary>
      <div className="mt-2 space-y-2">
        {asText ? (
          <>
            <textarea aria-label={t("Options (JSON)")} rows={5} className={cx(inputLook, "h-auto py-2 font-mono text-xs")} value={draft.options} onChange={(event) => change({ options: event.target.value })} />
            <Problems items={mine} />
          </>
        ) : (
          <SchemaForm label={t("Options")} schema={schema.options} definitions={schema.definitions} value={options} wrong={wrong} onChange={(next) => change({ options: JSON.stringify(next, null, 2) })} />
        )}
        {schema && options && (
          <Button look="quiet" onClick={() => setRaw(!raw)}>
            {raw ? t("As a form") : t("As JSON")}
          </Button>
        )}
      </div>
    </details>
  );
}

function optionsOf(text: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(text.trim() || "{}");
    return typeof found === "object" && found !== null && !Array.isArray(found) ? (found as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** Once a preview has told the columns, they are chosen with a click. */
function KeyPicker({ columns, value, onChange }: { columns: Column[]; value: string; onChange: (next: string) => void }) {
  if (columns.length === 0) return t("Unique in the source; separated by commas");
  const chosen = keyColumns(value);
  const toggle = (name: string): void => onChange((chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]).join(", "));
  return (
    <span className="flex flex-wrap gap-1 pt-0.5" role="group" aria-label={t("Key columns")}>
      {columns.map(({ name, type }) => (
        <button
          key={name}
          type="button"
          title={type}
          aria-pressed={chosen.includes(name)}
          onClick={() => toggle(name)}
          className={cx("rounded border px-1.5 font-mono text-2xs leading-5", chosen.includes(name) ? "border-accent bg-accent-soft text-accent" : "text-muted hover:text-text")}
        >
          {name}
        </button>
      ))}
    </span>
  );
}

interface FieldAttributes {
  id: string;
  "aria-invalid": boolean;
  "aria-describedby": string | undefined;
}

function Field(props: { name: string; label: string; hint?: ReactNode; problems: FieldProblem[]; children: (attributes: FieldAttributes) => ReactNode }) {
  const wrong = props.problems.filter((problem) => problem.path === props.name || problem.path.startsWith(`${props.name}.`));
  const id = `field-${props.name}`;
  return (
    <div className="space-y-1">
      <label htmlFor={id} className="block text-muted">
        {props.label}
      </label>
      {props.children({ id, "aria-invalid": wrong.length > 0, "aria-describedby": wrong.length ? `${id}-wrong` : undefined })}
      {wrong.length > 0 ? (
        <ul id={`${id}-wrong`} className="text-xs text-bad">
          {wrong.map((problem) => (
            <li key={problem.message}>{problemInWords(problem)}</li>
          ))}
        </ul>
      ) : (
        props.hint && <div className="text-xs text-muted">{props.hint}</div>
      )}
    </div>
  );
}
