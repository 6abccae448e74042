"""Read variables of the environment over those of `.env`, with `<VAR>_FILE` for mounted secrets."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from vitrina.errors import ConfigError

DOTENV = Path(".env")
# Settings whose own names end like the form that names a file.
_NAMES_OF_SETTINGS = ("ELASTICSEARCH_CA_FILE", "VITRINA_LINEAGE_FILE")
API_URL = "http://127.0.0.1:8000"


def read(environ: Mapping[str, str] | None = None, *, dotenv: Path | None = DOTENV) -> dict[str, str]:
    """Return all variables, without those of mounted files. FOO or FOO_FILE of the environment hides both of `.env`."""
    environ = os.environ if environ is None else environ
    given = {name.removesuffix("_FILE") for name, value in environ.items() if value and is_ours(name)}
    of_dotenv = {name: value for name, value in of_file(dotenv).items() if name.removesuffix("_FILE") not in given}
    return of_dotenv | dict(environ)


def of_file(path: Path | None) -> dict[str, str]:
    """Read the variables of a `.env`. Return nothing where there is none."""
    # Unlike `path.exists()`, this is no error in a directory that the user may not enter.
    if path is None or not os.access(path, os.F_OK):
        return {}
    from dotenv import dotenv_values

    try:
        return {name: value for name, value in dotenv_values(path).items() if value}
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {_reason(exc)}") from exc


def is_ours(name: str) -> bool:
    return name.startswith(("VITRINA_", "ELASTICSEARCH_"))


def with_files(variables: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """Read `FOO_FILE=/run/secrets/foo` as FOO, unless FOO itself is set; of all our variables, or of `names` only."""
    merged = dict(variables)
    for name, path in variables.items():
        plain = name.removesuffix("_FILE")
        wanted = plain in names if names else is_ours(name)
        if not wanted or name in (plain, *_NAMES_OF_SETTINGS) or merged.get(plain) or not path:
            continue
        try:
            merged[plain] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{name}={path} cannot be read: {_reason(exc)}") from exc
    return merged


def _reason(exc: OSError | UnicodeDecodeError) -> str:
    """Say why without the error's own words, which for a wrong encoding may quote a secret."""
    return str(exc.strerror) if isinstance(exc, OSError) else "it is not text in UTF-8"
