"""The description of the ClickHouse connector: names, URLs and options, judged without a client or a server."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from vitrina.connectors.clickhouse import connector, urls
from vitrina.connectors.clickhouse.options import ClickHouseOptions


def test_describing_itself_loads_nothing_heavy() -> None:
    program = "import vitrina.connectors.clickhouse, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"clickhouse_connect", "pyarrow", "psycopg", "fastapi", "chdb"}


def test_without_the_client_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['clickhouse_connect'] = None\n"
        "from vitrina.connectors.clickhouse.client import Session\n"
        "from vitrina.errors import ConfigError\n"
        "try: Session('clickhouse://127.0.0.1:1')\n"
        "except ConfigError as exc: print(exc.message)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'vitrina[clickhouse]'" in done.stdout


@pytest.mark.parametrize("name", ["films", "marts.films", "Marts.Film_Dim2"])
def test_names_that_are_targets(name: str) -> None:
    assert connector.accepts_target(name)


@pytest.mark.parametrize(
    "name",
    ["system.tables", "INFORMATION_SCHEMA.x", "a.b.c", "films`", "films; DROP", "", "1films", "films__g5x00_ab_cd"],
)
def test_names_that_are_none(name: str) -> None:
    assert not connector.accepts_target(name)


def test_a_url_is_taken_apart() -> None:
    found = urls.parse("clickhouse://us%40er:p%2Fw@ch.example/marts?secure=1&compress=1&timeout=60")
    assert (found.host, found.port, found.user, found.password) == ("ch.example", 8443, "us@er", "p/w")
    assert (found.database, found.secure, found.compress, found.timeout_seconds) == ("marts", True, True, 60)
    assert "p/w" not in repr(found)
    assert urls.parse("clickhouse://h").port == 8123
    assert urls.parse("clickhouses://h").secure


@pytest.mark.parametrize(
    "url",
    [
        "clickhouse://",
        "clickhouse://canary@host:port",
        "clickhouse://host/db?verify=canary",
        "clickhouse://host/db?secure=canary",
        "clickhouse://host/db?timeout=canary",
        "clickhouse://host/ca-nary",
        "clickhouse+chdb://canary/x",
    ],
)
def test_a_wrong_url_is_refused_without_being_repeated(url: str) -> None:
    said = urls.problem(url)
    assert said
    assert "canary" not in said


@pytest.mark.parametrize("url", ["clickhouse://h/db?ca_file=/etc/ca.pem", "clickhouse+chdb:///var/lib/x"])
def test_a_url_that_a_user_sends_names_no_file(url: str) -> None:
    assert urls.problem(url) is None
    assert "environment" in (urls.kept_problem(url) or "")


@pytest.mark.parametrize(
    "options",
    [
        {"partition_by": "url('http://x', CSV)"},
        {"partition_by": "sleep(a)"},
        {"partition_by": "day) AS SELECT 1 --"},
        {"ttl": "day + INTERVAL 1 DAY TO DISK 'x'"},
        {"ttl": "day + (SELECT 1)"},
        {"settings": {"disk": "disk(type=s3)"}},
        {"order_by": ["id) SETTINGS x=(1"]},
        {"engine": "URL('http://x')"},
        {"cluster": "x"},
    ],
)
def test_what_would_reach_the_server_as_sql_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClickHouseOptions.model_validate(options)


def test_expressions_are_taken_apart() -> None:
    found = ClickHouseOptions(partition_by="toYYYYMM(day)", ttl="day + interval 3 month")
    assert (found.partition, found.expiry) == (("toYYYYMM", "day"), ("day", 3, "MONTH"))
    assert ClickHouseOptions(partition_by="country").partition == (None, "country")
