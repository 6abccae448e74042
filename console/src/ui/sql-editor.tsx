/** The SQL editor; loaded when a page needs it, because it weighs as much as the rest. */
import { autocompletion } from "@codemirror/autocomplete";
import { PostgreSQL, sql } from "@codemirror/lang-sql";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";
import { useEffect, useRef } from "react";

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--ok)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
  { tag: tags.comment, color: "var(--faint)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--warn)" },
]);

export default function SqlEditor(props: {
  value: string;
  onChange: (value: string) => void;
  onSave: () => void;
  label: string;
  schema: Record<string, string[]>;
  readOnly?: boolean;
}) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
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
          sql({ dialect: PostgreSQL, upperCaseKeywords: true, schema: latest.current.schema }),
          autocompletion({ activateOnTyping: true }),
          syntaxHighlighting(colours),
          EditorState.readOnly.of(latest.current.readOnly ?? false),
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
    const editor = view.current;
    if (editor && editor.state.doc.toString() !== props.value) {
      editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: props.value } });
    }
  }, [props.value]);
  return <div ref={place} className="h-full min-h-56 [&_.cm-editor]:h-full" />;
}
