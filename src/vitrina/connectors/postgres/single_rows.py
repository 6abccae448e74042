"""Look up single rows of a query by key: which of them exist, each in one text form."""

from collections.abc import Sequence

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres.compare import Field, TableSide, one_form, refuse_strange_keys
from vitrina.connectors.postgres.opened_query import OpenedQuery
from vitrina.connectors.postgres.source import Bounds, translate_read
from vitrina.ports.batch import Key


def refuse_strange(source: OpenedQuery, names: Sequence[str]) -> None:
    """Refuse a key whose equal values have several texts, because none of them is canonical."""
    enums = source.reader.connection.execute(
        "SELECT pg_catalog.format_type(oid, NULL) AS name FROM pg_catalog.pg_type WHERE typtype = 'e'"
    ).fetchall()
    refuse_strange_keys(_fields(source, names), frozenset(row["name"] for row in enums))


def have_keys(source: OpenedQuery, names: Sequence[str], keys: Sequence[Key]) -> Composable:
    """Build the condition that matches exactly these rows."""
    head, rows = source.query.wrapped(Bounds())
    side = TableSide(source.reader.connection, head, rows, _fields(source, names), (), translate_read)
    return side.has_key(sorted(set(keys)))


def in_one_form(source: OpenedQuery, names: Sequence[str], keys: Sequence[Key]) -> list[Key]:
    """Normalise the text of equal keys, in the order given: 1.0 and 1.00 are one key."""
    if not keys:
        return []
    places = [f"k{position}" for position in range(len(names))]
    fields = [
        Field(place, SQL("u.{}::{}").format(Identifier(place), SQL(source.types[name])), source.types[name])
        for place, name in zip(places, names, strict=True)
    ]
    found = source.reader.value(
        SQL("SELECT jsonb_agg({} ORDER BY u.n) FROM unnest({}) WITH ORDINALITY AS u({}, n)").format(
            _key_texts(fields),
            SQL(", ").join(SQL("{}::text[]").format(Literal(list(column))) for column in zip(*keys, strict=True)),
            SQL(", ").join(map(Identifier, places)),
        )
    )
    return [tuple(key) for key in found]


def present(source: OpenedQuery, names: Sequence[str], keys: Sequence[Key]) -> set[Key]:
    """Find which of these keys the source has now."""
    found = source.reader.value(
        source.query.select(
            [SQL("coalesce(jsonb_agg(DISTINCT {}), '[]')").format(_key_texts(_fields(source, names)))],
            Bounds(only=have_keys(source, names, keys)),
        )
    )
    return {tuple(key) for key in found}


def _fields(source: OpenedQuery, names: Sequence[str]) -> tuple[Field, ...]:
    return tuple(Field(name, SQL("q.{}").format(Identifier(name)), source.types[name]) for name in names)


def _key_texts(fields: Sequence[Field]) -> Composed:
    return SQL("jsonb_build_array({})").format(SQL(", ").join(SQL("{}::text").format(one_form(f)) for f in fields))
