/** How a pipeline is defined, and how it was: query, steps, fields; versions with what changed between them. */
import { useState, type ReactNode } from "react";
import { useMay, useVersions } from "../api/queries";
import type { Pipeline, Version } from "../api/types";
import { Ago, Button, Facts, Failure, Loading, Mono, Panel, Tag, given } from "../ui/basics";
import { Changes, compare } from "../ui/diff";
import { Labels } from "../ui/labels";
import { Json, Sql } from "../ui/sql";
import { Term } from "../ui/terms";
import { count } from "../words/format";
import { t } from "../words/language";
import { MODE_WORDS } from "../words/modes";
import { scheduleInWords } from "../words/schedule";
import { RollBack } from "./roll-back";

export function DefinitionTab({ pipeline }: { pipeline: Pipeline }) {
  const options = Object.entries(pipeline.options);
  return (
    <div className="grid items-start gap-4 lg:grid-cols-[3fr_2fr]">
      <div className="min-w-0 space-y-4">
        {pipeline.tasks.length > 0 ? (
          <Panel title={t("Task plan")}>
            <ol className="space-y-4">
              {pipeline.tasks.map((task, index) => (
                <li key={task.order_index} className="space-y-1.5">
                  <p className="flex items-center gap-2">
                    <span className="num text-muted">{index + 1}.</span>
                    <Tag>{task.task_type}</Tag>
                    {task.task_type === "PYTHON" && <b className="font-mono text-xs font-medium">{task.body}</b>}
                    {task.target_table && <span className="text-muted">→ {task.target_table}</span>}
                  </p>
                  {task.task_type === "SQL" && <Sql>{task.body}</Sql>}
                  {Object.keys(task.params).length > 0 && <Json value={task.params} />}
                </li>
              ))}
            </ol>
          </Panel>
        ) : (
          <Panel title={t("Source query")}>
            <Sql>{pipeline.source_query ?? pipeline.source_table ?? "—"}</Sql>
          </Panel>
        )}
      </div>
      <Panel title={t("Fields")}>
        <Facts
          items={[
            [t("Source"), pipeline.source_connection],
            [t("Target"), <Mono key="t">{pipeline.target_table}</Mono>],
            [t("Key"), <Mono key="k">{pipeline.target_key?.join(", ") ?? null}</Mono>],
            [t("Mode"), t(MODE_WORDS[pipeline.mode])],
            ...given(t("Cursor"), [pipeline.incremental_key, pipeline.incremental_id_key].filter(Boolean).join(", ")),
            ...given(t("Python source"), pipeline.python_task),
            [t("Batch size"), count(pipeline.batch_size)],
            [t("Schedule"), scheduleInWords(pipeline.schedule_interval)],
            ...(pipeline.target_table.startsWith("es:") ? [[<Term key="g" name="generation">{t("Generations kept")}</Term>, count(Number(pipeline.options["keep_generations"] ?? 1))] as [ReactNode, ReactNode]] : []),
            ...options.map(([name, value]): [ReactNode, ReactNode] => [name, <Mono key={name}>{JSON.stringify(value)}</Mono>]),
            [t("Labels"), Object.keys(pipeline.labels).length ? <Labels key="l" labels={pipeline.labels} /> : null],
            [t("Created"), <Ago key="cr" at={pipeline.created_at} />],
            [t("Changed"), <Ago key="ch" at={pipeline.updated_at} />],
          ]}
        />
      </Panel>
    </div>
  );
}

export function Versions({ pipeline }: { pipeline: Pipeline }) {
  const versions = useVersions(pipeline.name);
  const [asking, setAsking] = useState<Version | null>(null);
  const items = versions.data?.items ?? [];
  if (versions.isPending) return <Loading />;
  if (versions.error) return <Failure error={versions.error} />;
  return (
    <ol className="space-y-3">
      {asking && items[0] && <RollBack pipeline={pipeline} version={asking} inForce={items[0]} onClose={() => setAsking(null)} />}
      {items.map((version, index) => (
        <li key={version.version}>
          <VersionCard version={version} before={items[index + 1]} isNewest={index === 0} onRollBack={() => setAsking(version)} />
        </li>
      ))}
    </ol>
  );
}

function VersionCard({ version, before, isNewest, onRollBack }: { version: Version; before?: Version; isNewest: boolean; onRollBack: () => void }) {
  const mayOperate = useMay("operator");
  return (
    <Panel
      title={
        <span className="flex flex-wrap items-center gap-2">
          <span className="num">v{version.version}</span>
          {isNewest && <Tag tone="ok">{t("current")}</Tag>}
          <span className="font-normal text-muted">
            {version.changed_by} · <Ago at={version.changed_at} /> {version.change_summary && `· ${version.change_summary}`}
          </span>
        </span>
      }
      action={
        mayOperate &&
        !isNewest && (
          <Button look="quiet" icon="undo" onClick={onRollBack} aria-label={t("Roll back to version {n}", { n: version.version })}>
            {t("Roll back…")}
          </Button>
        )
      }
    >
      {before ? <Changes changes={compare(before.definition, version.definition)} /> : <p className="text-muted">{t("The first version.")}</p>}
    </Panel>
  );
}
