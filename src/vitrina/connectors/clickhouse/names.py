"""Name what a target keeps beside itself: generations, stages and views, each with the claim that owns it.

A name says which attempt of which claim may use an object. A runner that takes over drops or renames the objects of
older attempts. From then on their statements fail, because the name does not exist.
"""

import re
import secrets
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["g", "s", "v", "r"]


@dataclass(frozen=True)
class Owner:
    """Identify one attempt of one claim of one pipeline."""

    pipeline: str  # eight hexadecimal digits
    epoch: int
    attempt: str  # random, drawn when a target is opened

    @classmethod
    def drawn(cls, pipeline_hex: str, epoch: int) -> "Owner":
        return cls(pipeline_hex[-8:], epoch, secrets.token_hex(4))

    def __str__(self) -> str:
        return f"{self.epoch}x{self.attempt}_{self.pipeline}"


@dataclass(frozen=True)
class Named:
    """Name one object. g: a generation; s: a part to be merged; v: a view to be shown; r: rows of a comparison."""

    table: str
    kind: Kind
    owner: Owner
    load: str

    def __str__(self) -> str:
        return f"{self.table}__{self.kind}{self.owner}_{self.load}"

    def owned_by(self, owner: Owner) -> "Named":
        return replace(self, owner=owner)


def new_load() -> str:
    """Return a random name for a load, which stays the same when another run resumes it."""
    return secrets.token_hex(6)


def parse(table: str, name: str) -> Named | None:
    found = re.fullmatch(rf"{re.escape(table)}__([gsvr])(\d+)x([0-9a-f]+)_([0-9a-f]{{8}})_([0-9a-z]+)", name)
    if not found:
        return None
    kind: Kind = found[1]  # type: ignore[assignment]
    return Named(table, kind, Owner(found[4], int(found[2]), found[3]), found[5])
