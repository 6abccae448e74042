"""Detect operators that an empty search_path hides: comparisons of such a type must not fall back to those of text."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from vitrina import explain
from vitrina.errors import SourceQueryFailed
from vitrina.sqlguard import tokens
from vitrina.sqlguard.tokens import Kind, Token
from vitrina.store.database import Connection

_WHOLE_EXPRESSION = frozenset({"select", "distinct", "all", "by", ","})
_END_OF_EXPRESSION = frozenset(
    {"", ",", "as", "asc", "desc", "nulls", "from", "where", "group", "having", "order", "limit", "offset", "fetch"}
    | {"union", "except", "intersect", "window"}
)


def refuse_hidden(source: Connection, text: str, plan: object, relations: Iterable[tuple[str, str]]) -> None:
    """Refuse a query that compares a column of such a type as if it were text; it would find other rows.

    If the operators are visible, the plan shows no cast and there is nothing to refuse. The caller omits this if no
    column has a type outside of pg_catalog, because the catalog's answer takes longer to plan than to find.
    """
    columns = _columns(source, relations)
    if not columns:
        return
    words = tokens.tokenize(text)
    for column in columns:
        names = _names(words, column["name"])
        operator = next(filter(None, (_hidden(plan, name, column) for name in names)), None)
        if operator and any(_is_used(words, place) for place in _places(words, names)):
            raise SourceQueryFailed(_message(column, operator))


def _message(column: dict[str, Any], operator: str) -> str:
    name, kind, text, owner = column["name"], column["type"], column["falls_back_to"], column["extension"]
    trust = f"have the operator trust it with VITRINA_TRUSTED_EXTENSIONS={owner}"
    return (
        f"the source query uses {operator} on the column {name}, whose type {kind} brings its own {operator} from"
        f" outside of pg_catalog, where it is not looked for: values would be compared as {text} instead, and other"
        f" rows be found. Write {name}::{text} where that is meant, or {trust if owner else 'make it so in a view'}"
    )


_STRINGS = re.compile(r"'(?:[^']|'')*+'")
_CAST = re.compile(r"\)::[a-z]+(?: varying)?(?:\(\d+\))?")
_OPERATOR = r"[~!@#^&|`?+*/%<>=-]+"
_NEXT = re.compile(rf" (?:({_OPERATOR}) |(IS (?:NOT )?DISTINCT) )")
_BEFORE = re.compile(rf"(?:(?<= )({_OPERATOR}) (?:ANY |ALL )?\(?|(NULLIF)\(|(\w+)\((?:[^()]*, )?)$")


def _hidden(plan: object, name: str, column: dict[str, Any]) -> str | None:
    """Find an operator of the column's type that the plan replaces, after a cast, by one of another type."""
    shown = rf'(?:[\w"$]+\.)?{re.escape(_as_shown(name))}'
    mentioned = re.compile(rf'(?<![\w"$.]){shown}(?!["\w$(])(?!\)::)')
    # The plan does not show the comparison of CASE, but the compared value: it has the same type if the operator was
    # found.
    by_case = re.compile(rf"CASE {shown} WHEN (?!''::{re.escape(column['type'].rpartition('.')[2])})")
    own = {*column["operators"], *(f"{function}()" for function in column["functions"])}
    for expression in explain.expressions(plan):
        text = _STRINGS.sub("''", expression)
        found = set(_given_to(text, mentioned)) | ({"="} if by_case.search(text) else set())
        if found & own:
            return min(found & own)
    return None


def _given_to(text: str, mentioned: re.Pattern[str]) -> Iterator[str]:
    """Find operators and functions applied to a cast of an expression that mentions the column."""
    for cast in _CAST.finditer(text):
        start = _opening(text, cast.start())
        if not mentioned.search(text, start + 1, cast.start()):
            continue
        after, before = _NEXT.match(text, cast.end()), _BEFORE.search(text[:start])
        if after:
            yield after[1] or "="
        if before:
            yield before[1] or ("=" if before[2] else f"{before[3]}()")


def _opening(text: str, closing: int) -> int:
    """Find the parenthesis that the one at `closing` closes."""
    depth = 0
    for place in range(closing, -1, -1):
        depth += {")": 1, "(": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return 0


def _as_shown(name: str) -> str:
    return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'


def _names(words: list[Token], column: str) -> set[str]:
    """Collect the column's name and the aliases that the query gives it."""
    names = {column}
    while True:
        found = {label for place in _places(words, names) if (label := _label(words, place))}
        if found <= names:
            return names
        names |= found


def _places(words: list[Token], names: set[str]) -> Iterator[tuple[int, int]]:
    """Find the first and last token of each mention, including the table's name before it."""
    for place, word in enumerate(words):
        if word.kind not in (Kind.WORD, Kind.NAME) or word.value not in names or _value(words, place + 1) == ".":
            continue
        first = last = place
        while _value(words, first - 1) == ".":
            first -= 2
        while _value(words, first - 1) == "(" and _value(words, last + 1) == ")" and not _is_name(words, first - 2):
            first, last = first - 1, last + 1
        yield first, last


def _label(words: list[Token], place: tuple[int, int]) -> str | None:
    after = place[1] + 1
    if _value(words, after) == "as":
        after += 1
    elif not _is_name(words, after) or _value(words, after) in _END_OF_EXPRESSION:
        return None
    return words[after].value if _is_whole(words, place[0]) and _is_name(words, after) else None


def _is_used(words: list[Token], place: tuple[int, int]) -> bool:
    """Return whether the column is used in an expression.

    Lists of outputs, groups or an order do not count, nor does a cast that the author wrote.
    """
    first, last = place
    after = _value(words, last + 1)
    if after == "::" or (_value(words, first - 1) == "(" and _value(words, first - 2) == "cast"):
        return False
    is_alone = after in _END_OF_EXPRESSION or _label(words, place) is not None
    is_label = _value(words, first - 1) == "as"
    return not is_label and not (_is_whole(words, first) and is_alone)


def _is_whole(words: list[Token], first: int) -> bool:
    return _value(words, first - 1) in _WHOLE_EXPRESSION


def _is_name(words: list[Token], place: int) -> bool:
    return 0 <= place < len(words) and words[place].kind in (Kind.WORD, Kind.NAME)


def _value(words: list[Token], place: int) -> str:
    """Return the text of a keyword, sign or operator; a quoted name is none of these."""
    if not 0 <= place < len(words) or words[place].kind in (Kind.NAME, Kind.STRING):
        return "" if place >= len(words) else "\0"
    return words[place].value


def _columns(source: Connection, relations: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """List columns whose type has operators outside pg_catalog and casts implicitly to a type inside it."""
    listed = list(relations)
    wanted = [[schema for schema, _ in listed], [name for _, name in listed]]
    return source.execute(
        """
        SELECT DISTINCT a.attname AS name, pg_catalog.format_type(t.oid, NULL) AS type, e.extname AS extension,
               (SELECT min(pg_catalog.format_type(k.casttarget, NULL) COLLATE "C") FROM pg_catalog.pg_cast k
                JOIN pg_catalog.pg_type b ON b.oid = k.casttarget
                WHERE k.castsource = t.oid AND k.castcontext = 'i'
                  AND b.typnamespace = 'pg_catalog'::regnamespace AND b.typispreferred) AS falls_back_to,
               ARRAY(SELECT DISTINCT o.oprname::text FROM pg_catalog.pg_operator o
                     WHERE t.oid IN (o.oprleft, o.oprright) AND o.oprnamespace <> 'pg_catalog'::regnamespace
               ) AS operators,
               ARRAY(SELECT DISTINCT p.proname::text FROM pg_catalog.pg_proc p
                     JOIN pg_catalog.pg_proc b ON b.proname = p.proname
                      AND b.pronamespace = 'pg_catalog'::regnamespace
                     WHERE t.oid = ANY(p.proargtypes) AND p.pronamespace <> 'pg_catalog'::regnamespace
               ) AS functions
        FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
        JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        JOIN pg_catalog.pg_type y ON y.oid = a.atttypid AND y.typnamespace <> 'pg_catalog'::regnamespace
        JOIN pg_catalog.pg_type t ON t.oid = CASE y.typtype WHEN 'd' THEN y.typbasetype ELSE y.oid END
         AND t.typnamespace <> 'pg_catalog'::regnamespace AND t.typtype = 'b' AND t.typelem = 0
        LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid
         AND d.deptype = 'e'
        LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
        WHERE EXISTS (SELECT FROM pg_catalog.pg_cast k JOIN pg_catalog.pg_type b ON b.oid = k.casttarget
                      WHERE k.castsource = t.oid AND k.castcontext = 'i'
                        AND b.typnamespace = 'pg_catalog'::regnamespace)
        """,
        wanted,
    ).fetchall()
