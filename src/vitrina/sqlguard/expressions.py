"""Parse expressions. Precedence is ignored, because it does not change which tables or functions are used."""

from collections.abc import Callable

from vitrina.sentences import say
from vitrina.sqlguard import calls, extensions, queries, types, vocabulary
from vitrina.sqlguard.parser import Parser
from vitrina.sqlguard.tokens import Kind, Token
from vitrina.sqlguard.volatile import Reference

STAR = "*"  # the name of `t.*`, which stands for many columns

_NORMAL_FORMS = ("nfc", "nfd", "nfkc", "nfkd")


def read_expression(parser: Parser) -> str | None:
    """Read one expression. Return PostgreSQL's name for such an output column, if it is a simple one."""
    with parser.nested():
        name = read_prefixed_operand(parser)
        while _infix(parser):
            name = None
    return name


def read_expressions(parser: Parser) -> None:
    parser.comma_separated(lambda: read_expression(parser))


def read_prefixed_operand(parser: Parser) -> str | None:
    """Read an operand with preceding NOT and signs."""
    is_prefixed = False
    while parser.at_word("not") or parser.token.kind is Kind.OPERATOR:
        if parser.token.kind is Kind.OPERATOR and parser.token.value not in vocabulary.PREFIX_OPERATORS:
            _refuse_stray_operator(parser)
        parser.advance()
        is_prefixed = True
    name = read_operand(parser)
    return None if is_prefixed else name


def read_operator(parser: Parser) -> None:
    """Read a binary operator and its right side."""
    operator = parser.advance()
    shown = operator.value
    if shown not in vocabulary.OPERATORS and not any(shown in trusted.operators for trusted in parser.trusted):
        extension = extensions.owner_of("operators", shown)
        instead = say("query.check_operators")
        if extension:
            instead = say("query.trust_operator", extension=extension)
        parser.refuse(f"operator {shown}", say("query.operator", operator=shown), instead, operator)
    _quantified_or_plain_operand(parser)


def read_operand(parser: Parser) -> str | None:
    """Read a value with its casts, subscripts, fields and collation."""
    start = parser.token
    name = _primary(parser)
    if start.kind is Kind.PARAMETER and parser.at("["):
        parser.refuse_unexpected("an operator")
    field = _suffixes(parser, may_have_fields=start.kind is Kind.PUNCTUATION)
    return field or name


def read_parenthesised(parser: Parser) -> bool:
    """Read `( query )`, `( value )` or the row `( a, b )`; return True for a query. Nothing is read twice."""
    with parser.nested():
        parser.expect("(")
        is_query = False
        if parser.at("("):
            is_query = _begun_with_parenthesis(parser)
        elif queries.at_query(parser):
            queries.read_query(parser)
            is_query = True
        else:
            read_expressions(parser)
        parser.expect(")")
    return is_query


def check_field(parser: Parser, label: Token) -> None:
    """Refuse a field name that is a refused function: PostgreSQL calls f(x) for `x.f` if x has no field f."""
    name = label.value
    if name in vocabulary.FIELD_NAMES_REFUSED or name.startswith(vocabulary.FIELD_BEGINNINGS_REFUSED):
        what = say("query.would_call", name=name)
        parser.refuse(f"function {name}", what, say("query.rename_column"), label)


def _begun_with_parenthesis(parser: Parser) -> bool:
    is_query = read_parenthesised(parser)
    if is_query and queries.at_rest_of_query(parser):
        queries.read_rest_of_query(parser)
        return True
    if is_query and parser.at(")"):
        return True
    _suffixes(parser, may_have_fields=True)
    while _infix(parser):
        pass
    if parser.take(","):
        read_expressions(parser)
    return False


def _suffixes(parser: Parser, *, may_have_fields: bool) -> str | None:
    """Return the last field's name. Fields follow only parentheses and subscripts; `t.c` is one name."""
    field: str | None = None
    while True:
        if parser.take("::"):
            types.read_type(parser)
            may_have_fields = False
        elif parser.at("["):
            _subscript(parser)
            may_have_fields = True
        elif may_have_fields and parser.take("."):
            field = _field(parser)
        elif parser.at_word("collate"):
            types.read_collation(parser)
            may_have_fields = False
        else:
            return field


def _field(parser: Parser) -> str:
    parser.note_rows()
    if parser.take("*"):
        return STAR
    label = parser.label()
    check_field(parser, label)
    return label.value


def _subscript(parser: Parser) -> None:
    with parser.nested():
        parser.expect("[")
        if parser.token.kind is Kind.PARAMETER:
            instead = say("query.space_behind_colon")
            parser.refuse("placeholder", say("query.slice"), instead)
        if not parser.at(":", "]"):
            read_expression(parser)
        if parser.take(":") and not parser.at("]"):
            read_expression(parser)
        parser.expect("]")


def _infix(parser: Parser) -> bool:
    """Read an operator and its right side; return False where the expression ends."""
    if parser.token.kind is Kind.OPERATOR:
        read_operator(parser)
        return True
    if parser.token.kind is not Kind.WORD:
        return False
    read_right_side = _INFIX_WORDS.get(parser.token.value)
    if read_right_side is None:
        return False
    return read_right_side(parser)


def _plain_infix(parser: Parser) -> bool:
    parser.advance()
    read_prefixed_operand(parser)
    return True


def _null_test(parser: Parser) -> bool:
    parser.advance()
    return True


def _is_test(parser: Parser) -> bool:
    parser.advance()
    parser.take_word("not")
    if parser.take_word("distinct"):
        parser.expect_word("from")
        read_prefixed_operand(parser)
    elif parser.take_word("json"):
        parser.take_word("value", "array", "object", "scalar")
        if parser.take_word("with", "without"):
            parser.expect_word("unique")
            parser.take_word("keys")
    elif parser.take_word(*_NORMAL_FORMS):
        parser.expect_word("normalized")
    else:
        parser.expect_word("null", "true", "false", "unknown", "normalized")
    return True


def _at_time_zone(parser: Parser) -> bool:
    if parser.take_words("at", "local"):
        return True
    if parser.take_words("at", "time"):
        parser.expect_word("zone")
        read_prefixed_operand(parser)
        return True
    return False  # a column alias


def _comparison(parser: Parser) -> bool:
    """Read [NOT] IN | BETWEEN | LIKE | ILIKE | SIMILAR TO. The AND of BETWEEN is read like any other AND."""
    parser.take_word("not")
    if parser.take_word("in"):
        _expect_parenthesised(parser)
    elif parser.take_word("between"):
        parser.take_word("symmetric", "asymmetric")
        read_prefixed_operand(parser)
    else:
        if parser.expect_word("like", "ilike", "similar").value == "similar":
            parser.expect_word("to")
        _quantified_or_plain_operand(parser)
        if parser.take_word("escape"):
            read_prefixed_operand(parser)
    return True


def _quantified_or_plain_operand(parser: Parser) -> None:
    if parser.take_word("any", "some", "all"):
        _expect_parenthesised(parser)
    else:
        read_prefixed_operand(parser)


def _expect_parenthesised(parser: Parser) -> None:
    if not parser.at("("):
        parser.refuse_unexpected("(")
    read_parenthesised(parser)


def _operator_call(parser: Parser) -> bool:
    if not parser.next_at("("):
        return False  # a column alias
    what = say("query.any_operator")
    instead = say("query.write_operator")
    return parser.refuse("OPERATOR()", what, instead)


def _refuse_stray_operator(parser: Parser) -> None:
    shown = parser.token.value
    if shown in ("?", "%"):
        instead = say("query.use_since")
        parser.refuse("placeholder", say("query.placeholder", name=shown), instead)
    if shown == "*":
        parser.refuse("operator *", say("query.star"), say("query.name_columns"))
    parser.refuse(f"operator {shown}", say("query.not_before_value", operator=shown), say("query.check_expression"))


_INFIX_WORDS: dict[str, Callable[[Parser], bool]] = {
    **dict.fromkeys(("and", "or", "overlaps"), _plain_infix),
    **dict.fromkeys(("isnull", "notnull"), _null_test),
    **dict.fromkeys(("not", "in", "between", "like", "ilike", "similar"), _comparison),
    "is": _is_test,
    "at": _at_time_zone,
    "operator": _operator_call,
}


def _primary(parser: Parser) -> str | None:
    kind = parser.token.kind
    if kind is Kind.NUMBER or kind is Kind.STRING:
        parser.advance()
        return None
    if kind is Kind.PARAMETER:
        parser.found.parameters.add(parser.advance().value)
        return None
    if parser.at("("):
        read_parenthesised(parser)
        return None
    if kind is Kind.WORD:
        return _word(parser)
    if kind is not Kind.NAME:
        parser.refuse_unexpected("a value")
    return _name_or_call(parser)


def _word(parser: Parser) -> str | None:
    token = parser.token
    if calls.at_own_syntax(parser):
        return calls.read_own_syntax(parser)
    if token.value in vocabulary.SESSION_WORDS:
        what = say("query.about_session", name=token.value.upper())
        parser.refuse(f"function {token.value}", what, say("query.leave_out_or_write"))
    if token.value in vocabulary.RESERVED:
        parser.refuse_unexpected("a value")
    if types.at_typed_literal(parser):
        types.read_typed_literal(parser)
        return None
    return _name_or_call(parser)


def _name_or_call(parser: Parser) -> str | None:
    parts = [parser.advance()]
    while parser.take("."):
        if parser.take("*"):
            _check_column(parser, parts)
            parser.found.references.append(Reference(parts[-1].value, STAR))
            return STAR
        parts.append(parser.label())
    if parser.at("("):
        return calls.read_call(parser, parts)
    _check_column(parser, parts)
    qualifier = parts[-2].value if len(parts) > 1 else None
    parser.found.references.append(Reference(qualifier, parts[-1].value))
    return parts[-1].value


def _check_column(parser: Parser, parts: list[Token]) -> None:
    first, last = parts[0], parts[-1]
    if first.kind is Kind.WORD and first.value in vocabulary.FUNCTION_OR_TYPE_KEYWORDS:
        parser.refuse_unexpected("a value", first)
    if len(parts) > 3:
        parser.refuse("column", say("query.column_parts"), say("query.write_column"), first)
    if last.value in vocabulary.SYSTEM_COLUMNS:
        what = say("query.bookkeeping", name=last.value)
        parser.refuse(f"column {last.value}", what, say("query.leave_out"), last)
    if len(parts) > 1:
        check_field(parser, last)
