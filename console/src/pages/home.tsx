/** Home: what needs attention, what ran in the last day, what comes next, who works. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { useHome, useMay } from "../api/queries";
import type { Attention, AttentionKind, Home } from "../api/types";
import { Ago, Button, Failure, Figures, Loading, PageHead, Panel, PipelineLink } from "../ui/basics";
import { cx } from "../ui/classes";
import { Gantt } from "../ui/gantt";
import { Icon, type IconName } from "../ui/icons";
import { NoPipelines } from "../ui/no-pipelines";
import { Term } from "../ui/terms";
import { count, duration } from "../words/format";
import { t } from "../words/language";
import { scheduleInWords } from "../words/schedule";

export function HomePage() {
  const home = useHome();
  const mayOperate = useMay("operator");
  return (
    <>
      <PageHead title={t("Home")}>
        {mayOperate && (
          <Link to="/new">
            <Button look="primary" icon="plus" tabIndex={-1}>
              {t("New pipeline")}
            </Button>
          </Link>
        )}
      </PageHead>
      {home.error && !home.data ? (
        <Failure error={home.error} onRetry={() => void home.refetch()} />
      ) : !home.data ? (
        <Loading lines={10} />
      ) : home.data.pipelines === 0 ? (
        <NoPipelines />
      ) : (
        <Everything home={home.data} />
      )}
    </>
  );
}

function Everything({ home }: { home: Home }) {
  return (
    <div className="space-y-4 border-t p-4 sm:p-6">
      <Headline home={home} />
      <div className="grid items-start gap-4 xl:grid-cols-[3fr_2fr]">
        <NeedsAttention home={home} />
        <div className="grid gap-4 sm:grid-cols-2 xl:grid-cols-1">
          <Next home={home} />
          <Workers home={home} />
        </div>
      </div>
      <Panel flush title={t("Last {n} hours", { n: home.hours })} action={<Link to="/runs" className="text-muted hover:text-text hover:underline">{t("All runs")}</Link>}>
        {home.activity.length === 0 ? (
          <p className="p-4 text-muted">{t("Nothing ran.")}</p>
        ) : (
          <>
            <Gantt lines={home.activity} until={home.at} hours={home.hours} />
            {home.activity_left_out > 0 && <p className="border-t px-4 py-2 text-muted">{t("{n} other {n|pipeline|pipelines} ran too.", { n: home.activity_left_out })}</p>}
          </>
        )}
      </Panel>
    </div>
  );
}

function Headline({ home }: { home: Home }) {
  const { statuses, runners } = home;
  const failed = statuses.FAILED ?? 0;
  const waiting = statuses.RUN_REQUESTED ?? 0;
  return (
    <Figures
      items={[
        { name: t("Pipelines"), value: count(home.pipelines), note: t("{n} paused", { n: statuses.PAUSED ?? 0 }) },
        { name: t("Running"), value: count((statuses.RUNNING ?? 0) + (statuses.PAUSE_REQUESTED ?? 0)), note: t("{n} queued", { n: waiting }) },
        { name: t("Failed"), value: count(failed), tone: failed ? "bad" : "idle" },
        { name: <Term name="dead letter">{t("Dead letters")}</Term>, value: count(home.dead_letters), tone: home.dead_letters ? "bad" : "idle" },
        {
          name: t("Runners"),
          value: count(runners.alive),
          note: t("{n} of {slots} {slots|slot|slots}", { n: runners.running, slots: runners.capacity }),
          tone: runners.alive === 0 ? "bad" : "idle",
        },
      ]}
    />
  );
}

// --- what needs attention ---------------------------------------------------------------------------------------

const KINDS: Record<AttentionKind, { words: string; icon: IconName; ink: string }> = {
  failed: { words: "Failed", icon: "warn", ink: "text-bad" },
  stale: { words: "Data is older than allowed", icon: "clock", ink: "text-bad" },
  overdue: { words: "Did not start on schedule", icon: "clock", ink: "text-warn" },
  differs: { words: "Differs from its source", icon: "scale", ink: "text-warn" },
  dead_letters: { words: "Dead letters", icon: "letters", ink: "text-bad" },
  blocked: { words: "The platform cannot handle it", icon: "stop", ink: "text-warn" },
  held: { words: "Its checkpoint is held back", icon: "pause", ink: "text-warn" },
  queued: { words: "Has waited long for a runner", icon: "clock", ink: "text-warn" },
};

function NeedsAttention({ home }: { home: Home }) {
  const nobody = home.runners.alive === 0;
  const all = Object.values(home.attention_counts).reduce((sum, n) => sum + n, 0);
  return (
    <Panel flush title={t("Needs attention")} action={all > 0 && <span className="num text-xs text-muted">{count(all)}</span>}>
      {nobody && (
        <p role="alert" className="flex gap-2 border-b bg-bad-soft px-4 py-2.5">
          <span className="mt-0.5 text-bad">
            <Icon name="warn" size={14} />
          </span>
          <span>
            {t("No runner is alive, so nothing runs.")}{" "}
            <Link to="/runners" className="text-accent underline">
              {t("Runners")}
            </Link>
          </span>
        </p>
      )}
      {home.attention.length === 0 ? (
        <p className="flex items-center gap-2 p-4 text-ok">
          <Icon name="check" /> {t("Nothing: all pipelines are fine.")}
        </p>
      ) : (
        <ul aria-label={t("Needs attention")} className="max-h-[28rem] overflow-auto" tabIndex={0}>
          {home.attention.map((one) => (
            <li key={`${one.kind} ${one.pipeline_id}`} className="flex items-start gap-3 border-b px-4 py-2 last:border-b-0">
              <span className={cx("mt-0.5", KINDS[one.kind].ink)}>
                <Icon name={KINDS[one.kind].icon} size={14} />
              </span>
              <span className="min-w-0 flex-1">
                <Place one={one} />
                <span className="block text-muted">{inWords(one)}</span>
                {one.message && (
                  <span className="block truncate text-xs text-muted" title={one.message}>
                    {one.message}
                  </span>
                )}
              </span>
              {one.since && (
                <span className="shrink-0 text-xs leading-5 text-muted">
                  <Ago at={one.since} />
                </span>
              )}
            </li>
          ))}
          {(Object.keys(KINDS) as AttentionKind[]).map((kind) => {
            const more = (home.attention_counts[kind] ?? 0) - home.attention.filter((one) => one.kind === kind).length;
            return (
              more > 0 && (
                <li key={kind} className="px-4 py-2 text-muted">
                  {t(KINDS[kind].words)}: {t("{n} more", { n: more })}
                </li>
              )
            );
          })}
        </ul>
      )}
    </Panel>
  );
}

/** Leads to where something can be done about it. */
function Place({ one }: { one: Attention }) {
  const look = "font-medium hover:text-accent hover:underline";
  if (one.kind === "dead_letters") {
    return (
      <Link to="/dead-letters" search={{ pipeline: one.pipeline }} className={look}>
        {one.pipeline}
      </Link>
    );
  }
  return (
    <Link to="/pipelines/$name" params={{ name: one.pipeline }} search={{ tab: one.kind === "differs" ? "checks" : undefined }} className={look}>
      {one.pipeline}
    </Link>
  );
}

function inWords(one: Attention): ReactNode {
  if (one.kind === "stale" && one.seconds !== null && one.limit_seconds !== null) {
    return t("Data is {age} old; {limit} is allowed", { age: duration(one.seconds), limit: duration(one.limit_seconds) });
  }
  if (one.kind === "differs" && one.count !== null) return t("{n} {n|row differs|rows differ}", { n: one.count });
  if (one.kind === "dead_letters" && one.count !== null) return t("{n} dead {n|letter|letters}", { n: one.count });
  return t(KINDS[one.kind].words);
}

// --- what comes -------------------------------------------------------------------------------------------------

function Next({ home }: { home: Home }) {
  return (
    <Panel flush title={t("Next runs")}>
      {home.upcoming.length === 0 ? (
        <p className="p-4 text-muted">{t("Nothing is on schedule.")}</p>
      ) : (
        <ol aria-label={t("Next runs")}>
          {home.upcoming.map((run) => (
            <li key={run.pipeline_id} className="flex items-baseline gap-3 border-b px-4 py-1.5 last:border-b-0">
              <span className="min-w-0 flex-1 truncate">
                <PipelineLink name={run.pipeline} />
              </span>
              <span className="hidden truncate text-xs text-muted sm:inline">{scheduleInWords(run.schedule_interval)}</span>
              <span className="shrink-0 text-muted">
                <Ago at={run.next_run_at} />
              </span>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

function Workers({ home: { runners } }: { home: Home }) {
  const share = runners.capacity ? Math.min(runners.running / runners.capacity, 1) : 0;
  return (
    <Panel title={t("Runners")} action={<Link to="/runners" className="text-muted hover:text-text hover:underline">{t("All runners")}</Link>}>
      <p className={cx(runners.alive === 0 && "text-bad")}>
        {t("{n} alive, {slots} {slots|slot|slots}, {busy} busy", { n: runners.alive, slots: runners.capacity, busy: runners.running })}
      </p>
      <div className="mt-2 h-1.5 overflow-hidden rounded-full bg-line" aria-hidden="true">
        <div className="h-full rounded-full bg-accent-solid" style={{ width: `${share * 100}%` }} />
      </div>
    </Panel>
  );
}
