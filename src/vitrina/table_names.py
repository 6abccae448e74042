"""Parse and quote the names of tables and columns of Postgres."""

import re

# As in a query, a name with capitals or blanks needs quotes.
_PART = r"(?:[A-Za-z_][A-Za-z0-9_$]{0,62}|\"[^\"\x00]{1,63}\")"
_TABLE = re.compile(rf"{_PART}\.{_PART}")


def is_table(name: str) -> bool:
    """Return whether the text is `schema.table`."""
    return _TABLE.fullmatch(name) is not None


def quoted_table(name: str) -> str:
    """Quote both parts, so that a keyword of SQL is read as a name. Unquoted parts become lower case."""
    parts = re.findall(_PART, name)
    return ".".join(part if part.startswith('"') else f'"{part.lower()}"' for part in parts)


def quoted_column(name: str) -> str:
    """Quote the name of a column, which is given without quotes."""
    return '"' + name.replace('"', '""') + '"'
