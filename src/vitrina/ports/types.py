"""Choose how a column's values pass through Arrow: natively if that is exact, else as text for PostgreSQL to cast."""

import re

# Types that ADBC transfers exactly in both directions. Timestamps and dates are not: `infinity` overflows.
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

    An explicit cast to varchar(5) would truncate silently. Without the length, the write refuses longer values.
    """
    element, brackets = kind.removesuffix("[]"), "[]" if kind.endswith("[]") else ""
    return f"character varying{brackets}" if base_type(element) == "character varying" else kind


def base_type(kind: str) -> str:
    """Return the type without its length: `character varying(5)` becomes `character varying`. Arrays are unchanged."""
    return kind if kind.endswith("]") else kind.partition("(")[0].strip()


# Assignments that lose nothing, or raise an error if a value does not fit.
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
    """Return whether each value of the source type arrives unchanged in the target type or is refused by PostgreSQL."""
    if source == target or target in _WIDER.get(source, ()):
        return True
    if source.startswith(_TEXTS) and target.startswith(_TEXTS):
        return source.endswith("[]") == target.endswith("[]")
    # The same type without a constraint in the target: numeric(3,1) into numeric.
    return _CONSTRAINT.sub("", source) == target
