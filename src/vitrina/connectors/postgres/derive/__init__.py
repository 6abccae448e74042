"""Derive stale keys of a query from changed rows of its base tables, by the query's own equalities.

`reading` and `scopes` turn the query into a graph of table occurrences, query blocks and equalities. `rules` decides in
which direction a change may propagate in that graph, `paths` searches it for each occurrence, `statements` builds SQL
from the result, and `derivation` runs that SQL on the changes of a batch. Where nothing can be proven, a change affects
"every key", or the query is refused with the reason.
"""
