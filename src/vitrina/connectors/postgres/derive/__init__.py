"""From changed rows of base tables to stale keys of a query: what follows from the query's own equalities.

`scopes` reads the query into a graph of table occurrences, query blocks and equalities. `rules` says which way a change
may travel in that graph, `paths` searches it for each occurrence, `statements` writes what was found as SQL, and
`derivation` runs that SQL on the changes of a batch. What cannot be proven is "every key", or refused by name.
"""
