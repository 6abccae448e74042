"""Handle columns of a mart that its pipeline no longer returns; most rows would keep their old values."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.definition import Options
from vitrina.errors import TargetMismatch
from vitrina.ports.checkpoint import Checkpoint
from vitrina.sentences import say


class Settled(NamedTuple):
    """Hold the outcome for such columns: warnings, and the columns to set to NULL."""

    warnings: tuple[str, ...] = ()
    to_clear: tuple[str, ...] = ()


def settle(writer: PostgresWriter, found: Checkpoint, options: Options, others: Callable[[], Sequence[str]]) -> Settled:
    """Refuse columns for which the pipeline sets no rule; the run carries out `null`, and `keep` needs no action."""
    left = _left(writer, found)
    if not left:
        return Settled()
    named, mart = ", ".join(left), writer.target
    if options.on_missing_columns is None:
        raise TargetMismatch(say("run.columns_missing", target=mart, columns=named))
    if options.on_missing_columns == "keep":
        return Settled((say("warning.columns_kept", columns=named, target=mart),))
    _refuse_to_clear(writer, left, others)
    return Settled((say("warning.columns_cleared", columns=named, target=mart),), left)


def written(checkpoint: Checkpoint, writer: PostgresWriter) -> dict[str, Any]:
    """Describe for the checkpoint, after a batch, the columns so far and those of this run."""
    return _remembered(writer, [*_known(checkpoint, writer), *writer.columns])


def cleared(checkpoint: Checkpoint, writer: PostgresWriter, names: Sequence[str]) -> dict[str, Any]:
    """Describe for the checkpoint the remaining columns after the missing ones were set to NULL."""
    return _remembered(writer, [name for name in _known(checkpoint, writer) if name not in names])


def _remembered(writer: PostgresWriter, names: list[str]) -> dict[str, Any]:
    return {"of": str(writer.target), "names": list(dict.fromkeys(names))}


def _left(writer: PostgresWriter, found: Checkpoint) -> tuple[str, ...]:
    if not writer.exists:
        return ()
    in_table = {column.name for column in writer.table.columns if not column.generated}
    return tuple(name for name in _known(found, writer) if name in in_table and name not in writer.columns)


def _known(checkpoint: Checkpoint, writer: PostgresWriter) -> list[str]:
    known = checkpoint.identity.get("columns")
    return list(known["names"]) if known and known["of"] == str(writer.target) else []


def _refuse_to_clear(writer: PostgresWriter, left: tuple[str, ...], others: Callable[[], Sequence[str]]) -> None:
    mart = writer.target
    required = [column.name for column in writer.table.columns if column.name in left and column.not_null]
    if required:
        raise TargetMismatch(
            f"{required[0]} of {mart} cannot be set to NULL, as options.on_missing_columns asks: it is NOT NULL;"
            " drop the constraint or the column, or choose 'keep'"
        )
    writers = others()
    if writers:
        raise TargetMismatch(
            f"{', '.join(left)} of {mart} cannot be set to NULL, as options.on_missing_columns asks: {writers[0]}"
            " writes there as well, and its values would be lost; choose 'keep', or clear the column by hand"
        )
