/** Dark or light: as the system says until somebody chooses. */
export type Theme = "system" | "light" | "dark";

const KEY = "vitrina.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function readTheme(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "system";
}

export function keepTheme(theme: Theme): void {
  if (theme === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, theme);
  apply();
}

export function startTheme(): void {
  apply();
  system.addEventListener("change", apply);
}

export const isDark = (): boolean => document.documentElement.dataset["theme"] === "dark";

function apply(): void {
  const theme = readTheme();
  document.documentElement.dataset["theme"] = theme === "system" ? (system.matches ? "dark" : "light") : theme;
}
