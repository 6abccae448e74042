"""The page about Parquet files, typed from its first command to its last."""

import dataclasses
import tempfile
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from tests.docs.platform import Checkout

PAGE = ROOT / "docs/how-to/parquet-files.md"


def typed(page: Path, text: str, note: str | None = None) -> Block:
    return Block(page, 0, "bash", None, text, note)


def type_page(page: Path, **environment: str) -> tuple[int, str]:
    """Type a page on a platform of its own; return the films that its reader found, and what was said last."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as somebody else
        checkout = Checkout(Path(directory))
        checkout.add_environment(**environment)
        try:
            first, *others = [block for block in blocks.of(page) if block.is_command or block.title]
            said = [checkout.run(typed(page, "make demo\n")), checkout.run(dataclasses.replace(first, note=None))]
            checkout.run(typed(page, "make dev\n", "keeps running"))
            checkout.run(typed(page, "source .venv/bin/activate\n"))
            said += [checkout.run(dataclasses.replace(block, note=None)) for block in others]
            return len((Path(directory) / "films.csv").read_text().splitlines()) - 1, "".join(said)
        finally:
            checkout.close()


@pytest.mark.timeout(900)
def test_the_commands_of_the_page_work() -> None:
    films, said = type_page(PAGE)
    assert films > 100
    assert "equal" in said


def test_the_query_of_the_page_is_the_one_that_tests_ask() -> None:
    from tests.lake import readers

    query = readers.LATEST.format(key="id", files="{files}")
    assert " ".join(query.split()) in " ".join(PAGE.read_text().split())
