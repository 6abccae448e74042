/** The logs of source databases that live pipelines follow: who reads them, how far behind they are, what they cost. */
import { useFeeds } from "../api/queries";
import type { Feed, FeedFollower } from "../api/types";
import { Ago, Empty, Failure, Loading, PageHead, PipelineLink, tableLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { bytes, duration } from "../words/format";
import { t } from "../words/language";

export function FeedsPage() {
  const feeds = useFeeds();
  const items = feeds.data?.items ?? [];
  return (
    <>
      <PageHead title={t("Feeds")} note={t("The logs of source databases, which live pipelines follow.")} />
      {feeds.error && !feeds.data ? (
        <Failure error={feeds.error} onRetry={() => void feeds.refetch()} />
      ) : feeds.isPending ? (
        <Loading />
      ) : items.length === 0 ? (
        <Empty icon="feeds" title={t("No feed is open")}>
          {t("A pipeline with the mode live opens one on its source.")}
        </Empty>
      ) : (
        <div className="overflow-x-auto border-t sm:px-3" tabIndex={0} role="region" aria-label={t("Feeds")}>
          <table className="num w-full min-w-[52rem]">
            <thead>
              <tr className={tableLook.head}>
                <th scope="col">{t("State")}</th>
                <th scope="col">{t("Connection")}</th>
                <th scope="col">{t("Behind")}</th>
                <th scope="col">{t("Log kept by the source")}</th>
                <th scope="col">{t("Last change")}</th>
                <th scope="col">{t("Followed by")}</th>
              </tr>
            </thead>
            <tbody>
              {items.map((feed) => (
                <Line key={feed.id} feed={feed} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Line({ feed }: { feed: Feed }) {
  const isWell = feed.is_owned && !feed.problem;
  return (
    <tr className={tableLook.row}>
      <td className="align-top">
        <span className={cx("flex items-center gap-2 font-medium", isWell ? "text-ok" : "text-bad")}>
          <span className={cx("size-2 rounded-full", isWell ? "bg-ok-fill" : "bg-bad-fill")} />
          {isWell ? t("Is read") : t("Is not read")}
        </span>
        {feed.problem && <p className="max-w-md text-xs break-words whitespace-normal text-muted">{feed.problem}</p>}
        {!feed.problem && !feed.is_owned && <p className="text-xs text-muted">{t("No runner has its login.")}</p>}
      </td>
      <td className="align-top">
        {feed.connection}
        <p className="font-mono text-xs text-muted">{feed.slot}</p>
      </td>
      <td className="align-top">
        {feed.lag_seconds === null ? "—" : duration(feed.lag_seconds)}
        <span className="text-muted"> · {feed.behind_bytes === null ? "—" : bytes(feed.behind_bytes)}</span>
      </td>
      <td className="align-top">
        {feed.retained_bytes === null ? "—" : bytes(feed.retained_bytes)}
        <span className="text-muted"> · {feed.keep_bytes === null ? t("no limit") : t("at most {size}", { size: bytes(feed.keep_bytes) })}</span>
      </td>
      <td className="align-top text-muted">{feed.stored_commit_at ? <Ago at={feed.stored_commit_at} /> : "—"}</td>
      <td className="align-top">
        {feed.followers.map((follower) => (
          <Following key={follower.pipeline} follower={follower} />
        ))}
      </td>
    </tr>
  );
}

function Following({ follower }: { follower: FeedFollower }) {
  const reason = follower.must_reload ?? follower.problem;
  return (
    <div className="py-0.5">
      <PipelineLink name={follower.pipeline} /> <span className="text-muted">{standing(follower)}</span>
      {reason && <p className="max-w-md text-xs break-words whitespace-normal text-muted">{reason}</p>}
    </div>
  );
}

function standing(follower: FeedFollower): string {
  if (follower.must_reload !== null) return t("is loaded again");
  if (!follower.is_ready) return t("waits for its tables");
  return t("{n} {n|change|changes} behind", { n: follower.backlog_changes ?? 0 });
}
