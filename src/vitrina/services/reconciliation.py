"""Rules of reconciling on the control plane's side: when a repair may be asked for, and what a report lists."""

from typing import Any

from vitrina.errors import Conflict, NotFound
from vitrina.status import can_move
from vitrina.store import requests
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def refuse_beside_a_run(row: Row, what: str = "repaired") -> None:
    if not can_move("claim_idle", row["status"]):
        compare = " (without `repair`, it is compared at any time)" if what == "repaired" else ""
        raise Conflict(
            f"pipeline {row['name']} is {row['status']}: nothing is {what} beside a run; pause it or wait until it is"
            f" IDLE, then ask again{compare}"
        )


def listed_differences(connection: Connection, row: Row) -> list[dict[str, Any]]:
    found = requests.find_latest_result(connection, row["id"], "reconcile")
    if found is None:
        raise NotFound(f"pipeline {row['name']} has no finished reconcile report yet: POST .../reconcile asks for one")
    keys: list[dict[str, Any]] = found["result"]["keys"]
    return keys


def as_csv(keys: list[dict[str, Any]]) -> str:
    """One line per key and differing column; NULL is an empty field, text is quoted."""
    names = list(keys[0]["key"]) if keys else []
    lines = [["kind", *names, "column", "source", "target"]]
    for one in keys:
        head = [one["kind"], *(one["key"][name] for name in names)]
        columns = one["columns"].items() or [(None, {"source": None, "target": None})]
        lines += [[*head, column, values["source"], values["target"]] for column, values in columns]
    return "".join(",".join(map(_csv_field, line)) + "\r\n" for line in lines)


def _csv_field(value: str | None) -> str:
    return "" if value is None else '"' + value.replace('"', '""') + '"'
