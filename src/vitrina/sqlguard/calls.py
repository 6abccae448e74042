"""Parse function calls: ordinary ones against the allow-list, and those with special syntax in SQL."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from vitrina.sentences import say
from vitrina.sqlguard import expressions, extensions, queries, sqljson, types, vocabulary
from vitrina.sqlguard.parser import Parser
from vitrina.sqlguard.tokens import Kind, Token


def read_call(parser: Parser, parts: list[Token]) -> str:
    """Read the arguments and what may follow them; `parts` is the function's name, already read."""
    _check_function(parser, parts)
    is_type_of = [part.value for part in parts][-1] == "pg_typeof"
    parser.note_function(".".join(part.value for part in parts))
    parser.in_parentheses(lambda: _arguments(parser))
    if is_type_of:
        _expect_as_text(parser, parts[0])
    read_after_call(parser)
    return parts[-1].value


def _expect_as_text(parser: Parser, start: Token) -> None:
    """Require a cast to text. Next to a string, the server would look that string up among all types as a regtype."""
    is_cast = parser.at("::") or (parser.at_word("as") and parser.peek(2).value == ")")
    if not (is_cast and parser.peek().value in ("text", "varchar")):
        what = say("query.pg_typeof")
        parser.refuse("function pg_typeof", what, say("query.write_pg_typeof"), start)


def read_argument(parser: Parser) -> None:
    """Read a value, or a named argument: `days => 3`."""
    parser.take_word("variadic")
    if parser.at_identifier() and parser.next_at(":=", "=>"):
        parser.advance()
        parser.advance()
    expressions.read_expression(parser)


def read_after_call(parser: Parser) -> None:
    """Read WITHIN GROUP (...) FILTER (...) OVER (...)."""
    if parser.take_words("within", "group"):
        parser.in_parentheses(lambda: queries.read_order_by(parser))
    if parser.at_word("filter") and parser.next_at("("):
        parser.advance()
        parser.in_parentheses(lambda: _filter(parser))
    if parser.take_word("over"):
        parser.note_rows()
        if parser.at("("):
            read_window(parser)
        else:
            parser.column_name()


def read_window(parser: Parser) -> None:
    parser.in_parentheses(lambda: _window(parser))


def at_own_syntax(parser: Parser) -> bool:
    """Recognise reserved words always, others only before a parenthesis: `position` may also be a column."""
    word = parser.token.value
    return word in _OWN_SYNTAX and (word in vocabulary.RESERVED or parser.next_at("("))


def read_own_syntax(parser: Parser) -> str | None:
    return _OWN_SYNTAX[parser.token.value](parser)


def _check_function(parser: Parser, parts: list[Token]) -> None:
    full_name = ".".join(part.value for part in parts)
    has_dots_inside = full_name.count(".") >= len(parts)  # "public.f" in quotes is one name, not two
    is_keyword = parts[0].kind is Kind.WORD and full_name in vocabulary.COLUMN_NAME_KEYWORDS
    is_catalog = len(parts) == 1 or (len(parts) == 2 and parts[0].value == "pg_catalog")
    if not is_keyword:
        if not has_dots_inside and _is_added(parser, full_name, is_plain=len(parts) == 1):
            return
        if is_catalog and parts[-1].value in vocabulary.FUNCTIONS:
            return
    what = say("query.function", name=full_name)
    parser.refuse(f"function {full_name}", what, _remedy(full_name), parts[0])


def _is_added(parser: Parser, full_name: str, *, is_plain: bool) -> bool:
    """Return whether the operator added the function: by its name, by a pattern, or with its extension."""
    if full_name in parser.extra_functions:
        return True
    # Patterns apply to functions of schemas; none matches those of the server.
    if not is_plain and not full_name.startswith("pg_catalog."):
        return any(fnmatchcase(full_name, pattern) for pattern in parser.function_patterns)
    return is_plain and any(extension.has_function(full_name) for extension in parser.trusted)


def _remedy(full_name: str) -> str:
    extension = extensions.owner_of("functions", full_name.rpartition(".")[2])
    if extension:
        return say("query.trust_function", extension=extension)
    return say("query.allow_function", name=full_name)


def _arguments(parser: Parser) -> None:
    if parser.take("*"):
        parser.note_rows()
        return
    if parser.at(")"):
        return
    parser.take_word("all", "distinct")
    parser.comma_separated(lambda: read_argument(parser))
    if parser.at_word("order"):
        queries.read_order_by(parser)


def _filter(parser: Parser) -> None:
    parser.expect_word("where")
    expressions.read_expression(parser)


def _window(parser: Parser) -> None:
    if parser.at_column_name() and not parser.at_word("partition", "rows", "range", "groups"):
        parser.advance()
    if parser.take_word("partition"):
        parser.expect_word("by")
        expressions.read_expressions(parser)
    if parser.at_word("order"):
        queries.read_order_by(parser)
    if parser.take_word("rows", "range", "groups"):
        _frame(parser)


def _frame(parser: Parser) -> None:
    if parser.take_word("between"):
        _frame_bound(parser)
        parser.expect_word("and")
    _frame_bound(parser)
    if parser.take_word("exclude"):
        if parser.take_word("current"):
            parser.expect_word("row")
        elif parser.take_word("no"):
            parser.expect_word("others")
        else:
            parser.expect_word("group", "ties")


def _frame_bound(parser: Parser) -> None:
    if parser.take_words("current", "row"):
        return
    if not parser.take_word("unbounded"):
        # Not a whole expression, which would consume the AND of BETWEEN.
        expressions.read_prefixed_operand(parser)
        while parser.token.kind is Kind.OPERATOR:
            expressions.read_operator(parser)
    parser.expect_word("preceding", "following")


def _case(parser: Parser) -> str:
    with parser.nested():
        parser.advance()
        if not parser.at_word("when"):
            expressions.read_expression(parser)
        while parser.take_word("when"):
            expressions.read_expression(parser)
            parser.expect_word("then")
            expressions.read_expression(parser)
        if parser.take_word("else"):
            expressions.read_expression(parser)
        parser.expect_word("end")
    return "case"


def _cast(parser: Parser) -> str | None:
    with parser.nested():
        parser.advance()
        parser.expect("(")
        name = expressions.read_expression(parser)
        parser.expect_word("as")
        type_name = types.read_type(parser)
        parser.expect(")")
    return name or type_name


def _array(parser: Parser) -> str:
    parser.advance()
    if parser.at("["):
        _array_items(parser)
    else:
        parser.in_parentheses(lambda: queries.read_query(parser))
    return "array"


def _array_items(parser: Parser) -> None:
    with parser.nested():
        parser.expect("[")
        if not parser.at("]"):
            parser.comma_separated(lambda: _array_item(parser))
        parser.expect("]")


def _array_item(parser: Parser) -> None:
    if parser.at("["):
        _array_items(parser)
    else:
        expressions.read_expression(parser)


def _exists(parser: Parser) -> str:
    parser.advance()
    parser.in_parentheses(lambda: queries.read_query(parser))
    return "exists"


def _constant(parser: Parser) -> None:
    parser.advance()


def _clock(parser: Parser) -> str:
    word = parser.advance().value
    parser.note_function(word)
    if word != "current_date":
        types.read_precision(parser)
    return word


def _extract(parser: Parser) -> str:
    parser.note_function(parser.advance().value)
    parser.in_parentheses(lambda: _extracted(parser))
    return "extract"


def _extracted(parser: Parser) -> None:
    if not parser.at_identifier() and parser.token.kind is not Kind.STRING:
        parser.refuse_unexpected("a field such as year")
    parser.advance()
    parser.expect_word("from")
    expressions.read_expression(parser)


def _word_separated(parser: Parser) -> str:
    """Read overlay, position, substring and trim, which separate their arguments by words or by commas."""
    name = parser.advance().value
    parser.note_function(name)
    parser.in_parentheses(lambda: _word_separated_arguments(parser))
    return "btrim" if name == "trim" else name


def _word_separated_arguments(parser: Parser) -> None:
    parser.take_word("both", "leading", "trailing")
    parser.take_word("from")
    # `position(a IN b)` too: the expression parser accepts IN only before a parenthesis.
    expressions.read_prefixed_operand(parser)
    while parser.token.kind is Kind.OPERATOR or parser.at_word("from", "for", "placing", "in", "similar", "escape"):
        if parser.token.kind is Kind.OPERATOR:
            expressions.read_operator(parser)
        else:
            parser.advance()
            expressions.read_prefixed_operand(parser)
    if parser.take(","):
        expressions.read_expressions(parser)


def _plain(parser: Parser) -> str:
    """Read coalesce, greatest, grouping, least, normalize, nullif or row."""
    name = parser.advance().value
    parser.note_function(name)
    parser.in_parentheses(lambda: _plain_arguments(parser))
    return name


def _plain_arguments(parser: Parser) -> None:
    if not parser.at(")"):
        expressions.read_expressions(parser)


def _xml(parser: Parser) -> str:
    name = parser.token.value
    if name not in _XML:
        parser.refuse(f"function {name}", say("query.not_accepted", name=name), say("query.use_xpath"))
    parser.note_function(parser.advance().value)
    parser.in_parentheses(lambda: _xml_arguments(parser))
    return name


def _xml_arguments(parser: Parser) -> None:
    """Read the arguments of XML functions, as in xmlelement(name a, xmlattributes(x AS b)) or xmlforest(x AS a)."""
    if parser.at_word("name") and parser.peek().kind in (Kind.WORD, Kind.NAME):
        parser.advance()
        parser.label()
        if not parser.take(","):
            return
    if parser.at_word("document", "content"):
        parser.advance()
    parser.comma_separated(lambda: _xml_argument(parser))
    if parser.take_words("preserve", "whitespace"):
        return
    parser.take_words("strip", "whitespace")


def _xml_argument(parser: Parser) -> None:
    if parser.at_word("xmlattributes"):
        parser.advance()
        parser.in_parentheses(lambda: parser.comma_separated(lambda: _xml_argument(parser)))
        return
    expressions.read_expression(parser)
    if parser.take_word("passing"):
        parser.take_words("by", "value")
        expressions.read_expression(parser)
    elif parser.take_word("as"):
        label = parser.label()
        # The type of xmlserialize; in the other functions it is a name.
        if label.value in ("character", "varchar", "char") and parser.at("("):
            types.read_precision(parser)


_XML = ("xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlparse", "xmlserialize")


_OWN_SYNTAX: dict[str, Callable[[Parser], str | None]] = {
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
