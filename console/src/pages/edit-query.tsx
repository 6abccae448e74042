/** The query of a definition, or its task plan: SQL first, then Python steps with their parameters. */
import { Suspense, lazy, useState } from "react";
import { useNames } from "../api/queries";
import type { Table, Task } from "../api/types";
import { Button, Loading, Tag, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { formatSql } from "../ui/format-sql";
import { Icon } from "../ui/icons";
import { marksOf } from "../ui/marks";
import { Problems } from "../ui/problems";
import type { Schema } from "../ui/schema";
import { JsonInput, SchemaForm } from "../ui/schema-form";
import { t } from "../words/language";
import type { Draft, DraftPart } from "./draft";

const SqlEditor = lazy(() => import("../ui/sql-editor"));

type EditorProps = { tables: Table[]; onSave: () => void };

export function Query({ draft, change, problems, tables, onSave }: DraftPart & EditorProps) {
  const planned = draft.tasks.length > 0;
  const wrong = problems.filter((problem) => problem.path === "source_query");
  return (
    <section aria-label={t("Source query")} className="flex flex-col border-b">
      <div className="flex items-center justify-between gap-2 px-4 pt-3 sm:px-6">
        <h2 className="text-sm font-semibold">{planned ? t("Task plan") : t("Source query")}</h2>
        <span className="flex-1" />
        <Button look="quiet" onClick={() => change(formatted(draft))} title={t("Put the query into its standard form")}>
          {t("Format")}
        </Button>
        <Button look="quiet" icon="plus" onClick={() => change(planned ? { tasks: [...draft.tasks, emptyTask(draft.tasks)] } : { tasks: firstTasks(draft), source_query: "" })}>
          {t("Add a step")}
        </Button>
      </div>
      {planned ? (
        <Tasks draft={draft} change={change} problems={problems} tables={tables} onSave={onSave} />
      ) : (
        <div className="min-h-56 px-2 py-2">
          <Suspense fallback={<Loading lines={5} />}>
            <SqlEditor label={t("Source query")} value={draft.source_query} onChange={(source_query) => change({ source_query })} onSave={onSave} tables={tables} marks={marksOf(problems, "source_query")} />
          </Suspense>
        </div>
      )}
      <Problems items={wrong} />
    </section>
  );
}

/** The query in its standard form, wherever it stands. */
function formatted(draft: Draft): Partial<Draft> {
  if (draft.tasks.length === 0) return { source_query: formatSql(draft.source_query) };
  return { tasks: draft.tasks.map((task) => (task.task_type === "SQL" ? { ...task, body: formatSql(task.body) } : task)) };
}

/** What a query may begin with, or why nobody can tell. */
export function Readable({ tables, error, onRetry }: { tables: Table[]; error: Error | null; onRetry: () => void }) {
  if (error) return <Unreadable error={error} onRetry={onRetry} />;
  if (tables.length === 0) return null;
  return (
    <section aria-label={t("Queries may read")} className="px-4 pb-6 sm:px-6">
      <h3 className="mb-2 text-xs font-medium text-muted">{t("Queries may read")}</h3>
      <dl className="grid gap-x-6 gap-y-2 sm:grid-cols-2">
        {tables.slice(0, 24).map((table) => (
          <div key={`${table.schema}.${table.name}`} className="min-w-0 border-l-2 pl-3">
            <dt className="truncate font-mono text-xs font-medium">{`${table.schema}.${table.name}`}</dt>
            <dd className="truncate font-mono text-2xs text-muted" title={table.columns.map((column) => `${column.name} ${column.type}`).join("\n")}>
              {table.columns.map((column) => column.name).join(", ")}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Unreadable({ error, onRetry }: { error: Error; onRetry: () => void }) {
  return (
    <section aria-label={t("Queries may read")} className="px-4 pb-6 sm:px-6">
      <h3 className="mb-2 text-xs font-medium text-muted">{t("Queries may read")}</h3>
      <div role="alert" className="flex flex-wrap items-start gap-3 rounded-md bg-warn-soft p-3">
        <span className="mt-0.5 text-warn">
          <Icon name="warn" size={14} />
        </span>
        <p className="min-w-0 flex-1 basis-60">
          {t("The tables of this source are not known:")} <span className="break-words">{error.message}</span>
        </p>
        <Button onClick={onRetry}>{t("Try again")}</Button>
      </div>
    </section>
  );
}

const emptyTask = (tasks: Task[]): Task => ({
  order_index: Math.max(0, ...tasks.map((task) => task.order_index)) + 1,
  task_type: "PYTHON",
  body: "",
  params: {},
  source_table: null,
  target_table: null,
});

function firstTasks(draft: Draft): Task[] {
  const query: Task = { ...emptyTask([]), task_type: "SQL", body: draft.source_query };
  return [query, emptyTask([query])];
}

function Tasks({ draft, change, problems, tables, onSave }: DraftPart & EditorProps) {
  const steps = useNames("transforms").data?.items ?? [];
  const set = (index: number, part: Partial<Task>): void =>
    change({ tasks: draft.tasks.map((task, at) => (at === index ? { ...task, ...part } : task)) });
  const remove = (index: number): void => {
    const tasks = draft.tasks.filter((_, at) => at !== index);
    const [only] = tasks;
    if (tasks.length === 1 && only?.task_type === "SQL") change({ tasks: [], source_query: only.body });
    else change({ tasks });
  };
  return (
    <ol className="space-y-3 p-4 sm:px-6">
      {draft.tasks.map((task, index) => (
        <li key={index} className="rounded-lg border">
          <div className="flex items-center gap-2 border-b px-3 py-1.5">
            <span className="num text-muted">{index + 1}.</span>
            <Tag>{task.task_type}</Tag>
            <span className="flex-1" />
            {index > 0 && <Button look="quiet" icon="trash" aria-label={t("Remove step {n}", { n: index + 1 })} onClick={() => remove(index)} />}
          </div>
          {task.task_type === "SQL" ? (
            <Suspense fallback={<Loading lines={4} />}>
              <SqlEditor label={t("Query of step {n}", { n: index + 1 })} value={task.body} onChange={(body) => set(index, { body })} onSave={onSave} tables={tables} marks={marksOf(problems, `tasks.${index}.body`)} />
            </Suspense>
          ) : (
            <div className="grid gap-3 p-3 sm:grid-cols-2">
              <label className="space-y-1">
                <span className="text-muted">{t("Python step")}</span>
                <input className={cx(inputLook, "font-mono")} list="steps" value={task.body} onChange={(event) => set(index, { body: event.target.value })} />
                <span className="block text-xs text-muted">{firstLine(steps.find((step) => step.name === task.body)?.doc)}</span>
              </label>
              <Params key={task.body} schema={steps.find((step) => step.name === task.body)?.params} value={task.params} onChange={(params) => set(index, { params })} />
            </div>
          )}
          <Problems items={problems.filter((problem) => problem.path.startsWith(`tasks.${index}`))} />
        </li>
      ))}
      <datalist id="steps">
        {steps.map((step) => (
          <option key={step.name} value={step.name}>
            {firstLine(step.doc)}
          </option>
        ))}
      </datalist>
    </ol>
  );
}

const firstLine = (text: string | undefined): string => text?.trim().split("\n")[0] ?? "";

/** Every step may say what becomes of the rows that it fails on. */
const ERROR_RULE: Record<string, Schema> = {
  on_error: { type: "string", enum: ["fail", "dead_letter"], default: "fail", description: "What happens to rows on which the step fails." },
  max_dead_letters: { type: "integer", minimum: 1, description: "Dead letters before the run stops." },
};

const withErrorRule = (schema: Schema): Schema => ({ ...schema, properties: { ...schema.properties, ...ERROR_RULE } });

/** A form where a runner has told the step's parameters, and JSON for whoever would rather write. */
function Params({ schema, value, onChange }: { schema: Schema | null | undefined; value: Record<string, unknown>; onChange: (next: Record<string, unknown>) => void }) {
  const [raw, setRaw] = useState(false);
  const take = (next: unknown): void => onChange((next ?? {}) as Record<string, unknown>);
  return (
    <div className="min-w-0 space-y-1">
      <span className="flex items-center justify-between gap-2 text-muted">
        {t("Parameters")}
        {schema && (
          <Button look="quiet" className="!h-6" onClick={() => setRaw(!raw)}>
            {raw ? t("As a form") : t("As JSON")}
          </Button>
        )}
      </span>
      {raw || !schema ? (
        <JsonInput label={t("Parameters (JSON)")} value={value} onChange={take} />
      ) : (
        <SchemaForm label={t("Parameters")} schema={withErrorRule(schema)} definitions={schema.$defs ?? {}} value={value} onChange={take} />
      )}
    </div>
  );
}
