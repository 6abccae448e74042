"""The clock of a runner's or an API's machine may be wrong: what is decided, is decided by the database's clock."""

import ast
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "vitrina"

# Where this machine's clock is read, and why it may be: nothing is compared with a time of the metastore.
ALLOWED = {
    "connectors/postgres/cursor.py": "since when a checkpoint is held, where the source knows no better: shown only",
    "connectors/python/source.py": "a lap of a trace",
    "transforms/context.py": "what a step is told",
    "connectors/search/generations.py": "a name",
    "cli/doctor.py": "compares the two clocks",
    "cli/output.py": "how long ago, for people",
    "cli/runs.py": "what a person means by 2h",
    "observe/logs.py": "lines of a log",
    "ports/batch.py": "a lap of a trace",
    "observe/lineage.py": "when an event was sent",
    "observe/run_logs.py": "lines of a log",
    "observe/run_meter.py": "a lap of a trace",
    "checks/reconcile.py": "when a report was begun: shown only",
    "connectors/python/opening.py": "what a step is told",
    "loads/steps.py": "what a step is told",
    "observe/run_trace.py": "a lap of a trace",
    "schedule.py": "whether a schedule has a next time at all",
}


def test_nothing_is_decided_by_the_clock_of_this_machine() -> None:
    readers = {
        path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if reads_clock(path.read_text("utf-8"))
    }
    assert sorted(readers) == sorted(ALLOWED), "ask the database with database.now(), or say here why this clock may do"


def reads_clock(source: str) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr)
        in {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"), ("time", "time")}
        for node in ast.walk(ast.parse(source))
    )
