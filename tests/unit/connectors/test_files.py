"""Files as targets, as far as no package is needed for it: names, URLs, types, and objects in a folder."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from vitrina.connectors.files import columns, connector, folder, names, urls
from vitrina.connectors.files.folder import FolderObjects
from vitrina.connectors.files.manifest import Manifest
from vitrina.connectors.files.objects import Changed
from vitrina.connectors.files.places import open_place
from vitrina.errors import CannotConnect, ConfigError, Disconnected, FatalError, TargetMismatch
from vitrina.ports.schema import Column

KEYS = "access_key_id=key&secret_access_key=se+cret/of=ours"


# --- names and URLs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["films", "marts/films", "a/b/c/d/e", "film-2024_x", "data_mart", "mydata/x"])
def test_names_are_folders(name: str) -> None:
    assert connector.accepts_target(name)


@pytest.mark.parametrize(
    "name", ["", "/films", "films/", "../x", "a/../b", "a//b", "data", "a/data", "data/x", "A", "a b"]
)
def test_a_name_does_not_lead_elsewhere(name: str) -> None:
    assert not connector.accepts_target(name)


def test_a_url_says_where() -> None:
    bucket = urls.parse(f"s3://bucket/some/prefix/?endpoint=http://127.0.0.1:9000&{KEYS}")
    assert isinstance(bucket, urls.Bucket)
    assert (bucket.name, bucket.prefix, bucket.path_style) == ("bucket", "some/prefix", True)
    assert bucket.parameters["secret_access_key"] == "se+cret/of=ours"
    assert "se+cret" not in repr(bucket)
    assert urls.parse("s3://bucket") == urls.Bucket("bucket", "")
    assert urls.parse("file:///var/lake%20house") == urls.Folder(Path("/var/lake house"))
    assert urls.dataset("s3://bucket/prefix", "films") == ("s3://bucket", "prefix/films")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file://host/folder", "without a host"),
        ("file:///", "write file:///FOLDER"),
        ("s3:///prefix", "write s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket/x", "write s3://BUCKET/PREFIX"),
        ("s3://bucket/x?endpint=http://a", "'endpint' is unknown"),
        ("s3://bucket/x?endpoint=a:9000", "endpoint begins with http"),
        ("s3://bucket/x?path_style=yes", "path_style is true or false"),
        ("s3://bucket/x?access_key_id=secret", "come together"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_repeated(url: str, said: str) -> None:
    problem = urls.problem(url)
    assert problem
    assert said in problem
    assert "secret@" not in problem
    with pytest.raises(ConfigError):
        urls.parse(url)


def test_a_user_does_not_borrow_the_runner_s_folders_and_rights() -> None:
    assert "can only be set in its environment" in str(urls.kept_problem("file:///etc"))
    assert "needs its own keys" in str(urls.kept_problem("s3://bucket/x"))
    assert urls.kept_problem(f"s3://bucket/x?{KEYS}") is None


def test_a_file_s_name_says_whose_it_is() -> None:
    name = names.FileName("0" * 32, 1794897130665, "9f3a01c2", 1, 64, 0, 320_000)
    assert names.parse(f"data/g/country=PT/{name}") == name
    assert names.parse(f"data/g/{folder.UNFINISHED}{name}-1a2b") == name
    assert names.parse("data/g/other.parquet") is None


@pytest.mark.parametrize("value", ["PT", "a/b", "ä %=", "", None, "..", "a\nb"])
def test_the_value_of_a_partition_comes_back(value: str | None) -> None:
    made = names.partition_folder(["a=b/c", "d"], [value, "x"])
    assert made.count("/") == 2
    assert names.partition_values(f"data/g/{made}file.parquet") == {"a=b/c": value, "d": "x"}


def test_a_value_that_is_too_long_for_a_folder_is_refused() -> None:
    with pytest.raises(FatalError, match="too long to name a folder"):
        names.partition_folder(["a"], ["x" * 250])


# --- what is installed -----------------------------------------------------------------------------------------------


def test_describing_itself_loads_nothing_heavy() -> None:
    program = "import vitrina.connectors.files, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pyarrow", "obstore", "psycopg"}


def test_a_bucket_needs_a_package_which_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"install vitrina\[lake\]"):
        open_place(urls.parse("s3://bucket/x"))


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_version", "_deleted"])
def test_columns_of_files_do_not_have_the_names_of_ours(name: str) -> None:
    with pytest.raises(TargetMismatch, match="call it otherwise"):
        columns.Layout.of([Column("id", "bigint"), Column(name, "bigint")], ["id"])


def test_what_a_step_made_is_written_as_json() -> None:
    layout = columns.Layout.of([Column("id", "bigint"), Column("doc", "jsonb")], ["id"])
    rows = pa.table({"id": [1, 2], "doc": [{"a": ["ä", None]}, None]})
    assert layout.fitted(rows).column("doc").to_pylist() == ['{"a": ["ä", null]}', None]


def test_delete_when_is_a_boolean() -> None:
    with pytest.raises(TargetMismatch, match="not boolean"):
        columns.Layout.of([Column("id", "bigint"), Column("gone", "text")], ["id"], delete_when="gone")


# --- a folder --------------------------------------------------------------------------------------------------------


def test_an_object_is_replaced_by_who_knows_it(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.replace("films/manifest.json", b"1", None)
    with pytest.raises(Changed):
        objects.replace("films/manifest.json", b"2", None)
    first = objects.find("films/manifest.json")
    assert first
    objects.replace("films/manifest.json", b"2", first.version)
    with pytest.raises(Changed):
        objects.replace("films/manifest.json", b"3", first.version)
    second = objects.find("films/manifest.json")
    assert second
    assert second.content == b"2"


def test_a_folder_that_is_not_there_is_not_an_empty_one(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path / "not mounted")
    with pytest.raises(CannotConnect, match="is no folder"):
        objects.find("films/manifest.json")
    with pytest.raises(CannotConnect, match="is no folder"):
        objects.put("films/x", memoryview(b"x"))


def test_a_lock_that_is_never_given_back_does_not_hold_a_run_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "LOCK_SECONDS", 0.1)
    with (tmp_path / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Disconnected, match="see who holds it"):
            FolderObjects(tmp_path).replace("manifest.json", b"1", None)


def test_deleting_leaves_no_empty_folders(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.put("films/data/g/country=PT/x", memoryview(b"x"))
    objects.delete(["films/data/g/country=PT/x", "films/data/g/gone"])
    assert list(tmp_path.iterdir()) == []


# --- the manifest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1}', b"null"])
def test_a_manifest_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(FatalError, match="not written by Vitrina"):
        Manifest.from_bytes(content)


def test_a_manifest_of_a_later_version_is_refused() -> None:
    with pytest.raises(FatalError, match="is of format 2"):
        Manifest.from_bytes(b'{"format": 2}')
