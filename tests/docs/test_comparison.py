"""Check the figures of docs/comparison.md and of both READMEs against the latest results in bench/results."""

import json
import re
import statistics

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
RESULTS = ROOT / "bench" / "results"
POSTGRES = json.loads((RESULTS / "postgres.json").read_text())
HARD = json.loads((RESULTS / "postgres_hard_15.json").read_text())
LIVE = json.loads((RESULTS / "live.json").read_text())
LOADS = {
    "full load into an empty mart": ("full load into an empty mart", "ingestr replace", "dlt replace"),
    "the same load again, nothing changed": ("full reload, nothing changed", "ingestr merge", "dlt merge (upsert)"),
}
BY_HAND = {
    "full load into an empty mart": "fresh table, primary key afterwards",
    "2 M ratings into 1 M groups": "CREATE TABLE AS, primary key afterwards",
}
# Each row of the READMEs: its label in both languages, the work, and who did it by hand, ingestr and dlt.
README_ROWS = [
    (
        ("full load into an empty mart", "полная загрузка в пустую витрину"),
        "full load into an empty mart",
        ("fresh table, primary key afterwards", "ingestr replace", "dlt replace"),
    ),
    (
        ("the same again, nothing changed", "она же ещё раз, ничего не изменилось"),
        "full reload, nothing changed",
        ("hand-written anti-join", "ingestr merge", "dlt merge (upsert)"),
    ),
    (
        ("incremental run, every row changed", "инкрементальный запуск, изменились все строки"),
        "incremental upsert, 10k batches",
        ("batched INSERT .. ON CONFLICT", None, None),
    ),
    (
        ("to another PostgreSQL", "в другой PostgreSQL"),
        "Postgres to another Postgres",
        ("COPY to COPY, primary key afterwards", "ingestr replace", None),
    ),
]
SEARCHED = ("one table into an index", "pgsync --daemon, one table")


@pytest.mark.parametrize("row", LOADS)
def test_the_speed_of_a_load_is_the_measured_one(row: str) -> None:
    work, *peers = LOADS[row]
    found = {line["reference"]: line for line in POSTGRES["lines"] if line["work"] == work}
    seconds = [found[peers[0]]["ours"], *(found[peer]["theirs"] for peer in peers)]
    rates = [f"{POSTGRES['machine']['rows'] / statistics.median(each) / 1000:,.0f},000 rows/s" for each in seconds]
    assert cells(row) == rates


def test_the_ratios_to_hand_written_sql_are_the_measured_ones() -> None:
    full, aggregate = (_ratios(work) for work in BY_HAND)
    assert f"an empty mart reaches {full[0]} of its speed, and an aggregate {aggregate[0]}." in PAGE
    assert f"these are {full[1]} and {aggregate[1]} " in PAGE


def _ratios(work: str) -> list[str]:
    """Return those of the friendly and of the harder setting."""
    return [
        f"{line['ratio']:.2f}"
        for results in (POSTGRES, HARD)
        for line in results["lines"]
        if (line["work"], line["reference"]) == (work, BY_HAND[work])
    ]


@pytest.mark.parametrize(("language", "readme"), [(0, "README.md"), (1, "README.ru.md")])
@pytest.mark.parametrize(("labels", "work", "others"), README_ROWS)
def test_the_speed_in_a_readme_is_the_measured_one(
    language: int, readme: str, labels: tuple[str, str], work: str, others: tuple[str | None, ...]
) -> None:
    found = {line["reference"]: line for line in POSTGRES["lines"] if line["work"] == work}
    assert others[0] is not None
    seconds = [found[others[0]]["ours"], *(found[other]["theirs"] if other else None for other in others)]
    thousands = POSTGRES["machine"]["rows"] / 1000
    rates = [f"{thousands / statistics.median(each):,.0f}" if each else "–" for each in seconds]
    assert cells(labels[language], (ROOT / readme).read_text(encoding="utf-8")) == rates


@pytest.mark.parametrize(
    ("row", "figure", "unit"),
    [
        ("a changed row is found, p50", "p50_ms", 1000),
        ("a changed row is found, p99", "p99_ms", 1000),
        ("the application's own UPDATE of 20,000 rows", "update_s", 1),
    ],
)
def test_the_latency_of_a_change_is_the_measured_one(row: str, figure: str, unit: int) -> None:
    expected = [f"{LIVE['figures'][name][figure] / unit:.1f} s" for name in SEARCHED]
    assert [cell.partition(" (")[0] for cell in cells(row)] == expected


def test_the_latency_of_a_mart_is_the_measured_one() -> None:
    mart = LIVE["figures"]["film_dim into a mart"]
    assert f"after {mart['p50_ms'] / 1000:.2f} s (p50) and {mart['p99_ms'] / 1000:.2f} s (p99)" in PAGE


def test_the_versions_are_those_that_were_measured() -> None:
    for name, version in [("ingestr", POSTGRES["machine"]["ingestr"]), ("dlt", POSTGRES["machine"]["dlt"])]:
        assert f"{name} {version.rpartition('.')[0]}" in PAGE
    assert f"pgsync {LIVE['machine']['pgsync'].rpartition('.')[0]}" in PAGE


def cells(row: str, page: str = PAGE) -> list[str]:
    found = re.search(rf"^\| {re.escape(row)} \| (.*) \|$", page, re.MULTILINE)
    assert found, f"the page has no row {row!r}"
    return found[1].split(" | ")
