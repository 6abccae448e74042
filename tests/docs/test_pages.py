"""Check links outside of the site, the two READMEs, the changelog and the glossary."""

import re
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT
from vitrina.status import MOVES

READMES = [ROOT / "README.md", ROOT / "README.ru.md"]
OUTSIDE = [*READMES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:|/)([^)\s]+)\)")
ARROW = re.compile(r"^    ([A-Z_]+) --> ([A-Z_]+):", re.MULTILINE)
ENTRY = re.compile(r"^- .*\n(?:  .*\n)*", re.MULTILINE)
TERM = re.compile(r"^### (.+)\n\n((?:.+\n)+)", re.MULTILINE)
TERMS = (
    "Backfill|Batch|Check|Checkpoint|Connector|Control plane|Dead letter|Definition|Feed|Fence|Follower|Full load"
    "|Generation|History|Incremental run|Lease|Live pipeline|Mart|Pipeline|Plan|Port|Profile|Publish|Reconcile|Repair"
    "|Run|Runner|Source|Stage|Step|Target|Watermark"
).split("|")
MOST_WORDS = 60
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Links within docs/ are checked by `make docs`."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    broken = [link for link in found if not leads_somewhere(page, link)]
    assert not broken, f"{page.name}: {broken}"


def test_a_broken_link_would_be_noticed() -> None:
    assert not leads_somewhere(READMES[0], "docs/nowhere.md")
    assert not leads_somewhere(READMES[0], "docs/reliability.md#nowhere")
    assert leads_somewhere(READMES[0], "docs/reliability.md#mutants")


def test_the_russian_readme_is_in_step() -> None:
    english, russian = (page.read_text(encoding="utf-8") for page in READMES)
    assert levels(english) == levels(russian)
    assert commands(READMES[0]) == commands(READMES[1])
    assert english.count("\n| ") == russian.count("\n| ")
    differing = set(LINK.findall(english)) ^ set(LINK.findall(russian))
    assert all(link.startswith(("README", "docs/images/", "docs/demo_script.md")) for link in differing), differing


def test_the_demo_script_types_the_same_commands_in_both_languages() -> None:
    page = ROOT / "docs" / "demo_script.md"
    border = page.read_text(encoding="utf-8").partition("\n## На русском\n")[0].count("\n") + 2
    found = blocks.of(page)
    english = [block.text for block in found if block.line < border]
    assert english
    assert english == [block.text for block in found if block.line > border]


def test_the_short_demo_and_its_words_type_the_same_commands() -> None:
    shown, spoken = (blocks.of(ROOT / "docs" / name) for name in ("demo_short.md", "demo_short_script_v2.md"))
    assert shown
    assert [block.text for block in shown] == [block.text for block in spoken]


def test_the_picture_of_the_life_of_a_pipeline_has_every_move() -> None:
    drawn = set(ARROW.findall((ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")))
    assert drawn == {(move.source.value, move.target.value) for move in MOVES}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_lines_are_short_enough_for_a_diff(page: Path) -> None:
    text = without_blocks(page.read_text(encoding="utf-8"))
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, "\n".join(long)


def test_entries_of_the_changelog_are_short() -> None:
    entries = ENTRY.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert len(entries) > 50
    long = [entry for entry in entries if entry.count("\n") > 3 or max(map(len, entry.splitlines())) > 100]
    assert not long, "\n".join(long)


def test_the_glossary_explains_each_word_once_and_shortly() -> None:
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    entries = dict(TERM.findall(text))
    assert len(entries) == len(TERM.findall(text))
    assert entries.keys() >= set(TERMS), set(TERMS) - entries.keys()
    long = {word: said for word, said in entries.items() if len(said.split()) > MOST_WORDS}
    assert not long, long


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """Compute anchors as GitHub does."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for _, title in HEADING.findall(text)]
    return {title.strip().replace(" ", "-") for title in titles}


def levels(text: str) -> list[str]:
    return [marks for marks, _ in HEADING.findall(without_blocks(text))]


def commands(page: Path) -> list[str]:
    return [block.text for block in blocks.of(page)]


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
