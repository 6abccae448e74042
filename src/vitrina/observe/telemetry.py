"""Run the telemetry of a runner: log lines of runs, metrics and probes, notifications, traces and lineage."""

import time
from uuid import UUID

import psycopg

from vitrina.errors import CannotConnect, ConfigError
from vitrina.observe import tracing
from vitrina.observe.lineage import RunLineage
from vitrina.observe.lineage_sender import LineageSender
from vitrina.observe.monitoring import MetastoreCollector
from vitrina.observe.notifications import Notifier
from vitrina.observe.observer import RunObserver
from vitrina.observe.probes import ProbeServer
from vitrina.observe.prometheus import Instruments
from vitrina.observe.run_logs import RunLogWriter
from vitrina.observe.run_trace import RunTrace
from vitrina.observe.shared_session import SharedSession
from vitrina.settings import Settings
from vitrina.store import database, migrate, runners
from vitrina.store.leases import Claim

# One iteration of the loop takes milliseconds; with an unavailable metastore, as long as the connection timeout.
STALLED_SECONDS = 60.0
PROBE_CONNECT_SECONDS = 3


class Telemetry:
    """Run threads beside the work; a run never waits for them."""

    def __init__(self, settings: Settings, runner_id: UUID) -> None:
        self._settings = settings
        self._runner_id = runner_id
        self.instruments = Instruments()
        self.instruments.capacity.set(settings.concurrency)
        self._session = SharedSession(settings)
        self._lines = RunLogWriter(settings, self._session.turn, on_dropped=self.instruments.lines_dropped.inc)
        self._notifier = Notifier(settings, self.instruments, self._session.turn)
        self._tracing = tracing.start("vitrina-runner")
        wants_lineage = settings.lineage_url or settings.lineage_file
        self._lineage = LineageSender(settings, self.instruments, self._session.turn) if wants_lineage else None
        self._probes = self._make_probes()
        self._alive_at = time.monotonic()

    @property
    def port(self) -> int | None:
        return self._probes.port if self._probes else None

    def start(self) -> None:
        self.mark_alive()
        self._lines.start()
        self._notifier.start()
        if self._lineage:
            self._lineage.start()
        if self._probes:
            self._probes.start()

    def observers(self, claim: Claim) -> list[RunObserver]:
        """Return the observers of a run, besides its metrics."""
        found: list[RunObserver] = []
        if self._tracing:
            found.append(RunTrace(self._tracing, claim))
        if self._lineage:
            found.append(RunLineage(self._settings, claim, self._lineage.send))
        return found

    def took_over(self, pipeline: str) -> None:
        """Record that a pipeline was taken from a silent runner, which can report nothing more of its run."""
        self.instruments.lost_elsewhere(pipeline)
        if self._lineage:
            self._lineage.look()

    def stop(self) -> None:
        """Stop last of all, so that everything reported until now is kept."""
        if self._tracing:
            self._tracing.stop()
        if self._lineage:
            self._lineage.stop()
        self._notifier.stop()
        self._lines.stop()
        if self._probes:
            self._probes.stop()
        self._session.close()

    def mark_alive(self) -> None:
        """Record that the runner's loop is not stuck."""
        self._alive_at = time.monotonic()

    def _make_probes(self) -> ProbeServer | None:
        if self._settings.metrics_port is None:
            return None
        self.instruments.registry.register(
            MetastoreCollector(
                self._session.turn,
                self._settings,
                counted=self.instruments.counted,
                on_pipelines=self.instruments.retain,
            )
        )
        return ProbeServer(
            (self._settings.metrics_host, self._settings.metrics_port),
            self.instruments.registry,
            live={"loop": self._check_loop},
            ready={"loop": self._check_loop, "metastore": self._check_metastore, "heartbeat": self._check_heartbeat},
        )

    def _probing(self) -> database.Connection:
        return database.connect(
            self._settings.require_database_url(),
            "vitrina:probe",
            connect_timeout_seconds=PROBE_CONNECT_SECONDS,
            settings={"statement_timeout": "5000"},
        )

    # Checks return None, or what is wrong.

    def _check_loop(self) -> str | None:
        silent = time.monotonic() - self._alive_at
        limit = STALLED_SECONDS + self._settings.poll_seconds + self._settings.connect_timeout_seconds
        return f"the runner has not looked for work for {silent:.0f} s" if silent > limit else None

    def _check_metastore(self) -> str | None:
        try:
            with self._probing() as connection:
                migrate.require_current(connection)
        except (CannotConnect, ConfigError) as exc:
            return exc.message
        except psycopg.Error as exc:
            return database.sql_message(exc)
        return None

    def _check_heartbeat(self) -> str | None:
        stale_after = self._settings.lease_ttl_seconds
        try:
            with self._probing() as connection:
                known = runners.find(connection, self._runner_id, stale_after_seconds=stale_after)
        except (CannotConnect, psycopg.Error):
            return "cannot be read"
        return None if known and known["alive"] else f"none within {stale_after:g} s"
