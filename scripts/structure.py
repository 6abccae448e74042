"""Print figures of the source tree: checks for kinds of targets, import cycles, sizes, docstrings.

    .venv/bin/python scripts/structure.py            a table
    .venv/bin/python scripts/structure.py --where    with the places that were counted

`tests/architecture/test_structure.py` holds the figures.
"""

import argparse
import ast
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "vitrina"

KINDS_OF_TARGETS = frozenset(
    "PostgresTarget SearchTarget ConnectorTarget PostgresWriter ElasticsearchWriter MartTarget IndexTarget".split()
)
# Where a target's name is parsed: the only place that may know all kinds.
ALLOWED_TO_ASK = {"vitrina.targets"}
# A recursive descent over one grammar: its modules call each other by nature.
CYCLES_ALLOWED = ("vitrina.sqlguard",)

# Verbs with which a docstring may begin.
VERBS = frozenset(
    """
    accept acknowledge add admit advance allow answer append apply ask attach authenticate be begin bind block bound
    break bring build call cancel carry change check choose claim clear close collect come commit compare complete
    compute connect continue convert copy correct count cover create cut decide declare decode delete deliver derive
    describe detach discard divide do download drain drop enable encode encrypt end escape estimate examine execute
    expect explain export extend fetch fill find finish fire fit follow forget format get give go group guess hand
    handle hide hold identify insert inspect invite iterate join judge keep know learn leave let limit list listen load
    lock log look lose make map mark mask match measure merge mirror move name normalise note notify number observe
    offer open order pack pair parse pass pause perform pick place plan prefer prepare print produce promise prove
    publish pull push put queue quote raise read receive recognise record recover reduce refuse register release
    remember remove rename render repair repeat replace report request require reset resolve restore resume retry return
    revoke roll run save say scan seal search see seize select send serve set settle share shorten show shut sign sleep
    sort split start state stop store stream strip suggest swap take tell test throw time touch translate trim try turn
    undo unpack update use validate verify wait wake walk warn watch withdraw work wrap write yield
    adopt analyze announce assume cast clean decode derive detect disable doubt draw extract generate guard hash
    identify import kill lend link match pair post postpone query queue redact refresh sample separate spawn spell
    stage stand survive sync upsert
    """.split()
)


@dataclass(frozen=True)
class Figure:
    """Represent one line of the table: what is counted, how many there are, and where."""

    name: str
    value: int
    goal: str
    places: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Module:
    """Represent a parsed source file."""

    name: str
    tree: ast.Module
    lines: int

    def place(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}"


def figures() -> list[Figure]:
    """Count everything."""
    found = list(modules())
    cycles = [" -> ".join(cycle) for cycle in import_cycles(found)]
    between = [" -> ".join(cycle) for cycle in folder_cycles(found)]
    return [
        _counted("modules outside connectors/ that import a connector", "0", imports_of_connectors(found)),
        _counted("places that ask for the kind of target with isinstance", "0", questions_of_kind(found)),
        _counted("classes that are a run of one kind", "0", run_classes(found)),
        _counted("files in runner/", "<= 9", (m.name for m in found if m.name.startswith("vitrina.runner."))),
        _counted("import cycles, sqlguard aside", "0", cycles),
        _counted("import cycles between folders", "0", between),
        _counted("asserts that only narrow a type", "< 15", narrowing_asserts(found)),
        Figure("median lines of a function", median_of_functions(found), "<= 6"),
        Figure("lines in src/vitrina", sum(module.lines for module in found), "(0024)"),
        Figure("% of docstrings of functions and classes that begin with a verb", verbs_percent(found), "> 70"),
    ]


def modules() -> Iterator[Module]:
    """Read every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Module(name, ast.parse(text), text.count("\n"))


def _counted(name: str, goal: str, places: Iterable[str]) -> Figure:
    found = tuple(places)
    return Figure(name, len(found), goal, found)


# --- questions of kind ---------------------------------------------------------------------------------------------


def imports_of_connectors(found: Iterable[Module]) -> Iterator[str]:
    """Find modules that know a connector by name: each would have to be edited for another one."""
    for module in found:
        if module.name.startswith("vitrina.connectors"):
            continue
        known = {name.split(".")[2] for name, _ in imports(module) if name.startswith("vitrina.connectors.")}
        if known:
            yield f"{module.name} ({', '.join(sorted(known))})"


def questions_of_kind(found: Iterable[Module]) -> Iterator[str]:
    """Find `isinstance` with a kind of target or of its writer."""
    for module in found:
        if module.name in ALLOWED_TO_ASK or module.name.startswith("vitrina.connectors."):
            continue
        for node in ast.walk(module.tree):
            if _is_isinstance(node) and KINDS_OF_TARGETS & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
                yield module.place(node)


def _is_isinstance(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"


def run_classes(found: Iterable[Module]) -> Iterator[str]:
    """Find classes that are a run of one kind; `Run`, the state that the functions are given, has no kinds."""
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and _is_kind_of_run(module, node):
                yield f"{module.place(node)} {node.name}"


def _is_kind_of_run(module: Module, node: ast.ClassDef) -> bool:
    if any(ast.unparse(base).split(".")[-1] == "Run" for base in node.bases):
        return True
    return module.name.startswith("vitrina.loads") and node.name.endswith(("Run", "Replay")) and node.name != "Run"


def median_of_functions(found: Iterable[Module]) -> int:
    """Measure functions by their lines, signature and docstring included; half are no longer than this."""
    return round(
        statistics.median(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for module in found
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )
    )


def narrowing_asserts(found: Iterable[Module]) -> Iterator[str]:
    """Find `assert x is not None`, `assert isinstance(...)` and `assert x`: they only serve the type checker."""
    for module in found:
        if module.name.startswith("vitrina.testing"):
            continue  # these asserts are the tests themselves
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assert) and node.msg is None and _narrows(node.test):
                yield module.place(node)


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.Is | ast.IsNot) and isinstance(test.comparators[0], ast.Constant)
    return isinstance(test, ast.Name | ast.Attribute)


# --- imports -------------------------------------------------------------------------------------------------------


def imports(module: Module, *, with_types: bool = False) -> Iterator[tuple[str, int]]:
    """Find what a module imports from the package, wherever it does; `with_types`: also for type checkers alone."""
    for node in ast.walk(module.tree) if with_types else _executed(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.startswith("vitrina."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vitrina":
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (inner for other in child.orelse for inner in _executed(other))
            continue
        yield child
        yield from _executed(child)


def import_cycles(found: list[Module]) -> Iterator[tuple[str, ...]]:
    """Find groups of modules that import each other, directly or through others; imports for types count."""
    for group in _strongly_connected(_edges(found)):
        if len(group) > 1 and not all(name.startswith(CYCLES_ALLOWED) for name in group):
            yield tuple(sorted(group))


def folder_cycles(found: list[Module]) -> Iterator[tuple[str, ...]]:
    """Find groups of folders, and of modules beside them, that import each other: one of the arrows points upward."""
    edges: dict[str, set[str]] = {}
    for name, others in _edges(found).items():
        edges.setdefault(_folder(name), set()).update(map(_folder, others))
    for group in _strongly_connected(edges):
        if len(group) > 1:
            yield tuple(sorted(group))


def _edges(found: list[Module]) -> dict[str, set[str]]:
    names = {module.name for module in found}
    return {
        module.name: {to for name, _ in imports(module, with_types=True) if (to := _module_of(name, names))}
        - {module.name}
        for module in found
    }


def _folder(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _module_of(name: str, names: set[str]) -> str:
    """`from package import x` imports a module or a name of one."""
    return name if name in names else name.rpartition(".")[0] if name.rpartition(".")[0] in names else ""


def _strongly_connected(edges: dict[str, set[str]]) -> Iterator[set[str]]:
    """Return groups in which each node reaches each other one (Kosaraju's algorithm)."""
    backwards: dict[str, set[str]] = {name: set() for name in edges}
    for name, others in edges.items():
        for other in others:
            backwards.setdefault(other, set()).add(name)
    left: list[str] = []
    seen: set[str] = set()
    for name in sorted(edges):
        left += _leaving_order(name, edges, seen)
    assigned: set[str] = set()
    for name in reversed(left):
        if name not in assigned:
            yield set(_leaving_order(name, backwards, assigned))


def _leaving_order(start: str, edges: dict[str, set[str]], seen: set[str]) -> list[str]:
    order: list[str] = []
    stack = [(start, iter(sorted(edges.get(start, ()))))] if start not in seen else []
    seen.add(start)
    while stack:
        name, others = stack[-1]
        following = next((other for other in others if other not in seen), None)
        if following is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(sorted(edges.get(following, ())))))
    return order


# --- words ---------------------------------------------------------------------------------------------------------


def verbs_percent(found: Iterable[Module]) -> int:
    """Count docstrings of functions and classes that begin with a verb."""
    texts = [
        text
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (text := ast.get_docstring(node))
    ]
    told = sum(text.split()[0].strip(":,.;`").lower() in VERBS for text in texts if text.split())
    return round(100 * told / len(texts))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="name the places that were counted")
    asked = parser.parse_args()
    for figure in figures():
        sys.stdout.write(f"{figure.value:>7,}  {figure.goal:>8}  {figure.name}\n")
        for place in figure.places if asked.where else ():
            sys.stdout.write(f"{'':>19}{place}\n")


if __name__ == "__main__":
    main()
