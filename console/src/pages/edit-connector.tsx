/** What the connectors of a definition's source and target ask for: a connection, and a form made of their schema. */
import { useConnections, useConnectors } from "../api/queries";
import type { Connector } from "../api/types";
import { inputLook } from "../ui/basics";
import { cx } from "../ui/classes";
import { t } from "../words/language";
import type { DraftPart } from "./draft";
import { fieldsOf, parsedOptions, prefixOf, read, shown, withOption, withPlainOption, type SchemaField } from "./schema";

export function ConnectorParts(part: DraftPart) {
  const connectors = useConnectors().data?.items ?? [];
  const prefix = prefixOf(part.draft.target_table);
  const target = connectors.find((one) => one.target && (one.prefix ?? "") === prefix);
  const source = connectors.find((one) => one.name === part.draft.source_type);
  const asked = [...new Set([source, target])].filter((one): one is Connector => Boolean(one?.options));
  return (
    <>
      {target && prefix !== "" && <TargetConnection {...part} connector={target} />}
      {asked.map((connector) => (
        <OptionsForm key={connector.name} {...part} connector={connector} />
      ))}
    </>
  );
}

function TargetConnection({ draft, change, connector }: DraftPart & { connector: Connector }) {
  const connections = (useConnections().data?.items ?? []).filter((one) => one.connector === connector.name);
  const options = parsedOptions(draft.options);
  if (connections.length === 0 || options === null) return null;
  const chosen = typeof options.target_connection === "string" ? options.target_connection : "";
  return (
    <div className="space-y-1">
      <label htmlFor="field-target-connection" className="block text-muted">
        {t("Target connection")}
      </label>
      <select
        id="field-target-connection"
        className={inputLook}
        value={chosen}
        onChange={(event) => change({ options: withPlainOption(draft.options, "target_connection", event.target.value) })}
      >
        <option value="">—</option>
        {[...new Set([chosen, ...connections.map((one) => one.name)])].filter(Boolean).map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </div>
  );
}

function OptionsForm({ draft, change, problems, connector }: DraftPart & { connector: Connector }) {
  const options = parsedOptions(draft.options);
  if (options === null || !connector.options) return null;
  const own = (options[connector.name] ?? {}) as Record<string, unknown>;
  return (
    <fieldset className="space-y-3 border-l-2 pl-3">
      <legend className="text-muted">{t("Options of {connector}", { connector: connector.name })}</legend>
      {fieldsOf(connector.options).map((field) => (
        <OptionField
          key={field.name}
          field={field}
          id={`option-${connector.name}-${field.name}`}
          value={shown(field, own[field.name])}
          wrong={problems.filter((problem) => problem.path.startsWith(`options.${connector.name}.${field.name}`)).map((problem) => problem.message)}
          onChange={(text) => change({ options: withOption(draft.options, connector.name, field.name, read(field, text)) })}
        />
      ))}
    </fieldset>
  );
}

interface OptionFieldProps {
  field: SchemaField;
  id: string;
  value: string;
  wrong: string[];
  onChange: (text: string) => void;
}

function OptionField({ field, id, value, wrong, onChange }: OptionFieldProps) {
  const choices = field.kind === "flag" ? ["true", "false"] : field.choices;
  const attributes = { id, value, "aria-invalid": wrong.length > 0, className: cx(inputLook, "font-mono") };
  const fallback = field.fallback === null ? "" : shown(field, field.fallback);
  return (
    <div className="space-y-1">
      <label htmlFor={id} className="block text-muted">
        {field.label}
        {field.required && " *"}
      </label>
      {choices.length > 0 ? (
        <select {...attributes} onChange={(event) => onChange(event.target.value)}>
          <option value="">{fallback ? t("default: {value}", { value: fallback }) : "—"}</option>
          {choices.map((choice) => (
            <option key={choice}>{choice}</option>
          ))}
        </select>
      ) : (
        <input {...attributes} inputMode={field.kind === "integer" ? "numeric" : undefined} placeholder={fallback} onChange={(event) => onChange(event.target.value)} />
      )}
      {wrong.length > 0 ? <p className="text-xs text-bad">{wrong.join(" ")}</p> : field.hint && <p className="text-xs text-muted">{field.hint}</p>}
    </div>
  );
}
