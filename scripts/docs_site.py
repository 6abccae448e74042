"""Hook of mkdocs: a folder in the navigation stands for all of its pages, so that a new page needs no entry."""

import re
from pathlib import Path
from typing import Any

TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def on_config(config: Any) -> Any:
    config["nav"] = [_opened(entry, Path(config["docs_dir"])) for entry in config["nav"]]
    return config


def _opened(entry: Any, docs: Path) -> Any:
    if isinstance(entry, dict):
        [(title, inside)] = entry.items()
        return {title: _pages(inside, docs) if isinstance(inside, str) else _several(inside, docs)}
    return entry


def _several(entries: list[Any], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        found += _pages(entry, docs) if isinstance(entry, str) else [_opened(entry, docs)]
    return found


def _pages(entry: str, docs: Path) -> list[str]:
    if not entry.endswith("/"):
        return [entry]
    pages = sorted((docs / entry).glob("*.md"), key=lambda page: (_number(page), _title(page)))
    return [str(page.relative_to(docs)) for page in pages]


def _number(page: Path) -> str:
    """Sort decisions by number, everything else by title."""
    return page.name[:4] if page.name[:4].isdigit() else ""


def _title(page: Path) -> str:
    found = TITLE.search(page.read_text(encoding="utf-8"))
    return found[1] if found else page.stem
