"""`vitrina psql` hands its login over where other users of the machine cannot read it."""

import pytest
from pydantic import SecretStr

from vitrina.cli import psql
from vitrina.errors import ConfigError
from vitrina.settings import Settings

APP = SecretStr("postgresql://vitrina_app:app%40secret@db.example.com:5433/cinema?sslmode=verify-full")
ADMIN = SecretStr("postgresql://postgres:other@db.example.com/cinema")


def test_the_login_goes_into_the_environment_part_by_part() -> None:
    assert psql._login(Settings(database_url=APP, admin_url=ADMIN), admin=False) == {
        "PGHOST": "db.example.com",
        "PGPORT": "5433",
        "PGUSER": "vitrina_app",
        "PGPASSWORD": "app@secret",
        "PGDATABASE": "cinema",
        "PGSSLMODE": "verify-full",
    }


def test_the_administrator_is_asked_for_by_name() -> None:
    assert psql._login(Settings(database_url=APP, admin_url=ADMIN), admin=True)["PGUSER"] == "postgres"
    with pytest.raises(ConfigError, match="VITRINA_ADMIN_URL is not set"):
        psql._login(Settings(database_url=APP), admin=True)
