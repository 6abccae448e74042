/** The databases that pipelines may name: which there are, whether they can be used, and adding one without a restart. */
import { useState, type FormEvent } from "react";
import { post, request } from "../api/client";
import { awaitRequest, useConnections, useMay } from "../api/queries";
import type { Connection, Finding, RunnerRequest } from "../api/types";
import { Ago, Button, Dialog, Failure, Loading, PageHead, PipelineLink, Tag, copy, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { Icon } from "../ui/icons";
import { toast, toastError } from "../ui/toasts";
import { t } from "../words/language";

const SHOWN_PIPELINES = 5;

export function ConnectionsPage() {
  const connections = useConnections();
  const mayChange = useMay("admin");
  // The name whose URL is entered; an empty one is that of a new connection.
  const [entering, setEntering] = useState<string | null>(null);
  return (
    <>
      <PageHead title={t("Connections")} note={t("Databases that pipelines may name. Where they lead is shown to admins only, by a test.")}>
        {mayChange && (
          <Button look="primary" icon="plus" onClick={() => setEntering("")}>
            {t("New connection")}
          </Button>
        )}
      </PageHead>
      {connections.error && !connections.data ? (
        <Failure error={connections.error} onRetry={() => void connections.refetch()} />
      ) : connections.isPending ? (
        <Loading />
      ) : (
        <ul aria-label={t("Connections")} className="border-t">
          {connections.data.items.map((one) => (
            <Line key={one.name} one={one} mayChange={mayChange} onReplace={() => setEntering(one.name)} onChange={() => void connections.refetch()} />
          ))}
        </ul>
      )}
      {entering !== null && (
        <Enter
          replaced={entering || null}
          onClose={() => setEntering(null)}
          onDone={() => {
            setEntering(null);
            void connections.refetch();
          }}
        />
      )}
    </>
  );
}

function Line(props: { one: Connection; mayChange: boolean; onReplace: () => void; onChange: () => void }) {
  const { one } = props;
  const [findings, setFindings] = useState<Finding[] | null>(null);
  const [busy, setBusy] = useState(false);
  const kept = one.set_in === "metastore";
  const test = async (): Promise<void> => {
    setBusy(true);
    setFindings(null);
    try {
      setFindings(await tried(one.name));
    } catch (error) {
      toastError(error);
    } finally {
      setBusy(false);
    }
  };
  const remove = (): void => {
    if (confirm(t("Delete {name}? Its URL cannot be shown again.", { name: one.name }))) {
      request("DELETE", `/connections/${encodeURIComponent(one.name)}`).catch(toastError).finally(props.onChange);
    }
  };
  return (
    <li className="border-b px-4 py-3 sm:px-6" aria-label={one.name}>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <div className="min-w-0 flex-1 basis-64">
          <h2 className="flex flex-wrap items-center gap-2 font-medium">
            <span className="font-mono">{one.name}</span>
            <Tag>{kept ? t("stored in the metastore") : t("set in the environment")}</Tag>
          </h2>
          <p className="mt-0.5 text-muted">
            <Users pipelines={one.pipelines} />
            {kept && (
              <>
                {" · "}
                {t("set by {who}", { who: one.updated_by ?? "" })} <Ago at={one.updated_at} />
              </>
            )}
          </p>
        </div>
        {props.mayChange && (
          <div className="flex gap-2">
            <Button icon="check" busy={busy} onClick={() => void test()} aria-label={t("Test {name}", { name: one.name })}>
              {t("Test")}
            </Button>
            {kept && <Button icon="edit" aria-label={t("Replace the URL of {name}", { name: one.name })} onClick={props.onReplace} />}
            {kept && <Button look="danger" icon="trash" aria-label={t("Remove {name}", { name: one.name })} onClick={remove} />}
          </div>
        )}
      </div>
      <div role="status" aria-label={t("Test of {name}", { name: one.name })}>
        {busy && <p className="mt-2 text-muted">{t("A runner is testing it…")}</p>}
        {findings && <Findings items={findings} />}
      </div>
    </li>
  );
}

function Users({ pipelines }: { pipelines: string[] }) {
  if (pipelines.length === 0) return <>{t("no pipeline uses it")}</>;
  const rest = pipelines.length - SHOWN_PIPELINES;
  return (
    <>
      {t("used by")}{" "}
      {pipelines.slice(0, SHOWN_PIPELINES).map((name, index) => (
        <span key={name}>
          {index > 0 && ", "}
          <PipelineLink name={name} />
        </span>
      ))}
      {rest > 0 && t(" and {n} more", { n: rest })}
    </>
  );
}

/** What a runner finds; an error of the request itself is a finding too. */
async function tried(name: string): Promise<Finding[]> {
  const asked = await post<RunnerRequest>(`/connections/${encodeURIComponent(name)}/test`);
  const { result, error } = await awaitRequest(asked, 60);
  if (result) return result["findings"] as Finding[];
  const finding = error?.message ?? t("No runner has tested it yet. Is one alive?");
  return [{ status: "PROBLEM", finding, next_step: "" }];
}

const LOOKS = {
  OK: { icon: "check", ink: "text-ok" },
  WARNING: { icon: "warn", ink: "text-warn" },
  PROBLEM: { icon: "warn", ink: "text-bad" },
} as const;

function Findings({ items }: { items: Finding[] }) {
  return (
    <ul className="mt-2 space-y-2">
      {items.map((item) => (
        <li key={item.finding} className="flex gap-2">
          <span className={cx("mt-0.5", LOOKS[item.status].ink)}>
            <Icon name={LOOKS[item.status].icon} size={14} />
          </span>
          <div className="min-w-0">
            <p className="break-words">
              <b className={cx("font-medium", LOOKS[item.status].ink)}>{t(WORDS[item.status])}</b> {item.finding}
            </p>
            {item.next_step && <NextStep text={item.next_step} />}
          </div>
        </li>
      ))}
    </ul>
  );
}

/** A statement to run is copied; anything else is read. */
function NextStep({ text }: { text: string }) {
  if (!/^(GRANT|REVOKE|ALTER|CREATE) /.test(text)) return <p className="mt-0.5 break-words text-muted">{text}</p>;
  return (
    <p className="mt-1 flex items-start gap-2">
      <code className="min-w-0 rounded border bg-sunken px-2 py-1 font-mono text-xs break-words">{text}</code>
      <Button look="quiet" icon="copy" aria-label={t("Copy")} onClick={() => void copy(text)} />
    </p>
  );
}

const WORDS = { OK: "It can be used.", WARNING: "Worth a look:", PROBLEM: "It cannot be used:" } as const;

function Enter({ replaced, onClose, onDone }: { replaced: string | null; onClose: () => void; onDone: () => void }) {
  const [name, setName] = useState("");
  const [url, setUrl] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      if (replaced) await request("PUT", `/connections/${encodeURIComponent(replaced)}`, { body: { url } });
      else await post("/connections", { name, url });
      toast(t("{name} is stored. Check it with Test.", { name: replaced ?? name }));
      onDone();
    } catch (error) {
      setWrong(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog open onClose={onClose} title={replaced ? t("Another URL for {name}", { name: replaced }) : t("New connection")}>
      <form onSubmit={(event) => void submit(event)} className="space-y-3 pb-2">
        {!replaced && (
          <label className="block space-y-1">
            <span className="text-muted">{t("Name")}</span>
            <input required pattern="[a-z0-9_]+" autoComplete="off" className={cx(inputLook, "font-mono")} value={name} onChange={(event) => setName(event.target.value)} />
          </label>
        )}
        <label className="block space-y-1">
          <span className="text-muted">{t("URL, with login and password")}</span>
          <input
            required
            type="password"
            autoComplete="off"
            spellCheck={false}
            placeholder="postgresql://"
            className={cx(inputLook, "font-mono")}
            value={url}
            aria-invalid={wrong !== null}
            aria-describedby="url-help"
            onChange={(event) => setUrl(event.target.value.trim())}
          />
        </label>
        <p id="url-help" className="text-xs text-muted">
          <code className="font-mono break-all">postgresql://LOGIN:PASSWORD@HOST:5432/DATABASE</code>
          <br />
          {t("It is sealed at once; only runners can open it, and it is never shown again.")}
        </p>
        {wrong && (
          <p role="alert" className="break-words text-bad">
            {wrong}
          </p>
        )}
        <div className="flex justify-end gap-2 pt-2">
          <Button onClick={onClose}>{t("Cancel")}</Button>
          <Button look="primary" type="submit" busy={busy}>
            {replaced ? t("Replace") : t("Add")}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
