"""What the guide says about ClickHouse is typed."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.clickhouse.places import Place
from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from tests.docs.platform import Checkout

GUIDE = ROOT / "docs" / "how-to" / "clickhouse.md"
START = [
    Block(GUIDE, 0, "bash", None, "vitrina demo --no-search\n", None),
    Block(GUIDE, 0, "bash", None, "make dev\n", "keeps running"),
    Block(GUIDE, 0, "bash", None, "source .venv/bin/activate\n", None),
]


@pytest.mark.timeout(900)
def test_the_commands_of_the_guide_work(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(os.environ["PYTHONPATH"]).resolve()))
    followed = [block for block in blocks.of(GUIDE) if block.title or block.needs_clickhouse]
    assert sum(block.is_command for block in followed)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # root's PostgreSQL runs as somebody else
        checkout = Checkout(Path(directory))
        checkout.add_environment(VITRINA_CONN_OLAP=place.url, VITRINA_ALLOWED_TARGETS="analytics.*,clickhouse:*,es:*")
        try:
            for block in START:
                checkout.run(block)
            said = "".join(checkout.run(block) for block in followed)
        finally:
            checkout.close()
    assert "SUCCESS" in said
    assert place.session.value("SELECT count() FROM default.film_dim") > 0
    for (name,) in place.session.rows("SELECT name FROM system.tables WHERE startsWith(name, 'film_dim')"):
        place.session.command(f"DROP TABLE default.`{name}`")
