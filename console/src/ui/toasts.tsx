/** Short notes at the edge of the page: what was done, or why it was not. */
import { useSyncExternalStore } from "react";
import { ApiError } from "../api/client";
import { cx } from "./classes";
import { Icon } from "./icons";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

let toasts: Toast[] = [];
let nextId = 1;
const listeners = new Set<() => void>();

function set(next: Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

export function toast(text: string, bad = false): void {
  const id = nextId++;
  set([...toasts.slice(-3), { id, text, bad }]);
  setTimeout(() => set(toasts.filter((one) => one.id !== id)), bad ? 9_000 : 4_000);
}

export function toastError(error: unknown): void {
  const text = error instanceof ApiError || error instanceof Error ? error.message : String(error);
  toast(text, true);
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div role="status" aria-live="polite" className="pointer-events-none fixed right-4 bottom-4 z-50 flex max-w-sm flex-col gap-2">
      {shown.map((one) => (
        <div key={one.id} className="rising pointer-events-auto flex items-start gap-2 rounded-lg border border-line-strong bg-raised px-3 py-2 shadow-(--shadow)">
          <span className={cx("mt-0.5", one.bad ? "text-bad" : "text-ok")}>
            <Icon name={one.bad ? "warn" : "check"} size={14} />
          </span>
          <span className="min-w-0 break-words">{one.text}</span>
        </div>
      ))}
    </div>
  );
}
