"""How a pipeline will be run, and why: a pure function from what is known to a choice that people can read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrina.definition import Definition

# pushdown: Postgres fills its own stage. copy: rows pass through the runner unopened. arrow: somebody looks at them.
Route = Literal["pushdown", "copy", "arrow"]


@dataclass(frozen=True)
class Capabilities:
    """What was found out about source and target before anything is read."""

    same_database: bool
    target_is_table: bool
    has_steps: bool
    estimated_rows: int
    pageable: bool
    foreign_functions: frozenset[str] = frozenset()
    target_is_empty: bool = False
    has_checkpoint: bool = False
    has_unfinished_load: bool = False
    has_delivered: bool = False
    key: tuple[str, ...] = ()
    # Whether the query gives some of the key: without, steps make all of it, and there is no order to continue in.
    key_is_read: bool = True
    guarantee: str | None = None
    warnings: tuple[str, ...] = ()
    starts_over_because: str | None = None


@dataclass(frozen=True)
class Plan:
    """The choice. `loads_at_once`: everything is staged, then published in one transaction."""

    route: Route
    paging: Literal["one statement", "keyset pages", "ordered stream"]
    loads_at_once: bool
    deletes: bool
    isolate: bool
    key: tuple[str, ...]
    guarantee: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    page_rows: int | None = field(default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "route": self.route,
            "paging": self.paging,
            "loads_at_once": self.loads_at_once,
            "deletes": self.deletes,
            "key": list(self.key),
            "guarantee": self.guarantee,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
        }


def plan(definition: Definition, known: Capabilities) -> Plan:
    """Choose route and paging."""
    reasons: list[str] = []
    if known.starts_over_because:
        reasons.append(f"starts from the beginning: {known.starts_over_because}")
    route = _route(definition, known, reasons)
    at_once = _loads_at_once(definition, known, reasons)
    paging, page_rows = _paging(definition, known, route, at_once, reasons)
    full = definition.mode == "full"
    deletes = full and not definition.options.shared_target
    if full and definition.options.shared_target:
        reasons.append("options.shared_target: rows that left the source are not deleted")
    isolate = route == "pushdown" and bool(known.foreign_functions)
    if isolate:
        reasons.append(f"runs read-only first, because it calls {', '.join(sorted(known.foreign_functions))}")
    return Plan(
        route=route,
        paging=paging,
        loads_at_once=at_once,
        deletes=deletes,
        isolate=isolate,
        key=known.key,
        guarantee="exact" if full else known.guarantee or "bounded-lag",
        reasons=tuple(reasons),
        warnings=known.warnings,
        page_rows=page_rows,
    )


def _route(definition: Definition, known: Capabilities, reasons: list[str]) -> Route:
    looked_at: Sequence[tuple[bool, str]] = (
        (not known.target_is_table, "the target is a search index"),
        (known.has_steps, "Python steps look at the rows"),
        (definition.options.route == "arrow", "options.route asks for it"),
    )
    for applies, reason in looked_at:
        if applies:
            reasons.append(f"arrow: {reason}")
            return "arrow"
    carried: Sequence[tuple[bool, str]] = (
        (not known.same_database, "source and target are in different databases, and no step looks at the rows"),
        (definition.options.route == "copy", "options.route asks for it"),
    )
    for applies, reason in carried:
        if applies:
            reasons.append(f"copy: {reason}")
            return "copy"
    reasons.append("pushdown: source and target are in one database and no step looks at the rows")
    return "pushdown"


def _loads_at_once(definition: Definition, known: Capabilities, reasons: list[str]) -> bool:
    if definition.mode == "full":
        return True
    if not known.target_is_table or known.has_steps:
        return False
    if known.has_unfinished_load:
        reasons.append("the first pass was interrupted: it goes on")
        return True
    if known.target_is_empty and not known.has_checkpoint:
        reasons.append("the mart is empty: the first pass loads it at once")
        return True
    if known.target_is_empty and known.has_delivered:
        reasons.append("the mart was emptied or recreated by hand: the checkpoint is reset and it is loaded again")
        return True
    return False


def _paging(
    definition: Definition, known: Capabilities, route: str, at_once: bool, reasons: list[str]
) -> tuple[Literal["one statement", "keyset pages", "ordered stream"], int | None]:
    if route == "arrow" and at_once and not known.key_is_read:
        reasons.append("one streamed query that starts over when interrupted, because Python steps make the key")
        return "one statement", None
    if route != "pushdown":
        reasons.append("one streamed query, in order, with a checkpoint per batch")
        return "ordered stream", None
    if not known.pageable:
        reasons.append("cannot be read in pages (it sorts or aggregates), so it runs once")
        return "one statement", None
    if not at_once:
        reasons.append(f"pages of {definition.batch_size} rows")
        return "keyset pages", definition.batch_size
    if known.estimated_rows < definition.options.checkpoint_rows:
        reasons.append(f"about {known.estimated_rows} rows: one statement")
        return "one statement", None
    reasons.append(f"about {known.estimated_rows} rows: chunks with a checkpoint each, under one snapshot")
    return "keyset pages", definition.options.checkpoint_rows
