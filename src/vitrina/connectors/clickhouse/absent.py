"""Find the rows of stale keys that the query no longer returned, in the types of the table.

Keys come as PostgreSQL writes them. `1.0` and `1.00` are one key of a Decimal, so keys are compared in one form only.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from uuid import UUID

from vitrina.connectors.clickhouse import types
from vitrina.connectors.clickhouse.compare import TableSide
from vitrina.connectors.clickhouse.opened_table import OpenedTable
from vitrina.connectors.clickhouse.types import Field
from vitrina.ports.batch import Key
from vitrina.ports.live import Stale


def absent_keys(target: OpenedTable, table: str, stale: Stale, read: Sequence[Key]) -> list[Key]:
    """Return the keys that the table has among the stale ones, without those that were read."""
    layout = target.layout
    present = set(_canonical(target, layout.key, read))
    asked = set(_canonical(target, stale.columns, stale.keys))
    columns = tuple(stale.columns)
    if set(columns) == set(layout.key):
        places = [columns.index(name) for name in layout.key]
        asked = {tuple(key[at] for at in places) for key in asked} - present
        columns = layout.key
    if not asked:
        return []
    side = TableSide(target, f"{table} FINAL", (), is_source=False)
    return sorted(key for key in side.keys_with(columns, sorted(asked)) if key not in present)


def _canonical(target: OpenedTable, columns: Sequence[str], keys: Sequence[Key]) -> list[Key]:
    """Return keys as the table writes them. Leave out values that the type cannot hold, which no row can have."""
    fields = {one.name: one for one in target.layout.fields}
    readers = [_reader(fields[name]) for name in columns]
    made = []
    for key in keys:
        values = [read(text) for read, text in zip(readers, key, strict=True)]
        if None not in values:
            made.append(tuple(value for value in values if value is not None))
    return made


def _reader(field: Field) -> Callable[[str | None], str | None]:
    def read(text: str | None) -> str | None:
        if text is None:
            return None
        # Infinity, and years that Python does not support, are beyond what the table can hold.
        with suppress(ValueError, InvalidOperation):
            return _READERS.get(field.kind.partition("(")[0], _text)(text, field)
        return None

    return read


def _text(text: str, _: Field) -> str:
    return text


def _integer(text: str, field: Field) -> str | None:
    number, bits = int(text), field.sent_as.bit_width - 1
    return str(number) if -(1 << bits) <= number < 1 << bits else None


def _uuid(text: str, _: Field) -> str:
    return str(UUID(text))


def _date(text: str, _: Field) -> str | None:
    day = date.fromisoformat(text)
    return day.isoformat() if types.FIRST_DAY <= day <= types.LAST_DAY else None


def _moment(text: str, _: Field) -> str | None:
    moment = datetime.fromisoformat(text)
    plain = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    return plain.isoformat(" ", "microseconds") if types.FIRST_MOMENT <= plain <= types.LAST_MOMENT else None


def _decimal(text: str, field: Field) -> str | None:
    number, scale = Decimal(text), field.sent_as.scale
    with localcontext(prec=field.sent_as.precision):
        fitted = number.quantize(Decimal(1).scaleb(-scale))
    return format(fitted, "f") if fitted == number else None


_READERS: dict[str, Callable[[str, Field], str | None]] = {
    "Int16": _integer,
    "Int32": _integer,
    "Int64": _integer,
    "UUID": _uuid,
    "Date32": _date,
    "DateTime64": _moment,
    "Decimal": _decimal,
}
