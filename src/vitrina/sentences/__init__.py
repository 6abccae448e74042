"""Sentences that people read, each with a stable code and parameters, so that a client can say them in its language.

A sentence is a text, so whoever only shows it need not know; `said` gives what stands behind it. The English of all of
them is in the modules beside this one, by area: a code and its text cannot drift apart.
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

# What is kept as text and read back: these are recognised by their words.
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
# A template with fewer letters of its own would be seen in texts that are not its.
_FEWEST_LETTERS = 7


class Sentence(str):
    """A text that knows how it was made."""

    code: str
    params: Mapping[str, object]

    def __new__(cls, text: str, code: str = "", params: Mapping[str, object] | None = None) -> "Sentence":
        made = super().__new__(cls, text)
        made.code = code
        made.params = params or {}
        return made


def say(code: str, /, **params: object) -> Sentence:
    """Make the sentence `code`. A parameter may be a sentence too, or a list."""
    return Sentence(CATALOG[code].format(**{name: _shown(value) for name, value in params.items()}), code, params)


def said(text: str | None) -> dict[str, Any] | None:
    """Return code and parameters of a sentence, also of one that was kept as text, or None for any other text."""
    if text is None:
        return None
    if isinstance(text, Sentence) and text.code:
        return {"code": text.code, "params": {name: _sendable(value) for name, value in text.params.items()}}
    return _recognised(str(text))


def said_again(text: str, **params: object) -> str:
    """Make the sentence again with other parameters; a text that is no sentence stays as it is."""
    return say(text.code, **{**text.params, **params}) if isinstance(text, Sentence) and text.code else text


def all_said(texts: Sequence[str]) -> list[dict[str, Any] | None]:
    return [said(text) for text in texts]


def params_of(template: str) -> list[str]:
    """Return the names that a template has places for, each once."""
    return list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(template) if name))


def _shown(value: object) -> object:
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(part, Sentence) for part in value) else ", ").join(map(str, value))
    return value


def _sendable(value: object) -> object:
    """Convert a value to JSON; a sentence within another brings its own words along."""
    if isinstance(value, Sentence):
        return {"text": str(value)} | (said(value) or {})
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_sendable(part) for part in value]
    return str(value)


# --- texts that were kept ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Template:
    """The words between the places, and the names of these: one more of the first."""

    code: str
    words: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def letters(self) -> int:
        return sum(map(len, self.words))

    def fill(self, text: str) -> dict[str, str] | None:
        """Return what stands in the places, if the text is made of this template.

        Each place is as short as it can be, so the time is that of reading the text once, whatever it holds.
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
    """Order templates by the length of their own text, longest first: a text may match a short one by chance."""
    kept = [_template(code, text) for code, text in CATALOG.items() if code.partition(".")[0] in KEPT_AREAS]
    told = [template for template in kept if not template.names or template.letters >= _FEWEST_LETTERS]
    return sorted(told, key=lambda template: -template.letters)


def _template(code: str, text: str) -> _Template:
    words, names = [""], []
    for literal, name, _, conversion in string.Formatter().parse(text):
        quote = "'" if conversion == "r" else ""
        words[-1] += literal + (quote if name is not None else "")
        if name is not None:
            names.append(name)
            words.append(quote)
    return _Template(code, tuple(words), tuple(names))
