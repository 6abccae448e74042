"""Every type of Postgres through steps of every form: what no step touches arrives as it left, or is refused."""

from typing import Any

import pyarrow as pa
import pytest

from tests.support.workbench import Workbench
from vitrina.transforms import transform


@transform("types_arrow")
def arrow_identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Nothing."""
    return batch


@transform("types_rows", rows=True)
def rows_identity(row: dict[str, Any]) -> dict[str, Any]:
    """Nothing."""
    return row


FORMS = pytest.mark.parametrize("form", ["arrow", "rows"])

# Type to literals; each table also has a row of NULLs.
VALUES = {
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "0"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["1.1", "NaN", "-Infinity", "3.4e38"],
    "double precision": ["0.1", "NaN", "Infinity", "5e-324"],
    "numeric": ["1.500", "NaN", "Infinity", "0.00000000000000000001", "123456789012345678901234567890.5"],
    "numeric(3,1)": ["0.0", "-99.9", "7.0"],
    "numeric(60,10)": ["12345678901234567890123456789012345678901234567890.0000000001"],
    "numeric(5,-2)": ["1200"],
    "boolean": ["t", "f"],
    "text": ["", "Ünïcödé 🎬", "a\tb\n", "NULL", "{}"],
    "character varying(10)": ["short", "ten chars!", "trail  "],
    "character(4)": ["ab", "abcd"],
    "bytea": ["\\x00ff", "\\x"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29"],
    "timestamp without time zone": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-02-29 12:00:00.000001"],
    "timestamp with time zone": ["1900-01-01 00:00:00+00", "2024-02-29 12:00:00.123456+03"],
    "timestamp(3) with time zone": ["2024-02-29 12:00:00.123+00"],
    "time without time zone": ["00:00", "23:59:59.999999"],
    "time with time zone": ["10:00+03", "24:00+00"],
    "interval": ["1 mon", "30 days", "-1 day 00:00:00.000001", "178000000 years"],
    "json": ['{"b":1, "a": [1.10, null, "x"]}', '"text"', "null"],
    "jsonb": ['{"b": 1.10, "a": [1, null, {"c": 1e100}]}', "null", "12345678901234567890.10"],
    "inet": ["10.0.0.1", "::1/64"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "bit(3)": ["101"],
    "bit varying": ["10101"],
    "money": ["1234.56"],
    "point": ["(1,2)"],
    "int4range": ["[1,5)", "empty"],
    "tstzrange": ["[2024-01-01 00:00:00+00,)"],
    "text[]": ["{}", '{a,NULL,"NULL","x,y",""}'],
    "character varying(5)[]": ["{abc,abcde}"],
    "integer[]": ["{1,NULL,-2147483648}", "{}"],
    "bigint[]": ["{1}"],
    "double precision[]": ["{0.1,NaN}"],
    "boolean[]": ["{t,f,NULL}"],
    "numeric[]": ["{1.50,NaN}"],
    "numeric(4,2)[]": ["{1.50}"],
    "uuid[]": ["{00000000-0000-0000-0000-000000000001,NULL}"],
    "date[]": ["{2024-02-29}"],
    "timestamp with time zone[]": ['{"2024-02-29 12:00:00.123456+00"}'],
    "time without time zone[]": ["{24:00}"],
    "jsonb[]": ['{"{\\"a\\": 1}"}'],
    "inet[]": ["{10.0.0.1}"],
    "bytea[]": ['{"\\\\x00ff"}'],
    "content.mood": ["sad", "ok"],
    "content.mood[]": ["{sad,ok}"],
}


@FORMS
def test_every_type_arrives_as_it_left(workbench: Workbench, form: str) -> None:
    pass_all_types(workbench, form)


def pass_all_types(workbench: Workbench, form: str) -> None:
    """All types at once, one column each, one row a value: one pipeline per form is enough."""
    kinds = list(VALUES)
    rows = max(map(len, VALUES.values()))
    workbench.sql("CREATE TYPE content.mood AS ENUM ('sad', 'ok')")
    workbench.sql("GRANT USAGE ON SCHEMA content TO vitrina_app")
    workbench.source(
        "CREATE TABLE content.types (id int PRIMARY KEY, "
        + ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
        + ")"
    )
    for row in range(rows + 1):
        given = [VALUES[kind][row] if row < len(VALUES[kind]) else None for kind in kinds]
        texts = ["NULL" if value is None else "'" + value.replace("'", "''") + "'" for value in given]
        workbench.sql(f"INSERT INTO content.types VALUES ({row}, {', '.join(texts)})")
    query = "SELECT * FROM content.types"
    workbench.pipeline("types", query, type="PYTHON", python_task=f"types_{form}", target_key=["id"])

    run = workbench.run("types")

    assert (run["status"], run["error_message"]) == ("SUCCESS", None)
    found = workbench.sql(
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
        " WHERE attrelid = 'analytics.types'::regclass AND attnum > 1 ORDER BY attnum"
    )
    assert [row["type"] for row in found] == kinds
    wrong = [
        (kind, row)
        for number, kind in enumerate(kinds)
        for row in workbench.sql(
            f"SELECT s.c{number}::text AS source, t.c{number}::text AS target"
            f" FROM content.types s JOIN analytics.types t USING (id)"
            f" WHERE s.c{number}::text IS DISTINCT FROM t.c{number}::text"
        )
    ]
    assert wrong == (
        [] if form != "rows" else [("json", {"source": '{"b":1, "a": [1.10, null, "x"]}', "target": REWRITTEN})]
    )
    assert workbench.run("types")["metrics"]["updated"] == 0


# A row step is given json parsed: its content comes back, its spacing does not.
REWRITTEN = '{"b": 1, "a": [1.10, null, "x"]}'


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("timestamptz", "infinity", "infinity"),
        ("timestamp", "-infinity", "infinity"),
        ("date", "infinity", "infinity"),
        ("timestamptz[]", "{infinity}", "infinity"),
        ("timestamptz", "294276-12-31 23:59:59+00", "infinity"),
        ("time", "24:00", "24:00"),
        ("int[]", "{{1,2},{3,4}}", "more than one dimension"),
        ("text[]", "{{a},{b}}", "more than one dimension"),
        ("inet[]", "{{10.0.0.1}}", "more than one dimension"),
        ("numeric(3,1)", "NaN", "NaN"),
        ("int[]", "[2:3]={1,2}", "does not begin at 1"),
    ],
)
def test_what_arrow_cannot_hold_is_refused_by_name(workbench: Workbench, kind: str, value: str, words: str) -> None:
    workbench.source(
        f"CREATE TABLE content.odd (id int PRIMARY KEY, x {kind}); INSERT INTO content.odd VALUES (1, '{value}')"
    )
    workbench.pipeline(
        "odd", "SELECT id, x FROM content.odd", type="PYTHON", python_task="types_arrow", target_key=["id"]
    )
    run = workbench.run("odd")
    assert run["status"] == "FAILED"
    assert words in run["error_message"]
    assert "x" in run["error_message"]


def test_refused_values_can_travel_as_text(workbench: Workbench) -> None:
    workbench.source(
        "CREATE TABLE content.odd (id int PRIMARY KEY, a timestamptz, b int[]);"
        "INSERT INTO content.odd VALUES (1, 'infinity', '{{1,2},{3,4}}')"
    )
    workbench.sql(
        "CREATE TABLE analytics.odd (id int PRIMARY KEY, a timestamptz, b int[]);"
        "ALTER TABLE analytics.odd OWNER TO vitrina_app"
    )
    query = "SELECT id, a::text AS a, b::text AS b FROM content.odd"
    workbench.pipeline("odd", query, type="PYTHON", python_task="types_arrow")
    assert workbench.run("odd")["error_message"] is None
    assert workbench.differences("SELECT * FROM content.odd", "analytics.odd") == 0


def test_years_outside_of_pythons_pass_arrow_steps_and_are_refused_to_row_steps(workbench: Workbench) -> None:
    workbench.source(
        "CREATE TABLE content.odd (id int PRIMARY KEY, x date); INSERT INTO content.odd VALUES (1, '20000-01-01')"
    )
    query = "SELECT id, x FROM content.odd"
    workbench.pipeline("odd", query, type="PYTHON", python_task="types_arrow", target_key=["id"])
    assert workbench.run("odd")["error_message"] is None
    assert workbench.differences(query, "analytics.odd") == 0
    workbench.change("odd", python_task="types_rows")
    run = workbench.run("odd")
    assert run["error_code"] == "not_carried"
    assert "years go from 1 to 9999" in run["error_message"]
