/** Filters and views above the list of pipelines. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState, type FormEvent, type ReactNode } from "react";
import type { PipelineOverview } from "../api/types";
import { Button, Dialog, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { Icon } from "../ui/icons";
import { isTyping } from "../ui/shortcuts";
import { count } from "../words/format";
import { t } from "../words/language";
import { KINDS, isPlain, isSame, keepViews, readViews, type PipelinesSearch, type Show, type Sort, type View } from "./pipelines-search";

export function Filters({ lines, shown }: { lines: PipelineOverview[]; shown: number }) {
  const search = useSearch({ from: "/pipelines" });
  const navigate = useNavigate({ from: "/pipelines" });
  const input = useRef<HTMLInputElement>(null);
  const [typed, setTyped] = useState(search.q ?? "");
  const counts = useMemo(() => countKinds(lines), [lines]);
  useEffect(() => setTyped(search.q ?? ""), [search.q]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.key === "/" && !isTyping(event)) {
        event.preventDefault();
        input.current?.focus();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const change = (part: Partial<PipelinesSearch>): void => void navigate({ search: (before) => ({ ...before, ...part }), replace: true });
  return (
    <div className="flex flex-wrap items-center gap-2 px-4 pb-3 sm:px-6">
      <div className="relative w-full sm:w-64">
        <span className="absolute top-2 left-2.5 text-faint">
          <Icon name="search" />
        </span>
        <input
          ref={input}
          type="search"
          aria-label={t("Filter by name, target or status")}
          placeholder={t("Filter  /")}
          className={cx(inputLook, "pl-8")}
          value={typed}
          onChange={(event) => {
            setTyped(event.target.value);
            change({ q: event.target.value || undefined });
          }}
        />
      </div>
      <div className="flex flex-wrap gap-1" role="group" aria-label={t("Show")}>
        <Pill active={!search.show} onClick={() => change({ show: undefined })} count={lines.length}>
          {t("All")}
        </Pill>
        {(Object.keys(KINDS) as Show[]).map((key) => {
          const n = counts[key];
          if (n === 0 && key !== "attention" && search.show !== key) return null;
          return (
            <Pill key={key} active={search.show === key} alarming={key === "attention" && n > 0} onClick={() => change({ show: search.show === key ? undefined : key })} count={n}>
              {t(KINDS[key].words)}
            </Pill>
          );
        })}
        {search.label && (
          <Pill active onClick={() => change({ label: undefined })}>
            <span className="font-mono text-xs">{search.label}</span> <Icon name="close" size={12} />
          </Pill>
        )}
      </div>
      <Views search={search} onChoose={(view) => void navigate({ search: view })} />
      <label className="ml-auto flex items-center gap-2 text-muted">
        <span className="sr-only" aria-live="polite">
          {t("{n} {n|pipeline|pipelines} shown", { n: shown })}
        </span>
        {t("Sort")}
        <select className={cx(inputLook, "w-auto")} value={search.sort ?? "name"} onChange={(event) => change({ sort: event.target.value === "name" ? undefined : (event.target.value as Sort) })}>
          {ORDERS.map(([value, words]) => (
            <option key={value} value={value}>
              {t(words)}
            </option>
          ))}
          {search.sort && !ORDERS.some(([value]) => value === search.sort) && <option value={search.sort}>{t("By column")}</option>}
        </select>
      </label>
    </div>
  );
}

const ORDERS: [Sort, string][] = [
  ["name", "Name"],
  ["freshness", "Oldest data first"],
  ["status", "Status"],
  ["next", "Next run"],
];

function countKinds(lines: PipelineOverview[]): Record<Show, number> {
  const counts: Record<Show, number> = { attention: 0, running: 0, paused: 0, scheduled: 0, disabled: 0 };
  const kinds = Object.keys(KINDS) as Show[];
  for (const line of lines) for (const kind of kinds) if (KINDS[kind].fits(line)) counts[kind] += 1;
  return counts;
}

function Pill(props: { active: boolean; alarming?: boolean; onClick: () => void; children: ReactNode; count?: number }) {
  return (
    <button
      type="button"
      aria-pressed={props.active}
      onClick={props.onClick}
      className={cx(
        "flex h-8 items-center gap-1.5 rounded-md border px-2.5",
        props.active ? "border-line-strong bg-panel font-medium dark:bg-raised" : "border-transparent text-muted hover:bg-line/50 hover:text-text",
      )}
    >
      {props.children}
      {props.count !== undefined && <span className={cx("num text-xs", props.alarming ? "font-semibold text-bad" : "text-faint")}>{count(props.count)}</span>}
    </button>
  );
}

/** Filters and order under a name, kept in this browser. */
function Views({ search, onChoose }: { search: PipelinesSearch; onChoose: (search: PipelinesSearch) => void }) {
  const [views, setViews] = useState(readViews);
  const [naming, setNaming] = useState(false);
  const current = views.find((view) => isSame(view.search, search));
  const keep = (next: View[]): void => {
    setViews(next);
    keepViews(next);
  };
  return (
    <>
      {views.length > 0 && (
        <div className="flex flex-wrap gap-1 border-l pl-2" role="group" aria-label={t("Saved views")}>
          {views.map((view) => (
            <Pill key={view.name} active={view === current} onClick={() => onChoose(view === current ? {} : view.search)}>
              <Icon name="star" size={13} /> {view.name}
            </Pill>
          ))}
        </div>
      )}
      {current ? (
        <Button look="quiet" icon="trash" aria-label={t("Delete the view {name}", { name: current.name })} title={t("Delete the view {name}", { name: current.name })} onClick={() => keep(views.filter((view) => view !== current))} />
      ) : (
        !isPlain(search) && (
          <Button look="quiet" icon="star" onClick={() => setNaming(true)}>
            {t("Save the view")}
          </Button>
        )
      )}
      {naming && (
        <Naming
          onClose={() => setNaming(false)}
          onName={(name) => {
            setNaming(false);
            keep([...views.filter((view) => view.name !== name), { name, search }]);
          }}
        />
      )}
    </>
  );
}

function Naming({ onClose, onName }: { onClose: () => void; onName: (name: string) => void }) {
  const [name, setName] = useState("");
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (name.trim()) onName(name.trim());
  };
  return (
    <Dialog open onClose={onClose} title={t("Save the view")}>
      <form onSubmit={submit} className="space-y-3 pb-2">
        <label className="block space-y-1">
          <span className="text-muted">{t("Name")}</span>
          <input required maxLength={60} className={inputLook} value={name} onChange={(event) => setName(event.target.value)} />
        </label>
        <p className="text-muted">{t("Filters and order are kept in this browser; a link keeps them too.")}</p>
        <div className="flex justify-end gap-2">
          <Button onClick={onClose}>{t("Cancel")}</Button>
          <Button look="primary" type="submit">
            {t("Save")}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
