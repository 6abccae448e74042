"""Define access to objects by name, in a folder or a bucket."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

# Identifies the content of an object. An object is replaced only if it still has the expected version.
Version = str


class Changed(Exception):
    """Signal that the object does not have the expected version, or exists already."""


class Stored(NamedTuple):
    """Hold an object as it was read."""

    content: bytes
    version: Version


class Listed(NamedTuple):
    """Describe an object as it was listed; `modified` is a Unix time by the storage's clock."""

    name: str
    size: int
    modified: float
    # Changes with the content; "" if the storage has no versions.
    version: Version = ""


class Objects(Protocol):
    """Store objects. Readers see an object whole or not at all; errors are those of `vitrina.errors`."""

    def find(self, name: str) -> Stored | None: ...

    def get(self, name: str) -> bytes:
        """Read an object. Raise `FileNotFoundError` if it does not exist."""
        ...

    def put(self, name: str, content: memoryview) -> None:
        """Write an object whose name is used only once."""
        ...

    def replace(self, name: str, content: bytes, expected: Version | None) -> None:
        """Write an object if it still has the expected version (None: if it does not exist). Raise `Changed` if not."""
        ...

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects under a prefix, which ends with a slash, in no particular order."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        ...
