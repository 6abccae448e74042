"""Profile an index: documents, size, and the contents of each field in a sample of the documents."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from vitrina.connectors.search.index_comparison import fitting_page, refuse_altered_documents
from vitrina.ports.profile import TargetProfile
from vitrina.ports.profiling import profile_of, texts_of

if TYPE_CHECKING:
    from vitrina.connectors.search.client import SearchClient

# Fields are profiled on a sample of about so many documents, or so many pages of large ones.
MOST_DOCUMENTS = 10_000
MOST_PAGES = 8


def profile(client: "SearchClient", concrete: str, name: str) -> TargetProfile:
    """Read all documents of a small index, or a random sample of a large one."""
    refuse_altered_documents(client, concrete, name)
    client.refresh(concrete)
    documents, page = client.count(concrete), fitting_page(client, concrete)
    most = min(MOST_DOCUMENTS, MOST_PAGES * page)
    query = _random(most / documents) if documents > most else {"match_all": {}}
    found = [hit["_source"] for hits in client.scroll(concrete, {"size": page, "query": query}) for hit in hits]
    fields = client.get_mapping(concrete).get("properties", {})
    looked = profile_of([pa.table({name: _column([one.get(name) for one in found]) for name in fields})])
    kinds = {name: str(field.get("type", "object")) for name, field in fields.items()}
    columns = [replace(column, type=kinds[column.name]) for column in looked.columns]
    return TargetProfile(documents, client.size(concrete), len(found), columns)


def _random(share: float) -> dict[str, Any]:
    """Return a query that selects documents by a random score from 0 to 1, the same in every run."""
    return {
        "function_score": {
            "random_score": {"seed": 1, "field": "_seq_no"},
            "boost_mode": "replace",
            "min_score": 1 - share,
        }
    }


def _column(values: list[Any]) -> pa.Array:
    """Keep numbers as numbers, which sort differently from text, unless a field holds several kinds of values."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        with suppress(OverflowError):
            return pa.array(values, pa.int64())
    if kinds and kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    return texts_of(values)
