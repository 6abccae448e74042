"""Read files that commands take with `-f`: one file, a directory of files, or standard input."""

import sys
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


def read_definition(path: str, *, also_documents: bool = False) -> dict[str, Any]:
    """Read a pipeline's definition from YAML or JSON (which is YAML). On request also from a document for `apply`."""
    import yaml

    from vitrina import yaml_values

    try:
        found = yaml_values.load(read(path))
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path} is not valid YAML or JSON: {' '.join(str(exc).split())}") from exc
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path} does not contain a pipeline: expected fields such as name, source_query, target_table"
        )
    if "apiVersion" in found and also_documents:
        return {"name": (found.get("metadata") or {}).get("name"), **(found.get("spec") or {})}
    if "apiVersion" in found:
        raise ConfigError(f"{path} is a document for `vitrina apply -f {path}`, which creates or updates pipelines")
    return found


def read_definitions(path: str) -> list[dict[str, Any]]:
    """Read every definition of a file, of the files of a directory, or of standard input, as `apply` reads them."""
    from vitrina.services import manifest_files

    found = [document.content for file, text in read_all(path).items() for document in manifest_files.read(text, file)]
    if not found:
        raise ConfigError(f"{path} contains no pipeline")
    return [_definition(content) for content in found]


def _definition(content: dict[str, Any]) -> dict[str, Any]:
    if "apiVersion" not in content:
        return content
    metadata, spec = content.get("metadata"), content.get("spec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return {"name": name, **(spec if isinstance(spec, dict) else {})}


def read_all(path: str) -> dict[str, str]:
    """Read texts by file name: a file, the files of a directory in the order of their names, or standard input."""
    if path == STDIN:
        return {"standard input": read(path)}
    return {file: read(file) for file in (_files_in(Path(path)) if Path(path).is_dir() else [path])}


def _files_in(directory: Path) -> list[str]:
    found = sorted(str(path) for path in directory.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise ConfigError(f"{directory} holds no {', '.join(SUFFIXES)} files")
    return found
