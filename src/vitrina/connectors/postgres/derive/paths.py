"""Search from one occurrence of a table along equalities and look-ups to the columns of the key."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vitrina.connectors.postgres.derive import rules
from vitrina.connectors.postgres.derive.graph import Atom, Edge, Graph, Parts, Term
from vitrina.connectors.postgres.derive.tables import TableColumn

# A longer chain costs more than it saves.
MOST_LOOKUPS = 8
# A value of the first type can replace one of the second: they are equal, and the cast cannot fail.
_WIDENING = frozenset({("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint")})


class Condition(NamedTuple):
    """Represent what looked-up rows must satisfy: one of their terms equals a known value."""

    own: Term
    value: Parts
    null_safe: bool


class Lookup(NamedTuple):
    """Represent an occurrence whose rows are read by values known before."""

    leaf: int
    conditions: tuple[Condition, ...]
    # Influenced rows may lack such a row: an outer join replaced it by NULLs.
    may_be_absent: bool


class Bound(NamedTuple):
    """Represent a column whose value is known, as SQL over columns of occurrences that were read."""

    parts: Parts
    # Outer joins that may have replaced it by NULL.
    maybe_null: frozenset[int]


@dataclass(frozen=True)
class Path:
    """Describe how rows of one occurrence lead to columns of the key: look-ups in order, then the values."""

    graph: Graph
    start: int
    lookups: tuple[Lookup, ...]
    values: dict[str, tuple[Parts, ...]]


@dataclass
class Search:
    """Follow everything that can be reached from one occurrence."""

    graph: Graph
    start: int
    bound: dict[Atom, Bound] = field(default_factory=dict)
    read: dict[int, frozenset[int]] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)

    def run(self) -> None:
        self.read[self.start] = frozenset()
        while True:
            self._pass_values_on()
            found = next(self._candidates(), None)
            if found is None or len(self.lookups) >= MOST_LOOKUPS:
                return
            lookup, maybe_null = found
            self.lookups.append(lookup)
            self.read[lookup.leaf] = maybe_null

    def find(self, atom: Atom) -> Bound | None:
        """Return a column's value. Prefer one passed on by an equality, which needs no look-up."""
        passed, maybe_null = self.bound.get(atom), self.read.get(atom.leaf)
        if maybe_null is None or (passed and passed.maybe_null <= maybe_null):
            return passed
        return Bound((atom,), maybe_null)

    def value(self, term: Term) -> Bound | None:
        """Return the value of a term if all of its columns are known."""
        found = {atom: self.find(atom) for atom in term.atoms}
        parts: list[str | Atom] = []
        for part in term.parts:
            known = found[part] if isinstance(part, Atom) else Bound((part,), frozenset())
            if known is None:
                return None
            parts += known.parts
        return Bound(tuple(parts), frozenset().union(*(each.maybe_null for each in found.values() if each)))

    def _steps(self) -> Iterator[tuple[Edge, Term, Term, Bound, frozenset[int]]]:
        """Yield the equalities that can be followed from what is known."""
        for edge in self.graph.edges:
            for one, two in ((edge.one, edge.two), (edge.two, edge.one)):
                if edge.one_way and one is edge.two:
                    continue
                known = self.value(one)
                if known is None or not rules.may_cross(self.graph, edge, one, two, self.start):
                    continue
                maybe_null = rules.maybe_null(self.graph, edge, one, two, known.maybe_null)
                if maybe_null is not None:
                    yield edge, one, two, known, maybe_null

    def _pass_values_on(self) -> None:
        """Bind columns that equal a known value, without reading their rows."""
        found = True
        while found:
            # Bind all of them instead of stopping at the first: each pass evaluates every equality.
            found = sum(self._bind(*step) for step in self._steps()) > 0

    def _bind(self, edge: Edge, one: Term, two: Term, known: Bound, maybe_null: frozenset[int]) -> bool:
        atom, source = two.atom, one.atom
        if atom is None or source is None or edge.null_safe or atom.leaf in self.read:
            return False
        before = self.bound.get(atom)
        if not self._can_stand_for(source, atom) or (before and not maybe_null < before.maybe_null):
            return False
        given, wanted = self._column(source).type, self._column(atom).type
        parts = known.parts if given == wanted else ("CAST(", *known.parts, f" AS {wanted})")
        self.bound[atom] = Bound(parts, maybe_null)
        return True

    def _can_stand_for(self, source: Atom, atom: Atom) -> bool:
        """Return whether a value that equals a column's is identical to it, including its text."""
        given, wanted = self._column(source), self._column(atom)
        same = given.type == wanted.type or (given.type, wanted.type) in _WIDENING
        return same and given.exact and wanted.exact

    def _column(self, atom: Atom) -> TableColumn:
        return self.graph.leaves[atom.leaf].table.columns[atom.column]

    def _candidates(self) -> Iterator[tuple[Lookup, frozenset[int]]]:
        """Yield occurrences that can be read next, in the order in which they were reached."""
        found: dict[int, list[tuple[Condition, frozenset[int]]]] = {}
        for edge, _, two, known, maybe_null in self._steps():
            for leaf in two.leaves:
                if leaf not in self.read and len(two.leaves) == 1:
                    condition = Condition(two, known.parts, edge.null_safe)
                    found.setdefault(leaf, []).append((condition, maybe_null))
        for leaf, conditions in found.items():
            maybe_null = frozenset.intersection(*(nulls for _, nulls in conditions))
            distinct = tuple(dict.fromkeys(condition for condition, _ in conditions))
            yield Lookup(leaf, distinct, bool(maybe_null)), maybe_null

    # --- the key -----------------------------------------------------------------------------------------------------

    def key_values(self, name: str) -> tuple[Parts, ...] | None:
        """Return the possible values of a key column in rows that the change influences; None: anything."""
        found = [values for term in self.graph.outputs.get(name, ()) if (values := self._values(term))]
        return min(found, key=self._cost, default=None)

    def _values(self, term: Term) -> tuple[Parts, ...] | None:
        changed = self.graph.around_leaf(self.start)
        if term.branch is not None and term.branch not in changed:
            return None
        if rules.may_be_key(self.graph, term):
            known = self.value(term) if self._is_visible(term, changed) else None
            return (known.parts,) if known and term.atoms else None
        chosen = [self._values(choice) if choice.atoms else (choice.parts,) for choice in term.choices]
        if not chosen or not all(chosen):
            return None
        return tuple(dict.fromkeys(parts for values in chosen if values for parts in values))

    def _is_visible(self, term: Term, changed: Sequence[int]) -> bool:
        """Return whether influenced rows of the whole query have the term in common with the changed row."""
        around = {block for leaf in term.leaves for block in self.graph.around_leaf(leaf)}
        return all(rules.may_leave(self.graph, block, term) for block in around if block in changed)

    def _cost(self, values: tuple[Parts, ...]) -> tuple[int, int]:
        needed = self._needed(values)
        return len(needed), sum(len(parts) for parts in values)

    # --- what of it is needed ----------------------------------------------------------------------------------------

    def path(self, columns: Sequence[str]) -> Path | None:
        """Return the path to these columns of the key, without unnecessary look-ups."""
        values = {name: found for name in columns if (found := self.key_values(name))}
        if len(values) < len(columns):
            return None
        needed = self._needed([parts for found in values.values() for parts in found])
        lookups = (self._narrowed(each, needed) for each in self.lookups if each.leaf in needed)
        return Path(self.graph, self.start, tuple(lookups), values)

    def _needed(self, values: Sequence[Parts]) -> set[int]:
        """Return the look-ups that provide the values, and their dependencies: one condition of each is enough."""
        made = {lookup.leaf: lookup for lookup in self.lookups}
        needed: set[int] = set()
        waiting = list(values)
        while waiting:
            for leaf in _leaves(waiting.pop()) & made.keys() - needed:
                needed.add(leaf)
                waiting.append(made[leaf].conditions[0].value)
        return needed

    def _narrowed(self, lookup: Lookup, needed: set[int]) -> Lookup:
        """Keep the conditions on what is read anyway."""
        known = needed | {self.start}
        return lookup._replace(conditions=tuple(each for each in lookup.conditions if _leaves(each.value) <= known))


def _leaves(parts: Parts) -> set[int]:
    return {part.leaf for part in parts if isinstance(part, Atom)}


def search(graph: Graph, start: int) -> Search:
    found = Search(graph.with_copies(start), start)
    found.run()
    return found
