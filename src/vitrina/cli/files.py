"""Files that commands take with `-f`: one file, a directory of them, or standard input."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrina.errors import ConfigError

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")

FileOption = Annotated[str, typer.Option("--file", "-f", metavar="PATH", help="A file, or - for standard input.")]


def read(path: str) -> str:
    if path == STDIN:
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not UTF-8 text: {exc.reason} at byte {exc.start}") from exc


def read_definition(path: str) -> dict[str, Any]:
    """A pipeline's definition, as YAML or JSON (which is YAML)."""
    import yaml

    try:
        found = yaml.safe_load(read(path))
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path} is not valid YAML or JSON: {' '.join(str(exc).split())}") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{path} does not hold a pipeline: expected fields such as name, source_query, target_table")
    if "apiVersion" in found:
        raise ConfigError(f"{path} is a document for `vitrina apply -f {path}`, which creates or updates pipelines")
    return found


@dataclass(frozen=True)
class Documents:
    """YAML documents of one or more files, joined; remembers which line came from where."""

    text: str
    starts: tuple[tuple[int, str], ...]

    def place_of(self, line: int) -> tuple[str, int]:
        """File and line there, for a line of the joined text. Both count from 1."""
        start, path = max((start, path) for start, path in self.starts if start <= line)
        return path, line - start + 1


def read_documents(path: str) -> Documents:
    """All documents of a file, of a directory's files in the order of their names, or of standard input."""
    paths = [path] if path == STDIN or not Path(path).is_dir() else _files_in(Path(path))
    parts: list[str] = []
    starts: list[tuple[int, str]] = []
    line = 1
    for one in paths:
        part = read(one).rstrip() + "\n"
        if parts:
            parts.append("---\n")
            line += 1
        starts.append((line, "standard input" if one == STDIN else one))
        parts.append(part)
        line += part.count("\n")
    return Documents("".join(parts), tuple(starts))


def _files_in(directory: Path) -> list[str]:
    found = sorted(str(path) for path in directory.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise ConfigError(f"{directory} holds no {', '.join(SUFFIXES)} files")
    return found
