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


def typed(text: str, note: str | None = None) -> Block:
    return Block(PAGE, 0, "bash", None, text, note)


@pytest.mark.timeout(900)
def test_the_commands_of_the_pages_work() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as somebody else
        checkout = Checkout(Path(directory))
        try:
            first, *others = [block for block in blocks.of(PAGE) if block.is_command or block.title]
            said = [checkout.run(typed("make demo\n")), checkout.run(dataclasses.replace(first, note=None))]
            checkout.run(typed("make dev\n", "keeps running"))
            checkout.run(typed("source .venv/bin/activate\n"))
            said += [checkout.run(dataclasses.replace(block, note=None)) for block in others]
            reading = [block for block in blocks.of(READING) if block.is_command or block.title]
            read = [checkout.run(dataclasses.replace(block, note=None)) for block in reading]
            films = len((Path(directory) / "films.csv").read_text().splitlines()) - 1
        finally:
            checkout.close()
    assert films > 100
    assert "equal" in said[-1]
    assert len(read) >= 6
    assert "Alien" in "".join(read)
    assert "SUCCESS" in read[-1]


def test_the_query_of_the_page_is_the_one_that_tests_ask() -> None:
    from tests.lake import readers

    query = readers.LATEST.format(key="id", files="{files}")
    assert " ".join(query.split()) in " ".join(PAGE.read_text().split())
