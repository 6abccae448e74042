"""What a connector is opened with in tests: a definition, an epoch, and a run that never says stop."""

from typing import Any
from uuid import UUID

from vitrina.definition import Definition
from vitrina.ports.connector import Connector, Opening, Work


class CalmContext:
    """A run that is never lost, paused or ended."""

    recovers = False

    def __init__(self) -> None:
        self.logged: list[tuple[str, str, dict[str, Any]]] = []

    def check(self) -> None:
        """Accept: the run is never lost."""

    def require_held(self) -> None:
        """Accept: the claim is always held."""

    def wait(self, seconds: float, *, may_pause: bool = False) -> None:
        """Return at once; tests do not sleep."""

    def tell(self, reason: str | None) -> None:
        """Do nothing; no operator listens."""

    def show(self) -> None:
        """Do nothing; no operator listens."""

    def guard(self, session: Any) -> None:
        """Do nothing; the session ends with the test."""

    def let_go(self, session: Any) -> bool:
        return True

    def attach(self, workers: Any) -> None:
        """Do nothing; the workers end with the test."""

    def log(self, level: str, event: str, **values: Any) -> None:
        self.logged.append((level, event, values))


def work_of(epoch: int) -> Work:
    """Create the claim of one epoch on one made-up pipeline."""
    nobody = UUID(int=0)
    return Work(nobody, "contract", nobody, epoch, f"vitrina:{nobody}:{epoch}")


def opening_of(
    connector: Connector, name: str, url: str | None, *, epoch: int = 1, options: dict[str, Any] | None = None
) -> Opening:
    """Create what a runner would open the connector with."""
    definition = Definition(name="contract", source_query="SELECT 1", target_table="a.b", target_key=["id"])
    made = connector.options.model_validate(options or {}) if connector.options else None
    return Opening(definition, made, name, url, work_of(epoch), CalmContext())
