"""Register Python steps by name. The database only ever holds such names."""

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vitrina.errors import ConfigError
from vitrina.step_rules import RESERVED_PARAMS, STEP_NAME

if TYPE_CHECKING:
    from pydantic import BaseModel

ENTRY_POINTS = "vitrina.transforms"
BUILT_IN = "vitrina.transforms.builtin"
SHIPPED = Path(__file__).parent / "builtin" / "described.json"


Form = Literal["arrow", "rows", "polars", "pandas"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered:
    """Hold a registered step or source."""

    name: str
    kind: Literal["transform", "source"]
    form: Form
    function: Callable[..., Any] = field(repr=False)
    params: "type[BaseModel] | None" = None
    # Types of columns that a row step makes, for batches that have no value in them.
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def origin(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def accepts(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.function).parameters)

    @property
    def digest(self) -> str:
        """Return a digest of the code: a load that one version began is not finished by another."""
        try:
            text = inspect.getsource(self.function)
        except (OSError, TypeError):
            text = self.origin
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_shipped(self) -> bool:
        """Return whether it is part of Vitrina. Such code is trusted with the process that runs it."""
        return self.function.__module__.startswith(f"{BUILT_IN}.")

    def describe(self) -> dict[str, Any]:
        """Describe it as `GET /transforms` shows it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "form": self.form,
            "doc": self.doc,
            "params": self.params.model_json_schema() if self.params else None,
            # Whether "5" is refused where 5 is expected.
            "strict": bool(self.params and self.params.model_config.get("strict")),
            "origin": self.origin,
        }


@dataclass(frozen=True)
class BrokenModule:
    """Hold a module of steps that could not be imported. Its steps are missing; everything else works."""

    name: str
    error: str

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "kind": "error", "doc": self.error, "params": None}


class Registry:
    """Hold steps by name, and the modules that could not be imported."""

    def __init__(self) -> None:
        self._found: dict[str, Registered] = {}
        self.broken: list[BrokenModule] = []

    def add(self, registered: Registered) -> None:
        _check_name(registered)
        _check_signature(registered)
        existing = self._found.get(registered.name)
        # Importing the same module again is not a duplicate.
        if existing is not None and existing.origin != registered.origin:
            raise ConfigError(
                f"two Python steps are called {registered.name!r}: {existing.origin} and {registered.origin};"
                " rename one"
            )
        self._found[registered.name] = registered

    def find(self, name: str) -> Registered | None:
        return self._found.get(name)

    def __iter__(self) -> Iterator[Registered]:
        return iter(sorted(self._found.values(), key=lambda found: found.name))

    def describe(self) -> list[dict[str, Any]]:
        return [found.describe() for found in self] + [module.describe() for module in self.broken]


# Global, because decorators run while modules are imported, before a registry could be passed to them.
REGISTRY = Registry()
_loaded: set[str] = set()


def transform(
    name: str,
    *,
    rows: bool = False,
    params: "type[BaseModel] | None" = None,
    columns: Mapping[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Register a step.

    It receives a `pyarrow.RecordBatch`, or a polars or pandas frame if its first parameter is annotated so, or one dict
    per row with `rows=True`. Parameters named `params` and `context` are passed if it has them.
    """

    def register(function: Function) -> Function:
        form: Form = "rows" if rows else _form_of(function)
        REGISTRY.add(Registered(name, "transform", form, function, params, dict(columns or {})))
        return function

    return register


def source(name: str, *, params: "type[BaseModel] | None" = None) -> Callable[[Function], Function]:
    """Register a source: a generator that receives a `SourceContext` and yields batches."""

    def register(function: Function) -> Function:
        REGISTRY.add(Registered(name, "source", "arrow", function, params))
        return function

    return register


def load(modules: str = "") -> Registry:
    """Import the steps that ship with Vitrina, those of installed packages and the operator's modules, once each.

    A module that cannot be imported is logged and listed, but does not stop the start. A duplicate name does.
    """
    load_shipped()
    return load_others(modules, announced())


def load_others(modules: str, announced: Iterable[Sequence[str]]) -> Registry:
    """Import all but the shipped steps, whose import takes longer than most steps need for a batch."""
    for name, value in announced:
        _load(f"{name} ({value})", partial(_load_announced, name, value))
    for module in filter(None, (part.strip() for part in modules.split(","))):
        _load(module, lambda module=module: importlib.import_module(module))  # type: ignore[misc]
    return REGISTRY


def load_shipped() -> Registry:
    """Import the shipped steps only. The runner's own process never imports others."""
    _load("built-in steps", lambda: importlib.import_module(BUILT_IN))
    return REGISTRY


def describe_shipped() -> list[dict[str, Any]]:
    """Read the result of `load_shipped().describe()` from a file (`make reference` writes it), without pyarrow.

    This halves the memory of an idle runner.
    """
    found: list[dict[str, Any]] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return found


@cache
def announced() -> tuple[tuple[str, str], ...]:
    """List the entry points of installed packages. Searching the packages takes a tenth of a second."""
    from importlib import metadata

    return tuple((found.name, found.value) for found in metadata.entry_points(group=ENTRY_POINTS))


def _load_announced(name: str, value: str) -> None:
    from importlib import metadata

    metadata.EntryPoint(name, value, ENTRY_POINTS).load()


def names_shipped(names: Iterable[str]) -> bool:
    """Return whether one of the names is a step or source that ships with Vitrina."""
    shipped = load_shipped()
    return any((found := shipped.find(name)) is not None and found.is_shipped for name in names)


def finds_only_shipped(modules: str) -> bool:
    """Return whether neither an installed package nor a setting names other steps."""
    return not modules.strip(" ,") and not announced()


def _load(name: str, load_module: Callable[[], object]) -> None:
    if name in _loaded:
        return
    _loaded.add(name)
    try:
        load_module()
    except ConfigError:
        _loaded.discard(name)
        raise
    except Exception as exc:  # noqa: BLE001 - a foreign module may raise anything while it is imported
        error = f"{type(exc).__name__}: {exc}"
        import structlog

        structlog.get_logger().error("transforms.import_failed", module=name, error=error)
        REGISTRY.broken.append(BrokenModule(name, error))


def _check_name(registered: Registered) -> None:
    if not STEP_NAME.fullmatch(registered.name):
        raise ConfigError(
            f"{registered.origin} registers the step {registered.name!r}: a name has lower-case letters, digits and"
            " underscores, and begins with a letter"
        )


def _check_signature(registered: Registered) -> None:
    """Check the signature when the module is imported rather than when the first batch arrives."""
    names = list(inspect.signature(registered.function).parameters)
    if not names:
        raise ConfigError(
            f"step {registered.name!r} ({registered.origin}) takes no argument: it needs one for the rows"
        )
    strange = [name for name in names[1:] if name not in ("params", "context")]
    if strange:
        raise ConfigError(
            f"step {registered.name!r} ({registered.origin}) has a parameter {strange[0]!r}: besides the rows it may"
            " have only `params` and `context`"
        )
    if registered.kind == "transform" and (registered.params is None) == ("params" in names):
        raise ConfigError(
            f"step {registered.name!r} ({registered.origin}): declare both a parameter `params` and"
            " @transform(params=Model), or neither"
        )
    taken = RESERVED_PARAMS & set(registered.params.model_fields) if registered.params else set()
    if taken:
        raise ConfigError(f"step {registered.name!r} ({registered.origin}): the name {min(taken)!r} is reserved")


def _form_of(function: Callable[..., Any]) -> Form:
    """Choose the form by the annotation of the first parameter.

    Only its name is compared, because the type may be imported for type checkers only.
    """
    parameters = list(inspect.signature(function).parameters.values())
    annotation = parameters[0].annotation if parameters else None
    module = annotation if isinstance(annotation, str) else getattr(annotation, "__module__", "")
    library = str(module).strip("\"'").partition(".")[0]
    if library in ("polars", "pl"):
        return "polars"
    return "pandas" if library in ("pandas", "pd") else "arrow"
