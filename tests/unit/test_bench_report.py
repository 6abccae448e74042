"""Tables of the benchmarks: what they show, also of files that an earlier version has written."""

import pytest

from bench import report
from bench.report import Line


def test_a_line_shows_its_spread_its_cpu_and_its_goal() -> None:
    line = Line("load", "by hand", 1000, 0.8, ours=[2, 4, 5], theirs=[1, 2, 5], our_cpu=[1, 1, 1], their_cpu=[2, 2, 3])
    assert line.markdown() == "| load | 0 | by hand | 0 | 0.50 | 0.50 to 1.00 | 2.00 | 0.8 | **no** |"


def test_a_line_without_cpu_and_goal_leaves_both_empty() -> None:
    line = Line("load", "by hand", 4_000_000, None, ours=[2], theirs=[4])
    assert line.markdown() == "| load | 2000 | by hand | 1000 | 2.00 | 2.00 to 2.00 |  |  |  |"


@pytest.mark.parametrize("name", ["postgres", "postgres_hard_15", "postgres_cpu", "search"])
def test_a_page_of_results_shows_its_file(name: str) -> None:
    shown = (report.RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert shown == report.page(name, *report.read(name))
