"""Choose how a pipeline will be run, and explain why. The choice is a pure function of what is known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitrina.definition import LOCAL, Definition
from vitrina.ports.live import FollowedTable
from vitrina.ports.ranges import Cut
from vitrina.sentences import say

# pushdown: Postgres fills its own stage. copy: rows pass through the runner unparsed. arrow: the runner parses them.
Route = Literal["pushdown", "copy", "arrow"]
Paging = Literal["one statement", "keyset pages", "ordered stream", "key ranges"]

# How long a load in one statement may take before it is split into chunks, and how long a chunk should take.
_ONE_STATEMENT_SECONDS = 60.0
_CHUNK_SECONDS = 10.0
_SMALLEST_CHUNK_ROWS = 10_000
# Assumed rate of a pipeline that has not run yet: a plain table within one database.
_USUAL_ROWS_PER_SECOND = 333_000.0
# The same between two databases, and through the runner into another system.
_USUAL_COPIED_ROWS_PER_SECOND = 100_000.0
_USUAL_CARRIED_ROWS_PER_SECOND = 10_000.0
# Rows that a range of the key should have, and the maximum number of ranges. Each pending one is in the checkpoint.
_RANGE_ROWS = 100_000
_MOST_RANGES = 256
_RANGES_OF_WORKER = 2
# Time before a job on a cluster delivers its first row: a session, a job of one row, and Python processes. It is the
# difference between 2,000 rows by a cluster and by one stream in bench/results/spark.md, on a busy machine. The rate of
# one stream with a row step was measured as well; see docs/explanation/scaling.md.
_ENGINE_SECONDS = 21.0
_USUAL_STEPPED_ROWS_PER_SECOND = 70_000.0
# How much of one stream's speed each processor adds to a load in ranges. One stream uses about one and a half; see the
# row steps in bench/results/parallel.json.
_STREAMS_OF_PROCESSOR = 0.6


@dataclass(frozen=True)
class Capabilities:
    """Hold what is known about source and target before anything is read."""

    same_database: bool
    has_steps: bool
    estimated_rows: int
    pageable: bool
    # Why rows have to pass through the runner; None if there is a route without it.
    no_shortcut_because: str | None = None
    # Name of a source that is not a query. Its rows are read in their own order.
    streamed_from: str | None = None
    # Whether the first pass of an incremental pipeline may be loaded at once.
    loads_first_pass: bool = True
    # Whether a target that needs the runner's route accepts rows in any order.
    takes_any_order: bool = False
    foreign_functions: frozenset[str] = frozenset()
    target_is_empty: bool = False
    has_checkpoint: bool = False
    has_unfinished_load: bool = False
    has_delivered: bool = False
    key: tuple[str, ...] = ()
    # Whether the query returns part of the key. Otherwise steps make all of it, and there is no order to resume in.
    key_is_read: bool = True
    # Whether a read in the order of the key can resume after any row.
    key_has_order: bool = True
    # Rate of this pipeline's last large run.
    rows_per_second: float | None = None
    guarantee: str | None = None
    warnings: tuple[str, ...] = ()
    # Tables of a live pipeline, and how their rows lead to keys.
    followed: tuple[FollowedTable, ...] = ()
    starts_over_because: str | None = None
    # Processes that `options.parallel` requests, limited by the room that the connections have.
    workers: int = 1
    # Processors that the runner may use.
    processors: int = 1
    # Sessions in which a comparison may ask each side.
    compare_sessions: int = 1
    # Why several processes cannot read the source or write the target at once.
    no_ranges_because: str | None = None
    # Whether an interrupted load was split into ranges of the key.
    has_ranges_left: bool = False
    # How the source can split its rows; None if it was not asked.
    cut: Cut | None = None


@dataclass(frozen=True)
class Plan:
    """Hold the choice. With `loads_at_once`, everything is staged, then published in one transaction."""

    route: Route
    paging: Paging
    loads_at_once: bool
    deletes: bool
    isolate: bool
    key: tuple[str, ...]
    guarantee: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    page_rows: int | None = field(default=None)
    # With paging by key ranges: how many there shall be, and how many processes load them.
    ranges: int = 0
    workers: int = 1

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
        reasons.append(say("plan.starts_over", because=known.starts_over_because))
    if known.streamed_from:
        return _stream(definition, known, reasons)
    route = _route(definition, known, reasons)
    at_once = _loads_at_once(definition, known, reasons)
    paging, page_rows = _paging(definition, known, route, at_once, reasons)
    full = definition.mode != "incremental"
    if full and definition.options.only_adds:
        reasons.append(_why_none_is_deleted(definition))
    cut = paging == "key ranges" and known.cut
    isolate = route == "pushdown" and bool(known.foreign_functions)
    if isolate:
        reasons.append(say("plan.read_only_first", functions=", ".join(sorted(known.foreign_functions))))
    for table in known.followed:
        reasons += [_followed(table), *_cost(table)]
    return Plan(
        route=route,
        paging=paging,
        loads_at_once=at_once,
        deletes=full and not definition.options.only_adds,
        isolate=isolate,
        key=known.key,
        guarantee=_guarantee(definition, known),
        reasons=tuple(reasons),
        warnings=(*known.warnings, *(_slower_engine(definition, known) if cut else ())),
        page_rows=page_rows,
        ranges=cut.ranges if cut else 0,
        workers=known.workers if cut else 1,
    )


def _followed(table: FollowedTable) -> str:
    if table.every_key:
        return say("plan.live_every_key", table=table.relation)
    if table.old_columns:
        columns = ", ".join(table.old_columns)
        return say("plan.live_table_full", table=table.relation, leads_to=table.leads_to, columns=columns)
    return say("plan.live_table", table=table.relation, leads_to=table.leads_to)


def _cost(table: FollowedTable) -> Iterator[str]:
    """Estimate what a changed row costs."""
    if table.every_key or table.keys_per_row is None:
        return
    if table.scans:
        scanned = ", ".join(table.scans)
        yield say("plan.live_cost_scans", table=table.relation, keys=table.keys_per_row, scanned=scanned)
    else:
        yield say("plan.live_cost", table=table.relation, keys=table.keys_per_row)


def _why_none_is_deleted(definition: Definition) -> str:
    return say("plan.shared_target") if definition.options.shared_target else say("plan.rows_stay")


def _guarantee(definition: Definition, known: Capabilities) -> str:
    if definition.mode == "incremental":
        return known.guarantee or "bounded-lag"
    return "exact"


def _stream(definition: Definition, known: Capabilities, reasons: list[str]) -> Plan:
    full = definition.mode == "full"
    how = say("plan.source_at_once") if full else say("plan.source_batches")
    if full and definition.options.only_adds:
        reasons.append(_why_none_is_deleted(definition))
    if full and definition.options.may_be_cut:
        reasons.append(say("plan.no_ranges", because=say("plan.ranges_source", source=known.streamed_from)))
    return Plan(
        route="arrow",
        paging="ordered stream",
        loads_at_once=full,
        deletes=full and not definition.options.only_adds,
        isolate=False,
        key=known.key,
        guarantee="exact",
        reasons=(*reasons, say("plan.source", source=known.streamed_from), how),
        warnings=known.warnings,
    )


def _route(definition: Definition, known: Capabilities, reasons: list[str]) -> Route:
    looked_at: Sequence[tuple[bool, str]] = (
        (known.no_shortcut_because is not None, say("plan.arrow", because=known.no_shortcut_because)),
        (known.has_steps, say("plan.arrow_steps")),
        (definition.options.route == "arrow", say("plan.arrow_asked")),
        (_judges_changes(definition), say("plan.arrow_checks")),
    )
    for applies, reason in looked_at:
        if applies:
            reasons.append(reason)
            return "arrow"
    carried: Sequence[tuple[bool, str]] = (
        (not known.same_database, "plan.copy_between"),
        (definition.options.route == "copy", "plan.copy_asked"),
    )
    for applies, reason in carried:
        if applies:
            reasons.append(say(reason))
            return "copy"
    reasons.append(say("plan.pushdown"))
    return "pushdown"


def _judges_changes(definition: Definition) -> bool:
    """Return whether rows that a live run corrects are checked, for which they must be staged."""
    return definition.mode == "live" and any(check.of_rows for check in definition.checks)


def _loads_at_once(definition: Definition, known: Capabilities, reasons: list[str]) -> bool:
    if definition.mode != "incremental":
        return True
    if not known.loads_first_pass or (known.has_steps and not _may_be_brought_in_ranges(definition, known)):
        return False
    if known.has_unfinished_load:
        reasons.append(say("plan.first_pass_goes_on"))
        return True
    if known.target_is_empty and not known.has_checkpoint:
        reasons.append(say("plan.first_pass"))
        return True
    if known.target_is_empty and known.has_delivered:
        reasons.append(say("plan.emptied"))
        return True
    return False


def _may_be_brought_in_ranges(definition: Definition, known: Capabilities) -> bool:
    return definition.options.may_be_cut and known.cut is not None and known.cut.ranges > 0


def _paging(
    definition: Definition, known: Capabilities, route: str, at_once: bool, reasons: list[str]
) -> tuple[Paging, int | None]:
    if _is_cut(definition, known, reasons):
        return "key ranges", None
    if route == "arrow" and at_once and not known.key_is_read:
        reasons.append(say("plan.stream_without_key"))
        return "one statement", None
    if at_once and not known.key_has_order:
        reasons.append(say("plan.one_batch_unordered"))
        return "one statement", None
    if at_once and known.estimated_rows < _unordered_rows(definition, known, route):
        # Sorting rows by the key would only serve to make the load resumable.
        reasons.append(say("plan.one_batch_quick", rows=known.estimated_rows))
        return "one statement", None
    if route != "pushdown":
        reasons.append(say("plan.stream"))
        return "ordered stream", None
    if not known.pageable:
        reasons.append(say("plan.one_batch_sorted"))
        return "one statement", None
    if not at_once:
        reasons.append(say("plan.pages", rows=definition.batch_size))
        return "keyset pages", definition.batch_size
    at_most, chunk_rows = _one_statement_rows(definition, known)
    if known.estimated_rows < at_most:
        reasons.append(say("plan.one_batch_quick", rows=known.estimated_rows))
        return "one statement", None
    reasons.append(say("plan.chunks", rows=known.estimated_rows, chunk=chunk_rows))
    return "keyset pages", chunk_rows


def _is_cut(definition: Definition, known: Capabilities, reasons: list[str]) -> bool:
    """Return whether processes load ranges of the key in parallel.

    Add the reason if several were requested but are not used.
    """
    if not definition.options.may_be_cut:
        return False
    obstacle = why_not_cut(definition, known) or (known.cut.obstacle if known.cut else None)
    if obstacle or known.cut is None:
        reasons.append(say("plan.no_ranges", because=obstacle or say("plan.ranges_unasked")))
        return False
    engine = definition.options.engine
    if engine == LOCAL:
        reasons.append(say("plan.ranges", ranges=known.cut.ranges, workers=known.workers))
    else:
        reasons.append(say("plan.ranges_engine", ranges=known.cut.ranges, engine=engine))
    if definition.mode == "incremental":
        reasons.append(say("plan.ranges_first_pass"))
    elif known.compare_sessions > 1:
        reasons.append(say("plan.ranges_load_alone", workers=known.compare_sessions))
    return True


def _slower_engine(definition: Definition, known: Capabilities) -> Iterator[str]:
    """Warn if the runner would finish on all of its processors before a cluster delivers rows."""
    if definition.options.engine == LOCAL:
        return
    rate = known.rows_per_second or _USUAL_STEPPED_ROWS_PER_SECOND
    seconds = known.estimated_rows / (rate * max(known.processors * _STREAMS_OF_PROCESSOR, 1.0))
    if seconds < _ENGINE_SECONDS:
        names = {"engine": definition.options.engine, "rows": known.estimated_rows, "processors": known.processors}
        yield say("plan.engine_slower", **names, seconds=max(round(seconds), 1), start=round(_ENGINE_SECONDS))


def why_not_cut(definition: Definition, known: Capabilities) -> str | None:
    """Return why a load is not split into ranges of the key, as far as that is known without asking the source."""
    route = _route(definition, known, [])
    looked_at: Sequence[tuple[bool, str]] = (
        (definition.mode == "live", say("plan.ranges_live")),
        (known.no_ranges_because is not None, known.no_ranges_because or ""),
        (not _loads_at_once(definition, replace(known, has_steps=False), []), say("plan.ranges_passes")),
        (route == "pushdown", say("plan.ranges_pushdown")),
        (not known.key_is_read, say("plan.ranges_no_key")),
        (not known.key_has_order, say("plan.ranges_unordered")),
        (known.workers == 1, say("plan.ranges_no_room")),
        (
            not known.has_ranges_left and known.estimated_rows < _unordered_rows(definition, known, route),
            say("plan.ranges_quick", rows=known.estimated_rows),
        ),
        (
            known.estimated_rows < _RANGES_OF_WORKER * range_rows(definition) and not known.has_ranges_left,
            say("plan.ranges_few", rows=known.estimated_rows, least=_RANGES_OF_WORKER * range_rows(definition)),
        ),
    )
    return next((reason for applies, reason in looked_at if applies), None)


def range_rows(definition: Definition) -> int:
    """Return how many rows a range of the key should have."""
    return definition.options.checkpoint_rows or _RANGE_ROWS


def count_ranges(definition: Definition, known: Capabilities) -> int:
    """Return how many ranges a load should be split into."""
    least = _RANGES_OF_WORKER * known.workers if definition.options.engine == LOCAL else _RANGES_OF_WORKER
    return min(max(wanted_ranges(definition, known.estimated_rows), least), _MOST_RANGES)


def wanted_ranges(definition: Definition, rows: int) -> int:
    """Return how many ranges of the preferred size hold this many rows."""
    return -(-rows // range_rows(definition))


def asked_workers(definition: Definition, rows: int, processors: int) -> int:
    """Return how many ranges are to be loaded at a time. A cluster loads all of them unless the options limit it."""
    asked = definition.options.parallel
    if definition.options.engine != LOCAL and asked in (1, "auto"):
        return min(max(wanted_ranges(definition, rows), _RANGES_OF_WORKER), _MOST_RANGES)
    return processors


def _unordered_rows(definition: Definition, known: Capabilities, route: str) -> int:
    """Return up to how many rows a load through the runner is read in any order and restarted if interrupted."""
    carried = route == "arrow" and known.takes_any_order and not known.has_steps
    if route != "copy" and not carried:
        return 0
    if definition.options.checkpoint_rows is not None:
        return definition.options.checkpoint_rows
    usual = _USUAL_CARRIED_ROWS_PER_SECOND if carried else _USUAL_COPIED_ROWS_PER_SECOND
    return int((known.rows_per_second or usual) * _ONE_STATEMENT_SECONDS)


def _one_statement_rows(definition: Definition, known: Capabilities) -> tuple[int, int]:
    """Return how many rows are loaded in one statement at most, and how many a chunk has beyond that."""
    chosen = definition.options.checkpoint_rows
    if chosen is not None:
        return chosen, chosen
    rate = known.rows_per_second or _USUAL_ROWS_PER_SECOND
    return int(rate * _ONE_STATEMENT_SECONDS), max(int(rate * _CHUNK_SECONDS), _SMALLEST_CHUNK_ROWS)
