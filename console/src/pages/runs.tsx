/** Every run of every pipeline, newest first. */
import { useRuns } from "../api/queries";
import { Button, Empty, Failure, Loading, PageHead } from "../ui/basics";
import { RunTable } from "../ui/parts";
import { t } from "../words/language";

export function RunsPage() {
  const runs = useRuns();
  const items = runs.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <>
      <PageHead title={t("Runs")} />
      <div className="border-t sm:px-3">
        {runs.error && items.length === 0 ? (
          <Failure error={runs.error} onRetry={() => void runs.refetch()} />
        ) : runs.isPending ? (
          <Loading />
        ) : items.length === 0 ? (
          <Empty icon="runs" title={t("No runs yet")}>
            {t("Runs appear here as soon as a runner starts one.")}
          </Empty>
        ) : (
          <RunTable runs={items} withPipeline />
        )}
      </div>
      {runs.hasNextPage && (
        <div className="p-4 text-center">
          <Button onClick={() => void runs.fetchNextPage()} busy={runs.isFetchingNextPage}>
            {t("Show older")}
          </Button>
        </div>
      )}
    </>
  );
}
