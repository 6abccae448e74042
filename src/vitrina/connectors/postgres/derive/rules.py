"""Define the rules by which a change propagates through a query, separately, so that a test can disable each of them.

A rule that returns False makes keys coarser, or turns a table into "every key". A rule that wrongly returns True loses
a change.
"""

from collections.abc import Iterator, Sequence

from vitrina.connectors.postgres.derive.graph import Block, Edge, Graph, Term, Value


def is_usable_equality(one: Term, two: Term) -> bool:
    """Follow equalities between different occurrences that NULL does not satisfy."""
    return bool(one.strict and two.strict and one.atoms and two.atoms and one.leaves != two.leaves)


def membership_is_equality(graph: Graph, value: Value, *, positive: bool) -> bool:
    """Return whether `x IN (...)` may be followed as an equality: if only its being true counts, or nothing is NULL.

    A NULL in the list, or on the left, changes the result of NOT IN for rows that equal nothing.
    """
    return positive or (bool(value) and all(never_null(graph, term) for term in value))


def never_null(graph: Graph, term: Term) -> bool:
    atom = term.atom
    if atom is None:
        return False
    leaf = graph.leaves[atom.leaf]
    return leaf.table.columns[atom.column].not_null and not leaf.nulled_by


def may_identify_group(graph: Graph, block: Block, term: Term) -> bool:
    """Refuse to group by columns that an outer join of the same SELECT may set to NULL: rows change their group."""
    return bool(term.atoms) and graph.nulled_by(term.leaves) <= block.nulled_by


def partitions(windows: Sequence[list[Term]]) -> Iterator[list[Term]]:
    """Treat rows of one partition as dependent on each other, for each window."""
    yield from windows


def may_cross(graph: Graph, edge: Edge, one: Term, two: Term, start: int) -> bool:
    """Return whether influence that has reached `one` reaches `two` across the borders of query blocks.

    A block that contains the changed row is left through what its influenced rows have in common, or from its own WHERE
    by correlation. It is not entered again. Other blocks may be entered, except sub-selects of expressions and UNIONs.
    """
    changed = graph.around_leaf(start)
    written = graph.around(edge.block)
    for leaf in one.leaves:
        for other in two.leaves:
            inside, target = graph.around_leaf(leaf), graph.around_leaf(other)
            if not all(may_enter(graph, block, changed) for block in target if block not in inside):
                return False
            left = (block for block in inside if block not in target and block in changed and block not in written)
            if not all(may_leave(graph, block, one) for block in left):
                return False
    return True


def may_enter(graph: Graph, block: int, changed: Sequence[int]) -> bool:
    return block not in changed and graph.blocks[block].enterable


def may_leave(graph: Graph, block: int, term: Term) -> bool:
    stable = graph.blocks[block].stable
    return stable is None or term in stable


def maybe_null(graph: Graph, edge: Edge, one: Term, two: Term, maybe: frozenset[int]) -> frozenset[int] | None:
    """Return the outer joins that may have set `two` to NULL although `one` was reached; None: `two` is not reachable.

    `maybe` describes `one` in the same way. An equality that holds cancels outer joins below it, because NULL satisfies
    none. An equality that an outer join depends on leads into its nullable side, or out of it if the change came from
    there.
    """
    if edge.null_safe:
        return frozenset()
    from_side, to_side = graph.nulled_by(one.leaves), graph.nulled_by(two.leaves)
    found = set()
    for join in edge.holds_unless:
        if join in to_side:
            if join in maybe or join not in from_side:
                found.add(join)
        elif join not in from_side or join in maybe:
            return None
    return frozenset(found)


def may_be_key(graph: Graph, term: Term) -> bool:
    """Refuse an expression that is not NULL for a row whose columns an outer join replaced by NULL."""
    return term.strict or not graph.nulled_by(term.leaves)
