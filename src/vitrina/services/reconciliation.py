"""Implement the control plane's rules of reconciling: when a repair may be requested, and what a report lists."""

from typing import Any

from vitrina.errors import NotFound
from vitrina.sentences import say
from vitrina.store import dead_letters, requests
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row

# Dead letters that one request may replay.
MOST_LETTERS = 10_000


def letters_of_group(connection: Connection, row: Row, reason: str, only: list[int] | None) -> list[int]:
    """Return the open dead letters of one reason, oldest last; `only` narrows them."""
    found = dead_letters.list_page(
        connection, pipeline_id=row["id"], resolved=False, reason=reason, before_id=None, limit=MOST_LETTERS
    )
    numbers = [letter["id"] for letter in found if only is None or letter["id"] in only]
    if not numbers:
        raise NotFound(say("pipeline.no_letters_of_group", name=row["name"]))
    return numbers


def listed_differences(connection: Connection, row: Row) -> list[dict[str, Any]]:
    found = requests.find_latest_result(connection, row["id"], "reconcile")
    if found is None:
        raise NotFound(say("pipeline.no_report", name=row["name"]))
    keys: list[dict[str, Any]] = found["result"]["keys"]
    return keys


def as_csv(keys: list[dict[str, Any]]) -> str:
    """Write one line per key and differing column; NULL is an empty field, text is quoted."""
    names = list(keys[0]["key"]) if keys else []
    lines = [["kind", *names, "column", "source", "target"]]
    for one in keys:
        head = [one["kind"], *(one["key"][name] for name in names)]
        columns = one["columns"].items() or [(None, {"source": None, "target": None})]
        lines += [[*head, column, values["source"], values["target"]] for column, values in columns]
    return "".join(",".join(map(_csv_field, line)) + "\r\n" for line in lines)


def _csv_field(value: str | None) -> str:
    return "" if value is None else '"' + value.replace('"', '""') + '"'
