"""A query as a graph: occurrences of tables, query blocks, and equalities between values of their rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vitrina.connectors.postgres.derive.tables import Table


@dataclass(frozen=True)
class Atom:
    """A column of one occurrence of a table."""

    leaf: int
    column: str


Parts = tuple["str | Atom", ...]


@dataclass(frozen=True)
class Term:
    """An expression over columns, as SQL with places for them. Two terms are equal when their SQL is."""

    parts: Parts
    # It is NULL whenever one of its columns is.
    strict: bool = field(default=True, compare=False)
    # The branch of a UNION (and the like) that gives it; other branches give others.
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
        """Return the column, when the term is nothing but one."""
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], Atom) else None

    def moved(self, leaves: Mapping[int, int], blocks: Mapping[int, int]) -> "Term":
        """Write the term over other occurrences of the same tables."""
        parts = tuple(
            Atom(leaves.get(part.leaf, part.leaf), part.column) if isinstance(part, Atom) else part
            for part in self.parts
        )
        branch = None if self.branch is None else blocks.get(self.branch, self.branch)
        return replace(
            self, parts=parts, branch=branch, choices=tuple(one.moved(leaves, blocks) for one in self.choices)
        )


# A column of a query: one term, one for each branch of a UNION, or none when it is nothing that can be followed.
Value = tuple[Term, ...]
OPAQUE: Value = ()


@dataclass(frozen=True)
class Leaf:
    """One occurrence of a base table."""

    number: int
    table: Table
    block: int
    # Sides of outer joins that may replace its rows by NULLs.
    nulled_by: frozenset[int]


@dataclass
class Block:
    """One SELECT."""

    number: int
    parent: int | None
    # Whether rows of it can be looked up from outside: not those of a sub-select in an expression, nor of a UNION.
    enterable: bool
    nulled_by: frozenset[int]
    # What rows that a change influences have in common with the changed row; None: everything.
    stable: list[Term] | None = None


@dataclass(frozen=True)
class Edge:
    """Two terms that are equal in every row that counts, unless a side of an outer join in `holds_unless` is NULL."""

    one: Term
    two: Term
    # Where the condition is written.
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
        """Return the block and those around it, from the inside out."""
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
        """Join the group's other rows by what they have in common; groups of NULL are groups too."""
        block = self.blocks[root]
        for term in block.stable or ():
            if len(term.leaves) == 1:
                copied = term.moved(leaves, blocks)
                yield Edge(term, copied, block.parent, frozenset(), one_way=True, null_safe=True)

    def _widen(self, root: int, leaves: Mapping[int, int], blocks: Mapping[int, int]) -> None:
        """Let what is outside the block know the copy: as what is stable there, and as the query's columns."""
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
