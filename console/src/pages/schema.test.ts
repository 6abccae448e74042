/** Forms made of JSON Schemas: whatever a connector's model says, there is an input for it. */
import { describe, expect, it } from "vitest";
import { fieldsOf, prefixOf, read, shown, withOption, withPlainOption } from "./schema";

const SCHEMA = {
  type: "object",
  required: ["bucket"],
  $defs: { Codec: { type: "string", enum: ["zstd", "snappy"], description: "How files are packed." } },
  properties: {
    bucket: { type: "string", title: "Bucket" },
    rows_per_file: { type: "integer", minimum: 1, default: 1000, description: "Rows of a file." },
    share: { anyOf: [{ type: "number" }, { type: "null" }], default: null },
    codec: { $ref: "#/$defs/Codec", default: "zstd" },
    strict: { type: "boolean", default: false },
    partition_by: { type: "array", items: { type: "string" } },
    either: { anyOf: [{ type: "integer" }, { type: "string" }] },
  },
};
const fields = Object.fromEntries(fieldsOf(SCHEMA).map((field) => [field.name, field]));
const field = (name: string) => fields[name] ?? expect.fail(name);

describe("a form", () => {
  it("has an input for each property", () =>
    expect(Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, one.kind]))).toEqual({
      bucket: "text",
      rows_per_file: "integer",
      share: "number",
      codec: "choice",
      strict: "flag",
      partition_by: "json",
      either: "json",
    }));
  it("says what the schema says", () => {
    expect(field("bucket")).toMatchObject({ label: "Bucket", required: true });
    expect(field("rows_per_file")).toMatchObject({ hint: "Rows of a file.", fallback: 1000, required: false });
    expect(field("codec")).toMatchObject({ choices: ["zstd", "snappy"], hint: "How files are packed.", fallback: "zstd" });
  });
  it("reads what was typed", () => {
    expect(read(field("rows_per_file"), "12")).toBe(12);
    expect(read(field("rows_per_file"), "twelve")).toBe("twelve"); // the API says what is wrong
    expect(read(field("strict"), "false")).toBe(false);
    expect(read(field("bucket"), "12")).toBe("12");
    expect(read(field("partition_by"), '["day"]')).toEqual(["day"]);
    expect(read(field("bucket"), " ")).toBeUndefined();
  });
  it("shows what is set", () => {
    expect(shown(field("partition_by"), ["day"])).toBe('["day"]');
    expect(shown(field("strict"), false)).toBe("false");
    expect(shown(field("share"), null)).toBe("");
  });
});

describe("options", () => {
  it("are set and taken out by connector", () => {
    const set = withOption('{"allow_shrink": true}', "lake", "rows_per_file", 5);
    expect(JSON.parse(set)).toEqual({ allow_shrink: true, lake: { rows_per_file: 5 } });
    expect(JSON.parse(withOption(set, "lake", "rows_per_file", undefined))).toEqual({ allow_shrink: true });
  });
  it("wait while their text is no JSON", () => expect(withOption("{", "lake", "rows_per_file", 5)).toBe("{"));
  it("name a connection", () => {
    expect(JSON.parse(withPlainOption("", "target_connection", "bucket"))).toEqual({ target_connection: "bucket" });
    expect(JSON.parse(withPlainOption('{"target_connection": "bucket"}', "target_connection", ""))).toEqual({});
  });
});

it("a target's prefix stands before the colon", () => expect([prefixOf("lake:films"), prefixOf("analytics.films")]).toEqual(["lake", ""]));
