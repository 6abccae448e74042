"""Measure how soon a pipeline runs after another one, at rest: `python -m bench.run_after` (`--waves`)."""

import argparse
import statistics
from pathlib import Path

from bench.report import write_figures
from bench.servers import prepared
from tests.support.processes import runner_process
from tests.support.waiting import until
from vitrina.definition import Definition
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines
from vitrina.store.database import Connection

QUERY = "SELECT n AS id FROM generate_series(1, 10) n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=300)
    waves = parser.parse_args().waves
    with (
        prepared() as (settings, directory),
        database.connect(settings.require_database_url(), "bench") as metastore,
    ):
        write(measure(metastore, settings, directory, waves), waves)


def measure(metastore: Connection, settings: Settings, directory: Path, waves: int) -> list[float]:
    """Return milliseconds from the upstream's end until the downstream is RUNNING, by the server's clock."""
    upstream = define(metastore, "upstream")
    define(metastore, "downstream", run_after=["upstream"])
    with runner_process(settings, directory):
        for wave in range(waves):
            assert pipelines.request_run(metastore, upstream, trigger=Trigger.API)
            until(lambda done=wave + 1: successes(metastore, "downstream") == done)  # type: ignore[misc]
    found = metastore.execute(
        """
        SELECT 1000 * extract(epoch FROM d.at - u.finished_at)::float8 AS ms
        FROM (SELECT r.finished_at, row_number() OVER (ORDER BY r.started_at) AS wave FROM etl.etl_runs r
              JOIN etl.etl_pipelines p ON p.id = r.pipeline_id WHERE p.name = 'upstream') u
        JOIN (SELECT e.at, row_number() OVER (ORDER BY e.id) AS wave FROM etl.etl_events e
              WHERE e.topic = 'status' AND e.payload ->> 'pipeline' = 'downstream' AND e.payload ->> 'to' = 'RUNNING') d
        USING (wave)
        """
    ).fetchall()
    return [row["ms"] for row in found]


def define(metastore: Connection, name: str, **fields: object) -> object:
    definition = Definition.model_validate(
        {"name": name, "source_query": QUERY, "target_table": f"analytics.{name}", "target_key": ["id"], **fields}
    )
    return pipelines.insert(metastore, definition, pipeline_id=None, managed_by=None)


def successes(metastore: Connection, name: str) -> int:
    row = metastore.execute(
        """
        SELECT count(*) AS n FROM etl.etl_runs r JOIN etl.etl_pipelines p ON p.id = r.pipeline_id
        WHERE p.name = %s AND r.status = 'SUCCESS'
        """,
        [name],
    ).fetchone()
    assert row is not None
    return int(row["n"])


def write(found: list[float], waves: int) -> None:
    cuts = statistics.quantiles(found, n=100, method="inclusive")
    figures = {
        "waves": waves,
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(found), 1),
    }
    write_figures(
        "run_after",
        "From the end of an upstream to the run after it",
        "`python -m bench.run_after`: one runner at rest, from the upstream's end to the downstream RUNNING.",
        figures,
    )


if __name__ == "__main__":
    main()
