"""Choose the real search servers that tests run against, and locate them."""

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from vitrina.embedded import search_server as embedded

EXISTING = "ELASTICSEARCH_URL"
# Disable the optimising compiler: for a server that lives for minutes, it is half of the cost.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:-UseG1GC", "-XX:+UseSerialGC")
# Memory of the server for all requests at once. A test sends more than that, which takes Elasticsearch 9 quadratic
# time: 50 s for the 60 MB that its default limit would require.
REQUESTS_MEGABYTES = 16
SETTINGS = {"indexing_pressure.memory.limit": f"{REQUESTS_MEGABYTES}mb"}
NEEDS_NEWER_JAVA = ("elasticsearch-9", "opensearch-3")
NOT_RUN = [kind for kind in NEEDS_NEWER_JAVA if not embedded.has_java(kind) and not os.environ.get("CI")]


def kinds() -> list[str]:
    """Return the kinds to test: an existing server, or all four if asked, or else one of each product.

    Those two are the oldest Elasticsearch, which `make up` starts, and the newest OpenSearch that this Java can run.
    """
    if os.environ.get(EXISTING):
        return [EXISTING]
    found = [kind for kind in embedded.KINDS if kind not in NOT_RUN]
    if os.environ.get("VITRINA_TEST_SEARCH") == "all" or os.environ.get("VITRINA_CHAOS") == "long":
        return found
    return [
        next(kind for kind in found if kind.startswith("elasticsearch")),
        next(kind for kind in reversed(found) if kind.startswith("opensearch")),
    ]


def newest_of_each() -> list[str]:
    """Return the newest Elasticsearch and the newest OpenSearch of those."""
    return list({kind.rpartition("-")[0]: kind for kind in kinds()}.values())


@dataclass(frozen=True)
class Target:
    """Represent the server under test; `process` is None if it is external."""

    kind: str
    url: str
    process: embedded.SearchServer | None

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 9200
