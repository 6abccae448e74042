"""Hold the state of the parser: the next token, how to advance, how to refuse, and what was found so far."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, NoReturn

from vitrina.sentences import say
from vitrina.sqlguard import vocabulary
from vitrina.sqlguard.extensions import Extension
from vitrina.sqlguard.tokens import Kind, Token, refuse
from vitrina.sqlguard.volatile import UNKNOWN, Columns, Reference

# 250 nested calls, each two levels deep, need 3,300 frames of Python's stack, more than the default limit. They are
# Python functions that call Python functions, which use none of the thread's C stack.
DEEPEST_NESTING = 500
_FRAMES = 6_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES))

WRITES = ("insert", "update", "delete", "merge")


@dataclass
class Scope:
    """Hold the names that WITH defines, as far as they are visible at one place in the text.

    All places of one WITH share its numbered names: a query sees those with a lower number than `before`.
    """

    parent: "Scope | None"
    names: dict[str, tuple[int, Columns]]
    before: float = math.inf

    def sees(self, name: str) -> bool:
        return self._find(name) is not None

    def columns_of(self, name: str) -> Columns:
        return self._find(name) or UNKNOWN

    def name(self, name: str, columns: Columns) -> None:
        self.names.setdefault(name, (len(self.names), columns))

    def _find(self, name: str) -> Columns | None:
        scope: Scope | None = self
        while scope is not None:
            number, columns = scope.names.get(name, (math.inf, None))
            if number < scope.before:
                return columns
            scope = scope.parent
        return None


class UnresolvedTable(NamedTuple):
    """Remember a table without a schema, because a later query of WITH RECURSIVE may still define its name."""

    token: Token
    scope: Scope


@dataclass
class Findings:
    """Collect what the query uses."""

    tables: dict[tuple[str, str], None] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    references: list[Reference] = field(default_factory=list)
    stamp_calls: int = 0
    unresolved_tables: list[UnresolvedTable] = field(default_factory=list)


class Parser:
    """Read the tokens of one query from left to right, each once."""

    def __init__(
        self,
        sql: str,
        tokens: list[Token],
        *,
        allowed_schemas: frozenset[str],
        extra_functions: frozenset[str],
        trusted: tuple[Extension, ...] = (),
    ) -> None:
        self.sql = sql
        self.tokens = tokens
        self.token = tokens[0]
        self.allowed_schemas = allowed_schemas
        self.extra_functions = frozenset(name for name in extra_functions if "*" not in name)
        self.function_patterns = tuple(name for name in extra_functions if "*" in name)
        self.trusted = trusted
        self.found = Findings()
        self.scope = Scope(None, {})
        self._index = 0
        self._depth = 0

    def peek(self, distance: int = 1) -> Token:
        return self.tokens[min(self._index + distance, len(self.tokens) - 1)]

    def at(self, *marks: str) -> bool:
        return _is_mark(self.token, marks)

    def next_at(self, *marks: str) -> bool:
        return _is_mark(self.peek(), marks)

    def at_word(self, *words: str) -> bool:
        return self.token.kind is Kind.WORD and self.token.value in words

    def next_at_word(self, *words: str) -> bool:
        following = self.peek()
        return following.kind is Kind.WORD and following.value in words

    def at_identifier(self) -> bool:
        return self.token.kind is Kind.WORD or self.token.kind is Kind.NAME

    def at_column_name(self) -> bool:
        """Return whether the token may name a column or a table (PostgreSQL's ColId)."""
        if self.token.kind is Kind.WORD:
            word = self.token.value
            return word not in vocabulary.RESERVED and word not in vocabulary.FUNCTION_OR_TYPE_KEYWORDS
        return self.token.kind is Kind.NAME

    def advance(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self._index += 1
            self.token = self.tokens[self._index]
        return token

    def take(self, mark: str) -> bool:
        if self.at(mark):
            self.advance()
            return True
        return False

    def take_word(self, *words: str) -> bool:
        if self.at_word(*words):
            self.advance()
            return True
        return False

    def take_words(self, first: str, second: str) -> bool:
        """Take both words or none."""
        if self.at_word(first) and self.next_at_word(second):
            self.advance()
            self.advance()
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            self.refuse_unexpected(mark)

    def expect_word(self, *words: str) -> Token:
        if not self.at_word(*words):
            self.refuse_unexpected(" or ".join(word.upper() for word in words))
        return self.advance()

    def expect_kind(self, kind: Kind, wanted: str) -> Token:
        if self.token.kind is not kind:
            self.refuse_unexpected(wanted)
        return self.advance()

    def column_name(self) -> str:
        if not self.at_column_name():
            self.refuse_unexpected("a name")
        return self.advance().value

    def label(self) -> Token:
        """Read a name after AS or a dot, where any word is allowed (PostgreSQL's ColLabel)."""
        if not self.at_identifier():
            self.refuse_unexpected("a name")
        return self.advance()

    def dotted_name(self) -> list[str]:
        parts = [self.column_name()]
        while self.take("."):
            parts.append(self.label().value)
        return parts

    def name_list(self) -> list[str]:
        names: list[str] = []
        self.in_parentheses(lambda: self.comma_separated(lambda: names.append(self.column_name())))
        return names

    def comma_separated(self, item: Callable[[], object]) -> None:
        item()
        while self.take(","):
            item()

    def in_parentheses(self, content: Callable[[], object]) -> None:
        with self.nested():
            self.expect("(")
            content()
            self.expect(")")

    def nested(self) -> "_Nesting":
        """Count the nesting depth, so that no query can exhaust the stack of the parser."""
        return _Nesting(self)

    def deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            self.refuse("nesting", say("query.nested"), say("query.move_inner"))

    def shallower(self) -> None:
        self._depth -= 1

    def note_function(self, full_name: str) -> None:
        self.found.functions.add(full_name)
        if full_name.removeprefix("pg_catalog.") in vocabulary.STAMPS:
            self.found.stamp_calls += 1

    def note_rows(self) -> None:
        """Note that the value being read depends on rows, so it is not a stamp."""
        self.found.references.append(Reference(None, ""))

    def refuse(self, construct: str, what: str, instead: str, token: Token | None = None) -> NoReturn:
        refuse(self.sql, (token or self.token).start, construct, what, instead)

    def refuse_unexpected(self, wanted: str = "", token: Token | None = None) -> NoReturn:
        token = token or self.token
        if token.kind is Kind.WORD and token.value in WRITES:
            self.refuse_write()
        shown = token.value.upper() if token.kind is Kind.WORD else token.value
        what = say("query.not_here", word=shown) if token.kind is not Kind.END else say("query.ends_early")
        self.refuse(
            f"syntax at {shown}",
            what,
            say("query.expected", wanted=wanted) if wanted else say("query.check_up_to_here"),
            token,
        )

    def refuse_write(self) -> NoReturn:
        verb = self.token.value.upper()
        self.refuse(f"statement {verb}", say("query.changes_data", verb=verb), say("query.only_reads"))


class _Nesting:
    def __init__(self, parser: Parser) -> None:
        self._reading = parser

    def __enter__(self) -> None:
        self._reading.deeper()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reading.shallower()


def _is_mark(token: Token, marks: tuple[str, ...]) -> bool:
    return (token.kind is Kind.PUNCTUATION or token.kind is Kind.OPERATOR) and token.value in marks
