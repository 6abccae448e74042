/** Where the nodes of the graph stand: columns from sources to targets, few crossings, no library. */
import type { Graph, GraphNode } from "../api/types";

export const NODE = { width: 190, height: 44 };
const GAP = { x: 84, y: 14 };
const SWEEPS = 4;

export interface Placed {
  node: GraphNode;
  x: number;
  y: number;
}

export interface Layout {
  nodes: Map<string, Placed>;
  width: number;
  height: number;
}

export function layOut(graph: Graph): Layout {
  const ids = graph.nodes.map((node) => node.id);
  const before = neighbours(graph, "source");
  const after = neighbours(graph, "target");
  const columns = inColumns(ids, before, after);
  for (let sweep = 0; sweep < SWEEPS; sweep++) settle(columns, sweep % 2 === 0 ? before : after, sweep % 2 === 0);
  const tallest = Math.max(0, ...columns.map((column) => column.length));
  const height = tallest * (NODE.height + GAP.y) - GAP.y;
  const nodes = new Map<string, Placed>();
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  columns.forEach((column, x) => {
    const top = (height - (column.length * (NODE.height + GAP.y) - GAP.y)) / 2;
    column.forEach((id, y) => {
      const node = byId.get(id);
      if (node) nodes.set(id, { node, x: x * (NODE.width + GAP.x), y: top + y * (NODE.height + GAP.y) });
    });
  });
  return { nodes, width: columns.length * (NODE.width + GAP.x) - GAP.x, height };
}

/** For each node those on the other end of its edges: who comes before it (`source`), or after it (`target`). */
function neighbours(graph: Graph, end: "source" | "target"): Map<string, string[]> {
  const found = new Map<string, string[]>();
  const own = end === "source" ? "target" : "source";
  for (const edge of graph.edges) {
    if (edge.source !== edge.target) found.set(edge[own], [...(found.get(edge[own]) ?? []), edge[end]]);
  }
  return found;
}

/** Each node one column behind the last that comes before it. A circle (a pipeline that reads its own mart) is cut. */
function inColumns(ids: string[], before: Map<string, string[]>, after: Map<string, string[]>): string[][] {
  const column = new Map<string, number>();
  const waiting = new Map(ids.map((id) => [id, new Set(before.get(id)).size]));
  let ready = ids.filter((id) => waiting.get(id) === 0);
  while (waiting.size > 0) {
    if (ready.length === 0) ready = [[...waiting].sort((one, other) => one[1] - other[1])[0]?.[0] ?? ""];
    const next: string[] = [];
    for (const id of ready) {
      if (!waiting.delete(id)) continue;
      column.set(id, Math.max(-1, ...(before.get(id) ?? []).map((other) => column.get(other) ?? -1)) + 1);
      for (const other of new Set(after.get(id))) {
        const left = (waiting.get(other) ?? 0) - 1;
        if (waiting.has(other)) waiting.set(other, left);
        if (left === 0) next.push(other);
      }
    }
    ready = next;
  }
  const columns: string[][] = [];
  for (const [id, place] of column) (columns[place] ??= []).push(id);
  return columns;
}

/** Orders each column by where the neighbours stand. */
function settle(columns: string[][], neighbours: Map<string, string[]>, forward: boolean): void {
  const place = new Map<string, number>();
  const note = (column: string[]): void => column.forEach((id, index) => place.set(id, (index + 0.5) / column.length));
  columns.forEach(note);
  for (const column of forward ? columns : [...columns].reverse()) {
    const wish = new Map(
      column.map((id) => {
        const others = neighbours.get(id) ?? [];
        const sum = others.reduce((all, other) => all + (place.get(other) ?? 0), 0);
        return [id, others.length ? sum / others.length : (place.get(id) ?? 0)];
      }),
    );
    column.sort((one, other) => (wish.get(one) ?? 0) - (wish.get(other) ?? 0));
    note(column);
  }
}
