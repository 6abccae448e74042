"""A plan in words: one sentence that sums it up, lines for a terminal, and Markdown for a comment."""

from typing import Any

from vitrina.cli import plan_text

NO_COLUMNS: dict[str, list[dict[str, str]]] = {"added": [], "removed": [], "retyped": []}
ROWS: dict[str, Any] = {
    "before": 50_000,
    "after": 49_988,
    "added": 0,
    "changed": 1_204,
    "removed": 12,
    "unchanged": 48_784,
    "stay": None,
    "rejected": 0,
    "changed_columns": {"rating": 1_204},
    "sample_rows": [
        {
            "kind": "changed",
            "before": {"id": "7", "title": "Alien", "rating": "8.5"},
            "after": {"id": "7", "title": "Alien", "rating": None},
        },
        {"kind": "removed", "before": {"id": "9", "title": "two\nlines \x1b[31m", "rating": "1"}, "after": None},
    ],
}
PLAN: dict[str, Any] = {
    "id": "11111111-2222-3333-4444-555555555555",
    "pipeline": "films",
    "target": "analytics.films",
    "target_exists": True,
    "columns": NO_COLUMNS | {"added": [{"name": "votes", "type": "integer"}]},
    "rows": ROWS,
    "checks": [
        {"name": "of_ten", "result": "failed", "found": "3 row(s) violate it"},
        {"name": "known", "result": "passed", "found": "0 row(s) violate it"},
    ],
    "refusals": [],
    "warnings": [],
    "notes": [],
    "downstream": {"pipelines": ["film_cards"], "targets": ["es:film_dim"]},
}


def test_one_sentence_sums_it_up() -> None:
    assert plan_text.summary(PLAN) == (
        "adds column votes, changes 1,204 of 50,000 rows (rating: 1,204), removes 12, adds 0;"
        " downstream: film_cards, es:film_dim"
    )
    columns = {
        "added": [],
        "removed": [{"name": "a", "type": "text"}, {"name": "b", "type": "text"}],
        "retyped": [{"name": "c", "before": "integer", "after": "text"}],
    }
    alone = PLAN | {"columns": columns, "rows": None, "downstream": {"pipelines": [], "targets": []}}
    assert plan_text.summary(alone) == "no longer returns columns a, b, changes the type of column c, rows are unknown"


def test_the_text_shows_what_differs_in_a_row_and_only_what_can_be_printed() -> None:
    lines = plan_text.text(PLAN | {"refusals": ["it would shrink"], "notes": ["of one moment"]}).splitlines()
    assert lines[0].startswith("films -> analytics.films: adds column votes")
    assert lines[1:] == [
        "  refused: it would shrink",
        "  note: of one moment",
        "  + column votes integer",
        "  check of_ten failed: 3 row(s) violate it",
        "  ~ id = 7, title = Alien, rating: 8.5 -> NULL",
        "  - id = 9, title = two lines \ufffd[31m, rating = 1",
        "  plan 11111111-2222-3333-4444-555555555555",
    ]


def test_rows_that_a_viewer_is_not_shown_are_left_out() -> None:
    hidden = PLAN | {"rows": ROWS | {"sample_rows": "(for operators)"}}
    assert "Alien" not in plan_text.text(hidden)
    assert "<details>" not in plan_text.markdown(hidden)


def test_rows_that_stay_or_are_rejected_and_a_new_target_are_told() -> None:
    told = plan_text.text(PLAN | {"target_exists": False, "rows": ROWS | {"stay": 5, "rejected": 3}})
    assert "analytics.films is created by the first run" in told
    assert "5 rows that the query no longer returns stay" in told
    assert "3 rows are rejected and become dead letters" in told


def test_markdown_is_a_comment_for_a_review() -> None:
    refused = PLAN | {"refusals": ["it would shrink"], "warnings": ["columns are kept"]}
    assert plan_text.markdown(refused).split("\n\n") == [
        "### Plan of `films` → `analytics.films`",
        (
            "Adds column votes, changes 1,204 of 50,000 rows (rating: 1,204), removes 12, adds 0;"
            " downstream: film_cards, es:film_dim."
        ),
        "> **The run would be refused:** it would shrink",
        "> columns are kept",
        (
            "| what | change |\n|---|---|\n| column `votes` | added as `integer` |\n| rows | 50,000 → 49,988 |\n"
            "| rows changed | 1,204 |\n| rows removed | 12 |\n| `rating` | changes in 1,204 rows |\n"
            "| check `of_ten` | failed: 3 row(s) violate it |"
        ),
        "<details><summary>Some of the rows</summary>",
        (
            "- changed: `id = 7, title = Alien, rating: 8.5 -> NULL`\n"
            "- removed: `id = 9, title = two lines \ufffd[31m, rating = 1`"
        ),
        "</details>",
        (
            "Plan `11111111-2222-3333-4444-555555555555`; apply exactly this with"
            " `vitrina apply --require-plan 11111111-2222-3333-4444-555555555555`."
        ),
    ]


def test_names_of_columns_cannot_write_markdown_nor_control_a_terminal() -> None:
    name = "a`|<b>x</b>|@here\x1b[31m"
    plan = PLAN | {
        "columns": NO_COLUMNS | {"added": [{"name": name, "type": "integer"}]},
        "rows": ROWS | {"changed_columns": {name: 3}},
        "checks": [{"name": "c", "result": "failed", "found": "a|b <i>"}],
    }
    shown = plan_text.markdown(plan)
    assert "\n| column `a'\\|<b>x</b>\\|@here\ufffd[31m` | added as `integer` |\n" in shown
    assert "Adds column a\\`\\|\\<b\\>x\\</b\\>\\|\\@here\ufffd\\[31m, changes" in shown
    assert "| check `c` | failed: a\\|b \\<i\\> |" in shown
    assert "\x1b" not in shown + plan_text.text(plan)
