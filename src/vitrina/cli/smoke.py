"""`vitrina smoke`: check on a deployed installation that a pipeline can be created, run, compared and deleted."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import uuid4

import typer

from vitrina.cli import remote
from vitrina.cli.checks import result_of
from vitrina.cli.doctor import Finding, ok, print_findings, problem
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Format, Output, show_data
from vitrina.cli.runs import succeeded
from vitrina.errors import ConfigError, VitrinaError

if TYPE_CHECKING:
    from vitrina.client import Client

T = TypeVar("T")

ROWS = 100
TABLE = "vitrina_smoke"
# It reads no table, so it needs no privilege that the installation's own pipelines may lack.
QUERY = "SELECT n AS id, 'probe ' || n AS name FROM generate_series(1, 100) AS n"


class _Stopped(Exception):
    """A step failed; the steps after it depend on it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.finding)
        self.finding = finding


def smoke(
    target: Annotated[
        str | None,
        typer.Option(
            help=f"Target of the probe: a mart or an index that nothing else uses. [default: {TABLE} where allowed]"
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Wait this many seconds for each step.", min=1)] = 60.0,
    output: Output = Format.TABLE,
) -> None:
    """Try an installation with a probe pipeline.

    The probe is created, run, compared and deleted. Its table or index stays, with its hundred rows: no command of
    Vitrina drops a target.
    """
    with remote.api() as client:
        findings = list(_try(client, target, timeout))
    if output is Format.TABLE:
        print_findings(findings)
    else:
        show_data([asdict(found) for found in findings], output)
    if any(found.status != "OK" for found in findings):
        raise typer.Exit(ExitCode.FAILED)


def _try(client: "Client", target: str | None, timeout: float) -> Iterator[Finding]:
    """Try each step in turn, up to the first that fails. The probe is deleted whatever happened."""
    try:
        yield _step("api", lambda: _check_api(client), "see the logs of `vitrina api`")
        yield _step("runners", lambda: _check_runners(client), "start a runner: `vitrina runner`")
        target = target or _step("target", lambda: _choose_target(client), "name one that is allowed with --target")
    except _Stopped as stopped:
        yield stopped.finding
        return
    name = f"smoke-{uuid4().hex[:12]}"
    try:
        yield from _try_probe(client, name, target, timeout)
    except _Stopped as stopped:
        yield stopped.finding
        with suppress(VitrinaError):  # the problem has been reported
            client.cancel(name)
        with suppress(VitrinaError):
            client.delete_pipeline(name)


def _try_probe(client: "Client", name: str, target: str, timeout: float) -> Iterator[Finding]:
    probe: dict[str, Any] = {"name": name, "source_query": QUERY, "target_table": target, "target_key": ["id"]}
    yield _step("create", lambda: _create(client, probe), "the token needs the role operator or admin")
    yield _step("run", lambda: _run(client, name, timeout), "see the runner's log, and `vitrina doctor` beside it")
    yield _step("reconcile", lambda: _compare(client, name, timeout), f"does something else write to {target}?")
    yield _step("delete", lambda: _delete(client, name), f"delete it yourself: `vitrina pipelines delete {name}`")


def _step(check: str, work: Callable[[], T], next_step: str) -> T:
    try:
        return work()
    except VitrinaError as exc:
        raise _Stopped(problem(check, exc.message, next_step)) from exc


def _check_api(client: "Client") -> Finding:
    health = client.health()
    if health.status != "ok":
        raise ConfigError(f"the API says {health.status}, database {health.database}")
    return ok("api", f"version {health.version}, database {health.database}")


def _check_runners(client: "Client") -> Finding:
    alive = [runner for runner in client.list_runners() if runner.alive]
    if not alive:
        raise ConfigError("no runner is alive, so the probe would not run")
    versions = ", ".join(sorted({runner.version for runner in alive}))
    return ok("runners", f"{len(alive)} alive, version {versions}")


def _choose_target(client: "Client") -> str:
    """Choose a table or index for the probe in the first place that the policy allows."""
    allowed = client.list_targets().allowed
    for pattern in allowed:
        if pattern.endswith("*"):
            return pattern.removesuffix("*") + TABLE
    raise ConfigError(f"the allowed targets are {', '.join(allowed)}, none of which allows {TABLE}")


def _create(client: "Client", probe: dict[str, Any]) -> Finding:
    client.create_pipeline(probe)
    return ok("create", f"pipeline {probe['name']} into {probe['target_table']}")


def _run(client: "Client", name: str, timeout: float) -> Finding:
    accepted = client.run(name)
    run = client.wait_for_run(accepted.pipeline_id, requested_at=accepted.run_requested_at, timeout_seconds=timeout)
    if not succeeded(run):
        raise ConfigError(f"the run ended as {run.status}: {run.error_message}")
    if run.rows_read != ROWS:
        raise ConfigError(f"the run read {run.rows_read} rows of {ROWS}")
    return ok("run", f"{run.rows_read} rows read, {run.rows_written} written, {run.duration_seconds:.2f} s")


def _compare(client: "Client", name: str, timeout: float) -> Finding:
    report = result_of(client, client.reconcile(name), timeout)
    if not report["equal"]:
        counted = ", ".join(f"{report[kind]} {kind}" for kind in ("missing", "extra", "differing"))
        raise ConfigError(f"target and source differ: {counted}")
    return ok("reconcile", f"{report['target']['rows']} rows in the target, all equal")


def _delete(client: "Client", name: str) -> Finding:
    client.delete_pipeline(name)
    return ok("delete", f"pipeline {name} is deleted, its target stays")
