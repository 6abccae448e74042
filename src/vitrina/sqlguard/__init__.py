"""Judges a user's SQL before anything runs it: one SELECT, allowed tables, functions and types, or a clear refusal."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitrina.sqlguard.grammar import Reader
from vitrina.sqlguard.tokens import Kind, refuse, tokenize

__all__ = ["Judged", "SqlPolicy", "judge", "render", "render_parts"]


@dataclass(frozen=True)
class SqlPolicy:
    """What the operator allows. `extra_functions` holds names as queries write them: `similarity`, `public.f`."""

    allowed_schemas: frozenset[str]
    extra_functions: frozenset[str] = frozenset()
    max_length: int = 100_000

    def __post_init__(self) -> None:
        for schema in self.allowed_schemas:
            if schema.startswith("pg_") or schema == "information_schema":
                raise ValueError(f"the schema {schema} belongs to the server and cannot be opened to queries")


@dataclass(frozen=True)
class Judged:
    """A query that may run, and what it uses."""

    text: str  # the author's text without the trailing semicolon and without comments at its ends
    tables: tuple[tuple[str, str], ...]  # (schema, table) in order of appearance
    functions: frozenset[str]
    parameters: frozenset[str]  # of {"since", "until"}
    volatile_columns: frozenset[str]  # output columns made only of now(), random() and the like
    has_with: bool
    has_order: bool
    has_limit: bool
    body_start: int  # text[:body_start] is the WITH clause, text[body_start:] the query behind it
    parameter_spans: tuple[tuple[int, int, str], ...]  # start, end and name of each parameter in `text`


def judge(sql: str, policy: SqlPolicy) -> Judged:
    """Raise InvalidQuery unless the query only reads what the policy allows."""
    if len(sql) > policy.max_length:
        refuse(sql, policy.max_length, "length", f"the query is longer than {policy.max_length} characters", "Shorten it")
    tokens = tokenize(sql)
    found = Reader(sql, tokens, policy.allowed_schemas, policy.extra_functions).read()
    meaningful = [token for token in tokens if token.kind is not Kind.END and token.value != ";"]
    start, end = meaningful[0].start, meaningful[-1].end
    return Judged(
        text=sql[start:end],
        tables=tuple(found.tables),
        functions=frozenset(found.functions),
        parameters=frozenset(found.parameters),
        volatile_columns=found.stamps,
        has_with=found.has_with,
        has_order=found.has_order,
        has_limit=found.has_limit,
        body_start=found.body_start - start,
        parameter_spans=tuple(
            (token.start - start, token.end - start, token.value) for token in tokens if token.kind is Kind.PARAMETER
        ),
    )


def render(judged: Judged, placeholders: Mapping[str, str]) -> str:
    """The author's text, byte for byte, with :since and :until replaced by the given SQL such as `$1::timestamptz`."""
    return _replaced(judged, 0, len(judged.text), placeholders)


def render_parts(judged: Judged, placeholders: Mapping[str, str]) -> tuple[str, str]:
    """The WITH clause ("" without one) and the query behind it, for wrapping the query with its WITH kept outside."""
    return (
        _replaced(judged, 0, judged.body_start, placeholders),
        _replaced(judged, judged.body_start, len(judged.text), placeholders),
    )


def _replaced(judged: Judged, start: int, end: int, placeholders: Mapping[str, str]) -> str:
    pieces: list[str] = []
    for span_start, span_end, name in judged.parameter_spans:
        if start <= span_start < end:
            pieces += [judged.text[start:span_start], placeholders[name]]
            start = span_end
    pieces.append(judged.text[start:end])
    return "".join(pieces)
