/** Puts a query into its standard form: one clause a line, lists indented. Only blanks and the case of keywords change. */

interface Token {
  kind: "word" | "comment" | "line-comment" | "mark" | "other";
  text: string;
}

const TOKENS =
  /(--[^\n]*)|(\/\*[\s\S]*?\*\/)|('(?:[^']|'')*'|"(?:[^"]|"")*"|(\$[A-Za-z_]*\$)[\s\S]*?\4)|([A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*)|(\d[\w.]*)|(::|[<>=!~@#%^&|`?+\-*/]+|:\w+)|([(),.;[\]:])/g;

const KEYWORDS = new Set(
  (
    "select from where and or not in is null as on join left right full inner outer cross natural lateral group by order having limit offset fetch " +
    "with recursive materialized union all except intersect distinct case when then else end between like ilike similar exists any some filter over partition " +
    "asc desc nulls first last true false interval cast using values within array window rows range groups preceding following unbounded current row ties only next"
  ).split(" "),
);

/** Words that begin a line of their own. */
const CLAUSES = new Set(["select", "from", "where", "group", "order", "having", "limit", "offset", "fetch", "union", "except", "intersect", "values", "window", "with"]);
const JOINS = new Set(["join", "left", "right", "full", "inner", "cross", "natural"]);
/** Behind these a list or a condition follows, whose parts stand below each other. */
const LISTS = new Set(["select", "group", "order", "window", "with"]);
const CONDITIONS = new Set(["where", "having", "on"]);

export function tokensOf(query: string): Token[] {
  return [...query.matchAll(TOKENS)].map((match): Token => {
    const [text, line, block, , , word, , , mark] = match;
    if (line) return { kind: "line-comment", text };
    if (block) return { kind: "comment", text };
    if (word) return { kind: "word", text: KEYWORDS.has(word.toLowerCase()) ? word.toUpperCase() : word };
    return { kind: mark ? "mark" : "other", text };
  });
}

interface Level {
  indent: number;
  clause: string;
  /** A bracket around a query is broken into lines, one around arguments is not. */
  isQuery: boolean;
  between: boolean;
}

/** The query in its standard form; one with a string that never ends stays as it is. */
export function formatSql(query: string): string {
  const tokens = tokensOf(query);
  return bare(tokens.map((token) => token.text).join("")) === bare(query) ? new Writer(tokens).write() : query;
}

const bare = (text: string): string => text.replace(/\s+/g, "").toLowerCase();

class Writer {
  private lines: string[] = [];
  private line = "";
  private levels: Level[] = [{ indent: 0, clause: "", isQuery: true, between: false }];

  constructor(private readonly tokens: Token[]) {}

  write(): string {
    this.tokens.forEach((token, index) => this.put(token, index));
    this.newLine(0);
    return this.lines.join("\n").trim();
  }

  private get level(): Level {
    return this.levels[this.levels.length - 1] as Level;
  }

  private put(token: Token, index: number): void {
    const word = token.kind === "word" ? token.text.toLowerCase() : "";
    const before = this.tokens[index - 1];
    if (token.kind === "line-comment") {
      this.add(token.text, before);
      this.newLine(this.level.indent + 1);
      return;
    }
    if (token.text === "(" || token.text === "[") return this.open(token.text, index, before);
    if (token.text === ")" || token.text === "]") return this.close(token.text);
    if (this.level.isQuery && word) this.begin(word, before);
    this.add(token.text, before);
    if (!this.level.isQuery) return;
    if (token.text === "," && LISTS.has(this.level.clause)) this.newLine(this.level.indent + 1);
    const next = this.tokens[index + 1]?.text.toLowerCase() ?? "";
    const listBegins = (word === "select" && next !== "distinct") || (word === "distinct" && next !== "on") || word === "by";
    if (listBegins && this.isLongList(index)) this.newLine(this.level.indent + 1);
  }

  /** Whether a clause has more than one part: a single column stays beside its keyword. */
  private isLongList(from: number): boolean {
    let depth = 0;
    for (const token of this.tokens.slice(from + 1)) {
      if (token.text === "(" || token.text === "[") depth += 1;
      if ((token.text === ")" || token.text === "]") && --depth < 0) return false;
      if (depth === 0 && token.text === ",") return true;
      if (depth === 0 && token.kind === "word" && CLAUSES.has(token.text.toLowerCase())) return false;
    }
    return false;
  }

  private begin(word: string, before: Token | undefined): void {
    const previous = before?.kind === "word" ? before.text.toLowerCase() : "";
    const { level } = this;
    if (word === "between") level.between = true;
    if (CLAUSES.has(word) && !(word === "order" && previous === "(") && !(word === "from" && previous === "distinct")) {
      this.newLine(level.indent);
      level.clause = word;
    } else if (JOINS.has(word) && !JOINS.has(previous) && previous !== "outer" && !(word === "full" && level.clause === "select")) {
      this.newLine(level.indent);
      level.clause = "join";
    } else if (word === "on") level.clause = "on";
    else if (word === "and" && level.between) level.between = false;
    else if ((word === "and" || word === "or") && CONDITIONS.has(level.clause)) this.newLine(level.indent + 1);
  }

  private open(bracket: string, index: number, before: Token | undefined): void {
    const next = this.tokens[index + 1]?.text.toLowerCase() ?? "";
    const isQuery = next === "select" || next === "with";
    this.add(bracket, before);
    this.levels.push({ indent: this.level.indent + (isQuery ? 1 : 0), clause: "", isQuery, between: false });
    if (isQuery) this.newLine(this.level.indent);
  }

  private close(bracket: string): void {
    const closed = this.levels.length > 1 ? this.levels.pop() : undefined;
    if (closed?.isQuery) this.newLine(this.level.indent);
    this.line += bracket;
  }

  private newLine(indent: number): void {
    if (this.line.trim()) this.lines.push(this.line.trimEnd());
    this.line = "  ".repeat(indent);
  }

  private add(text: string, before: Token | undefined): void {
    const tight = !this.line.trim() || /[([.]$|::$/.test(this.line) || /^[),.;[\]]$|^::$/.test(text) || (text === "(" && isCall(before)) || (before?.text === ":" && this.line.endsWith(":"));
    this.line += (tight ? "" : " ") + text;
  }
}

/** `count(`, but `IN (`. */
function isCall(before: Token | undefined): boolean {
  return before !== undefined && before.kind === "word" && !(KEYWORDS.has(before.text.toLowerCase()) && before.text.toLowerCase() !== "array" && before.text.toLowerCase() !== "cast");
}
