"""Run each command that the guides tell their readers to type; tests/search follows the tutorial."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from tests.docs.platform import Checkout, check_syntax

DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial" / "cinema.md"
GUIDES = [
    ROOT / "README.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    DOCS / "API.md",
    *sorted(DOCS.glob("demo_*.md")),
]
START = [
    Block(TUTORIAL, 0, "bash", None, "make demo\n", None),
    Block(TUTORIAL, 0, "bash", None, "make dev\n", "keeps running"),
    Block(TUTORIAL, 0, "bash", None, "source .venv/bin/activate\n", None),
]


@pytest.fixture(scope="module")
def checkout() -> Iterator[Checkout]:
    """Start where the guides start: with the demo cinema and a running platform."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as another user
        found = Checkout(Path(directory))
        try:
            for block in START:
                found.run(block)
            yield found
        finally:
            found.close()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_commands_of_a_guide_work(page: Path, checkout: Checkout) -> None:
    done: set[str] = set()  # a page in two languages says some things twice
    try:
        for block in blocks.of(page):
            if not block.needs_search and not block.needs_clickhouse and block.text not in done:
                checkout.run(block)
                done.add(block.text)
    finally:
        checkout.end_all_but(1)


@pytest.mark.parametrize("page", [TUTORIAL, *GUIDES, ROOT / "README.ru.md"], ids=lambda page: page.stem)
def test_whatever_is_not_run_is_at_least_well_formed(page: Path) -> None:
    for block in blocks.of(page):
        if block.is_command:
            check_syntax(block)
        elif block.language in ("yaml", "yml"):
            list(yaml.safe_load_all(block.text))
        elif block.language == "python":
            compile(block.text, str(block), "exec")


@pytest.mark.parametrize("page", [TUTORIAL, *GUIDES], ids=lambda page: page.stem)
def test_every_block_says_its_language_and_every_exception_its_reason(page: Path) -> None:
    for block in blocks.of(page):
        assert block.language, f"{block}: a block without a language cannot be told from a command"
        assert not (block.note or "").startswith("not run") or block.reason_not_to_run, f"{block}: why not?"


def test_a_broken_command_would_be_noticed(checkout: Checkout) -> None:
    broken = Block(TUTORIAL, 1, "bash", None, "vitrina status no_such_pipeline\n", None)
    with pytest.raises(AssertionError, match="ended with 2"):
        checkout.run(broken)
