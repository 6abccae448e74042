"""Check the English of documentation, comments, docstrings and messages against CONTRIBUTING.md, "English".

`make prose` prints the same figures, `make prose WHERE=docs/how-to` every place.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module
    spec.loader.exec_module(module)
    return module


prose = load()


@pytest.mark.parametrize("file", prose.files())
def test_a_file_has_none_of_the_words(file: str) -> None:
    places = prose.words_of(file)
    assert not places, f"{len(places)} in {file}:\n" + "\n".join(map(str, places))


def test_most_docstrings_begin_with_a_verb() -> None:
    found = list(prose.openings())
    assert len(found) > 3_000
    share = prose.imperative_percent(found)
    assert share > prose.WANTED_PERCENT, f"{share:.1f} % of {len(found):,}: see scripts/prose.py --openings"


@pytest.mark.parametrize(
    "text",
    [
        "The rows behind the checkpoint.",
        "Build it anew.",
        "A run is at work.",
        "The wish of a caller.",
        "Resolve the letters of a run.",
        "The lease is gone.",
        "Nobody holds it.",
        "Whoever asks waits for ever.",
    ],
)
def test_a_word_of_the_list_is_found(text: str) -> None:
    assert list(prose.found_in([(1, text)]))
    assert list(prose.found_in(prose.prose_of_module(f'"""{text}"""\n')))
    assert list(prose.found_in(prose.prose_of_module(f"x = 1  # {text}\n")))
    assert list(prose.found_in(prose.prose_of_page(f"# Title\n\n{text}\n")))


@pytest.mark.parametrize(
    "text",
    [
        "Replay dead letters; each dead letter has a key.",
        "A name has lower-case letters and digits.",
        "Run the API behind a reverse proxy.",
        "The follower fell behind; status shows how far it is behind.",
        "The server answers 410 Gone.",
    ],
)
def test_a_correct_use_is_allowed(text: str) -> None:
    assert not list(prose.found_in([(1, text)]))


def test_code_is_not_prose() -> None:
    page = "Call `letters.gone()`.\n\n```python\nnobody = 1\n```\n\n[page](how-to/behind.md)\n"
    assert not list(prose.found_in(prose.prose_of_page(page)))
    module = 'letters = gone(behind)\nsql = "SELECT * FROM open AS letters"\n'
    assert not list(prose.found_in(prose.prose_of_module(module)))


@pytest.mark.parametrize(
    ("text", "imperative"),
    [
        ("Discard a checkpoint written for another cursor.", True),
        ("Check that the order is unique.", True),
        ("Record which session holds the lock.", True),
        ("Load a batch.", True),
        ("Look at the catalog.", True),
        ("Load of one range.", False),
        ("Check of a column.", False),
        ("Returns the rows.", False),
        ("The rows of a batch.", False),
        ("What a run has read.", False),
        ("State: a row.", False),
    ],
)
def test_a_verb_is_told_from_a_noun(text: str, imperative: bool) -> None:
    assert prose.begins_with_verb(text) is imperative
