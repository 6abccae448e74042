"""Runners that are lost, catalogs and servers that fail, replies that never come, and runners that come back."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pyiceberg.table.update import AddSnapshotUpdate
from sqlalchemy.exc import OperationalError

from tests.lake.conftest import LOADS
from tests.lake.iceberg.conftest import settings_with, tables_on
from tests.lake.iceberg.tables import Tables
from tests.lake.iceberg.test_contract import open_table
from tests.lake.iceberg.test_runs import full, incremental
from tests.lake.s3_server import S3Server
from tests.lake.test_faults import FILM, S3Proxy, Spoilt
from tests.lake.test_runs import add_films, films, succeed
from tests.support.http_fault_proxy import HttpFaultProxy
from tests.support.workbench import Workbench
from vitrina.connectors.files.objects import Changed
from vitrina.connectors.iceberg import catalogs
from vitrina.connectors.iceberg.ledger import Change
from vitrina.connectors.iceberg.target import IcebergTarget
from vitrina.errors import LeaseLost

NEW = {i: f"new {i}" for i in range(1, 31)}
FULL = ["load.begun:crash:1", "batch.committed:crash:2", "batch.committed:crash:5", "publish.applied:crash:1"]
PASSES = ["pass.begun:crash:1", "batch.filled:crash:2", "merge.applied:crash:1", "batch.fenced:crash:1"]


@pytest.fixture
def tables(folder_tables: Tables) -> Tables:
    return folder_tables


@pytest.fixture
def bench(workbench: Workbench, tables: Tables) -> Workbench:
    return prepared(workbench, tables)


def prepared(bench: Workbench, tables: Tables) -> Workbench:
    bench.settings = settings_with(bench.settings, tables.url)
    bench.source(FILM)
    add_films(bench, 1, 30)
    return bench


def require_nothing_left(tables: Tables) -> None:
    assert tables.stored() == tables.named()


@pytest.mark.parametrize("at", FULL)
def test_a_full_load_survives_its_runner(bench: Workbench, tables: Tables, at: str) -> None:
    full(bench)
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'new ' || id")
    bench.request("films")
    bench.lose_a_runner(at)
    assert tables.titles() in (films(*range(1, 31)), NEW)
    bench.recover()
    bench.perform(bench.claim())
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert tables.entries().num_rows == 30
    assert tables.titles() == NEW
    require_nothing_left(tables)


@pytest.mark.parametrize("at", PASSES)
def test_a_pass_survives_its_runner(bench: Workbench, tables: Tables, at: str) -> None:
    incremental(bench)
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'new', changed = clock_timestamp() WHERE id <= 20")
    bench.sql("UPDATE content.film SET gone = true, changed = clock_timestamp() WHERE id > 25")
    bench.request("films")
    bench.lose_a_runner(at)
    bench.recover()
    bench.perform(bench.claim())
    assert bench.last_run("films")["status"] == "SUCCESS"
    assert tables.titles() == dict.fromkeys(range(1, 21), "new") | films(*range(21, 26))
    assert bench.reconcile("films", level="full")["equal"]
    require_nothing_left(tables)


def test_a_load_that_is_interrupted_after_each_batch_is_whole(bench: Workbench, tables: Tables) -> None:
    full(bench, options={"max_attempts": 20})
    done = bench.run_interrupted("films")
    assert done["status"] == "SUCCESS", done["error_message"]
    assert (tables.entries().num_rows, tables.titles()) == (30, films(*range(1, 31)))


# --- a reply that is lost --------------------------------------------------------------------------------------------


class Losing:
    """Ends the catalog's sessions in the server at its next new snapshot: after it was committed, or before."""

    def __init__(self, database: str, monkeypatch: pytest.MonkeyPatch, *, applied: bool) -> None:
        self.happened = 0
        commit = catalogs.OwnSqlCatalog.commit_table

        def losing(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
            if self.happened or not any(isinstance(one, AddSnapshotUpdate) for one in updates):
                return commit(catalog, table, requirements, updates)
            self.happened += 1
            if applied:
                commit(catalog, table, requirements, updates)
            with psycopg.connect(database, autocommit=True) as session:
                session.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'vitrina:iceberg'"
                )
            raise OperationalError("UPDATE iceberg_tables", {}, psycopg.OperationalError("the session was ended"))

        monkeypatch.setattr(catalogs.OwnSqlCatalog, "commit_table", losing)


@pytest.mark.parametrize("applied", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_commit_whose_reply_is_lost_is_made_once(
    bench: Workbench, tables: Tables, monkeypatch: pytest.MonkeyPatch, mode: str, applied: bool
) -> None:
    (full if mode == "full" else incremental)(bench)
    succeed(bench)
    before = len(tables.snapshots())
    bench.sql("UPDATE content.film SET title = 'new ' || id, changed = clock_timestamp()")
    losing = Losing(tables.database, monkeypatch, applied=applied)
    done = succeed(bench)
    assert (losing.happened, done["attempts"]) == (1, 1)
    assert tables.titles() == NEW
    assert len(tables.snapshots()) == before + 1, "it was committed once"
    assert tables.entries().num_rows == (30 if mode == "full" else 60)


# --- runners that come back ------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tables: Tables) -> Iterator[Callable[[int], IcebergTarget]]:
    """Open the table for a claim; it is closed with the test."""
    every: list[IcebergTarget] = []

    def open_for(epoch: int) -> IcebergTarget:
        target = open_table(tables.url, epoch)
        assert isinstance(target, IcebergTarget)
        every.append(target)
        return target

    yield open_for
    for target in every:
        target.close()


def test_a_commit_that_comes_late_changes_nothing(tables: Tables, opened: Callable[[int], IcebergTarget]) -> None:
    """A zombie's commit is ready to be sent; another claim only seizes, so that `main` is still what it was."""
    zombie, newer = opened(1), opened(2)
    zombie.seize()
    table = zombie._place.load()
    assert table
    late = Change(zombie._place, table)
    late.require_unchanged()
    late.append_nothing({"vitrina.of": "the zombie"})
    zombie._table_ledger._fence(late)
    newer.seize()
    assert tables.loaded().metadata.current_snapshot_id == table.metadata.current_snapshot_id
    with pytest.raises(Changed):
        late.commit()
    with pytest.raises(LeaseLost):
        zombie.ledger.change(lambda found: found)
    with pytest.raises(LeaseLost):
        zombie.seize()
    assert [one for one in tables.snapshots() if one.summary.get("vitrina.of")] == []


def test_of_two_first_claims_the_newer_one_stays(tables: Tables, opened: Callable[[int], IcebergTarget]) -> None:
    """Both found a table that no claim of the pipeline has written to; the older one is sent last."""
    older, newer = opened(1), opened(2)
    older._place.create()
    table = older._place.load()
    assert table
    late = Change(older._place, table)
    older._table_ledger._fence(late, {})
    newer.seize()
    with pytest.raises(Changed):
        late.commit()
    with pytest.raises(LeaseLost):
        older.seize()
    assert list(tables.loaded().metadata.refs) == ["main", newer._table_ledger.tag]


# --- readers ---------------------------------------------------------------------------------------------------------


def test_readers_see_one_load_or_the_next(bench: Workbench, tables: Tables) -> None:
    """Loads of several files, each with another title in every row, under a reader that polls as fast as it can."""
    query = "SELECT id, title, repeat('x', 160000) AS ballast FROM content.film"
    full(bench, query, options={"iceberg": {"file_mb": 1}})
    succeed(bench)
    ended, seen, mixed = threading.Event(), set[str](), list[set[str]]()

    def poll() -> None:
        while not ended.is_set():
            found = tables.loaded().scan(selected_fields=("id", "title")).to_arrow().to_pylist()
            titles = {row["title"] for row in found} if found[0]["title"][:4] != "Film" else {"first"}
            if len(found) != 30 or len(titles) != 1:
                mixed.append(titles)
            seen.update(titles)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        for number in range(LOADS):
            bench.sql(f"UPDATE content.film SET title = 'load {number}'")
            succeed(bench)
    finally:
        ended.set()
        polling.join()
    assert mixed == []
    assert len(seen) > 1
    require_nothing_left(tables)


# --- a warehouse that fails ------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[HttpFaultProxy]:
    with S3Proxy(s3.port) as proxy:
        yield proxy


@pytest.mark.parametrize("spoilt", ["PUT .parquet lost-reply", "PUT .avro broken", "PUT .metadata.json lost-reply"])
def test_a_server_that_fails_for_a_while(
    workbench: Workbench, catalog: str, s3: S3Server, proxy: HttpFaultProxy, spoilt: str
) -> None:
    tables = tables_on(catalog, s3, proxy.port)
    bench = prepared(workbench, tables)
    method, part, how = spoilt.split()
    full(bench)
    succeed(bench)
    bench.sql("UPDATE content.film SET title = 'new ' || id")
    proxy.fault = fault = Spoilt(method, part, how, times=2)
    succeed(bench)
    proxy.heal()
    assert fault.happened == 2
    assert (tables.entries().num_rows, tables.titles()) == (30, NEW)
