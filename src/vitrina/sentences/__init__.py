"""Messages for users. Each has a stable code and parameters, so that a client can show it in another language.

A sentence is a `str`, so code that only shows it needs nothing else; `said` returns its code and parameters. The
English text of every code is in the modules of this package, by area.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vitrina.sentences import definitions, derivations, plans, queries, requests, runs

CATALOG: dict[str, str] = {
    **requests.SENTENCES,
    **definitions.SENTENCES,
    **derivations.SENTENCES,
    **queries.SENTENCES,
    **plans.SENTENCES,
    **runs.SENTENCES,
}

# Sentences of these areas are stored as text and recognised by their wording when they are read back.
KEPT_AREAS = frozenset(
    {
        "attention",
        "check",
        "connection",
        "pipeline",
        "plan",
        "query",
        "run",
        "suggestion",
        "target",
        "version",
        "warning",
    }
)
# A template with less literal text would match texts of other origin.
_FEWEST_CHARACTERS = 7


class Sentence(str):
    """Represent a text with the code and the parameters that it was built from."""

    code: str
    params: Mapping[str, object]

    def __new__(cls, text: str, code: str = "", params: Mapping[str, object] | None = None) -> "Sentence":
        made = super().__new__(cls, text)
        made.code = code
        made.params = params or {}
        return made


def say(code: str, /, **params: object) -> Sentence:
    """Build the sentence `code`. A parameter may be a sentence or a list."""
    return Sentence(CATALOG[code].format(**{name: _shown(value) for name, value in params.items()}), code, params)


def said(text: str | None) -> dict[str, Any] | None:
    """Return code and parameters of a sentence, also of one that was stored as text, or None for any other text."""
    if text is None:
        return None
    if isinstance(text, Sentence) and text.code:
        return {"code": text.code, "params": {name: _sendable(value) for name, value in text.params.items()}}
    return _recognised(str(text))


def said_again(text: str, **params: object) -> str:
    """Build the sentence again with other parameters; return any other text unchanged."""
    return say(text.code, **{**text.params, **params}) if isinstance(text, Sentence) and text.code else text


def all_said(texts: Sequence[str]) -> list[dict[str, Any] | None]:
    return [said(text) for text in texts]


def params_of(template: str) -> list[str]:
    """Return the names of a template's placeholders, each once."""
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name))


def _shown(value: object) -> object:
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(part, Sentence) for part in value) else ", ").join(map(str, value))
    return value


def _sendable(value: object) -> object:
    """Convert a value to JSON; a sentence within another keeps its text, code and parameters."""
    if isinstance(value, Sentence):
        return {"text": str(value)} | (said(value) or {})
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_sendable(part) for part in value]
    return str(value)


@dataclass(frozen=True)
class _Template:
    """Hold the literal text between placeholders, and their names; there is one more text than names."""

    code: str
    words: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def literal_length(self) -> int:
        return sum(map(len, self.words))

    def fill(self, text: str) -> dict[str, str] | None:
        """Return the values of the placeholders if the text was built from this template, else None.

        Each value is as short as possible, so the text is read once, whatever it contains.
        """
        if not self.names:
            return {} if text == self.words[0] else None
        first, last = self.words[0], self.words[-1]
        if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
            return None
        found: dict[str, str] = {}
        at, end = len(first), len(text) - len(last)
        for name, word in zip(self.names, (*self.words[1:-1], None), strict=True):
            upto = end if word is None else text.find(word, at, end)
            if upto < 0 or found.setdefault(name, text[at:upto]) != text[at:upto]:
                return None
            at = upto + len(word or "")
        return found


@lru_cache(maxsize=4096)
def _recognised(text: str) -> dict[str, Any] | None:
    for template in _templates():
        found = template.fill(text)
        if found is not None:
            return {"code": template.code, "params": {name: _within(value) for name, value in found.items()}}
    return None


def _within(value: str) -> object:
    inner = _recognised(value)
    return {"text": value} | inner if inner else value


@lru_cache(maxsize=1)
def _templates() -> list[_Template]:
    """Return templates by the length of their literal text, longest first: a text may match a short one by chance."""
    kept = [_template(code, text) for code, text in CATALOG.items() if code.partition(".")[0] in KEPT_AREAS]
    told = [template for template in kept if not template.names or template.literal_length >= _FEWEST_CHARACTERS]
    return sorted(told, key=lambda template: -template.literal_length)


def _template(code: str, text: str) -> _Template:
    words, names = [""], []
    for literal, name, _, conversion in string.Formatter().parse(text):
        quote = "'" if conversion == "r" else ""
        words[-1] += literal + (quote if name is not None else "")
        if name is not None:
            names.append(name)
            words.append(quote)
    return _Template(code, tuple(words), tuple(names))
