"""What the documentation tells about search indexes is typed here, against the server that the other tests use."""

import tempfile
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from tests.docs.platform import Checkout
from tests.support.search_servers import Target

PAGES = [ROOT / "docs" / "tutorial" / "cinema.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
START = [
    Block(PAGES[0], 0, "bash", None, "make demo\n", None),
    Block(PAGES[0], 0, "bash", None, "make dev\n", "keeps running"),
]


@pytest.mark.one_server
def test_commands_about_search_work(search: Target) -> None:
    pages = [found for found in map(blocks.of, PAGES) if any(block.needs_search for block in found)]
    assert pages
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as somebody else
        checkout = Checkout(Path(directory), search.url)
        try:
            for block in START:
                checkout.run(block)
            said = "".join(
                checkout.run(block) for found in pages for block in found if block.needs_search or block.title
            )
        finally:
            checkout.close()
    assert "Star Wars" in said
