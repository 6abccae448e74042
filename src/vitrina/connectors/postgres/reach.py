"""Find what a query reaches through the catalog: views, rules, partitions and SQL functions, whatever its plan.

The planner omits what it can prove to be empty, and a bound that is filled in later changes what it can prove. The
catalog shows where a view may lead whatever the bounds are. It is queried again for every run: one short statement for
plain tables, and two more for each level of views.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrina.store.database import Connection
from vitrina.store.prepared import Statement

Name = tuple[str, str]
Kind = Literal["relation", "function"]
Key = tuple[Kind, int]
Names = set[tuple[Kind, str, str]]


@dataclass
class Reach:
    """Hold (schema, name) of everything that reading may touch, and through which other object each was reached."""

    relations: set[Name] = field(default_factory=set)
    # Functions outside of pg_catalog. Of those inside, only volatile ones are recorded, separately.
    functions: set[Name] = field(default_factory=set)
    volatile_of_catalog: set[str] = field(default_factory=set)
    ways: dict[Name, Name] = field(default_factory=dict)
    # Whether reading touches tables only: no view, partition, inherited table or function.
    is_plain: bool = True
    # Whether a relation has a column of a type outside of pg_catalog.
    has_foreign_types: bool = False

    def way_to(self, name: Name) -> str:
        """Return ` by way of content.leak`, or an empty string if the query itself names it."""
        steps: list[str] = []
        via = self.ways.get(name)
        while via is not None and len(steps) < 5:
            steps.append(".".join(via))
            via = self.ways.get(via)
        return f" by way of {', '.join(reversed(steps))}" if steps else ""


@dataclass(frozen=True)
class _Node:
    kind: Kind
    oid: int
    name: Name
    is_volatile: bool = False
    leads_to: frozenset[Key] = frozenset()
    operators: frozenset[int] = frozenset()
    names: frozenset[tuple[Kind, str, str]] = frozenset()
    is_table: bool = False
    has_foreign_types: bool = False


def reach(
    connection: Connection,
    *,
    opened: Iterable[int] = (),
    tables: Iterable[Name] = (),
    functions: Iterable[Name] = (),
    trusted_extensions: Iterable[str] = (),
) -> Reach:
    """Follow the catalog from relations (by oid or name) and functions (by name) to everything that they use.

    Functions of trusted extensions are not followed, because the operator has vouched for them.
    """
    found, said = Reach(), set(tables)
    waiting: set[Key] = {("relation", oid) for oid in opened}
    waiting |= set(_resolved(connection, {("function", *name) for name in functions}))
    names: dict[Key, Name] = {}
    leaders: dict[Key, Name] = {}
    asked: set[Key] = set()

    def follow(waiting: set[Key]) -> None:
        while waiting:
            asked.update(waiting)
            behind: set[Key] = set()
            for node in _nodes(connection, waiting, sorted(trusted_extensions)):
                names[node.kind, node.oid] = node.name
                _note(found, node)
                leads_to = {*node.leads_to, *_resolved(connection, node.names), *_behind(connection, node.operators)}
                # Before PostgreSQL 16, the rule of a view names the view itself.
                leads_to.discard((node.kind, node.oid))
                for key in leads_to:
                    leaders.setdefault(key, node.name)
                behind |= leads_to
            waiting = behind - asked

    follow(waiting)
    # Usually none: the server has opened each table that the query names.
    follow(set(_resolved(connection, {("relation", *name) for name in said - found.relations})) - asked)
    found.ways = {
        names[key]: leader
        for key, leader in leaders.items()
        if key in names and names[key] != leader and names[key] not in said
    }
    return found


def _note(found: Reach, node: _Node) -> None:
    found.is_plain = found.is_plain and node.is_table
    found.has_foreign_types = found.has_foreign_types or node.has_foreign_types
    if node.kind == "relation":
        found.relations.add(node.name)
    elif node.name[0] != "pg_catalog":
        found.functions.add(node.name)
    elif node.is_volatile:
        found.volatile_of_catalog.add(node.name[1])


def _nodes(connection: Connection, keys: Iterable[Key], trusted_extensions: list[str]) -> Iterator[_Node]:
    relations = [oid for kind, oid in keys if kind == "relation"]
    functions = [oid for kind, oid in keys if kind == "function"]
    for row in _RELATIONS.fetch_all(connection, [relations]) if relations else ():
        children: set[Key] = {("relation", oid) for oid in row["children"]}
        yield _Node(
            "relation",
            row["oid"],
            (row["schema"], row["name"]),
            leads_to=frozenset(children | _in_tree(row["tree"])),
            operators=_operators_in(row["tree"]),
            is_table=row["kind"] != "v" and not children,
            has_foreign_types=row["has_foreign_types"],
        )
    for row in _FUNCTIONS.fetch_all(connection, [trusted_extensions, functions]) if functions else ():
        parts: set[Key] = {("function", oid) for oid in row["parts"] if oid}
        yield _Node(
            "function",
            row["oid"],
            (row["schema"], row["name"]),
            row["volatile"],
            leads_to=frozenset(parts | _in_tree(row["tree"])),
            operators=_operators_in(row["tree"]),
            names=frozenset(_in_text(row["body"], row["settings"])),
        )


# A materialized view has its own data; a view reads its underlying relations. With row_security off, the server refuses
# tables that have policies, so that nothing is reached through policies. The planner does not see how many oids there
# are (ARRAY), so that it plans the statement once per session and not for each execution.
_RELATIONS = Statement(
    rb"""
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       ARRAY(SELECT i.inhrelid::int8 FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid) AS children,
       (SELECT pg_catalog.string_agg(r.ev_action::text, ' ') FROM pg_catalog.pg_rewrite r
        WHERE r.ev_class = c.oid AND r.ev_type = '1' AND c.relkind = 'v') AS tree,
       -- Not EXISTS, for which the planner would read the columns of all tables.
       coalesce((SELECT bool_or((SELECT y.typnamespace FROM pg_catalog.pg_type y WHERE y.oid = a.atttypid)
                                <> 'pg_catalog'::pg_catalog.regnamespace)
                 FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), false) AS has_foreign_types
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(ARRAY(SELECT unnest(%s::oid[]))) AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
"""
)
_FUNCTIONS = Statement(
    rb"""
WITH looked_into AS (
    SELECT p.oid, p.pronamespace <> 'pg_catalog'::pg_catalog.regnamespace AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
               WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
                 AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND e.extname = ANY(%s)
           ) AS yes
    FROM pg_catalog.pg_proc p WHERE p.oid = ANY(%s::oid[])
)
SELECT p.oid::int8 AS oid, n.nspname AS schema, p.proname AS name, p.provolatile = 'v' AS volatile,
       CASE WHEN o.yes THEN pg_catalog.to_jsonb(p) ->> 'prosqlbody' END AS tree,
       CASE WHEN o.yes AND l.lanname = 'sql' THEN p.prosrc END AS body, p.proconfig AS settings,
       CASE WHEN o.yes THEN ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggmtransfn, a.aggmfinalfn]::int8[]
            ELSE '{}' END AS parts
FROM looked_into o JOIN pg_catalog.pg_proc p ON p.oid = o.oid
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
LEFT JOIN pg_catalog.pg_aggregate a ON a.aggfnoid = p.oid
"""
)


# --- parse trees, as the catalog keeps them ------------------------------------------------------------------------

_RELATION_IN_TREE = re.compile(r":relid ([1-9]\d*)")
_FUNCTION_IN_TREE = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid|elemfuncid) ([1-9]\d*)")
_OPERATOR_IN_TREE = re.compile(r":opno ([1-9]\d*)")


def _in_tree(tree: str | None) -> set[Key]:
    relations: set[Key] = {("relation", int(oid)) for oid in _RELATION_IN_TREE.findall(tree or "")}
    functions: set[Key] = {("function", int(oid)) for oid in _FUNCTION_IN_TREE.findall(tree or "")}
    return relations | functions


def _operators_in(tree: str | None) -> frozenset[int]:
    return frozenset(map(int, _OPERATOR_IN_TREE.findall(tree or "")))


def _behind(connection: Connection, operators: frozenset[int]) -> list[Key]:
    if not operators:
        return []
    rows = connection.execute(
        "SELECT oprcode::oid::int8 AS oid FROM pg_catalog.pg_operator WHERE oid = ANY(%s::oid[]) AND oid >= 16384",
        [list(operators)],
    ).fetchall()
    return [("function", row["oid"]) for row in rows]


# --- bodies of SQL functions that are kept as text -------------------------------------------------------------------

_PART = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_NAMES_IN_TEXT = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})?(\s*\()?")


def _in_text(body: str | None, settings: list[str] | None) -> Names:
    """Collect every name in the text that may be a relation or function; too many are harmless, too few are unsafe."""
    if not body:
        return set()
    found: Names = set()
    for first, second, called in _NAMES_IN_TEXT.findall(body):
        names = [(_folded(first), _folded(second))] if second else [(s, _folded(first)) for s in _path(settings)]
        found |= {("function" if called else "relation", *name) for name in names}
    return found


def _path(settings: list[str] | None) -> list[str]:
    """List the schemas in which the function looks up names.

    Our search_path is empty, but a function may set its own.
    """
    said = [text.partition("=")[2] for text in settings or () if text.startswith("search_path=")]
    return ["pg_catalog", *(part.strip().strip('"') for text in said for part in text.split(","))]


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _resolved(connection: Connection, names: Iterable[tuple[Kind, str, str]]) -> list[Key]:
    """Resolve existing names to oids, including all functions of a name."""
    listed = list(names)
    if not listed:
        return []
    rows: list[dict[str, Any]] = _RESOLVE.fetch_all(
        connection,
        {
            "kinds": [kind for kind, _, _ in listed],
            "schemas": [schema for _, schema, _ in listed],
            "names": [name for _, _, name in listed],
        },
    )
    return [(row["kind"], row["oid"]) for row in rows]


_RESOLVE = Statement(
    b"""
    SELECT 'relation' AS kind, c.oid::int8 AS oid
    FROM unnest(%(kinds)s::text[], %(schemas)s::text[], %(names)s::text[]) AS w(kind, schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
    UNION ALL
    SELECT 'function', p.oid::int8
    FROM unnest(%(kinds)s::text[], %(schemas)s::text[], %(names)s::text[]) AS w(kind, schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_proc p ON p.pronamespace = n.oid AND p.proname = w.name
    WHERE w.kind = 'function'
    """
)
