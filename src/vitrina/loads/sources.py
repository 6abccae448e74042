"""Pipelines without SQL: a registered Python source makes the rows, and keeps its checkpoint with ours."""

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from vitrina.connectors.postgres import catalog
from vitrina.connectors.postgres.catalog import Table
from vitrina.definition import Definition
from vitrina.errors import TargetMismatch
from vitrina.loads import columns, steps
from vitrina.loads.plan import Plan
from vitrina.ports.batch import Endable
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.schema import Column
from vitrina.settings import Settings
from vitrina.store.leases import Claim
from vitrina.targets import PostgresTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.loads.job import Job
    from vitrina.transforms.sources import OpenSource


def open_source(
    definition: Definition,
    settings: Settings,
    claim: Claim,
    sessions: ExitStack,
    attach: Callable[[Endable], object] | None = None,
) -> "OpenSource | None":
    """The pipeline's source, if it has one, in a worker and with its params read; nothing of it runs yet."""
    if definition.python_source is None:
        return None
    from vitrina.transforms import remote

    about = remote.About(definition.name, claim.run_id, settings.transforms, datetime.now(UTC))
    asked = claim.row["requested_range"] or {}
    worker = remote.SourceWorker(definition.python_source, steps.limits(definition, settings))
    sessions.callback(worker.close)
    if attach:
        attach(worker)
    return worker.open(definition, about, asked)


def stored_checkpoint(definition: Definition, found: Checkpoint) -> Any:
    """What the source last told us: between runs when incremental, within an interrupted load when full."""
    if definition.mode == "incremental":
        return json.loads(found.safe_upto) if found.safe_upto else None
    return json.loads(json.loads(found.last_key)[0]) if found.stage and found.last_key else None


def inspect(job: "Job", *, create_target: bool) -> Plan:
    """Look into the source as far as its first batch, and prepare the target for it."""
    assert job.source is not None
    _forget_replaced(job)
    if create_target:  # a source may be anything: it runs when it is asked to, not when it is looked at
        stored = stored_checkpoint(job.definition, job.checkpoint)
        schema = job.source.peek(stored)
        if schema is None and stored is not None and job.definition.mode == "full":
            schema = job.source.peek(None)  # an interrupted load that lacks nothing but being published
        _fit(job, schema, create_target=True)
    return _plan(job)


def checkpoint_identity(job: "Job") -> str:
    """Whose a stored checkpoint is, and what has been filled with what it passed by: a source's, and a target."""
    parts = ["source", job.definition.python_source, str(job.target)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _forget_replaced(job: "Job") -> None:
    """Before the source is asked to go on: it never gave what is asked for, or that is no longer in the mart."""
    if job.definition.mode != "incremental" or job.backfill:
        return
    if job.checkpoint.stage is not None and not isinstance(job.target, PostgresTarget):
        return  # the run itself gives the generation up
    if _was_anothers(job):
        job.starts_over_because = "the source or the target is another one than at the last checkpoint"
    elif _mart_was_another(job):
        job.starts_over_because = f"{job.target} was emptied, replaced or restored by hand"
    if job.starts_over_because:
        job.checkpoint = job.checkpoint.blank()


def _was_anothers(job: "Job") -> bool:
    """One that an earlier version of the platform wrote does not say whose it is, only which mart it filled."""
    found = job.checkpoint
    if found.fingerprint is not None:
        return found.fingerprint != checkpoint_identity(job)
    known = found.identity.get("mart")
    return known is not None and known["name"] != str(job.target)


def _mart_was_another(job: "Job") -> bool:
    known = job.checkpoint.identity.get("mart")
    return known is not None and isinstance(job.target, PostgresTarget) and not job.writer.is_same(known)


def look_into(job: "Job") -> None:
    """From its beginning, to compare what it gives with what is there: the target stays as it is."""
    assert job.source is not None
    _fit(job, job.source.peek(None), create_target=False)


def _fit(job: "Job", schema: "pa.Schema | None", *, create_target: bool) -> None:
    from vitrina.transforms import to_target

    assert job.source is not None
    table = catalog.find_table(job.target_connection, job.target) if isinstance(job.target, PostgresTarget) else None
    if schema is None:
        job.output = _key_columns(job.definition, table)
    else:
        missing = [name for name in job.definition.target_key or () if name not in schema.names]
        if missing:
            raise TargetMismatch(f"target_key column {missing[0]!r} is not given by source {job.source.name}")
        job.output = to_target.settle(schema, table)
        job.landings = to_target.landings(schema, job.output)
    job.result = job.output
    if job.output:
        stamps = frozenset(job.definition.options.stamps)
        job.key = job.target_writer.prepare(
            job.output,
            wanted_key=job.definition.target_key,
            ignorable=frozenset(),
            stamps=stamps,
            create=create_target,
        )
        if schema is not None:
            columns.settle(job)


def _key_columns(definition: Definition, table: Table | None) -> list[Column]:
    """Enough to publish that there is nothing; without a table there is nothing to publish to."""
    if table is None:
        return []
    names = definition.target_key or table.primary_key
    return [Column(column.name, column.type) for column in table.columns if column.name in names]


def _plan(job: "Job") -> Plan:
    assert job.source is not None
    full = job.definition.mode == "full"
    again = (f"starts from the beginning: {job.starts_over_because}",) if job.starts_over_because else ()
    how = "loaded, then published at once" if full else "each batch is merged together with the source's checkpoint"
    return Plan(
        route="arrow",
        paging="ordered stream",
        loads_at_once=full,
        deletes=full and not job.definition.options.shared_target,
        isolate=False,
        key=job.key,
        guarantee="exact",
        reasons=(*again, f"rows come from the Python source {job.source.name}", how),
        warnings=tuple(job.warnings),
    )
