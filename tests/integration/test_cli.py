"""The command line as people and scripts meet it: processes with output and exit codes, on a real API and runner."""

import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import yaml

from tests.support.ports import kept_port
from vitrina.client import Client
from vitrina.embedded.temporary import TemporaryServer

VITRINA = [sys.executable, "-m", "vitrina.cli"]
FILMS = 2_000

pytestmark = pytest.mark.timeout(300)


@dataclass
class Installation:
    """A database with films, an API that wants tokens, a runner; and the command line of an administrator."""

    directory: Path
    variables: dict[str, str]

    def vitrina(self, *arguments: str, stdin: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*VITRINA, *arguments],
            cwd=self.directory,
            env=clean_environment() | self.variables | variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def done(self, *arguments: str, **variables: str) -> str:
        """Standard output of a command that has to work."""
        ended = self.vitrina(*arguments, **variables)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def data(self, *arguments: str) -> Any:
        return json.loads(self.done(*arguments, "-o", "json"))

    def ask(self, query: str) -> Any:
        with psycopg.connect(self.variables["VITRINA_ADMIN_URL"], autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def create(self, **fields: object) -> str:
        """A pipeline of the test's own; returns its name."""
        name = f"films_{uuid4().hex[:8]}"
        definition = {
            "name": name,
            "source_query": "SELECT id AS film_id, title, rating FROM content.film_work",
            "target_table": f"analytics.{name}",
            "target_key": ["film_id"],
            **fields,
        }
        with Client(self.variables["VITRINA_API_URL"], self.variables["VITRINA_TOKEN"]) as client:
            client.create_pipeline(definition)
        return name


@pytest.fixture(scope="module")
def installation(
    server: TemporaryServer, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    name = f"cli_{uuid4().hex[:8]}"
    with psycopg.connect(server.urls.admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    with kept_port() as port:
        yield from install(name, server, tmp_path_factory.mktemp("cli"), port)


def install(name: str, server: TemporaryServer, directory: Path, port: int) -> Iterator[Installation]:
    urls = {"DATABASE": server.urls.app, "ADMIN": server.urls.admin, "READER": server.urls.reader}
    variables = {f"VITRINA_{role}_URL": url.rpartition("/")[0] + f"/{name}" for role, url in urls.items()}
    found = Installation(
        directory,
        {**variables, "VITRINA_API_URL": f"http://127.0.0.1:{port}", "VITRINA_POLL_SECONDS": "0.2"},
    )
    found.ask(
        f"""
        CREATE TABLE content.film_work (
            id uuid PRIMARY KEY DEFAULT gen_random_uuid(), title text NOT NULL, rating numeric(3,1),
            modified timestamptz NOT NULL DEFAULT now());
        INSERT INTO content.film_work (title, rating) SELECT 'Film ' || n, n % 10 FROM generate_series(1, {FILMS}) n;
        GRANT SELECT ON content.film_work TO vitrina_reader
        """
    )
    found.variables["VITRINA_TOKEN"] = found.done("tokens", "create", "boss", "--role", "admin").strip()
    with running(found, "api", "--port", str(port)), running(found, "runner"):
        await_port(port)
        yield found


# --- when things are not as they should be ------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Installation]:
    """A command line without anything to talk to."""
    with kept_port() as port:
        yield Installation(tmp_path, {"VITRINA_API_URL": f"http://127.0.0.1:{port}"})


def test_without_an_api_it_says_how_to_start_one(alone: Installation) -> None:
    ended = alone.vitrina("status")
    assert ended.returncode == 4
    assert ended.stdout == ""
    assert re.fullmatch(r"error: no Vitrina API answers at http://127\.0\.0\.1:\d+: start one with .*\n", ended.stderr)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"VITRINA_LOG_LEVEL": "loud"}, "VITRINA_LOG_LEVEL"),
        ({"VITRINA_API_URL": "nowhere"}, "VITRINA_API_URL 'nowhere' is not an http:// or https:// URL"),
        ({"VITRINA_API_URL": "http://[::1"}, "VITRINA_API_URL 'http://[::1' is not an http:// or https:// URL"),
        ({"VITRINA_TOKEN": "abc\ndef"}, "VITRINA_TOKEN contains a space, a line break or another character"),
        ({"VITRINA_TOKEN_FILE": "/does/not/exist"}, "VITRINA_TOKEN_FILE=/does/not/exist cannot be read"),
    ],
)
def test_wrong_settings_are_named(alone: Installation, variables: dict[str, str], message: str) -> None:
    ended = alone.vitrina("pipelines", **variables)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["runn"],
        ["run"],
        ["runs", "--since", "yesterday"],
        ["runs", "--since", "9999999d"],
        ["runs", "-o", "xml"],
        ["state", "--reset"],
        ["validate"],
        ["tokens", "create", "x"],
        ["pipelines", "delete", "films"],
    ],
)
def test_wrong_usage_is_2_and_says_how(alone: Installation, arguments: Sequence[str]) -> None:
    ended = alone.vitrina(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Usage: vitrina" in ended.stderr


@pytest.mark.parametrize("command", [["migrate"], ["api"], ["runner"], ["tokens", "list"]])
def test_a_database_that_is_not_there_is_named_without_its_password(alone: Installation, command: list[str]) -> None:
    with kept_port() as port:
        ended = alone.vitrina(*command, VITRINA_DATABASE_URL=f"postgresql://app:hidden-word@127.0.0.1:{port}/cinema")
    assert ended.returncode == 4
    assert "cannot connect to app@127.0.0.1:" in ended.stderr
    assert "hidden-word" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [["api"], ["runner"], ["tokens", "list"]])
def test_a_database_that_was_not_migrated_is_said_so(
    alone: Installation, server: TemporaryServer, command: list[str]
) -> None:
    ended = alone.vitrina(*command, VITRINA_DATABASE_URL=server.urls.admin)
    assert ended.returncode == 3
    assert "run `vitrina migrate`" in ended.stderr


def test_auth_is_off_on_loopback_only(alone: Installation) -> None:
    ended = alone.vitrina("api", "--host", "0.0.0.0", VITRINA_AUTH="off")
    assert ended.returncode == 3
    assert "VITRINA_AUTH=off is for loopback addresses only, not 0.0.0.0" in ended.stderr


def test_a_busy_port_is_named(alone: Installation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        ended = alone.vitrina("api", "--port", str(occupied.getsockname()[1]))
    assert ended.returncode == 3
    assert "Address already in use" in ended.stderr


def test_doctor_without_a_database_says_what_to_do(alone: Installation) -> None:
    ended = alone.vitrina("doctor")
    assert ended.returncode == 1
    assert "VITRINA_DATABASE_URL is not set" in ended.stdout
    assert "sources content,ugc,auth" in ended.stdout, "what `vitrina dev` starts here may read the demo's services"
    assert not (alone.directory / ".vitrina").exists()


# --- installation -------------------------------------------------------------------------------------------------


def test_migrate_prints_the_version(installation: Installation) -> None:
    assert re.fullmatch(r"\d{4}\n", installation.done("migrate"))


def test_doctor_finds_an_installation_well(installation: Installation) -> None:
    findings = json.loads(installation.vitrina("doctor", "-o", "json").stdout)
    # The tests' server forgets what it wrote when the power fails, and only that.
    assert {found["check"] for found in findings if found["status"] != "OK"} == {"write-ahead log"}, findings
    assert [found["check"] for found in findings] == [
        "settings",
        "connectors",
        "api",
        "database",
        "migrations",
        "clock",
        "write-ahead log",
        "application role",
        "reader role",
        "runners",
        "pipelines",
        "stages",
    ]


def test_smoke_runs_and_compares_a_probe_and_leaves_no_pipeline(installation: Installation) -> None:
    findings = installation.data("smoke")
    assert [found["check"] for found in findings] == ["api", "runners", "create", "run", "reconcile", "delete"]
    assert {found["status"] for found in findings} == {"OK"}
    assert installation.ask("SELECT count(*) FROM analytics.vitrina_smoke") == 100
    assert installation.ask("SELECT count(*) FROM etl.etl_pipelines WHERE name LIKE 'smoke-%'") == 0


def test_smoke_says_which_step_did_not_work_and_deletes_its_probe(installation: Installation) -> None:
    mart = "analytics.smoke_in_the_way"
    installation.ask(f"CREATE TABLE {mart} (id text PRIMARY KEY)")
    installation.ask(f"ALTER TABLE {mart} OWNER TO vitrina_app")
    ended = installation.vitrina("smoke", "--target", mart)
    assert ended.returncode == 1
    assert re.search(r"PROBLEM +run +the run ended as FAILED: .*smoke_in_the_way", ended.stdout), ended.stdout
    assert "next step:" in ended.stdout
    assert installation.ask("SELECT count(*) FROM etl.etl_pipelines WHERE name LIKE 'smoke-%'") == 0


def test_smoke_with_a_viewers_token_says_which_role_it_needs(installation: Installation) -> None:
    token = installation.done("tokens", "create", "onlooker", "--role", "viewer").strip()
    ended = installation.vitrina("smoke", VITRINA_TOKEN=token)
    assert ended.returncode == 1
    assert re.search(r"PROBLEM +create .*\n +next step: the token needs the role", ended.stdout), ended.stdout


def test_doctor_names_what_is_wrong_and_the_next_step(installation: Installation) -> None:
    installation.ask("CREATE TABLE content.secret (id int); REVOKE ALL ON content.secret FROM vitrina_reader")
    try:
        ended = installation.vitrina("doctor")
    finally:
        installation.ask("DROP TABLE content.secret")
    assert ended.returncode == 1
    assert re.search(
        r'PROBLEM +reader role +vitrina_reader may not read content\.secret\n +next step: GRANT SELECT ON "content"',
        ended.stdout,
    )


def test_tokens_open_the_api_until_they_are_revoked(installation: Installation) -> None:
    created = installation.vitrina("tokens", "create", "reader", "--role", "viewer")
    token = created.stdout.strip()
    assert token in created.stdout
    assert token not in created.stderr
    assert installation.vitrina("pipelines", VITRINA_TOKEN=token).returncode == 0
    refused = installation.vitrina("run", "anything", VITRINA_TOKEN=token)
    assert refused.returncode == 3
    assert "reader" in installation.done("tokens", "list")
    assert token not in installation.done("tokens", "list", "-o", "json")
    installation.done("tokens", "revoke", "reader")
    assert installation.vitrina("pipelines", VITRINA_TOKEN=token).returncode == 3
    assert installation.vitrina("tokens", "revoke", "nobody").returncode == 2
    assert installation.vitrina("tokens", "create", "boss", "--role", "admin").returncode == 5


# --- pipelines and runs -------------------------------------------------------------------------------------------


def test_a_pipeline_is_created_run_and_deleted(installation: Installation) -> None:
    name = f"films_{uuid4().hex[:8]}"
    definition = (
        f"name: {name}\nsource_query: SELECT id AS film_id, title FROM content.film_work\n"
        f"target_table: analytics.{name}\ntarget_key: [film_id]\n"
    )
    file = installation.write("films.yaml", definition)
    assert re.search(r"^status +IDLE$", installation.done("pipelines", "create", "-f", file), re.MULTILINE)
    twice = installation.vitrina("pipelines", "create", "-f", file)
    assert twice.returncode == 5
    assert name in twice.stderr
    listed = installation.done("pipelines")
    assert re.search(rf"^{name} +IDLE +yes +full +analytics\.{name} ", listed, re.MULTILINE)
    ended = installation.vitrina("run", name, "--wait")
    assert ended.returncode == 0, ended.stderr
    header, line = ended.stdout.splitlines()
    assert header.split() == "PIPELINE STATUS READ INSERTED UPDATED DELETED UNCHANGED SECONDS ROWS/S".split()
    assert line.split()[:7] == [name, "SUCCESS", "2,000", "2,000", "0", "0", "0"]
    assert f"{name}: SUCCESS 2,000 rows" in ended.stderr
    assert installation.ask(f"SELECT count(*) FROM analytics.{name}") == FILMS
    again = installation.data("run", name, "--wait")
    assert (again["status"], again["rows_written"], again["metrics"]["unchanged"]) == ("SUCCESS", 0, FILMS)
    assert [run["status"] for run in installation.data("runs", name)] == ["SUCCESS", "SUCCESS"]
    installation.done("pipelines", "delete", name, "--yes")
    assert installation.vitrina("pipelines", "get", name).returncode == 2


def test_a_failed_run_is_exit_code_1_with_the_reason(installation: Installation) -> None:
    name = installation.create(
        source_query="SELECT id AS film_id, title, 1 / (rating - rating) AS x FROM content.film_work"
    )
    ended = installation.vitrina("run", name, "--wait")
    assert ended.returncode == 1
    assert "FAILED" in ended.stdout
    assert "division by zero" in ended.stderr
    assert "next step:" in ended.stderr
    status = installation.done("status", name)
    assert re.search(r"^status +FAILED$", status, re.MULTILINE)
    assert re.search(r"^last error +.*division by zero", status, re.MULTILINE)
    assert installation.vitrina("doctor").returncode == 1
    installation.done("pipelines", "delete", name, "--yes")


def test_wrong_definitions_are_refused_field_by_field(installation: Installation) -> None:
    file = installation.write(
        "wrong.yaml", "name: wrong\nsource_query: SELECT 1 AS id\ntarget_table: public.users\nbatch_size: 0\n"
    )
    ended = installation.vitrina("pipelines", "create", "-f", file)
    assert ended.returncode == 3
    assert "batch_size" in ended.stderr
    missing = installation.vitrina("run", "no_such_pipeline")
    assert missing.returncode == 2
    assert "no_such_pipeline" in missing.stderr


def test_disabled_pipelines_do_not_run_until_they_are_enabled(installation: Installation) -> None:
    name = installation.create()
    assert "disabled" in installation.done("disable", name)
    refused = installation.vitrina("run", name, "--wait")
    assert refused.returncode == 5
    installation.done("enable", name)
    assert installation.vitrina("run", name, "--wait").returncode == 0


def test_several_pipelines_are_asked_at_once_by_name_or_label(installation: Installation) -> None:
    names = sorted(installation.create() for _ in range(3))
    label = f"team={uuid4().hex[:8]}"
    documents = "---\n".join(installation.done("export", name) for name in names[:2])
    key, _, value = label.partition("=")
    labelled = documents.replace("metadata:\n", f"metadata:\n  labels: {{{key}: '{value}'}}\n")
    installation.done("apply", "-f", installation.write("labelled.yaml", labelled))
    ended = installation.data("run", "-l", label, "--wait")
    assert [(run["pipeline"], run["status"]) for run in ended] == [(name, "SUCCESS") for name in names[:2]]
    assert [one["pipeline"] for one in installation.data("disable", *names)] == names
    assert [one["pipeline"] for one in installation.data("enable", names[2], "-l", label)] == [names[2], *names[:2]]

    ended_with = installation.vitrina("enable", names[0], "no_such_pipeline", names[1], "-o", "json")
    assert ended_with.returncode == 2
    assert "error: no_such_pipeline: " in ended_with.stderr
    assert len(json.loads(ended_with.stdout)) == 2  # the others were asked all the same
    assert "no pipeline has the label team=nobody" in installation.vitrina("run", "-l", "team=nobody").stderr
    assert "name a pipeline" in installation.vitrina("pause").stderr


def test_an_older_definition_comes_back(installation: Installation) -> None:
    name = installation.create(batch_size=100)
    assert "there is no earlier version" in installation.vitrina("rollback", name).stderr
    definition = installation.done("export", name).replace("batch_size: 100", "batch_size: 200")
    installation.done("apply", "-f", installation.write("changed.yaml", definition))
    before = installation.data("pipelines", "get", name)
    assert before["batch_size"] == 200
    restored = installation.data("rollback", name)
    assert restored["batch_size"] == 100
    assert installation.data("rollback", name, "--to", str(before["version"]))["batch_size"] == 200


def test_a_paused_pipeline_says_so_and_goes_on_with_run(installation: Installation) -> None:
    name = installation.create()
    assert installation.data("pause", name)["status"] in ("PAUSE_REQUESTED", "PAUSED")
    wait_until(lambda: installation.data("status", name)["status"] == "PAUSED")
    assert installation.vitrina("run", name, "--wait").returncode == 0


def test_the_checkpoint_of_an_incremental_pipeline_is_shown_and_reset(installation: Installation) -> None:
    name = installation.create(
        source_query="SELECT id AS film_id, title, modified FROM content.film_work",
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="film_id",
    )
    installation.done("run", name, "--wait")
    assert installation.data("state", name)["safe_upto"]
    assert name in installation.done("state")
    assert installation.vitrina("state", name, "--reset").returncode == 2  # nobody there to ask
    assert installation.data("state", name, "--reset", "--yes")["safe_upto"] is None
    again = installation.data("run", name, "--wait")
    assert again["rows_read"] == FILMS
    assert again["rows_written"] == 0


def test_lists_are_narrowed_and_printed_in_every_format(installation: Installation) -> None:
    name = installation.create()
    found = installation.data("pipelines", "--name", name)
    assert [pipeline["name"] for pipeline in found] == [name]
    assert yaml.safe_load(installation.done("pipelines", "--name", name, "-o", "yaml")) == found
    none = installation.vitrina("pipelines", "--name", "no_such_name")
    assert (none.returncode, none.stdout) == (0, "")
    assert "no pipeline matches" in none.stderr
    assert installation.data("pipelines", "--disabled", "--name", name) == []


def test_the_log_of_a_run_tells_its_story(installation: Installation) -> None:
    name = installation.create()
    installation.done("run", name, "--wait")
    followed = installation.done("logs", name, "--follow")
    told = [line.split()[2] for line in followed.splitlines()]
    assert told[0] == "run.started"
    assert {"run.planned", "run.published", "run.ended"} <= set(told)
    assert installation.done("logs", name, "--level", "error").splitlines()[:-1] == []
    run_id = installation.data("runs", name)[0]["id"]
    assert installation.done("logs", name, "--run", run_id[:8]) == followed
    assert installation.vitrina("logs", name, "--run", "ffffffff").returncode == 2


def test_reconcile_ends_with_1_on_differences_and_repairs_them(installation: Installation, tmp_path: Path) -> None:
    name = installation.create()
    installation.done("run", name, "--wait")
    assert "result     equal" in installation.done("reconcile", name, "--level", "quick")
    installation.ask(f"UPDATE analytics.{name} SET title = 'Wrong' WHERE title = 'Film 7'")

    files = [tmp_path / "differences.csv", tmp_path / "differences.json"]
    found = installation.vitrina("reconcile", name, "--save", str(files[0]))
    assert found.returncode == 1
    assert found.stdout.splitlines()[0].split() == ["DIFFERENCE", "FILM_ID", "COLUMN", "SOURCE", "TARGET"]
    assert re.search(r"^differing +\S+ +title +Film 7 +Wrong$", found.stdout, re.MULTILINE)
    assert "--repair would write 1 rows and delete 0" in found.stdout
    assert re.search(r'^"differing","\S+","title","Film 7","Wrong"$', files[0].read_text(), re.MULTILINE)
    assert installation.vitrina("reconcile", name, "--save", str(files[1])).returncode == 1
    assert json.loads(files[1].read_text())[0]["columns"] == {"title": {"source": "Film 7", "target": "Wrong"}}
    assert installation.vitrina("reconcile", name, "--save", "differences.txt").returncode == 2

    repaired = installation.data("reconcile", name, "--repair")
    assert (repaired["differing"], repaired["repair"]["updated"], repaired["remaining"]) == (1, 1, 0)
    assert installation.data("reconcile", name)["equal"]
    installation.done("pipelines", "delete", name, "--yes")


def test_validate_and_preview_look_without_writing(installation: Installation) -> None:
    name = installation.create()
    assert installation.done("validate", name).startswith("valid")
    shown = installation.data("preview", name, "--limit", "3")
    assert [len(shown["rows"]), [column["name"] for column in shown["columns"]]] == [3, ["film_id", "title", "rating"]]
    assert installation.done("preview", name, "-n", "2").splitlines()[0].split() == ["FILM_ID", "TITLE", "RATING"]
    assert installation.ask(f"SELECT to_regclass('analytics.{name}')") is None
    wrong = installation.create(source_query="SELECT no_such_column FROM content.film_work")
    ended = installation.vitrina("validate", wrong)
    assert ended.returncode == 3
    assert "no_such_column" in ended.stdout


# --- pipelines as files -------------------------------------------------------------------------------------------


def test_files_make_pipelines_and_differences_are_shown_first(installation: Installation) -> None:
    name = installation.create(batch_size=500)
    directory = installation.directory / f"exported_{name}"
    assert installation.done("export", name, "-d", str(directory)) == f"{directory / name}.yaml\n"
    assert installation.vitrina("apply", "-f", str(directory)).returncode == 0
    assert installation.vitrina("diff", "-f", str(directory)).returncode == 0
    file = directory / f"{name}.yaml"
    file.write_text(file.read_text().replace("batch_size: 500\n", "batch_size: 77\n"))
    changed = installation.vitrina("diff", "-f", str(directory))
    assert changed.returncode == 1
    assert changed.stdout == f"~ {name} (update)\n    batch_size: 500 -> 77\n"
    assert installation.data("pipelines", "get", name)["batch_size"] == 500
    applied = installation.vitrina("apply", "-f", str(directory))
    assert (applied.returncode, applied.stderr) == (0, "1 update\n")
    assert installation.data("pipelines", "get", name)["batch_size"] == 77
    assert installation.done("export", name) == file.read_text()
    assert installation.vitrina("apply", "-f", "-", stdin=file.read_text()).stderr == "1 unchanged\n"


def test_a_mistake_in_a_file_is_named_by_file_and_line_and_nothing_is_applied(installation: Installation) -> None:
    name = installation.create()
    good = installation.done("export", name).replace(name, f"{name}_copy")
    installation.write("wrong/a.yaml", good)
    wrong = installation.write("wrong/b.yaml", good.replace("_copy", "_other") + "  batch_size: 0\n")
    line = Path(wrong).read_text().count("\n")
    ended = installation.vitrina("apply", "-f", str(installation.directory / "wrong"))
    assert ended.returncode == 3
    assert f"{wrong}:{line}:" in ended.stderr
    assert "batch_size" in ended.stderr
    assert installation.vitrina("pipelines", "get", f"{name}_copy").returncode == 2


def test_prune_deletes_what_its_owner_no_longer_declares(installation: Installation) -> None:
    name = installation.create()
    manifest = installation.done("export", name)
    file = installation.write(f"owned_{name}/pipeline.yaml", manifest)
    owner = ["--managed-by", f"team-{name}"]
    installation.done("apply", "-f", file, *owner)
    Path(file).write_text(manifest.replace(name, f"{name}_renamed"))
    shown = installation.vitrina("diff", "-f", file, "--prune", *owner)
    assert shown.stdout == f"- {name} (delete)\n+ {name}_renamed (create)\n"
    installation.done("apply", "-f", file, "--prune", *owner)
    assert installation.vitrina("pipelines", "get", name).returncode == 2
    assert installation.data("pipelines", "get", f"{name}_renamed")["managed_by"] == f"team-{name}"


# --- shells -------------------------------------------------------------------------------------------------------


def test_the_shell_completes_commands_and_pipelines(installation: Installation, alone: Installation) -> None:
    name = installation.create()
    assert "runner" in complete(installation, "vitrina runn")
    assert name in complete(installation, f"vitrina run {name[:10]}")
    assert complete(alone, "vitrina run fi").strip() == ""


def test_a_terminal_gets_colours_and_bars_unless_it_wants_none(installation: Installation) -> None:
    name = installation.create()
    shown = on_a_terminal(installation, ["run", name, "--wait"])
    assert "\x1b[32m" in shown
    assert "100%" in shown or "━" in shown
    plain = on_a_terminal(installation, ["runs", name], NO_COLOR="1")
    assert re.search(rf"{name} .*SUCCESS", plain)
    assert "\x1b[3" not in plain


def complete(installation: Installation, line: str) -> str:
    variables = {"_VITRINA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return installation.vitrina(**variables).stdout


def on_a_terminal(installation: Installation, arguments: list[str], **variables: str) -> str:
    """What a terminal of 160 columns receives."""
    controller, terminal = os.openpty()
    with subprocess.Popen(
        [*VITRINA, *arguments],
        cwd=installation.directory,
        env=clean_environment() | installation.variables | {"TERM": "xterm-256color", "COLUMNS": "160"} | variables,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        close_fds=True,
    ) as process:
        os.close(terminal)
        received = b""
        while select.select([controller], [], [], 60)[0]:
            try:
                received += os.read(controller, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
    os.close(controller)
    assert process.returncode == 0, received.decode()
    return received.decode()


class running:  # noqa: N801 - reads like the context manager it is
    """A command that works while the tests do."""

    def __init__(self, installation: Installation, *arguments: str) -> None:
        self._installation = installation
        self._arguments = arguments

    def __enter__(self) -> None:
        self._log = (self._installation.directory / f"{self._arguments[0]}.log").open("wb")
        self._process = subprocess.Popen(
            [*VITRINA, *self._arguments],
            cwd=self._installation.directory,
            env=clean_environment() | self._installation.variables,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        code = self._process.wait(60)
        self._log.close()
        assert code == 0


def clean_environment() -> dict[str, str]:
    """Without the settings of whoever runs the tests."""
    unwanted = ("VITRINA_", "ELASTICSEARCH_", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def await_port(port: int) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.1)
