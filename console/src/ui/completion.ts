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

const NO_ALIASES = new Set("where on using join left right full inner outer cross natural lateral group order having limit offset union except intersect as window fetch for tablesample".split(" "));

/** Which table each alias of the query stands for: `FROM ugc.ratings r`, `JOIN content.film_work AS f`, and in lists. */
export function aliasesIn(query: string, tables: Table[]): Map<string, Table> {
  const known = new Map(tables.map((table) => [`${table.schema}.${table.name}`.toLowerCase(), table]));
  const found = new Map<string, Table>();
  for (const [, name = "", alias = ""] of query.matchAll(/(?:\bfrom|\bjoin|,)\s+(?:only\s+)?([\w$]+\.[\w$]+)(?:\s+as)?\s+([A-Za-z_][\w$]*)/gi)) {
    const table = known.get(name.toLowerCase());
    if (table && !NO_ALIASES.has(alias.toLowerCase())) found.set(alias.toLowerCase(), table);
  }
  return found;
}

/** Columns behind `r.`, where `r` stands for a table. */
export function columnsOfAlias(context: CompletionContext, tables: Table[]): CompletionResult | null {
  const typed = context.matchBefore(/[A-Za-z_][\w$]*\.[\w$]*/);
  if (!typed) return null;
  const [alias = ""] = typed.text.split(".");
  const table = aliasesIn(context.state.doc.toString(), tables).get(alias.toLowerCase());
  if (!table) return null;
  return { from: typed.from + alias.length + 1, options: table.columns.map((column) => ({ ...asCompletion(column), boost: 4 })), validFor: /^[\w$]*$/ };
}
