/** Where in a query something is wrong, as the API says it. */
import type { FieldProblem } from "../api/types";

export interface Mark {
  line: number;
  column: number;
  message: string;
}

export const marksOf = (problems: FieldProblem[], path: string): Mark[] =>
  problems.flatMap(({ path: at, line, column, message }) => (at === path && line && column ? [{ line, column, message }] : []));
