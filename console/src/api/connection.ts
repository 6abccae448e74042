/** Whether events of the platform arrive, for everybody who shows it or asks more often while they do not. */
import { useSyncExternalStore } from "react";

export type Connection = "connecting" | "live" | "lost";

let connection: Connection = "connecting";
const listeners = new Set<() => void>();

export function useConnection(): Connection {
  return useSyncExternalStore(subscribe, () => connection);
}

export function isLost(): boolean {
  return connection === "lost";
}

export function setConnection(next: Connection): void {
  if (next === connection) return;
  connection = next;
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
