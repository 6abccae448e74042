"""What a module of Python steps imports: the decorators, and what a step may be given or raise."""

from vitrina.adapters.transforms.context import SourceContext, StepContext
from vitrina.adapters.transforms.pythonic import JSON_NULL
from vitrina.adapters.transforms.registry import source, transform
from vitrina.errors import FatalError, TransientError

__all__ = ["JSON_NULL", "FatalError", "SourceContext", "StepContext", "TransientError", "source", "transform"]
