"""Check the figures of docs/comparison.md against the latest results in bench/results."""

import json
import re
import statistics

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
RESULTS = ROOT / "bench" / "results"
POSTGRES = json.loads((RESULTS / "postgres.json").read_text())
LIVE = json.loads((RESULTS / "live.json").read_text())
LOADS = {
    "full load into an empty mart": ("full load into an empty mart", "ingestr replace", "dlt replace"),
    "the same load again, nothing changed": ("full reload, nothing changed", "ingestr merge", "dlt merge (upsert)"),
}
SEARCHED = ("one table into an index", "pgsync --daemon, one table")


@pytest.mark.parametrize("row", LOADS)
def test_the_speed_of_a_load_is_the_measured_one(row: str) -> None:
    work, *peers = LOADS[row]
    found = {line["reference"]: line for line in POSTGRES["lines"] if line["work"] == work}
    seconds = [found[peers[0]]["ours"], *(found[peer]["theirs"] for peer in peers)]
    rates = [f"{POSTGRES['machine']['rows'] / statistics.median(each) / 1000:,.0f},000 rows/s" for each in seconds]
    assert cells(row) == rates


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


def cells(row: str) -> list[str]:
    found = re.search(rf"^\| {re.escape(row)} \| (.*) \|$", PAGE, re.MULTILINE)
    assert found, f"docs/comparison.md has no row {row!r}"
    return found[1].split(" | ")
