/** What the API holds against a part of a definition. */
import type { FieldProblem } from "../api/types";
import { problemInWords } from "../words/fields";
import { Icon } from "./icons";

export function Problems({ items, id }: { items: FieldProblem[]; id?: string }) {
  if (items.length === 0) return null;
  return (
    <ul id={id} className="space-y-1 px-4 pb-3 text-bad sm:px-6">
      {items.map((problem) => (
        <li key={problem.message} className="flex gap-1.5">
          <span className="mt-0.5">
            <Icon name="warn" size={13} />
          </span>
          <span className="min-w-0 break-words">{problemInWords(problem)}</span>
        </li>
      ))}
    </ul>
  );
}
