/** What the modes of a pipeline are called: as a choice, and within a sentence. */
import type { Mode } from "../api/types";

export const MODE_TITLES: Record<Mode, string> = { full: "Full load", incremental: "Incremental", live: "Follows live" };
export const MODE_WORDS: Record<Mode, string> = { full: "full load", incremental: "incremental", live: "live" };
