"""Connection URLs that would weaken a session are refused when the settings are read, and never repeated."""

import pytest

from vitrina import dsn, settings
from vitrina.errors import ConfigError

CANARY = "canary-dsn"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/d",
        "postgresql://u:p@h1:5432,h2:5433/d?target_session_attrs=read-write&sslmode=verify-full&sslrootcert=/ca.pem",
        "postgresql:///d?host=/run/postgresql",
        "host=h user=u password='it\\'s = options' dbname=d",
        "postgresql://u:options=x@h/d",
    ],
)
def test_where_who_and_how_encrypted(url: str) -> None:
    assert dsn.problem(url) is None


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://u:p@h/d?options=-c%20statement_timeout%3D0", "options"),
        ("postgresql://u:p@h/d?%6Fptions=-cdefault_transaction_read_only%3Doff", "options"),
        ("postgresql://u:p@h/d?sslmode=require&service=mine", "service"),
        ("postgresql://u:p@h/d?replication=database", "replication"),
        ("postgresql://u:p@h/d?client_encoding=SJIS", "client_encoding"),
        ("host=h dbname=d options='-c statement_timeout=0'", "options"),
        ("host=h service = mine", "service"),
        ("postgresql://u:p@h/d?servicefile=/x", "servicefile"),
    ],
)
def test_what_would_weaken_a_session(url: str, named: str) -> None:
    assert f"must not set {named}" in (dsn.problem(url) or "")


@pytest.mark.parametrize("variable", ["VITRINA_DATABASE_URL", "VITRINA_READER_URL", "VITRINA_CONN_CRM"])
def test_refused_at_start_up_by_name_without_any_value(variable: str) -> None:
    url = f"postgresql://{CANARY}-user:{CANARY}-password@{CANARY}-host/{CANARY}-db?options={CANARY}-option"
    with pytest.raises(ConfigError) as refused:
        settings.load({variable: url}, dotenv=None)
    assert f"{variable}: the URL must not set options" in refused.value.message
    assert CANARY not in refused.value.message
