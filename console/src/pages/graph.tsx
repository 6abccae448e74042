/** What reads what: sources, pipelines and targets from left to right, and who runs after whom. */
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useDeferredValue, useMemo, useState } from "react";
import { useGraph } from "../api/queries";
import type { GraphEdge, GraphNode } from "../api/types";
import { Ago, Empty, Failure, Loading, PageHead, StatusChip, fillOf, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { NODE, layOut, type Layout, type Placed } from "../ui/layers";
import { t } from "../words/language";

const MARGIN = 24;

export interface GraphSearch {
  name?: string;
}

export function GraphPage() {
  const { name = "" } = useSearch({ from: "/graph" });
  const graph = useGraph(useDeferredValue(name));
  const layout = useMemo(() => (graph.data ? layOut(graph.data) : undefined), [graph.data]);
  return (
    <>
      <PageHead title={t("Graph")} note={t("From sources to targets, as queries read them. Dashed: which pipeline runs after which.")}>
        <Filter name={name} />
      </PageHead>
      {graph.data?.next_cursor && (
        <p role="status" className="px-4 pb-3 sm:px-6">
          {t("There are more pipelines than are drawn here: these are the first by name. Filter by name to see others.")}
        </p>
      )}
      {graph.error && !graph.data ? (
        <Failure error={graph.error} onRetry={() => void graph.refetch()} />
      ) : !graph.data || !layout ? (
        <Loading />
      ) : graph.data.nodes.length === 0 && name ? (
        <Empty icon="filter" title={t("Nothing matches these filters")} />
      ) : graph.data.nodes.length === 0 ? (
        <Empty icon="graph" title={t("There is nothing to draw yet")}>
          {t("The graph appears with the first pipeline.")}
        </Empty>
      ) : (
        <Drawing layout={layout} edges={graph.data.edges} />
      )}
    </>
  );
}

function Filter({ name }: { name: string }) {
  const navigate = useNavigate({ from: "/graph" });
  const [typed, setTyped] = useState(name);
  return (
    <input
      type="search"
      aria-label={t("Filter by name")}
      placeholder={t("Filter by name")}
      maxLength={100}
      className={inputLook}
      value={typed}
      onChange={(event) => {
        setTyped(event.target.value);
        void navigate({ search: { name: event.target.value || undefined }, replace: true });
      }}
    />
  );
}

function Drawing({ layout, edges }: { layout: Layout; edges: GraphEdge[] }) {
  const size = { width: layout.width + 2 * MARGIN, height: layout.height + 2 * MARGIN };
  return (
    <div className="overflow-auto border-t" tabIndex={0} role="region" aria-label={t("Graph")}>
      <div className="relative" style={size}>
        <svg {...size} className="absolute inset-0" aria-hidden="true">
          <defs>
            <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
              <path d="M0 0.5 7 4 0 7.5z" fill="var(--muted)" />
            </marker>
          </defs>
          {edges.map((edge) => (
            <Arrow key={`${edge.source} ${edge.kind} ${edge.target}`} edge={edge} layout={layout} />
          ))}
        </svg>
        {[...layout.nodes.values()].map((placed) => (
          <Box key={placed.node.id} placed={placed} />
        ))}
      </div>
    </div>
  );
}

function Arrow({ edge, layout }: { edge: GraphEdge; layout: Layout }) {
  const from = layout.nodes.get(edge.source);
  const to = layout.nodes.get(edge.target);
  if (!from || !to) return null;
  const start = { x: from.x + NODE.width + MARGIN, y: from.y + NODE.height / 2 + MARGIN };
  const end = { x: to.x + MARGIN, y: to.y + NODE.height / 2 + MARGIN };
  const bend = Math.max(40, Math.abs(end.x - start.x) / 2);
  const isWait = edge.kind === "run_after";
  return (
    <path
      data-kind={edge.kind}
      d={`M${start.x} ${start.y} C${start.x + bend} ${start.y} ${end.x - bend} ${end.y} ${end.x - 2} ${end.y}`}
      fill="none"
      stroke={isWait ? (edge.arrived ? "var(--ok-fill)" : "var(--accent)") : "var(--line-strong)"}
      strokeWidth={1.5}
      strokeDasharray={isWait ? "5 4" : undefined}
      markerEnd="url(#tip)"
    />
  );
}

function Box({ placed: { node, x, y } }: { placed: Placed }) {
  const place = { left: x + MARGIN, top: y + MARGIN, width: NODE.width, height: NODE.height };
  const look = "absolute flex flex-col justify-center rounded-md border px-3 text-sm leading-tight";
  if (node.kind !== "pipeline") {
    return (
      <div className={cx(look, "bg-sunken text-muted")} style={place} title={node.name}>
        <span className="truncate font-mono text-xs">{node.name}</span>
        {node.connection && node.connection !== "default" && <span className="truncate text-2xs">{node.connection}</span>}
      </div>
    );
  }
  return (
    <Link
      to="/pipelines/$name"
      params={{ name: node.name }}
      className={cx(look, "border-l-4 bg-panel shadow-sm hover:bg-sunken dark:bg-raised", !node.enabled && "border-dashed")}
      style={{ ...place, borderLeftColor: node.status ? fillOf(node.status) : undefined }}
      title={node.name}
    >
      <span className="truncate font-medium">{node.name}</span>
      <State node={node} />
    </Link>
  );
}

function State({ node }: { node: GraphNode }) {
  return (
    <span className="flex items-center gap-2 truncate text-2xs text-muted">
      <span className="[&>span]:gap-1 [&>span]:text-2xs">{node.status && <StatusChip status={node.status} />}</span>
      {!node.enabled ? t("Disabled") : node.data_as_of && <Ago at={node.data_as_of} />}
    </span>
  );
}
