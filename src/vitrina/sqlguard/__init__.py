"""Check a user's SQL before it runs: one SELECT over allowed tables, functions and types, or a clear refusal.

The parser follows PostgreSQL's lexical rules and accepts a part of its grammar, so it never reads a text as another
query than the server does. `search_path` must be empty where the query runs: names without a schema then mean
pg_catalog only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vitrina.sentences import say
from vitrina.sqlguard import queries, tables, volatile
from vitrina.sqlguard.extensions import KNOWN
from vitrina.sqlguard.parser import Parser
from vitrina.sqlguard.tokens import Kind, Token, position, refuse, tokenize
from vitrina.sqlguard.volatile import UNKNOWN

__all__ = ["CheckedQuery", "SqlPolicy", "check", "place", "render", "render_parts"]


@dataclass(frozen=True)
class SqlPolicy:
    """Hold what the operator allows. `extra_functions` are written as queries call them: `similarity`, `public.st_*`.

    Objects of extensions are named without a schema, which the reader finds (`connectors.postgres.sessions`).
    """

    allowed_schemas: frozenset[str]
    extra_functions: frozenset[str] = frozenset()
    max_length: int = 100_000
    extensions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for schema in self.allowed_schemas:
            if schema.startswith("pg_") or schema == "information_schema":
                raise ValueError(f"the schema {schema} belongs to the server and cannot be opened to queries")


@dataclass(frozen=True)
class CheckedQuery:
    """Hold a query that may run, and what it uses."""

    text: str  # the author's text without comments at its ends and without the closing semicolon
    tables: tuple[tuple[str, str], ...]  # (schema, table) in order of appearance
    functions: frozenset[str]
    parameters: frozenset[str]  # of {"since", "until"}
    volatile_columns: frozenset[str]  # output columns computed only from now(), random() and similar functions
    has_with: bool
    body_start: int  # text[:body_start] is the WITH clause, text[body_start:] what follows it
    parameter_spans: tuple[tuple[int, int, str], ...]  # start, end and name of each parameter in `text`
    begins_at: tuple[int, int] = (1, 1)  # line and column of `text` in what the author wrote


def check(sql: str, policy: SqlPolicy, *, given: Iterable[str] = ()) -> CheckedQuery:
    """Raise InvalidQuery unless the query only reads what the policy allows.

    `given`: names without a schema that stand for rows, because the query will run under a WITH that defines them.
    """
    if len(sql) > policy.max_length:
        what = say("query.too_long", most=policy.max_length)
        refuse(sql, 0, "length", what, say("query.shorten"))
    tokens = tokenize(sql)
    parser = Parser(
        sql,
        tokens,
        allowed_schemas=policy.allowed_schemas,
        extra_functions=policy.extra_functions,
        trusted=tuple(KNOWN[name] for name in policy.extensions if name in KNOWN),
    )
    for name in given:
        parser.scope.name(name, UNKNOWN)
    _refuse_other_statements(parser)
    has_with = queries.read_with(parser)
    body = parser.token
    columns = queries.read_rest_of_query(parser, queries.read_term(parser))
    _refuse_second_statement(parser)
    tables.refuse_unresolved(parser)
    start, end = _ends(tokens)
    return CheckedQuery(
        text=sql[start:end],
        tables=tuple(parser.found.tables),
        functions=frozenset(parser.found.functions),
        parameters=frozenset(parser.found.parameters),
        volatile_columns=volatile.stamp_names(columns),
        has_with=has_with,
        body_start=body.start - start,
        parameter_spans=tuple(
            (token.start - start, token.end - start, token.value) for token in tokens if token.kind is Kind.PARAMETER
        ),
        begins_at=position(sql, start),
    )


def render(query: CheckedQuery, placeholders: Mapping[str, str]) -> str:
    """Return the author's text, with :since and :until replaced by SQL such as `$1::timestamptz`."""
    return _replaced(query, 0, len(query.text), placeholders)


def render_parts(query: CheckedQuery, placeholders: Mapping[str, str]) -> tuple[str, str]:
    """Return the WITH clause ("" without one) and the rest, for wrapping a query with its WITH kept outside."""
    with_clause = _replaced(query, 0, query.body_start, placeholders)
    return with_clause, _replaced(query, query.body_start, len(query.text), placeholders)


def place(query: CheckedQuery, placeholders: Mapping[str, str], offset: int) -> tuple[int, int]:
    """Return line and column, in the author's text, of a character of `render(query, placeholders)`."""
    grown = 0
    for start, end, name in query.parameter_spans:
        if start + grown >= offset:
            break
        # Any position inside a placeholder maps to the beginning of the parameter.
        inside = min(offset - start - grown, len(placeholders[name]))
        if inside < len(placeholders[name]):
            offset -= inside
            break
        grown += len(placeholders[name]) - (end - start)
    line, column = position(query.text, offset - grown)
    first_line, first_column = query.begins_at
    return line + first_line - 1, column + (first_column - 1 if line == 1 else 0)


def _refuse_other_statements(parser: Parser) -> None:
    if parser.token.kind is Kind.END:
        parser.refuse("empty query", say("query.empty"), say("query.write_select"))
    if not (parser.at("(") or queries.at_query(parser)):
        shown = parser.token.value.upper() if parser.token.kind is Kind.WORD else parser.token.value
        what = say("query.begins_with", word=shown)
        parser.refuse(f"statement {shown}", what, say("query.one_select"))


def _refuse_second_statement(parser: Parser) -> None:
    has_semicolon = False
    while parser.take(";"):
        has_semicolon = True
    if parser.token.kind is not Kind.END:
        if has_semicolon:
            parser.refuse("second statement", say("query.second"), say("query.keep_one"))
        parser.refuse_unexpected()


def _ends(tokens: list[Token]) -> tuple[int, int]:
    """Return where the query begins and ends without comments and semicolons around it."""
    last = len(tokens) - 1
    while tokens[last].kind is Kind.END or (tokens[last].kind is Kind.PUNCTUATION and tokens[last].value == ";"):
        last -= 1
    return tokens[0].start, tokens[last].end


def _replaced(query: CheckedQuery, start: int, end: int, placeholders: Mapping[str, str]) -> str:
    pieces: list[str] = []
    for span_start, span_end, name in query.parameter_spans:
        if start <= span_start < end:
            pieces += [query.text[start:span_start], placeholders[name]]
            start = span_end
    pieces.append(query.text[start:end])
    return "".join(pieces)
