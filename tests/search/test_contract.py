"""The contract of writers, kept by `ElasticsearchWriter` on every kind of server."""

from dataclasses import dataclass

import pytest
from pydantic import SecretStr

from tests.contracts.writers import SOURCE, Mart, Row, WriterContract
from tests.search.conftest import Target
from tests.search.test_search_runs import documents
from tests.support.workbench import Workbench
from vitrina.connectors.search.client import SearchClient
from vitrina.connectors.search.target import ElasticsearchWriter


@dataclass
class Index:
    """A search index."""

    client: SearchClient
    index: str

    @property
    def name(self) -> str:
        return f"es:{self.index}"

    def rows(self) -> dict[int, Row]:
        found = documents(self.client, self.index)
        return {int(key): (row["title"], row["rating"], row.get("note")) for key, row in found.items()}


class TestElasticsearchWriter(WriterContract):
    """Into an index."""

    @pytest.fixture
    def mart(
        self,
        workbench: Workbench,
        search: Target,
        client: SearchClient,
        index: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Mart:
        workbench.source(SOURCE)
        monkeypatch.setattr(ElasticsearchWriter, "fence_grace_seconds", 0.0)  # nothing is left behind by a crash here
        workbench.settings = workbench.settings.model_copy(
            update={"elasticsearch_url": SecretStr(search.url), "allowed_targets": "es:vitrina-test-*"}
        )
        return Mart(workbench, Index(client, index))
