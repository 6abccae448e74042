"""Objects by name, in a folder or a bucket: what is asked of both."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

# Identifies the content of an object: what it must still be to be replaced.
Version = str


class Changed(Exception):
    """The object is no longer the version that was expected, or exists already."""


class Stored(NamedTuple):
    """An object as it was read."""

    content: bytes
    version: Version


class Listed(NamedTuple):
    """An object as it was listed; `modified` is a Unix time by the clock of the place itself."""

    name: str
    size: int
    modified: float
    # Differs when the content does; "" where the place does not say.
    version: Version = ""


class Objects(Protocol):
    """A place for objects. An object is seen whole or not at all; errors are those of `vitrina.errors`."""

    def find(self, name: str) -> Stored | None: ...

    def get(self, name: str) -> bytes:
        """Read an object. Raise `FileNotFoundError` when it does not exist."""
        ...

    def put(self, name: str, content: memoryview) -> None:
        """Write an object whose name is used once."""
        ...

    def replace(self, name: str, content: bytes, expected: Version | None) -> None:
        """Write an object if it still is the expected version (None: if there is none). Raise `Changed` if not."""
        ...

    def list(self, prefix: str) -> Iterator[Listed]:
        """List what is under a prefix, which ends with a slash, in no particular order."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that do not exist are no error."""
        ...
