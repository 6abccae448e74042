/** The processes that do the work. */
import { useRunners } from "../api/queries";
import type { Runner } from "../api/types";
import { Ago, Empty, Failure, Loading, PageHead, PipelineLink, Tag, tableLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { t } from "../words/language";

export function RunnersPage() {
  const runners = useRunners();
  const items = runners.data?.items ?? [];
  const alive = items.filter((runner) => runner.alive);
  return (
    <>
      <PageHead title={t("Runners")} note={runners.data && t("{n} alive, {slots} {slots|slot|slots}, {busy} busy", { n: alive.length, slots: sum(alive, "capacity"), busy: sum(alive, "running") })} />
      {runners.error && !runners.data ? (
        <Failure error={runners.error} onRetry={() => void runners.refetch()} />
      ) : runners.isPending ? (
        <Loading />
      ) : items.length === 0 ? (
        <Empty icon="runners" title={t("No runner is registered")}>
          {t("Without one, nothing runs. Start it with")} <code className="font-mono text-xs">vitrina runner</code>.
        </Empty>
      ) : (
        <div className="overflow-x-auto border-t sm:px-3" tabIndex={0} role="region" aria-label={t("Runners")}>
          <table className="num w-full min-w-[44rem]">
            <thead>
              <tr className={tableLook.head}>
                <th scope="col">{t("State")}</th>
                <th scope="col">{t("Host")}</th>
                <th scope="col">{t("Load")}</th>
                <th scope="col">{t("Current run")}</th>
                <th scope="col">{t("Version")}</th>
                <th scope="col">{t("Last heartbeat")}</th>
                <th scope="col">{t("Started")}</th>
              </tr>
            </thead>
            <tbody>
              {items.map((runner) => (
                <Line key={runner.id} runner={runner} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

const sum = (runners: Runner[], field: "capacity" | "running"): number => runners.reduce((all, one) => all + one[field], 0);

function Line({ runner }: { runner: Runner }) {
  return (
    <tr className={tableLook.row}>
      <td>
        <span className={cx("flex items-center gap-2 font-medium", runner.alive ? "text-ok" : "text-muted")}>
          <span className={cx("size-2 rounded-full", runner.alive ? "bg-ok-fill" : "bg-idle-fill")} />
          {runner.alive ? t("Alive") : t("Lost")}
        </span>
      </td>
      <td>
        {runner.host}
        <span className="text-muted"> · {runner.pid}</span>
      </td>
      <td>
        <span className="flex items-center gap-2" title={t("{n} of {slots} {slots|slot|slots}", { n: runner.running, slots: runner.capacity })}>
          <span className="h-1.5 w-16 overflow-hidden rounded-full bg-line">
            <span className="block h-full bg-accent-solid" style={{ width: `${(100 * runner.running) / Math.max(runner.capacity, 1)}%` }} />
          </span>
          {runner.running}/{runner.capacity}
        </span>
      </td>
      <td>
        <span className="flex flex-wrap gap-x-3">
          {runner.pipelines.length === 0 && <span className="text-faint">—</span>}
          {runner.pipelines.map((pipeline, index) => (
            <PipelineLink key={index} name={String(pipeline["name"] ?? pipeline["pipeline"] ?? "")} />
          ))}
        </span>
      </td>
      <td>
        <Tag>{runner.version}</Tag>
      </td>
      <td className="text-muted">
        <Ago at={runner.heartbeat_at} />
      </td>
      <td className="text-muted">
        <Ago at={runner.started_at} />
      </td>
    </tr>
  );
}
