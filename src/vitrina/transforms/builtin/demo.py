"""Provide the step of the demo cinema."""

from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from vitrina.transforms.registry import transform

_ONE_DECIMAL = Decimal("0.1")


@transform("demo_film_dim", rows=True)
def demo_film_dim(row: dict[str, Any]) -> dict[str, Any] | None:
    """Prepare a film for the film mart: trim the title, round the rating, sort lists. Drop films without a title.

    It processes single rows, as an example of such a step. It accepts any columns, and changes `title`, `rating`, and
    lists such as `genres` and `actors`.
    """
    title = " ".join((row.get("title") or "").split())
    if not title:
        return None
    row["title"] = title
    if row.get("rating") is not None:
        row["rating"] = Decimal(row["rating"]).quantize(_ONE_DECIMAL, ROUND_HALF_UP)
    for name, value in row.items():
        if isinstance(value, list):
            row[name] = sorted({str(item).strip() for item in value if item})
    return row
