"""Open the engine that loads ranges of the key: local processes, or one of a connector (`options.engine`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vitrina.definition import LOCAL, Definition
from vitrina.errors import CannotConnect, ConfigError, RunError
from vitrina.loads.plan import Plan
from vitrina.observe import logs
from vitrina.ports import registry
from vitrina.ports.connector import Connector
from vitrina.ports.ranges import Engine, EngineOpening, FillHandle, Progress
from vitrina.sentences import say
from vitrina.settings import Settings

if TYPE_CHECKING:
    from vitrina.loads.run import Run

# How long a cluster may take to answer `vitrina validate`. A runner performs one request at a time.
_ANSWER_SECONDS = 45.0


def open_engine(run: "Run", handle: FillHandle, reserve: Callable[[int], int], progress: Progress) -> Engine:
    """Open the engine that the pipeline requests."""
    job = run.job
    if job.definition.options.engine == LOCAL:
        # Imported here: it starts processes, and few loads are split into ranges.
        from vitrina.loads.local_pool import LocalPool

        limit = run.control.silence_limit_seconds
        return LocalPool(handle, job.settings, run.plan.workers, silence_limit_seconds=limit, progress=progress)
    connector = _connector(job.definition)
    if connector.open_engine is None:
        raise ConfigError(f"{connector.name} is not an engine")
    url = _url(job.definition, job.settings)
    return connector.open_engine(EngineOpening(handle, job.settings, url, reserve, logs.redactor_of, progress))


def warnings(plan: Plan, definition: Definition, settings: Settings) -> tuple[str, ...]:
    """List how the engine that would load the rows differs from this process, or why that is not known.

    A cluster that is stopped or busy does not make the definition wrong.
    """
    if plan.paging != "key ranges" or definition.options.engine == LOCAL:
        return ()
    connector = _connector(definition)
    if connector.check_engine is None:
        return ()
    try:
        return tuple(connector.check_engine(_url(definition, settings), _ANSWER_SECONDS))
    except (CannotConnect, RunError) as exc:
        return (say("warning.engine_unasked", engine=connector.name, because=exc.message),)


def _connector(definition: Definition) -> Connector:
    return registry.get(definition.options.engine)


def _url(definition: Definition, settings: Settings) -> str:
    """Find the URL of the connection that the options of the engine name, and that it can open."""
    connector = _connector(definition)
    options = definition.options.of(connector.name)
    name = str(getattr(options, "connection", connector.name))
    url = settings.connection_url(name)
    if registry.of_url(url) is not connector:
        schemes = ", ".join(f"{scheme}://" for scheme in connector.schemes)
        raise ConfigError(
            f"the connection {name!r} does not belong to {connector.name}, whose URLs begin with {schemes}"
        )
    return url
