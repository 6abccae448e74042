"""Values of changed rows as arrays of texts, as SQL takes them."""

from collections.abc import Iterator, Mapping, Sequence

from vitrina.connectors.postgres.derive.tables import Table
from vitrina.ports.live import Change, Image

Row = tuple[str | None, ...]


class ValueMissing(Exception):
    """The log did not carry a value that leads to keys."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


class Images:
    """The old and new rows of a batch, by the table under whose name its changes come."""

    def __init__(self, tables: Mapping[str, Table], changes: Sequence[Change]) -> None:
        self._tables = tables
        self._changes: dict[str, list[Change]] = {}
        for change in changes:
            self._changes.setdefault(change.relation, []).append(change)

    def parameters(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, list[str | None]]:
        """Return an array for each of these columns and each age; raises when a value is missing."""
        found: dict[str, list[str | None]] = {}
        for relation, columns in wanted.items():
            for age in ("old", "new"):
                arrays = in_columns(set(self.rows(relation, columns, age)), len(columns))
                for column, values in zip(columns, arrays, strict=True):
                    found[parameter(age, relation, column)] = values
        return found

    def rows(self, relation: str, columns: Sequence[str], age: str) -> Iterator[Row]:
        """Give the rows of a table as they were, or as they became."""
        left_out = "insert" if age == "old" else "delete"
        for change in self._changes.get(relation, ()):
            if change.kind != left_out:
                image, other = (change.old, change.new) if age == "old" else (change.new, change.old)
                yield self._row(relation, columns, image or {}, (other or {}, age))

    def _row(self, relation: str, columns: Sequence[str], image: Image, besides: tuple[Image, str]) -> Row:
        """Read a row's values: what one image lacks did not change, as far as the log would have said so."""
        other, age = besides
        values = []
        for column in columns:
            # A large value that did not change is missing in the new image; the old one has it if anything has. An
            # old image comes only when one of its columns changed.
            carried = age == "new" or column in self._tables[relation].identity
            source = image if column in image else other if carried else {}
            if column not in source:
                raise ValueMissing(relation)
            values.append(source[column])
        return tuple(values)


def in_columns(rows: set[Row], width: int) -> list[list[str | None]]:
    return [list(values) for values in zip(*rows, strict=True)] or [[] for _ in range(width)]


def parameter(age: str, relation: str, column: str) -> str:
    """Name an array in a way that the driver takes for one name."""
    return "_".join(["".join(c if c.isalnum() else f"x{ord(c):x}" for c in part) for part in (age, relation, column)])
