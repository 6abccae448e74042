/** The fields of a definition as the console calls them, and what the API says about them in those words. */
import type { FieldProblem } from "../api/types";
import { humanName } from "../ui/schema";
import { t } from "./language";

const FIELDS: Record<string, { words: string }> = {
  name: { words: "Name" },
  description: { words: "Description" },
  type: { words: "Type" },
  source_connection: { words: "Source" },
  source_query: { words: "Source query" },
  python_task: { words: "Python source" },
  target_table: { words: "Target" },
  target_key: { words: "Key columns" },
  mode: { words: "Mode" },
  incremental_key: { words: "Cursor column" },
  incremental_id_key: { words: "Tie-breaker" },
  batch_size: { words: "Batch size" },
  enabled: { words: "Enabled" },
  schedule_interval: { words: "Schedule" },
  run_after: { words: "Runs after" },
  options: { words: "Options" },
  checks: { words: "Checks" },
  tasks: { words: "Task plan" },
  labels: { words: "Labels" },
};

export const topOf = (path: string): string => path.split(".")[0] ?? "";

/** `options.max_cost` is "Options: Max cost", `tasks.1.body` is "Step 2". */
export function fieldName(path: string): string {
  const [top = "", part] = path.split(".");
  if (top === "tasks" && part && /^\d+$/.test(part)) return t("Step {n}", { n: Number(part) + 1 });
  const words = FIELDS[top] ? t(FIELDS[top].words) : top;
  return top === "options" && part ? `${words}: ${t(humanName(part))}` : words;
}

const NAMES = Object.keys(FIELDS).filter((name) => name.includes("_"));
const KNOWN = new RegExp(`\\b(?:options\\.(\\w+)|(${NAMES.join("|")}))\\b`, "g");

/** The API speaks of `batch_size`; whoever fills in a form knows it as "Batch size". */
export function problemInWords(problem: Pick<FieldProblem, "path" | "message">): string {
  const said = problem.message.replace(KNOWN, (whole, option: string | undefined, _field, place: number) => {
    const words = fieldName(option ? `options.${option}` : whole);
    return place === 0 ? words : `“${words}”`;
  });
  const named = topOf(problem.path) === "name" ? said.replace(/^name\b/, t("Name")) : said;
  return named.charAt(0).toUpperCase() + named.slice(1);
}
