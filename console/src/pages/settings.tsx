/** Settings of this browser, and the tokens of the installation. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent, type ReactNode } from "react";
import { post, request, token } from "../api/client";
import { useMay, useMe, useTokens } from "../api/queries";
import type { Role, Token } from "../api/types";
import { Ago, Button, Dialog, Facts, Failure, Loading, PageHead, Panel, Tag, copy, inputLook, tableLook } from "../ui/basics";
import { keepTheme, readTheme, type Theme } from "../ui/theme";
import { toastError } from "../ui/toasts";
import { zone, type Zone } from "../words/format";
import { setLanguage, t, useLanguage, type Language } from "../words/language";
import { NotificationsPanel } from "./notifications";

export function SettingsPage() {
  const isAdmin = useMay("admin");
  return (
    <>
      <PageHead title={t("Settings")} />
      <div className="border-t p-4 sm:p-6">
        <div className="max-w-5xl space-y-4">
          <div className="grid gap-4 md:grid-cols-2">
            <ThisBrowser />
            <Installation />
          </div>
          <NotificationsPanel />
          {isAdmin && <Tokens />}
        </div>
      </div>
    </>
  );
}

function ThisBrowser() {
  const language = useLanguage();
  const [theme, setTheme] = useState(readTheme());
  const [times, setTimes] = useState(zone.read());
  const client = useQueryClient();
  return (
    <Panel title={t("This browser")}>
      <div className="space-y-3">
        <Choice label={t("Language")} value={language} options={[["en", "English"], ["ru", "Русский"]]} onChange={(next) => void setLanguage(next as Language).then(() => client.invalidateQueries())} />
        <Choice
          label={t("Theme")}
          value={theme}
          options={[["system", t("As the system")], ["light", t("Light")], ["dark", t("Dark")]]}
          onChange={(next) => {
            keepTheme(next as Theme);
            setTheme(next as Theme);
          }}
        />
        <Choice
          label={t("Times")}
          value={times}
          options={[["local", t("This computer's zone")], ["utc", "UTC"]]}
          onChange={(next) => {
            zone.keep(next as Zone);
            setTimes(next as Zone);
          }}
        />
        {token.read() && (
          <Button
            onClick={() => {
              token.forget();
              void client.resetQueries();
            }}
          >
            {t("Sign out")}
          </Button>
        )}
      </div>
    </Panel>
  );
}

function Choice(props: { label: string; value: string; options: [string, string][]; onChange: (next: string) => void }) {
  return (
    <label className="grid grid-cols-[8rem_1fr] items-center gap-3">
      <span className="text-muted">{props.label}</span>
      <select className={inputLook} value={props.value} onChange={(event) => props.onChange(event.target.value)}>
        {props.options.map(([value, words]) => (
          <option key={value} value={value}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

function Installation() {
  const me = useMe().data;
  const version = useQuery({
    queryKey: ["version"],
    queryFn: async () => (await (await fetch("/version")).json()) as { version: string; metastore: string | null },
  });
  return (
    <Panel title={t("This installation")}>
      <Facts
        items={[
          [t("You are"), <span key="m">{me?.name} · {t(me?.role ?? "")}</span>],
          [t("Access"), me?.auth === "off" ? t("open on this machine only") : t("by token")],
          [t("Version"), version.data?.version ?? "—"],
          [t("Metastore"), version.data?.metastore ?? "—"],
          [t("API reference"), <a key="d" href="/docs" className="text-accent underline">/docs</a>],
          [t("Metrics"), <a key="x" href="/metrics" className="text-accent underline">/metrics</a>],
        ]}
      />
    </Panel>
  );
}

function Tokens() {
  const tokens = useTokens(true);
  const [made, setMade] = useState<string | null>(null);
  const [creating, setCreating] = useState(false);
  return (
    <Panel flush title={t("API tokens")} action={<Button icon="plus" onClick={() => setCreating(true)}>{t("New token")}</Button>}>
      {tokens.error ? (
        <Failure error={tokens.error} />
      ) : tokens.isPending ? (
        <Loading lines={3} />
      ) : tokens.data.items.length === 0 ? (
        <p className="p-4 text-muted">{t("None yet. People and programs use tokens to log in.")}</p>
      ) : (
        <div className="overflow-x-auto" tabIndex={0} role="region" aria-label={t("API tokens")}>
          <table className="w-full min-w-[36rem]">
            <thead>
              <tr className={tableLook.head}>
                <th scope="col">{t("Name")}</th>
                <th scope="col">{t("Role")}</th>
                <th scope="col">{t("Created")}</th>
                <th scope="col">{t("Last used")}</th>
                <th scope="col">{t("Expires")}</th>
                <th scope="col">
                  <span className="sr-only">{t("Revoke")}</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {tokens.data.items.map((one) => (
                <TokenLine key={one.id} one={one} onDone={() => void tokens.refetch()} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <NewToken
        open={creating}
        onClose={() => setCreating(false)}
        onMade={(secret) => {
          setCreating(false);
          setMade(secret);
          void tokens.refetch();
        }}
      />
      <Dialog open={made !== null} onClose={() => setMade(null)} title={t("Copy the token now")} footer={<Button onClick={() => setMade(null)}>{t("Done")}</Button>}>
        <p className="mb-3 text-muted">{t("It is shown only once: Vitrina stores only its hash.")}</p>
        <div className="flex gap-2">
          <input readOnly aria-label={t("API token")} className={`${inputLook} font-mono`} value={made ?? ""} />
          <Button icon="copy" aria-label={t("Copy")} onClick={() => void copy(made ?? "")} />
        </div>
      </Dialog>
    </Panel>
  );
}

function TokenLine({ one, onDone }: { one: Token; onDone: () => void }) {
  const revoke = (): void => {
    if (confirm(t("Revoke {name}? Its users lose access at once.", { name: one.name }))) {
      request("DELETE", `/tokens/${encodeURIComponent(one.name)}`).catch(toastError).finally(onDone);
    }
  };
  return (
    <tr className={tableLook.row}>
      <td className="font-medium">{one.name}</td>
      <td>
        <Tag>{t(one.role)}</Tag>
      </td>
      <td className="text-muted">
        <Ago at={one.created_at} />
      </td>
      <td className="text-muted">
        <Ago at={one.last_used_at} />
      </td>
      <td className="text-muted">{one.revoked_at ? <Tag tone="bad">{t("revoked")}</Tag> : <Ago at={one.expires_at} />}</td>
      <td className="text-right">
        {!one.revoked_at && (
          <Button look="quiet" icon="trash" aria-label={t("Revoke {name}", { name: one.name })} onClick={revoke} />
        )}
      </td>
    </tr>
  );
}

function NewToken({ open, onClose, onMade }: { open: boolean; onClose: () => void; onMade: (secret: string) => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [days, setDays] = useState("90");
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    post<{ token: string }>("/tokens", { name, role, expires_in_days: days ? Number(days) : null }).then((made) => onMade(made.token), toastError);
  };
  const row = (label: string, control: ReactNode): ReactNode => (
    <label className="block space-y-1">
      <span className="text-muted">{label}</span>
      {control}
    </label>
  );
  return (
    <Dialog open={open} onClose={onClose} title={t("New token")}>
      <form onSubmit={submit} className="space-y-3 pb-2">
        {row(t("Name"), <input required className={inputLook} value={name} onChange={(event) => setName(event.target.value)} />)}
        {row(
          t("Role"),
          <select className={inputLook} value={role} onChange={(event) => setRole(event.target.value as Role)}>
            {(["viewer", "operator", "admin"] as const).map((one) => (
              <option key={one} value={one}>
                {t(one)}
              </option>
            ))}
          </select>,
        )}
        {row(t("Days until it expires (empty: never)"), <input inputMode="numeric" className={inputLook} value={days} onChange={(event) => setDays(event.target.value)} />)}
        <div className="flex justify-end gap-2 pt-2">
          <Button onClick={onClose}>{t("Cancel")}</Button>
          <Button look="primary" type="submit">
            {t("Create")}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
