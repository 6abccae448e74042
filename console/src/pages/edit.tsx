/** Writing a pipeline: the query, its fields, what is wrong with them, what they would read, what changes. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, useBlocker, useNavigate, useParams } from "@tanstack/react-router";
import { Suspense, lazy, useEffect, useMemo, useState, type ReactNode } from "react";
import { ApiError, get, post, request } from "../api/client";
import { useMay, useNames, usePipeline, useRefresh, useTables, useTargets } from "../api/queries";
import type { Column, FieldProblem, Pipeline, Preview, Table, Task, ValidationReport } from "../api/types";
import { Button, Dialog, Empty, Failure, Loading, Menu, PageHead, Switch, Tag, cx, inputLook, useCopyCurl } from "../ui/basics";
import { Changes, compare } from "../ui/diff";
import { Icon } from "../ui/icons";
import { PreviewPane } from "../ui/preview";
import { toast, toastError } from "../ui/toasts";
import { t } from "../words/language";
import { scheduleInWords } from "../words/schedule";
import { NEW_DRAFT, changesBetween, definitionOf, draftOf, keyColumns, savedDefinition, type Draft } from "./draft";

const SqlEditor = lazy(() => import("../ui/sql-editor"));

const NO_TABLES: Table[] = [];

export function CreatePage() {
  return useMay("operator") ? <Editor saved={null} /> : <LookOnly title={t("New pipeline")} />;
}

export function EditPage() {
  const { name } = useParams({ from: "/pipelines/$name/edit" });
  const pipeline = usePipeline(name);
  const mayOperate = useMay("operator");
  // What the form began with: news from elsewhere must not change it under the author's hands.
  const [base, setBase] = useState<Pipeline | null>(null);
  useEffect(() => {
    if (pipeline.data && !base) setBase(pipeline.data);
  }, [pipeline.data, base]);
  if (pipeline.error && !base) return <Failure error={pipeline.error} onRetry={() => void pipeline.refetch()} />;
  if (!mayOperate) return <LookOnly title={name} />;
  if (!base) return <Loading lines={12} />;
  return <Editor key={base.version} saved={base} onReload={setBase} />;
}

/** Whoever came here by an address: the controls that lead here are not shown to viewers. */
function LookOnly({ title }: { title: string }) {
  return (
    <>
      <PageHead title={title} />
      <Empty icon="edit" title={t("Changing pipelines needs the role operator")}>
        {t("Ask an admin for a token with that role.")}
      </Empty>
    </>
  );
}

function Editor({ saved, onReload }: { saved: Pipeline | null; onReload?: (pipeline: Pipeline) => void }) {
  const [draft, setDraft] = useState<Draft>(saved ? draftOf(saved) : NEW_DRAFT);
  const [refused, setRefused] = useState<FieldProblem[]>([]);
  const [conflict, setConflict] = useState<Pipeline | null>(null);
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState(false);
  const [preview, setPreview] = useState<Preview | null>(null);
  const tables = useTables(draft.source_connection).data ?? NO_TABLES;
  const definition = useMemo(() => definitionOf(draft), [draft]);
  const before = useMemo(() => (saved ? savedDefinition(saved) : null), [saved]);
  const changes = useMemo(() => compare(before ?? {}, definition), [before, definition]);
  const touched = saved ? changes.length > 0 : JSON.stringify(draft) !== JSON.stringify(NEW_DRAFT);
  const report = useValidation(definition, touched);
  const problems = refused.length ? refused : (report?.errors ?? []);
  const navigate = useNavigate();
  const refresh = useRefresh();
  const client = useQueryClient();
  const copyCurl = useCopyCurl();
  useBlocker({ shouldBlockFn: () => touched && !done && !confirm(t("Leave without saving?")), enableBeforeUnload: () => touched && !done });

  const change = (part: Partial<Draft>): void => {
    setRefused([]);
    setDraft((now) => ({ ...now, ...part }));
  };
  const save = async (ifMatch = saved?.version): Promise<void> => {
    setBusy(true);
    try {
      const answer = saved
        ? await request<Pipeline>("PATCH", `/pipelines/${encodeURIComponent(saved.name)}`, { body: changesBetween(before ?? {}, definition), ifMatch })
        : await post<Pipeline>("/pipelines", definition);
      setDone(true);
      client.setQueryData(["pipeline", answer.name], answer);
      refresh(answer.name);
      toast(saved ? t("Saved as version {n}.", { n: answer.version }) : t("{name} is created.", { name: answer.name }));
      setTimeout(() => void navigate({ to: "/pipelines/$name", params: { name: answer.name } }), 0);
    } catch (error) {
      if (error instanceof ApiError && error.status === 412 && saved) setConflict(await get<Pipeline>(`/pipelines/${saved.id}`));
      else if (error instanceof ApiError && error.fields.length) setRefused(error.fields);
      else toastError(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className="flex min-h-full flex-col">
      <header className="flex flex-wrap items-center justify-between gap-3 border-b px-4 py-3 sm:px-6">
        <div className="min-w-0">
          <h1 className="flex items-center gap-2 text-lg font-semibold tracking-tight">
            {saved ? saved.name : t("New pipeline")}
            {saved && <Tag>v{saved.version}</Tag>}
          </h1>
        </div>
        <div className="flex flex-wrap items-center gap-2">
          <Verdict problems={problems} touched={touched} report={report} />
          <Link to={saved ? "/pipelines/$name" : "/"} params={{ name: saved?.name ?? "" }}>
            <Button tabIndex={-1}>{t("Cancel")}</Button>
          </Link>
          <Button look="primary" busy={busy} disabled={!touched} onClick={() => void save()}>
            {saved ? t("Save") : t("Create")}
          </Button>
          <Menu
            label={t("More")}
            items={[
              {
                label: t("Copy as curl"),
                icon: "copy",
                onSelect: () => (saved ? copyCurl("PATCH", `/pipelines/${saved.name}`, changesBetween(before ?? {}, definition)) : copyCurl("POST", "/pipelines", definition)),
              },
            ]}
          />
        </div>
      </header>
      <div className="grid flex-1 lg:grid-cols-[1fr_21rem]">
        <div className="flex min-w-0 flex-col lg:border-r">
          <Query draft={draft} change={change} problems={problems} tables={tables} onSave={() => void save()} />
          <Bottom changes={saved ? changes : null} problems={problems} warnings={report?.warnings ?? []}>
            <PreviewPane definition={definition} blocked={problems.length > 0} preview={preview} onPreview={setPreview} />
            {!preview && <Readable tables={tables} />}
          </Bottom>
        </div>
        <Fields draft={draft} change={change} problems={problems} isNew={!saved} columns={preview?.columns ?? []} />
      </div>
      <Conflict
        mine={saved}
        theirs={conflict}
        onClose={() => setConflict(null)}
        onTakeTheirs={(theirs) => {
          setConflict(null);
          onReload?.(theirs);
        }}
        onKeepMine={(theirs) => {
          setConflict(null);
          void save(theirs.version);
        }}
      />
    </div>
  );
}

/** The API's own verdict, a moment after the last key. */
function useValidation(definition: Record<string, unknown>, touched: boolean): ValidationReport | null {
  const [report, setReport] = useState<ValidationReport | null>(null);
  useEffect(() => {
    if (!touched) return;
    let current = true;
    const timer = setTimeout(() => {
      post<ValidationReport>("/validate", definition).then(
        (found) => current && setReport(found),
        () => undefined,
      );
    }, 400);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [definition, touched]);
  return report;
}

function Verdict({ problems, touched, report }: { problems: FieldProblem[]; touched: boolean; report: ValidationReport | null }) {
  if (!touched || (!report && problems.length === 0)) return null;
  return (
    <span role="status" className={cx("flex items-center gap-1.5", problems.length ? "text-bad" : "text-ok")}>
      <Icon name={problems.length ? "warn" : "check"} size={14} />
      {problems.length ? t("{n} to correct", { n: problems.length }) : t("Valid")}
    </span>
  );
}

// --- the query --------------------------------------------------------------------------------------------------

type EditorProps = { tables: Table[]; onSave: () => void };
type Part = { draft: Draft; change: (part: Partial<Draft>) => void; problems: FieldProblem[] };

function Query({ draft, change, problems, tables, onSave }: Part & EditorProps) {
  const planned = draft.tasks.length > 0;
  const wrong = problems.filter((problem) => problem.path === "source_query");
  return (
    <section aria-label={t("Source query")} className="flex flex-col border-b">
      <div className="flex items-center justify-between gap-2 px-4 pt-3 sm:px-6">
        <h2 className="text-sm font-semibold">{planned ? t("Task plan") : t("Source query")}</h2>
        <Button look="quiet" icon="plus" onClick={() => change(planned ? { tasks: [...draft.tasks, emptyTask(draft.tasks)] } : { tasks: firstTasks(draft), source_query: "" })}>
          {t("Add a step")}
        </Button>
      </div>
      {planned ? (
        <Tasks draft={draft} change={change} problems={problems} tables={tables} onSave={onSave} />
      ) : (
        <div className="min-h-56 px-2 py-2">
          <Suspense fallback={<Loading lines={5} />}>
            <SqlEditor label={t("Source query")} value={draft.source_query} onChange={(source_query) => change({ source_query })} onSave={onSave} tables={tables} />
          </Suspense>
        </div>
      )}
      <Problems items={wrong} />
    </section>
  );
}

/** What a query may begin with. */
function Readable({ tables }: { tables: Table[] }) {
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

function Tasks({ draft, change, problems, tables, onSave }: Part & EditorProps) {
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
              <SqlEditor label={t("Query of step {n}", { n: index + 1 })} value={task.body} onChange={(body) => set(index, { body })} onSave={onSave} tables={tables} />
            </Suspense>
          ) : (
            <div className="grid gap-3 p-3 sm:grid-cols-2">
              <label className="space-y-1">
                <span className="text-muted">{t("Python step")}</span>
                <input className={cx(inputLook, "font-mono")} list="steps" value={task.body} onChange={(event) => set(index, { body: event.target.value })} />
                <span className="block text-xs text-muted">{firstLine(steps.find((step) => step.name === task.body)?.doc)}</span>
              </label>
              <Params value={task.params} onChange={(params) => set(index, { params })} />
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

function Params({ value, onChange }: { value: Record<string, unknown>; onChange: (next: Record<string, unknown>) => void }) {
  const [text, setText] = useState(JSON.stringify(value, null, 1));
  const [wrong, setWrong] = useState(false);
  return (
    <label className="space-y-1">
      <span className="text-muted">{t("Parameters (JSON)")}</span>
      <textarea
        rows={Math.min(text.split("\n").length, 8)}
        className={cx(inputLook, "block h-auto py-1.5 font-mono text-xs leading-5")}
        value={text}
        aria-invalid={wrong}
        onChange={(event) => {
          setText(event.target.value);
          try {
            onChange(JSON.parse(event.target.value || "{}") as Record<string, unknown>);
            setWrong(false);
          } catch {
            setWrong(true);
          }
        }}
      />
    </label>
  );
}

function Problems({ items, id }: { items: FieldProblem[]; id?: string }) {
  if (items.length === 0) return null;
  return (
    <ul id={id} className="space-y-1 px-4 pb-3 text-bad sm:px-6">
      {items.map((problem) => (
        <li key={problem.message} className="flex gap-1.5">
          <span className="mt-0.5">
            <Icon name="warn" size={13} />
          </span>
          <span className="min-w-0 break-words">{problem.message}</span>
        </li>
      ))}
    </ul>
  );
}

// --- the fields -------------------------------------------------------------------------------------------------

const PLACED = new Set(["name", "description", "source_connection", "target_table", "target_key", "mode", "incremental_key", "incremental_id_key", "batch_size", "schedule_interval", "python_task", "source_query"]);

type InputExtras = { hint?: ReactNode; mono?: boolean; disabled?: boolean; placeholder?: string; list?: string };

function Fields({ draft, change, problems, isNew, columns }: Part & { isNew: boolean; /** Of the last preview. */ columns: Column[] }) {
  const connections = useNames("connections").data?.items ?? [];
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
        />
      )}
    </Field>
  );
  return (
    <form className="space-y-4 p-4 sm:px-6 lg:px-4" onSubmit={(event) => event.preventDefault()}>
      {input("name", t("Name"), { mono: true, disabled: !isNew, placeholder: "film_dim_full" })}
      {input("description", t("Description"))}
      <Field name="source_connection" label={t("Source")} problems={problems}>
        {(attributes) => (
          <select {...attributes} className={inputLook} value={draft.source_connection} onChange={(event) => change({ source_connection: event.target.value })}>
            {[...new Set([draft.source_connection, ...connections.map((one) => one.name)])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )}
      </Field>
      {input("target_table", t("Target"), { mono: true, list: "targets", hint: allowed.length ? t("Allowed: {patterns}", { patterns: allowed.join(", ") }) : undefined })}
      {input("target_key", t("Key columns"), { mono: true, hint: <KeyPicker columns={columns} value={draft.target_key} onChange={(target_key) => change({ target_key })} /> })}
      <fieldset>
        <legend className="mb-1 text-muted">{t("Mode")}</legend>
        <div className="grid grid-cols-2 gap-1 rounded-lg bg-sunken p-1 dark:border">
          {(["full", "incremental"] as const).map((mode) => (
            <label key={mode} className={cx("cursor-pointer rounded-md py-1 text-center has-focus-visible:outline-2", draft.mode === mode ? "bg-panel font-medium shadow-sm dark:bg-line-strong" : "text-muted")}>
              <input type="radio" name="mode" className="sr-only" checked={draft.mode === mode} onChange={() => change({ mode })} />
              {mode === "full" ? t("Full load") : t("Incremental")}
            </label>
          ))}
        </div>
      </fieldset>
      {draft.mode === "incremental" && (
        <div className="grid grid-cols-2 gap-3">
          {input("incremental_key", t("Cursor column"), { mono: true, list: "columns", placeholder: "updated_at" })}
          {input("incremental_id_key", t("Tie-breaker"), { mono: true, list: "columns", placeholder: "id" })}
        </div>
      )}
      {input("schedule_interval", t("Schedule"), { mono: true, placeholder: "15m, 0 3 * * * Europe/Moscow", hint: scheduleInWords(draft.schedule_interval || null) })}
      {input("batch_size", t("Batch size"), { mono: true })}
      <div className="flex items-center justify-between">
        <span className="text-muted">{t("Enabled")}</span>
        <Switch checked={draft.enabled} label={t("Enabled")} onChange={(enabled) => change({ enabled })} />
      </div>
      <details open={draft.options !== "{}"}>
        <summary className="text-muted">{t("Options")}</summary>
        <textarea aria-label={t("Options (JSON)")} rows={5} className={cx(inputLook, "mt-2 h-auto py-2 font-mono text-xs")} value={draft.options} onChange={(event) => change({ options: event.target.value })} />
        <Problems items={problems.filter((problem) => problem.path.startsWith("options"))} />
      </details>
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
      <Problems items={problems.filter((problem) => !PLACED.has(problem.path) && !problem.path.startsWith("options") && !problem.path.startsWith("tasks."))} />
    </form>
  );
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
            <li key={problem.message}>{problem.message}</li>
          ))}
        </ul>
      ) : (
        props.hint && <div className="text-xs text-muted">{props.hint}</div>
      )}
    </div>
  );
}

// --- below the query --------------------------------------------------------------------------------------------

function Bottom({ changes, problems, warnings, children }: { changes: ReturnType<typeof compare> | null; problems: FieldProblem[]; warnings: string[]; children: ReactNode }) {
  const [tab, setTab] = useState<"preview" | "changes" | "problems">("preview");
  const tabs = [
    { key: "preview" as const, words: t("Preview") },
    ...(changes ? [{ key: "changes" as const, words: t("Changes"), count: changes.length }] : []),
    { key: "problems" as const, words: t("Problems"), count: problems.length + warnings.length },
  ];
  return (
    <section aria-label={t("Results")} className="min-w-0 flex-1">
      <div role="tablist" className="flex gap-1 border-b px-4 sm:px-6">
        {tabs.map((one) => (
          <button
            key={one.key}
            type="button"
            role="tab"
            aria-selected={tab === one.key}
            onClick={() => setTab(one.key)}
            className={cx("-mb-px border-b-2 px-2 py-2", tab === one.key ? "border-accent font-medium" : "border-transparent text-muted")}
          >
            {one.words}
            {"count" in one && !!one.count && <span className="num ml-1.5 text-xs text-faint">{one.count}</span>}
          </button>
        ))}
      </div>
      <div className={tab === "preview" ? "" : "hidden"}>{children}</div>
      {tab === "changes" && (
        <div className="p-4 sm:px-6">
          <Changes changes={changes ?? []} />
        </div>
      )}
      {tab === "problems" && (
        <ul className="space-y-2 p-4 sm:px-6">
          {problems.length + warnings.length === 0 && <li className="text-muted">{t("None.")}</li>}
          {problems.map((problem) => (
            <li key={problem.path + problem.message} className="text-bad">
              <code className="font-mono text-xs">{problem.path}</code> {problem.message}
            </li>
          ))}
          {warnings.map((warning) => (
            <li key={warning} className="text-warn">
              {warning}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Conflict(props: { mine: Pipeline | null; theirs: Pipeline | null; onClose: () => void; onTakeTheirs: (theirs: Pipeline) => void; onKeepMine: (theirs: Pipeline) => void }) {
  const { mine, theirs } = props;
  if (!mine || !theirs) return null;
  return (
    <Dialog
      open
      wide
      onClose={props.onClose}
      title={t("Somebody saved version {n} meanwhile", { n: theirs.version })}
      footer={
        <>
          <Button onClick={props.onClose}>{t("Go on editing")}</Button>
          <Button onClick={() => props.onTakeTheirs(theirs)}>{t("Take theirs, drop mine")}</Button>
          <Button look="primary" onClick={() => props.onKeepMine(theirs)}>
            {t("Save mine on top")}
          </Button>
        </>
      }
    >
      <p className="mb-3 text-muted">{t("This is what they changed:")}</p>
      <Changes changes={compare(savedDefinition(mine), savedDefinition(theirs))} />
    </Dialog>
  );
}
