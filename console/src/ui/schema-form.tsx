/** A form that is made from a JSON Schema: what is set stands there, the rest can be added, everything can be JSON. */
import { useId, useState } from "react";
import { t } from "../words/language";
import { Button, inputLook } from "./basics";
import { cx } from "./classes";
import { firstValue, humanName, kindOf, numberOr, type Kind, type Schema } from "./schema";

type Values = Record<string, unknown>;

interface FormProps {
  label: string;
  schema: Schema;
  definitions: Record<string, Schema>;
  value: Values;
  onChange: (next: Values) => void;
  /** Paths of fields that the API refused, and why. */
  wrong?: Record<string, string[]>;
  /** Every field stands there from the beginning; for few of them. */
  all?: boolean;
}

export function SchemaForm({ label, schema, definitions, value, onChange, wrong = {}, all }: FormProps) {
  const fields = schema.properties ?? {};
  const names = Object.keys(fields);
  const shown = [...new Set([...names.filter((name) => all || name in value || (schema.required ?? []).includes(name)), ...Object.keys(value)])];
  const left = names.filter((name) => !shown.includes(name));
  const set = (name: string, next: unknown): void => onChange({ ...value, [name]: next });
  const unset = (name: string): void => {
    const { [name]: _, ...others } = value;
    onChange(others);
  };
  return (
    <div role="group" aria-label={label} className="space-y-3">
      {shown.map((name) => (
        <Field
          key={name}
          name={name}
          schema={fields[name] ?? {}}
          definitions={definitions}
          value={value[name]}
          wrong={wrong[name] ?? []}
          required={(schema.required ?? []).includes(name)}
          onChange={(next) => (next === undefined ? unset(name) : set(name, next))}
          onRemove={name in value && !(schema.required ?? []).includes(name) ? () => unset(name) : null}
        />
      ))}
      {left.length > 0 && (
        <select
          aria-label={t("Add to {what}", { what: label })}
          className={cx(inputLook, "text-muted")}
          value=""
          onChange={(event) => event.target.value && set(event.target.value, firstValue(fields[event.target.value] ?? {}, definitions))}
        >
          <option value="">{t("Add…")}</option>
          {left.map((name) => (
            <option key={name} value={name} title={fields[name]?.description}>
              {t(humanName(name))}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}

interface FieldProps {
  name: string;
  schema: Schema;
  definitions: Record<string, Schema>;
  value: unknown;
  wrong: string[];
  required: boolean;
  /** `undefined`: as if it were never said. */
  onChange: (next: unknown) => void;
  onRemove: (() => void) | null;
}

function Field({ name, schema, definitions, value, wrong, required, onChange, onRemove }: FieldProps) {
  const id = useId();
  const found = kindOf(schema, definitions);
  const words = t(humanName(name));
  return (
    <div className="space-y-1 rounded-md border px-2.5 py-2">
      <div className="flex min-h-6 items-center justify-between gap-2">
        <label htmlFor={id} className="font-medium" title={name}>
          {words} {required && <span className="font-normal text-muted">· {t("required")}</span>}
        </label>
        <span className="flex items-center gap-1">
          {found.kind === "flag" && <input id={id} type="checkbox" className="accent-accent-solid" checked={(value ?? schema.default) === true} onChange={(event) => onChange(event.target.checked)} />}
          {onRemove && <Button look="quiet" icon="close" className="-mr-1.5 !h-6 !w-6" aria-label={t("Remove {what}", { what: words })} onClick={onRemove} />}
        </span>
      </div>
      {found.kind === "object" ? (
        <SchemaForm all label={words} schema={found.schema} definitions={definitions} value={(value ?? {}) as Values} onChange={onChange} />
      ) : (
        found.kind !== "flag" && <Control id={id} found={found} schema={schema} value={value} wrong={wrong.length > 0} onChange={onChange} />
      )}
      {wrong.map((message) => (
        <p key={message} className="text-xs text-bad">
          {message}
        </p>
      ))}
      {schema.description && <p className="text-xs text-muted">{t(schema.description)}</p>}
    </div>
  );
}

interface ControlProps {
  id: string;
  found: Kind;
  schema: Schema;
  value: unknown;
  wrong: boolean;
  onChange: (next: unknown) => void;
}

function Control({ id, found, schema, value, wrong, onChange }: ControlProps) {
  const placeholder = schema.default === undefined || schema.default === null ? undefined : String(schema.default);
  const text = (next: string): unknown => (next === "" ? undefined : found.kind === "text" ? next : numberOr(next));
  switch (found.kind) {
    case "choice":
      return (
        <select id={id} className={inputLook} aria-invalid={wrong} value={String(value ?? schema.default ?? "")} onChange={(event) => onChange(event.target.value || undefined)}>
          {value === undefined && schema.default == null && <option value="" />}
          {found.values.map((one) => (
            <option key={one} value={one}>
              {t(humanName(one))}
            </option>
          ))}
        </select>
      );
    case "choices":
      return <Choices values={found.values} value={Array.isArray(value) ? value.map(String) : []} onChange={onChange} />;
    case "list":
      return <ListInput id={id} value={Array.isArray(value) ? value.map(String) : []} wrong={wrong} onChange={onChange} />;
    case "json":
      return <JsonInput id={id} value={value} onChange={onChange} />;
    default:
      return (
        <input
          id={id}
          className={cx(inputLook, "font-mono")}
          inputMode={found.kind === "number" ? "decimal" : undefined}
          placeholder={placeholder}
          aria-invalid={wrong}
          value={value === undefined || value === null ? "" : String(value)}
          onChange={(event) => onChange(text(event.target.value))}
        />
      );
  }
}

function Choices({ values, value, onChange }: { values: string[]; value: string[]; onChange: (next: string[]) => void }) {
  return (
    <span className="flex flex-wrap gap-x-4 gap-y-1">
      {values.map((one) => (
        <label key={one} className="flex items-center gap-1.5">
          <input type="checkbox" className="accent-accent-solid" checked={value.includes(one)} onChange={(event) => onChange(values.filter((each) => (each === one ? event.target.checked : value.includes(each))))} />
          {t(humanName(one))}
        </label>
      ))}
    </span>
  );
}

/** Separated by commas; kept as typed, or one could never type the comma. */
function ListInput({ id, value, wrong, onChange }: { id: string; value: string[]; wrong: boolean; onChange: (next: string[]) => void }) {
  const [text, setText] = useState(value.join(", "));
  return (
    <input
      id={id}
      className={cx(inputLook, "font-mono")}
      placeholder="a, b"
      aria-invalid={wrong}
      value={text}
      onChange={(event) => {
        setText(event.target.value);
        onChange(event.target.value.split(",").map((part) => part.trim()).filter(Boolean));
      }}
    />
  );
}

export function JsonInput({ id, label, value, onChange }: { id?: string; label?: string; value: unknown; onChange: (next: unknown) => void }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 1));
  const [wrong, setWrong] = useState(false);
  return (
    <textarea
      id={id}
      aria-label={label}
      rows={Math.min(Math.max(text.split("\n").length, 2), 8)}
      className={cx(inputLook, "block h-auto py-1.5 font-mono text-xs leading-5")}
      value={text}
      aria-invalid={wrong}
      placeholder="{}"
      onChange={(event) => {
        setText(event.target.value);
        try {
          onChange(event.target.value.trim() ? JSON.parse(event.target.value) : undefined);
          setWrong(false);
        } catch {
          setWrong(true);
        }
      }}
    />
  );
}
