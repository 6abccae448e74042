"""Reads function calls: ordinary ones against the allow-list, and those to which SQL gives a syntax of their own."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from vitrina.sentences import say
from vitrina.sqlguard import expressions, extensions, queries, sqljson, types, vocabulary
from vitrina.sqlguard.reading import Reading
from vitrina.sqlguard.tokens import Kind, Token


def read_call(reading: Reading, parts: list[Token]) -> str:
    """Read arguments and what may follow them; `parts` is the function's name, already read."""
    _check_function(reading, parts)
    is_type_of = [part.value for part in parts][-1] == "pg_typeof"
    reading.note_function(".".join(part.value for part in parts))
    reading.in_parentheses(lambda: _arguments(reading))
    if is_type_of:
        _expect_as_text(reading, parts[0])
    read_after_call(reading)
    return parts[-1].value


def _expect_as_text(reading: Reading, start: Token) -> None:
    """Require a cast to text. Beside a string, a regtype would make the server look that string up among all types."""
    is_cast = reading.at("::") or (reading.at_word("as") and reading.peek(2).value == ")")
    if not (is_cast and reading.peek().value in ("text", "varchar")):
        what = say("query.pg_typeof")
        reading.refuse("function pg_typeof", what, say("query.write_pg_typeof"), start)


def read_argument(reading: Reading) -> None:
    """Read a value, or a named one: `days => 3`."""
    reading.take_word("variadic")
    if reading.at_identifier() and reading.next_at(":=", "=>"):
        reading.advance()
        reading.advance()
    expressions.read_expression(reading)


def read_after_call(reading: Reading) -> None:
    """Read WITHIN GROUP (...) FILTER (...) OVER (...)."""
    if reading.take_words("within", "group"):
        reading.in_parentheses(lambda: queries.read_order_by(reading))
    if reading.at_word("filter") and reading.next_at("("):
        reading.advance()
        reading.in_parentheses(lambda: _filter(reading))
    if reading.take_word("over"):
        reading.note_rows()
        if reading.at("("):
            read_window(reading)
        else:
            reading.column_name()


def read_window(reading: Reading) -> None:
    reading.in_parentheses(lambda: _window(reading))


def at_own_syntax(reading: Reading) -> bool:
    """Recognise reserved words always, the others only before a parenthesis: `position` may be a column too."""
    word = reading.token.value
    return word in _OWN_SYNTAX and (word in vocabulary.RESERVED or reading.next_at("("))


def read_own_syntax(reading: Reading) -> str | None:
    return _OWN_SYNTAX[reading.token.value](reading)


def _check_function(reading: Reading, parts: list[Token]) -> None:
    full_name = ".".join(part.value for part in parts)
    has_dots_inside = full_name.count(".") >= len(parts)  # "public.f" in quotes is one name, not two
    is_keyword = parts[0].kind is Kind.WORD and full_name in vocabulary.COLUMN_NAME_KEYWORDS
    is_catalog = len(parts) == 1 or (len(parts) == 2 and parts[0].value == "pg_catalog")
    if not is_keyword:
        if not has_dots_inside and _is_added(reading, full_name, is_plain=len(parts) == 1):
            return
        if is_catalog and parts[-1].value in vocabulary.FUNCTIONS:
            return
    what = say("query.function", name=full_name)
    reading.refuse(f"function {full_name}", what, _remedy(full_name), parts[0])


def _is_added(reading: Reading, full_name: str, *, is_plain: bool) -> bool:
    """Tell whether the operator added the function: by its name, by a pattern, or with the extension it belongs to."""
    if full_name in reading.extra_functions:
        return True
    # A pattern is for functions of schemas: none opens those of the server.
    if not is_plain and not full_name.startswith("pg_catalog."):
        return any(fnmatchcase(full_name, pattern) for pattern in reading.function_patterns)
    return is_plain and any(extension.has_function(full_name) for extension in reading.trusted)


def _remedy(full_name: str) -> str:
    extension = extensions.owner_of("functions", full_name.rpartition(".")[2])
    if extension:
        return say("query.trust_function", extension=extension)
    return say("query.allow_function", name=full_name)


def _arguments(reading: Reading) -> None:
    if reading.take("*"):
        reading.note_rows()
        return
    if reading.at(")"):
        return
    reading.take_word("all", "distinct")
    reading.comma_separated(lambda: read_argument(reading))
    if reading.at_word("order"):
        queries.read_order_by(reading)


def _filter(reading: Reading) -> None:
    reading.expect_word("where")
    expressions.read_expression(reading)


# --- windows -----------------------------------------------------------------------------------------------------


def _window(reading: Reading) -> None:
    if reading.at_column_name() and not reading.at_word("partition", "rows", "range", "groups"):
        reading.advance()
    if reading.take_word("partition"):
        reading.expect_word("by")
        expressions.read_expressions(reading)
    if reading.at_word("order"):
        queries.read_order_by(reading)
    if reading.take_word("rows", "range", "groups"):
        _frame(reading)


def _frame(reading: Reading) -> None:
    if reading.take_word("between"):
        _frame_bound(reading)
        reading.expect_word("and")
    _frame_bound(reading)
    if reading.take_word("exclude"):
        if reading.take_word("current"):
            reading.expect_word("row")
        elif reading.take_word("no"):
            reading.expect_word("others")
        else:
            reading.expect_word("group", "ties")


def _frame_bound(reading: Reading) -> None:
    if reading.take_words("current", "row"):
        return
    if not reading.take_word("unbounded"):
        # Not a whole expression: that would swallow the AND of BETWEEN.
        expressions.read_prefixed_operand(reading)
        while reading.token.kind is Kind.OPERATOR:
            expressions.read_operator(reading)
    reading.expect_word("preceding", "following")


# --- functions with a syntax of their own ------------------------------------------------------------------------


def _case(reading: Reading) -> str:
    with reading.nested():
        reading.advance()
        if not reading.at_word("when"):
            expressions.read_expression(reading)
        while reading.take_word("when"):
            expressions.read_expression(reading)
            reading.expect_word("then")
            expressions.read_expression(reading)
        if reading.take_word("else"):
            expressions.read_expression(reading)
        reading.expect_word("end")
    return "case"


def _cast(reading: Reading) -> str | None:
    with reading.nested():
        reading.advance()
        reading.expect("(")
        name = expressions.read_expression(reading)
        reading.expect_word("as")
        type_name = types.read_type(reading)
        reading.expect(")")
    return name or type_name


def _array(reading: Reading) -> str:
    reading.advance()
    if reading.at("["):
        _array_items(reading)
    else:
        reading.in_parentheses(lambda: queries.read_query(reading))
    return "array"


def _array_items(reading: Reading) -> None:
    with reading.nested():
        reading.expect("[")
        if not reading.at("]"):
            reading.comma_separated(lambda: _array_item(reading))
        reading.expect("]")


def _array_item(reading: Reading) -> None:
    if reading.at("["):
        _array_items(reading)
    else:
        expressions.read_expression(reading)


def _exists(reading: Reading) -> str:
    reading.advance()
    reading.in_parentheses(lambda: queries.read_query(reading))
    return "exists"


def _constant(reading: Reading) -> None:
    reading.advance()


def _clock(reading: Reading) -> str:
    word = reading.advance().value
    reading.note_function(word)
    if word != "current_date":
        types.read_precision(reading)
    return word


def _extract(reading: Reading) -> str:
    reading.note_function(reading.advance().value)
    reading.in_parentheses(lambda: _extracted(reading))
    return "extract"


def _extracted(reading: Reading) -> None:
    if not reading.at_identifier() and reading.token.kind is not Kind.STRING:
        reading.refuse_unexpected("a field such as year")
    reading.advance()
    reading.expect_word("from")
    expressions.read_expression(reading)


def _word_separated(reading: Reading) -> str:
    """Read overlay, position, substring and trim, which separate their arguments by words or by commas."""
    name = reading.advance().value
    reading.note_function(name)
    reading.in_parentheses(lambda: _word_separated_arguments(reading))
    return "btrim" if name == "trim" else name


def _word_separated_arguments(reading: Reading) -> None:
    reading.take_word("both", "leading", "trailing")
    reading.take_word("from")
    # `position(a IN b)` too: the reader of expressions takes IN only before a parenthesis.
    expressions.read_prefixed_operand(reading)
    while reading.token.kind is Kind.OPERATOR or reading.at_word("from", "for", "placing", "in", "similar", "escape"):
        if reading.token.kind is Kind.OPERATOR:
            expressions.read_operator(reading)
        else:
            reading.advance()
            expressions.read_prefixed_operand(reading)
    if reading.take(","):
        expressions.read_expressions(reading)


def _plain(reading: Reading) -> str:
    """Read coalesce, greatest, grouping, least, normalize, nullif or row."""
    name = reading.advance().value
    reading.note_function(name)
    reading.in_parentheses(lambda: _plain_arguments(reading))
    return name


def _plain_arguments(reading: Reading) -> None:
    if not reading.at(")"):
        expressions.read_expressions(reading)


def _xml(reading: Reading) -> str:
    name = reading.token.value
    if name not in _XML:
        reading.refuse(f"function {name}", say("query.not_accepted", name=name), say("query.use_xpath"))
    reading.note_function(reading.advance().value)
    reading.in_parentheses(lambda: _xml_arguments(reading))
    return name


def _xml_arguments(reading: Reading) -> None:
    """Read the arguments of XML functions: xmlelement(name a, xmlattributes(x AS b), ...), xmlforest(x AS a) etc."""
    if reading.at_word("name") and reading.peek().kind in (Kind.WORD, Kind.NAME):
        reading.advance()
        reading.label()
        if not reading.take(","):
            return
    if reading.at_word("document", "content"):
        reading.advance()
    reading.comma_separated(lambda: _xml_argument(reading))
    if reading.take_words("preserve", "whitespace"):
        return
    reading.take_words("strip", "whitespace")


def _xml_argument(reading: Reading) -> None:
    if reading.at_word("xmlattributes"):
        reading.advance()
        reading.in_parentheses(lambda: reading.comma_separated(lambda: _xml_argument(reading)))
        return
    expressions.read_expression(reading)
    if reading.take_word("passing"):
        reading.take_words("by", "value")
        expressions.read_expression(reading)
    elif reading.take_word("as"):
        label = reading.label()
        # The type of xmlserialize; everywhere else it is a name.
        if label.value in ("character", "varchar", "char") and reading.at("("):
            types.read_precision(reading)


_XML = ("xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlparse", "xmlserialize")


_OWN_SYNTAX: dict[str, Callable[[Reading], str | None]] = {
    "array": _array,
    "case": _case,
    "cast": _cast,
    "exists": _exists,
    "extract": _extract,
    **dict.fromkeys(("null", "true", "false"), _constant),
    **dict.fromkeys(("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"), _clock),
    **dict.fromkeys(("overlay", "position", "substring", "trim"), _word_separated),
    **dict.fromkeys(("coalesce", "greatest", "grouping", "least", "normalize", "nullif", "row"), _plain),
    **dict.fromkeys(sqljson.FUNCTIONS, sqljson.read_function),
    **dict.fromkeys((word for word in vocabulary.COLUMN_NAME_KEYWORDS if word.startswith("xml")), _xml),
}
