/** Who changed what, and when. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useAudit } from "../api/queries";
import type { AuditEntry } from "../api/types";
import { Ago, Button, Empty, Failure, Loading, PageHead, PipelineLink, Tag, inputLook } from "../ui/basics";
import { Changes, changeInBrief, compare } from "../ui/diff";
import { clock } from "../words/format";
import { t } from "../words/language";

export function AuditPage() {
  const filter = useSearch({ from: "/audit" });
  const navigate = useNavigate({ from: "/audit" });
  const audit = useAudit(filter);
  const items = audit.data?.pages.flatMap((page) => page.items) ?? [];
  const field = (name: "who" | "object" | "action", placeholder: string) => (
    <span className="w-36 sm:w-44">
      <input
        type="search"
        className={inputLook}
        aria-label={placeholder}
        placeholder={placeholder}
        defaultValue={filter[name] ?? ""}
        onChange={(event) => void navigate({ search: (before) => ({ ...before, [name]: event.target.value || undefined }), replace: true })}
      />
    </span>
  );
  return (
    <>
      <PageHead title={t("Audit")}>
        {field("who", t("Who"))}
        {field("action", t("Action"))}
        {field("object", "pipeline:name")}
      </PageHead>
      <div className="border-t">
        {audit.error && items.length === 0 ? (
          <Failure error={audit.error} onRetry={() => void audit.refetch()} />
        ) : audit.isPending ? (
          <Loading />
        ) : items.length === 0 ? (
          <Empty icon="audit" title={t("Nothing found")} />
        ) : (
          <ol>
            {items.map((entry) => (
              <li key={entry.id} className="border-b">
                <Entry entry={entry} />
              </li>
            ))}
          </ol>
        )}
      </div>
      {audit.hasNextPage && (
        <div className="p-4 text-center">
          <Button onClick={() => void audit.fetchNextPage()} busy={audit.isFetchingNextPage}>
            {t("Show older")}
          </Button>
        </div>
      )}
    </>
  );
}

function Entry({ entry }: { entry: AuditEntry }) {
  const changes = compare(entry.before ?? {}, entry.after ?? {});
  const [kind, name] = entry.object.split(":", 2);
  return (
    <details>
      <summary className="grid grid-cols-[1fr_auto] items-center gap-x-4 px-4 py-2.5 hover:bg-line/35 sm:grid-cols-[8rem_9rem_1fr_auto] sm:px-6">
        <span className="flex min-w-0 items-center gap-2 sm:contents">
          <span className="truncate font-medium">{entry.who}</span>
          <span className="shrink-0">
            <Tag>{entry.action}</Tag>
          </span>
        </span>
        <span className="order-last col-span-2 flex min-w-0 gap-3 truncate text-muted sm:order-none sm:col-span-1">
          <span className="text-text">{kind === "pipeline" ? name : entry.object}</span>
          <span className="truncate font-mono text-xs leading-5">{entry.before ? changes.map(changeInBrief).join(", ") : ""}</span>
        </span>
        <span className="text-xs text-muted">
          <Ago at={entry.at} />
        </span>
      </summary>
      <div className="space-y-3 px-4 pb-4 sm:px-6">
        <p className="num flex flex-wrap gap-x-4 text-xs text-muted">
          {clock(entry.at)} <span className="font-mono">{entry.request_id}</span>
          {kind === "pipeline" && name && <PipelineLink name={name} />}
        </p>
        <div className="rounded-lg border bg-panel p-4">
          <Changes changes={changes} />
        </div>
      </div>
    </details>
  );
}
