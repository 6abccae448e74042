"""Reads what follows FROM: tables of the allowed schemas, names of WITH, subqueries, functions, joins."""

from typing import NoReturn

from vitrina.sentences import say
from vitrina.sqlguard import calls, expressions, queries, sqljson, stamps, types, vocabulary
from vitrina.sqlguard.reading import Reading, UnresolvedTable
from vitrina.sqlguard.stamps import UNKNOWN, Columns, Sources
from vitrina.sqlguard.tokens import Kind, Token


def read_from(reading: Reading, sources: Sources) -> None:
    reading.comma_separated(lambda: _joined(reading, sources))


def read_table_name(reading: Reading) -> tuple[str, Columns]:
    """Read [ONLY] schema.table [*]; return its last part and its columns."""
    needs_parenthesis = reading.take_word("only") and reading.take("(")
    start = reading.token
    parts = reading.dotted_name()
    if needs_parenthesis:
        reading.expect(")")
    else:
        reading.take("*")
    return parts[-1], _use_table(reading, start, parts)


def refuse_unresolved(reading: Reading) -> None:
    """Refuse, at the end of the query, a table without a schema that WITH has not named."""
    for table in reading.found.unresolved_tables:
        if not table.scope.sees(table.token.value):
            _refuse_without_schema(reading, table.token)


def _use_table(reading: Reading, start: Token, parts: list[str]) -> Columns:
    reading.note_rows()
    if len(parts) == 1:
        if not reading.scope.sees(start.value):
            reading.found.unresolved_tables.append(UnresolvedTable(start, reading.scope))
        return reading.scope.columns_of(start.value)
    full_name = ".".join(parts)
    if len(parts) > 2:
        reading.refuse(f"table {full_name}", say("query.table_parts"), say("query.write_table"), start)
    if parts[0] not in reading.allowed_schemas:
        what = say("query.schema", table=full_name)
        instead = say("query.read_from", schemas=_or(reading.allowed_schemas), remedy=_remedy(parts[0]))
        reading.refuse(f"table {full_name}", what, instead, start)
    reading.found.tables[parts[0], parts[1]] = None
    return UNKNOWN


def _remedy(schema: str) -> str:
    if schema.startswith("pg_") or schema == "information_schema":
        return say("query.no_catalogs")
    return say("query.open_schema", schema=schema)


def _refuse_without_schema(reading: Reading, token: Token) -> NoReturn:
    name = token.value
    instead = say("query.write_schema", schemas=_or(reading.allowed_schemas))
    reading.refuse(f"table {name}", say("query.no_schema", table=name), instead, token)


def _or(names: frozenset[str]) -> str:
    return " or ".join(sorted(names)) or "that the operator allows (none yet)"


# --- joins -------------------------------------------------------------------------------------------------------


def _joined(reading: Reading, sources: Sources) -> None:
    _reference(reading, sources)
    _joins(reading, sources)


def _joins(reading: Reading, sources: Sources) -> None:
    """Read any number of joins; conditions may come late, as in `a JOIN b JOIN c ON .. ON ..`."""
    conditions_owed = 0
    while True:
        if reading.take_word("cross"):
            reading.expect_word("join")
            _reference(reading, sources)
        elif reading.take_word("natural"):
            _join_words(reading)
            _reference(reading, sources)
        elif reading.at_word("join", "inner", "left", "right", "full"):
            _join_words(reading)
            _reference(reading, sources)
            conditions_owed += 1
        elif conditions_owed:
            _join_condition(reading)
            conditions_owed -= 1
        else:
            return


def _join_words(reading: Reading) -> None:
    if reading.take_word("left", "right", "full"):
        reading.take_word("outer")
    else:
        reading.take_word("inner")
    reading.expect_word("join")


def _join_condition(reading: Reading) -> None:
    if reading.expect_word("on", "using").value == "on":
        expressions.read_expression(reading)
        return
    reading.name_list()
    if reading.take_word("as"):
        reading.column_name()


# --- one item of FROM --------------------------------------------------------------------------------------------


def _reference(reading: Reading, sources: Sources) -> None:
    is_lateral = reading.take_word("lateral")
    if reading.at("("):
        columns = _parenthesised(reading, sources)
        _alias(reading, sources, columns)
    elif reading.take_words("rows", "from"):
        reading.in_parentheses(lambda: reading.comma_separated(lambda: _row_function(reading)))
        _function_alias(reading, sources)
    elif reading.at_word("json_table") and reading.next_at("("):
        sqljson.read_table(reading)
        _function_alias(reading, sources)
    elif _at_call(reading):
        _function(reading)
        _function_alias(reading, sources)
    elif is_lateral:
        reading.refuse_unexpected("a subquery or a function")
    else:
        name, columns = read_table_name(reading)
        _alias(reading, sources, columns, default=name)
        if reading.take_word("tablesample"):
            _sample(reading)


def _parenthesised(reading: Reading, sources: Sources) -> Columns | None:
    """Read `( query )`, or `( a JOIN b )` and return None for it. Decide without reading anything twice."""
    with reading.nested():
        reading.expect("(")
        columns: Columns | None = None
        if reading.at("("):
            columns = _begun_with_parenthesis(reading, sources)
        elif queries.at_query(reading):
            columns = queries.read_query(reading)
        else:
            _joined(reading, sources)
        reading.expect(")")
    return columns


def _begun_with_parenthesis(reading: Reading, sources: Sources) -> Columns | None:
    columns = _parenthesised(reading, sources)
    if columns is not None and queries.at_rest_of_query(reading):
        return queries.read_rest_of_query(reading, columns)
    if columns is not None and reading.at(")"):
        return columns
    _alias(reading, sources, columns)
    _joins(reading, sources)
    return None


def _alias(reading: Reading, sources: Sources, columns: Columns | None, default: str = "") -> None:
    """Read an optional alias. `columns` is None for a join, whose tables are among the sources already."""
    alias, names = default, list[str]()
    if reading.take_word("as") or reading.at_column_name():
        alias = reading.column_name()
        names = reading.name_list() if reading.at("(") else []
    if columns is not None:
        sources[alias or f"unnamed {len(sources)}"] = stamps.renamed(columns, names)
    elif alias:
        sources[alias] = UNKNOWN


def _sample(reading: Reading) -> None:
    method = reading.label()
    if method.value not in vocabulary.SAMPLING_METHODS:
        what = say("query.sampling", name=method.value)
        reading.refuse(f"function {method.value}", what, say("query.use_bernoulli"), method)
    reading.in_parentheses(lambda: expressions.read_expressions(reading))
    if reading.take_word("repeatable"):
        reading.in_parentheses(lambda: expressions.read_expression(reading))


# --- functions in FROM -------------------------------------------------------------------------------------------


def _at_call(reading: Reading) -> bool:
    """Recognise a name, with or without a schema, before a parenthesis."""
    distance = 1
    while reading.peek(distance).kind is Kind.PUNCTUATION and reading.peek(distance).value == ".":
        distance += 2
    following = reading.peek(distance)
    is_before_parenthesis = following.kind is Kind.PUNCTUATION and following.value == "("
    return reading.at_identifier() and is_before_parenthesis and not reading.at_word("only")


def _function(reading: Reading) -> None:
    reading.note_rows()
    if reading.token.kind is Kind.WORD and calls.at_own_syntax(reading):
        calls.read_own_syntax(reading)
    else:
        parts = [reading.advance()]
        while reading.take("."):
            parts.append(reading.label())
        calls.read_call(reading, parts)


def _row_function(reading: Reading) -> None:
    if not _at_call(reading):
        reading.refuse_unexpected("a function")
    _function(reading)
    if reading.take_word("as"):
        _column_definitions(reading)


def _function_alias(reading: Reading, sources: Sources) -> None:
    sources[f"unnamed {len(sources)}"] = UNKNOWN
    if reading.take_word("with"):
        reading.expect_word("ordinality")
    has_as = reading.take_word("as")
    if has_as and reading.at("("):
        _column_definitions(reading)
    elif has_as or reading.at_column_name():
        sources[reading.column_name()] = UNKNOWN
        if reading.at("("):
            _column_definitions(reading)


def _column_definitions(reading: Reading) -> None:
    """Read `(a, b)` or `(a int, b text)`."""
    reading.in_parentheses(lambda: reading.comma_separated(lambda: _column_definition(reading)))


def _column_definition(reading: Reading) -> None:
    reading.column_name()
    if not reading.at(",", ")"):
        types.read_type(reading)
        if reading.at_word("collate"):
            types.read_collation(reading)
