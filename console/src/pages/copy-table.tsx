/** "Copy a table": a table is picked, and the definition that copies it is suggested, with the reasons. */
import { useState } from "react";
import { post } from "../api/client";
import { awaitRequest, useNames, useTables } from "../api/queries";
import type { Definition, RunnerRequest } from "../api/types";
import { Button, Dialog, inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { Icon } from "../ui/icons";
import { Guarantee } from "../ui/parts";
import { t } from "../words/language";

export interface Suggestion {
  definition: Partial<Definition>;
  guarantee: string;
  reasons: string[];
}

export function CopyTable({ onClose, onTake }: { onClose: () => void; onTake: (made: Suggestion) => void }) {
  const [connection, setConnection] = useState("default");
  const [table, setTable] = useState("");
  const [target, setTarget] = useState("");
  const [made, setMade] = useState<Suggestion | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const connections = useNames("connections").data?.items ?? [];
  const tables = useTables(connection);
  const names = (tables.data ?? []).map((one) => `${one.schema}.${one.name}`);
  const picked = tables.data?.find((one) => `${one.schema}.${one.name}` === table);

  const change = (set: (value: string) => void) => (event: { target: { value: string } }): void => {
    set(event.target.value);
    setMade(null);
    setWrong(null);
  };
  const suggest = async (): Promise<void> => {
    if (!picked) return;
    setBusy(true);
    setWrong(null);
    try {
      const wish = { schema: picked.schema, table: picked.name, target: target.trim() || null };
      const asked = await post<RunnerRequest>(`/connections/${encodeURIComponent(connection)}/copy`, wish);
      const { result, error } = await awaitRequest(asked, 60);
      if (result) setMade(result as unknown as Suggestion);
      else setWrong(error?.message ?? t("No runner has answered yet. Is one alive?"));
    } catch (error) {
      setWrong(error instanceof Error ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog
      open
      wide
      onClose={onClose}
      title={t("Copy a table")}
      footer={
        <>
          <Button onClick={onClose}>{t("Cancel")}</Button>
          {made ? (
            <Button look="primary" onClick={() => onTake(made)}>
              {t("Use this definition")}
            </Button>
          ) : (
            <Button look="primary" busy={busy} disabled={!picked} onClick={() => void suggest()}>
              {t("Suggest")}
            </Button>
          )}
        </>
      }
    >
      <div className="grid gap-3 sm:grid-cols-3">
        <label className="space-y-1">
          <span className="text-muted">{t("Connection")}</span>
          <select
            className={inputLook}
            value={connection}
            onChange={(event) => {
              change(setConnection)(event);
              setTable("");
            }}
          >
            {[...new Set(["default", ...connections.map((one) => one.name)])].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label className="space-y-1">
          <span className="text-muted">{t("Table")}</span>
          <select className={cx(inputLook, "font-mono")} value={table} onChange={change(setTable)}>
            <option value="">{tables.data ? t("Choose one of {n}", { n: names.length }) : t("A runner is working on it…")}</option>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label className="space-y-1">
          <span className="text-muted">{t("Into")}</span>
          <input className={cx(inputLook, "font-mono")} value={target} placeholder={t("suggested")} onChange={change(setTarget)} />
        </label>
      </div>
      {wrong && (
        <p role="alert" className="mt-3 break-words text-bad">
          {wrong}
        </p>
      )}
      {made && <Made made={made} />}
    </Dialog>
  );
}

function Made({ made }: { made: Suggestion }) {
  const { definition } = made;
  const facts: [string, string][] = [
    [t("Target"), definition.target_table ?? ""],
    [t("Key"), definition.target_key?.join(", ") ?? ""],
    [t("Mode"), t(definition.mode ?? "")],
    [t("Cursor"), definition.incremental_key ?? "—"],
    [t("Schedule"), definition.schedule_interval ?? ""],
  ];
  return (
    <section aria-label={t("Suggested pipeline")} className="mt-4 border-t pt-3">
      <dl className="grid grid-cols-[minmax(6rem,auto)_1fr] gap-x-5 gap-y-1.5">
        {facts.map(([name, value]) => (
          <div key={name} className="contents">
            <dt className="text-muted">{name}</dt>
            <dd className="min-w-0 font-mono break-words">{value}</dd>
          </div>
        ))}
        <dt className="text-muted">{t("Guarantee")}</dt>
        <dd>
          <Guarantee level={made.guarantee} />
        </dd>
      </dl>
      <h3 className="mt-3 mb-1.5 text-xs font-medium text-muted">{t("Why")}</h3>
      <ul className="space-y-1.5">
        {made.reasons.map((reason) => (
          <li key={reason} className="flex gap-2">
            <span className="mt-0.5 text-ok">
              <Icon name="check" size={14} />
            </span>
            <span className="min-w-0 break-words">{reason}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}
