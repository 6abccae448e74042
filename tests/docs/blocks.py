"""Read the fenced blocks of a page, and the comment before each that says how to treat it.

    <!-- not run: needs Docker -->    checked for its syntax only; the reason is for readers of the source
    <!-- keeps running -->            started in the background, until the page ends
    <!-- ends with 1 -->              this exit code is expected instead of 0
    <!-- needs search -->             run in tests/search, where the search servers are
    <!-- needs clickhouse -->         run in tests/clickhouse, where its engine is

A block of any language with `title="name"` after its fence is a file that the reader saves under that name.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')
NOTE = re.compile(
    r"not run: (?P<reason>.{8,})|(?P<stays>keeps running)|ends with (?P<code>\d+)|(?P<search>needs search)"
    r"|(?P<clickhouse>needs clickhouse)"
)
COMMANDS = ("bash", "console", "sh", "shell")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    note: str | None

    @property
    def is_command(self) -> bool:
        return self.language in COMMANDS and self.title is None

    @property
    def said(self) -> re.Match[str] | None:
        """Match the comment before the block; None if it says something else."""
        return NOTE.fullmatch(self.note) if self.note else None

    @property
    def reason_not_to_run(self) -> str | None:
        return self.said["reason"] if self.said else None

    @property
    def keeps_running(self) -> bool:
        return bool(self.said and self.said["stays"])

    @property
    def needs_search(self) -> bool:
        return bool(self.said and self.said["search"])

    @property
    def needs_clickhouse(self) -> bool:
        return bool(self.said and self.said["clickhouse"])

    @property
    def exit_code(self) -> int:
        return int(self.said["code"]) if self.said and self.said["code"] else 0

    @property
    def script(self) -> str:
        """Return what a reader types; of a console, only the lines with a prompt."""
        if self.language != "console":
            return self.text
        typed, continues = [], False
        for line in self.text.splitlines():
            if line.startswith("$ ") or continues:
                typed.append(line.removeprefix("$ "))
                continues = line.endswith("\\")
        return "\n".join(typed)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        title = TITLE.search(match["info"])
        body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], title[1] if title else None, body, match["note"]))
    return found
