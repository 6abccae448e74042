"""Loads in ranges by real workers, for keys of many types: what is in the mart is what is in the source."""

from typing import Any

import pytest

from tests.support.workbench import Workbench

ROWS = 1_200
CUT = {"parallel": 2, "checkpoint_rows": 100, "route": "copy"}
NUMBER = "i"
# Type and value of the key's columns, for the number `i` of a row.
KEYS: dict[str, list[tuple[str, str]]] = {
    "smallint": [("smallint", "i - 600")],
    "numeric with equal values of several scales": [
        ("numeric", "CASE WHEN i % 2 = 0 THEN i::numeric(9, 2) ELSE i END")
    ],
    "float with infinities": [
        ("double precision", "CASE i WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' ELSE 1 / (i::float8 - 600.3) END"),
    ],
    "text of the database's collation": [("text", "chr(65 + (i % 50)) || '-' || i")],
    "text, byte by byte": [('text COLLATE "C"', "CASE WHEN i % 2 = 0 THEN 'Ä' ELSE 'z' END || i")],
    "text with everything COPY escapes": [("text", r"E'\\t\n\\\\ ''\" \r' || i")],
    "fixed width": [("char(12)", "'f ' || i")],
    "uuid": [("uuid", "md5(i::text)::uuid")],
    "bytes": [("bytea", r"decode(md5(i::text), 'hex') || '\x005c'::bytea")],
    "days before Christ": [("date", "'0003-06-01 BC'::date + i")],
    "moments": [("timestamptz", "'2026-03-29 00:00+00'::timestamptz + i * interval '61 seconds 7 microseconds'")],
    "spans": [("interval", "i * interval '1 month 2 days 3.5 seconds'")],
    "an enum and a number": [("content.genre", "(enum_range(NULL::content.genre))[1 + i % 3]"), ("int", "i")],
    "a domain": [("content.code", "'c' || i")],
    "one tenant has nearly everything": [
        ("text", "CASE WHEN i % 100 = 0 THEN 't' || i ELSE 'a' END"),
        ("bigint", "-i"),
    ],
    "three columns": [("boolean", "i % 2 = 0"), ("date", "'2026-01-01'::date + i % 7"), ("uuid", "md5(i::text)::uuid")],
}
# Equal values of these types may be written differently, so reconcile refuses them as keys.
KEYS_OF_MANY_FORMS: dict[str, list[tuple[str, str]]] = {
    "arrays of numbers": [("int[]", "ARRAY[i % 10, i]")],
    "arrays of texts": [("text[]", r"""ARRAY['a"b,' || i % 7, NULL, E'{\\' || i]""")],
    "ranges of numbers": [("int4range", "int4range(i, i + 3)")],
    "documents": [("jsonb", "jsonb_build_object('of', i % 5, 'id', i)")],
    "bits": [("bit varying", "i::bit(16)::bit varying")],
}


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    workbench.sql("CREATE TYPE content.genre AS ENUM ('noir', 'drama', 'arthouse')")
    # The mart has a column of this type.
    workbench.sql("GRANT USAGE ON SCHEMA content TO vitrina_app")
    workbench.sql("CREATE DOMAIN content.code AS text CHECK (VALUE LIKE 'c%')")
    return workbench


def make_table(bench: Workbench, key: list[tuple[str, str]]) -> list[str]:
    names = [f"k{place}" for place in range(len(key))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in zip(names, key, strict=True))
    values = ", ".join(f"({value})::{kind.partition(' COLLATE')[0]}" for kind, value in key)
    bench.source(
        f"""
        CREATE TABLE content.things ({columns}, number int, PRIMARY KEY ({", ".join(names)}));
        INSERT INTO content.things SELECT {values}, i FROM generate_series(1, {ROWS}) AS i;
        """
    )
    return names


def difference(bench: Workbench, names: list[str]) -> list[dict[str, Any]]:
    columns = ", ".join([*names, "number"])
    source, mart = (f"SELECT {columns} FROM {table}" for table in ("content.things", "analytics.things"))
    return bench.sql(f"({source} EXCEPT ALL {mart}) UNION ALL ({mart} EXCEPT ALL {source})")


@pytest.mark.parametrize("kind", KEYS | KEYS_OF_MANY_FORMS)
@pytest.mark.parametrize("analysed", [False, True], ids=["sample", "histogram"])
def test_workers_bring_keys_of_every_type(bench: Workbench, kind: str, analysed: bool) -> None:
    # Values are written otherwise than usual; bounds are texts.
    for setting in ("datestyle TO 'SQL, DMY'", "intervalstyle TO 'sql_standard'", "timezone TO 'Asia/Kathmandu'"):
        bench.admin.execute(f"ALTER DATABASE {bench.admin.info.dbname} SET {setting}")
    names = make_table(bench, (KEYS | KEYS_OF_MANY_FORMS)[kind])
    if analysed:
        bench.sql("ANALYZE content.things")
    bench.pipeline(
        "things", f"SELECT {', '.join([*names, 'number'])} FROM content.things", target_key=names, options=CUT
    )

    run = bench.run("things")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert run["metrics"]["paging"] == "key ranges"
    assert run["metrics"]["ranges"]["done"] >= 8
    assert run["rows_read"] == ROWS
    assert difference(bench, names) == []
