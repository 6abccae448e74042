/** A form made of a JSON Schema: which input each property gets, and the options that its texts make. */

export type JsonSchema = Record<string, unknown>;

export interface SchemaField {
  name: string;
  label: string;
  hint: string;
  kind: "flag" | "choice" | "integer" | "number" | "text" | "json";
  choices: string[];
  fallback: unknown;
  required: boolean;
}

export function fieldsOf(schema: JsonSchema): SchemaField[] {
  const required = new Set(listOf(schema.required));
  return Object.entries(objectOf(schema.properties)).map(([name, property]) => fieldOf(name, objectOf(property), schema, required.has(name)));
}

function fieldOf(name: string, property: JsonSchema, whole: JsonSchema, required: boolean): SchemaField {
  const told = resolved(property, whole);
  const choices = listOf(told.enum).concat("const" in told ? [told.const] : []);
  return {
    name,
    label: textOf(property.title) || textOf(told.title) || name,
    hint: textOf(property.description) || textOf(told.description),
    kind: kindOf(told, choices),
    choices: choices.map(String),
    fallback: property.default ?? told.default ?? null,
    required,
  };
}

function kindOf(told: JsonSchema, choices: unknown[]): SchemaField["kind"] {
  if (choices.length > 0) return choices.every((choice) => typeof choice === "string") ? "choice" : "json";
  if (told.type === "boolean") return "flag";
  if (told.type === "integer" || told.type === "number") return told.type;
  return told.type === "string" ? "text" : "json";
}

/** Follows a reference, and takes the one form beside null: what may be null may be left out. */
function resolved(property: JsonSchema, whole: JsonSchema): JsonSchema {
  const reference = textOf(property.$ref);
  if (reference.startsWith("#/$defs/")) return resolved(objectOf(objectOf(whole.$defs)[reference.slice("#/$defs/".length)]), whole);
  const forms = listOf(property.anyOf).map(objectOf).filter((form) => form.type !== "null");
  const only = forms[0];
  return forms.length === 1 && only ? resolved(only, whole) : property;
}

/** What a field holds now, as an input shows it. */
export function shown(field: SchemaField, value: unknown): string {
  if (value === undefined || value === null) return "";
  return field.kind === "json" ? JSON.stringify(value) : String(value);
}

/** What a text says. One that cannot be read stays a text: the API says what is wrong. Nothing: the default. */
export function read(field: SchemaField, text: string): unknown {
  if (text.trim() === "") return undefined;
  if (field.kind === "flag") return text === "true";
  if (field.kind === "text" || field.kind === "choice") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The options, as JSON text, with one of a connector set or taken out. */
export function withOption(options: string, connector: string, name: string, value: unknown): string {
  const all = parsedOptions(options);
  if (all === null) return options;
  const own = { ...objectOf(all[connector]), [name]: value };
  const said = Object.fromEntries(Object.entries(own).filter(([, one]) => one !== undefined));
  const { [connector]: _, ...others } = all;
  return JSON.stringify(Object.keys(said).length ? { ...others, [connector]: said } : others, null, 2);
}

/** The same with an option that is no connector's own. */
export function withPlainOption(options: string, name: string, value: string): string {
  const all = parsedOptions(options);
  if (all === null) return options;
  const { [name]: _, ...others } = all;
  return JSON.stringify(value ? { ...others, [name]: value } : others, null, 2);
}

/** Null while the text is no JSON object: then the form waits until it is one again. */
export function parsedOptions(options: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(options.trim() || "{}");
    return typeof found === "object" && found !== null && !Array.isArray(found) ? (found as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

export const prefixOf = (target: string): string => (target.includes(":") ? (target.split(":")[0] ?? "") : "");

const objectOf = (value: unknown): JsonSchema => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonSchema) : {});
const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const textOf = (value: unknown): string => (typeof value === "string" ? value : "");
