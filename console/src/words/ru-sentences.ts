/** The API's own sentences in Russian, by their codes; a code without one is shown in English. */
import definitions from "./ru-definitions";
import derivations from "./ru-derivations";
import plans from "./ru-plans";
import queries from "./ru-queries";
import requests from "./ru-requests";
import runs from "./ru-runs";

const sentences: Record<string, string> = {
  ...requests,
  ...definitions,
  ...derivations,
  ...queries,
  ...plans,
  ...runs,
};

export default sentences;
