"""Hold what a reconciliation found, as it is stored, shown and downloaded."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrina.checks.compare import Confirmation, Detail
from vitrina.ports.compare import Extent, Kind, SideCut

# People read reports, so only the beginning of a long value is kept.
MAX_VALUE_LENGTH = 1_000


@dataclass
class ReconcileReport:
    """Report one reconciliation. `as_dict` returns the stored form, in which `differences` is the exact number."""

    level: str
    key: Sequence[str]
    compared: Sequence[str]
    not_compared: Sequence[str]
    guarantee: str
    checkpoint: str | None
    verdict: Confirmation
    details: list[Detail] = field(default_factory=list)
    rows: tuple[int, int] | None = None
    extents: tuple[Extent, Extent] | None = None
    quick_findings: list[str] = field(default_factory=list)
    looks: int = 1
    started_at: str = ""
    duration_seconds: float = 0.0
    repair: dict[str, Any] | None = None
    # How many sessions were asked on each side, if `options.parallel` requests several.
    cuts: tuple[SideCut, SideCut] | None = None

    @property
    def differences(self) -> int:
        return self.verdict.total or len(self.quick_findings)

    @property
    def remaining(self) -> int:
        """Count what still differs after a repair."""
        return int(self.repair["remaining"]) if self.repair and self.repair["done"] else self.differences

    def as_dict(self) -> dict[str, Any]:
        counts = self.verdict.counts
        return {
            "level": self.level,
            "equal": self.differences == 0,
            "differences": self.differences,
            "remaining": self.remaining,
            "different_rows": self.remaining,  # for metrics and notifications
            **{str(kind): counts[kind] for kind in Kind},
            "in_flight": self.verdict.in_flight,
            "findings": self.quick_findings,
            "source": self._side(0),
            "target": self._side(1),
            "key": list(self.key),
            "compared": list(self.compared),
            "not_compared": list(self.not_compared),
            "guarantee": self.guarantee,
            "checkpoint": self.checkpoint,
            "looks": self.looks,
            "keys": [_plain(detail) for detail in self.details],
            "shown": len(self.details),
            "repair": self.repair,
            "started_at": self.started_at,
            "duration_seconds": round(self.duration_seconds, 3),
        }

    def _side(self, index: int) -> dict[str, Any]:
        side: dict[str, Any] = {"rows": self.rows[index] if self.rows else None}
        if self.extents:
            side |= {"least": self.extents[index].least, "greatest": self.extents[index].greatest}
        if self.cuts:
            side |= {"sessions": self.cuts[index].sessions, "not_cut_because": self.cuts[index].obstacle}
        return side


def _plain(detail: Detail) -> dict[str, Any]:
    return {
        "kind": str(detail.kind),
        "key": detail.key,
        "columns": {
            name: {"source": _cut(source), "target": _cut(target)} for name, (source, target) in detail.columns.items()
        },
    }


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= MAX_VALUE_LENGTH else value[: MAX_VALUE_LENGTH - 1] + "…"
