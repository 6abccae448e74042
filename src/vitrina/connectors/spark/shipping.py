"""Pack the modules of steps into an archive that executors import from."""

import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path


def archive(modules: str, directory: Path) -> Path | None:
    """Pack the packages of VITRINA_TRANSFORMS without importing them; return None if there are none."""
    names = {name.strip().partition(".")[0] for name in modules.split(",") if name.strip()}
    files = [pair for name in sorted(names) for pair in _files(name)]
    if not files:
        return None
    made = directory / "vitrina_steps.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, inside in files:
            packed.write(path, inside)
    return made


def _files(name: str) -> Iterator[tuple[Path, str]]:
    """List the source files of one package or module, with their paths in the archive."""
    found = PathFinder.find_spec(name)
    if found is None:
        return
    for place in map(Path, found.submodule_search_locations or ()):
        yield from ((path, f"{name}/{path.relative_to(place)}") for path in sorted(place.rglob("*.py")))
    if not found.submodule_search_locations and found.origin and found.origin.endswith(".py"):
        yield Path(found.origin), f"{name}.py"
