"""What a load by a Spark cluster costs beside its rows: `PYTHONPATH=$PWD/.spark python -m bench.spark`.

`make test-spark` installs what it needs. A few rows and many, by one stream of the runner and by two executors on this
machine. The first load of a cluster starts the Python processes of its executors; later ones find them. CPU is that of
databases, runner, driver and executors, including processes that have ended. Writes results/spark.json and
results/spark.md.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from pydantic import SecretStr

from bench import parallel, servers
from bench.parallel import FEW, ROW_STEP, Case
from bench.report import RESULTS, machine
from bench.servers import SessionCpu
from tests.spark import server
from tests.spark.server import EXECUTORS, SparkServer
from vitrina.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--name", default="spark")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        servers.prepared({"shared_buffers": "512MB", "max_wal_size": "8GB"}) as (prepared, _),
        server.running(Path(directory)) as spark,
        SessionCpu(spark.leader) as cpu,
        psycopg.connect(parallel.admin_url(prepared), autocommit=True) as admin,
    ):
        admin.execute("CREATE SCHEMA IF NOT EXISTS content; GRANT USAGE ON SCHEMA content TO vitrina_reader")
        for count in (FEW, *arguments.rows):
            parallel.make_table(admin, f"films_{count}", "i", count)
        loads = Loads(_with_cluster(prepared, spark), admin, spark, cpu)
        _write(_measure(loads, arguments), arguments)


def _with_cluster(settings: Settings, spark: SparkServer) -> Settings:
    assert settings.reader_url is not None
    spark.tell(
        VITRINA_DATABASE_URL=settings.require_database_url(), VITRINA_READER_URL=settings.reader_url.get_secret_value()
    )
    return settings.model_copy(update={"connections": {"cluster": SecretStr(spark.url)}, "transforms": "bench.steps"})


class Loads:
    """Load tables by one stream or by the cluster, and measure each load."""

    def __init__(
        self, settings: Settings, admin: "psycopg.Connection[Any]", spark: SparkServer, cpu: SessionCpu
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._spark = spark
        self._cpu = cpu

    def stream(self, rows: int) -> dict[str, Any]:
        return self._load(rows, {})

    def spark(self, rows: int) -> dict[str, Any]:
        return self._load(rows, {"engine": "spark"})

    def _load(self, rows: int, options: dict[str, Any]) -> dict[str, Any]:
        # Each executor has several ranges of a large table, and one of a small one.
        ranges = {"checkpoint_rows": max(FEW // EXECUTORS, min(rows // (2 * EXECUTORS), 100_000))}
        case = Case(f"{rows:,} rows", f"films_{rows}", ROW_STEP, options=ranges)
        before = self._cpu.seconds()
        seconds, cpu, paging = parallel.load(
            self._settings, self._admin, case, options, rows, cluster=self._spark.leader
        )
        cluster = self._cpu.seconds() - before
        found = {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu + cluster, 2),
            "cluster_cpu_seconds": round(cluster, 2),
            "paging": paging,
            "load_average": parallel.load_average(),
        }
        print(json.dumps({"case": case.name, **options, **found}), flush=True)
        return found


def _measure(loads: Loads, arguments: argparse.Namespace) -> dict[str, Any]:
    loads.stream(FEW)
    first = loads.spark(FEW)
    few: dict[str, list[dict[str, Any]]] = {"stream": [], "spark": []}
    for _ in range(arguments.repeat):
        few["stream"].append(loads.stream(FEW))
        few["spark"].append(loads.spark(FEW))
    many = {str(rows): {"stream": loads.stream(rows), "spark": loads.spark(rows)} for rows in arguments.rows}
    return {"first": first, "few": {name: _median(found) for name, found in few.items()}, "many": many}


def _median(loads: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("seconds", "cpu_seconds", "cluster_cpu_seconds", "load_average")
    return {name: round(statistics.median(load[name] for load in loads), 2) for name in names}


def _write(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    about = {"machine": machine(), "rows": arguments.rows, "few": FEW, "repeat": arguments.repeat}
    fixed = {
        name: round(found["few"]["spark"][name] - found["few"]["stream"][name], 2)
        for name in ("seconds", "cpu_seconds")
    }
    path = RESULTS / f"{arguments.name}.json"
    path.write_text(json.dumps({**about, "fixed": fixed, "loads": found}, indent=2) + "\n")
    rows = [
        (f"{FEW:,} rows, one stream", found["few"]["stream"]),
        (f"{FEW:,} rows, the cluster's first load", found["first"]),
        (f"{FEW:,} rows, later loads by the cluster", found["few"]["spark"]),
    ]
    for count, loads in found["many"].items():
        rows.append((f"{int(count):,} rows, one stream", loads["stream"]))
        rows.append((f"{int(count):,} rows, by the cluster", loads["spark"]))
    text = (
        f"# One load by a Spark cluster\n\nDriver, {EXECUTORS} executors, runner and databases on one machine; a small"
        f" row step. Fixed cost of a load: {fixed['seconds']} s, {fixed['cpu_seconds']} s of CPU"
        f" (medians of {arguments.repeat} pairs of {FEW:,} rows).\n\n"
        "| load | seconds | CPU | of it, driver and executors | load average |\n|---|---|---|---|---|\n"
    )
    text += "".join(
        f"| {name} | {load['seconds']} | {load['cpu_seconds']} | {load['cluster_cpu_seconds']} |"
        f" {load['load_average']} |\n"
        for name, load in rows
    )
    (RESULTS / f"{arguments.name}.md").write_text(text)


if __name__ == "__main__":
    main()
