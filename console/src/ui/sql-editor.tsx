/** The SQL editor; loaded when a page needs it, because it weighs as much as the rest. */
import { autocompletion } from "@codemirror/autocomplete";
import { PostgreSQL, SQLDialect, sql } from "@codemirror/lang-sql";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { setDiagnostics, type Diagnostic } from "@codemirror/lint";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";
import { useEffect, useRef } from "react";
import type { Table } from "../api/types";
import { columnsOfAlias, columnsOfQuery, namespaceOf, tablesBehindFrom } from "./completion";
import type { Mark } from "./marks";

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--ok)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
  { tag: tags.comment, color: "var(--faint)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--warn)" },
]);

/** Words of plpgsql and of other statements, which in a query are names of columns more often than not. */
const NO_KEYWORDS = new Set(["id", "name", "type", "title", "value", "key", "state", "status", "level", "source", "target", "role", "user", "language", "date", "views", "content"]);
const { keywords = "", types = "" } = PostgreSQL.spec;
const without = (words: string): string => words.split(" ").filter((word) => !NO_KEYWORDS.has(word)).join(" ");
const dialect = SQLDialect.define({ ...PostgreSQL.spec, keywords: without(keywords), types: without(types) });

export default function SqlEditor(props: {
  value: string;
  onChange: (value: string) => void;
  onSave: () => void;
  label: string;
  tables: Table[];
  /** What is wrong, where. */
  marks: Mark[];
}) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const language = useRef(new Compartment());
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    if (!place.current) return;
    const created = new EditorView({
      parent: place.current,
      state: EditorState.create({
        doc: latest.current.value,
        extensions: [
          keymap.of([{ key: "Mod-s", preventDefault: true, run: () => (latest.current.onSave(), true) }]),
          basicSetup,
          language.current.of(speaking(latest.current.tables)),
          autocompletion({ activateOnTyping: true, icons: false }),
          syntaxHighlighting(colours),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": latest.current.label }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) latest.current.onChange(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = created;
    return () => created.destroy();
  }, []);
  useEffect(() => {
    view.current?.dispatch({ effects: language.current.reconfigure(speaking(props.tables)) });
  }, [props.tables]);
  useEffect(() => {
    const editor = view.current;
    if (editor && editor.state.doc.toString() !== props.value) {
      editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: props.value } });
    }
  }, [props.value]);
  const marks = JSON.stringify(props.marks);
  useEffect(() => {
    // Only when they are other ones: while somebody types, the editor moves them along with the text.
    const editor = view.current;
    if (editor) editor.dispatch(setDiagnostics(editor.state, diagnosticsOf(editor.state, latest.current.marks)));
  }, [marks]);
  return <div ref={place} className="h-full min-h-56 [&_.cm-editor]:h-full" />;
}

/** The word, or the sign, that a mark stands at. */
function diagnosticsOf(state: EditorState, marks: Mark[]): Diagnostic[] {
  return marks.filter((mark) => mark.line <= state.doc.lines).map((mark) => {
    const line = state.doc.line(mark.line);
    const from = Math.min(line.from + mark.column - 1, line.to);
    const word = /^(?:[\w$.]+|"[^"]*"|\S)/.exec(state.sliceDoc(from, line.to))?.[0].length ?? 0;
    return { from: word ? from : Math.max(line.from, from - 1), to: Math.max(from + word, from), severity: "error", message: mark.message };
  });
}

function speaking(tables: Table[]): Extension {
  return [
    sql({ dialect, upperCaseKeywords: true, schema: namespaceOf(tables) }),
    dialect.language.data.of({ autocomplete: (context: Parameters<typeof columnsOfQuery>[0]) => columnsOfQuery(context, tables) }),
    dialect.language.data.of({ autocomplete: (context: Parameters<typeof columnsOfQuery>[0]) => columnsOfAlias(context, tables) }),
    dialect.language.data.of({ autocomplete: (context: Parameters<typeof columnsOfQuery>[0]) => tablesBehindFrom(context, tables) }),
  ];
}
