"""Build SQL that computes stale keys from images of changed rows, current rows and the batch's old images.

A look-up reads current rows and old images of the same table: a row that existed before the batch may have led to keys
that no current row leads to.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psycopg.sql import SQL, Identifier

from vitrina.connectors.postgres.compare import Field, one_form
from vitrina.connectors.postgres.derive.graph import Atom, Graph, Parts
from vitrina.connectors.postgres.derive.images import parameter
from vitrina.connectors.postgres.derive.paths import Condition, Lookup, Path
from vitrina.connectors.postgres.derive.tables import Table


@dataclass(frozen=True)
class Statement:
    """Hold SQL with parameters named by age, table and column of images, each an array of texts."""

    text: str
    # The columns of each table whose images it reads, by the name under which its changes are logged.
    images: Mapping[str, tuple[str, ...]]
    # Tables whose current rows it reads.
    reads: tuple[Table, ...]


@dataclass(frozen=True)
class Estimate:
    """Estimate the cost of one changed row."""

    keys: int
    # Large tables that are read completely for each batch, because no index leads to the rows.
    scanned: tuple[str, ...] = ()

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.keys + other.keys, tuple(dict.fromkeys((*self.scanned, *other.scanned))))


def statement(path: Path, columns: Sequence[tuple[str, str]]) -> Statement:
    """Build the statement that returns the key's columns, given with their types, as texts."""
    return _Writer(path).written(columns)


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._graph: Graph = path.graph
        self._used = _atoms(path)
        leaves = [path.start, *(lookup.leaf for lookup in path.lookups)]
        self._tables = {leaf: self._graph.leaves[leaf].table for leaf in leaves}
        self._names = list(dict.fromkeys(table.followed_as for table in self._tables.values()))

    def written(self, columns: Sequence[tuple[str, str]]) -> Statement:
        parts = [self._images(name, age) for name in self._names for age in self._ages(name)]
        parts.append(self._first())
        parts += [self._stage(place, lookup) for place, lookup in enumerate(self._path.lookups, 1)]
        last = f"s{len(self._path.lookups)}"
        text = f"WITH {', '.join(parts)} {self._answer(last, columns)}"
        reads = tuple(dict.fromkeys(self._tables[lookup.leaf] for lookup in self._path.lookups))
        return Statement(text, {name: self._columns(name) for name in self._names}, reads)

    def _ages(self, name: str) -> tuple[str, ...]:
        return ("old", "new") if name == self._tables[self._path.start].followed_as else ("old",)

    def _columns(self, name: str) -> tuple[str, ...]:
        found = {atom.column for atom in self._used if self._tables[atom.leaf].followed_as == name}
        return tuple(sorted(found))

    def _types(self, name: str) -> Mapping[str, str]:
        table = next(table for table in self._tables.values() if table.followed_as == name)
        return {column: table.columns[column].type for column in self._columns(name)}

    def _images(self, name: str, age: str) -> str:
        """Build a table of the images that the batch has of one table."""
        types, place = self._types(name), self._names.index(name)
        given = ", ".join(f"%({parameter(age, name, column)})s::text[]" for column in types)
        named = ", ".join(f"c{number}" for number in range(len(types)))
        casts = ", ".join(
            f"i.c{number}::{_safe(kind)} AS {_quoted(column)}" for number, (column, kind) in enumerate(types.items())
        )
        return f"{age}{place} AS MATERIALIZED (SELECT DISTINCT {casts} FROM unnest({given}) AS i({named}))"

    def _first(self) -> str:
        start = self._path.start
        place = self._names.index(self._tables[start].followed_as)
        chosen = ", ".join(f"t.{_quoted(atom.column)} AS {_slot(atom)}" for atom in self._of(start))
        union = f"SELECT * FROM old{place} UNION ALL SELECT * FROM new{place}"
        return f"s0 AS MATERIALIZED (SELECT DISTINCT {chosen} FROM ({union}) AS t)"

    def _stage(self, place: int, lookup: Lookup) -> str:
        table = self._tables[lookup.leaf]
        kept = [f"p.{_slot(atom)}" for atom in self._carried(place)]
        chosen = ", ".join([*kept, *(f"t.{_quoted(atom.column)} AS {_slot(atom)}" for atom in self._of(lookup.leaf))])
        condition = " AND ".join(self._condition(each, lookup.leaf) for each in lookup.conditions)
        current = f"{_quoted(table.schema)}.{_quoted(table.name)}"
        old = f"old{self._names.index(table.followed_as)}"
        arms = [f"SELECT {chosen} FROM s{place - 1} AS p JOIN {rows} AS t ON {condition}" for rows in (current, old)]
        if lookup.may_be_absent and any(len(values) > 1 for values in self._path.values.values()):
            arms.append(self._absent(place, lookup.leaf, kept))
        return f"s{place} AS MATERIALIZED ({' UNION '.join(arms)})"

    def _absent(self, place: int, leaf: int, kept: Sequence[str]) -> str:
        """Keep rows for which nothing is found: for them another possible value of the key is known."""
        types = self._tables[leaf].columns
        nulls = [f"NULL::{_safe(types[atom.column].type)} AS {_slot(atom)}" for atom in self._of(leaf)]
        return f"SELECT {', '.join([*kept, *nulls])} FROM s{place - 1} AS p"

    def _condition(self, condition: Condition, leaf: int) -> str:
        own = _rendered(condition.own.parts, lambda atom: f"t.{_quoted(atom.column)}")
        value = _rendered(condition.value, lambda atom: f"p.{_slot(atom)}")
        atom = condition.own.atom
        is_never_null = atom is not None and self._tables[leaf].columns[atom.column].not_null
        if not condition.null_safe or is_never_null:
            return f"{own} = {value}"
        # IS NOT DISTINCT FROM cannot use an index.
        return f"({own} = {value} OR ({own} IS NULL AND {value} IS NULL))"

    def _answer(self, last: str, columns: Sequence[tuple[str, str]]) -> str:
        """Return one row for each combination of possible values of the key's columns, without NULLs."""
        source, named = f"{last} AS p", []
        for place, (name, kind) in enumerate(columns):
            values = [f"CAST({self._value(parts)} AS {_safe(kind)})" for parts in self._path.values[name]]
            source += f" CROSS JOIN LATERAL (VALUES {', '.join(f'({value})' for value in values)}) AS k{place}(v)"
            named.append(f"k{place}.v")
        present = " AND ".join(f"{name} IS NOT NULL" for name in named)
        texts = ", ".join(key_text(name, kind) for name, (_, kind) in zip(named, columns, strict=True))
        return f"SELECT DISTINCT {texts} FROM {source} WHERE {present}"

    def _value(self, parts: Parts) -> str:
        return _rendered(parts, lambda atom: f"p.{_slot(atom)}")

    def _of(self, leaf: int) -> list[Atom]:
        """Return the columns of an occurrence that the statement uses; at least one, because its rows count."""
        return [atom for atom in self._used if atom.leaf == leaf]

    def _carried(self, place: int) -> list[Atom]:
        earlier = [self._path.start, *(lookup.leaf for lookup in self._path.lookups[: place - 1])]
        return [atom for leaf in earlier for atom in self._of(leaf)]


def _atoms(path: Path) -> list[Atom]:
    used: list[Parts] = [parts for values in path.values.values() for parts in values]
    for lookup in path.lookups:
        for condition in lookup.conditions:
            used += [condition.own.parts, condition.value]
    found = (part for parts in used for part in parts if isinstance(part, Atom))
    return sorted(dict.fromkeys(found), key=lambda atom: (atom.leaf, atom.column))


def _rendered(parts: Parts, write: Callable[[Atom], str]) -> str:
    return "".join(write(part) if isinstance(part, Atom) else _safe(part) for part in parts)


def key_text(value: str, kind: str) -> str:
    return f"({_safe(one_form(Field('', SQL(value), kind)).as_string(None))})::text"


def _slot(atom: Atom) -> str:
    """Build a short name for a column of a stage, because names longer than 63 bytes are truncated."""
    return f"l{atom.leaf}_{hashlib.md5(atom.column.encode(), usedforsecurity=False).hexdigest()[:12]}"


def _quoted(name: str) -> str:
    return _safe(Identifier(name).as_string(None))


def _safe(text: str) -> str:
    """Escape text of the query so that the driver finds no parameter in it."""
    return text.replace("%", "%%")
