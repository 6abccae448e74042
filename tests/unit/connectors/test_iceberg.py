"""Iceberg as a target, as far as no package is needed for it: names and URLs."""

import subprocess
import sys

import pytest

from vitrina.connectors.files.urls import Bucket, Folder
from vitrina.connectors.iceberg import connector, urls
from vitrina.connectors.iceberg.opening import open_target
from vitrina.errors import ConfigError
from vitrina.testing.openings import opening_of

KEYS = "access_key_id=key&secret_access_key=se+cret/of=ours"
SQL = "iceberg+postgresql://lake:hush@db.example.com:5433/catalogs"


@pytest.mark.parametrize("name", ["marts.films", "a.b.c.d", "_x.y_2"])
def test_names_are_tables_of_a_namespace(name: str) -> None:
    assert connector.accepts_target(name)


@pytest.mark.parametrize("name", ["", "films", "marts.", ".films", "a..b", "a.b.c.d.e", "Marts.films", "a/b.c"])
def test_a_name_does_not_lead_elsewhere(name: str) -> None:
    assert not connector.accepts_target(name)


def test_a_url_names_a_catalog_and_a_warehouse() -> None:
    found = urls.parse(f"{SQL}?warehouse=s3://bucket/prefix/&endpoint=http://127.0.0.1:9000&{KEYS}&sslmode=require")
    assert isinstance(found.place, Bucket)
    assert found.place.parameters["secret_access_key"] == "se+cret/of=ours"
    assert (found.location, found.catalog, found.is_sql) == ("s3://bucket/prefix", "vitrina", True)
    assert (found.address, dict(found.parameters)) == (
        "postgresql://lake:hush@db.example.com:5433/catalogs",
        {"sslmode": "require"},
    )
    assert found.identity == "iceberg:db.example.com:5433/catalogs#vitrina"
    assert "hush" not in repr(found)
    assert "se+cret" not in repr(found)
    rest = urls.parse("iceberg+https://rest.example.com/v1?warehouse=file:///lake&token=abc&catalog=prod")
    assert isinstance(rest.place, Folder)
    assert (rest.address, rest.is_sql, rest.parameters["token"]) == ("https://rest.example.com/v1", False, "abc")
    assert urls.dataset(f"{SQL}?warehouse=file:///x", "marts.films") == (
        "iceberg://db.example.com:5433",
        "vitrina.marts.films",
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("iceberg+postgresql:///db?warehouse=file:///x", "not the URL of an Iceberg catalog"),
        ("iceberg+postgresql://hush@host?warehouse=file:///x", "names no database"),
        ("iceberg+postgresql://host:port/db?warehouse=file:///x", "an address that is wrong"),
        (SQL, "it needs warehouse="),
        (f"{SQL}?warehouse=hdfs://hush", "it needs warehouse="),
        (f"{SQL}?warehouse=file:///x&token=hush", "'token' is unknown"),
        (f"{SQL}?warehouse=s3://bucket/x&access_key_id=hush", "come together"),
        ("iceberg+https://host/?warehouse=s3://b&sslmode=hush", "'sslmode' is unknown"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(url: str, said: str) -> None:
    problem = urls.problem(url)
    assert problem
    assert said in problem
    assert "hush" not in problem
    with pytest.raises(ConfigError):
        urls.parse(url)


def test_a_user_does_not_borrow_the_runner_s_folders_and_rights() -> None:
    assert "can only be set in its environment" in str(urls.kept_problem(f"{SQL}?warehouse=file:///etc"))
    assert "needs its own keys" in str(urls.kept_problem(f"{SQL}?warehouse=s3://bucket/x"))
    assert urls.kept_problem(f"{SQL}?warehouse=s3://bucket/x&{KEYS}") is None


def test_describing_itself_loads_nothing_heavy() -> None:
    program = "import vitrina.connectors.iceberg, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pyarrow", "pyiceberg", "obstore", "psycopg", "sqlalchemy"}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"iceberg:a\.b needs options.target_connection"):
        open_target(opening_of(connector, "a.b", None))
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(ConfigError, match=r"install vitrina\[lake\]"):
        open_target(opening_of(connector, "a.b", f"{SQL}?warehouse=file:///x"))
