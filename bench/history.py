"""Measure what a history costs compared with a plain merge: `python -m bench.history` (`--rows 200000`, `--turns 5`).

`--setting hard` uses the server and the rows of the harder setting of `bench.postgres`: durable commits, a log that
replicas can read, rows of 300 bytes, and a random uuid as the key.

Three marts of one source take turns: a plain one, and a history for each value of `unique_by`. Before each turn a
tenth of the rows changes and a hundredth is new; each pipeline then loads that into its mart. The CPU of the run and
of the server with all its processes is counted, as the scheduler counts it: a run takes a third of a second, for which
the hundredths of /proc/PID/stat are too coarse. A run pays for what the one before it left to write, so they change
places with each turn, and sums are compared. All must have read as many rows.
"""

import argparse
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from bench.postgres import SETTINGS
from bench.report import write_figures
from bench.servers import prepared
from vitrina.definition import Definition
from vitrina.loads.control import RunControl
from vitrina.runner.dispatcher import PipelineDispatcher
from vitrina.settings import Settings
from vitrina.status import Trigger
from vitrina.store import database, leases, pipelines, runs
from vitrina.store.database import Connection
from vitrina.store.session_pool import SessionPool

WANTED = 1.6
# The options of each kind of mart, and how a history is named in the table of results.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "by_start": {"history": {}},
    "by_end": {"history": {"unique_by": "valid_to"}},
}
NAMES = {"by_start": "", "by_end": ", unique by valid_to"}
# A pass reads again what was written so long before the previous one.
_REREAD_SECONDS = 1.1
SOURCE = """
    CREATE SCHEMA content; GRANT USAGE ON SCHEMA content TO vitrina_reader;
    CREATE TABLE content.item (n bigint UNIQUE, id {key} PRIMARY KEY, name text NOT NULL, price numeric NOT NULL,
        note text, updated_at timestamptz NOT NULL DEFAULT now());
    INSERT INTO content.item
    SELECT n, {id}, 'item ' || n, n / 7.0, repeat('x', n::int % 80 + {padding}) FROM generate_series(1, {rows}) n;
    CREATE INDEX ON content.item (updated_at, id);
    GRANT SELECT ON content.item TO vitrina_reader;
"""
QUERY = "SELECT id, name, price, note, updated_at FROM content.item"
CHANGE = """
    UPDATE content.item SET price = price + 1, updated_at = clock_timestamp() WHERE n % 10 = {turn} % 10;
    INSERT INTO content.item SELECT n, {id}, 'item ' || n, n / 7.0, repeat('y', {padding}), clock_timestamp()
    FROM generate_series((SELECT max(n) FROM content.item) + 1, (SELECT max(n) FROM content.item) + {new}) n
"""
# The type of the key, and how it is made of the row's number.
KEYS = {"friendly": ("bigint", "n"), "hard": ("uuid", "md5(n::text)::uuid")}
MODES: dict[str, dict[str, Any]] = {
    "full": {"mode": "full"},
    "incremental": {"mode": "incremental", "incremental_key": "updated_at", "incremental_id_key": "id"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--setting", choices=SETTINGS, default="friendly", help="of the server and the data")
    wish = parser.parse_args()
    setting, (key, made_of) = SETTINGS[wish.setting], KEYS[wish.setting]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with prepared({"shared_buffers": "512MB", **setting.server}) as (settings, _):
        assert settings.admin_url
        with (
            database.connect(settings.require_database_url(), "bench") as metastore,
            database.connect(settings.admin_url.get_secret_value(), "bench") as admin,
        ):
            change = CHANGE.format(turn="{turn}", new=wish.rows // 100, id=made_of, padding=setting.padding)
            admin.execute(SOURCE.format(rows=wish.rows, key=key, id=made_of, padding=setting.padding))
            bench = Bench(settings, metastore, admin, change)
            bench.define()
            write(bench.measure(wish.turns), wish)


class Bench:
    """Run one server, with three pipelines for each mode: two keep histories, the other does not."""

    def __init__(self, settings: Settings, metastore: Connection, admin: Connection, change: str) -> None:
        self._settings = settings
        self._change = change
        self._metastore = metastore
        self._admin = admin
        self._pool = SessionPool(most=20, idle_seconds=600.0)
        # How many rows the latest run of each pipeline has read.
        self._read: dict[str, int] = {}
        [row] = admin.execute("SELECT pg_read_file('postmaster.pid') AS text").fetchall()
        self._postmaster = int(row["text"].splitlines()[0])

    def define(self) -> None:
        for mode, fields in MODES.items():
            for kind, options in KINDS.items():
                made = {"name": f"{mode}_{kind}", "source_query": QUERY, "target_key": ["id"], "options": options}
                made |= {"target_table": f"analytics.{mode}_{kind}", **fields}
                pipelines.insert(self._metastore, Definition.model_validate(made), pipeline_id=None, managed_by=None)

    def measure(self, turns: int) -> dict[str, float]:
        """Return the ratios of each mode. The first turn fills the marts, and is not counted."""
        sums = {mode: dict.fromkeys(KINDS, 0.0) for mode in MODES}
        for turn in range(turns + 1):
            self._admin.execute(self._change.format(turn=turn))
            time.sleep(_REREAD_SECONDS)
            for mode in MODES:
                first = turn % len(KINDS)
                kinds = [*KINDS][first:] + [*KINDS][:first]
                spent = {kind: self._spent(f"{mode}_{kind}") for kind in kinds}
                assert len({self._read[f"{mode}_{kind}"] for kind in kinds}) == 1, self._read
                if turn:
                    sums[mode] = {kind: sums[mode][kind] + spent[kind] for kind in kinds}
                    shown = ", ".join(f"{kind} {spent[kind]:.3f} s" for kind in KINDS)
                    print(f"{mode:<12} {shown} of CPU")
        return {
            mode + name: spent[kind] / spent["plain"] for mode, spent in sums.items() for kind, name in NAMES.items()
        }

    def _run(self, name: str) -> None:
        row = pipelines.find(self._metastore, name)
        assert row is not None
        assert pipelines.request_run(self._metastore, row["id"], trigger=Trigger.API)
        claim = leases.claim_next(self._metastore, uuid4(), 600.0)
        assert claim is not None
        PipelineDispatcher(self._settings, pool=self._pool).work(claim, RunControl(600.0, threading.Event()))
        done = runs.find_current(self._metastore, row["id"])
        assert done is not None
        assert done["status"] == "SUCCESS", done["error_message"]
        self._read[name] = done["rows_read"]

    def _spent(self, name: str) -> float:
        before = self._cpu()
        self._run(name)
        return self._cpu() - before

    def _cpu(self) -> float:
        """Return the CPU seconds of this process and of the server's processes, including ended ones."""
        listed = Path(f"/proc/{self._postmaster}/task/{self._postmaster}/children").read_text().split()
        ended = Path(f"/proc/{self._postmaster}/stat").read_text().rpartition(")")[2].split()[13:15]
        waited = sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
        return time.process_time() + waited + sum(map(_scheduled, [self._postmaster, *map(int, listed)]))


def _scheduled(pid: int) -> float:
    """Return the CPU seconds that a process of one thread has used so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def write(ratios: dict[str, float], wish: argparse.Namespace) -> None:
    found = {mode: round(ratio, 2) for mode, ratio in ratios.items()}
    intro = f"CPU of a run that keeps a history, in units of one that does not; {WANTED} at most are wanted."
    name = "history" if wish.setting == "friendly" else f"history_{wish.setting}"
    write_figures(name, "What a history costs", intro, {"rows": wish.rows, "turns": wish.turns, **found})


if __name__ == "__main__":
    main()
