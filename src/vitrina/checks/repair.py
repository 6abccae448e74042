"""Make the target equal to its source for given keys: read each row again and write it as a run would."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitrina.checks.compare import Confirmation
from vitrina.errors import FatalError
from vitrina.loads import incremental
from vitrina.loads.control import Paused
from vitrina.loads.run import Run
from vitrina.ports.batch import Counts, Key, Part, PartId, Position
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.compare import Correctable, Correction, Difference, Kind
from vitrina.ports.target import Done, Load, Removes, Writer

if TYPE_CHECKING:
    import pyarrow as pa

    from vitrina.ports.checks import Judgement


@dataclass
class Repaired:
    """Count what a repair has done so far."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: int = 0  # by the target; these rows still differ
    keys: int = 0
    paused: bool = False

    def add(self, counts: Counts) -> None:
        self.inserted += counts.inserted
        self.updated += counts.updated
        self.deleted += counts.deleted
        self.unchanged += counts.unchanged


def plan(differences: Sequence[Difference]) -> dict[str, int]:
    """Count what a repair would do."""
    extra = sum(difference.kind is Kind.EXTRA for difference in differences)
    return {"upserts": len(differences) - extra, "deletes": extra}


def repair(run: Run, compared: Correctable, verdict: Confirmation, batch_rows: int) -> Repaired:
    """Write a batch at a time, each under the fence, until all is done or a pause is requested."""
    repairing, done = _Repairing(run, compared), Repaired()
    try:
        repairing.begin(verdict)
        for correction in compared.corrections(verdict.confirmed, batch_rows):
            repairing.write(correction, done)
        repairing.end()
    except Paused:
        done.paused = True
    return done


class _Repairing:
    """Run one repair as a merge whose parts are corrections."""

    def __init__(self, run: Run, compared: Correctable) -> None:
        self._run = run
        self._compared = compared
        self._deletes = not run.job.definition.options.only_adds
        self._load: Load = incremental.open_merge(run, arrives_as=compared.arrives_as, latest_counts=True)
        # A document may occur again in a later batch; it counts once.
        self._settled: set[Key] = set()

    def begin(self, verdict: Confirmation) -> None:
        # All that left, also keys that are left to the next repair: the guard protects the target from all of them.
        deletes = verdict.counts[Kind.EXTRA] if self._deletes else 0
        if deletes:
            self._compared.refuse_shrinking(deletes)
        incremental.begin(self._run, self._load)

    def write(self, correction: Correction, done: Repaired) -> None:
        # Removed first, because one of the rows may take over a unique value of a removed row.
        if correction.absent and self._deletes:
            self._remove(correction.absent, done)
        rejected: set[str] = set()
        if correction.rows is not None and correction.rows.num_rows:
            rejected = self._upsert(correction.rows, done)
        self._settled.update(key for key in correction.keys if key[0] not in rejected)
        self._settled.update(correction.absent)
        done.keys = len(self._settled)
        self._run.settle()

    def _upsert(self, rows: "pa.Table", done: Repaired) -> set[str]:
        run, judged = self._run, None
        if run.gate:
            rows, judged = run.gate.pass_on(rows)
        with self._load.writer() as writer, run.ahead(_Rows(rows, writer, run.job.claim.epoch, judged), None) as parts:
            [part] = list(parts)
        done.add(run.commit(self._load, part, _numbered, settles=False))
        rejected = run.letters.latest
        done.rejected += len(rejected)
        return {letter.document_id for letter in rejected}

    def _remove(self, keys: Sequence[Key], done: Repaired) -> None:
        run, load = self._run, self._load
        if not isinstance(load, Removes):
            raise FatalError(f"{run.job.definition.final_target} has rows that left the source, and cannot delete any")
        run.control.check()
        number = run.checkpoint.batch_no + 1

        def move(did: Done) -> Checkpoint:
            run.meter.merged(did.counts)
            return replace(run.checkpoint, batch_no=number)

        done.add(load.remove(keys, number, run.fence("removing rows", move)))

    def end(self) -> None:
        fence = self._run.fence("ending the repair", lambda _: self._run.checkpoint, progressed=False)
        self._load.publish(fence)
        self._load.discard()


@dataclass
class _Rows:
    """Send the rows of one correction to the target: a `Filling` of one part."""

    rows: "pa.Table"
    writer: Writer
    epoch: int
    # The results of the checks, if they were evaluated here.
    judged: "Judgement | None" = None
    # The writer of an index also serves the next correction, so only one that hangs is closed.
    is_done: bool = False

    def parts(self, first_number: int, after: Position | None) -> Iterator[Part]:
        written = self.writer.write(self.rows, PartId(self.epoch, first_number))()
        letters = (*written.letters, *(self.judged.letters if self.judged else ()))
        yield Part(
            first_number,
            self.rows.num_rows,
            None,
            staged=written.rows,
            letters=letters,
            delivered=written.delivered - {letter.document_id for letter in letters},
            counts=written.counts,
            judged=self.judged,
        )
        self.is_done = True

    def close(self) -> None:
        if not self.is_done:
            self.writer.close()


def _numbered(found: Checkpoint, part: Part) -> Checkpoint:
    return replace(found, batch_no=part.number)


def outcome(done: Repaired, found: int) -> dict[str, Any]:
    return {**vars(done), "done": True, "remaining": found - done.keys}
