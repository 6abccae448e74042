"""Types and collations in a query."""

from vitrina.sentences import say
from vitrina.sqlguard import extensions, vocabulary
from vitrina.sqlguard.reading import Reading
from vitrina.sqlguard.tokens import Kind, Token

_OF_TWO_WORDS = {"double": ("precision",), "national": ("character", "char")}
_MAY_VARY = ("bit", "char", "character", "national", "nchar")
_WITH_MODIFIERS = (*_MAY_VARY, "dec", "decimal", "float", "interval", "numeric", "time", "timestamp", "varchar")


def read_type(reading: Reading) -> str:
    """Read `text`, `numeric(10, 2)[]`, `timestamp with time zone` or `content.mood`; return its bare name."""
    name = _type_name(reading)
    _details(reading, name)
    if reading.take_word("array") and reading.at("["):
        _array_bounds(reading)
    while reading.at("["):
        _array_bounds(reading)
    return name.value


def at_typed_literal(reading: Reading) -> bool:
    """Recognise `date '2024-01-01'`, `timestamp with time zone '...'`, `interval '1' day`, `content.mood 'sad'`."""
    word, following = reading.token.value, reading.peek()
    if following.kind is Kind.STRING:
        return True
    if reading.next_at_word(*_OF_TWO_WORDS.get(word, ())):
        return True
    if word in _MAY_VARY and reading.next_at_word("varying"):
        return True
    if word in ("time", "timestamp") and reading.next_at_word("with", "without"):
        return reading.peek(2).value == "time"
    if word in _WITH_MODIFIERS and reading.next_at("("):
        return True
    distance = 1
    while reading.peek(distance).kind is Kind.PUNCTUATION and reading.peek(distance).value == ".":
        distance += 2
    return reading.peek(distance).kind is Kind.STRING


def read_typed_literal(reading: Reading) -> None:
    name = _type_name(reading)
    is_interval = name.kind is Kind.WORD and name.value == "interval"
    if is_interval:
        _modifiers(reading)
    else:
        _details(reading, name)
    reading.expect_kind(Kind.STRING, "a string")
    if is_interval:
        _interval_fields(reading)
        _modifiers(reading)


def read_collation(reading: Reading) -> None:
    reading.expect_word("collate")
    start = reading.token
    parts = reading.dotted_name()
    if len(parts) > 2 or (len(parts) == 2 and parts[0] != "pg_catalog"):
        full_name = ".".join(parts)
        reading.refuse(
            f"collation {full_name}",
            say("query.collation"),
            say("query.write_collate"),
            start,
        )


def read_precision(reading: Reading) -> None:
    """Read the optional `(3)` of `current_timestamp(3)`."""
    _modifiers(reading)


def _type_name(reading: Reading) -> Token:
    start = reading.token
    if not reading.at_identifier() or (start.kind is Kind.WORD and start.value in vocabulary.RESERVED):
        reading.refuse_unexpected("a type")
    parts = [reading.advance()]
    while reading.take("."):
        parts.append(reading.label())
    _check(reading, start, [part.value for part in parts])
    # A quoted or qualified name is never one of the types with a syntax of their own.
    return start if len(parts) == 1 else parts[-1]._replace(kind=Kind.NAME)


def _check(reading: Reading, start: Token, parts: list[str]) -> None:
    if len(parts) == 1 and start.kind is Kind.WORD and start.value in _OF_TWO_WORDS:
        return
    if parts[-1] in vocabulary.TYPES and (len(parts) == 1 or parts[:-1] == ["pg_catalog"]):
        return
    # Enums, domains and row types of a schema that queries may read are part of its data.
    if len(parts) == 2 and parts[0] in reading.allowed_schemas:
        return
    if len(parts) <= 2 and parts[0] != "pg_catalog" and any(parts[-1] in trusted.types for trusted in reading.trusted):
        return
    full_name = ".".join(parts)
    extension = extensions.owner_of("types", parts[-1])
    reading.refuse(
        f"type {full_name}",
        say("query.type", type=full_name),
        say("query.trust_type", extension=extension) if extension else say("query.plain_type"),
        start,
    )


def _details(reading: Reading, name: Token) -> None:
    word = name.value if name.kind is Kind.WORD else ""
    if word in _OF_TWO_WORDS:
        reading.expect_word(*_OF_TWO_WORDS[word])
    if word in _MAY_VARY:
        reading.take_word("varying")
    if word == "interval":
        _interval_fields(reading)
    _modifiers(reading)
    if word in ("time", "timestamp") and reading.at_word("with", "without") and reading.next_at_word("time"):
        reading.advance()
        reading.expect_word("time")
        reading.expect_word("zone")


def _interval_fields(reading: Reading) -> None:
    if reading.take_word(*vocabulary.INTERVAL_FIELDS) and reading.take_word("to"):
        reading.expect_word(*vocabulary.INTERVAL_FIELDS)


def _modifiers(reading: Reading) -> None:
    if reading.at("("):
        reading.in_parentheses(lambda: reading.comma_separated(lambda: _modifier(reading)))


def _modifier(reading: Reading) -> None:
    reading.take("-")
    if reading.token.kind is not Kind.WORD:
        reading.expect_kind(Kind.NUMBER, "a number")
    else:
        reading.column_name()


def _array_bounds(reading: Reading) -> None:
    reading.expect("[")
    if reading.token.kind is Kind.NUMBER:
        reading.advance()
    reading.expect("]")
