"""Resolve the names of a query by SQL's scoping rules, for FROM items, columns and WITH."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vitrina.connectors.postgres.derive.graph import OPAQUE, Value
from vitrina.connectors.postgres.derive.nodes import Node, strings


class Column(NamedTuple):
    # None: the server generates a name that is not known here.
    name: str | None
    value: Value


@dataclass(frozen=True)
class Columns:
    """Hold the columns of a FROM item. If not complete, it may have columns that are not known here."""

    known: tuple[Column, ...]
    complete: bool = True

    def find(self, name: str) -> Value | None:
        """Return what a name refers to; None if there is no such column."""
        found = [column.value for column in self.known if column.name == name]
        if len(found) == 1:
            return found[0]
        return OPAQUE if found or not self.is_sure else None

    @property
    def is_sure(self) -> bool:
        """Return whether all columns are known by name."""
        return self.complete and all(column.name is not None for column in self.known)

    def renamed(self, names: Sequence[str]) -> "Columns":
        """Apply the names of `AS t (a, b)`; if columns are unknown, so is their assignment."""
        if names and not self.complete:
            return Columns(tuple(Column(name, OPAQUE) for name in names), complete=False)
        new = [Column(name, column.value) for name, column in zip(names, self.known, strict=False)]
        return Columns((*new, *self.known[len(names) :]), self.complete)


@dataclass(frozen=True)
class Item:
    """Represent a FROM item by its alias; a table without one may also be qualified with its schema."""

    alias: str
    columns: Columns
    schema: str | None = None


@dataclass
class Scope:
    """Hold the FROM items of one SELECT that have been read so far, and its enclosing scope."""

    outer: "Scope | None"
    items: list[Item] = field(default_factory=list)
    # What unqualified names may refer to: a join merges the lists of its sides.
    visible: list[Columns] = field(default_factory=list)

    def resolve(self, reference: Node) -> Value:
        """Return what a column reference stands for; OPAQUE for whole rows, fields and unknown names."""
        names = strings(reference["fields"])
        if len(names) != len(reference["fields"]) or not 1 <= len(names) <= 3:
            return OPAQUE
        return self._unqualified(names[0]) if len(names) == 1 else self._qualified(names[:-1], names[-1])

    def _unqualified(self, name: str) -> Value:
        found = [column.value for columns in self.visible for column in columns.known if column.name == name]
        if found:
            # The server refuses a name that two items have, so no item with unknown columns has it as well.
            return found[0] if len(found) == 1 else OPAQUE
        if not all(columns.is_sure for columns in self.visible):
            return OPAQUE
        if any(item.alias == name for item in self.items):
            return OPAQUE  # a whole row
        return self.outer._unqualified(name) if self.outer else OPAQUE

    def _qualified(self, qualifier: Sequence[str], name: str) -> Value:
        item = self.find_item(qualifier)
        if item is None:
            return self.outer._qualified(qualifier, name) if self.outer else OPAQUE
        return item.columns.find(name) or OPAQUE

    def find_item(self, qualifier: Sequence[str]) -> Item | None:
        *schema, alias = qualifier
        fitting = [item for item in self.items if item.alias == alias and (not schema or item.schema == schema[0])]
        return fitting[0] if fitting else None

    def star(self, qualifier: Sequence[str]) -> Iterator[Columns]:
        """Yield what `*` or `t.*` stands for."""
        if not qualifier:
            yield from self.visible
        elif item := self.find_item(qualifier):
            yield item.columns
        else:
            yield Columns((), complete=False)


class Cte(NamedTuple):
    """Represent a query of a WITH clause, and what it may refer to."""

    query: Node
    names: Sequence[str]
    outer: Scope | None
    others: "Ctes"


Ctes = Mapping[str, Cte]
