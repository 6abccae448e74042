"""Parse a SELECT with all its clauses: WITH, set operations, grouping, windows, order, limit."""

import math
from dataclasses import replace

from vitrina.sentences import say
from vitrina.sqlguard import calls, expressions, tables, vocabulary, volatile
from vitrina.sqlguard.parser import WRITES, Parser, Scope
from vitrina.sqlguard.tokens import Kind
from vitrina.sqlguard.volatile import UNKNOWN, Columns, Sources, Target

_SET_OPERATIONS = ("union", "intersect", "except")
_REST_OF_QUERY = (*_SET_OPERATIONS, "order", "limit", "offset", "fetch", "for")


def at_query(parser: Parser) -> bool:
    if parser.at_word("values"):
        return parser.next_at("(")
    return parser.at_word("select", "with", "table")


def read_query(parser: Parser) -> Columns:
    """Read [WITH ...] SELECT ... [ORDER BY ...] [LIMIT ...]."""
    outer_scope = parser.scope
    with parser.nested():
        read_with(parser)
        columns = read_rest_of_query(parser, read_term(parser))
    parser.scope = outer_scope
    return columns


def read_with(parser: Parser) -> bool:
    """Read the WITH clause, if any; its names stay in the scope until the caller restores it."""
    if not parser.take_word("with"):
        return False
    is_recursive = parser.take_word("recursive")
    # Without RECURSIVE a name is visible only after its own query.
    parser.scope = Scope(parser.scope, {}, math.inf if is_recursive else 0)
    parser.comma_separated(lambda: _common_table(parser, is_recursive=is_recursive))
    return True


def read_term(parser: Parser) -> Columns:
    """Read one side of a set operation."""
    if parser.at("("):
        return _query_in_parentheses(parser)
    if parser.take_word("select"):
        return _select(parser)
    if parser.at_word("values") and parser.next_at("("):
        parser.advance()
        parser.comma_separated(lambda: parser.in_parentheses(lambda: expressions.read_expressions(parser)))
        return UNKNOWN
    if parser.take_word("table"):
        return tables.read_table_name(parser)[1]
    if parser.at_word(*WRITES):
        parser.refuse_write()
    return parser.refuse_unexpected("SELECT")


def at_rest_of_query(parser: Parser) -> bool:
    return parser.at_word(*_REST_OF_QUERY)


def read_rest_of_query(parser: Parser, columns: Columns = UNKNOWN) -> Columns:
    """Read what may follow the first term of a query: set operations, order, limit."""
    while parser.take_word(*_SET_OPERATIONS):
        parser.take_word("all", "distinct")
        columns = volatile.merged(columns, read_term(parser))
    if parser.at_word("order"):
        read_order_by(parser)
    while parser.at_word("limit", "offset", "fetch"):
        _limit(parser)
    if parser.at_word("for"):
        strength = parser.peek().value.upper()
        parser.refuse(f"FOR {strength}", say("query.locks", strength=strength), say("query.leave_out"))
    return columns


def read_order_by(parser: Parser) -> None:
    parser.expect_word("order")
    parser.expect_word("by")
    parser.comma_separated(lambda: _sort_item(parser))


def _query_in_parentheses(parser: Parser) -> Columns:
    parser.expect("(")
    columns = read_query(parser)
    parser.expect(")")
    return columns


def _common_table(parser: Parser, *, is_recursive: bool) -> None:
    name = parser.column_name()
    aliases = parser.name_list() if parser.at("(") else []
    parser.expect_word("as")
    if parser.take_word("not"):
        parser.expect_word("materialized")
    else:
        parser.take_word("materialized")
    columns = volatile.renamed(_query_in_parentheses(parser), aliases)
    _search_and_cycle(parser)
    parser.scope.name(name, columns)
    if not is_recursive:
        parser.scope = replace(parser.scope, before=len(parser.scope.names))


def _search_and_cycle(parser: Parser) -> None:
    if parser.take_word("search"):
        parser.expect_word("breadth", "depth")
        parser.expect_word("first")
        parser.expect_word("by")
        parser.comma_separated(parser.column_name)
        parser.expect_word("set")
        parser.column_name()
    if parser.take_word("cycle"):
        parser.comma_separated(parser.column_name)
        parser.expect_word("set")
        parser.column_name()
        if parser.take_word("to"):
            expressions.read_expression(parser)
            parser.expect_word("default")
            expressions.read_expression(parser)
        parser.expect_word("using")
        parser.column_name()


def _select(parser: Parser) -> Columns:
    if not parser.take_word("all") and parser.take_word("distinct") and parser.take_word("on"):
        parser.in_parentheses(lambda: expressions.read_expressions(parser))
    targets = _targets(parser)
    _refuse_into(parser)
    sources: Sources = {}
    if parser.take_word("from"):
        tables.read_from(parser, sources)
    if parser.take_word("where"):
        expressions.read_expression(parser)
    if parser.take_word("group"):
        _group_by(parser)
    if parser.take_word("having"):
        expressions.read_expression(parser)
    if parser.take_word("window"):
        parser.comma_separated(lambda: _named_window(parser))
    return volatile.output_columns(targets, sources)


def _targets(parser: Parser) -> list[Target]:
    _refuse_into(parser)
    has_none = parser.at(")", ";") or parser.at_word("from", "where", "group", "having", *_REST_OF_QUERY)
    if has_none or parser.token.kind is Kind.END:
        return []  # SELECT FROM t returns rows without columns, as in EXISTS
    targets: list[Target] = []
    parser.comma_separated(lambda: targets.append(_target(parser)))
    return targets


def _target(parser: Parser) -> Target:
    if parser.take("*"):
        return Target(None, has_stamp_call=False, references=[], star_of="")
    found = parser.found
    references_before, stamps_before = len(found.references), found.stamp_calls
    name = expressions.read_expression(parser)
    references = found.references[references_before:]
    if name == expressions.STAR:
        return Target(None, has_stamp_call=False, references=[], star_of=references[-1].qualifier or expressions.STAR)
    if parser.take_word("as"):
        name = parser.label().value
    elif _at_bare_label(parser):
        name = parser.advance().value
    return Target(name, found.stamp_calls > stamps_before, references)


def _at_bare_label(parser: Parser) -> bool:
    if parser.token.kind is Kind.WORD:
        return parser.at_column_name() and parser.token.value not in vocabulary.LABELS_NEEDING_AS
    return parser.token.kind is Kind.NAME


def _refuse_into(parser: Parser) -> None:
    if parser.at_word("into"):
        instead = say("query.target_says")
        parser.refuse("SELECT INTO", say("query.select_into"), instead)


def _group_by(parser: Parser) -> None:
    parser.expect_word("by")
    parser.take_word("all", "distinct")
    parser.comma_separated(lambda: _group_item(parser))


def _group_item(parser: Parser) -> None:
    if parser.take_words("grouping", "sets") or _take_before_parenthesis(parser, "rollup", "cube"):
        parser.in_parentheses(lambda: parser.comma_separated(lambda: _group_item(parser)))
    elif parser.at("(") and parser.next_at(")"):
        parser.advance()
        parser.advance()
    else:
        expressions.read_expression(parser)


def _take_before_parenthesis(parser: Parser, *words: str) -> bool:
    return parser.next_at("(") and parser.take_word(*words)


def _named_window(parser: Parser) -> None:
    parser.column_name()
    parser.expect_word("as")
    calls.read_window(parser)


def _sort_item(parser: Parser) -> None:
    expressions.read_expression(parser)
    if parser.at_word("using"):
        parser.refuse("ORDER BY USING", say("query.order_using"), say("query.use_asc"))
    parser.take_word("asc", "desc")
    if parser.take_word("nulls"):
        parser.expect_word("first", "last")


def _limit(parser: Parser) -> None:
    if parser.take_word("limit"):
        if not parser.take_word("all"):
            expressions.read_expression(parser)
    elif parser.take_word("offset"):
        expressions.read_expression(parser)
        parser.take_word("row", "rows")
    else:
        _fetch(parser)


def _fetch(parser: Parser) -> None:
    parser.expect_word("fetch")
    parser.expect_word("first", "next")
    if not parser.at_word("row", "rows"):
        expressions.read_prefixed_operand(parser)
    parser.expect_word("row", "rows")
    if not parser.take_words("with", "ties"):
        parser.expect_word("only")
