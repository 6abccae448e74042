"""What a load by a Spark cluster costs beside its rows: `PYTHONPATH=$PWD/.spark python -m bench.spark`.

`make test-spark` installs what it needs. A few rows and many, by one stream of the runner and by two executors on this
machine. The first load of a cluster starts the Python processes of its executors; later ones find them. CPU is that of
databases, runner, driver and executors. Writes results/spark.json and results/spark.md.
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
from tests.spark import server
from tests.spark.server import EXECUTORS, SparkServer
from vitrina.settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--name", default="spark")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        servers.prepared({"shared_buffers": "512MB", "max_wal_size": "8GB"}) as (prepared, _),
        server.running(Path(directory)) as spark,
        psycopg.connect(parallel.admin_url(prepared), autocommit=True) as admin,
    ):
        admin.execute("CREATE SCHEMA IF NOT EXISTS content; GRANT USAGE ON SCHEMA content TO vitrina_reader")
        for name, count in (("few", FEW), ("films", arguments.rows)):
            parallel.make_table(admin, name, "i", count)
        settings = _with_cluster(prepared, spark)
        _write(_measure(settings, admin, spark, arguments), arguments)


def _with_cluster(settings: Settings, spark: SparkServer) -> Settings:
    assert settings.reader_url is not None
    spark.tell(
        VITRINA_DATABASE_URL=settings.require_database_url(), VITRINA_READER_URL=settings.reader_url.get_secret_value()
    )
    return settings.model_copy(update={"connections": {"cluster": SecretStr(spark.url)}, "transforms": "bench.steps"})


def _measure(
    settings: Settings, admin: "psycopg.Connection[Any]", spark: SparkServer, arguments: argparse.Namespace
) -> dict[str, Any]:
    by_spark = {"engine": "spark"}
    few = Case("few", "few", ROW_STEP, options={"checkpoint_rows": FEW // EXECUTORS})
    many = Case("many", "films", ROW_STEP, options={"checkpoint_rows": 100_000})

    def load(case: Case, options: dict[str, Any], rows: int) -> dict[str, Any]:
        cluster = servers.tree_cpu_seconds(spark.leader)
        seconds, cpu, paging = parallel.load(settings, admin, case, options, rows)
        used = servers.tree_cpu_seconds(spark.leader) - cluster
        if used < 0 or cpu < 0:
            raise RuntimeError(
                "a process left the tree whose CPU is counted: the figures of this run are worth nothing"
            )
        cpu += used
        found = {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "paging": paging}
        print(json.dumps({"case": case.name, **options, **found}), flush=True)
        return found | {"load_average": parallel.load_average()}

    load(few, {}, FEW)
    first = load(few, by_spark, FEW)
    found: dict[str, list[dict[str, Any]]] = {"stream": [], "spark": []}
    for _ in range(arguments.repeat):
        found["stream"].append(load(few, {}, FEW))
        found["spark"].append(load(few, by_spark, FEW))
    warmed = load(many, by_spark, arguments.rows)
    return {
        "first": first,
        "few": {name: _median(loads) for name, loads in found.items()},
        "many": {"stream": load(many, {}, arguments.rows), "spark": load(many, by_spark, arguments.rows)},
        "many_first": warmed,
    }


def _median(loads: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("seconds", "cpu_seconds", "load_average")
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
        (f"{arguments.rows:,} rows, one stream", found["many"]["stream"]),
        (f"{arguments.rows:,} rows, by the cluster", found["many"]["spark"]),
    ]
    text = (
        f"# One load by a Spark cluster\n\nDriver, {EXECUTORS} executors, runner and databases on one machine; a small"
        f" row step. Fixed cost of a load: {fixed['seconds']} s, {fixed['cpu_seconds']} s of CPU.\n\n"
        "| load | seconds | CPU | load average |\n|---|---|---|---|\n"
    )
    text += "".join(
        f"| {name} | {load['seconds']} | {load['cpu_seconds']} | {load['load_average']} |\n" for name, load in rows
    )
    (RESULTS / f"{arguments.name}.md").write_text(text)


if __name__ == "__main__":
    main()
