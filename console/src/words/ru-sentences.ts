/** The API's own sentences in Russian, by their codes; a code without one is shown in English. */
import definitions from "./ru-definitions";
import plans from "./ru-plans";
import queries from "./ru-queries";
import requests from "./ru-requests";
import runs from "./ru-runs";

const sentences: Record<string, string> = { ...requests, ...definitions, ...queries, ...plans, ...runs };

export default sentences;
