/** What is worked out behind the pages: the age of data, and what the editor offers. */
import { CompletionContext } from "@codemirror/autocomplete";
import { EditorState } from "@codemirror/state";
import { describe, expect, it } from "vitest";
import type { GraphEdge, GraphNode, Table } from "../api/types";
import { aliasesIn, columnsOfAlias, columnsOfQuery, tablesBehindFrom } from "./completion";
import { formatSql, tokensOf } from "./format-sql";
import { labelTexts, labelsIn } from "./label-words";
import { layOut, type Layout } from "./layers";
import { dataAsOf, lagOf, niceSeconds, niceTop } from "./scales";

describe("the age of a mart's data", () => {
  const at = (second: number): string => new Date(second * 1000).toISOString();
  const run = (status: "SUCCESS" | "FAILED", from: number, to: number) => ({ status, started_at: at(from), finished_at: at(to) });
  it("grows until a run succeeds, through one that fails", () => {
    const points = lagOf([run("SUCCESS", 0, 10), run("FAILED", 50, 60), run("SUCCESS", 100, 105)], 200_000);
    expect(points).toEqual([
      { at: 10_000, seconds: 10 },
      { at: 105_000, seconds: 105 },
      { at: 105_000, seconds: 5 },
      { at: 200_000, seconds: 100 },
    ]);
  });
  it.each([
    [[], "10:00", "10:00"],
    [["films"], "10:00", "09:00"],
    [["films"], null, null],
  ])("runs after %s: with a success at %s it is of %s", (upstreams, last_success_at, expected) => {
    const run_after = upstreams.map((pipeline) => ({ pipeline, only_if_changed: false }));
    const data_as_of = last_success_at && "09:00";
    expect(dataAsOf({ run_after, mode: "full" }, { last_success_at, data_as_of })).toBe(expected);
  });
  it("is the moment that a live pipeline's target shows", () =>
    expect(dataAsOf({ run_after: [], mode: "live" }, { last_success_at: "10:00", data_as_of: "12:00" })).toBe("12:00"));
  it("is unknown before the first success", () => expect(lagOf([run("FAILED", 0, 10)], 20_000)).toEqual([]));
  it.each([
    [0.3, 1],
    [45, 60],
    [3601, 7200],
    [1e6, 1e6],
    [2e6, 2e6],
  ])("%s s fit under %s s", (seconds, top) => expect(niceSeconds(seconds)).toBe(top));
  it("has round figures", () => expect([0, 7, 298, 1000].map(niceTop)).toEqual([1, 10, 500, 1000]));
});

describe("completion", () => {
  const column = (name: string) => ({ name, type: "text" });
  const tables: Table[] = [
    { schema: "content", name: "film_work", columns: [column("id"), column("title")] },
    { schema: "ugc", name: "ratings", columns: [column("id"), column("rating")] },
  ];
  const offered = (text: string, ask: typeof columnsOfQuery): string[] | null => {
    const place = text.indexOf("|");
    const context = new CompletionContext(EditorState.create({ doc: text.replace("|", "") }), place, false);
    return ask(context, tables)?.options.map((option) => option.label) ?? null;
  };
  it("offers the columns of the tables that the query names", () => {
    expect(offered("SELECT r| FROM ugc.ratings", columnsOfQuery)).toEqual(["id", "rating"]);
    expect(offered("SELECT t| FROM ugc.ratings r JOIN content.film_work f ON true", columnsOfQuery)).toEqual(["id", "title", "rating"]);
  });
  it("leaves what stands behind a dot to the table before it", () => expect(offered("SELECT r.i| FROM ugc.ratings r", columnsOfQuery)).toBeNull());
  it("offers tables where one may stand", () => {
    expect(offered("SELECT 1 FROM |", tablesBehindFrom)).toEqual(["content.film_work", "ugc.ratings"]);
    expect(offered("SELECT 1 FROM a JOIN ugc.r|", tablesBehindFrom)).toEqual(["content.film_work", "ugc.ratings"]);
    expect(offered("SELECT fr|", tablesBehindFrom)).toBeNull();
  });
});

describe("the graph's columns", () => {
  const node = (id: string): GraphNode => ({ id, kind: "pipeline", name: id, connection: null, status: "IDLE", enabled: true, data_as_of: null });
  const edge = (source: string, target: string): GraphEdge => ({ source, target, kind: "reads", arrived: null, only_if_changed: false });
  const draw = (edges: [string, string][]): Layout => {
    const ids = [...new Set(edges.flat())];
    return layOut({ nodes: ids.map(node), edges: edges.map(([source, target]) => edge(source, target)), next_cursor: null });
  };
  const x = (layout: Layout, id: string): number => layout.nodes.get(id)?.x ?? NaN;

  it("lead from left to right, the longest way counts", () => {
    const layout = draw([["a", "b"], ["b", "c"], ["a", "c"]]);
    expect(x(layout, "a")).toBeLessThan(x(layout, "b"));
    expect(x(layout, "b")).toBeLessThan(x(layout, "c"));
  });

  it("hold every node once, also in circles", () => {
    const layout = draw([["a", "b"], ["b", "a"], ["b", "b"], ["x", "a"]]);
    const places = [...layout.nodes.values()].map(({ x, y }) => `${x} ${y}`);
    expect([...layout.nodes.keys()].sort()).toEqual(["a", "b", "x"]);
    expect(new Set(places).size).toBe(3);
  });

  it("do not cross where they need not", () => {
    const layout = draw([["a", "y"], ["b", "x"]]);
    const y = (id: string): number => layout.nodes.get(id)?.y ?? NaN;
    expect(Math.sign(y("a") - y("b"))).toBe(Math.sign(y("y") - y("x")));
  });

  it("are none for an empty graph", () => {
    expect(layOut({ nodes: [], edges: [], next_cursor: null }).nodes.size).toBe(0);
  });
});

describe("a query in its standard form", () => {
  it.each([
    ["select 1", "SELECT 1"],
    ["select a,b from s.t", "SELECT\n  a,\n  b\nFROM s.t"],
    ["select count(*) from s.t where a in (1,2) and b between 1 and 2 or c = 'x  y'", "SELECT count(*)\nFROM s.t\nWHERE a IN (1, 2)\n  AND b BETWEEN 1 AND 2\n  OR c = 'x  y'"],
    ["select t.a from s.t t left outer join s.u u on u.id=t.id and u.x>0", "SELECT t.a\nFROM s.t t\nLEFT OUTER JOIN s.u u ON u.id = t.id\n  AND u.x > 0"],
    ["with x as (select a from s.t) select a::int from x order by a desc, b", "WITH x AS (\n  SELECT a\n  FROM s.t\n)\nSELECT a::int\nFROM x\nORDER BY\n  a DESC,\n  b"],
    ["select a -- why\nfrom s.t", "SELECT a -- why\nFROM s.t"],
    ["select x[1], $$it's$$, \"A b\", array[1,2] from s.t where u >= :since", "SELECT\n  x[1],\n  $$it's$$,\n  \"A b\",\n  ARRAY[1, 2]\nFROM s.t\nWHERE u >= :since"],
  ])("%s", (query, wanted) => expect(formatSql(query)).toBe(wanted));
  it.each(["select 'never closed", "select a /* never closed"])("leaves what it cannot read: %s", (query) => expect(bare(formatSql(query))).toBe(bare(query)));
  it("changes nothing but blanks and the case of keywords, however often", () => {
    const query = "with q as (select f.id, array_agg(g.name order by g.name) filter (where g.name is not null) as names from content.film_work as f left join content.genre g on (g.id = f.id) group by f.id) select *, case when id is null then 'a''b' else \"X y\" end from q where id in (select id from ugc.r where x->>'k' ~ '^a' and not b) limit 5";
    const once = formatSql(query);
    expect(tokensOf(once)).toEqual(tokensOf(query));
    expect(formatSql(once)).toBe(once);
  });
});

const bare = (text: string): string => text.replace(/\s+/g, "").toLowerCase();

describe("aliases of a query", () => {
  const films: Table = { schema: "content", name: "film_work", columns: [{ name: "title", type: "text" }] };
  const ratings: Table = { schema: "ugc", name: "ratings", columns: [{ name: "rating", type: "integer" }] };
  it("stand for their tables", () => {
    const found = aliasesIn("SELECT 1 FROM content.film_work AS f, ugc.ratings r JOIN ugc.ratings x ON true LEFT JOIN content.film_work WHERE true", [films, ratings]);
    expect([...found].map(([alias, table]) => `${alias}=${table.name}`)).toEqual(["f=film_work", "r=ratings", "x=ratings"]);
  });
  it("offer the columns of their tables behind a dot", () => {
    const text = "SELECT r. FROM ugc.ratings r";
    const context = new CompletionContext(EditorState.create({ doc: text }), "SELECT r.".length, true);
    expect(columnsOfAlias(context, [films, ratings])).toMatchObject({ from: 9, options: [{ label: "rating" }] });
  });
});

describe("labels in words", () => {
  it("come back as they were", () => expect(labelsIn(labelTexts({ team: "core", plain: "" }).join(", "))).toEqual({ team: "core", plain: "" }));
  it("keep what stands behind the first sign", () => expect(labelsIn("a=b=c")).toEqual({ a: "b=c" }));
});
