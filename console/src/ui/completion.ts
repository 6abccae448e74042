/** What the SQL editor offers: the tables that queries may read, and the columns of those that this query names. */
import type { Completion, CompletionContext, CompletionResult } from "@codemirror/autocomplete";
import type { SQLNamespace } from "@codemirror/lang-sql";
import type { Column, Table } from "../api/types";

export function namespaceOf(tables: Table[]): SQLNamespace {
  const schemas: Record<string, Record<string, Completion[]>> = {};
  for (const table of tables) (schemas[table.schema] ??= {})[table.name] = table.columns.map(asCompletion);
  return schemas;
}

const asCompletion = (column: Column): Completion => ({ label: column.name, detail: column.type, type: "property" });

/** Columns without a table in front of them: those of every table behind FROM and JOIN. */
export function columnsOfQuery(context: CompletionContext, tables: Table[]): CompletionResult | null {
  const word = context.matchBefore(/[A-Za-z_][\w$]*/);
  if (!word || context.state.sliceDoc(word.from - 1, word.from) === ".") return null;
  const named = tablesIn(context.state.doc.toString(), tables);
  const options = new Map(named.flatMap((table) => table.columns.map((column) => [column.name, { ...asCompletion(column), boost: 2 }])));
  return options.size ? { from: word.from, options: [...options.values()], validFor: /^[\w$]*$/ } : null;
}

/** Whole names of tables, where one may stand. */
export function tablesBehindFrom(context: CompletionContext, tables: Table[]): CompletionResult | null {
  const found = context.matchBefore(/\b(?:from|join)\s+[\w$.]*/i);
  if (!found || tables.length === 0) return null;
  const typed = /[\w$.]*$/.exec(found.text)?.[0] ?? "";
  const options = tables.map((table): Completion => ({ label: `${table.schema}.${table.name}`, type: "class", boost: 3 }));
  return { from: context.pos - typed.length, options, validFor: /^[\w$.]*$/ };
}

export function tablesIn(query: string, tables: Table[]): Table[] {
  const names = new Set([...query.matchAll(/\b(?:from|join)\s+([\w$]+\.[\w$]+)/gi)].map((match) => match[1]?.toLowerCase()));
  return tables.filter((table) => names.has(`${table.schema}.${table.name}`.toLowerCase()));
}
