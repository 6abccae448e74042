"""Which real search servers tests run against, and where one of them is."""

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from vitrina.embedded import search_server as embedded

EXISTING = "ELASTICSEARCH_URL"
# Compiled quickly instead of well: half of what a server costs that lives for minutes is Java's work on getting faster.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:-UseG1GC", "-XX:+UseSerialGC")
# What the server has for all requests at once. A test sends more than that, which takes Elasticsearch 9 a time that
# grows with the square: 50 s for the 60 MB that it would have to be with the limit that it has by itself.
REQUESTS_MEGABYTES = 16
SETTINGS = {"indexing_pressure.memory.limit": f"{REQUESTS_MEGABYTES}mb"}
NEEDS_NEWER_JAVA = ("elasticsearch-9", "opensearch-3")
NOT_RUN = [kind for kind in NEEDS_NEWER_JAVA if not embedded.has_java(kind) and not os.environ.get("CI")]


def kinds() -> list[str]:
    """All four where a new enough Java is found, and always in CI; an existing server stands in for all of them."""
    if os.environ.get(EXISTING):
        return [EXISTING]
    return [kind for kind in embedded.KINDS if kind not in NOT_RUN]


def newest_of_each() -> list[str]:
    """The newest Elasticsearch and the newest OpenSearch of those."""
    return list({kind.rpartition("-")[0]: kind for kind in kinds()}.values())


@dataclass(frozen=True)
class Target:
    """The server under test; `process` is None when it is not ours to stop."""

    kind: str
    url: str
    process: embedded.SearchServer | None

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 9200
