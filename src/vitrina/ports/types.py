"""How a column's values travel through Arrow: natively where that is exact, else as text that Postgres casts back."""

import re

# Types that ADBC carries exactly in both directions. Not timestamps and dates: it wraps `infinity` around.
_NATIVE = {
    "smallint": "smallint",
    "integer": "integer",
    "bigint": "bigint",
    "real": "real",
    "double precision": "double precision",
    "boolean": "boolean",
    "text": "text",
    "character varying": "text",
    "bytea": "bytea",
    "uuid": "uuid",
}


def travels_natively(kind: str) -> bool:
    return base_type(kind) in _NATIVE


def staged_type(kind: str) -> str:
    """Return the type in which a stage holds a value that came through Arrow."""
    return _NATIVE.get(base_type(kind), "text")


def merge_type(kind: str) -> str:
    """Return the type that a staged value is cast to before it is compared and written.

    An explicit cast to varchar(5) would cut silently; without the length, the write itself refuses what is too long.
    """
    element, brackets = kind.removesuffix("[]"), "[]" if kind.endswith("[]") else ""
    return f"character varying{brackets}" if base_type(element) == "character varying" else kind


def base_type(kind: str) -> str:
    """Strip the length: `character varying(5)` is `character varying`; arrays stay what they are."""
    return kind if kind.endswith("]") else kind.partition("(")[0].strip()


# Assignments that lose nothing, or fail loudly when a value does not fit.
_WIDER = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "name": {"text"},
}
_TEXTS = ("text", "character varying")
_CONSTRAINT = re.compile(r"\([\d,]+\)")


def fits(source: str, target: str) -> bool:
    """Tell whether every value of the source type arrives unchanged in the target type, or is refused by Postgres."""
    if source == target or target in _WIDER.get(source, ()):
        return True
    if source.startswith(_TEXTS) and target.startswith(_TEXTS):
        return source.endswith("[]") == target.endswith("[]")
    # The same type with the target unconstrained: numeric(3,1) into numeric.
    return _CONSTRAINT.sub("", source) == target
