"""Parse the FROM clause: tables of the allowed schemas, names of WITH, subqueries, functions, joins."""

from typing import NoReturn

from vitrina.sentences import say
from vitrina.sqlguard import calls, expressions, queries, sqljson, types, vocabulary, volatile
from vitrina.sqlguard.parser import Parser, UnresolvedTable
from vitrina.sqlguard.tokens import Kind, Token
from vitrina.sqlguard.volatile import UNKNOWN, Columns, Sources


def read_from(parser: Parser, sources: Sources) -> None:
    parser.comma_separated(lambda: _joined(parser, sources))


def read_table_name(parser: Parser) -> tuple[str, Columns]:
    """Read [ONLY] schema.table [*]; return its last part and its columns."""
    needs_parenthesis = parser.take_word("only") and parser.take("(")
    start = parser.token
    parts = parser.dotted_name()
    if needs_parenthesis:
        parser.expect(")")
    else:
        parser.take("*")
    return parts[-1], _use_table(parser, start, parts)


def refuse_unresolved(parser: Parser) -> None:
    """Refuse, at the end of the query, a table without a schema that no WITH defines."""
    for table in parser.found.unresolved_tables:
        if not table.scope.sees(table.token.value):
            _refuse_without_schema(parser, table.token)


def _use_table(parser: Parser, start: Token, parts: list[str]) -> Columns:
    parser.note_rows()
    if len(parts) == 1:
        if not parser.scope.sees(start.value):
            parser.found.unresolved_tables.append(UnresolvedTable(start, parser.scope))
        return parser.scope.columns_of(start.value)
    full_name = ".".join(parts)
    if len(parts) > 2:
        parser.refuse(f"table {full_name}", say("query.table_parts"), say("query.write_table"), start)
    if parts[0] not in parser.allowed_schemas:
        what = say("query.schema", table=full_name)
        instead = say("query.read_from", schemas=_or(parser.allowed_schemas), remedy=_remedy(parts[0]))
        parser.refuse(f"table {full_name}", what, instead, start)
    parser.found.tables[parts[0], parts[1]] = None
    return UNKNOWN


def _remedy(schema: str) -> str:
    if schema.startswith("pg_") or schema == "information_schema":
        return say("query.no_catalogs")
    return say("query.open_schema", schema=schema)


def _refuse_without_schema(parser: Parser, token: Token) -> NoReturn:
    name = token.value
    instead = say("query.write_schema", schemas=_or(parser.allowed_schemas))
    parser.refuse(f"table {name}", say("query.no_schema", table=name), instead, token)


def _or(names: frozenset[str]) -> str:
    return " or ".join(sorted(names)) or "that the operator allows (none yet)"


def _joined(parser: Parser, sources: Sources) -> None:
    _reference(parser, sources)
    _joins(parser, sources)


def _joins(parser: Parser, sources: Sources) -> None:
    """Read any number of joins; conditions may follow later, as in `a JOIN b JOIN c ON .. ON ..`."""
    conditions_owed = 0
    while True:
        if parser.take_word("cross"):
            parser.expect_word("join")
            _reference(parser, sources)
        elif parser.take_word("natural"):
            _join_words(parser)
            _reference(parser, sources)
        elif parser.at_word("join", "inner", "left", "right", "full"):
            _join_words(parser)
            _reference(parser, sources)
            conditions_owed += 1
        elif conditions_owed:
            _join_condition(parser)
            conditions_owed -= 1
        else:
            return


def _join_words(parser: Parser) -> None:
    if parser.take_word("left", "right", "full"):
        parser.take_word("outer")
    else:
        parser.take_word("inner")
    parser.expect_word("join")


def _join_condition(parser: Parser) -> None:
    if parser.expect_word("on", "using").value == "on":
        expressions.read_expression(parser)
        return
    parser.name_list()
    if parser.take_word("as"):
        parser.column_name()


def _reference(parser: Parser, sources: Sources) -> None:
    is_lateral = parser.take_word("lateral")
    if parser.at("("):
        columns = _parenthesised(parser, sources)
        _alias(parser, sources, columns)
    elif parser.take_words("rows", "from"):
        parser.in_parentheses(lambda: parser.comma_separated(lambda: _row_function(parser)))
        _function_alias(parser, sources)
    elif parser.at_word("json_table") and parser.next_at("("):
        sqljson.read_table(parser)
        _function_alias(parser, sources)
    elif _at_call(parser):
        _function(parser)
        _function_alias(parser, sources)
    elif is_lateral:
        parser.refuse_unexpected("a subquery or a function")
    else:
        name, columns = read_table_name(parser)
        _alias(parser, sources, columns, default=name)
        if parser.take_word("tablesample"):
            _sample(parser)


def _parenthesised(parser: Parser, sources: Sources) -> Columns | None:
    """Read `( query )`, or `( a JOIN b )`, for which None is returned. Nothing is read twice."""
    with parser.nested():
        parser.expect("(")
        columns: Columns | None = None
        if parser.at("("):
            columns = _begun_with_parenthesis(parser, sources)
        elif queries.at_query(parser):
            columns = queries.read_query(parser)
        else:
            _joined(parser, sources)
        parser.expect(")")
    return columns


def _begun_with_parenthesis(parser: Parser, sources: Sources) -> Columns | None:
    columns = _parenthesised(parser, sources)
    if columns is not None and queries.at_rest_of_query(parser):
        return queries.read_rest_of_query(parser, columns)
    if columns is not None and parser.at(")"):
        return columns
    _alias(parser, sources, columns)
    _joins(parser, sources)
    return None


def _alias(parser: Parser, sources: Sources, columns: Columns | None, default: str = "") -> None:
    """Read an optional alias. `columns` is None for a join, whose tables are among the sources already."""
    alias, names = default, list[str]()
    if parser.take_word("as") or parser.at_column_name():
        alias = parser.column_name()
        names = parser.name_list() if parser.at("(") else []
    if columns is not None:
        sources[alias or f"unnamed {len(sources)}"] = volatile.renamed(columns, names)
    elif alias:
        sources[alias] = UNKNOWN


def _sample(parser: Parser) -> None:
    method = parser.label()
    if method.value not in vocabulary.SAMPLING_METHODS:
        what = say("query.sampling", name=method.value)
        parser.refuse(f"function {method.value}", what, say("query.use_bernoulli"), method)
    parser.in_parentheses(lambda: expressions.read_expressions(parser))
    if parser.take_word("repeatable"):
        parser.in_parentheses(lambda: expressions.read_expression(parser))


def _at_call(parser: Parser) -> bool:
    """Return whether a name, with or without a schema, precedes a parenthesis."""
    distance = 1
    while parser.peek(distance).kind is Kind.PUNCTUATION and parser.peek(distance).value == ".":
        distance += 2
    following = parser.peek(distance)
    is_before_parenthesis = following.kind is Kind.PUNCTUATION and following.value == "("
    return parser.at_identifier() and is_before_parenthesis and not parser.at_word("only")


def _function(parser: Parser) -> None:
    parser.note_rows()
    if parser.token.kind is Kind.WORD and calls.at_own_syntax(parser):
        calls.read_own_syntax(parser)
    else:
        parts = [parser.advance()]
        while parser.take("."):
            parts.append(parser.label())
        calls.read_call(parser, parts)


def _row_function(parser: Parser) -> None:
    if not _at_call(parser):
        parser.refuse_unexpected("a function")
    _function(parser)
    if parser.take_word("as"):
        _column_definitions(parser)


def _function_alias(parser: Parser, sources: Sources) -> None:
    sources[f"unnamed {len(sources)}"] = UNKNOWN
    if parser.take_word("with"):
        parser.expect_word("ordinality")
    has_as = parser.take_word("as")
    if has_as and parser.at("("):
        _column_definitions(parser)
    elif has_as or parser.at_column_name():
        sources[parser.column_name()] = UNKNOWN
        if parser.at("("):
            _column_definitions(parser)


def _column_definitions(parser: Parser) -> None:
    """Read `(a, b)` or `(a int, b text)`."""
    parser.in_parentheses(lambda: parser.comma_separated(lambda: _column_definition(parser)))


def _column_definition(parser: Parser) -> None:
    parser.column_name()
    if not parser.at(",", ")"):
        types.read_type(parser)
        if parser.at_word("collate"):
            types.read_collation(parser)
