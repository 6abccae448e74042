"""Print the help page, with commands under headings. Plain text, because rich would take twice as long."""

from typing import Any

from typer.core import TyperGroup


class CommandsUnderHeadings(TyperGroup):
    """Show commands under the `rich_help_panel` they were registered with."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        width = max(map(len, shown), default=0)
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in shown.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            summary = command.get_short_help_str(formatter.width - width - 6)
            headings.setdefault(heading, []).append((name.ljust(width), summary))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
