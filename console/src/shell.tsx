/** What surrounds every page: navigation, the palette, the state of the connection, signing in. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useRouterState } from "@tanstack/react-router";
import { useEffect, useState, type FormEvent } from "react";
import { ApiError, token } from "./api/client";
import { useConnection } from "./api/connection";
import { follow } from "./api/live";
import { useHome, useMe } from "./api/queries";
import { Button, Failure, Loading, inputLook } from "./ui/basics";
import { cx } from "./ui/classes";
import { Icon, Logo, type IconName } from "./ui/icons";
import { Palette } from "./ui/palette";
import { Shortcuts } from "./ui/shortcuts";
import { isDark, keepTheme } from "./ui/theme";
import { Toasts } from "./ui/toasts";
import { count, zone } from "./words/format";
import { t, useLanguage } from "./words/language";

export function Shell() {
  const me = useMe();
  const language = useLanguage();
  if (me.error instanceof ApiError && me.error.status === 401) return <SignIn onDone={() => void me.refetch()} wrong={token.read() !== null} />;
  if (me.error) return <Failure error={me.error} onRetry={() => void me.refetch()} />;
  if (!me.data) return <Loading />;
  return <Frame key={language} />;
}

function Frame() {
  const [menuOpen, setMenuOpen] = useState(false);
  const [paletteOpen, setPaletteOpen] = useState(false);
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => {
    const ending = new AbortController();
    void follow(ending.signal);
    return () => ending.abort();
  }, []);
  useEffect(() => setMenuOpen(false), [path]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setPaletteOpen((open) => !open);
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return (
    <div className="flex h-full flex-col md:flex-row">
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:m-2 focus:rounded focus:bg-raised focus:p-2">
        {t("Skip to content")}
      </a>
      <header className="flex h-12 shrink-0 items-center justify-between border-b px-3 md:hidden">
        <Link to="/" className="flex items-center gap-2 font-semibold">
          <Logo /> Vitrina
        </Link>
        <div className="flex gap-1">
          <Button look="quiet" icon="search" aria-label={t("Search")} onClick={() => setPaletteOpen(true)} />
          <Button look="quiet" icon="menu" aria-label={t("Menu")} aria-expanded={menuOpen} onClick={() => setMenuOpen(!menuOpen)} />
        </div>
      </header>
      <Sidebar open={menuOpen} onSearch={() => setPaletteOpen(true)} />
      <div className="flex min-h-0 min-w-0 flex-1 flex-col">
        <ConnectionLost />
        <main id="main" tabIndex={-1} className="min-h-0 flex-1 overflow-auto outline-none">
          <Outlet />
        </main>
      </div>
      <Palette open={paletteOpen} onClose={() => setPaletteOpen(false)} />
      <Shortcuts />
      <Toasts />
    </div>
  );
}

const PLACES: { to: string; icon: IconName; words: string }[] = [
  { to: "/", icon: "home", words: "Home" },
  { to: "/pipelines", icon: "pipelines", words: "Pipelines" },
  { to: "/graph", icon: "graph", words: "Graph" },
  { to: "/runs", icon: "runs", words: "Runs" },
  { to: "/connections", icon: "connections", words: "Connections" },
  { to: "/feeds", icon: "feeds", words: "Feeds" },
  { to: "/runners", icon: "runners", words: "Runners" },
  { to: "/dead-letters", icon: "letters", words: "Dead letters" },
  { to: "/audit", icon: "audit", words: "Audit" },
  { to: "/settings", icon: "settings", words: "Settings" },
];

function Sidebar({ open, onSearch }: { open: boolean; onSearch: () => void }) {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const letters = useHome().data?.dead_letters ?? 0;
  const isHere = (to: string): boolean => (to === "/" ? path === "/" : path.startsWith(to) || (to === "/pipelines" && path === "/new"));
  return (
    <aside className={cx("w-full shrink-0 flex-col border-b p-3 md:flex md:w-52 md:border-r md:border-b-0", open ? "flex" : "hidden")}>
      <Link to="/" className="mb-4 hidden items-center gap-2 px-2 pt-1 text-base font-semibold tracking-tight md:flex">
        <Logo /> Vitrina
      </Link>
      <button
        type="button"
        onClick={onSearch}
        className="mb-3 hidden h-8 items-center gap-2 rounded-md border border-line-strong bg-panel px-2 text-muted hover:text-text md:flex"
      >
        <Icon name="search" size={14} />
        <span className="flex-1 text-left">{t("Search")}</span>
        <kbd className="rounded border px-1 font-mono text-2xs text-faint">Ctrl K</kbd>
      </button>
      <nav aria-label={t("Main")} className="flex flex-col gap-0.5">
        {PLACES.map(({ to, icon, words }) => (
          <Link
            key={to}
            to={to}
            aria-current={isHere(to) ? "page" : undefined}
            className={cx(
              "flex h-8 items-center gap-2.5 rounded-md px-2",
              isHere(to) ? "bg-line/80 font-medium text-text" : "text-muted hover:bg-line/50 hover:text-text",
            )}
          >
            <Icon name={icon} />
            <span className="flex-1">{t(words)}</span>
            {to === "/dead-letters" && letters > 0 && <span className="num text-xs text-bad">{count(letters)}</span>}
          </Link>
        ))}
      </nav>
      <Foot />
    </aside>
  );
}

function Foot() {
  const me = useMe().data;
  const [dark, setDark] = useState(isDark());
  const connection = useConnection();
  const words = { live: t("Live"), connecting: t("Connecting"), lost: t("Connection lost") }[connection];
  const colour = { live: "bg-ok-fill", connecting: "bg-warn-fill", lost: "bg-bad-fill" }[connection];
  return (
    <div className="mt-4 flex flex-col gap-1.5 border-t px-2 pt-3 text-xs text-muted md:mt-auto">
      <div className="flex items-center justify-between gap-2">
        <span className="flex items-center gap-2">
          <span className={cx("size-1.5 rounded-full", colour)} />
          {words}
        </span>
        <Button
          look="quiet"
          className="-mr-2"
          icon={dark ? "sun" : "moon"}
          aria-label={dark ? t("Light theme") : t("Dark theme")}
          onClick={() => {
            keepTheme(dark ? "light" : "dark");
            setDark(!dark);
          }}
        />
      </div>
      <span className="truncate" title={me?.name}>
        {me?.name} · {t(me?.role ?? "")}
      </span>
      <span className="truncate" title={zone.name()}>
        {t("Times in {zone}", { zone: zone.name() })}
      </span>
    </div>
  );
}

function ConnectionLost() {
  if (useConnection() !== "lost") return null;
  return (
    <div role="alert" className="flex shrink-0 items-center gap-2 border-b border-warn-fill/40 bg-warn-soft px-4 py-1.5 text-warn">
      <Icon name="warn" size={14} />
      {t("Connection lost: the data shown may be out of date. Reconnecting.")}
    </div>
  );
}

function SignIn({ onDone, wrong }: { onDone: () => void; wrong: boolean }) {
  const [secret, setSecret] = useState("");
  const client = useQueryClient();
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    token.keep(secret.trim());
    client.clear();
    onDone();
  };
  return (
    <main className="grid h-full place-items-center p-4">
      <form onSubmit={submit} className="w-full max-w-sm space-y-4 rounded-xl border bg-panel p-6">
        <h1 className="flex items-center gap-2 text-lg font-semibold">
          <Logo /> Vitrina
        </h1>
        <label className="block space-y-1.5">
          <span className="text-muted">{t("API token")}</span>
          <input
            className={inputLook}
            type="password"
            autoComplete="current-password"
            autoFocus
            required
            value={secret}
            aria-invalid={wrong}
            onChange={(event) => setSecret(event.target.value)}
          />
        </label>
        {wrong && <p className="text-bad">{t("This token is unknown, revoked or expired.")}</p>}
        <p className="text-muted">
          {t("An admin creates one in Settings, or with")} <code className="font-mono text-xs">vitrina tokens create</code>.
        </p>
        <Button type="submit" look="primary" className="w-full">
          {t("Sign in")}
        </Button>
      </form>
    </main>
  );
}
