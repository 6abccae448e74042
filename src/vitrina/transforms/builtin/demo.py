"""The demo cinema's own step."""

from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from vitrina.transforms.registry import transform

_ONE_DECIMAL = Decimal("0.1")


@transform("demo_film_dim", rows=True)
def demo_film_dim(row: dict[str, Any]) -> dict[str, Any] | None:
    """Prepare a film for the film mart: tidy title, rating with one decimal, sorted lists; no film without a title.

    Written row by row, as an example of a step: it takes whatever columns the query gives, and looks at `title`,
    `rating`, and at lists such as `genres` and `actors`.
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
