"""Report the versions of an executor.

Spark sends this module as code, so it also runs where Vitrina is not installed.
"""

from collections.abc import Iterator
from typing import Any

SCHEMA = "attempt long, versions string"


def probe(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the number of this attempt and, as JSON, the versions of the packages that a load needs."""
    import json
    import platform
    from importlib import metadata

    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark import __version__ as spark

    found = {"python": platform.python_version(), "spark": spark}
    for name in ("vitrina", "pyarrow", "psycopg"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    for _ in batches:
        pass
    context = TaskContext.get()
    attempt = context.taskAttemptId() if context else 0
    yield pa.RecordBatch.from_pydict({"attempt": [attempt], "versions": [json.dumps(found)]})
