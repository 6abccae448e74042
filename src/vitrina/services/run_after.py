"""Implement the rules of `run_after`: no cycles, and no deletion of a pipeline that others wait for."""

import graphlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from vitrina import schemas
from vitrina.definition import Definition
from vitrina.errors import Conflict, InvalidField
from vitrina.sentences import Sentence, say
from vitrina.status import Status
from vitrina.store import run_after
from vitrina.store.database import Connection
from vitrina.store.pipelines import Row


def refuse_circles(connection: Connection, names: Iterable[str]) -> None:
    """Refuse a pipeline that runs after itself by any path. The caller holds the lock under which edges are written."""
    upstreams: dict[str, list[str]] = defaultdict(list)
    for edge in run_after.list_edges(connection):
        upstreams[edge["downstream"]].append(edge["upstream"])
    for name in names:
        circle = find_circle(name, upstreams)
        if circle:
            raise _circle(circle)


def find_circle(name: str, upstreams: Mapping[str, Collection[str]]) -> list[str] | None:
    """Find the shortest path from a pipeline over those that it runs after back to itself."""
    ways = {upstream: [name, upstream] for upstream in upstreams.get(name, ())}
    waiting = deque(ways)
    while waiting:
        here = waiting.popleft()
        if here == name:
            return ways[here]
        for upstream in upstreams.get(here, ()):
            if upstream not in ways:
                ways[upstream] = [*ways[here], upstream]
                waiting.append(upstream)
    return None


def upstreams_first(definitions: Collection[Definition]) -> list[str]:
    """Order names so that each pipeline is written after those that it runs after."""
    declared = {definition.name for definition in definitions}
    wanted = {
        definition.name: [edge.pipeline for edge in definition.run_after if edge.pipeline in declared]
        for definition in definitions
    }
    try:
        return list(graphlib.TopologicalSorter(wanted).static_order())
    except graphlib.CycleError as exc:
        raise _circle(list(reversed(exc.args[1]))) from None


def refuse_removal(connection: Connection, row: Row, *, also_removed: Collection[UUID] = ()) -> None:
    waiting = [d["name"] for d in run_after.list_downstreams(connection, row["id"]) if d["id"] not in also_removed]
    if waiting:
        raise Conflict(say("pipeline.others_wait", name=row["name"], waiting=", ".join(waiting[:10])))


def waits_for(connection: Connection, row: Row) -> list[schemas.WaitsFor]:
    """List each pipeline that this one runs after."""
    return [
        schemas.WaitsFor.model_validate(edge | {"arrived": edge["arrived_run_id"] is not None, "message": _said(edge)})
        for edge in run_after.list_upstreams(connection, row["id"])
    ]


def _said(edge: Row) -> Sentence:
    name, news = edge["pipeline"], say("wait.changing_success" if edge["only_if_changed"] else "wait.success")
    if edge["arrived_run_id"] is not None:
        return say("wait.arrived", name=name)
    if edge["status"] == Status.FAILED:
        return say("wait.for_failed", news=news, name=name)
    if not edge["enabled"]:
        return say("wait.for_disabled", news=news, name=name)
    return say("wait.for_news", news=news, name=name, status=edge["status"])


def _circle(names: list[str]) -> InvalidField:
    return InvalidField("run_after", say("definition.circle", names=" after ".join(names)))
