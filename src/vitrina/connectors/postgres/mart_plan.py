"""Determine what a full load would change in a mart. Rows are staged and joined as for publishing, but not written."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg

from vitrina.connectors.postgres import merge
from vitrina.connectors.postgres.load import MartTarget, StageLoad
from vitrina.connectors.postgres.stage import PLAN
from vitrina.connectors.postgres.target import Foreseen
from vitrina.errors import CheckFailed, ShrinkRefused
from vitrina.ports.batch import Counts
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.checks import CheckOutcome, Judgement
from vitrina.ports.data_plan import SAMPLE_ROWS, DataDifference, Sample, SampleKind
from vitrina.ports.schema import Column
from vitrina.ports.target import Loading
from vitrina.sentences import say
from vitrina.store import stages

_OPS: Sequence[tuple[str, SampleKind]] = (("I", "added"), ("U", "changed"), ("D", "removed"))
# Rules that only a write can test. Repeated and NULL keys are checked separately.
_RULES_OF_MART = """
SELECT pg_catalog.format('NOT NULL of %%I', a.attname) AS rule
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND a.attnotnull AND NOT a.attisdropped AND a.attname <> ALL (%(key)s)
  AND a.attname = ANY (%(given)s)
UNION ALL
SELECT pg_catalog.format('%%s %%I of %%s', CASE k.contype WHEN 'c' THEN 'check' WHEN 'f' THEN 'foreign key'
                                             ELSE 'exclusion' END, k.conname, k.conrelid::pg_catalog.regclass)
FROM pg_catalog.pg_constraint k
WHERE k.conrelid = %(oid)s AND k.contype IN ('c', 'f', 'x') OR k.confrelid = %(oid)s
UNION ALL
SELECT pg_catalog.format('unique index %%I', c.relname)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %(oid)s AND i.indisunique
  AND (i.indpred IS NOT NULL OR i.indexprs IS NOT NULL
       OR (SELECT pg_catalog.array_agg(a.attname::text ORDER BY a.attname) FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = %(oid)s AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
          IS DISTINCT FROM (SELECT pg_catalog.array_agg(name ORDER BY name) FROM unnest(%(key)s::text[]) AS name))
UNION ALL
SELECT pg_catalog.format('trigger %%I', t.tgname)
FROM pg_catalog.pg_trigger t WHERE t.tgrelid = %(oid)s AND NOT t.tgisinternal AND t.tgenabled <> 'D'
UNION ALL
SELECT pg_catalog.format('rule %%I', r.rulename)
FROM pg_catalog.pg_rewrite r WHERE r.ev_class = %(oid)s AND r.ev_enabled <> 'D'
ORDER BY 1
"""


class ForeseeingMart(MartTarget):
    """Represent a PostgreSQL table that reports what a full load would change in it."""

    def plan_load(self, loading: Loading, latest: Sequence[str]) -> "MartPlan":
        return MartPlan(self, loading, latest)


class MartPlan:
    """Fill a separate stage, which is dropped with the plan."""

    def __init__(self, target: MartTarget, loading: Loading, latest: Sequence[str]) -> None:
        self._target = target
        # This stage never becomes the mart.
        self._loading = loading = replace(loading, in_one_statement=False)
        self._writer = target.writer
        # Stages of the pipeline's runs have other names, so plans and runs do not drop each other's stages.
        self._writer.stage_prefix = PLAN
        self._writer.imagine()
        self.load = StageLoad(target, loading)
        self._latest = [name for name in latest if name in self._writer.columns]
        self._refusals: list[str] = []

    @property
    def new_columns(self) -> Sequence[Column]:
        return self._writer.lacking

    def begin(self) -> None:
        stages.hold_plans(self._target.session, self._target.opening.claim.pipeline_id)
        with self._target.transaction("preparing the stage"):
            self._target.create_stage(self.load.stage, self._loading)

    def discard(self) -> None:
        # An error of a lost session must not hide the original one; housekeeping drops unused stages.
        with suppress(psycopg.Error):
            self.load.discard()

    def difference(self, found: Checkpoint) -> DataDifference:
        judged = self._judge(found)
        left = replace(found, rows=found.rows - len(judged.letters))
        with self._looking():
            foreseen = self._foresee(left)
            changed, samples = self._changed_columns(foreseen), list(self._samples(foreseen))
        outcomes = self._judge_change(judged, foreseen)
        counts, stay = self._counted(foreseen)
        return DataDifference(
            counts=counts,
            rows_before=foreseen.target_rows,
            changed_columns=changed,
            samples=samples,
            stay=stay,
            rejected=len(judged.letters),
            checks=outcomes,
            refusals=self._refusals,
            notes=self._untried(),
        )

    def _untried(self) -> Sequence[str]:
        """List the mart's own rules, which only a write can test."""
        table, key = self._writer.table, list(self._target.opening.definition.target_key or ())
        given = list(self._writer.columns)
        values = {"oid": table.oid, "key": key, "given": given}
        rules = [row["rule"] for row in self._target.session.execute(_RULES_OF_MART, values).fetchall()]
        if not rules:
            return ()
        return [say("plan.data_rules_untried", target=self._target.opening.name, rules=", ".join(rules))]

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Open a transaction that sees one state of the mart; the temporary table ends with it."""
        with self._target.transaction(f"comparing with {self._target.opening.name}"):
            self._target.session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield

    def _foresee(self, found: Checkpoint) -> Foreseen:
        # Rows of other pipelines do not count as removed from this query.
        is_alone = not self._target.opening.definition.options.shared_target
        foreseen = self._writer.foresee(self.load.stage, found, deletes=is_alone, latest=self._latest)
        try:
            if self._loading.deletes:
                self._writer.refuse_loss(foreseen)
        except ShrinkRefused as exc:
            self._refusals.append(exc.message)
        return foreseen

    def _counted(self, foreseen: Foreseen) -> tuple[Counts, int | None]:
        """Return the counts of the run. A run that deletes nothing leaves rows that the query no longer returns."""
        counts = foreseen.counts
        unchanged = foreseen.staged_rows - counts.inserted - counts.updated
        if self._loading.deletes:
            return replace(counts, unchanged=unchanged), None
        return replace(counts, deleted=0, unchanged=unchanged), counts.deleted or None

    # --- what differs ------------------------------------------------------------------------------------------------

    def _changed_columns(self, foreseen: Foreseen) -> dict[str, int]:
        merging = foreseen.merging
        if not foreseen.counts.updated or not merging.compared:
            return {}
        [row] = self._target.session.execute(merge.count_changed_columns(merging)).fetchall()
        found = dict(zip(merging.compared, row.values(), strict=True))
        return {name: rows for name, rows in found.items() if rows}

    def _samples(self, foreseen: Foreseen) -> Iterator[Sample]:
        for op, kind in _OPS:
            if kind == "removed" and not self._loading.deletes:
                continue
            statement = merge.first_differences(foreseen.merging, op, SAMPLE_ROWS)
            for row in self._target.session.execute(statement).fetchall():
                yield Sample(kind, *(json.loads(text) if text else None for text in (row["before"], row["after"])))

    # --- checks ------------------------------------------------------------------------------------------------------

    def _judge(self, found: Checkpoint) -> Judgement:
        """Check the rows as publishing does; rejected ones leave the stage. Report failures and keep the rows."""
        if self.load.checks is None:
            return Judgement()
        try:
            with self._target.transaction(f"checking what {self._target.opening.name} would get"):
                return self.load.judge(self.load.checks, found)
        except CheckFailed as exc:
            self._refusals.append(exc.message)
            return Judgement(exc.outcomes)

    def _judge_change(self, judged: Judgement, foreseen: Foreseen) -> Sequence[CheckOutcome]:
        if self.load.checks is None:
            return ()
        counts, _ = self._counted(foreseen)
        try:
            return self.load.checks.judge_change(judged, counts, foreseen.target_rows).outcomes
        except CheckFailed as exc:
            if exc.message not in self._refusals:
                self._refusals.append(exc.message)
            return exc.outcomes
