/** The list of pipelines when only some of its lines were asked for anew. */
interface Line {
  id: string;
  name: string;
}

/** Lines that were asked for and did not come are gone; new ones take their place by name, as the API has it. */
export function merged<T extends Line>(lines: T[], asked: string[], came: T[]): T[] {
  const fresh = new Map(came.map((line) => [line.id, line]));
  const gone = new Set(asked.filter((id) => !fresh.has(id)));
  const kept = lines.filter((line) => !gone.has(line.id)).map((line) => fresh.get(line.id) ?? line);
  const known = new Set(kept.map((line) => line.id));
  const added = came.filter((line) => !known.has(line.id));
  return added.length === 0 ? kept : [...kept, ...added].sort((a, b) => (a.name < b.name ? -1 : 1));
}
