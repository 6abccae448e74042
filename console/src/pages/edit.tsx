/** Writing a pipeline: the query, its fields, what is wrong with them, what they would read, what changes. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, useBlocker, useNavigate, useParams } from "@tanstack/react-router";
import { useEffect, useMemo, useState, type ReactNode } from "react";
import { ApiError, get, post, request } from "../api/client";
import { useMay, usePipeline, useRefresh, useTables } from "../api/queries";
import type { Definition, FieldProblem, Pipeline, Preview, Table } from "../api/types";
import { Button, Dialog, Empty, Failure, Loading, Menu, PageHead, Tag, useCopyCurl } from "../ui/basics";
import { cx } from "../ui/classes";
import { Changes, compare } from "../ui/diff";
import { Explain } from "../ui/explain";
import { Icon, type IconName } from "../ui/icons";
import { PreviewPane } from "../ui/preview";
import { PreviewHistory, withPreview, type PreviewEntry } from "../ui/preview-history";
import { toast, toastError } from "../ui/toasts";
import { useValidation, type Verdict } from "../ui/validation";
import { fieldName, problemInWords, topOf } from "../words/fields";
import { t } from "../words/language";
import { CopyTable } from "./copy-table";
import { NEW_DRAFT, changesBetween, definitionOf, draftOf, problemsOfReading, readingPart, savedDefinition, type Draft } from "./draft";
import { Fields } from "./edit-fields";
import { Query, Readable } from "./edit-query";

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

const queryOf = (draft: Draft): string => draft.tasks.find((task) => task.task_type === "SQL")?.body ?? draft.source_query;

function withQuery(draft: Draft, query: string): Partial<Draft> {
  if (draft.tasks.length === 0) return { source_query: query };
  return { tasks: draft.tasks.map((task) => (task.task_type === "SQL" ? { ...task, body: query } : task)) };
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
  const [previews, setPreviews] = useState<PreviewEntry[]>([]);
  const [copying, setCopying] = useState(false);
  const [seen, setSeen] = useState<ReadonlySet<string>>(new Set());
  const [showAll, setShowAll] = useState(saved !== null);
  const readable = useTables(draft.source_connection);
  const tables = readable.data ?? NO_TABLES;
  const definition = useMemo(() => definitionOf(draft), [draft]);
  const before = useMemo(() => (saved ? savedDefinition(saved) : null), [saved]);
  const changes = useMemo(() => compare(before ?? {}, definition), [before, definition]);
  const touched = saved ? changes.length > 0 : JSON.stringify(draft) !== JSON.stringify(NEW_DRAFT);
  const verdict = useValidation(definition, touched || saved !== null);
  const { report } = verdict;
  const problems = allProblems(refused, report?.errors ?? []);
  // What nobody has come to yet is not wrong, it is still to be written.
  const shown = problems.filter((problem) => showAll || seen.has(topOf(problem.path)));
  const navigate = useNavigate();
  const refresh = useRefresh();
  const client = useQueryClient();
  const copyCurl = useCopyCurl();
  useBlocker({ shouldBlockFn: () => touched && !done && !confirm(t("Leave without saving?")), enableBeforeUnload: () => touched && !done });

  const change = (part: Partial<Draft>): void => {
    setRefused([]);
    setSeen((before) => new Set([...before, ...Object.keys(part)]));
    setDraft((now) => ({ ...now, ...part }));
  };
  const leave = (name: string): void => setSeen((before) => (before.has(name) ? before : new Set([...before, name])));
  const save = async (ifMatch = saved?.version): Promise<void> => {
    setBusy(true);
    setShowAll(true);
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
          <VerdictLine problems={shown} missing={problems.filter((problem) => !shown.includes(problem))} touched={touched} verdict={verdict} />
          {!saved && (
            <Button icon="copy" onClick={() => setCopying(true)}>
              {t("Copy a table")}
            </Button>
          )}
          <Link to={saved ? "/pipelines/$name" : "/pipelines"} params={{ name: saved?.name ?? "" }}>
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
          <Query draft={draft} change={change} problems={shown} tables={tables} onSave={() => void save()} />
          <Bottom changes={saved ? changes : null} problems={shown} warnings={report?.warnings ?? []} explain={<Explain outline={verdict.outline} plan={verdict.plan} waiting={verdict.waiting} />}>
            <PreviewPane
              definition={readingPart(definition, problems, saved?.name)}
              blocked={whyNoPreview(draft, problems)}
              preview={preview}
              onPreview={(found) => {
                setPreview(found);
                setPreviews((before) => withPreview(before, queryOf(draft), found));
              }}
            />
            <PreviewHistory history={previews} shown={preview} onShow={(entry) => setPreview(entry.found)} onTake={(entry) => change(withQuery(draft, entry.query))} />
            {!preview && <Readable tables={tables} error={readable.data ? null : readable.error} onRetry={() => void readable.refetch()} />}
          </Bottom>
        </div>
        <Fields draft={draft} change={change} onLeave={leave} problems={shown} isNew={!saved} columns={preview?.columns ?? verdict.columns} />
      </div>
      {copying && (
        <CopyTable
          onClose={() => setCopying(false)}
          onTake={(made) => {
            setCopying(false);
            setPreview(null);
            change(draftOf({ ...(definitionOf(NEW_DRAFT) as unknown as Definition), ...made.definition }));
          }}
        />
      )}
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

/** What the API refused to save, and what it says while one types; the same thing once. */
function allProblems(refused: FieldProblem[], found: FieldProblem[]): FieldProblem[] {
  const known = new Set(refused.map((problem) => problem.path));
  return [...refused, ...found.filter((problem) => !known.has(problem.path))];
}

/** A preview needs the query alone: nothing else keeps it from being shown. */
function whyNoPreview(draft: Draft, problems: FieldProblem[]): string | null {
  const isEmpty = draft.tasks.length === 0 && draft.type === "SQL" && draft.source_query.replace(NEW_DRAFT.source_query, "").trim() === "";
  if (isEmpty) return t("Write a query first.");
  const [first] = problemsOfReading(problems);
  return first ? t("First to correct: {problem}", { problem: problemInWords(first) }) : null;
}

type VerdictProps = { problems: FieldProblem[]; /** What nobody has come to yet. */ missing: FieldProblem[]; touched: boolean; verdict: Verdict };

function VerdictLine({ problems, missing, touched, verdict }: VerdictProps) {
  if (!touched || (!verdict.report && problems.length === 0)) return null;
  if (problems.length > 0) return <Said tone="text-bad" icon="warn" words={t("{n} to correct", { n: problems.length })} />;
  if (missing.length > 0) {
    const fields = [...new Set(missing.map((problem) => fieldName(problem.path)))].join(", ");
    return <Said tone="text-muted" icon="edit" words={t("Still to fill in: {fields}", { fields })} />;
  }
  if (verdict.tried) return <Said tone="text-ok" icon="check" words={t("Valid")} />;
  return <Said tone="text-muted" icon="runs" words={verdict.waiting ? t("A runner is testing it…") : t("The definition is valid; not checked against the source")} />;
}

function Said({ tone, icon, words }: { tone: string; icon: IconName; words: string }) {
  return (
    <span role="status" className={cx("flex items-center gap-1.5", tone)}>
      <Icon name={icon} size={14} />
      {words}
    </span>
  );
}

// --- below the query --------------------------------------------------------------------------------------------

function Bottom({ changes, problems, warnings, explain, children }: { changes: ReturnType<typeof compare> | null; problems: FieldProblem[]; warnings: string[]; explain: ReactNode; children: ReactNode }) {
  const [tab, setTab] = useState<"preview" | "explain" | "changes" | "problems">("preview");
  const tabs = [
    { key: "preview" as const, words: t("Preview") },
    { key: "explain" as const, words: t("Explain") },
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
      {tab === "explain" && explain}
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
              <button type="button" className="font-medium underline" onClick={() => goTo(problem.path)}>
                {fieldName(problem.path)}
              </button>{" "}
              {problemInWords(problem)}
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

/** To the field that a problem is about. */
function goTo(path: string): void {
  const place = document.getElementById(`field-${topOf(path)}`) ?? document.querySelector<HTMLElement>(".cm-content");
  place?.focus();
}

function Conflict(props: { mine: Pipeline | null; theirs: Pipeline | null; onClose: () => void; onTakeTheirs: (theirs: Pipeline) => void; onKeepMine: (theirs: Pipeline) => void }) {
  const { mine, theirs } = props;
  if (!mine || !theirs) return null;
  return (
    <Dialog
      open
      wide
      onClose={props.onClose}
      title={t("Version {n} was saved in the meantime", { n: theirs.version })}
      footer={
        <>
          <Button onClick={props.onClose}>{t("Continue editing")}</Button>
          <Button onClick={() => props.onTakeTheirs(theirs)}>{t("Use the saved version, discard mine")}</Button>
          <Button look="primary" onClick={() => props.onKeepMine(theirs)}>
            {t("Save mine over it")}
          </Button>
        </>
      }
    >
      <p className="mb-3 text-muted">{t("Changes in the saved version:")}</p>
      <Changes changes={compare(savedDefinition(mine), savedDefinition(theirs))} />
    </Dialog>
  );
}
