"""Split a query into tokens as PostgreSQL does; refuse what servers could read differently."""

import re
import string
import unicodedata
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, NoReturn

from vitrina.errors import InvalidQuery
from vitrina.sentences import say


class Kind(Enum):
    WORD = "word"  # an unquoted identifier or keyword, folded to lower case
    NAME = "name"  # a quoted identifier, as written
    NUMBER = "number"
    STRING = "string"
    OPERATOR = "operator"
    PUNCTUATION = "punctuation"  # , ( ) [ ] . ; : :: :=
    PARAMETER = "parameter"  # :since, :until
    END = "end"


class Token(NamedTuple):
    kind: Kind
    value: str
    start: int
    end: int


PARAMETERS = frozenset({"since", "until"})
LONGEST_IDENTIFIER_BYTES = 63  # PostgreSQL truncates longer names silently, so two names may become one

# \v is white space since PostgreSQL 16 only, so it is left out.
_WHITE = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*)+")
_WORD = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_NUMBER = re.compile(
    r"0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+"
    r"|(?:[0-9](?:_?[0-9])*(?:\.(?!\.)(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)(?:[eE][-+]?[0-9](?:_?[0-9])*)?"
)
_PLAIN_STRING = re.compile(r"'(?:[^']|'')*+'")
_ESCAPE_STRING = re.compile(r"[eE]'(?:[^'\\]|''|\\.)*+'", re.DOTALL)
_BIT_STRING = re.compile(r"[bB]'[01]*'|[xX]'[0-9a-fA-F]*'")
_DOLLAR_QUOTE = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)?\$")
_QUOTED_NAME = re.compile(r'"(?:[^"]|"")*+"')
_OPERATOR = re.compile(r"[~!@#^&|`?+\-*/%<>=]+")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ESCAPED_PART = re.compile(r"'(?:[^'\\]|''|\\.)*+'", re.DOTALL)
_BIT_PART = re.compile(r"'[0-9a-fA-F]*'")
# PostgreSQL's quotecontinue: white space that contains a line break, including -- comments.
_CONTINUES = re.compile(r"(?:[ \t\f]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f]+|--[^\n\r]*[\n\r])*'")
_UESCAPE = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r])*uescape(?:[ \t\n\r\f]+)?'[^0-9a-fA-F+'\"\s]'", re.IGNORECASE)

_OPERATORS_MAY_END_IN_SIGN = frozenset("~!@#^&|`?%")
_IDENTIFIER_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd", "Nl", "No"})
_UPPER_TO_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


_MAY_TOUCH_PARAMETER = (Kind.OPERATOR, Kind.PUNCTUATION)


def tokenize(sql: str) -> list[Token]:
    """Return all tokens, followed by one END token."""
    return _Scanner(sql).run()


def position(sql: str, offset: int) -> tuple[int, int]:
    """Return line and column of a character, both counted from 1."""
    line_start = sql.rfind("\n", 0, offset) + 1
    return sql.count("\n", 0, offset) + 1, offset - line_start + 1


def refuse(sql: str, offset: int, construct: str, what: str, instead: str) -> NoReturn:
    """Raise the error for what is at `offset`: what it is, where, what to do, and which setting allows it."""
    line, column = position(sql, offset)
    names_setting = "VITRINA_" in instead or "no setting" in instead
    said = say(
        "query.refused" if names_setting else "query.refused_for_good",
        line=line,
        column=column,
        what=what,
        instead=instead,
    )
    raise InvalidQuery(said, construct=construct, line=line, column=column)


class _Scanner:
    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.at = 0
        self.tokens: list[Token] = []
        self.open_brackets = 0

    def run(self) -> list[Token]:
        self._refuse_unstorable_characters()
        while self._skip_blank():
            self._next_token()
        self.tokens.append(Token(Kind.END, "end of the query", self.at, self.at))
        return self.tokens

    def _refuse_unstorable_characters(self) -> None:
        found = _UNSTORABLE.search(self.sql)
        if found:
            self._refuse(
                found.start(),
                "character",
                say("query.bad_character", code=ord(found.group())),
                say("query.remove"),
            )

    def _skip_blank(self) -> bool:
        """Skip white space and comments; return False at the end of the text."""
        while self.at < len(self.sql):
            white = _WHITE.match(self.sql, self.at)
            if white:
                self.at = white.end()
            elif self.sql.startswith("/*", self.at):
                self.at = self._end_of_block_comment()
            else:
                return True
        return False

    def _end_of_block_comment(self) -> int:
        depth = 0
        for edge in _COMMENT_EDGE.finditer(self.sql, self.at):
            depth += 1 if edge.group() == "/*" else -1
            if depth == 0:
                return edge.end()
        return self._refuse(self.at, "comment", say("query.open_comment"), say("query.close_comment"))

    def _next_token(self) -> None:
        character = self.sql[self.at]
        read = _BY_FIRST_CHARACTER.get(character)
        if read is not None:
            read(self)
        elif character.isascii():
            self._strange_character()
        else:
            self._word()

    def _mark(self) -> None:
        if self.sql[self.at] == "." and self.sql[self.at + 1 : self.at + 2] in tuple("0123456789"):
            self._number()
        else:
            self._punctuation(self.sql[self.at])

    def _word_or_prefixed_string(self) -> None:
        beginning = self.sql[self.at : self.at + 3].lower()
        if beginning == 'u&"':
            self._refuse(self.at, "unicode escape", say("query.unicode_name"), say("query.write_characters"))
        elif beginning == "u&'":
            self._unicode_string()
        elif beginning[1:2] == "'" and beginning[0] in "ebxn":
            self._prefixed_string(beginning[0])
        else:
            self._word()

    def _prefixed_string(self, letter: str) -> None:
        if letter == "n":
            self._plain_string(prefix=1)
            return
        found = (_ESCAPE_STRING if letter == "e" else _BIT_STRING).match(self.sql, self.at)
        if not found:
            self._refuse(self.at, "string", say("query.bad_string"), say("query.close_quote"))
        self._string(self._continued(found.end(), _ESCAPED_PART if letter == "e" else _BIT_PART))

    def _plain_string(self, prefix: int = 0) -> None:
        """Read a string in which a backslash is an ordinary character: sessions set standard_conforming_strings on."""
        found = _PLAIN_STRING.match(self.sql, self.at + prefix)
        if not found:
            self._refuse(self.at, "string", say("query.open_string"), say("query.close_quote"))
        self._string(self._continued(found.end(), _PLAIN_STRING))

    def _unicode_string(self) -> None:
        found = _PLAIN_STRING.match(self.sql, self.at + 2)
        if not found:
            self._refuse(self.at, "string", say("query.open_string"), say("query.close_quote"))
        end = self._continued(found.end(), _PLAIN_STRING)
        escape = _UESCAPE.match(self.sql, end)
        self._string(escape.end() if escape else end)

    def _continued(self, end: int, part: re.Pattern[str]) -> int:
        """Read strings on later lines that continue this one, with its escapes; only blanks may separate them."""
        while gap := _CONTINUES.match(self.sql, end):
            more = part.match(self.sql, gap.end() - 1)
            if not more:
                self._refuse(gap.end() - 1, "string", say("query.bad_string"), say("query.close_quote"))
            end = more.end()
        return end

    def _dollar(self) -> None:
        opening = _DOLLAR_QUOTE.match(self.sql, self.at)
        if not opening:
            self._refuse(
                self.at,
                "placeholder",
                say("query.dollar_placeholder"),
                say("query.use_since"),
            )
        closing = self.sql.find(opening.group(), opening.end())
        if closing < 0:
            self._refuse(
                self.at,
                "string",
                say("query.open_dollar", mark=opening.group()),
                say("query.close_with", mark=opening.group()),
            )
        self._string(closing + len(opening.group()))

    def _string(self, end: int) -> None:
        # On one line, or of different kinds, they are two strings without an operator.
        if self.tokens and self.tokens[-1].kind is Kind.STRING:
            self._refuse(self.at, "adjoining strings", say("query.two_strings"), say("query.join_strings"))
        self._add(Kind.STRING, self.sql[self.at : end], end)

    def _quoted_name(self) -> None:
        found = _QUOTED_NAME.match(self.sql, self.at)
        if not found:
            self._refuse(self.at, "identifier", say("query.open_name"), say("query.close_double"))
        name = found.group()[1:-1].replace('""', '"')
        if not name or any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp") for character in name):
            self._refuse(self.at, "identifier", say("query.empty_name"), say("query.visible_name"))
        self._add_identifier(Kind.NAME, name, found.end())

    def _word(self) -> None:
        found = _matched(_WORD, self.sql, self.at)
        word = found.group()
        if word.isascii():
            word = word.lower()
        else:
            self._refuse_invisible_letters(word)
            word = word.translate(_UPPER_TO_LOWER)  # like PostgreSQL with UTF-8: only A to Z
        self._add_identifier(Kind.WORD, word, found.end())

    def _refuse_invisible_letters(self, word: str) -> None:
        # PostgreSQL treats a no-break space or a typographic quote as part of a name.
        for offset, character in enumerate(word, self.at):
            if not character.isascii() and unicodedata.category(character) not in _IDENTIFIER_CATEGORIES:
                self._refuse(
                    offset,
                    "character",
                    say("query.not_a_letter", code=ord(character)),
                    say("query.replace_plain"),
                )

    def _add_identifier(self, kind: Kind, name: str, end: int) -> None:
        if len(name.encode()) > LONGEST_IDENTIFIER_BYTES:
            self._refuse(
                self.at, "identifier", say("query.long_name", most=LONGEST_IDENTIFIER_BYTES), say("query.shorten_name")
            )
        self._add(kind, name, end)

    def _number(self) -> None:
        found = _NUMBER.match(self.sql, self.at)
        if not found or _WORD.match(self.sql, found.end()):
            self._refuse(self.at, "number", say("query.number_word"), say("query.space_behind_number"))
        self._add(Kind.NUMBER, found.group(), found.end())

    def _colon(self) -> None:
        two = self.sql[self.at : self.at + 2]
        name = _WORD.match(self.sql, self.at + 1)
        if two in ("::", ":="):
            self._punctuation(two)
        elif not name or (self.open_brackets and name.group() not in PARAMETERS):
            self._punctuation(":")  # in a slice such as [1:n]
        else:
            self._parameter(name)

    def _parameter(self, name: re.Match[str]) -> None:
        if name.group() not in PARAMETERS:
            instead = say("query.use_since_or_space")
            self._refuse(self.at, "placeholder", say("query.parameter", name=name.group()), instead)
        # Its replacement must not join the word before it.
        if self.tokens and self.tokens[-1].end == self.at and self.tokens[-1].kind not in _MAY_TOUCH_PARAMETER:
            self._refuse(self.at, "placeholder", say("query.touches", name=name.group()), say("query.space_between"))
        self._add(Kind.PARAMETER, name.group(), name.end())

    def _operator(self) -> None:
        found = _matched(_OPERATOR, self.sql, self.at)
        operator = re.split(r"--|/\*", found.group(), maxsplit=1)[0]
        if operator[-1] in "+-" and not _OPERATORS_MAY_END_IN_SIGN.intersection(operator[:-1]):
            operator = operator[0] + operator[1:].rstrip("+-")
        self._add(Kind.OPERATOR, operator, self.at + len(operator))

    def _punctuation(self, mark: str) -> None:
        self.open_brackets += (mark == "[") - (mark == "]")
        self._add(Kind.PUNCTUATION, mark, self.at + len(mark))

    def _strange_character(self) -> NoReturn:
        character = self.sql[self.at]
        shown = character if character.isprintable() else f"U+{ord(character):04X}"
        self._refuse(self.at, "character", say("query.character", character=shown), say("query.remove"))

    def _add(self, kind: Kind, value: str, end: int) -> None:
        self.tokens.append(Token(kind, value, self.at, end))
        self.at = end

    def _refuse(self, offset: int, construct: str, what: str, instead: str) -> NoReturn:
        refuse(self.sql, offset, construct, what, instead)


def _matched(pattern: re.Pattern[str], sql: str, at: int) -> re.Match[str]:
    """Match a pattern that is known to match from the first character."""
    found = pattern.match(sql, at)
    if found is None:
        raise AssertionError(f"{pattern.pattern} does not match at {at}")
    return found


_BY_FIRST_CHARACTER: dict[str, Callable[[_Scanner], None]] = {
    "'": _Scanner._plain_string,
    '"': _Scanner._quoted_name,
    "$": _Scanner._dollar,
    ":": _Scanner._colon,
    **dict.fromkeys("0123456789", _Scanner._number),
    **dict.fromkeys(",()[].;", _Scanner._mark),
    **dict.fromkeys(string.ascii_letters + "_", _Scanner._word_or_prefixed_string),
    **dict.fromkeys("~!@#^&|`?+-*/%<>=", _Scanner._operator),
}
