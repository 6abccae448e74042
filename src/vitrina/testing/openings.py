"""Open connectors in tests: with a definition, an epoch, and a run that is never stopped."""

from typing import Any
from uuid import UUID

from vitrina.definition import Definition
from vitrina.ports.connector import Connector, Opening, Work


class CalmContext:
    """Simulate a run that is never lost, paused or ended."""

    recovers = False

    def __init__(self) -> None:
        self.logged: list[tuple[str, str, dict[str, Any]]] = []

    def check(self) -> None:
        """Do nothing, because the run is never lost."""

    def require_held(self) -> None:
        """Do nothing, because the claim is always held."""

    def wait(self, seconds: float, *, may_pause: bool = False) -> None:
        """Return at once; tests do not sleep."""

    def tell(self, reason: str | None) -> None:
        """Do nothing, because no operator reads it."""

    def show(self) -> None:
        """Do nothing, because no operator reads it."""

    def guard(self, session: Any) -> None:
        """Do nothing, because the session ends with the test."""

    def let_go(self, session: Any) -> bool:
        return True

    def attach(self, workers: Any) -> None:
        """Do nothing, because the workers end with the test."""

    def log(self, level: str, event: str, **values: Any) -> None:
        self.logged.append((level, event, values))


def work_of(epoch: int) -> Work:
    """Return the claim of one epoch on a fictitious pipeline."""
    no_id = UUID(int=0)
    return Work(no_id, "contract", no_id, epoch, f"vitrina:{no_id}:{epoch}")


def opening_of(
    connector: Connector, name: str, url: str | None, *, epoch: int = 1, options: dict[str, Any] | None = None
) -> Opening:
    """Return what a runner would open the connector with."""
    definition = Definition(name="contract", source_query="SELECT 1", target_table="a.b", target_key=["id"])
    made = connector.options.model_validate(options or {}) if connector.options else None
    return Opening(definition, made, name, url, work_of(epoch), CalmContext())
