"""Open a Python source in a worker process and read its params; nothing of it runs yet."""

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime

from vitrina.connectors.python.source import PythonSource
from vitrina.definition import Definition
from vitrina.errors import FatalError
from vitrina.ports.batch import Endable
from vitrina.settings import Settings
from vitrina.store.leases import Claim
from vitrina.transforms import remote
from vitrina.transforms.process import Limits


def open_source(
    definition: Definition,
    settings: Settings,
    claim: Claim,
    sessions: ExitStack,
    attach: Callable[[Endable], object] = lambda worker: None,
) -> PythonSource:
    name = definition.python_source
    if name is None:
        raise FatalError("the pipeline has neither a source query nor a Python source")
    about = remote.About(definition.name, claim.run_id, settings.transforms, datetime.now(UTC))
    asked = claim.row["requested_range"] or {}
    options = definition.options
    worker = remote.SourceWorker(
        name, Limits(options.step_timeout_seconds, options.step_memory_mb, settings.step_environment)
    )
    sessions.callback(worker.close)
    attach(worker)
    return PythonSource(worker.open(definition, about, asked), definition, is_backfill=claim.is_backfill)
