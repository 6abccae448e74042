"""Parse the SQL/JSON functions and JSON_TABLE: values and types with a fixed set of words between them."""

from vitrina.sqlguard import calls, expressions, queries, types
from vitrina.sqlguard.parser import Parser
from vitrina.sqlguard.tokens import Kind

FUNCTIONS = (
    "json",
    "json_array",
    "json_arrayagg",
    "json_exists",
    "json_object",
    "json_objectagg",
    "json_query",
    "json_scalar",
    "json_serialize",
    "json_value",
)


def read_function(parser: Parser) -> str:
    name = parser.advance().value
    parser.note_function(name)
    parser.in_parentheses(lambda: _pieces(parser))
    calls.read_after_call(parser)
    return name


def read_table(parser: Parser) -> None:
    """Read JSON_TABLE (document, path COLUMNS (...))."""
    parser.note_function(parser.advance().value)
    parser.note_rows()
    parser.in_parentheses(lambda: _table_pieces(parser))


def _pieces(parser: Parser) -> None:
    while not parser.at(")"):
        _piece(parser)


def _table_pieces(parser: Parser) -> None:
    while not parser.at(")"):
        if parser.take_word("columns"):
            _columns(parser)
        elif parser.take_word("as"):
            parser.column_name()
        else:
            _piece(parser)


def _piece(parser: Parser) -> None:
    if parser.take(",") or parser.take(":") or _clause(parser):
        return
    if parser.at_word("order"):
        queries.read_order_by(parser)
    elif queries.at_query(parser):
        queries.read_query(parser)
    else:
        calls.read_argument(parser)


def _clause(parser: Parser) -> bool:
    """Read one of the clauses between the values; return False if a value begins here."""
    if parser.take_word("returning"):
        types.read_type(parser)
    elif parser.take_word("passing"):
        parser.comma_separated(lambda: _passed(parser))
    elif parser.take_word("default"):
        expressions.read_expression(parser)
        parser.expect_word("on")
        parser.expect_word("empty", "error")
    elif parser.take_words("format", "json"):
        if parser.take_word("encoding"):
            parser.column_name()
    elif parser.at_word("value") and not parser.next_at(",", ")", ".", "(", "[", "::"):
        parser.advance()
    else:
        return _behaviour(parser) or _keys_and_wrapper(parser)
    return True


def _passed(parser: Parser) -> None:
    expressions.read_expression(parser)
    parser.expect_word("as")
    parser.label()


def _behaviour(parser: Parser) -> bool:
    """Read NULL ON NULL, ABSENT ON NULL, ERROR ON ERROR or EMPTY ARRAY ON EMPTY."""
    if not parser.at_word("null", "absent", "error", "empty", "true", "false", "unknown"):
        return False
    if not (parser.next_at_word("on") or parser.at_word("empty")):
        return False
    parser.advance()
    parser.take_word("array", "object")
    parser.expect_word("on")
    parser.expect_word("null", "empty", "error")
    return True


def _keys_and_wrapper(parser: Parser) -> bool:
    """Read WITH UNIQUE KEYS, WITHOUT ARRAY WRAPPER or OMIT QUOTES ON SCALAR STRING."""
    if parser.take_words("keep", "quotes") or parser.take_words("omit", "quotes"):
        if parser.take_words("on", "scalar"):
            parser.expect_word("string")
        return True
    if not parser.take_word("with", "without"):
        return False
    if parser.take_word("unique"):
        parser.take_word("keys")
    else:
        parser.take_word("conditional", "unconditional")
        parser.take_word("array")
        parser.expect_word("wrapper")
    return True


def _columns(parser: Parser) -> None:
    parser.in_parentheses(lambda: parser.comma_separated(lambda: _column(parser)))


def _column(parser: Parser) -> None:
    if parser.at_word("nested") and (parser.next_at_word("path") or parser.peek().kind is Kind.STRING):
        _nested_columns(parser)
        return
    parser.column_name()
    if parser.take_word("for"):
        parser.expect_word("ordinality")
        return
    types.read_type(parser)
    parser.take_word("exists")
    while not parser.at(",", ")"):
        if parser.take_word("path"):
            parser.expect_kind(Kind.STRING, "a string")
        elif not _clause(parser):
            parser.refuse_unexpected()


def _nested_columns(parser: Parser) -> None:
    parser.advance()
    parser.take_word("path")
    parser.expect_kind(Kind.STRING, "a string")
    if parser.take_word("as"):
        parser.column_name()
    parser.expect_word("columns")
    _columns(parser)
