"""Convert values of changed rows to arrays of texts for SQL."""

from collections.abc import Iterator, Mapping, Sequence

from vitrina.connectors.postgres.derive.tables import Table
from vitrina.ports.live import Change, Image

Row = tuple[str | None, ...]


class ValueMissing(Exception):
    """Signal that the log did not contain a value that leads to keys."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


class Images:
    """Hold the old and new rows of a batch, by the table name under which its changes are logged."""

    def __init__(self, tables: Mapping[str, Table], changes: Sequence[Change]) -> None:
        self._tables = tables
        self._changes: dict[str, list[Change]] = {}
        for change in changes:
            self._changes.setdefault(change.relation, []).append(change)

    def parameters(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, list[str | None]]:
        """Return an array for each of these columns and each age; raise if a value is missing."""
        found: dict[str, list[str | None]] = {}
        for relation, columns in wanted.items():
            for age in ("old", "new"):
                arrays = in_columns(set(self.rows(relation, columns, age)), len(columns))
                for column, values in zip(columns, arrays, strict=True):
                    found[parameter(age, relation, column)] = values
        return found

    def rows(self, relation: str, columns: Sequence[str], age: str) -> Iterator[Row]:
        """Yield the rows of a table before the changes, or after them."""
        left_out = "insert" if age == "old" else "delete"
        for change in self._changes.get(relation, ()):
            if change.kind != left_out:
                image, other = (change.old, change.new) if age == "old" else (change.new, change.old)
                yield self._row(relation, columns, image or {}, (other or {}, age))

    def _row(self, relation: str, columns: Sequence[str], image: Image, besides: tuple[Image, str]) -> Row:
        """Read a row's values. A value that one image lacks has not changed if the log would have recorded a change."""
        other, age = besides
        values = []
        for column in columns:
            # An unchanged large value is missing in the new image; only the old image can contain it. An old image is
            # sent only if one of its columns changed.
            carried = age == "new" or column in self._tables[relation].identity
            source = image if column in image else other if carried else {}
            if column not in source:
                raise ValueMissing(relation)
            values.append(source[column])
        return tuple(values)


def in_columns(rows: set[Row], width: int) -> list[list[str | None]]:
    return [list(values) for values in zip(*rows, strict=True)] or [[] for _ in range(width)]


def parameter(age: str, relation: str, column: str) -> str:
    """Build a parameter name that the driver accepts."""
    return "_".join(["".join(c if c.isalnum() else f"x{ord(c):x}" for c in part) for part in (age, relation, column)])
