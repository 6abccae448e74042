"""Reads expressions. Precedence is not tracked: it decides how a value is computed, never which tables or functions."""

from collections.abc import Callable

from vitrina.sentences import say
from vitrina.sqlguard import calls, extensions, queries, types, vocabulary
from vitrina.sqlguard.reading import Reading
from vitrina.sqlguard.stamps import Reference
from vitrina.sqlguard.tokens import Kind, Token

STAR = "*"  # the name of `t.*`, which stands for many columns

_NORMAL_FORMS = ("nfc", "nfd", "nfkc", "nfkd")


def read_expression(reading: Reading) -> str | None:
    """Read one expression. Return PostgreSQL's name for such an output column, where that is plain."""
    with reading.nested():
        name = read_prefixed_operand(reading)
        while _infix(reading):
            name = None
    return name


def read_expressions(reading: Reading) -> None:
    reading.comma_separated(lambda: read_expression(reading))


def read_prefixed_operand(reading: Reading) -> str | None:
    """Read an operand with NOT and signs before it."""
    is_prefixed = False
    while reading.at_word("not") or reading.token.kind is Kind.OPERATOR:
        if reading.token.kind is Kind.OPERATOR and reading.token.value not in vocabulary.PREFIX_OPERATORS:
            _refuse_stray_operator(reading)
        reading.advance()
        is_prefixed = True
    name = read_operand(reading)
    return None if is_prefixed else name


def read_operator(reading: Reading) -> None:
    """Read a binary operator and its right side."""
    operator = reading.advance()
    shown = operator.value
    if shown not in vocabulary.OPERATORS and not any(shown in trusted.operators for trusted in reading.trusted):
        extension = extensions.owner_of("operators", shown)
        instead = say("query.check_operators")
        if extension:
            instead = say("query.trust_operator", extension=extension)
        reading.refuse(f"operator {shown}", say("query.operator", operator=shown), instead, operator)
    _quantified_or_plain_operand(reading)


def read_operand(reading: Reading) -> str | None:
    """Read a value with its casts, subscripts, fields and collation."""
    start = reading.token
    name = _primary(reading)
    if start.kind is Kind.PARAMETER and reading.at("["):
        reading.refuse_unexpected("an operator")
    field = _suffixes(reading, may_have_fields=start.kind is Kind.PUNCTUATION)
    return field or name


def read_parenthesised(reading: Reading) -> bool:
    """Read `( query )`, `( value )` or the row `( a, b )`; True for a query. Decide without reading anything twice."""
    with reading.nested():
        reading.expect("(")
        is_query = False
        if reading.at("("):
            is_query = _begun_with_parenthesis(reading)
        elif queries.at_query(reading):
            queries.read_query(reading)
            is_query = True
        else:
            read_expressions(reading)
        reading.expect(")")
    return is_query


def check_field(reading: Reading, label: Token) -> None:
    """Refuse a field name that is a refused function; PostgreSQL calls f(x) for `x.f` when x has no field f."""
    name = label.value
    if name in vocabulary.FIELD_NAMES_REFUSED or name.startswith(vocabulary.FIELD_BEGINNINGS_REFUSED):
        what = say("query.would_call", name=name)
        reading.refuse(f"function {name}", what, say("query.rename_column"), label)


def _begun_with_parenthesis(reading: Reading) -> bool:
    is_query = read_parenthesised(reading)
    if is_query and queries.at_rest_of_query(reading):
        queries.read_rest_of_query(reading)
        return True
    if is_query and reading.at(")"):
        return True
    _suffixes(reading, may_have_fields=True)
    while _infix(reading):
        pass
    if reading.take(","):
        read_expressions(reading)
    return False


def _suffixes(reading: Reading, *, may_have_fields: bool) -> str | None:
    """Return the last field's name. Fields follow only parentheses and subscripts; `t.c` is one name."""
    field: str | None = None
    while True:
        if reading.take("::"):
            types.read_type(reading)
            may_have_fields = False
        elif reading.at("["):
            _subscript(reading)
            may_have_fields = True
        elif may_have_fields and reading.take("."):
            field = _field(reading)
        elif reading.at_word("collate"):
            types.read_collation(reading)
            may_have_fields = False
        else:
            return field


def _field(reading: Reading) -> str:
    reading.note_rows()
    if reading.take("*"):
        return STAR
    label = reading.label()
    check_field(reading, label)
    return label.value


def _subscript(reading: Reading) -> None:
    with reading.nested():
        reading.expect("[")
        if reading.token.kind is Kind.PARAMETER:
            instead = say("query.space_behind_colon")
            reading.refuse("placeholder", say("query.slice"), instead)
        if not reading.at(":", "]"):
            read_expression(reading)
        if reading.take(":") and not reading.at("]"):
            read_expression(reading)
        reading.expect("]")


# --- operators ---------------------------------------------------------------------------------------------------


def _infix(reading: Reading) -> bool:
    """Read an operator with what it takes on its right; False where the expression ends."""
    if reading.token.kind is Kind.OPERATOR:
        read_operator(reading)
        return True
    if reading.token.kind is not Kind.WORD:
        return False
    read_right_side = _INFIX_WORDS.get(reading.token.value)
    if read_right_side is None:
        return False
    return read_right_side(reading)


def _plain_infix(reading: Reading) -> bool:
    reading.advance()
    read_prefixed_operand(reading)
    return True


def _null_test(reading: Reading) -> bool:
    reading.advance()
    return True


def _is_test(reading: Reading) -> bool:
    reading.advance()
    reading.take_word("not")
    if reading.take_word("distinct"):
        reading.expect_word("from")
        read_prefixed_operand(reading)
    elif reading.take_word("json"):
        reading.take_word("value", "array", "object", "scalar")
        if reading.take_word("with", "without"):
            reading.expect_word("unique")
            reading.take_word("keys")
    elif reading.take_word(*_NORMAL_FORMS):
        reading.expect_word("normalized")
    else:
        reading.expect_word("null", "true", "false", "unknown", "normalized")
    return True


def _at_time_zone(reading: Reading) -> bool:
    if reading.take_words("at", "local"):
        return True
    if reading.take_words("at", "time"):
        reading.expect_word("zone")
        read_prefixed_operand(reading)
        return True
    return False  # a column alias


def _comparison(reading: Reading) -> bool:
    """Read [NOT] IN | BETWEEN | LIKE | ILIKE | SIMILAR TO. The AND of BETWEEN is read like any other AND."""
    reading.take_word("not")
    if reading.take_word("in"):
        _expect_parenthesised(reading)
    elif reading.take_word("between"):
        reading.take_word("symmetric", "asymmetric")
        read_prefixed_operand(reading)
    else:
        if reading.expect_word("like", "ilike", "similar").value == "similar":
            reading.expect_word("to")
        _quantified_or_plain_operand(reading)
        if reading.take_word("escape"):
            read_prefixed_operand(reading)
    return True


def _quantified_or_plain_operand(reading: Reading) -> None:
    if reading.take_word("any", "some", "all"):
        _expect_parenthesised(reading)
    else:
        read_prefixed_operand(reading)


def _expect_parenthesised(reading: Reading) -> None:
    if not reading.at("("):
        reading.refuse_unexpected("(")
    read_parenthesised(reading)


def _operator_call(reading: Reading) -> bool:
    if not reading.next_at("("):
        return False  # a column alias
    what = say("query.any_operator")
    instead = say("query.write_operator")
    return reading.refuse("OPERATOR()", what, instead)


def _refuse_stray_operator(reading: Reading) -> None:
    shown = reading.token.value
    if shown in ("?", "%"):
        instead = say("query.use_since")
        reading.refuse("placeholder", say("query.placeholder", name=shown), instead)
    if shown == "*":
        reading.refuse("operator *", say("query.star"), say("query.name_columns"))
    reading.refuse(f"operator {shown}", say("query.not_before_value", operator=shown), say("query.check_expression"))


_INFIX_WORDS: dict[str, Callable[[Reading], bool]] = {
    **dict.fromkeys(("and", "or", "overlaps"), _plain_infix),
    **dict.fromkeys(("isnull", "notnull"), _null_test),
    **dict.fromkeys(("not", "in", "between", "like", "ilike", "similar"), _comparison),
    "is": _is_test,
    "at": _at_time_zone,
    "operator": _operator_call,
}


# --- operands ----------------------------------------------------------------------------------------------------


def _primary(reading: Reading) -> str | None:
    kind = reading.token.kind
    if kind is Kind.NUMBER or kind is Kind.STRING:
        reading.advance()
        return None
    if kind is Kind.PARAMETER:
        reading.found.parameters.add(reading.advance().value)
        return None
    if reading.at("("):
        read_parenthesised(reading)
        return None
    if kind is Kind.WORD:
        return _word(reading)
    if kind is not Kind.NAME:
        reading.refuse_unexpected("a value")
    return _name_or_call(reading)


def _word(reading: Reading) -> str | None:
    token = reading.token
    if calls.at_own_syntax(reading):
        return calls.read_own_syntax(reading)
    if token.value in vocabulary.SESSION_WORDS:
        what = say("query.about_session", name=token.value.upper())
        reading.refuse(f"function {token.value}", what, say("query.leave_out_or_write"))
    if token.value in vocabulary.RESERVED:
        reading.refuse_unexpected("a value")
    if types.at_typed_literal(reading):
        types.read_typed_literal(reading)
        return None
    return _name_or_call(reading)


def _name_or_call(reading: Reading) -> str | None:
    parts = [reading.advance()]
    while reading.take("."):
        if reading.take("*"):
            _check_column(reading, parts)
            reading.found.references.append(Reference(parts[-1].value, STAR))
            return STAR
        parts.append(reading.label())
    if reading.at("("):
        return calls.read_call(reading, parts)
    _check_column(reading, parts)
    qualifier = parts[-2].value if len(parts) > 1 else None
    reading.found.references.append(Reference(qualifier, parts[-1].value))
    return parts[-1].value


def _check_column(reading: Reading, parts: list[Token]) -> None:
    first, last = parts[0], parts[-1]
    if first.kind is Kind.WORD and first.value in vocabulary.FUNCTION_OR_TYPE_KEYWORDS:
        reading.refuse_unexpected("a value", first)
    if len(parts) > 3:
        reading.refuse("column", say("query.column_parts"), say("query.write_column"), first)
    if last.value in vocabulary.SYSTEM_COLUMNS:
        what = say("query.bookkeeping", name=last.value)
        reading.refuse(f"column {last.value}", what, say("query.leave_out"), last)
    if len(parts) > 1:
        check_field(reading, last)
