"""Types of extensions that live in `public`: the real ones where the server has them, else small ones of our own."""

from tests.support.workbench import Workbench

# Text under another name; `{left}` and `{right}` are what is compared.
_TYPE = """
CREATE TYPE public.{name};
CREATE FUNCTION public.{name}_in(cstring) RETURNS public.{name} LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION public.{name}_out(public.{name}) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE public.{name} (INPUT = public.{name}_in, OUTPUT = public.{name}_out, LIKE = text, CATEGORY = '{category}',
    COLLATABLE = {collatable});
CREATE CAST (public.{name} AS text) WITHOUT FUNCTION{context};
CREATE FUNCTION public.{name}_cmp(public.{name}, public.{name}) RETURNS int LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT pg_catalog.bttextcmp({left} COLLATE "C", {right} COLLATE "C") $$;
CREATE FUNCTION public.{name}_hash(public.{name}) RETURNS int LANGUAGE sql IMMUTABLE STRICT
AS $$ SELECT pg_catalog.hashtext({left} COLLATE "C") $$;
"""
# Of functions that are inlined, the planner would see no operator that rows can be joined by.
_OPERATOR = """
CREATE FUNCTION public.{name}_{word}(public.{name}, public.{name}) RETURNS bool LANGUAGE sql IMMUTABLE STRICT
SET search_path = '' AS $$ SELECT public.{name}_cmp($1, $2) OPERATOR(pg_catalog.{sign}) 0 $$;
CREATE OPERATOR public.{sign} (LEFTARG = public.{name}, RIGHTARG = public.{name},
    FUNCTION = public.{name}_{word}{more});
"""
_CLASSES = """
CREATE OPERATOR CLASS public.{name}_ops DEFAULT FOR TYPE public.{name} USING btree AS
    OPERATOR 1 public.<, OPERATOR 2 public.<=, OPERATOR 3 public.=, OPERATOR 4 public.>=, OPERATOR 5 public.>,
    FUNCTION 1 public.{name}_cmp(public.{name}, public.{name});
CREATE OPERATOR CLASS public.{name}_ops DEFAULT FOR TYPE public.{name} USING hash AS
    OPERATOR 1 public.=, FUNCTION 1 public.{name}_hash(public.{name});
"""
_SIGNS = {"lt": "<", "le": "<=", "eq": "=", "ge": ">=", "gt": ">"}
# Equal in either case, and text wherever no operator of its own is found; and a type that nothing else is.
_KINDS = {
    "citext": {
        "category": "S",
        "collatable": "true",
        "context": " AS IMPLICIT",
        "left": "pg_catalog.lower($1::text)",
        "right": "pg_catalog.lower($2::text)",
    },
    "ltree": {"category": "U", "collatable": "false", "context": "", "left": "$1::text", "right": "$2::text"},
}


def create(bench: Workbench, name: str) -> None:
    """Create the type `public.<name>` with its operators."""
    known = bench.sql(f"SELECT 1 FROM pg_available_extensions WHERE name = '{name}'")
    bench.sql(f"CREATE EXTENSION {name} SCHEMA public" if known else _script(name))


def _script(name: str) -> str:
    operators = [
        _OPERATOR.format(name=name, word=word, sign=sign, more=", MERGES, HASHES" if sign == "=" else "")
        for word, sign in _SIGNS.items()
    ]
    return "".join([_TYPE.format(name=name, **_KINDS[name]), *operators, _CLASSES.format(name=name)])
