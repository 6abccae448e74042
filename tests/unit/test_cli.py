"""The command line's own rules: it starts fast, ends with the right code and prints what people and programs expect."""

import json
import re
import resource
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml

from vitrina import errors
from vitrina.cli import exits, files, output, remote, runs
from vitrina.cli.exits import ExitCode
from vitrina.cli.output import Column, Format
from vitrina.cli.pipelines import LIST_COLUMNS, STATUS_COLUMNS
from vitrina.cli.runs import HISTORY_COLUMNS, RESULT_COLUMNS

VITRINA = [sys.executable, "-m", "vitrina.cli"]


# --- help ---------------------------------------------------------------------------------------------------------


def test_help_answers_within_a_blink() -> None:
    """Counted in the process's own time, best of some tries: the machine may be busy with other things."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*VITRINA, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(times) < 0.6


def test_help_loads_nothing_heavy() -> None:
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vitrina.cli", "--help"], check=True, capture_output=True, text=True
    )
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"psycopg", "pydantic", "fastapi", "pyarrow", "httpx", "sqlalchemy", "uvicorn", "rich", "yaml"}


def test_help_names_every_command_and_cuts_no_sentence() -> None:
    shown = subprocess.run([*VITRINA, "--help"], check=True, capture_output=True, text=True).stdout
    for command in ("dev", "demo", "doctor", "run", "status", "apply", "api", "runner", "migrate", "tokens"):
        assert f"\n  {command} " in shown
    assert "..." not in shown.partition("Start here:")[2]


# --- exit codes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.FatalError("the run failed"), ExitCode.FAILED),
        (errors.NotFound("no such pipeline"), ExitCode.USAGE),
        (errors.ConfigError("wrong"), ExitCode.INVALID_CONFIG),
        (errors.ForbiddenTarget("wrong"), ExitCode.INVALID_CONFIG),
        (errors.Unauthenticated("no token"), ExitCode.INVALID_CONFIG),
        (errors.CannotConnect("nobody there"), ExitCode.CANNOT_CONNECT),
        (errors.Conflict("running"), ExitCode.CONFLICT),
        (errors.PreconditionFailed("changed"), ExitCode.CONFLICT),
    ],
)
def test_an_error_becomes_an_exit_code(error: errors.VitrinaError, code: ExitCode) -> None:
    assert exits.code_of(error) == code


def test_an_error_is_one_line_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    fields = (errors.FieldError("batch_size", "must be at least 1"), errors.FieldError("name", "is required"))
    exits.report(errors.Invalid("2 fields are not valid", fields))
    written = capsys.readouterr()
    assert written.err == ("error: 2 fields are not valid\n  batch_size: must be at least 1\n  name: is required\n")
    assert written.out == ""


# --- output -------------------------------------------------------------------------------------------------------

ROWS: list[dict[str, object]] = [
    {"name": "film_dim", "rows": 1234567, "ratio": Decimal("7.50"), "at": datetime(2025, 3, 1, 12, tzinfo=UTC)},
    {"name": "фильмы", "rows": None, "ratio": None, "at": None},
]
COLUMNS = [Column(name, itemgetter(name)) for name in ROWS[0]]


def test_a_table_for_a_pipe_is_aligned_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_list(ROWS, COLUMNS, Format.TABLE, empty="nothing")
    assert capsys.readouterr().out.splitlines() == [
        "NAME           ROWS  RATIO  AT",
        "film_dim  1,234,567   7.50  2025-03-01 12:00:00Z",
        "фильмы            -      -  -",
    ]


def test_json_and_yaml_carry_the_same_data(capsys: pytest.CaptureFixture[str]) -> None:
    data = [{"name": "фильмы", "rows": 3, "tags": ["a", "b"], "error": None}]
    output.show_list(data, COLUMNS, Format.JSON, empty="nothing")
    as_json = capsys.readouterr().out
    output.show_list(data, COLUMNS, Format.YAML, empty="nothing")
    as_yaml = capsys.readouterr().out
    assert json.loads(as_json) == yaml.safe_load(as_yaml) == data
    assert "фильмы" in as_json
    assert "фильмы" in as_yaml


def test_an_empty_list_is_empty_data_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_list([], COLUMNS, Format.TABLE, empty="nothing: make one")
    assert capsys.readouterr() == ("", "nothing: make one\n")
    output.show_list([], COLUMNS, Format.JSON, empty="nothing: make one")
    assert capsys.readouterr() == ("[]\n", "")


def test_a_year_in_a_row_is_no_count(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table([["Batman", 1989, 7.5, True]], ["title", "year", "rating", "seen"], are_data=True)
    assert capsys.readouterr().out.splitlines() == ["TITLE   YEAR  RATING  SEEN", "Batman  1989     7.5  yes"]


@pytest.mark.parametrize("room", [60, 80, 100, 200])
@pytest.mark.parametrize("columns", [LIST_COLUMNS, STATUS_COLUMNS, RESULT_COLUMNS, HISTORY_COLUMNS])
def test_a_table_fits_its_terminal_without_cutting_names(
    columns: list[output.Column],
    room: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(room))
    monkeypatch.setenv("NO_COLOR", "1")
    name = "customer_orders_of_the_day"
    output.show_columns([thing(name)], columns)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= room
    assert any(name in line for line in lines)
    if room == 200:
        assert all(column.title in lines[0] for column in columns)


def test_a_name_longer_than_the_terminal_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    name = "n" * 100
    output.show_columns([thing(name)], [output.Column("name", lambda one: one.name, is_name=True)])
    assert capsys.readouterr().out.count("n") >= 100


def thing(name: str) -> SimpleNamespace:
    """A pipeline and a run at once, with values as long as they come."""
    at = datetime(2026, 11, 16, 2, 0, tzinfo=UTC)
    return SimpleNamespace(
        id="0198f2a0-0000-7000-8000-000000000000",
        name=name,
        pipeline=name,
        status="RUN_REQUESTED",
        status_since=at,
        enabled=True,
        mode="incremental",
        target_table="analytics.customer_orders",
        schedule_interval="0 3 * * * Europe/Moscow",
        batch_size=5000,
        version=12,
        next_run_at=at,
        last_error="no " * 60,
        rows_read=1_234_567,
        rows_deleted=0,
        metrics={"inserted": 1_234_567, "updated": 1_234_567, "deleted": 1_234_567, "unchanged": 1_234_567},
        duration_seconds=123.456,
        rows_per_second=123_456.7,
        started_at=at,
        trigger="schedule",
    )


def test_data_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table([["\x1b[2Jgone\r\nnext"]], ["value\x1b[2J"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_field_cannot_steer_the_terminal_and_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    sent = {"description": "red \x1b[31m\r\n\ttext\u3000\u202e\x9b2J"}
    output.show_one(sent, sent, Format.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "description  red \ufffd[31m",
        "             \ttext\u3000\ufffd\ufffd2J",
    ]
    output.show_one(sent, sent, Format.JSON)
    assert json.loads(capsys.readouterr().out) == sent


def test_errors_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    failed = SimpleNamespace(**vars(thing("films")) | {"error_message": "bad \x1b[2J row", "next_step": "\x1b[2J"})
    failed.metrics = {"checks": [{"name": "\x1b", "result": "failed", "found": "\x1b", "offending_rows": ["\x1b"]}]}
    runs.show_runs([failed])  # type: ignore[list-item]
    runs.print_line(failed.started_at, "\x1b", "\x1b")
    exits.report(errors.Invalid("\x1b[2J", (errors.FieldError("\x1b", "\x1b"),)))
    written = capsys.readouterr()
    assert "films: bad \ufffd[2J row" in written.err
    assert "\x1b" not in written.out + written.err


def test_the_history_of_runs_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = SimpleNamespace(**vars(thing("films")) | {"error_message": "bad \x1b[2J row"})
    monkeypatch.setattr(remote, "api", lambda: nullcontext(SimpleNamespace(list_runs=lambda *_, **__: [failed])))
    runs.runs()
    assert capsys.readouterr().out.endswith("films: bad \ufffd[2J row\n")


def test_fields_without_a_value_are_left_out_and_long_ones_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_one({}, {"name": "x", "error": None, "source_query": "SELECT\n  1", "enabled": False}, Format.TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "name          x",
        "source_query  SELECT",
        "                1",
        "enabled       no",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.4213, "0.42 s"), (75.2, "75 s"), (600, "10 min"), (86_399, "24 h"), (200_000, "2.3 d")],
)
def test_durations_show_two_digits_that_matter(seconds: float | None, shown: str) -> None:
    assert output.duration(seconds) == shown


# --- arguments ----------------------------------------------------------------------------------------------------


def test_since_is_an_age_or_a_time() -> None:
    since = runs.moment("2h")
    assert since is not None
    assert timedelta(hours=2) <= datetime.now(UTC) - since < timedelta(hours=2, minutes=1)
    assert runs.moment("2025-03-01") == datetime(2025, 3, 1, tzinfo=UTC)
    assert runs.moment("2025-03-01T12:00:00+03:00") == datetime(2025, 3, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "since", ["yesterday", "99999999999d", "9999999d", "\u00b2d", f"{'9' * 5000}h", "-1d", "d", "", "2025-13-01"]
)
def test_since_that_is_no_time_is_wrong_usage(since: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"'{since}' is not a time"):
        runs.moment(since)


def test_a_directory_gives_its_documents_by_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yml").write_text("name: b\n")
    (tmp_path / "a.yaml").write_text("name: a\n")
    (tmp_path / "readme.md").write_text("no document")
    assert files.read_all(str(tmp_path)) == {
        str(tmp_path / "a.yaml"): "name: a\n",
        str(tmp_path / "sub" / "b.yml"): "name: b\n",
    }


def test_a_directory_without_documents_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"holds no \.yaml"):
        files.read_all(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: [", "is not valid YAML or JSON"),
        ("- 1", "does not contain a pipeline"),
        ("apiVersion: vitrina/v1\n", "vitrina apply -f"),
    ],
)
def test_a_file_that_is_no_definition_is_said_so(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(content)
    with pytest.raises(errors.ConfigError, match=message):
        files.read_definition(str(file))


# --- the address of `vitrina dev` ----------------------------------------------------------------------------------


def test_an_address_is_announced_whole_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has begun to read the earlier one reads that to its end."""
    address = tmp_path / "api-url"
    monkeypatch.setattr(remote, "ADDRESS", address)
    with remote.announced("http://127.0.0.1:8000"), address.open() as earlier:
        with remote.announced("http://127.0.0.1:8001"):
            assert earlier.read() == "http://127.0.0.1:8000"
            assert address.read_text() == "http://127.0.0.1:8001"
        assert list(tmp_path.iterdir()) == []


def test_an_address_file_with_something_else_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITRINA_API_URL", raising=False)
    remote.ADDRESS.parent.mkdir()
    remote.ADDRESS.write_bytes(b"\xff")
    with pytest.raises(errors.ConfigError, match=r"\.vitrina/api-url does not contain the address"):
        remote.api()
    with remote.announced("http://127.0.0.1:8000"):
        remote.ADDRESS.write_bytes(b"\xff")
