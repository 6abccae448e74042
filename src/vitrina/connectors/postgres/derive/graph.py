"""Represent a query as a graph: occurrences of tables, query blocks, and equalities between values of their rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vitrina.connectors.postgres.derive.tables import Table


@dataclass(frozen=True)
class Atom:
    """Represent a column of one occurrence of a table."""

    leaf: int
    column: str


Parts = tuple["str | Atom", ...]


@dataclass(frozen=True)
class Term:
    """Represent an expression over columns as SQL with placeholders. Two terms are equal if their SQL is."""

    parts: Parts
    # It is NULL whenever one of its columns is.
    strict: bool = field(default=True, compare=False)
    # The branch of a UNION (or similar) that returns it; other branches return other terms.
    branch: int | None = field(default=None, compare=False)
    # It equals one of these whenever it is not NULL (COALESCE).
    choices: tuple["Term", ...] = field(default=(), compare=False)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return tuple(part for part in self.parts if isinstance(part, Atom))

    @property
    def leaves(self) -> frozenset[int]:
        return frozenset(atom.leaf for atom in self.atoms)

    @property
    def atom(self) -> Atom | None:
        """Return the column if the term consists of a single one."""
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], Atom) else None

    def moved(self, leaves: Mapping[int, int], blocks: Mapping[int, int]) -> "Term":
        """Rewrite the term over other occurrences of the same tables."""
        parts = tuple(
            Atom(leaves.get(part.leaf, part.leaf), part.column) if isinstance(part, Atom) else part
            for part in self.parts
        )
        branch = None if self.branch is None else blocks.get(self.branch, self.branch)
        return replace(
            self, parts=parts, branch=branch, choices=tuple(one.moved(leaves, blocks) for one in self.choices)
        )


# A column of a query: one term, one for each branch of a UNION, or none if it cannot be followed.
Value = tuple[Term, ...]
OPAQUE: Value = ()


@dataclass(frozen=True)
class Leaf:
    """Represent one occurrence of a base table."""

    number: int
    table: Table
    block: int
    # Sides of outer joins that may replace its rows by NULLs.
    nulled_by: frozenset[int]


@dataclass
class Block:
    """Represent one SELECT."""

    number: int
    parent: int | None
    # Whether its rows can be looked up from outside: not those of a sub-select in an expression, nor of a UNION.
    enterable: bool
    nulled_by: frozenset[int]
    # What influenced rows have in common with the changed row; None: everything.
    stable: list[Term] | None = None


@dataclass(frozen=True)
class Edge:
    """Represent two terms that are equal in every relevant row, unless a side in `holds_unless` is NULL."""

    one: Term
    two: Term
    # The block in which the condition is written.
    block: int | None
    holds_unless: frozenset[int]
    one_way: bool = False
    null_safe: bool = False


@dataclass
class Graph:
    leaves: dict[int, Leaf] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    outputs: dict[str, Value] = field(default_factory=dict)

    def around(self, block: int | None) -> list[int]:
        """Return the block and its enclosing blocks, from the inside out."""
        found: list[int] = []
        while block is not None:
            found.append(block)
            block = self.blocks[block].parent
        return found

    def around_leaf(self, leaf: int) -> list[int]:
        return self.around(self.leaves[leaf].block)

    def nulled_by(self, leaves: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(self.leaves[leaf].nulled_by for leaf in leaves))

    def with_copies(self, start: int) -> "Graph":
        """Add a second occurrence of each block whose rows influence each other: the rest of a changed row's group."""
        made = Graph(
            dict(self.leaves), {n: replace(b) for n, b in self.blocks.items()}, list(self.edges), dict(self.outputs)
        )
        for block in self.around_leaf(start):
            if made.blocks[block].stable:
                made.copy(block)
        return made

    def copy(self, root: int) -> None:
        inside = [number for number in self.blocks if root in self.around(number)]
        blocks = {number: len(self.blocks) + place for place, number in enumerate(inside)}
        within = [leaf for leaf in self.leaves.values() if leaf.block in blocks]
        leaves = {leaf.number: len(self.leaves) + place for place, leaf in enumerate(within)}
        for number, copied in blocks.items():
            block = self.blocks[number]
            parent = block.parent if number == root else blocks[block.parent or 0]
            stable = None if block.stable is None else [term.moved(leaves, blocks) for term in block.stable]
            self.blocks[copied] = replace(block, number=copied, parent=parent, stable=stable)
        for leaf in within:
            self.leaves[leaves[leaf.number]] = replace(leaf, number=leaves[leaf.number], block=blocks[leaf.block])
        self.edges += [self._moved(edge, leaves, blocks) for edge in self.edges if _touches(edge, leaves)]
        self.edges += list(self._links(root, leaves, blocks))
        self._widen(root, leaves, blocks)

    def _moved(self, edge: Edge, leaves: Mapping[int, int], blocks: Mapping[int, int]) -> Edge:
        written = None if edge.block is None else blocks.get(edge.block, edge.block)
        return replace(edge, one=edge.one.moved(leaves, blocks), two=edge.two.moved(leaves, blocks), block=written)

    def _links(self, root: int, leaves: Mapping[int, int], blocks: Mapping[int, int]) -> Iterator[Edge]:
        """Join the group's other rows by what they have in common; NULL forms a group too."""
        block = self.blocks[root]
        for term in block.stable or ():
            if len(term.leaves) == 1:
                copied = term.moved(leaves, blocks)
                yield Edge(term, copied, block.parent, frozenset(), one_way=True, null_safe=True)

    def _widen(self, root: int, leaves: Mapping[int, int], blocks: Mapping[int, int]) -> None:
        """Add the copy's terms to what is stable in the enclosing blocks and to the query's columns."""
        for number in self.around(self.blocks[root].parent):
            block = self.blocks[number]
            if block.stable is not None:
                block.stable = _with_moved(block.stable, leaves, blocks)
        for name, value in self.outputs.items():
            self.outputs[name] = tuple(_with_moved(list(value), leaves, blocks))


def _touches(edge: Edge, leaves: Mapping[int, int]) -> bool:
    return not (edge.one.leaves | edge.two.leaves).isdisjoint(leaves)


def _with_moved(terms: list[Term], leaves: Mapping[int, int], blocks: Mapping[int, int]) -> list[Term]:
    return terms + [term.moved(leaves, blocks) for term in terms if not term.leaves.isdisjoint(leaves)]
