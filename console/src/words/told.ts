/** What the API tells people, in the language of the page: beside a sentence `x` it sends how it was made, `x_said`. */
import { sentenceOf } from "./language";

export interface Said {
  code: string;
  params: Record<string, unknown>;
}

/** The sentence in the chosen language; as it came, where that has no words for it. */
export function told(text: string, said: Said | null | undefined): string {
  const template = said ? sentenceOf(said.code) : undefined;
  if (!said || template === undefined) return text;
  return template.replace(/\{(\w+)\}/g, (whole, name: string) => (name in said.params ? shown(said.params[name]) : whole));
}

function shown(value: unknown): string {
  if (Array.isArray(value)) return value.map(shown).join(value.some(isSentence) ? "; " : ", ");
  if (isSentence(value)) return told(value.text, value);
  return value === null || value === undefined ? "" : String(value);
}

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
const isSentence = (value: unknown): value is Said & { text: string } => isRecord(value) && typeof value["text"] === "string";
const isSaid = (value: unknown): value is Said => isRecord(value) && typeof value["code"] === "string" && isRecord(value["params"]);

/** What people wrote or their tables hold is left as it is. */
const NOT_OURS = new Set(["rows", "document", "offending_rows", "definition", "before", "after", "options", "params", "payload"]);

/** An answer of the API with its sentences in the language of the page. */
export function retold<Answer>(answer: Answer): Answer {
  if (Array.isArray(answer)) return answer.map(retold) as Answer;
  if (!isRecord(answer)) return answer;
  const made: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(answer)) made[name] = NOT_OURS.has(name) ? value : retold(value);
  for (const [name, said] of Object.entries(answer)) {
    const place = name.endsWith("_said") ? name.slice(0, -"_said".length) : "";
    if (place in made) made[place] = retoldText(made[place], said);
  }
  return made as Answer;
}

function retoldText(text: unknown, said: unknown): unknown {
  if (typeof text === "string") return isSaid(said) ? told(text, said) : text;
  if (Array.isArray(text) && Array.isArray(said)) return text.map((one: unknown, index) => retoldText(one, said[index]));
  if (isRecord(text) && isRecord(said)) return Object.fromEntries(Object.entries(text).map(([name, one]) => [name, retoldText(one, said[name])]));
  return text;
}
