"""Every built-in type, odd values included, arrives in the mart exactly as it left the source, on every route."""

import pytest

from tests.support.workbench import Workbench

# Type -> values that are easily rounded, cut, wrapped around or reinterpreted on the way.
VALUES = {
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["1e-45", "3.4028235e38", "NaN", "-Infinity", "-0"],
    "double precision": ["5e-324", "1.7976931348623157e308", "NaN", "Infinity", "0.1", "-0"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1.0", "1.00", "9" * 10_000, "0." + "0" * 500 + "1"],
    "numeric(10,2)": ["12345678.90", "-0.01"],
    "boolean": ["t", "f"],
    "text": ["", "\\N", "\\.", "tab\tnew\nline", "Ёлка 🎄", "quote'\"", "{a,b}"],
    "character varying(5)": ["abcde", ""],
    "character(3)": ["a", "abc", ""],
    '"char"': ["a"],
    "name": ["content"],
    "bytea": ["\\x", "\\x00ff5c27"],
    "date": ["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31", "2024-02-29"],
    "time without time zone": ["24:00:00", "23:59:59.999999"],
    "time with time zone": ["23:59:59.999999+15:59", "00:00:00-15:59:59"],
    "timestamp without time zone": ["infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC"],
    "timestamp with time zone": [
        "infinity",
        "-infinity",
        "294276-12-31 23:59:59.999999+00",
        "1900-01-01 00:00:00.000001+00",
    ],
    "timestamp(3) with time zone": ["2024-01-01 00:00:00.123+00"],
    "interval": ["1 mon", "30 days", "-1 year 2 mons -3 days 04:05:06.000007", "178000000 years"],
    "interval day to second": ["3 days 04:05:06.000007"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"b":1, "a":  2, "b":3}', "null", '"\\ud83c\\udf84"'],
    "jsonb": ['{"a": 1.10, "b": [1, null]}', "12345678901234567890.123456789"],
    "jsonpath": ['$."a"[*]'],
    "money": ["-12.34"],
    "inet": ["::1/64", "10.0.0.1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(5)": ["10101"],
    "bit varying": ["", "101"],
    "point": ["(0.1,-0)", "(NaN,Infinity)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(2,2),(1,1)"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1)]"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),1>"],
    "tsvector": ["'a':1 'b':2A"],
    "tsquery": ["'a' & 'b'"],
    "int4range": ["empty", "[1,5)", "(,)"],
    "tstzrange": ['["2024-01-01 00:00:00+00",infinity)'],
    "int8multirange": ["{[1,3),[5,9)}", "{}"],
    "integer[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={1,2}"],
    "text[]": ["{}", '{"a,b","",NULL,"NULL","\\\\"}', "{{a,b},{c,d}}"],
    "numeric[]": ["{1.0,1.00,NaN}"],
    "timestamp with time zone[]": ["{infinity,2024-01-01 00:00:00+00}"],
    "uuid[]": ["{00000000-0000-0000-0000-000000000000}"],
    "jsonb[]": ['{"{\\"a\\": 1}"}'],
    "oid": ["4294967295"],
    "xid8": ["18446744073709551615"],
    "pg_lsn": ["FFFFFFFF/FFFFFFFF"],
    "content.mood": ["sad", "very happy"],
    "content.positive": ["7"],  # a query gives the base type of a domain, so that is what the mart holds
    "content.pair": ['(1,"a,b")', "(,)"],
    "content.mood[]": ['{sad,"very happy"}'],
}

SCHEMA = """
CREATE TYPE content.mood AS ENUM ('sad', 'very happy');
CREATE DOMAIN content.positive AS integer CHECK (VALUE > 0);
CREATE TYPE content.pair AS (n integer, t text);
GRANT USAGE ON SCHEMA content TO vitrina_app;
"""

TYPES = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attnum > 0 AND attrelid = 'analytics.everything'::regclass
"""


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
def test_every_type_arrives_as_it_left(workbench: Workbench, route: str) -> None:
    columns = {f"c{number}": kind for number, kind in enumerate(VALUES)}
    rows = max(len(values) for values in VALUES.values()) + 1
    workbench.sql(SCHEMA)
    definitions = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    workbench.source(f"CREATE TABLE content.everything (id int PRIMARY KEY, {definitions})")
    for row in range(rows):
        given = [values[row] if row < len(values) else None for values in VALUES.values()]
        workbench.admin.execute(
            f"INSERT INTO content.everything VALUES (%s, {', '.join(['%s'] * len(given))})",
            [row, *given],
        )
    workbench.pipeline("everything", "SELECT * FROM content.everything", target_key=["id"], options={"route": route})

    run = workbench.run("everything")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    different = [
        f"{kind}: {found['source']} became {found['target']}"
        for name, kind in columns.items()
        for found in workbench.sql(
            f"""
            SELECT s.{name}::text AS source, t.{name}::text AS target
            FROM content.everything s FULL JOIN analytics.everything t USING (id)
            WHERE ROW(s.{name}::{base(kind)})::record OPERATOR(pg_catalog.*<>) ROW(t.{name})::record
            """
        )
    ]
    assert different == []
    assert workbench.run("everything")["metrics"]["unchanged"] == rows
    kept = {row["attname"]: row["format_type"] for row in workbench.sql(TYPES)}
    assert kept == {"id": "integer"} | {name: base(kind) for name, kind in columns.items()}


def base(kind: str) -> str:
    return {"content.positive": "integer"}.get(kind, kind)


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
def test_names_that_need_quotes(workbench: Workbench, route: str) -> None:
    workbench.source(
        """
        CREATE TABLE content.odd ("select" int PRIMARY KEY, "Ёлка ""quoted"" {x} %s" text, "a.b" text);
        INSERT INTO content.odd VALUES (1, 'x', 'y'), (2, NULL, '');
        """
    )
    workbench.pipeline("odd", "SELECT * FROM content.odd", target_key=["select"], options={"route": route})

    run = workbench.run("odd")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert workbench.differences("SELECT * FROM content.odd", "analytics.odd") == 0


@pytest.mark.parametrize("route", ["auto", "copy", "arrow"])
def test_a_thousand_columns_and_large_values(workbench: Workbench, route: str) -> None:
    many = ", ".join(f"c{n} int" for n in range(1000))
    workbench.source(f"CREATE TABLE content.wide (id int PRIMARY KEY, {many}, big text)")
    workbench.sql(
        "INSERT INTO content.wide (id, c5, big) SELECT i, i, repeat(md5(i::text), 100000) FROM generate_series(1, 5) i"
    )
    workbench.pipeline("wide", "SELECT * FROM content.wide", target_key=["id"], options={"route": route})

    run = workbench.run("wide")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    assert workbench.differences("SELECT * FROM content.wide", "analytics.wide") == 0
