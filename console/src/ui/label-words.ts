/** The words that filters and forms write labels in. */

/** `team=core`: as a filter and a form have it. */
export const labelTexts = (labels: Record<string, string>): string[] => Object.entries(labels).map(([key, value]) => (value ? `${key}=${value}` : key));

/** What a form holds: labels separated by commas. */
export function labelsIn(text: string): Record<string, string> {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  return Object.fromEntries(parts.map((part): [string, string] => {
    const at = part.indexOf("=");
    return at < 0 ? [part, ""] : [part.slice(0, at).trim(), part.slice(at + 1).trim()];
  }));
}
