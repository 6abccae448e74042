/** Keys that work everywhere, and the page that lists them. */
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { t } from "../words/language";
import { Dialog } from "./basics";

const GO: Record<string, { to: string; words: string }> = {
  h: { to: "/", words: "Home" },
  p: { to: "/pipelines", words: "Pipelines" },
  g: { to: "/graph", words: "Graph" },
  r: { to: "/runs", words: "Runs" },
  c: { to: "/connections", words: "Connections" },
  d: { to: "/dead-letters", words: "Dead letters" },
  a: { to: "/audit", words: "Audit" },
  s: { to: "/settings", words: "Settings" },
};

const KEYS: { keys: string[]; words: string }[] = [
  { keys: ["?"], words: "These keys" },
  { keys: ["Ctrl K"], words: "Find a pipeline or an action" },
  { keys: ["/"], words: "Filter the list of pipelines" },
  { keys: ["Ctrl S"], words: "Save, in the editor" },
  { keys: ["Ctrl Space"], words: "Complete a table or column, in the editor" },
  { keys: ["Esc"], words: "Close the open dialog" },
];

/** Keys that somebody presses to write are no shortcuts. */
export function isTyping(event: KeyboardEvent): boolean {
  const target = event.target instanceof HTMLElement ? event.target : null;
  return event.ctrlKey || event.metaKey || event.altKey || !!target?.closest("input, textarea, select, [contenteditable=true], [role=dialog]");
}

const SEQUENCE_MS = 1_500;

/** `?` opens the help; `g` and then a letter go to a page. */
export function Shortcuts() {
  const [open, setOpen] = useState(false);
  const navigate = useNavigate();
  useEffect(() => {
    let begun = 0;
    const onKey = (event: KeyboardEvent): void => {
      if (isTyping(event)) return;
      const place = GO[event.key.toLowerCase()];
      if (begun && Date.now() - begun < SEQUENCE_MS && place) {
        begun = 0;
        event.preventDefault();
        void navigate({ to: place.to });
        return;
      }
      begun = event.key === "g" ? Date.now() : 0;
      if (event.key === "?") setOpen(true);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [navigate]);
  return (
    <Dialog open={open} onClose={() => setOpen(false)} title={t("Keyboard")}>
      <dl className="grid grid-cols-[auto_1fr] items-center gap-x-5 gap-y-2 pb-3">
        {KEYS.map((one) => (
          <Line key={one.words} keys={one.keys} words={one.words} />
        ))}
        {Object.entries(GO).map(([key, { words }]) => (
          <Line key={key} keys={["g", key]} words={words} />
        ))}
      </dl>
    </Dialog>
  );
}

function Line({ keys, words }: { keys: string[]; words: string }) {
  return (
    <>
      <dt className="flex gap-1">
        {keys.map((key, index) => (
          <kbd key={index} className="rounded border border-line-strong bg-sunken px-1.5 font-mono text-xs leading-5">
            {key}
          </kbd>
        ))}
      </dt>
      <dd>{t(words)}</dd>
    </>
  );
}
