"""`vitrina demo --clickhouse` fills a table of the engine in the runner's process."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import VITRINA


@pytest.mark.timeout(600)
def test_the_demo_fills_clickhouse_twice(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # root's PostgreSQL runs as somebody else
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VITRINA_")}
    environment["PYTHONPATH"] = str(Path(os.environ["PYTHONPATH"]).resolve())
    for _ in range(2):
        done = subprocess.run(
            [VITRINA, "demo", "--no-search", "--clickhouse", "--output", "json"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        shown = json.dumps(json.loads(done.stdout))
        assert "clickhouse:film_dim" in shown
        assert "Star Trek Beyond" in shown
