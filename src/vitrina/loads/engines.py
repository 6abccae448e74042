"""Open the engine that loads ranges of the key: local processes, or one of a connector (`options.engine`)."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vitrina.definition import LOCAL, Definition
from vitrina.errors import ConfigError
from vitrina.observe import logs
from vitrina.ports import registry
from vitrina.ports.connector import Connector
from vitrina.ports.ranges import Engine, EngineOpening, FillHandle
from vitrina.settings import Settings

if TYPE_CHECKING:
    from vitrina.loads.run import Run


def open_engine(run: "Run", handle: FillHandle, reserve: Callable[[int], int]) -> Engine:
    """Open the engine that the pipeline requests."""
    job = run.job
    if job.definition.options.engine == LOCAL:
        # Imported here: it starts processes, and few loads are split into ranges.
        from vitrina.loads.local_pool import LocalPool

        limit = run.control.silence_limit_seconds
        return LocalPool(handle, job.settings, run.plan.workers, silence_limit_seconds=limit)
    connector = _connector(job.definition)
    if connector.open_engine is None:
        raise ConfigError(f"{connector.name} is not an engine")
    url = _url(job.definition, job.settings)
    return connector.open_engine(EngineOpening(handle, job.settings, url, reserve, logs.redactor_of))


def differences(definition: Definition, settings: Settings) -> Sequence[str]:
    """List how the engine's environment differs from this process; that of local processes does not."""
    if definition.options.engine == LOCAL:
        return ()
    check = _connector(definition).check_engine
    return check(_url(definition, settings)) if check else ()


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
