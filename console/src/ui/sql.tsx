/** Queries and JSON to be read: the words of a query are told apart by colour, without loading the editor. */
import type { ReactNode } from "react";

const KEYWORDS = new Set(
  (
    "select from where and or not in is null as on join left right full inner outer cross lateral group by order having limit offset " +
    "with recursive union all except intersect distinct case when then else end between like ilike exists any some filter over partition " +
    "asc desc nulls first last true false interval cast using values within array window rows range"
  ).split(" "),
);

const PARTS = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^']|'')*')|\b(\d+(?:\.\d+)?)\b|([A-Za-z_][\w$]*)/g;

export function Sql({ children }: { children: string }) {
  return <Code>{coloured(children)}</Code>;
}

export function Json({ value }: { value: unknown }) {
  return <Code>{JSON.stringify(value, null, 2)}</Code>;
}

function Code({ children }: { children: ReactNode }) {
  return (
    <pre tabIndex={0} className="max-h-[40rem] overflow-auto rounded-md bg-sunken p-3 font-mono text-xs leading-relaxed">
      {children}
    </pre>
  );
}

function coloured(text: string): ReactNode[] {
  const parts: ReactNode[] = [];
  let end = 0;
  for (const match of text.matchAll(PARTS)) {
    const look = lookOf(match);
    if (!look) continue;
    parts.push(text.slice(end, match.index), <span key={match.index} className={look}>{match[0]}</span>);
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

function lookOf([, comment, string, number, word]: RegExpMatchArray): string | null {
  if (comment) return "text-faint italic";
  if (string) return "text-ok";
  if (number) return "text-warn";
  return word && KEYWORDS.has(word.toLowerCase()) ? "text-accent" : null;
}
