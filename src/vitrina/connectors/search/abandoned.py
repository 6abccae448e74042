"""Removing an unfinished generation that no run of its pipeline will come back to."""

import structlog

from vitrina.connectors.search.client import Missing, SearchClient
from vitrina.connectors.search.generations import WriteAlias
from vitrina.connectors.search.mapping import noted


def remove(client: SearchClient, generation: str, pipeline: str) -> bool:
    """Remove the generation. Return whether it is settled: removed, completed, or another pipeline's.

    The caller's metastore has said that no run works on it. A late runner could still show it, but only in a step
    that removes its write alias. Whichever side removes that alias first decides. A generation with another alias is
    kept.
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
