"""How soon a pipeline runs after another one, at rest: `python -m bench.run_after` (`--waves`)."""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from pydantic import SecretStr

from bench.report import RESULTS, machine
from tests.support.processes import runner_process
from tests.support.waiting import until
from vitrina.definition import Definition
from vitrina.embedded.temporary import TemporaryServer
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, pipelines
from vitrina.store.database import Connection
from vitrina.store.migrate import migrate

QUERY = "SELECT n AS id FROM generate_series(1, 10) n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=300)
    waves = parser.parse_args().waves
    with TemporaryServer() as server, tempfile.TemporaryDirectory() as directory:
        settings = Settings(
            database_url=SecretStr(server.urls.app),
            admin_url=SecretStr(server.urls.admin),
            reader_url=SecretStr(server.urls.reader),
            app_password=SecretStr(server.urls.app_password),
            reader_password=SecretStr(server.urls.reader_password),
        )
        migrate(settings)
        with database.connect(settings.require_database_url(), "bench") as metastore:
            write(measure(metastore, settings, Path(directory), waves), waves)


def measure(metastore: Connection, settings: Settings, directory: Path, waves: int) -> list[float]:
    """Milliseconds from the upstream's end to the moment at which the downstream is RUNNING, by the server's clock."""
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
    RESULTS.mkdir(exist_ok=True)
    described = machine()
    (RESULTS / "run_after.json").write_text(json.dumps({"machine": described, "figures": figures}, indent=2) + "\n")
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in figures.items())
    notes = "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in described.items())
    text = (
        "# From the end of an upstream to the run after it\n\n`python -m bench.run_after`: one runner at rest, from the"
        " upstream's end to the downstream RUNNING.\n\n| figure | value |\n|---|---|\n" + rows + f"\n\n{notes}\n"
    )
    (RESULTS / "run_after.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
