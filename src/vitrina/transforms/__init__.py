"""Export what a module of Python steps imports: decorators, contexts, and the errors a step may raise."""

from typing import TYPE_CHECKING, Any

from vitrina.errors import FatalError, TransientError
from vitrina.transforms.context import SourceContext, StepContext
from vitrina.transforms.registry import source, transform

if TYPE_CHECKING:
    from vitrina.transforms.python_values import JSON_NULL

__all__ = ["JSON_NULL", "FatalError", "SourceContext", "StepContext", "TransientError", "source", "transform"]


def __getattr__(name: str) -> Any:
    """Import `JSON_NULL` on first use; its module loads pyarrow, which an idle runner does without."""
    if name != "JSON_NULL":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vitrina.transforms.python_values import JSON_NULL

    return JSON_NULL
