"""A real Airflow for tests: its processes, its REST API, and which of its processes sent a request."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import kept_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = ROOT / ".airflow" / "bin" / "airflow"
# A machine that is busy takes its time; whoever waits in vain has found a fault.
PATIENCE = 600
ENDED = ("success", "failed", "upstream_failed", "skipped")


class Station:
    """Scheduler with local workers, DAG processor, triggerer and API server, each a process of its own."""

    def __init__(self, home: Path, dags: Path, connection: Mapping[str, Any], database: str, port: int) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "PATH": f"{AIRFLOW.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "64",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "of this test alone, and as long as the signature wants it: sixty-four",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.replace("postgresql://", "postgresql+psycopg2://"),
            "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "3",
            # A machine that is busy answers late; that is no fault.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
            "AIRFLOW_CONN_VITRINA_DEFAULT": json.dumps(dict(connection)),
            "NO_PROXY": "127.0.0.1",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http = httpx.Client(base_url=f"{self.url}/api/v2", timeout=60, trust_env=False)

    def command(self, *words: str, timeout: float = PATIENCE) -> str:
        """What `airflow WORDS` says."""
        done = subprocess.run(
            [AIRFLOW, *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        """Start one of the four, in a session of its own: what it starts ends with it."""
        with (self.home / f"{name}.log").open("a") as output:
            self.processes[name] = subprocess.Popen(
                [AIRFLOW, name],
                env=self.environment,
                cwd=self.home,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End it and everything that it started, without a word."""
        process = self.processes.pop(name)
        for pid in [*descendants(process.pid), process.pid]:
            kill(pid)
        process.wait()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self._http.close()

    def log_in(self) -> None:
        def answers() -> bool:
            assert self.processes["api-server"].poll() is None, self.log("api-server")
            try:
                reply = httpx.get(f"{self.url}/auth/token", trust_env=False, timeout=60)
            except httpx.TransportError:
                return False
            if reply.status_code != 201:
                return False
            self._http.headers["Authorization"] = f"Bearer {reply.json()['access_token']}"
            return True

        until(answers, seconds=PATIENCE)

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()[-6000:]

    def wait_for_dags(self, *names: str) -> None:
        until(lambda: {dag["dag_id"] for dag in self.get("/dags")["dags"]} >= set(names), seconds=PATIENCE)

    # --- DAG runs --------------------------------------------------------------------------------------------------

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get(path, params=params).raise_for_status().json()
        return found

    def ui(self, path: str) -> list[dict[str, Any]]:
        """What the pages of Airflow ask for."""
        found: list[dict[str, Any]] = self._http.get(f"{self.url}/ui{path}").raise_for_status().json()
        return found

    def clear(self, dag: str, run: str) -> None:
        self.post(f"/dags/{dag}/clearTaskInstances", {"dry_run": False, "dag_run_id": run, "only_failed": False})

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._http.post(path, json=dict(body)).raise_for_status().json()
        return found

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        self._http.patch(path, json=dict(body)).raise_for_status()

    def trigger(self, dag: str, run: str, conf: Mapping[str, Any] | None = None) -> None:
        body = {"dag_run_id": run, "logical_date": None, "conf": dict(conf or {})}
        self.post(f"/dags/{dag}/dagRuns", body)

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return found

    def state(self, dag: str, run: str, task: str = "run") -> str | None:
        states: dict[str, str | None] = {found["task_id"]: found["state"] for found in self.tasks(dag, run)}
        return states.get(task)

    def wait_for(self, dag: str, run: str, *states: str, task: str = "run") -> None:
        """Until the task has one of the states; says what the task has logged when it ended otherwise."""

        def reached() -> bool:
            state = self.state(dag, run, task)
            fine = state in states or state not in ENDED
            assert fine, f"{dag} {run} {task} is {state}: {self.task_log(dag, run, task)}"
            return state in states

        until(reached, seconds=PATIENCE)

    def xcom(self, dag: str, run: str, key: str = "return_value", task: str = "run", map_index: int = -1) -> Any:
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/{key}"
        return self.get(path, map_index=map_index, deserialize=True)["value"]

    def task_log(self, dag: str, run: str, task: str = "run") -> str:
        place = self.home / "logs" / f"dag_id={dag}" / f"run_id={run}" / f"task_id={task}"
        return "\n".join(path.read_text()[-6000:] for path in sorted(place.rglob("*.log")))


@contextmanager
def station(home: Path, dags: Path, connection: Mapping[str, Any], database: str) -> Iterator[Station]:
    """A whole Airflow; its processes end with the block."""
    home.mkdir(exist_ok=True)
    with kept_port() as port, ExitStack() as stack:
        made = Station(home, dags, connection, database, port)
        made.command("db", "migrate")
        stack.callback(made.stop)
        for name in ("api-server", "scheduler", "dag-processor", "triggerer"):
            made.start(name)
        made.log_in()
        yield made


# --- processes -----------------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """The processes that it started, and those that they did; the deepest first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = parent_of(int(entry.name))
            if parent:
                parents.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found[::-1]


def parent_of(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def owner_of(port: int, among: list[int]) -> int:
    """Which of the processes has a connection from this port of loopback."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{line[9]}]" for line in lines if line[1].endswith(f":{port:04X}")}
    for pid in among:
        try:
            held = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
        if inodes & held:
            return pid
    raise AssertionError(f"none of {among} has a connection from port {port}")


if sys.platform != "linux":
    raise NotImplementedError("processes are found in /proc")
