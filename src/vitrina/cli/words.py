"""Take the words of a command without pydantic, which typer converts them with: that is half the CPU of a command."""

from enum import StrEnum
from typing import Any

import typer

HELP = ["-h", "--help"]


class Words:
    """Convert values of parameters. What is not plain text, and what has to be refused, is left to typer."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        has_several = param.multiple or param.nargs == -1
        if value is None:
            return () if has_several else None
        kind = param.type_descriptor.annotation
        if param.type_descriptor.parameter_info.parser is None:
            if has_several and kind == list[str] and not isinstance(value, str):
                return list(value)
            if not has_several and is_taken_as_it_is(value, kind):
                return kind(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def is_taken_as_it_is(value: Any, kind: Any) -> bool:
    """Return whether the value has the type of its parameter, as defaults have, or is the word of a choice."""
    if kind not in (str, bool, int, float) and not (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return False
    return type(value) is kind or (isinstance(value, str) and issubclass(kind, StrEnum) and value in list(kind))


def take_plainly(command: Any) -> Any:
    """Have the words of a command, and of those below it, converted here. Other versions of typer ignore this."""
    for parameter in command.get_params(typer.Context(command, help_option_names=HELP)):
        parameter._runtime_param = Words()
    for below in getattr(command, "commands", {}).values():
        take_plainly(below)
    return command
