"""Reads the SQL/JSON functions and JSON_TABLE: values and types with a fixed set of words between them."""

from vitrina.sqlguard import calls, expressions, queries, types
from vitrina.sqlguard.reading import Reading
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


def read_function(reading: Reading) -> str:
    name = reading.advance().value
    reading.note_function(name)
    reading.in_parentheses(lambda: _pieces(reading))
    calls.read_after_call(reading)
    return name


def read_table(reading: Reading) -> None:
    """Read JSON_TABLE (document, path COLUMNS (...))."""
    reading.note_function(reading.advance().value)
    reading.note_rows()
    reading.in_parentheses(lambda: _table_pieces(reading))


def _pieces(reading: Reading) -> None:
    while not reading.at(")"):
        _piece(reading)


def _table_pieces(reading: Reading) -> None:
    while not reading.at(")"):
        if reading.take_word("columns"):
            _columns(reading)
        elif reading.take_word("as"):
            reading.column_name()
        else:
            _piece(reading)


def _piece(reading: Reading) -> None:
    if reading.take(",") or reading.take(":") or _clause(reading):
        return
    if reading.at_word("order"):
        queries.read_order_by(reading)
    elif queries.at_query(reading):
        queries.read_query(reading)
    else:
        calls.read_argument(reading)


def _clause(reading: Reading) -> bool:
    """Read one of the clauses between the values; False when a value begins here."""
    if reading.take_word("returning"):
        types.read_type(reading)
    elif reading.take_word("passing"):
        reading.comma_separated(lambda: _passed(reading))
    elif reading.take_word("default"):
        expressions.read_expression(reading)
        reading.expect_word("on")
        reading.expect_word("empty", "error")
    elif reading.take_words("format", "json"):
        if reading.take_word("encoding"):
            reading.column_name()
    elif reading.at_word("value") and not reading.next_at(",", ")", ".", "(", "[", "::"):
        reading.advance()
    else:
        return _behaviour(reading) or _keys_and_wrapper(reading)
    return True


def _passed(reading: Reading) -> None:
    expressions.read_expression(reading)
    reading.expect_word("as")
    reading.label()


def _behaviour(reading: Reading) -> bool:
    """Read NULL ON NULL, ABSENT ON NULL, ERROR ON ERROR or EMPTY ARRAY ON EMPTY."""
    if not reading.at_word("null", "absent", "error", "empty", "true", "false", "unknown"):
        return False
    if not (reading.next_at_word("on") or reading.at_word("empty")):
        return False
    reading.advance()
    reading.take_word("array", "object")
    reading.expect_word("on")
    reading.expect_word("null", "empty", "error")
    return True


def _keys_and_wrapper(reading: Reading) -> bool:
    """Read WITH UNIQUE KEYS, WITHOUT ARRAY WRAPPER or OMIT QUOTES ON SCALAR STRING."""
    if reading.take_words("keep", "quotes") or reading.take_words("omit", "quotes"):
        if reading.take_words("on", "scalar"):
            reading.expect_word("string")
        return True
    if not reading.take_word("with", "without"):
        return False
    if reading.take_word("unique"):
        reading.take_word("keys")
    else:
        reading.take_word("conditional", "unconditional")
        reading.take_word("array")
        reading.expect_word("wrapper")
    return True


def _columns(reading: Reading) -> None:
    reading.in_parentheses(lambda: reading.comma_separated(lambda: _column(reading)))


def _column(reading: Reading) -> None:
    if reading.at_word("nested") and (reading.next_at_word("path") or reading.peek().kind is Kind.STRING):
        _nested_columns(reading)
        return
    reading.column_name()
    if reading.take_word("for"):
        reading.expect_word("ordinality")
        return
    types.read_type(reading)
    reading.take_word("exists")
    while not reading.at(",", ")"):
        if reading.take_word("path"):
            reading.expect_kind(Kind.STRING, "a string")
        elif not _clause(reading):
            reading.refuse_unexpected()


def _nested_columns(reading: Reading) -> None:
    reading.advance()
    reading.take_word("path")
    reading.expect_kind(Kind.STRING, "a string")
    if reading.take_word("as"):
        reading.column_name()
    reading.expect_word("columns")
    _columns(reading)
