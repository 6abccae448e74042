"""Refuse values that are too large for a runner to carry."""

from collections.abc import Mapping

from vitrina.errors import FatalError


def too_large(column: str, size: int, limit: int, key: Mapping[str, object]) -> FatalError:
    row = ", ".join(f"{name} = {_shown(value)}" for name, value in key.items()) or "without a key"
    return FatalError(
        f"the column {column} has a value of {size / (1 << 20):,.0f} MB in the row {row}; a runner carries up to"
        f" {limit >> 20} MB: leave it out of the query, cut it there, or raise VITRINA_MAX_VALUE_MB on every runner"
    )


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
