"""Where settings come from."""

import subprocess
import sys
from pathlib import Path

import pytest

from vitrina import settings
from vitrina.errors import ConfigError


def test_everything_about_the_search_server_may_stand_in_files(tmp_path: Path) -> None:
    """As orchestrators hand out secrets; the CA is a file in any case."""
    wanted = {"URL": "https://user:secret@search:9200", "API_KEY": "key", "FINGERPRINT": "ab" * 32}
    environment = {"ELASTICSEARCH_CA_FILE": "/etc/ssl/search-ca.pem"}
    for name, value in wanted.items():
        (tmp_path / name).write_text(f"{value}\n")
        environment[f"ELASTICSEARCH_{name}_FILE"] = str(tmp_path / name)

    found = settings.load(environment, dotenv=None)

    assert found.elasticsearch_url is not None
    assert found.elasticsearch_url.get_secret_value() == wanted["URL"]
    assert found.elasticsearch_api_key is not None
    assert found.elasticsearch_api_key.get_secret_value() == wanted["API_KEY"]
    assert found.elasticsearch_fingerprint == wanted["FINGERPRINT"]
    assert found.elasticsearch_ca_file == Path("/etc/ssl/search-ca.pem")
    assert "user:secret" not in repr(found)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ELASTICSEARCH_API_KEY_FILE=.*missing cannot be read: No such file"):
        settings.load({"ELASTICSEARCH_API_KEY_FILE": str(tmp_path / "missing")}, dotenv=None)


def test_a_file_that_is_no_text_is_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"s3cr3t\xff")
    with pytest.raises(
        ConfigError, match=r"VITRINA_TOKEN_FILE=.*token cannot be read: it is not text in UTF-8"
    ) as named:
        settings.load({"VITRINA_TOKEN_FILE": str(tmp_path / "token")}, dotenv=None)
    assert "s3cr3t" not in str(named.value)
    with pytest.raises(ConfigError, match=r"token cannot be read: it is not text in UTF-8"):
        settings.load({}, dotenv=tmp_path / "token")


def test_the_environment_wins_over_dotenv_in_either_form(tmp_path: Path) -> None:
    mounted, dotenv = tmp_path / "mounted", tmp_path / ".env"
    mounted.write_text("http://of-the-file\n")
    dotenv.write_text("VITRINA_API_URL=http://of-dotenv\n")
    in_file = {"VITRINA_API_URL_FILE": str(mounted)}
    assert settings.load(in_file, dotenv=dotenv).api_url == "http://of-the-file"
    assert settings.load({}, dotenv=dotenv).api_url == "http://of-dotenv"
    assert settings.load({"VITRINA_API_URL_FILE": ""}, dotenv=dotenv).api_url == "http://of-dotenv"

    dotenv.write_text(f"VITRINA_API_URL_FILE={tmp_path / 'missing'}\n")
    assert settings.load(in_file, dotenv=dotenv).api_url == "http://of-the-file"
    assert settings.load({"VITRINA_API_URL": "http://here"}, dotenv=dotenv).api_url == "http://here"
    assert settings.load(in_file | {"VITRINA_API_URL": "http://here"}, dotenv=dotenv).api_url == "http://here"


def test_the_file_of_lineage_events_need_not_exist(tmp_path: Path) -> None:
    """The first event creates it."""
    events = tmp_path / "lineage.jsonl"
    assert settings.load({"VITRINA_LINEAGE_FILE": str(events)}, dotenv=None).lineage_file == events


CRM = "postgresql://reader:secret@crm.internal/crm"


def test_a_connection_has_its_own_limits(tmp_path: Path) -> None:
    (tmp_path / "seconds").write_text("2.5\n")
    environment = {
        "VITRINA_CONN_CRM": CRM,
        "VITRINA_CONN_CRM_MAX_CONNECTIONS": "4",
        "VITRINA_CONN_CRM_STATEMENT_TIMEOUT_SECONDS_FILE": str(tmp_path / "seconds"),
        "VITRINA_CONN_MAX_CONNECTIONS": CRM,
        "VITRINA_STATEMENT_TIMEOUT_SECONDS": "60",
    }

    found = settings.load(environment, dotenv=None)

    assert set(found.connections) == {"crm", "max_connections"}
    assert found.max_connections == {"crm": 4}
    limits = {name: found.statement_timeout_on(name) for name in ("crm", "max_connections", "default", None)}
    assert limits == {"crm": 2.5, "max_connections": 60, "default": 60, None: 60}


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("MAX_CONNECTIONS", "1"),
        ("MAX_CONNECTIONS", "many"),
        ("MAX_CONNECTIONS", CRM),
        ("STATEMENT_TIMEOUT_SECONDS", "0"),
        ("STATEMENT_TIMEOUT_SECONDS", "nan"),
        ("STATEMENT_TIMEOUT_SECONDS", "1e9"),
    ],
)
def test_a_wrong_limit_is_named_and_not_repeated(limit: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"VITRINA_CONN_CRM_{limit}: Input should .*no connection's name") as refused:
        settings.load({"VITRINA_CONN_CRM": CRM, f"VITRINA_CONN_CRM_{limit}": value}, dotenv=None)
    assert "secret" not in str(refused.value)


def test_a_limit_of_no_connection_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"VITRINA_CONN_CRN_MAX_CONNECTIONS: .* set VITRINA_CONN_CRN$"):
        settings.load({"VITRINA_CONN_CRM": CRM, "VITRINA_CONN_CRN_MAX_CONNECTIONS": "4"}, dotenv=None)


def test_a_directory_that_the_user_may_not_enter_has_no_dotenv(tmp_path: Path) -> None:
    """For example the home of root, for a command that another login runs there."""
    lines = [
        "import os, sys",
        "from vitrina import environment",
        "os.chdir(sys.argv[1])",
        "os.chmod('.', 0)",
        "os.geteuid() or os.setuid(65534)",
        "assert environment.of_file(environment.DOTENV) == {}",
    ]
    closed = tmp_path / "closed"
    closed.mkdir()
    try:
        command = [sys.executable, "-c", "\n".join(lines), str(closed)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    finally:
        closed.chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
