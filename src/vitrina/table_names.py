"""How a definition names tables and columns of Postgres, and how SQL writes them."""

import re

# A name without quotes reads as it does in a query; one with capitals or blanks needs them, as it does there.
_PART = r"(?:[A-Za-z_][A-Za-z0-9_$]{0,62}|\"[^\"\x00]{1,63}\")"
_TABLE = re.compile(rf"{_PART}\.{_PART}")


def is_table(name: str) -> bool:
    """Tell whether it is `schema.table`."""
    return _TABLE.fullmatch(name) is not None


def quoted_table(name: str) -> str:
    """Quote both parts, so that a keyword of SQL is read as a name. Unquoted parts become lower case."""
    parts = re.findall(_PART, name)
    return ".".join(part if part.startswith('"') else f'"{part.lower()}"' for part in parts)


def quoted_column(name: str) -> str:
    """Quote a column that is named as it is, without quotes of its own."""
    return '"' + name.replace('"', '""') + '"'
