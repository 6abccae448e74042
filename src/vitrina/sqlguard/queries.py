"""Reads a SELECT with all its clauses: WITH, set operations, grouping, windows, order, limit."""

import math
from dataclasses import replace

from vitrina.sentences import say
from vitrina.sqlguard import calls, expressions, stamps, tables, vocabulary
from vitrina.sqlguard.reading import WRITES, Reading, Scope
from vitrina.sqlguard.stamps import UNKNOWN, Columns, Sources, Target
from vitrina.sqlguard.tokens import Kind

_SET_OPERATIONS = ("union", "intersect", "except")
_REST_OF_QUERY = (*_SET_OPERATIONS, "order", "limit", "offset", "fetch", "for")


def at_query(reading: Reading) -> bool:
    if reading.at_word("values"):
        return reading.next_at("(")
    return reading.at_word("select", "with", "table")


def read_query(reading: Reading) -> Columns:
    """Read [WITH ...] SELECT ... [ORDER BY ...] [LIMIT ...]."""
    outer_scope = reading.scope
    with reading.nested():
        read_with(reading)
        columns = read_rest_of_query(reading, read_term(reading))
    reading.scope = outer_scope
    return columns


def read_with(reading: Reading) -> bool:
    """Read the WITH clause, if there is one; its names stay in the scope until the caller restores it."""
    if not reading.take_word("with"):
        return False
    is_recursive = reading.take_word("recursive")
    # Without RECURSIVE a name is seen behind its own query only.
    reading.scope = Scope(reading.scope, {}, math.inf if is_recursive else 0)
    reading.comma_separated(lambda: _common_table(reading, is_recursive=is_recursive))
    return True


def read_term(reading: Reading) -> Columns:
    """Read one side of a set operation."""
    if reading.at("("):
        return _query_in_parentheses(reading)
    if reading.take_word("select"):
        return _select(reading)
    if reading.at_word("values") and reading.next_at("("):
        reading.advance()
        reading.comma_separated(lambda: reading.in_parentheses(lambda: expressions.read_expressions(reading)))
        return UNKNOWN
    if reading.take_word("table"):
        return tables.read_table_name(reading)[1]
    if reading.at_word(*WRITES):
        reading.refuse_write()
    return reading.refuse_unexpected("SELECT")


def at_rest_of_query(reading: Reading) -> bool:
    return reading.at_word(*_REST_OF_QUERY)


def read_rest_of_query(reading: Reading, columns: Columns = UNKNOWN) -> Columns:
    """Read what may follow the first term of a query: set operations, order, limit."""
    while reading.take_word(*_SET_OPERATIONS):
        reading.take_word("all", "distinct")
        columns = stamps.merged(columns, read_term(reading))
    if reading.at_word("order"):
        read_order_by(reading)
    while reading.at_word("limit", "offset", "fetch"):
        _limit(reading)
    if reading.at_word("for"):
        strength = reading.peek().value.upper()
        reading.refuse(f"FOR {strength}", say("query.locks", strength=strength), say("query.leave_out"))
    return columns


def read_order_by(reading: Reading) -> None:
    reading.expect_word("order")
    reading.expect_word("by")
    reading.comma_separated(lambda: _sort_item(reading))


def _query_in_parentheses(reading: Reading) -> Columns:
    reading.expect("(")
    columns = read_query(reading)
    reading.expect(")")
    return columns


def _common_table(reading: Reading, *, is_recursive: bool) -> None:
    name = reading.column_name()
    aliases = reading.name_list() if reading.at("(") else []
    reading.expect_word("as")
    if reading.take_word("not"):
        reading.expect_word("materialized")
    else:
        reading.take_word("materialized")
    columns = stamps.renamed(_query_in_parentheses(reading), aliases)
    _search_and_cycle(reading)
    reading.scope.name(name, columns)
    if not is_recursive:
        reading.scope = replace(reading.scope, before=len(reading.scope.names))


def _search_and_cycle(reading: Reading) -> None:
    if reading.take_word("search"):
        reading.expect_word("breadth", "depth")
        reading.expect_word("first")
        reading.expect_word("by")
        reading.comma_separated(reading.column_name)
        reading.expect_word("set")
        reading.column_name()
    if reading.take_word("cycle"):
        reading.comma_separated(reading.column_name)
        reading.expect_word("set")
        reading.column_name()
        if reading.take_word("to"):
            expressions.read_expression(reading)
            reading.expect_word("default")
            expressions.read_expression(reading)
        reading.expect_word("using")
        reading.column_name()


# --- SELECT ------------------------------------------------------------------------------------------------------


def _select(reading: Reading) -> Columns:
    if not reading.take_word("all") and reading.take_word("distinct") and reading.take_word("on"):
        reading.in_parentheses(lambda: expressions.read_expressions(reading))
    targets = _targets(reading)
    _refuse_into(reading)
    sources: Sources = {}
    if reading.take_word("from"):
        tables.read_from(reading, sources)
    if reading.take_word("where"):
        expressions.read_expression(reading)
    if reading.take_word("group"):
        _group_by(reading)
    if reading.take_word("having"):
        expressions.read_expression(reading)
    if reading.take_word("window"):
        reading.comma_separated(lambda: _named_window(reading))
    return stamps.output_columns(targets, sources)


def _targets(reading: Reading) -> list[Target]:
    _refuse_into(reading)
    has_none = reading.at(")", ";") or reading.at_word("from", "where", "group", "having", *_REST_OF_QUERY)
    if has_none or reading.token.kind is Kind.END:
        return []  # SELECT FROM t gives rows without columns, as EXISTS may want them
    targets: list[Target] = []
    reading.comma_separated(lambda: targets.append(_target(reading)))
    return targets


def _target(reading: Reading) -> Target:
    if reading.take("*"):
        return Target(None, has_stamp_call=False, references=[], star_of="")
    found = reading.found
    references_before, stamps_before = len(found.references), found.stamp_calls
    name = expressions.read_expression(reading)
    references = found.references[references_before:]
    if name == expressions.STAR:
        return Target(None, has_stamp_call=False, references=[], star_of=references[-1].qualifier or expressions.STAR)
    if reading.take_word("as"):
        name = reading.label().value
    elif _at_bare_label(reading):
        name = reading.advance().value
    return Target(name, found.stamp_calls > stamps_before, references)


def _at_bare_label(reading: Reading) -> bool:
    if reading.token.kind is Kind.WORD:
        return reading.at_column_name() and reading.token.value not in vocabulary.LABELS_NEEDING_AS
    return reading.token.kind is Kind.NAME


def _refuse_into(reading: Reading) -> None:
    if reading.at_word("into"):
        instead = say("query.target_says")
        reading.refuse("SELECT INTO", say("query.select_into"), instead)


def _group_by(reading: Reading) -> None:
    reading.expect_word("by")
    reading.take_word("all", "distinct")
    reading.comma_separated(lambda: _group_item(reading))


def _group_item(reading: Reading) -> None:
    if reading.take_words("grouping", "sets") or _take_before_parenthesis(reading, "rollup", "cube"):
        reading.in_parentheses(lambda: reading.comma_separated(lambda: _group_item(reading)))
    elif reading.at("(") and reading.next_at(")"):
        reading.advance()
        reading.advance()
    else:
        expressions.read_expression(reading)


def _take_before_parenthesis(reading: Reading, *words: str) -> bool:
    return reading.next_at("(") and reading.take_word(*words)


def _named_window(reading: Reading) -> None:
    reading.column_name()
    reading.expect_word("as")
    calls.read_window(reading)


def _sort_item(reading: Reading) -> None:
    expressions.read_expression(reading)
    if reading.at_word("using"):
        reading.refuse("ORDER BY USING", say("query.order_using"), say("query.use_asc"))
    reading.take_word("asc", "desc")
    if reading.take_word("nulls"):
        reading.expect_word("first", "last")


def _limit(reading: Reading) -> None:
    if reading.take_word("limit"):
        if not reading.take_word("all"):
            expressions.read_expression(reading)
    elif reading.take_word("offset"):
        expressions.read_expression(reading)
        reading.take_word("row", "rows")
    else:
        _fetch(reading)


def _fetch(reading: Reading) -> None:
    reading.expect_word("fetch")
    reading.expect_word("first", "next")
    if not reading.at_word("row", "rows"):
        expressions.read_prefixed_operand(reading)
    reading.expect_word("row", "rows")
    if not reading.take_words("with", "ties"):
        reading.expect_word("only")
