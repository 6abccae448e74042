"""The tutorial is followed from its first line to its last, and what the guides tell about search indexes is typed."""

import tempfile
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT
from tests.docs.platform import Checkout
from tests.support.search_servers import Target

TUTORIAL = ROOT / "docs" / "tutorial" / "cinema.md"
GUIDES = [*sorted((ROOT / "docs" / "how-to").glob("*.md")), ROOT / "docs" / "demo_smoke_tests_v2.md"]


@pytest.mark.one_server
@pytest.mark.timeout(600)
def test_the_tutorial_can_be_followed_and_so_can_what_is_said_about_search(search: Target) -> None:
    followed = blocks.of(TUTORIAL)
    assert sum(block.is_command for block in followed) > 10
    guides = [found for found in map(blocks.of, GUIDES) if any(block.needs_search for block in found)]
    assert guides
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as somebody else
        checkout = Checkout(Path(directory), search.url)
        try:
            said = "".join(checkout.run(block) for block in followed)
            for found in guides:
                said += "".join(checkout.run(block) for block in found if block.needs_search or block.title)
        finally:
            checkout.close()
    assert "Star Wars" in said
    assert '"hits":{"total":{"value":0,' in said  # the tutorial makes articles no words
