"""Remove an unfinished generation that no run of its pipeline will resume."""

import structlog

from vitrina.connectors.search.client import Missing, SearchClient
from vitrina.connectors.search.generations import WriteAlias
from vitrina.connectors.search.mapping import noted


def remove(client: SearchClient, generation: str, pipeline: str) -> bool:
    """Remove the generation. Return True if nothing is left to do: it is removed, complete, or of another pipeline.

    The caller's metastore has confirmed that no run uses the generation. A late runner could still publish it, but
    only in a step that removes its write alias, so the side that removes the alias first wins. A generation with any
    other alias is kept.
    """
    entry = (client.find_index(generation) or {}).get(generation)
    if entry is None:
        return True
    notes = noted(entry.get("mappings", {}))
    if notes.get("pipeline") != pipeline or notes.get("complete"):
        return True
    aliases = list(entry.get("aliases", {}))
    if not all(WriteAlias.parse(str(notes.get("index", "")), alias) for alias in aliases):
        return False
    if aliases:
        try:
            client.update_aliases(
                [{"remove": {"index": generation, "alias": alias, "must_exist": True}} for alias in aliases]
            )
        except Missing:
            return False
    if (client.find_index(generation) or {}).get(generation, {}).get("aliases"):
        return False
    client.delete_index(generation)
    structlog.get_logger().info("generation.removed", generation=generation)
    return True
