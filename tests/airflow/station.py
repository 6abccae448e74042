"""A real Airflow for tests: its processes, its REST API, and which of its processes sent a request."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.airflow.cinema import PATIENCE
from tests.support.ports import kept_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
# The line of versions, as `make test-airflow VERSION=2.11` says; the environment is of `scripts/setup-airflow`.
LINE = os.environ.get("VITRINA_TEST_AIRFLOW") or "3"
AIRFLOW = ROOT / (".airflow" if LINE == "3" else f".airflow-{LINE}") / "bin" / "airflow"
ENDED = ("success", "failed", "upstream_failed", "skipped")


class Station:
    """Scheduler with local workers, DAG processor, triggerer and API server, each a process of its own."""

    API = "/api/v2"

    def __init__(self, home: Path, database: str) -> None:
        self.home = home
        self.dags = home / "dags"
        self._ports = ExitStack()
        port = self._ports.enter_context(kept_port())
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "PATH": f"{AIRFLOW.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "8",
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
            # They do not change.
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "3",
            # A machine that is busy answers late; that is no fault.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            # How soon a worker sees that the process of its task has ended.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
            "NO_PROXY": "127.0.0.1",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._database = psycopg.connect(database, autocommit=True)
        self._http = httpx.Client(base_url=self.url + self.API, timeout=60, trust_env=False)

    def begin(self) -> None:
        """Make its database; meanwhile other things can be done."""
        self.start("db", "migrate")

    def open(self, connection: Mapping[str, Any]) -> None:
        """Start its processes, once there is a database; `connection` is the one to Vitrina."""
        assert self.processes.pop("db").wait(PATIENCE) == 0, self.log("db")
        self.environment["AIRFLOW_CONN_VITRINA_DEFAULT"] = json.dumps(dict(connection))
        self.start_servers()
        self.start("scheduler", "--skip-serve-logs")
        self.start_triggerer()
        until(self.answers, seconds=PATIENCE)

    def start_servers(self) -> None:
        self.start("api-server")
        self.start("dag-processor")

    def start_triggerer(self) -> None:
        # A log server would be one more process, with a fixed port.
        self.start("triggerer", "--skip-serve-logs")

    def start(self, name: str, *words: str) -> None:
        """Start `airflow NAME`, in a session of its own: what it starts ends with it."""
        with (self.home / f"{name}.log").open("a") as output:
            self.processes[name] = subprocess.Popen(
                [AIRFLOW, name, *words],
                env=self.environment,
                cwd=self.home,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End it and everything that it started, without a word."""
        process = self.processes.pop(name)
        while alive := of_session(process.pid):
            for pid in alive:
                kill(pid)
        process.wait()

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        self._http.close()
        self._database.close()
        self._ports.close()

    def answers(self) -> bool:
        """Whether its API does; logs in."""
        assert self.processes["api-server"].poll() is None, self.log("api-server")
        try:
            reply = httpx.get(f"{self.url}/auth/token", trust_env=False, timeout=60)
        except httpx.TransportError:
            return False
        if reply.status_code != 201:
            return False
        self._http.headers["Authorization"] = f"Bearer {reply.json()['access_token']}"
        return True

    def log(self, name: str) -> str:
        return (self.home / f"{name}.log").read_text()[-6000:]

    def wait_for_dags(self, *names: str) -> None:
        until(lambda: {dag["dag_id"] for dag in self.get("/dags")["dags"]} >= set(names), seconds=PATIENCE)

    # --- DAG runs --------------------------------------------------------------------------------------------------

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get(path, params=params).raise_for_status().json()
        return found

    def form_of(self, connection_type: str) -> tuple[str, set[str]]:
        """Name and further fields of the form in which people make such a connection."""
        forms = self._http.get(f"{self.url}/ui/connections/hook_meta").raise_for_status().json()
        form = next(form for form in forms if form["connection_type"] == connection_type)
        return form["hook_name"], set(form["extra_fields"])

    def wait_for_end(self, dag: str, run: str) -> None:
        """Wait for the run itself: it ends after its last task."""
        until(lambda: self.get(f"/dags/{dag}/dagRuns/{run}")["state"] in ("success", "failed"), seconds=PATIENCE)

    def clear(self, dag: str, run: str) -> None:
        wish = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
        self.post(f"/dags/{dag}/clearTaskInstances", wish)

    def mark_failed(self, dag: str, run: str, task: str = "run") -> None:
        self.patch(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}", {"new_state": "failed"})

    def links(self, dag: str, run: str, task: str = "run") -> dict[str, str]:
        found: dict[str, str] = self.get(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/links")["extra_links"]
        return found

    def events(self, dag: str, run: str) -> list[tuple[str, dict[str, Any]]]:
        """Assets that the run announced, and what it said about them."""
        found = self.get("/assets/events", source_run_id=run, source_dag_id=dag)["asset_events"]
        return [(event["uri"], event["extra"]) for event in found]

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._http.post(path, json=dict(body)).raise_for_status().json()
        return found

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        self._http.patch(path, json=dict(body)).raise_for_status()

    def trigger(self, dag: str, run: str, conf: Mapping[str, Any] | None = None) -> None:
        body = {"dag_run_id": run, "logical_date": None, "conf": dict(conf or {})}
        self.post(f"/dags/{dag}/dagRuns", body)

    def state(self, dag: str, run: str, task: str = "run") -> str | None:
        found: str | None = self._told("state", dag, run, task)
        return found

    def tries(self, dag: str, run: str, task: str = "run") -> int:
        return int(self._told("try_number", dag, run, task))

    def _told(self, column: str, dag: str, run: str, task: str) -> Any:
        """From its database: many wait at the same time, and its API would have nothing else to do."""
        query = f"SELECT {column} FROM task_instance WHERE dag_id = %s AND run_id = %s AND task_id = %s"
        found = self._database.execute(query.encode(), [dag, run, task]).fetchone()
        return found and found[0]

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


class OlderStation(Station):
    """The same of Airflow 2: web server and scheduler do what is four processes later."""

    API = "/api/v1"

    def __init__(self, home: Path, database: str) -> None:
        super().__init__(home, database)
        self.environment |= {
            "AIRFLOW__WEBSERVER__WEB_SERVER_PORT": self.url.rpartition(":")[2],
            "AIRFLOW__WEBSERVER__WEB_SERVER_HOST": "127.0.0.1",
            "AIRFLOW__WEBSERVER__BASE_URL": self.url,
            "AIRFLOW__WEBSERVER__WORKERS": "1",
            "AIRFLOW__API__AUTH_BACKENDS": "airflow.api.auth.backend.basic_auth",
            "AIRFLOW__SCHEDULER__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "1",
            "PYTHONWARNINGS": "ignore",
        }
        # Whoever comes is an administrator.
        (home / "webserver_config.py").write_text('AUTH_ROLE_PUBLIC = "Admin"\nWTF_CSRF_ENABLED = False\n')

    def start_servers(self) -> None:
        self.start("webserver")

    def answers(self) -> bool:
        assert self.processes["webserver"].poll() is None, self.log("webserver")
        try:
            return self._http.get("/dags").status_code == 200
        except httpx.TransportError:
            return False

    def form_of(self, connection_type: str) -> tuple[str, set[str]]:
        page = self._http.get(f"{self.url}/connection/add").raise_for_status().text
        fields = re.findall(rf'name="extra__{connection_type}__(\w+)"', page)
        (name,) = re.findall(rf'<option value="{connection_type}">(\w+)</option>', page)
        return name, set(fields)

    def trigger(self, dag: str, run: str, conf: Mapping[str, Any] | None = None) -> None:
        self.post(f"/dags/{dag}/dagRuns", {"dag_run_id": run, "conf": dict(conf or {})})

    def mark_failed(self, dag: str, run: str, task: str = "run") -> None:
        self.patch(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}", {"dry_run": False, "new_state": "failed"})

    def links(self, dag: str, run: str, task: str = "run") -> dict[str, str]:
        found: dict[str, str] = self.get(f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/links")
        return found

    def events(self, dag: str, run: str) -> list[tuple[str, dict[str, Any]]]:
        found = self.get("/datasets/events", source_run_id=run, source_dag_id=dag)["dataset_events"]
        return [(event["dataset_uri"], event["extra"]) for event in found]

    def xcom(self, dag: str, run: str, key: str = "return_value", task: str = "run", map_index: int = -1) -> Any:
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/{key}"
        return ast.literal_eval(self.get(path)["value"])


_KINDS = {"3": Station, "2.11": OlderStation}


@contextmanager
def station(home: Path, database: str) -> Iterator[Station]:
    """An Airflow whose database is being made; its processes end with the block."""
    made = _KINDS[LINE](home, database)
    made.dags.mkdir()
    try:
        made.begin()
        yield made
    finally:
        made.stop()


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
    found = stat_of(pid)
    return int(found[1]) if found else None


def of_session(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if (found := stat_of(pid)) and int(found[3]) == session and found[0] != "Z"]


def stat_of(pid: int) -> list[str] | None:
    """State, parent, group, session and more; None when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


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
