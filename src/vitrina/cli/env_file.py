"""Read and write the `.env` of a directory, which only its owner can read."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from vitrina import environment
from vitrina.errors import ConfigError, Conflict

PATH = environment.DOTENV
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=")


def read() -> dict[str, str]:
    """Read the variables of the file. Return nothing where there is none."""
    return environment.of_file(PATH)


def check(values: Mapping[str, str], *, force: bool) -> bool:
    """Return whether the file has to be written. Raise `Conflict` if it has other values and may not be replaced."""
    if not PATH.exists():
        return True
    there = read()
    differing = sorted(name for name, value in values.items() if there.get(name) != value)
    if not differing:
        return False
    if force:
        return True
    raise Conflict(
        f"{PATH} exists and has another {', '.join(differing)}: --force replaces these lines and keeps the others (the"
        " old file stays beside it as .env.before), or start in another directory"
    )


def write(values: Mapping[str, str]) -> None:
    """Write these lines after all others, atomically. The file is never readable by other users."""
    kept = _lines_of_others(values)
    text = "".join([*kept, *(f"{name}={_quoted(name, value)}\n" for name, value in values.items())])
    new = PATH.with_name(f".env.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
        if PATH.exists():
            PATH.replace(PATH.with_name(".env.before"))
        new.replace(PATH)
    except OSError as exc:
        raise ConfigError(f"{PATH} cannot be written in {Path.cwd()}: {exc.strerror}") from exc


def _lines_of_others(values: Mapping[str, str]) -> list[str]:
    if not PATH.exists():
        return ["# Written by `vitrina init`. It contains passwords: do not share it.\n"]
    lines = PATH.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [line for line in lines if not ((match := _LINE.match(line)) and match["name"] in values)]
    if found and not found[-1].endswith("\n"):
        found[-1] += "\n"
    return found


def _quoted(name: str, value: str) -> str:
    """Quote a value so that python-dotenv and a shell both read it."""
    if "\n" in value or "${" in value:
        raise ConfigError(f"{name} cannot stand in {PATH}: it has a line break or ${{")
    if re.fullmatch(r"[\w.,:/@?=&%*+-]+", value, re.ASCII):
        return value
    if "'" in value or "\\" in value:
        raise ConfigError(f"{name} cannot stand in {PATH}: {value!r} has a quote or a backslash")
    return f"'{value}'"
