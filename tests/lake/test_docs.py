"""The pages about files, typed from the first command to the last."""

import dataclasses
import tempfile
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from tests.docs.platform import Checkout

PAGE = ROOT / "docs/how-to/parquet-files.md"
# Typed after it, because its connection is the same.
READING = ROOT / "docs/how-to/read-files.md"


def typed(page: Path, text: str, note: str | None = None) -> Block:
    return Block(page, 0, "bash", None, text, note)


def type_page(page: Path, *then: Path, **environment: str) -> tuple[int, str]:
    """Type pages on a platform of their own; return the films that the first one's reader found, and what was said."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as somebody else
        checkout = Checkout(Path(directory))
        checkout.add_environment(**environment)
        try:
            first, *others = _commands(page)
            said = [checkout.run(typed(page, "make demo\n")), checkout.run(dataclasses.replace(first, note=None))]
            checkout.run(typed(page, "make dev\n", "keeps running"))
            checkout.run(typed(page, "source .venv/bin/activate\n"))
            said += [checkout.run(dataclasses.replace(block, note=None)) for block in others]
            said += [checkout.run(dataclasses.replace(block, note=None)) for block in _commands(*then)]
            return len((Path(directory) / "films.csv").read_text().splitlines()) - 1, "".join(said)
        finally:
            checkout.close()


def _commands(*pages: Path) -> list[Block]:
    return [block for page in pages for block in blocks.of(page) if block.is_command or block.title]


@pytest.mark.timeout(900)
def test_the_commands_of_the_pages_work() -> None:
    films, said = type_page(PAGE, READING)
    assert films > 100
    assert "equal" in said
    assert "Alien" in said
    assert "SUCCESS" in said[-1000:]


def test_the_query_of_the_page_is_the_one_that_tests_ask() -> None:
    from tests.lake import readers

    query = readers.LATEST.format(key="id", files="{files}")
    assert " ".join(query.split()) in " ".join(PAGE.read_text().split())
