"""The page about Iceberg tables, typed from its first command to its last."""

import pytest

from tests.docs.blocks import ROOT
from tests.lake.iceberg.tables import LATEST
from tests.lake.test_docs import type_page
from vitrina.embedded.temporary import TemporaryServer

PAGE = ROOT / "docs/how-to/iceberg.md"


@pytest.mark.timeout(900)
def test_the_commands_of_the_page_work(server: TemporaryServer) -> None:
    films, said = type_page(PAGE, CATALOG=server.urls.admin.partition("?")[0])
    assert films > 100
    assert "equal" in said


def test_the_query_of_the_page_is_the_one_that_tests_ask() -> None:
    query = LATEST.format(key="id")
    assert " ".join(query.split()) in " ".join(PAGE.read_text().split())
