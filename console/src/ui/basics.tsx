/** The small parts that every page is made of. */
import { Link } from "@tanstack/react-router";
import { Dialog as RadixDialog, DropdownMenu } from "radix-ui";
import { useEffect, useState, useSyncExternalStore, type ComponentProps, type ReactNode } from "react";
import { ApiError, asCurl } from "../api/client";
import { useMe } from "../api/queries";
import type { RunStatus, Status } from "../api/types";
import { age, ago, clock } from "../words/format";
import { t } from "../words/language";
import { Icon, type IconName } from "./icons";
import { cx } from "./classes";
import { toast } from "./toasts";

const LOOKS = {
  primary: "bg-accent-solid text-white border-transparent hover:brightness-110",
  plain: "bg-panel text-text border-line-strong hover:bg-sunken dark:bg-raised dark:hover:bg-line",
  quiet: "bg-transparent text-muted border-transparent hover:bg-line/60 hover:text-text",
  danger: "bg-transparent text-bad border-line-strong hover:bg-bad-soft",
} as const;

export function Button({
  look = "plain",
  icon,
  busy,
  children,
  className,
  ...rest
}: ComponentProps<"button"> & { look?: keyof typeof LOOKS; icon?: IconName; busy?: boolean }) {
  return (
    <button
      type="button"
      {...rest}
      disabled={rest.disabled || busy}
      aria-busy={busy || undefined}
      className={cx(
        "inline-flex h-8 shrink-0 items-center justify-center gap-1.5 rounded-md border px-2.5 text-sm font-medium whitespace-nowrap transition-colors disabled:cursor-not-allowed disabled:opacity-55",
        !children && "w-8 px-0",
        LOOKS[look],
        className,
      )}
    >
      {icon && <Icon name={icon} size={14} />}
      {children}
    </button>
  );
}

export function Switch(props: { checked: boolean; onChange: (next: boolean) => void; label: string; disabled?: boolean }) {
  return (
    <button
      type="button"
      role="switch"
      aria-checked={props.checked}
      aria-label={props.label}
      disabled={props.disabled}
      onClick={(event) => {
        event.stopPropagation();
        props.onChange(!props.checked);
      }}
      className={cx("relative h-[18px] w-8 shrink-0 rounded-full transition-colors disabled:opacity-50", props.checked ? "bg-accent-solid" : "bg-idle-fill/70")}
    >
      <span className={cx("block size-3.5 rounded-full bg-white shadow-sm transition-transform", props.checked ? "translate-x-4" : "translate-x-0.5")} />
    </button>
  );
}

type Tone = "ok" | "bad" | "warn" | "busy" | "idle";

const STATUS: Record<Status | RunStatus, { tone: Tone; words: string }> = {
  IDLE: { tone: "idle", words: "Idle" },
  RUN_REQUESTED: { tone: "busy", words: "Queued" },
  RUNNING: { tone: "busy", words: "Running" },
  PAUSE_REQUESTED: { tone: "warn", words: "Pausing" },
  PAUSED: { tone: "warn", words: "Paused" },
  FAILED: { tone: "bad", words: "Failed" },
  SUCCESS: { tone: "ok", words: "Succeeded" },
  CANCELLED: { tone: "idle", words: "Cancelled" },
};

export const statusWords = (status: Status | RunStatus): string => t(STATUS[status].words);
export const FILL: Record<Tone, string> = {
  ok: "var(--ok-fill)",
  bad: "var(--bad-fill)",
  warn: "var(--warn-fill)",
  busy: "var(--accent)",
  idle: "var(--idle-fill)",
};
const INK: Record<Tone, string> = { ok: "text-ok", bad: "text-bad", warn: "text-warn", busy: "text-accent", idle: "text-muted" };
export const fillOf = (status: Status | RunStatus): string => FILL[STATUS[status].tone];

export function StatusChip({ status, large }: { status: Status | RunStatus; large?: boolean }) {
  const { tone } = STATUS[status];
  const moving = status === "RUNNING" || status === "PAUSE_REQUESTED";
  return (
    <span className={cx("inline-flex items-center gap-2 font-medium whitespace-nowrap", INK[tone], large ? "text-base" : "text-sm")}>
      <span className={cx("size-2 rounded-full", moving && "pulsing")} style={{ background: FILL[tone] }} />
      {statusWords(status)}
    </span>
  );
}

export function Tag({ children, tone = "idle", title }: { children: ReactNode; tone?: Tone; title?: string }) {
  return (
    <span title={title} className={cx("inline-flex items-center gap-1 rounded border px-1.5 text-2xs leading-[18px] font-medium whitespace-nowrap", INK[tone])}>
      {children}
    </span>
  );
}

/** Seconds that pass, shared by all that show an age. */
let now = Date.now();
const clockListeners = new Set<(now: number) => void>();
setInterval(() => {
  now = Date.now();
  for (const listener of clockListeners) listener(now);
}, 1000);

export function useNow(): number {
  const [value, setValue] = useState(now);
  useEffect(() => {
    clockListeners.add(setValue);
    return () => void clockListeners.delete(setValue);
  }, []);
  return value;
}

/** Whether the window is as the media query says. */
export function useMedia(query: string): boolean {
  return useSyncExternalStore(
    (listener) => {
      const found = matchMedia(query);
      found.addEventListener("change", listener);
      return () => found.removeEventListener("change", listener);
    },
    () => matchMedia(query).matches,
  );
}

export function Ago({ at, className }: { at: string | null; className?: string }) {
  const value = useNow();
  if (!at) return <span className={cx("text-faint", className)}>—</span>;
  return (
    <time dateTime={at} title={clock(at)} className={cx("num whitespace-nowrap", className)}>
      {ago(at, value)}
    </time>
  );
}

/** How long something has been so. */
export function Since({ at }: { at: string }) {
  const value = useNow();
  return (
    <time dateTime={at} title={clock(at)} className="num whitespace-nowrap">
      {t("for {time}", { time: age((value - Date.parse(at)) / 1000) })}
    </time>
  );
}

export function Moment({ at }: { at: string | null }) {
  return at ? (
    <time dateTime={at} className="num whitespace-nowrap">
      {clock(at)}
    </time>
  ) : (
    <span className="text-faint">—</span>
  );
}

export function Panel({ title, action, children, flush }: { title?: ReactNode; action?: ReactNode; children: ReactNode; flush?: boolean }) {
  return (
    <section className="min-w-0 rounded-lg border bg-panel">
      {title && (
        <header className="flex min-h-10 flex-wrap items-center justify-between gap-x-3 gap-y-1 border-b px-4 py-1 max-sm:py-2">
          <h2 className="text-sm font-semibold">{title}</h2>
          {action}
        </header>
      )}
      <div className={flush ? "" : "p-4"}>{children}</div>
    </section>
  );
}

export function Facts({ items }: { items: [ReactNode, ReactNode][] }) {
  return (
    <dl className="grid grid-cols-[minmax(7rem,auto)_1fr] gap-x-5 gap-y-2">
      {items.map(([name, value], index) => (
        <div key={index} className="contents">
          <dt className="text-muted">{name}</dt>
          <dd className="min-w-0 break-words">{value ?? "—"}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Figures({ items }: { items: { name: ReactNode; value: ReactNode; note?: ReactNode; tone?: Tone }[] }) {
  return (
    <dl className="grid grid-cols-2 overflow-hidden rounded-lg border bg-panel sm:grid-cols-3 lg:grid-flow-col lg:auto-cols-fr lg:grid-cols-none" style={{ gap: 1 }}>
      {items.map((item, index) => (
        <div key={index} className="min-w-0 px-4 py-3 shadow-[0_0_0_1px_var(--line)]">
          <dt className="truncate text-xs text-muted">{item.name}</dt>
          <dd className={cx("num mt-0.5 truncate text-lg font-semibold tracking-tight", item.tone && item.tone !== "idle" && INK[item.tone])}>{item.value}</dd>
          {item.note && <dd className="num mt-0.5 truncate text-xs text-muted">{item.note}</dd>}
        </div>
      ))}
    </dl>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ReactNode }) {
  return (
    <div className="flex flex-col items-center justify-center gap-2 px-6 py-14 text-center">
      <span className="grid size-10 place-items-center rounded-xl border bg-panel text-faint">
        <Icon name={icon} size={18} />
      </span>
      <p className="mt-1 text-base font-medium">{title}</p>
      <div className="max-w-md text-muted">{children}</div>
    </div>
  );
}

export function Loading({ lines = 6 }: { lines?: number }) {
  return (
    <div role="status" aria-label={t("Loading")} className="space-y-3 p-4">
      {Array.from({ length: lines }, (_, index) => (
        <div key={index} className="shimmering h-4 rounded bg-line" style={{ width: `${92 - ((index * 17) % 45)}%` }} />
      ))}
    </div>
  );
}

export function Failure({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const found = error instanceof ApiError ? error : null;
  return (
    <div role="alert" className="m-4 flex flex-wrap items-start gap-3 rounded-lg border border-bad-fill/40 bg-bad-soft p-4">
      <span className="mt-0.5 text-bad">
        <Icon name="warn" />
      </span>
      <div className="min-w-0 flex-1">
        <p className="font-medium">{found?.status === 404 ? t("It does not exist") : t("This could not be loaded")}</p>
        <p className="mt-0.5 break-words text-muted">{error instanceof Error ? error.message : String(error)}</p>
        {found?.requestId && <p className="mt-1 font-mono text-xs text-muted">{found.requestId}</p>}
      </div>
      {onRetry && <Button onClick={onRetry}>{t("Try again")}</Button>}
    </div>
  );
}

export function Dialog(props: { open: boolean; onClose: () => void; title: string; children: ReactNode; wide?: boolean; footer?: ReactNode }) {
  return (
    <RadixDialog.Root open={props.open} onOpenChange={(open) => !open && props.onClose()}>
      <RadixDialog.Portal>
        <RadixDialog.Overlay className="fixed inset-0 z-40 bg-black/45" />
        <RadixDialog.Content
          aria-describedby={undefined}
          className={cx(
            "rising fixed top-[12vh] left-1/2 z-50 flex max-h-[76vh] w-[calc(100vw-2rem)] -translate-x-1/2 flex-col rounded-xl border border-line-strong bg-raised shadow-(--shadow)",
            props.wide ? "max-w-3xl" : "max-w-md",
          )}
        >
          <RadixDialog.Title className="px-5 pt-4 text-base font-semibold">{props.title}</RadixDialog.Title>
          <div className="min-h-0 overflow-auto px-5 py-3">{props.children}</div>
          {props.footer && <footer className="flex flex-wrap justify-end gap-2 border-t px-5 py-3">{props.footer}</footer>}
        </RadixDialog.Content>
      </RadixDialog.Portal>
    </RadixDialog.Root>
  );
}

export interface MenuEntry {
  label: string;
  icon?: IconName;
  danger?: boolean;
  onSelect: () => void;
}

export function Menu({ label, items }: { label: string; items: MenuEntry[] }) {
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger asChild>
        <Button icon="more" aria-label={label} title={label} />
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content align="end" sideOffset={4} className="rising z-50 min-w-48 rounded-lg border border-line-strong bg-raised p-1 shadow-(--shadow)">
          {items.map((item) => (
            <DropdownMenu.Item
              key={item.label}
              onSelect={item.onSelect}
              className={cx(
                "flex h-8 cursor-pointer items-center gap-2 rounded-md px-2 text-sm outline-none data-[highlighted]:bg-line/70",
                item.danger && "text-bad",
              )}
            >
              {item.icon && <Icon name={item.icon} size={14} />}
              {item.label}
            </DropdownMenu.Item>
          ))}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

export async function copy(text: string): Promise<void> {
  await navigator.clipboard.writeText(text);
  toast(t("Copied"));
}

export function useCopyCurl(): (method: string, path: string, body?: unknown) => void {
  const { data } = useMe();
  return (method, path, body) => void copy(asCurl(method, path, { body, auth: data?.auth === "token" }));
}

export function Mono({ children }: { children: string | null }) {
  return children ? <span className="font-mono text-xs break-all">{children}</span> : <span className="text-faint">—</span>;
}

/** A line of `Facts` for what is set, none for what is not. */
export const given = (name: ReactNode, value: string | null): [ReactNode, ReactNode][] => (value ? [[name, <Mono key="v">{value}</Mono>]] : []);

export function PipelineLink({ name }: { name: string }) {
  return (
    <Link to="/pipelines/$name" params={{ name }} className="truncate font-medium hover:text-accent hover:underline">
      {name}
    </Link>
  );
}

export function PageHead({ title, note, children }: { title: ReactNode; note?: ReactNode; children?: ReactNode }) {
  return (
    <header className="flex flex-wrap items-center justify-between gap-x-4 gap-y-2 px-4 pt-4 pb-3 sm:px-6">
      <div className="min-w-0">
        <h1 className="truncate text-lg font-semibold tracking-tight">{title}</h1>
        {note && <div className="text-muted">{note}</div>}
      </div>
      <div className="flex flex-wrap items-center gap-2">{children}</div>
    </header>
  );
}

export const inputLook =
  "h-8 w-full min-w-0 rounded-md border border-line-strong bg-panel px-2.5 text-sm dark:bg-sunken aria-[invalid=true]:border-bad-fill";

export const tableLook = {
  head: "sticky top-0 z-10 border-b bg-bg text-left text-xs font-medium text-muted [&>th]:px-3 [&>th]:py-2 [&>th]:font-medium [&>th]:whitespace-nowrap",
  row: "border-b hover:bg-line/35 [&>td]:px-3 [&>td]:py-2 [&>td]:align-top",
};
