/** What a JSON Schema says about a field, as far as a form needs to know. */
export interface Schema {
  type?: string;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  $ref?: string;
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  description?: string;
  default?: unknown;
  minimum?: number;
  maximum?: number;
  $defs?: Record<string, Schema>;
}

export type Kind =
  | { kind: "flag" | "text" | "list" | "number" | "number or text" | "json" }
  | { kind: "choice" | "choices"; values: string[] }
  | { kind: "object"; schema: Schema };

type Definitions = Record<string, Schema>;

/** The control that fits; whatever has no form of its own is written as JSON. */
export function kindOf(schema: Schema, definitions: Definitions): Kind {
  const one = resolved(schema, definitions);
  const kinds = (one.anyOf ?? []).filter((kind) => kind.type !== "null");
  if (kinds.length === 1 && kinds[0]) return kindOf(kinds[0], definitions);
  const [object, ...others] = kinds.filter((kind) => !kind.enum);
  // A word may stand for an object: the API gives it back as the object, so that is what is filled in.
  if (object && !others.length && resolved(object, definitions).properties) return kindOf(object, definitions);
  if (kinds.length > 1) return kinds.every((kind) => isPlain(kind)) ? { kind: "number or text" } : { kind: "json" };
  if (one.enum) return { kind: "choice", values: one.enum.map(String) };
  if (one.type === "boolean") return { kind: "flag" };
  if (one.type === "integer" || one.type === "number") return { kind: "number" };
  if (one.type === "string") return { kind: "text" };
  if (one.type === "array" && one.items) return kindOfList(resolved(one.items, definitions));
  if (one.type === "object" && one.properties) return { kind: "object", schema: one };
  return { kind: "json" };
}

const isPlain = (schema: Schema): boolean => ["integer", "number", "string"].includes(schema.type ?? "") && !schema.enum;

function kindOfList(items: Schema): Kind {
  if (items.enum) return { kind: "choices", values: items.enum.map(String) };
  return items.type === "string" ? { kind: "list" } : { kind: "json" };
}

function resolved(schema: Schema, definitions: Definitions): Schema {
  const name = schema.$ref?.split("/").at(-1);
  return name ? (definitions[name] ?? schema) : schema;
}

/** A value to begin with when somebody adds the field. */
export function firstValue(schema: Schema, definitions: Definitions): unknown {
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  const found = kindOf(schema, definitions);
  switch (found.kind) {
    case "flag":
      return true;
    case "choice":
      return found.values[0];
    case "choices":
    case "list":
      return [];
    case "number":
      return schema.minimum ?? schema.anyOf?.[0]?.minimum ?? 1;
    case "object":
      return Object.fromEntries((found.schema.required ?? []).map((name) => [name, firstValue(found.schema.properties?.[name] ?? {}, definitions)]));
    case "json":
      return {};
    default:
      return "";
  }
}

/** What was typed, as a number where it is one: the API says what is wrong with anything else. */
export function numberOr(text: string): number | string {
  return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** `max_lag_seconds` as people write it. */
export function humanName(name: string): string {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
