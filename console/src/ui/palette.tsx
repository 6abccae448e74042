/** Ctrl-K: go anywhere, start anything, by typing. */
import { useNavigate } from "@tanstack/react-router";
import { Dialog } from "radix-ui";
import { useMemo, useState } from "react";
import { useMay, useOverview, useRefresh, verb } from "../api/queries";
import { t } from "../words/language";
import { StatusChip } from "./basics";
import { cx } from "./classes";
import { Icon, type IconName } from "./icons";
import { toast, toastError } from "./toasts";
import type { Status } from "../api/types";

interface Entry {
  key: string;
  text: string;
  icon: IconName;
  status?: Status;
  act: () => void;
}

const SHOWN = 12;

export function Palette({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog.Root open={open} onOpenChange={(next) => !next && onClose()}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <Dialog.Content
          aria-describedby={undefined}
          className="rising fixed top-[14vh] left-1/2 z-50 w-[calc(100vw-2rem)] max-w-xl -translate-x-1/2 overflow-hidden rounded-xl border border-line-strong bg-raised shadow-(--shadow)"
        >
          <Dialog.Title className="sr-only">{t("Search")}</Dialog.Title>
          {open && <Inside onClose={onClose} />}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

function Inside({ onClose }: { onClose: () => void }) {
  const [query, setQuery] = useState("");
  const [chosen, setChosen] = useState(0);
  const entries = useEntries(onClose);
  const found = useMemo(() => match(entries, query), [entries, query]);
  const current = found[Math.min(chosen, found.length - 1)];
  return (
    <>
      <div className="flex items-center gap-2 border-b px-4">
        <Icon name="search" />
        <input
          autoFocus
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={current ? `palette-${current.key}` : undefined}
          aria-label={t("Search pipelines and actions")}
          placeholder={t("Search pipelines and actions")}
          className="h-11 flex-1 bg-transparent text-base outline-none"
          value={query}
          onChange={(event) => {
            setQuery(event.target.value);
            setChosen(0);
          }}
          onKeyDown={(event) => {
            if (event.key === "ArrowDown") setChosen(Math.min(chosen + 1, found.length - 1));
            else if (event.key === "ArrowUp") setChosen(Math.max(chosen - 1, 0));
            else if (event.key === "Enter") current?.act();
            else return;
            event.preventDefault();
          }}
        />
      </div>
      <ul id="palette-list" role="listbox" aria-label={t("Results")} className="max-h-[50vh] overflow-auto p-1.5">
        {found.map((entry) => (
          <li
            key={entry.key}
            id={`palette-${entry.key}`}
            role="option"
            aria-selected={entry === current}
            onClick={entry.act}
            className={cx("flex h-9 cursor-pointer items-center gap-3 rounded-md px-3", entry === current ? "bg-line/80" : "hover:bg-line/40")}
          >
            <span className="text-muted">
              <Icon name={entry.icon} size={14} />
            </span>
            <span className="flex-1 truncate">{entry.text}</span>
            {entry.status && <StatusChip status={entry.status} />}
          </li>
        ))}
        {found.length === 0 && (
          <li role="option" aria-selected="false" className="px-3 py-6 text-center text-muted">
            {t("Nothing found")}
          </li>
        )}
      </ul>
    </>
  );
}

function useEntries(onClose: () => void): Entry[] {
  const navigate = useNavigate();
  const refresh = useRefresh();
  const mayOperate = useMay("operator");
  const pipelines = useOverview().data ?? [];
  return useMemo(() => {
    const go = (to: string): (() => void) => () => {
      onClose();
      void navigate({ to });
    };
    const places: Entry[] = [
      { key: "home", text: t("Home"), icon: "home", act: go("/") },
      { key: "list", text: t("Pipelines"), icon: "pipelines", act: go("/pipelines") },
      { key: "graph", text: t("Graph"), icon: "graph", act: go("/graph") },
      { key: "runs", text: t("Runs"), icon: "runs", act: go("/runs") },
      { key: "connections", text: t("Connections"), icon: "connections", act: go("/connections") },
      { key: "feeds", text: t("Feeds"), icon: "feeds", act: go("/feeds") },
      { key: "runners", text: t("Runners"), icon: "runners", act: go("/runners") },
      { key: "letters", text: t("Dead letters"), icon: "letters", act: go("/dead-letters") },
      { key: "audit", text: t("Audit"), icon: "audit", act: go("/audit") },
      { key: "settings", text: t("Settings"), icon: "settings", act: go("/settings") },
    ];
    if (mayOperate) places.unshift({ key: "new", text: t("New pipeline"), icon: "plus", act: go("/new") });
    const each = pipelines.flatMap((line): Entry[] => {
      const open: Entry = {
        key: line.id,
        text: line.name,
        icon: "arrow",
        status: line.status,
        act: go(`/pipelines/${line.name}`),
      };
      if (!mayOperate) return [open];
      const run = (): void => {
        onClose();
        verb(line.name, "run", { trigger: "manual" }).then((answer) => toast(answer.message), toastError).finally(() => refresh(line.name, line.id));
      };
      return [open, { key: `run-${line.id}`, text: t("Run {name}", { name: line.name }), icon: "play", act: run }];
    });
    return [...places, ...each];
  }, [pipelines, mayOperate, navigate, onClose, refresh]);
}

/** Every word of the query has to be somewhere in the text; what begins with the query stands first. */
function match(entries: Entry[], query: string): Entry[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const fitting = entries.filter((entry) => words.every((word) => entry.text.toLowerCase().includes(word)));
  const begins = (entry: Entry): number => (entry.text.toLowerCase().startsWith(words[0] ?? "") ? 0 : 1);
  return fitting.sort((a, b) => begins(a) - begins(b)).slice(0, SHOWN);
}
