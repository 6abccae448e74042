"""Reads one SELECT by PostgreSQL's own grammar and refuses whatever is not in the part of it that a query may use."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from vitrina.sqlguard import vocabulary
from vitrina.sqlguard.tokens import Kind, Token, refuse

DEEPEST_NESTING = 50


class OutputColumn(NamedTuple):
    name: str | None
    is_stamp: bool


# Columns of a subquery in order, or None when they cannot be told without the database (SELECT * FROM a_table).
Columns = list[OutputColumn] | None


@dataclass
class Findings:
    """What a query turned out to use."""

    tables: dict[tuple[str, str], None] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    columns: Columns = None
    stamps: frozenset[str] = frozenset()
    body_start: int = 0
    has_with: bool = False
    has_order: bool = False
    has_limit: bool = False


@dataclass
class _Scope:
    """The names that WITH has given to subqueries, as far as one place in the query can see them."""

    parent: "_Scope | None"
    names: dict[str, Columns]

    def sees(self, name: str) -> bool:
        return name in self.names or (self.parent is not None and self.parent.sees(name))

    def columns(self, name: str) -> Columns:
        if name in self.names:
            return self.names[name]
        return self.parent.columns(name) if self.parent else None


class _Reference(NamedTuple):
    """A column as the query names it; an empty name stands for something that no column list can explain."""

    qualifier: str | None
    name: str


class _Target(NamedTuple):
    name: str | None
    has_stamp: bool
    references: list[_Reference]
    star_of: str | None = None  # "" for a bare *


class _Sources(NamedTuple):
    """What stands behind FROM: subqueries by alias with their columns, and whether that is all of it."""

    columns: dict[str, Columns]


_SET_OPERATIONS = ("union", "intersect", "except")
_QUERY_STARTS = ("select", "with", "values", "table")
_QUERY_GOES_ON = (*_SET_OPERATIONS, "order", "limit", "offset", "fetch", "for")
_WRITES = {"insert": "INSERT", "update": "UPDATE", "delete": "DELETE", "merge": "MERGE"}
_SESSION_WORDS = frozenset(
    "current_user current_role session_user user system_user current_catalog current_schema".split()
)
_CLOCK_WORDS = frozenset("current_date current_time current_timestamp localtime localtimestamp".split())
_INTERVAL_FIELDS = frozenset("year month day hour minute second".split())
_NORMAL_FORMS = frozenset("nfc nfd nfkc nfkd".split())
_XML_WORDS = frozenset(word for word in vocabulary.COLUMN_NAME_KEYWORDS if word.startswith("xml"))


class Reader:
    """Recursive descent over the tokens. Callers above callees; each method is one production of the grammar.

    Precedence of operators is not tracked: it decides how values are computed, never which tables or functions are used.
    """

    def __init__(
        self, sql: str, tokens: list[Token], allowed_schemas: frozenset[str], extra_functions: frozenset[str]
    ) -> None:
        self.sql = sql
        self.tokens = tokens
        self.index = 0
        self.token = tokens[0]
        self.allowed_schemas = allowed_schemas
        self.extra_functions = extra_functions
        self.found = Findings()
        self.scope = _Scope(None, {})
        self.depth = 0
        self.references: list[_Reference] = []
        self.stamps_seen = 0
        self.unresolved: list[tuple[Token, str, _Scope]] = []

    # --- statements ----------------------------------------------------------------------------------------------

    def read(self) -> Findings:
        """The whole text: one query, optionally closed by a semicolon."""
        if self.token.kind is Kind.END:
            self._refuse(self.token, "empty query", "the query is empty", "Write a SELECT")
        if not (self._at("(") or self._at_word(*_QUERY_STARTS)):
            self._refuse_statement()
        self.found.columns = self._query(outermost=True)
        while self._take(";"):
            pass
        if self.token.kind is not Kind.END:
            self._refuse_rest_of_query()
        self._resolve_names_of_recursive_queries()
        self.found.stamps = frozenset(
            column.name for column in self.found.columns or [] if column.is_stamp and column.name
        )
        return self.found

    def _refuse_statement(self) -> NoReturn:
        word = self.token.value.upper() if self.token.kind is Kind.WORD else self.token.value
        self._refuse(
            self.token, f"statement {word}", f"a query begins with SELECT, WITH or VALUES, not with {word}",
            "A pipeline only reads; describe the result with one SELECT",
        )  # fmt: skip

    def _refuse_rest_of_query(self) -> NoReturn:
        if self.index and self.tokens[self.index - 1].value == ";":
            self._refuse(self.token, "second statement", "a second statement begins here", "Keep one SELECT")
        self._refuse_unexpected()

    def _resolve_names_of_recursive_queries(self) -> None:
        for token, name, scope in self.unresolved:
            if not scope.sees(name):
                self._refuse_unqualified(token, name)

    # --- queries -------------------------------------------------------------------------------------------------

    def _query(self, *, outermost: bool = False) -> Columns:
        """[WITH ...] SELECT ... [ORDER BY ...] [LIMIT ...], without parentheses of its own."""
        outer = self.scope
        self._enter()
        if self._at_word("with"):
            self._with_clause()
            if outermost:
                self.found.has_with = True
        if outermost:
            self.found.body_start = self.token.start
        columns = self._rest_of_query(self._query_term(), outermost=outermost)
        self._leave()
        self.scope = outer
        return columns

    def _rest_of_query(self, columns: Columns, *, outermost: bool = False) -> Columns:
        """What may follow the first SELECT of a query: set operations, order, limit."""
        while self._take_word(*_SET_OPERATIONS):
            self._take_word("all", "distinct")
            columns = _merged(columns, self._query_term())
        if self._take_word("order"):
            self._sort_list()
            self.found.has_order |= outermost
        while self._at_word("limit", "offset", "fetch"):
            self._limit_clause()
            self.found.has_limit |= outermost
        self._refuse_locking()
        return columns

    def _query_term(self) -> Columns:
        if self._at("("):
            return self._query_in_parentheses()
        if self._take_word("select"):
            return self._select()
        if self._take_word("values"):
            return self._values()
        if self._take_word("table"):
            self._table_name(alias_allowed=False)
            return None
        if self._at_word(*_WRITES):
            self._refuse_write()
        self._refuse_unexpected("a SELECT")

    def _query_in_parentheses(self) -> Columns:
        self._expect("(")
        columns = self._query()
        self._expect(")")
        return columns

    def _with_clause(self) -> None:
        self._expect_word("with")
        if self._take_word("recursive"):
            self.scope = shared = _Scope(self.scope, {})
            while True:
                name, columns = self._common_table()
                shared.names[name] = columns
                if not self._take(","):
                    return
        while True:
            name, columns = self._common_table()
            # A new scope each time: a subquery sees only the names before it, not its own.
            self.scope = _Scope(self.scope, {name: columns})
            if not self._take(","):
                return

    def _common_table(self) -> tuple[str, Columns]:
        name = self._column_name()
        aliases = self._name_list() if self._at("(") else []
        self._expect_word("as")
        self._take_word("not")
        self._take_word("materialized")
        self._expect("(")
        if self._at_word(*_WRITES):
            self._refuse_write()
        columns = self._query()
        self._expect(")")
        self._search_and_cycle()
        return name, _renamed(columns, aliases)

    def _search_and_cycle(self) -> None:
        if self._take_word("search"):
            self._expect_word("breadth", "depth")
            self._expect_word("first")
            self._expect_word("by")
            self._comma_separated(self._column_name)
            self._expect_word("set")
            self._column_name()
        if self._take_word("cycle"):
            self._comma_separated(self._column_name)
            self._expect_word("set")
            self._column_name()
            if self._take_word("to"):
                self._expression()
                self._expect_word("default")
                self._expression()
            self._expect_word("using")
            self._column_name()

    def _values(self) -> Columns:
        rows = 0
        while True:
            self._expect("(")
            self._comma_separated(self._expression)
            self._expect(")")
            rows += 1
            if not self._take(","):
                return None

    def _select(self) -> Columns:
        if self._take_word("distinct"):
            if self._take_word("on"):
                self._expect("(")
                self._comma_separated(self._expression)
                self._expect(")")
        else:
            self._take_word("all")
        targets = self._targets()
        self._refuse_into()
        sources: dict[str, Columns] = {}
        if self._take_word("from"):
            self._from_list(sources)
        if self._take_word("where"):
            self._expression()
        if self._take_word("group"):
            self._group_by()
        if self._take_word("having"):
            self._expression()
        if self._take_word("window"):
            self._comma_separated(self._named_window)
        return _output_columns(targets, sources)

    def _targets(self) -> list[_Target]:
        if self._at(")", ";") or self.token.kind is Kind.END or self._at_word("from", "where", "group", *_QUERY_GOES_ON):
            return []  # SELECT FROM t: rows without columns, as in EXISTS
        targets: list[_Target] = []
        self._refuse_into()
        self._comma_separated(lambda: targets.append(self._target()))
        return targets

    def _target(self) -> _Target:
        if self._at("*"):
            self._advance()
            return _Target(None, False, [], star_of="")
        references_before, stamps_before = len(self.references), self.stamps_seen
        name = self._expression()
        references = self.references[references_before:]
        if name == "*":
            return _Target(None, False, references, star_of=references[-1].qualifier or "?")
        if self._take_word("as"):
            name = self._label()
        elif self._at_bare_label():
            name = self._advance().value
        return _Target(name, self.stamps_seen > stamps_before, references)

    def _at_bare_label(self) -> bool:
        if self.token.kind is Kind.WORD:
            return self.token.value not in vocabulary.NOT_A_BARE_LABEL and not self._at_operator_call()
        return self.token.kind is Kind.NAME

    def _group_by(self) -> None:
        self._expect_word("by")
        self._take_word("all", "distinct")
        self._comma_separated(self._group_item)

    def _group_item(self) -> None:
        if self._at_word("grouping") and self._next_is_word("sets"):
            self._advance()
            self._advance()
            return self._group_items_in_parentheses()
        if self._at_word("rollup", "cube") and self._next_is("("):
            self._advance()
            return self._group_items_in_parentheses()
        if self._at("(") and self._next_is(")"):
            self._advance()
            self._advance()
            return None
        self._expression()
        return None

    def _group_items_in_parentheses(self) -> None:
        self._enter()
        self._expect("(")
        self._comma_separated(self._group_item)
        self._expect(")")
        self._leave()

    def _named_window(self) -> None:
        self._column_name()
        self._expect_word("as")
        self._window_specification()

    def _sort_list(self) -> None:
        self._expect_word("by")
        self._comma_separated(self._sort_item)

    def _sort_item(self) -> None:
        self._expression()
        if self._at_word("using"):
            self._refuse(self.token, "ORDER BY USING", "ORDER BY ... USING names an operator", "Use ASC or DESC")
        self._take_word("asc", "desc")
        if self._take_word("nulls"):
            self._expect_word("first", "last")

    def _limit_clause(self) -> None:
        if self._take_word("limit"):
            if not self._take_word("all"):
                self._expression()
        elif self._take_word("offset"):
            self._expression()
            self._take_word("row", "rows")
        else:
            self._expect_word("fetch")
            self._expect_word("first", "next")
            if not self._at_word("row", "rows"):
                self._expression()
            self._expect_word("row", "rows")
            if self._take_word("with"):
                self._expect_word("ties")
            else:
                self._expect_word("only")

    # --- FROM ----------------------------------------------------------------------------------------------------

    def _from_list(self, sources: dict[str, Columns]) -> None:
        self._comma_separated(lambda: self._joined_table(sources))

    def _joined_table(self, sources: dict[str, Columns]) -> None:
        self._table_reference(sources)
        self._joins(sources)

    def _joins(self, sources: dict[str, Columns]) -> None:
        """Any number of joins; conditions may come late, as in `a JOIN b JOIN c ON .. ON ..`."""
        conditions_owed = 0
        while True:
            if self._take_word("cross"):
                self._expect_word("join")
                self._table_reference(sources)
            elif self._take_word("natural"):
                self._join_word()
                self._table_reference(sources)
            elif self._at_word("join", "inner", "left", "right", "full"):
                self._join_word()
                self._table_reference(sources)
                conditions_owed += 1
            elif conditions_owed and self._take_word("on"):
                self._expression()
                conditions_owed -= 1
            elif conditions_owed and self._take_word("using"):
                self._name_list()
                if self._take_word("as"):
                    self._column_name()
                conditions_owed -= 1
            elif conditions_owed:
                self._refuse_unexpected("ON or USING")
            else:
                return

    def _join_word(self) -> None:
        if self._take_word("left", "right", "full"):
            self._take_word("outer")
        else:
            self._take_word("inner")
        self._expect_word("join")

    def _table_reference(self, sources: dict[str, Columns]) -> None:
        lateral = self._take_word("lateral")
        if self._at("("):
            columns, is_query = self._table_in_parentheses(sources)
            if is_query:
                self._alias_of_query(columns, sources)
            elif self._take_word("as") or self._at_bare_label():
                self._join_alias()
            return
        if self._at_word("rows") and self._next_is_word("from"):
            return self._rows_from()
        if self._at_word("json_table") and self._next_is("("):
            self._json_table()
            return self._function_alias()
        if self._at_function_call():
            self._function_in_from()
            return self._function_alias()
        if lateral:
            self._refuse_unexpected("a subquery or a function behind LATERAL")
        self._table_name(alias_allowed=True, sources=sources)
        return None

    def _table_in_parentheses(self, sources: dict[str, Columns]) -> tuple[Columns, bool]:
        """`( query )` or `( a JOIN b ... )`; which one is known only behind any further parentheses."""
        self._enter()
        self._expect("(")
        if self._at_query_start():
            columns, is_query = self._query(), True
        elif self._at("("):
            columns, is_query = self._table_in_parentheses(sources)
            if is_query and self._at_word(*_QUERY_GOES_ON):
                columns = self._rest_of_query(columns)
            elif not (is_query and self._at(")")):
                if is_query:
                    self._alias_of_query(columns, sources)
                elif self._take_word("as") or self._at_bare_label():
                    self._join_alias()
                self._joins(sources)
                columns, is_query = None, False
        else:
            self._joined_table(sources)
            columns, is_query = None, False
        self._expect(")")
        self._leave()
        return columns, is_query

    def _alias_of_query(self, columns: Columns, sources: dict[str, Columns]) -> None:
        alias, names = self._optional_alias()
        sources[alias or f"({len(sources)}"] = _renamed(columns, names)

    def _join_alias(self) -> None:
        self._column_name()
        if self._at("("):
            self._name_list()

    def _optional_alias(self) -> tuple[str | None, list[str]]:
        if not (self._take_word("as") or self._at_bare_label()):
            return None, []
        alias = self._column_name()
        return alias, self._name_list() if self._at("(") else []

    def _table_name(self, *, alias_allowed: bool, sources: dict[str, Columns] | None = None) -> None:
        only = self._take_word("only")
        parenthesis = only and self._take("(")
        start = self.token
        parts = self._dotted_name()
        if parenthesis:
            self._expect(")")
        else:
            self._take("*")
        columns = self._use_table(start, parts)
        if not alias_allowed:
            return
        alias, names = self._optional_alias()
        if sources is not None:
            sources[alias or parts[-1]] = _renamed(columns, names)
        if self._take_word("tablesample"):
            self._table_sample()

    def _use_table(self, start: Token, parts: list[str]) -> Columns:
        self.references.append(_Reference(None, ""))  # rows decide the value: whatever uses them is no stamp
        if len(parts) == 1:
            if self.scope.sees(parts[0]):
                return self.scope.columns(parts[0])
            self.unresolved.append((start, parts[0], self.scope))
            return None
        if len(parts) > 2:
            self._refuse(start, f"table {'.'.join(parts)}", "a table's name has at most two parts",
                         "Write schema.table")  # fmt: skip
        schema, table = parts
        if schema not in self.allowed_schemas:
            allowed = ", ".join(sorted(self.allowed_schemas))
            self._refuse(start, f"table {schema}.{table}", f"the schema {schema} is not one that queries may read",
                         f"Read from: {allowed}")  # fmt: skip
        self.found.tables[schema, table] = None
        return None

    def _refuse_unqualified(self, token: Token, name: str) -> NoReturn:
        self._refuse(
            token, f"table {name}", f"the table {name} has no schema and no WITH names it here",
            f"Write the schema too, as in {min(self.allowed_schemas, default='schema')}.{name}",
        )  # fmt: skip

    def _table_sample(self) -> None:
        method = self._expect_plain_name("a sampling method")
        if method.value not in vocabulary.TABLESAMPLE_METHODS:
            self._refuse(method, f"function {method.value}", f"{method.value} is not a sampling method of PostgreSQL",
                         "Use BERNOULLI or SYSTEM")  # fmt: skip
        self._expect("(")
        self._comma_separated(self._expression)
        self._expect(")")
        if self._take_word("repeatable"):
            self._expect("(")
            self._expression()
            self._expect(")")

    def _function_in_from(self) -> None:
        self.references.append(_Reference(None, ""))
        self._operand()

    def _rows_from(self) -> None:
        self._advance()
        self._expect_word("from")
        self._expect("(")
        self._comma_separated(self._row_function)
        self._expect(")")
        self._function_alias()

    def _row_function(self) -> None:
        if not self._at_function_call():
            self._refuse_unexpected("a function")
        self._function_in_from()
        if self._take_word("as"):
            self._column_definitions()

    def _function_alias(self) -> None:
        if self._take_word("with"):
            self._expect_word("ordinality")
        has_as = self._take_word("as")
        if has_as and self._at("("):
            return self._column_definitions()
        if not (has_as or self._at_bare_label()):
            return None
        self._column_name()
        if self._at("("):
            self._column_definitions()
        return None

    def _column_definitions(self) -> None:
        """`(a, b)` or `(a int, b text)`."""
        self._expect("(")
        self._comma_separated(self._column_definition)
        self._expect(")")

    def _column_definition(self) -> None:
        self._column_name()
        if not self._at(",", ")"):
            self._type()
            self._collation()

    # --- expressions ---------------------------------------------------------------------------------------------

    def _expression(self) -> str | None:
        """One expression; returns the name that PostgreSQL would give it as a column, if that is easy to tell."""
        self._enter()
        name = self._prefixed_operand()
        while self._infix():
            name = None
        self._leave()
        return name

    def _prefixed_operand(self) -> str | None:
        prefixed = False
        while self._at_word("not") or self.token.kind is Kind.OPERATOR:
            if self.token.kind is Kind.OPERATOR and self.token.value not in vocabulary.PREFIX_OPERATORS:
                self._refuse_stray_operator()
            self._advance()
            prefixed = True
        name = self._operand()
        return None if prefixed else name

    def _refuse_stray_operator(self) -> NoReturn:
        operator = self.token
        if operator.value in ("?", "%"):
            self._refuse(operator, "placeholder", f"{operator.value} is not a placeholder here",
                         "Use :since or :until, or write the value itself")  # fmt: skip
        if operator.value == "*":
            self._refuse(operator, "operator *", "* stands where a value is expected", "Name the columns")
        self._refuse(operator, f"operator {operator.value}", f"{operator.value} does not stand before a value",
                     "Check the expression")  # fmt: skip

    def _infix(self) -> bool:
        """An operator with what it takes on its right; False when the expression ends here."""
        token = self.token
        if token.kind is Kind.OPERATOR:
            return self._operator()
        if token.kind is not Kind.WORD:
            return False
        if token.value in ("and", "or", "overlaps"):
            self._advance()
        elif token.value == "is":
            return self._is_test()
        elif token.value in ("isnull", "notnull"):
            self._advance()
            return True
        elif token.value == "at" and self._next_is_word("time", "local"):
            return self._at_time_zone()
        elif token.value in ("in", "between", "like", "ilike", "similar", "not"):
            return self._comparison()
        elif self._at_operator_call():
            self._refuse(token, "OPERATOR()", "OPERATOR(...) can reach operators of any schema",
                         "Write the operator itself")  # fmt: skip
        else:
            return False
        self._prefixed_operand()
        return True

    def _operator(self) -> bool:
        token = self._advance()
        if token.value not in vocabulary.OPERATORS:
            self._refuse(token, f"operator {token.value}", f"{token.value} is not an operator of PostgreSQL",
                         "Check the expression, or put spaces between operators")  # fmt: skip
        self._quantified_or_operand()
        return True

    def _quantified_or_operand(self) -> None:
        if self._take_word("any", "some", "all"):
            if not self._at("("):
                self._refuse_unexpected("(")
            self._parenthesised()
        else:
            self._prefixed_operand()

    def _is_test(self) -> bool:
        self._advance()
        self._take_word("not")
        if self._take_word("distinct"):
            self._expect_word("from")
            self._prefixed_operand()
        elif self._take_word("json"):
            self._take_word("value", "array", "object", "scalar")
            if self._take_word("with", "without"):
                self._expect_word("unique")
                self._take_word("keys")
        elif self._take_word(*_NORMAL_FORMS):
            self._expect_word("normalized")
        else:
            self._expect_word("null", "true", "false", "unknown", "normalized")
        return True

    def _at_time_zone(self) -> bool:
        self._advance()
        if self._take_word("time"):
            self._expect_word("zone")
            self._prefixed_operand()
        else:
            self._expect_word("local")
        return True

    def _comparison(self) -> bool:
        """[NOT] IN | BETWEEN | LIKE | ILIKE | SIMILAR TO; the AND of BETWEEN is taken like any other AND."""
        self._take_word("not")
        if self._take_word("in"):
            if not self._at("("):
                self._refuse_unexpected("(")
            self._parenthesised()
        elif self._take_word("between"):
            self._take_word("symmetric", "asymmetric")
            self._prefixed_operand()
        else:
            if self._expect_word("like", "ilike", "similar").value == "similar":
                self._expect_word("to")
            self._quantified_or_operand()
            if self._take_word("escape"):
                self._prefixed_operand()
        return True

    def _operand(self) -> str | None:
        """A value with its casts, subscripts, fields and collation."""
        may_have_fields = self._at("(")
        name = self._primary()
        while True:
            if self._take("::"):
                self._type()
                may_have_fields = False
            elif self._at("["):
                self._subscript()
                may_have_fields = True
            elif may_have_fields and self._take("."):
                name = "*" if self._take("*") else self._field_name()
                if name == "*":
                    self.references.append(_Reference(None, ""))
            elif self._at_word("collate"):
                self._collation()
                may_have_fields = False
            else:
                return name

    def _primary(self) -> str | None:
        token = self.token
        if token.kind in (Kind.NUMBER, Kind.STRING):
            self._advance()
            return None
        if token.kind is Kind.PARAMETER:
            self._advance()
            self.found.parameters.add(token.value)
            return None
        if self._at("("):
            self._parenthesised()
            return None
        if token.kind is Kind.WORD:
            return self._primary_word()
        if token.kind is Kind.NAME:
            return self._name_or_call()
        self._refuse_unexpected("a value")

    def _parenthesised(self) -> bool:
        """`( query )`, `( value )` or a row `( a, b )`; True for a query. Never reads anything twice."""
        self._enter()
        self._expect("(")
        is_query = False
        if self._at_query_start():
            self._query()
            is_query = True
        elif self._at("("):
            is_query = self._parenthesised()
            if is_query and self._at_word(*_QUERY_GOES_ON):
                self._rest_of_query(None)
            elif not (is_query and self._at(")")):
                is_query = False
                self._after_first_operand()
                while self._infix():
                    pass
                if self._take(","):
                    self._comma_separated(self._expression)
        else:
            self._comma_separated(self._expression)
        self._expect(")")
        self._leave()
        return is_query

    def _after_first_operand(self) -> None:
        """Casts, subscripts and fields of a value in parentheses that has just been read."""
        while True:
            if self._take("::"):
                self._type()
            elif self._at("["):
                self._subscript()
            elif self._take("."):
                if not self._take("*"):
                    self._field_name()
            elif self._at_word("collate"):
                self._collation()
            else:
                return

    def _subscript(self) -> None:
        self._enter()
        self._expect("[")
        if self.token.kind is Kind.PARAMETER:
            self._refuse(self.token, "placeholder", "a slice and a parameter look alike here",
                         "Put a space behind the colon of a slice")  # fmt: skip
        if not self._at(":", "]"):
            self._expression()
        if self._take(":") and not self._at("]"):
            self._expression()
        self._expect("]")
        self._leave()

    def _primary_word(self) -> str | None:
        token = self.token
        special = _SPECIAL.get(token.value)
        if special and (token.value in vocabulary.RESERVED or self._next_is("(")):
            return special(self)
        if token.value in _XML_WORDS and self._next_is("("):
            self._refuse_xml(token)
        if token.value in vocabulary.RESERVED:
            self._refuse_reserved(token)
        if self._at_typed_literal():
            self._typed_literal()
            return None
        return self._name_or_call()

    def _refuse_reserved(self, token: Token) -> NoReturn:
        if token.value in _SESSION_WORDS:
            self._refuse(token, f"function {token.value}", f"{token.value.upper()} tells about the session, not the data",
                         "Leave it out")  # fmt: skip
        if token.value == "default":
            self._refuse(token, "DEFAULT", "DEFAULT has no meaning in a SELECT", "Write the value")
        self._refuse_unexpected("a value")

    def _refuse_xml(self, token: Token) -> NoReturn:
        self._refuse(token, f"function {token.value}", "XML is not accepted in queries", "Use json or jsonb")

    # --- names, calls, types -------------------------------------------------------------------------------------

    def _name_or_call(self) -> str | None:
        start = self.token
        if start.value == "current_schema" and start.kind is Kind.WORD:
            self._refuse_reserved(start)
        parts = [self._advance()]
        while self._take("."):
            if self._take("*"):
                self._check_column(start, parts)
                self.references.append(_Reference(parts[-1].value, "*"))
                return "*"
            parts.append(self._expect_label())
        if self._at("("):
            return self._call(start, parts)
        self._check_column(start, parts)
        self.references.append(_Reference(parts[-2].value if len(parts) > 1 else None, parts[-1].value))
        return parts[-1].value

    def _check_column(self, start: Token, parts: list[Token]) -> None:
        if start.kind is Kind.WORD and start.value in vocabulary.FUNCTION_OR_TYPE_KEYWORDS:
            self._refuse_unexpected("a value", start)
        if len(parts) > 3:
            self._refuse(start, "column", "a column's name has at most three parts", "Write table.column")
        column = parts[-1]
        if column.value in vocabulary.SYSTEM_COLUMNS:
            self._refuse(column, f"column {column.value}", f"{column.value} is bookkeeping of the server, not data",
                         "Leave it out")  # fmt: skip
        if len(parts) > 1:
            self._check_field(column)

    def _field_name(self) -> str:
        label = self._expect_label()
        self._check_field(label)
        self.references.append(_Reference(None, ""))
        return label.value

    def _check_field(self, label: Token) -> None:
        """PostgreSQL calls f(x) for `x.f` when there is no field f."""
        refused = label.value in vocabulary.FIELD_NAMES_REFUSED
        if refused or label.value.startswith(vocabulary.FIELD_BEGINNINGS_REFUSED):
            self._refuse(label, f"function {label.value}", f".{label.value} would call the function {label.value}",
                         "Give the column another name in a subquery")  # fmt: skip

    def _call(self, start: Token, parts: list[Token]) -> str:
        self._check_function(start, parts)
        name = parts[-1].value
        self._note_function(".".join(part.value for part in parts), stamp=name)
        self._enter()
        self._expect("(")
        if self._at("*"):
            self._advance()
            self.references.append(_Reference(None, ""))
        elif not self._at(")"):
            self._take_word("all", "distinct")
            self._comma_separated(self._argument)
            if self._take_word("order"):
                self._sort_list()
        self._expect(")")
        self._leave()
        self._after_call()
        return name

    def _check_function(self, start: Token, parts: list[Token]) -> None:
        full_name = ".".join(part.value for part in parts)
        if full_name in self.extra_functions:
            return
        name = parts[-1]
        is_catalog = len(parts) == 1 or (len(parts) == 2 and parts[0].value == "pg_catalog")
        is_keyword = len(parts) == 1 and name.kind is Kind.WORD and name.value in vocabulary.COLUMN_NAME_KEYWORDS
        if is_catalog and name.value in vocabulary.FUNCTIONS and not is_keyword:
            return
        if is_catalog and name.value in self.extra_functions:
            return
        self._refuse(
            start, f"function {full_name}", f"the function {full_name} is not one that queries may call",
            "Use another function, or ask the operator to add it to the allowed functions",
        )  # fmt: skip

    def _argument(self) -> None:
        self._take_word("variadic")
        if self.token.kind in (Kind.WORD, Kind.NAME) and self._next_is(":=", "=>"):
            self._advance()
            self._advance()
        self._expression()

    def _after_call(self) -> None:
        if self._at_word("within") and self._next_is_word("group"):
            self._advance()
            self._advance()
            self._expect("(")
            self._expect_word("order")
            self._sort_list()
            self._expect(")")
        if self._at_word("filter") and self._next_is("("):
            self._advance()
            self._expect("(")
            self._expect_word("where")
            self._expression()
            self._expect(")")
        if self._take_word("over"):
            self.references.append(_Reference(None, ""))
            if self._at("("):
                self._window_specification()
            else:
                self._column_name()

    def _window_specification(self) -> None:
        self._expect("(")
        if self.token.kind in (Kind.WORD, Kind.NAME) and not self._at_word(
            "partition", "order", "rows", "range", "groups"
        ):
            self._column_name()
        if self._take_word("partition"):
            self._expect_word("by")
            self._comma_separated(self._expression)
        if self._take_word("order"):
            self._sort_list()
        if self._take_word("rows", "range", "groups"):
            self._frame()
        self._expect(")")

    def _frame(self) -> None:
        if self._take_word("between"):
            self._frame_bound()
            self._expect_word("and")
        self._frame_bound()
        if self._take_word("exclude"):
            if self._take_word("current"):
                self._expect_word("row")
            elif self._take_word("no"):
                self._expect_word("others")
            else:
                self._expect_word("group", "ties")

    def _frame_bound(self) -> None:
        if self._take_word("current"):
            self._expect_word("row")
            return
        if not self._take_word("unbounded"):
            # Not a whole expression: its end would swallow the AND of BETWEEN.
            self._prefixed_operand()
            while self.token.kind is Kind.OPERATOR:
                self._operator()
        self._expect_word("preceding", "following")

    def _type(self) -> str:
        """A type's name with modifiers and array bounds."""
        start = self.token
        if self._at_word("setof"):
            self._refuse_unexpected("a type")
        parts = [part.value for part in self._type_name()]
        self._check_type(start, parts)
        self._type_details(parts[-1])
        if self._take_word("array"):
            if self._take("["):
                self._take_number()
                self._expect("]")
        while self._at("["):
            self._advance()
            self._take_number()
            self._expect("]")
        return parts[-1]

    def _type_name(self) -> list[Token]:
        if self.token.kind is Kind.WORD and self.token.value in vocabulary.RESERVED:
            self._refuse_unexpected("a type")
        if self.token.kind not in (Kind.WORD, Kind.NAME):
            self._refuse_unexpected("a type")
        parts = [self._advance()]
        while self._take("."):
            parts.append(self._expect_label())
        return parts

    def _check_type(self, start: Token, parts: list[str]) -> None:
        name = parts[-1]
        if len(parts) == 1 or (len(parts) == 2 and parts[0] == "pg_catalog"):
            if name in vocabulary.TYPES:
                return
            if start.kind is Kind.WORD and name in ("double", "national"):
                return
            if start.kind is Kind.NAME and name == "char":
                return
        # Types of a schema that queries may read belong to the data: its enums, domains and row types.
        if len(parts) == 2 and parts[0] in self.allowed_schemas:
            return
        full_name = ".".join(parts)
        self._refuse(start, f"type {full_name}", f"the type {full_name} is not one that queries may use",
                     "Use a built-in type such as text, numeric or timestamptz, or a schema-qualified type of your data",
                     )  # fmt: skip

    def _type_details(self, name: str) -> None:
        if name == "double":
            self._expect_word("precision")
        elif name == "national":
            self._expect_word("character", "char")
        if name in ("character", "char", "nchar", "bit", "national"):
            self._take_word("varying")
        if name == "interval":
            self._interval_fields()
        if self._at("("):
            self._type_modifiers()
        if name in ("time", "timestamp") and self._at_word("with", "without") and self._next_is_word("time"):
            self._advance()
            self._expect_word("time")
            self._expect_word("zone")

    def _interval_fields(self) -> None:
        if self._take_word(*_INTERVAL_FIELDS):
            if self._take_word("to"):
                self._expect_word(*_INTERVAL_FIELDS)

    def _type_modifiers(self) -> None:
        self._expect("(")
        self._comma_separated(self._type_modifier)
        self._expect(")")

    def _type_modifier(self) -> None:
        if self.token.kind is Kind.OPERATOR and self.token.value == "-":
            self._advance()
        if self.token.kind not in (Kind.NUMBER, Kind.WORD, Kind.STRING):
            self._refuse_unexpected("a number")
        self._advance()

    def _collation(self) -> None:
        if not self._take_word("collate"):
            return
        start = self.token
        parts = self._dotted_name()
        if len(parts) > 2 or (len(parts) == 2 and parts[0] != "pg_catalog"):
            self._refuse(start, f"collation {'.'.join(parts)}", "only the built-in collations may be used",
                         'Write COLLATE "C" or another collation without a schema')  # fmt: skip

    def _at_typed_literal(self) -> bool:
        """`date '2024-01-01'`, `interval '1' day`, `timestamp with time zone '...'`, `pg_catalog.int4 '1'`."""
        at = self.index
        if self.tokens[at + 1].kind is Kind.STRING:
            return True
        word = self.token.value
        if word in ("double", "national") and self.tokens[at + 1].kind is Kind.WORD:
            return self.tokens[at + 1].value in ("precision", "character", "char")
        if word in ("character", "char", "nchar", "bit") and self.tokens[at + 1].value == "varying":
            return True
        if word in ("time", "timestamp") and self.tokens[at + 1].kind is Kind.WORD:
            return self.tokens[at + 1].value in ("with", "without") and self.tokens[at + 2].value == "time"
        if word in _TYPES_WITH_MODIFIERS and self.tokens[at + 1].value == "(":
            return True
        while self.tokens[at + 1].value == "." and self.tokens[at + 1].kind is Kind.PUNCTUATION:
            at += 2
        return at > self.index and self.tokens[min(at + 1, len(self.tokens) - 1)].kind is Kind.STRING

    def _typed_literal(self) -> None:
        start = self.token
        parts = [part.value for part in self._type_name()]
        self._check_type(start, parts)
        is_interval = parts[-1] == "interval"
        if is_interval and self._at("("):
            self._type_modifiers()
        elif not is_interval:
            self._type_details(parts[-1])
        if self.token.kind is not Kind.STRING:
            self._refuse_unexpected("a string")
        self._advance()
        if is_interval:
            self._interval_fields()
            if self._at("("):
                self._type_modifiers()

    # --- expressions with a syntax of their own ------------------------------------------------------------------

    def _case(self) -> str:
        self._enter()
        self._advance()
        if not self._at_word("when"):
            self._expression()
        while self._take_word("when"):
            self._expression()
            self._expect_word("then")
            self._expression()
        if self._take_word("else"):
            self._expression()
        self._expect_word("end")
        self._leave()
        return "case"

    def _cast(self) -> str | None:
        self._advance()
        self._expect("(")
        name = self._expression()
        self._expect_word("as")
        type_name = self._type()
        self._expect(")")
        return name or type_name

    def _array(self) -> str:
        self._advance()
        if self._at("["):
            self._array_items()
        else:
            self._enter()
            self._expect("(")
            self._query()
            self._expect(")")
            self._leave()
        return "array"

    def _array_items(self) -> None:
        self._enter()
        self._expect("[")
        if not self._at("]"):
            self._comma_separated(self._array_item)
        self._expect("]")
        self._leave()

    def _array_item(self) -> None:
        if self._at("["):
            self._array_items()
        else:
            self._expression()

    def _row(self) -> str:
        self._advance()
        self._enter()
        self._expect("(")
        if not self._at(")"):
            self._comma_separated(self._row_item)
        self._expect(")")
        self._leave()
        return "row"

    def _row_item(self) -> None:
        self._expression()

    def _exists(self) -> str:
        self._advance()
        if not self._at("("):
            self._refuse_unexpected("(")
        self._enter()
        self._query_in_parentheses()
        self._leave()
        return "exists"

    def _constant(self) -> None:
        self._advance()

    def _clock(self) -> str:
        word = self._advance().value
        self._note_function(word, stamp=word)
        if word != "current_date" and self._at("("):
            self._type_modifiers()
        return word

    def _extract(self) -> str:
        self._begin_own_syntax()
        if self.token.kind not in (Kind.WORD, Kind.NAME, Kind.STRING):
            self._refuse_unexpected("a field such as year")
        self._advance()
        self._expect_word("from")
        self._expression()
        return self._end_own_syntax("extract")

    def _word_separated(self) -> str:
        """overlay, position, substring, trim: arguments parted by words or by commas."""
        name = self._begin_own_syntax()
        self._take_word("both", "leading", "trailing")
        self._take_word("from")
        if not self._at(")"):
            self._expression()
        while self._take_word("from", "for", "placing", "in", "similar", "escape") or self._take(","):
            self._expression()
        return self._end_own_syntax({"trim": "btrim"}.get(name, name))

    def _plain_arguments(self) -> str:
        """coalesce, greatest, least, nullif, grouping, normalize."""
        name = self._begin_own_syntax()
        self._comma_separated(self._expression)
        return self._end_own_syntax(name)

    def _begin_own_syntax(self) -> str:
        name = self._advance().value
        self._note_function(name)
        self._enter()
        self._expect("(")
        return name

    def _end_own_syntax(self, name: str) -> str:
        self._expect(")")
        self._leave()
        return name

    def _json_constructor(self) -> str:
        """The SQL/JSON functions: expressions, types and a fixed set of words between them."""
        name = self._begin_own_syntax()
        while not self._at(")"):
            self._json_piece()
        self._end_own_syntax(name)
        self._after_call()
        return name

    def _json_piece(self) -> None:
        if self._take(",") or self._take(":") or self._json_clause():
            return
        if self._take_word("order"):
            self._sort_list()
        elif self._at_word("select", "with", "values"):
            self._query()
        else:
            self._argument()

    def _json_clause(self) -> bool:
        if self._take_word("returning"):
            self._type()
        elif self._take_word("passing"):
            self._comma_separated(self._json_passed)
        elif self._at_word("null", "absent", "error", "empty", "true", "false", "unknown") and self._json_behaviour():
            pass
        elif self._take_word("default"):
            self._expression()
            self._expect_word("on")
            self._expect_word("empty", "error")
        elif self._at_word("with", "without"):
            self._json_with()
        elif self._at_word("keep", "omit") and self._next_is_word("quotes"):
            self._advance()
            self._advance()
            if self._take_word("on"):
                self._expect_word("scalar")
                self._expect_word("string")
        elif self._at_word("format") and self._next_is_word("json"):
            self._advance()
            self._advance()
            if self._take_word("encoding"):
                self._expect_plain_name("an encoding")
        elif self._at_word("value") and not self._next_is(",", ")", ".", "("):
            self._advance()
        else:
            return False
        return True

    def _json_behaviour(self) -> bool:
        """NULL ON NULL, ABSENT ON NULL, ERROR ON ERROR, EMPTY ARRAY ON EMPTY, ..."""
        if self._next_is_word("on"):
            self._advance()
        elif self._at_word("empty") and self._next_is_word("array", "object"):
            self._advance()
            self._advance()
        else:
            return False
        self._expect_word("on")
        self._expect_word("null", "empty", "error")
        return True

    def _json_with(self) -> None:
        self._expect_word("with", "without")
        if self._take_word("unique"):
            self._take_word("keys")
            return
        self._take_word("conditional", "unconditional")
        self._take_word("array")
        self._expect_word("wrapper")

    def _json_passed(self) -> None:
        self._expression()
        self._expect_word("as")
        self._label()

    def _json_table(self) -> None:
        self.references.append(_Reference(None, ""))
        self._begin_own_syntax()
        while not self._at(")"):
            if self._take_word("columns"):
                self._json_columns()
            elif self._take_word("as"):
                self._column_name()
            else:
                self._json_piece()
        self._end_own_syntax("json_table")

    def _json_columns(self) -> None:
        self._enter()
        self._expect("(")
        self._comma_separated(self._json_column)
        self._expect(")")
        self._leave()

    def _json_column(self) -> None:
        if self._at_word("nested") and (self._next_is_word("path") or self.tokens[self.index + 1].kind is Kind.STRING):
            self._advance()
            self._take_word("path")
            self._expect_string()
            if self._take_word("as"):
                self._column_name()
            self._expect_word("columns")
            return self._json_columns()
        self._column_name()
        if self._take_word("for"):
            self._expect_word("ordinality")
            return None
        self._type()
        self._take_word("exists")
        while not self._at(",", ")"):
            if self._take_word("path"):
                self._expect_string()
            elif not self._json_clause():
                self._refuse_unexpected()
        return None

    # --- things refused wherever they stand ----------------------------------------------------------------------

    def _refuse_into(self) -> None:
        if self._at_word("into"):
            self._refuse(self.token, "SELECT INTO", "SELECT INTO creates a table",
                         "Leave INTO out; the pipeline's target says where rows go")  # fmt: skip

    def _refuse_locking(self) -> None:
        if self._at_word("for"):
            what = " ".join(token.value.upper() for token in self.tokens[self.index + 1 : self.index + 2])
            self._refuse(self.token, f"FOR {what}", f"FOR {what} locks rows", "Leave it out")

    def _refuse_write(self) -> NoReturn:
        verb = _WRITES[self.token.value]
        self._refuse(self.token, f"statement {verb}", f"{verb} changes data", "A pipeline's query only reads")

    # --- names ---------------------------------------------------------------------------------------------------

    def _dotted_name(self) -> list[str]:
        parts = [self._column_name()]
        while self._take("."):
            parts.append(self._expect_label().value)
        return parts

    def _column_name(self) -> str:
        """A name that is not a reserved word (PostgreSQL's ColId)."""
        token = self.token
        if token.kind is Kind.WORD:
            if token.value in vocabulary.RESERVED or token.value in vocabulary.FUNCTION_OR_TYPE_KEYWORDS:
                self._refuse_unexpected("a name")
        elif token.kind is not Kind.NAME:
            self._refuse_unexpected("a name")
        return self._advance().value

    def _expect_plain_name(self, what: str) -> Token:
        if self.token.kind not in (Kind.WORD, Kind.NAME):
            self._refuse_unexpected(what)
        return self._advance()

    def _label(self) -> str:
        return self._expect_label().value

    def _expect_label(self) -> Token:
        """Behind AS or a dot any word will do (PostgreSQL's ColLabel)."""
        return self._expect_plain_name("a name")

    def _name_list(self) -> list[str]:
        names: list[str] = []
        self._expect("(")
        self._comma_separated(lambda: names.append(self._column_name()))
        self._expect(")")
        return names

    def _note_function(self, name: str, stamp: str = "") -> None:
        self.found.functions.add(name)
        if stamp in vocabulary.STAMPS:
            self.stamps_seen += 1

    # --- tokens --------------------------------------------------------------------------------------------------

    def _at_query_start(self) -> bool:
        if self._at_word("values"):
            return self._next_is("(")
        return self._at_word("select", "with", "table")

    def _at_function_call(self) -> bool:
        """A possibly qualified name followed by a parenthesis."""
        if self.token.kind not in (Kind.WORD, Kind.NAME):
            return False
        at = self.index + 1
        while self.tokens[at].kind is Kind.PUNCTUATION and self.tokens[at].value == "." and at + 2 < len(self.tokens):
            at += 2
        following = self.tokens[at]
        return following.kind is Kind.PUNCTUATION and following.value == "(" and not self._at_word("only", "lateral")

    def _at_operator_call(self) -> bool:
        return self._at_word("operator") and self._next_is("(")

    def _comma_separated(self, item: Callable[[], object]) -> None:
        item()
        while self._take(","):
            item()

    def _take_number(self) -> None:
        if self.token.kind is Kind.NUMBER:
            self._advance()

    def _expect_string(self) -> None:
        if self.token.kind is not Kind.STRING:
            self._refuse_unexpected("a string")
        self._advance()

    def _at(self, *marks: str) -> bool:
        kind = self.token.kind
        return (kind is Kind.PUNCTUATION or kind is Kind.OPERATOR) and self.token.value in marks

    def _take(self, mark: str) -> bool:
        if self._at(mark):
            self._advance()
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            self._refuse_unexpected(mark)

    def _at_word(self, *words: str) -> bool:
        return self.token.kind is Kind.WORD and self.token.value in words

    def _take_word(self, *words: str) -> bool:
        if self.token.kind is Kind.WORD and self.token.value in words:
            self._advance()
            return True
        return False

    def _expect_word(self, *words: str) -> Token:
        if not self._at_word(*words):
            self._refuse_unexpected(" or ".join(word.upper() for word in words))
        return self._advance()

    def _next_is(self, *marks: str) -> bool:
        following = self.tokens[min(self.index + 1, len(self.tokens) - 1)]
        return following.kind in (Kind.PUNCTUATION, Kind.OPERATOR) and following.value in marks

    def _next_is_word(self, *words: str) -> bool:
        following = self.tokens[min(self.index + 1, len(self.tokens) - 1)]
        return following.kind is Kind.WORD and following.value in words

    def _advance(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self.index += 1
            self.token = self.tokens[self.index]
        return token

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            self._refuse(self.token, "nesting", "the query is nested too deeply", "Move inner parts into WITH")

    def _leave(self) -> None:
        self.depth -= 1

    def _refuse_unexpected(self, wanted: str = "", token: Token | None = None) -> NoReturn:
        token = token or self.token
        if token.kind is Kind.WORD and token.value in _WRITES:
            self._refuse_write()
        shown = token.value.upper() if token.kind is Kind.WORD else token.value
        instead = f"Expected {wanted}" if wanted else "Check the query up to here"
        self._refuse(token, f"syntax at {shown}", f"{shown} is not accepted here", instead)

    def _refuse(self, token: Token, construct: str, what: str, instead: str) -> NoReturn:
        refuse(self.sql, token.start, construct, what, instead)


_TYPES_WITH_MODIFIERS = frozenset(
    "bit char character dec decimal float interval nchar numeric time timestamp varchar".split()
)

_SPECIAL: dict[str, Callable[[Reader], str | None]] = {
    "case": Reader._case,
    "cast": Reader._cast,
    "array": Reader._array,
    "row": Reader._row,
    "exists": Reader._exists,
    "null": Reader._constant,
    "true": Reader._constant,
    "false": Reader._constant,
    "extract": Reader._extract,
    **dict.fromkeys(_CLOCK_WORDS, Reader._clock),
    **dict.fromkeys(("overlay", "position", "substring", "trim"), Reader._word_separated),
    **dict.fromkeys(("coalesce", "greatest", "least", "nullif", "grouping", "normalize"), Reader._plain_arguments),
    **dict.fromkeys(
        ("json", "json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query",
         "json_scalar", "json_serialize", "json_value"),
        Reader._json_constructor,
    ),
}  # fmt: skip


# --- which output columns are stamps -----------------------------------------------------------------------------


def _output_columns(targets: list[_Target], sources: dict[str, Columns]) -> Columns:
    columns: list[OutputColumn] = []
    for target in targets:
        if target.star_of is None:
            columns.append(OutputColumn(target.name, _is_stamp(target, sources)))
            continue
        for alias, known in sources.items():
            if target.star_of in ("", alias):
                if known is None:
                    return None
                columns.extend(known)
    return columns


def _is_stamp(target: _Target, sources: dict[str, Columns]) -> bool:
    """Made of stamps and constants only: `now()`, `now()::date`; not `expires_at > now()`, which is about the row."""
    if not all(_refers_to_stamp(reference, sources) for reference in target.references):
        return False
    return target.has_stamp or bool(target.references)


def _refers_to_stamp(reference: _Reference, sources: dict[str, Columns]) -> bool:
    candidates = [
        column
        for alias, known in sources.items()
        if reference.qualifier in (None, alias)
        for column in known or []
        if column.name == reference.name
    ]
    return bool(candidates) and all(column.is_stamp for column in candidates)


def _renamed(columns: Columns, names: list[str]) -> Columns:
    if columns is None:
        return None
    return [
        OutputColumn(names[place], column.is_stamp) if place < len(names) else column
        for place, column in enumerate(columns)
    ]


def _merged(left: Columns, right: Columns) -> Columns:
    """Columns of a set operation: named by the left side, stamps only where both sides are."""
    if left is None or right is None or len(left) != len(right):
        return None
    return [OutputColumn(one.name, one.is_stamp and two.is_stamp) for one, two in zip(left, right, strict=True)]
