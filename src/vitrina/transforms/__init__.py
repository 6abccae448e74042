"""Python steps. A module of steps imports from here the decorators, and what a step may be given or raise."""

from vitrina.errors import FatalError, TransientError
from vitrina.transforms.context import SourceContext, StepContext
from vitrina.transforms.python_values import JSON_NULL
from vitrina.transforms.registry import source, transform

__all__ = ["JSON_NULL", "FatalError", "SourceContext", "StepContext", "TransientError", "source", "transform"]
