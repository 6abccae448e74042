"""Parse types and collations in a query."""

from vitrina.sentences import say
from vitrina.sqlguard import extensions, vocabulary
from vitrina.sqlguard.parser import Parser
from vitrina.sqlguard.tokens import Kind, Token

_OF_TWO_WORDS = {"double": ("precision",), "national": ("character", "char")}
_MAY_VARY = ("bit", "char", "character", "national", "nchar")
_WITH_MODIFIERS = (*_MAY_VARY, "dec", "decimal", "float", "interval", "numeric", "time", "timestamp", "varchar")


def read_type(parser: Parser) -> str:
    """Read `text`, `numeric(10, 2)[]`, `timestamp with time zone` or `content.mood`; return its bare name."""
    name = _type_name(parser)
    _details(parser, name)
    if parser.take_word("array") and parser.at("["):
        _array_bounds(parser)
    while parser.at("["):
        _array_bounds(parser)
    return name.value


def at_typed_literal(parser: Parser) -> bool:
    """Recognise `date '2024-01-01'`, `timestamp with time zone '...'`, `interval '1' day`, `content.mood 'sad'`."""
    word, following = parser.token.value, parser.peek()
    if following.kind is Kind.STRING:
        return True
    if parser.next_at_word(*_OF_TWO_WORDS.get(word, ())):
        return True
    if word in _MAY_VARY and parser.next_at_word("varying"):
        return True
    if word in ("time", "timestamp") and parser.next_at_word("with", "without"):
        return parser.peek(2).value == "time"
    if word in _WITH_MODIFIERS and parser.next_at("("):
        return True
    distance = 1
    while parser.peek(distance).kind is Kind.PUNCTUATION and parser.peek(distance).value == ".":
        distance += 2
    return parser.peek(distance).kind is Kind.STRING


def read_typed_literal(parser: Parser) -> None:
    name = _type_name(parser)
    is_interval = name.kind is Kind.WORD and name.value == "interval"
    if is_interval:
        _modifiers(parser)
    else:
        _details(parser, name)
    parser.expect_kind(Kind.STRING, "a string")
    if is_interval:
        _interval_fields(parser)
        _modifiers(parser)


def read_collation(parser: Parser) -> None:
    parser.expect_word("collate")
    start = parser.token
    parts = parser.dotted_name()
    if len(parts) > 2 or (len(parts) == 2 and parts[0] != "pg_catalog"):
        full_name = ".".join(parts)
        parser.refuse(
            f"collation {full_name}",
            say("query.collation"),
            say("query.write_collate"),
            start,
        )


def read_precision(parser: Parser) -> None:
    """Read the optional `(3)` of `current_timestamp(3)`."""
    _modifiers(parser)


def _type_name(parser: Parser) -> Token:
    start = parser.token
    if not parser.at_identifier() or (start.kind is Kind.WORD and start.value in vocabulary.RESERVED):
        parser.refuse_unexpected("a type")
    parts = [parser.advance()]
    while parser.take("."):
        parts.append(parser.label())
    _check(parser, start, [part.value for part in parts])
    # A quoted or qualified name is never one of the types with special syntax.
    return start if len(parts) == 1 else parts[-1]._replace(kind=Kind.NAME)


def _check(parser: Parser, start: Token, parts: list[str]) -> None:
    if len(parts) == 1 and start.kind is Kind.WORD and start.value in _OF_TWO_WORDS:
        return
    if parts[-1] in vocabulary.TYPES and (len(parts) == 1 or parts[:-1] == ["pg_catalog"]):
        return
    # Enums, domains and row types of a readable schema are part of its data.
    if len(parts) == 2 and parts[0] in parser.allowed_schemas:
        return
    if len(parts) <= 2 and parts[0] != "pg_catalog" and any(parts[-1] in trusted.types for trusted in parser.trusted):
        return
    full_name = ".".join(parts)
    extension = extensions.owner_of("types", parts[-1])
    parser.refuse(
        f"type {full_name}",
        say("query.type", type=full_name),
        say("query.trust_type", extension=extension) if extension else say("query.plain_type"),
        start,
    )


def _details(parser: Parser, name: Token) -> None:
    word = name.value if name.kind is Kind.WORD else ""
    if word in _OF_TWO_WORDS:
        parser.expect_word(*_OF_TWO_WORDS[word])
    if word in _MAY_VARY:
        parser.take_word("varying")
    if word == "interval":
        _interval_fields(parser)
    _modifiers(parser)
    if word in ("time", "timestamp") and parser.at_word("with", "without") and parser.next_at_word("time"):
        parser.advance()
        parser.expect_word("time")
        parser.expect_word("zone")


def _interval_fields(parser: Parser) -> None:
    if parser.take_word(*vocabulary.INTERVAL_FIELDS) and parser.take_word("to"):
        parser.expect_word(*vocabulary.INTERVAL_FIELDS)


def _modifiers(parser: Parser) -> None:
    if parser.at("("):
        parser.in_parentheses(lambda: parser.comma_separated(lambda: _modifier(parser)))


def _modifier(parser: Parser) -> None:
    parser.take("-")
    if parser.token.kind is not Kind.WORD:
        parser.expect_kind(Kind.NUMBER, "a number")
    else:
        parser.column_name()


def _array_bounds(parser: Parser) -> None:
    parser.expect("[")
    if parser.token.kind is Kind.NUMBER:
        parser.advance()
    parser.expect("]")
