"""Files as a source: the contract, formats, types, and what is said when files cannot be read."""

import contextlib
import gzip
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake.conftest import Lake
from vitrina.connectors.files import urls
from vitrina.connectors.files.reading import engine, worker
from vitrina.connectors.files.reading.engine import Engine
from vitrina.connectors.files.reading.process import Limits, Private, Reader
from vitrina.connectors.files.reading.source import Asked, FilesSource
from vitrina.errors import SourceQueryFailed, TransientError, VitrinaError
from vitrina.ports.source import Window
from vitrina.testing import SourceContract
from vitrina.transforms import wire
from vitrina.transforms.wire import Message

QUERY = "SELECT id, title FROM 'films/*.csv'"
LIMITS = Limits(timeout_seconds=120, memory_mb=1024, threads=2, spill_mb=1000)


class InProcess(Reader):
    """Answers here what a process of its own would: that takes a second each time."""

    def __init__(self, query: str, folder: Path, private: Private, limits: Limits) -> None:
        about = engine.Limits(limits.memory_mb, limits.threads, limits.spill_mb, str(private.spill))
        self._engine = Engine(query, about)
        self._folder = folder

    def ask(self, op: str, **fields: Any) -> Message:
        [answer] = self._answers({"op": op, **fields})
        return answer

    def read(self, fields: Mapping[str, Any]) -> Iterator[pa.Table]:
        for answer in self._answers({"op": "read", **fields}):
            if not answer.fields:
                yield wire.unpacked(_joined(answer))

    def _answers(self, asked: dict[str, Any]) -> Iterator[Message]:
        with contextlib.chdir(self._folder):
            answers = list(worker.answers(self._engine, json.loads(json.dumps(asked))))
        for answer in answers:
            if "error" in answer.fields:
                wire.raise_error(answer.fields["error"])
            yield Message(json.loads(json.dumps(answer.fields)), answer.payload)

    @property
    def is_over(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: there is no process."""


def _joined(answer: Message) -> pa.Buffer:
    [packed] = answer.payload
    assert isinstance(packed, wire.Packed)
    return pa.py_buffer(b"".join(memoryview(piece) for piece in packed.take_pieces()))


class Opened:
    """Opens sources of one place, and ends them."""

    def __init__(self, lake: Lake, start: type[Reader] = InProcess) -> None:
        self.lake = lake
        self._start = start
        self._sources: list[FilesSource] = []

    def __call__(self, query: str = QUERY, **fields: Any) -> FilesSource:
        self._sources.append(FilesSource(urls.parse(self.lake.url), Asked(query, LIMITS, **fields), self._start))
        return self._sources[-1]

    def rows(self, query: str = QUERY, **fields: Any) -> list[dict[str, Any]]:
        source = self(query, **fields)
        return [row for batch in source.read(Window(), "natural") for row in batch.take().to_pylist()]

    def write(self, name: str, text: str | bytes) -> Path:
        self.lake.put(name, text)
        return self.lake.folder / name

    def close(self) -> None:
        for source in self._sources:
            source.close()


@pytest.fixture
def opened(lake: Lake) -> Iterator[Opened]:
    opened = Opened(lake)
    yield opened
    opened.close()


@pytest.fixture
def apart(lake: Lake) -> Iterator[Opened]:
    """Sources with a process of their own."""
    opened = Opened(lake, Reader)
    yield opened
    opened.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(Lake(f"file://{tmp_path}", tmp_path))
    yield opened
    opened.close()


def csv(*numbers: int) -> str:
    return "id,title\n" + "".join(f"{number},Film {number}\n" for number in numbers)


def film(number: int) -> dict[str, Any]:
    return {"id": number, "title": f"Film {number}"}


class Films(SourceContract):
    """Three files, in a folder and in a bucket, read row by row."""

    by_file = False
    opened: Opened

    @pytest.fixture(autouse=True)
    def _files(self, opened: Opened) -> None:
        self.fill(opened)

    def fill(self, opened: Opened) -> None:
        self.opened = opened
        opened.write("films/a.csv", csv(1, 2, 3))
        opened.write("films/b.csv", csv(4))
        opened.write("films/c.csv", csv(5, 6, 7))
        opened.write("films/.d.csv", csv(8))

    def open_source(self) -> FilesSource:
        return self.opened(QUERY, by_file=self.by_file)

    def expected(self) -> list[dict[str, Any]]:
        return [film(number) for number in range(1, 8)]


class TestSource(Films):
    """Read in a process, as a runner does."""

    @pytest.fixture(autouse=True)
    def _files(self, apart: Opened) -> None:
        self.fill(apart)


class TestPasses(Films):
    """The same, and only what is new."""

    by_file = True

    def add_row(self) -> dict[str, Any]:
        self.opened.write("films/bb.csv", csv(9))
        return film(9)


# --- formats and types -----------------------------------------------------------------------------------------------


def test_formats_are_known_by_their_names(opened: Opened) -> None:
    opened.write("a.csv", "id,title\n1,Film 1\n")
    opened.write("a.tsv", "id\ttitle\n1\tFilm 1\n")
    opened.write("a.csv.gz", gzip.compress(b"id,title\n1,Film 1\n"))
    opened.write("a.jsonl", '{"id": 1, "title": "Film 1"}\n')
    opened.write("a.ndjson", '{"id": 1, "title": "Film 1"}\n')
    opened.write("a.json", '[{"id": 1, "title": "Film 1"}]')
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1], "title": ["Film 1"]}), sink)
    opened.write("a.parquet", sink.getvalue().to_pybytes())
    names = ["a.csv", "a.tsv", "a.csv.gz", "a.jsonl", "a.ndjson", "a.json", "a.parquet"]
    together = " UNION ALL ".join(f"SELECT id, title, {place} AS place FROM '{n}'" for place, n in enumerate(names))
    assert sorted(row["place"] for row in opened.rows(together)) == list(range(7))


def test_parameters_of_readers_are_the_authors(local: Opened) -> None:
    local.write("a.txt", "1;eins\n2;zwei\n")
    query = "SELECT * FROM read_csv('*.txt', delim = ';', header = false, columns = {'n': 'INT', 'w': 'VARCHAR'})"
    assert local.rows(query) == [{"n": 1, "w": "eins"}, {"n": 2, "w": "zwei"}]
    assert local.rows(
        "SELECT n AS x FROM read_csv('a.txt', delim := ';', names := ['n', 'w']) t WHERE t.w = 'zwei'"
    ) == [{"x": 2}]


def test_folders_as_hive_names_them_are_columns(local: Opened) -> None:
    local.write("sales/country=PT/a.csv", "id\n1\n")
    local.write("sales/country=DE/a.csv", "id\n2\n")
    query = "SELECT id, country, filename FROM read_csv('sales/**/*.csv', hive_partitioning = true)"
    assert local.rows(query) == [
        {"id": 2, "country": "DE", "filename": "sales/country=DE/a.csv"},
        {"id": 1, "country": "PT", "filename": "sales/country=PT/a.csv"},
    ]


def test_types_arrive_as_they_are(local: Opened) -> None:
    local.write("one.csv", "n\n1\n")
    query = """
        SELECT 1::TINYINT AS small, 18446744073709551615::UBIGINT AS large, sum(n) AS total,
               1.50::DECIMAL(10,2) AS amount,
               'ä' AS name, '\\xAA'::BLOB AS raw, '6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111'::UUID AS ident,
               DATE '2024-02-29' AS day, TIMESTAMP '2024-02-29 12:00:00.123456' AS local,
               TIMESTAMPTZ '2024-02-29 12:00:00+03' AS moment, 'a'::ENUM('a', 'b') AS letter, ['a', NULL] AS tags,
               {'a': [1, 2]} AS doc, '{"b": 1.10}'::JSON AS text, MAP {'k': 1} AS pairs, [1::HUGEINT] AS totals,
               max(n) = 1 AS yes, NULL::BOOLEAN AS maybe, [true, NULL, false] AS answers
        FROM 'one.csv'
    """
    source = local(query)
    described = source.describe(Window())
    [row] = [row for batch in source.read(Window(), "natural") for row in batch.take().to_pylist()]
    assert row == {
        "small": 1,
        "large": Decimal(18446744073709551615),
        "total": Decimal(1),
        "amount": Decimal("1.50"),
        "name": "ä",
        "raw": b"\xaa",
        "ident": UUID("6f1c6a0e-8a6b-4a39-9a55-0f2a39d1c111"),
        "day": date(2024, 2, 29),
        "local": datetime(2024, 2, 29, 12, 0, 0, 123456),  # noqa: DTZ001 - it has no zone
        "moment": datetime(2024, 2, 29, 9, tzinfo=UTC),
        "letter": "a",
        "tags": ["a", None],
        "doc": '{"a":[1,2]}',
        "text": '{"b": 1.10}',
        "pairs": '{"k":1}',
        "totals": [Decimal(1)],
        "yes": True,
        "maybe": None,
        "answers": [True, None, False],
    }
    assert {str(described.schema.field(name).type) for name in ("yes", "maybe")} == {"bool"}  # type: ignore[union-attr]
    assert described.schema is not None
    assert {name: described.schema.field(name).metadata for name in ("doc", "text", "pairs")} == {
        name: {b"vitrina:type": b"jsonb"} for name in ("doc", "text", "pairs")
    }


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("INTERVAL 1 DAY", "column 'x' is of type INTERVAL"),
        ("TIMETZ '10:00:00+02'", "column 'x' is of type TIME WITH TIME ZONE"),
        ("NULL", "column 'x' is of type \"NULL\""),
        ("'101'::BIT", "column 'x' is of type BIT"),
        ("DATE 'infinity'", "column 'x' has the value infinity"),
        ("TIMESTAMPTZ '-infinity'", "column 'x' has the value infinity"),
        ("TIME '24:00:00'", "column 'x' has the time 24:00:00"),
        ("170141183460469231731687303715884105727::HUGEINT", "170141183460469231731687303715884105727"),
        ("1 AS x, 2", "two columns 'x'"),
    ],
)
def test_what_no_target_can_hold_is_refused_by_name(local: Opened, column: str, said: str) -> None:
    local.write("one.csv", "n\n1\n")
    with pytest.raises(SourceQueryFailed, match=said):
        local.rows(f"SELECT {column} AS x FROM 'one.csv'")


# --- files that differ, or are no files ------------------------------------------------------------------------------


def test_texts_of_all_files_are_read_as_the_first_ones_are(local: Opened) -> None:
    local.write("a.csv", "id,amount,code\n1,1.5,x7\n")
    local.write("b.csv", "id,amount,code\n2,2,007\n")
    found = [{"id": 1, "amount": 1.5, "code": "x7"}, {"id": 2, "amount": 2.0, "code": "007"}]
    assert local.rows("SELECT * FROM '*.csv'") == found
    local.write("c.csv", "id,amount,code\n4,4.5,x\n")
    local.write("d.csv", "id,amount,code\n3,x,007\n")
    with pytest.raises(SourceQueryFailed, match=r"d\.csv: .*(?s:.*)Could not convert string \"x\" to 'DOUBLE'"):
        local.rows("SELECT * FROM '*.csv'")


@pytest.mark.parametrize("query", ["SELECT * FROM '*.parquet'", "SELECT * FROM '*.parquet' ORDER BY id"])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"id": [2]}, r"b.parquet lacks the column 'title'"),
        ({"id": [2], "title": ["x"], "more": [1]}, r"b.parquet has the column 'more'"),
    ],
)
def test_columns_that_differ_are_named_with_the_file(
    local: Opened, query: str, other: dict[str, Any], said: str
) -> None:
    pq.write_table(pa.table({"id": [1], "title": ["Alien"]}), local.lake.folder / "a.parquet")
    pq.write_table(pa.table(other), local.lake.folder / "b.parquet")
    with pytest.raises(SourceQueryFailed, match=said):
        local.rows(query)


def test_types_that_differ_are_named_or_widened(local: Opened) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), local.lake.folder / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([2], pa.int16())}), local.lake.folder / "b.parquet")
    assert local.rows("SELECT * FROM '*.parquet'") == [{"id": 1}, {"id": 2}]
    pq.write_table(pa.table({"id": ["3"]}), local.lake.folder / "c.parquet")
    with pytest.raises(SourceQueryFailed, match=r"c\.parquet has 'id' as VARCHAR, the files before it as BIGINT"):
        local.rows("SELECT * FROM '*.parquet'")
    assert local.rows("SELECT CAST(id AS VARCHAR) AS id FROM '*.parquet'")[2] == {"id": "3"}


def test_columns_may_be_put_together_by_name(local: Opened) -> None:
    pq.write_table(pa.table({"id": [1], "title": ["Alien"]}), local.lake.folder / "a.parquet")
    pq.write_table(pa.table({"id": [2]}), local.lake.folder / "b.parquet")
    rows = local.rows("SELECT * FROM read_parquet('*.parquet', union_by_name = true) ORDER BY id")
    assert rows == [{"id": 1, "title": "Alien"}, {"id": 2, "title": None}]


@pytest.mark.parametrize(
    ("name", "content"),
    [("b.parquet", b"PAR1 and nothing more"), ("b.parquet", b""), ("b.jsonl", b'{"id": 1'), ("b.csv.gz", b"no gzip")],
)
def test_a_file_that_cannot_be_read_is_named(opened: Opened, name: str, content: bytes) -> None:
    opened.write(name, content)
    with pytest.raises(SourceQueryFailed, match=name.replace(".", r"\.")) as caught:
        opened.rows(f"SELECT * FROM '{name}'")
    assert "vitrina-files-" not in caught.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_rights_is_named(local: Opened) -> None:
    local.write("a.csv", csv(1)).chmod(0)
    with pytest.raises(VitrinaError, match=r"a\.csv"):
        local.rows("SELECT * FROM 'a.csv'")


def test_a_name_that_reads_as_a_pattern_is_refused(local: Opened) -> None:
    local.write("a[1].csv", csv(1))
    with pytest.raises(SourceQueryFailed, match=r"'a\[1\]\.csv' has one of"):
        local.rows("SELECT * FROM '*.csv'")


def test_no_file_is_an_error_unless_there_may_be_none(opened: Opened) -> None:
    with pytest.raises(SourceQueryFailed, match=r"no file of the connection matches 'films/\*\.csv'"):
        opened().describe(Window())
    source = opened(allow_none=True)
    assert source.describe(Window()).schema is None
    assert list(source.read(Window(), "natural")) == []
    assert source.sample(5, 1 << 20, 1 << 20).num_rows == 0


def test_a_file_that_is_changed_meanwhile_is_not_taken_for_the_one_that_was_listed(opened: Opened) -> None:
    opened.write("films/a.csv", csv(1, 2))
    opened.write("films/b.csv", csv(3))
    source = opened()
    source.describe(Window())
    reading = source.read(Window(), "natural")
    next(reading)
    opened.write("films/b.csv", csv(4, 5))
    with pytest.raises(TransientError, match=r"films/b\.csv was changed or removed"):
        list(reading)


def test_files_that_are_read_together_must_stay_as_they_are(local: Opened) -> None:
    local.write("films/a.csv", csv(1, 2))
    local.write("films/b.csv", csv(3))
    reading = local(f"{QUERY} ORDER BY id DESC").read(Window(batch_rows=lambda: 1), "natural")
    assert next(reading).take().to_pylist() == [film(3)]
    local.write("films/a.csv", csv(1, 2, 4))
    with pytest.raises(TransientError, match=r"films/a\.csv was changed or removed"):
        list(reading)


def test_columns_are_compared_as_the_query_reads_them(local: Opened) -> None:
    local.write("a.csv", "id;title\n1;Alien\n")
    local.write("b.csv", "id;name\n2;Brazil\n")
    with pytest.raises(SourceQueryFailed, match=r"b\.csv lacks the column 'title'"):
        local.rows("SELECT * FROM read_csv('*.csv', delim = ';') ORDER BY 1")


def test_what_is_joined_must_be_there(local: Opened) -> None:
    local.write("films/a.csv", csv(1))
    joined = "SELECT f.id FROM 'films/*.csv' f JOIN 'names/*.csv' n USING (id)"
    for fields in ({}, {"by_file": True, "follow": "films/*.csv"}):
        with pytest.raises(SourceQueryFailed, match="no file of the connection matches 'names/"):
            local.rows(joined, allow_none=True, **fields)
    assert local.rows(joined, allow_none=True, by_file=True, follow="names/*.csv") == []


# --- rows that come of several ---------------------------------------------------------------------------------------


def test_a_load_is_continued_only_where_rows_come_in_a_known_order(local: Opened) -> None:
    local.write("films/a.csv", csv(1, 2))
    local.write("films/b.csv", csv(3))

    def positions(query: str, **fields: Any) -> list[Any]:
        return [batch.last for batch in local(query, **fields).read(Window(batch_rows=lambda: 1), "natural")]

    exact = [("films/a.csv", "1"), ("films/a.csv", "2"), ("films/b.csv", "1")]
    assert positions(QUERY) == exact
    assert positions("SELECT upper(title) AS t FROM (SELECT * FROM 'films/*.csv' WHERE id > 0)") == exact
    for query in (
        f"{QUERY} ORDER BY id",
        "SELECT DISTINCT id FROM 'films/*.csv'",
        "SELECT id, row_number() OVER () AS n FROM 'films/*.csv'",
        "SELECT a.id FROM 'films/*.csv' a JOIN 'films/*.csv' b USING (id)",
        "SELECT id, count(*) AS n FROM 'films/*.csv' GROUP BY id",
        "WITH t AS (FROM 'films/*.csv') SELECT id FROM t",
        f"{QUERY} LIMIT 3",
        "SELECT id, random() AS r FROM 'films/*.csv'",
        "SELECT id, current_date AS d FROM 'films/*.csv'",
    ):
        assert positions(query) == [None, None, None], query
    # What is merged may come twice: a file is read again from its beginning.
    restarts = [("films/a.csv", "0"), ("films/a.csv", "0"), ("films/b.csv", "0")]
    assert positions("SELECT id, now() AS read_at FROM 'films/*.csv'", by_file=True) == restarts


def test_a_pass_asks_for_one_file_at_a_time(local: Opened) -> None:
    local.write("films/a.csv", csv(1, 2))
    local.write("films/b.csv", csv(3))
    local.write("names.csv", "id,name\n1,One\n3,Three\n")
    joined = "SELECT f.id, n.name FROM 'films/*.csv' f LEFT JOIN 'names.csv' n USING (id) ORDER BY id"
    with pytest.raises(SourceQueryFailed, match=r"options\.files\.follow"):
        local.rows(joined, by_file=True)
    with pytest.raises(SourceQueryFailed, match=r"follow is 'x\.csv'"):
        local.rows(joined, by_file=True, follow="x.csv")
    source = local(joined, by_file=True, follow="films/*.csv")
    read = source.mark(None).mark
    rows = [row for batch in source.read(Window(until=read), "natural") for row in batch.take().to_pylist()]
    assert [(row["id"], row["name"]) for row in rows] == [(1, "One"), (2, None), (3, "Three")]

    def since(mark: Any) -> list[int]:
        again = local(joined, by_file=True, follow="films/*.csv")
        upto = again.mark(mark).mark
        return [
            row["id"]
            for batch in again.read(Window(since=mark, until=upto), "natural")
            for row in batch.take().to_pylist()
        ]

    assert since(read) == []
    local.write("films/b.csv", csv(3, 4))
    assert since(read) == [3, 4]
    local.write("names.csv", "id,name\n1,Eins\n")
    assert since(read) == [1, 2, 3, 4]
    assert [row["n"] for row in local.rows("SELECT count(*) AS n FROM 'films/*.csv'", by_file=True)] == [2, 2]
    assert local.rows("SELECT count(*) AS n FROM 'films/*.csv'") == [{"n": 4}]


def test_documents_with_other_keys_are_read_as_the_first_ones(local: Opened) -> None:
    lines = [{"id": 1, "title": "Alien"}, {"id": 2, "title": None, "more": 3}]
    local.write("a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    local.write("b.jsonl", '{"id": 3}\n')
    assert local.rows("SELECT id, title, more FROM '*.jsonl'") == [
        {"id": 1, "title": "Alien", "more": None},
        {"id": 2, "title": None, "more": 3},
        {"id": 3, "title": None, "more": None},
    ]
