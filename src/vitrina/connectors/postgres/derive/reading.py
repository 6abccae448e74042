"""Read a query's tree into a graph: blocks, occurrences of tables, and the equalities that rows must satisfy."""

from collections.abc import Iterator, Sequence
from typing import Any

from vitrina.connectors.postgres.derive import blocks, nodes, refusals, rules
from vitrina.connectors.postgres.derive.graph import OPAQUE, Atom, Block, Edge, Graph, Leaf, Term, Value
from vitrina.connectors.postgres.derive.nodes import Node
from vitrina.connectors.postgres.derive.refusals import Allowed
from vitrina.connectors.postgres.derive.scopes import Column, Columns, Cte, Ctes, Item, Scope
from vitrina.connectors.postgres.derive.tables import SourceCatalog, Table
from vitrina.connectors.postgres.derive.terms import Terms
from vitrina.errors import SourceQueryFailed
from vitrina.sentences import say

# A query with more occurrences is not searched: views and WITH may multiply them.
MOST_OCCURRENCES = 200
Nulls = frozenset[int]


def read(text: str, catalog: SourceCatalog, allowed: Allowed) -> Graph:
    """Read a query that the server has accepted; raise if it cannot be followed."""
    tree = nodes.parsed(text)
    refusals.refuse(tree, catalog, allowed)
    reading = _Reading(catalog, allowed)
    top = reading.open_block(None, frozenset(), enterable=True)
    columns = reading.query(tree, top, None, {})
    reading.graph.outputs = {column.name: column.value for column in columns.known if column.name is not None}
    return reading.graph


class _Reading:
    def __init__(self, catalog: SourceCatalog, allowed: Allowed) -> None:
        self.graph = Graph()
        self.catalog = catalog
        self._allowed = allowed
        self.terms = Terms(catalog)
        self._outer_joins = 0

    def open_block(self, parent: Block | None, nulled_by: Nulls, *, enterable: bool) -> Block:
        block = Block(len(self.graph.blocks), parent.number if parent else None, enterable, nulled_by)
        self.graph.blocks[block.number] = block
        return block

    # --- queries -----------------------------------------------------------------------------------------------------

    def query(self, tree: Node, block: Block, outer: Scope | None, ctes: Ctes) -> Columns:
        ctes = self._with(tree, outer, ctes)
        if tree.get("op", "SETOP_NONE") != "SETOP_NONE":
            return self._set_operation(tree, block, outer, ctes)
        if "valuesLists" in tree:
            self._expressions(tree["valuesLists"], Scope(outer), block, block.nulled_by, ctes)
            return Columns((), complete=False)
        return self._select(tree, block, outer, ctes)

    def _with(self, tree: Node, outer: Scope | None, ctes: Ctes) -> Ctes:
        known = dict(ctes)
        for each in tree.get("withClause", {}).get("ctes", []):
            cte = each["CommonTableExpr"]
            query = cte["ctequery"]["SelectStmt"]
            known[cte["ctename"]] = Cte(query, nodes.strings(cte.get("aliascolnames")), outer, dict(known))
        return known

    def _set_operation(self, tree: Node, block: Block, outer: Scope | None, ctes: Ctes) -> Columns:
        sides = [self._branch(tree[side], block, outer, ctes) for side in ("larg", "rarg")]
        self._expressions(blocks.around_set_operation(tree), Scope(outer), block, block.nulled_by, ctes)
        if blocks.is_limited(tree):
            block.stable = []
        left, right = sides
        if not (left.complete and right.complete and len(left.known) == len(right.known)):
            return Columns(tuple(Column(column.name, OPAQUE) for column in left.known), complete=False)
        return Columns(
            tuple(
                Column(one.name, one.value + two.value if one.value and two.value else OPAQUE)
                for one, two in zip(left.known, right.known, strict=True)
            )
        )

    def _branch(self, tree: Node, block: Block, outer: Scope | None, ctes: Ctes) -> Columns:
        branch = self.open_block(block, block.nulled_by, enterable=False)
        columns = self.query(tree, branch, outer, ctes)
        tagged = (Column(name, blocks.tagged(value, branch.number)) for name, value in columns.known)
        return Columns(tuple(tagged), columns.complete)

    def _select(self, tree: Node, block: Block, outer: Scope | None, ctes: Ctes) -> Columns:
        scope = Scope(outer)
        for item in tree.get("fromClause", []):
            self._from(item, scope, block, block.nulled_by, ctes)
        self._conditions(tree.get("whereClause"), scope, block, block.nulled_by, ctes)
        self._expressions(blocks.other_expressions(tree), scope, block, block.nulled_by, ctes)
        outputs = self._outputs(tree, scope)
        shape = blocks.Shape(tree, scope, outputs, self.terms, self.catalog)
        block.stable = shape.stable(self.graph, block)
        return shape.columns()

    def _outputs(self, tree: Node, scope: Scope) -> Columns:
        known: list[Column] = []
        complete = True
        for each in tree.get("targetList", []):
            target = each["ResTarget"]
            for columns in self._target(target, scope):
                known += columns.known
                complete &= columns.complete
        return Columns(tuple(known), complete)

    def _target(self, target: Node, scope: Scope) -> Iterator[Columns]:
        reference = target["val"].get("ColumnRef")
        if reference and "A_Star" in reference["fields"][-1]:
            yield from scope.star(nodes.strings(reference["fields"]))
        else:
            value = self.terms.value(target["val"], scope.resolve)
            yield Columns((Column(nodes.name_of(target), value),))

    # --- FROM --------------------------------------------------------------------------------------------------------

    def _from(self, node: Node, scope: Scope, block: Block, nulled_by: Nulls, ctes: Ctes) -> Columns:
        """Read a FROM item, add it to the scope, and return its columns."""
        kind = nodes.kind_of(node)
        if kind == "JoinExpr":
            return self._join(node[kind], scope, block, nulled_by, ctes)
        if kind == "RangeVar":
            item = self._relation(node[kind], block, nulled_by, ctes)
        elif kind == "RangeSubselect":
            item = self._subselect(node[kind], scope, block, nulled_by, ctes)
        elif kind == "RangeFunction":
            item = self._function(node[kind], scope, block, nulled_by, ctes)
        else:
            self._expressions(node[kind], scope, block, nulled_by, ctes)
            item = Item(_alias(node[kind]) or "", Columns((), complete=False))
        scope.items.append(item)
        scope.visible.append(item.columns)
        return item.columns

    def _relation(self, node: Node, block: Block, nulled_by: Nulls, ctes: Ctes) -> Item:
        name, schema = node["relname"], node.get("schemaname")
        if schema is None and name in ctes:
            columns = self._named_query(ctes[name], block, nulled_by)
        else:
            table = self.catalog.table(schema or "pg_catalog", name)
            columns = self._table(table, node, block, nulled_by)
        return Item(_alias(node) or name, columns.renamed(_names(node)), None if _alias(node) else schema)

    def _named_query(self, cte: Cte, block: Block, nulled_by: Nulls) -> Columns:
        inner = self.open_block(block, nulled_by, enterable=True)
        return self.query(cte.query, inner, cte.outer, cte.others).renamed(cte.names)

    def _table(self, table: Table, node: Node, block: Block, nulled_by: Nulls) -> Columns:
        if table.view is not None:
            return self._view(table, block, nulled_by)
        if not node.get("inh") and table.kind == "p":
            raise SourceQueryFailed(say("derive.refused", what="ONLY with a partitioned table"))
        number = len(self.graph.leaves)
        if number >= MOST_OCCURRENCES:
            raise SourceQueryFailed(say("derive.too_many_tables", most=MOST_OCCURRENCES))
        self.graph.leaves[number] = Leaf(number, table, block.number, nulled_by)
        # The log contains no generated columns, so nothing can be followed by them.
        return Columns(
            tuple(
                Column(name, OPAQUE if column.generated else (Term((Atom(number, name),)),))
                for name, column in table.columns.items()
            )
        )

    def _view(self, view: Table, block: Block, nulled_by: Nulls) -> Columns:
        tree = nodes.parsed(str(view.view))
        refusals.refuse_inside(tree, self.catalog, self._allowed)
        inner = self.open_block(block, nulled_by, enterable=True)
        return self.query(tree, inner, None, {}).renamed(tuple(view.columns))

    def _subselect(self, node: Node, scope: Scope, block: Block, nulled_by: Nulls, ctes: Ctes) -> Item:
        inner = self.open_block(block, nulled_by, enterable=True)
        outer = scope if node.get("lateral") else scope.outer
        columns = self.query(node["subquery"]["SelectStmt"], inner, outer, ctes)
        return Item(_alias(node) or "", columns.renamed(_names(node)))

    def _function(self, node: Node, scope: Scope, block: Block, nulled_by: Nulls, ctes: Ctes) -> Item:
        self._expressions(node.get("functions"), scope, block, nulled_by, ctes)
        names = (*_names(node), *([_alias(node)] if _alias(node) and not _names(node) else []))
        return Item(_alias(node) or "", Columns(tuple(Column(name, OPAQUE) for name in names), complete=False))

    def _join(self, node: Node, scope: Scope, block: Block, nulled_by: Nulls, ctes: Ctes) -> Columns:
        first, shown = len(scope.items), len(scope.visible)
        sides, condition = self._nullable_sides(node["jointype"])
        left = self._from(node["larg"], scope, block, nulled_by | sides[0], ctes)
        right = self._from(node["rarg"], scope, block, nulled_by | sides[1], ctes)
        if "quals" in node:
            self._conditions(node["quals"], scope, block, nulled_by | condition, ctes)
        shared = _shared(node, left, right)
        for name in shared:
            self._equal(left.find(name) or OPAQUE, right.find(name) or OPAQUE, block, nulled_by | condition)
        columns = _merged(node["jointype"], shared, left, right)
        del scope.visible[shown:]
        scope.visible.append(columns)
        if "join_using_alias" in node:
            merged = Columns(columns.known[: len(shared)])
            scope.items.append(Item(node["join_using_alias"]["aliasname"], merged))
        if _alias(node):
            columns = columns.renamed(_names(node))
            scope.visible[-1] = columns
            scope.items[first:] = [Item(str(_alias(node)), columns)]
        return columns

    def _nullable_sides(self, kind: str) -> tuple[tuple[Nulls, Nulls], Nulls]:
        """Number the sides that the join may replace by NULLs: left, right, and those its condition depends on."""
        left = frozenset([self._next_outer_join()]) if kind in ("JOIN_RIGHT", "JOIN_FULL") else frozenset()
        right = frozenset([self._next_outer_join()]) if kind in ("JOIN_LEFT", "JOIN_FULL") else frozenset()
        return (left, right), left | right

    def _next_outer_join(self) -> int:
        self._outer_joins += 1
        return self._outer_joins

    # --- conditions and sub-selects ----------------------------------------------------------------------------------

    def _conditions(self, tree: Node | None, scope: Scope, block: Block, unless: Nulls, ctes: Ctes) -> None:
        """Read a WHERE or ON clause, whose conjuncts hold in every row unless one of these sides is NULL."""
        for condition in nodes.conjuncts(tree):
            for left, right in nodes.equality(condition):
                one, two = (self.terms.value(side, scope.resolve) for side in (left, right))
                self._equal(one, two, block, unless)
            if "SubLink" in condition:
                self._sublink(condition["SubLink"], scope, block, unless, ctes, positive=True)
            else:
                self._expressions(condition, scope, block, unless, ctes)

    def _expressions(self, tree: Any, scope: Scope, block: Block, unless: Nulls, ctes: Ctes) -> None:
        """Read the sub-selects of expressions whose effect on the rows is unknown."""
        for link in nodes.sublinks(tree):
            self._sublink(link, scope, block, unless, ctes, positive=False)

    def _sublink(self, node: Node, scope: Scope, block: Block, unless: Nulls, ctes: Ctes, *, positive: bool) -> None:
        inner = self.open_block(block, unless, enterable=False)
        columns = self.query(node["subselect"]["SelectStmt"], inner, scope, ctes)
        if positive and "testexpr" in node:
            self._expressions(node["testexpr"], scope, block, unless, ctes)
        if not blocks.is_membership(node) or not columns.complete:
            return
        for test, column in zip(blocks.tested(node), columns.known, strict=False):
            value = self.terms.value(test, scope.resolve)
            if rules.membership_is_equality(self.graph, value + column.value, positive=blocks.is_in(node) and positive):
                self._equal(column.value, value, block, unless)

    def _equal(self, one: Value, two: Value, block: Block, unless: Nulls) -> None:
        for left in one:
            for right in two:
                if rules.is_usable_equality(left, right):
                    self.graph.edges.append(Edge(left, right, block.number, unless))


def _alias(node: Node) -> str | None:
    return node["alias"]["aliasname"] if "alias" in node else None


def _names(node: Node) -> Sequence[str]:
    return nodes.strings(node.get("alias", {}).get("colnames"))


def _shared(node: Node, left: Columns, right: Columns) -> list[str]:
    if not node.get("isNatural"):
        return nodes.strings(node.get("usingClause"))
    if not (left.complete and right.complete):
        raise SourceQueryFailed(say("derive.refused", what="NATURAL JOIN with columns that are not known"))
    names = {column.name for column in right.known}
    return [column.name for column in left.known if column.name in names and column.name is not None]


def _merged(kind: str, shared: Sequence[str], left: Columns, right: Columns) -> Columns:
    """Return the columns of a join: those of USING first, once."""
    first = [Column(name, _merged_value(kind, left.find(name), right.find(name))) for name in shared]
    rest = [column for side in (left, right) for column in side.known if column.name not in shared]
    return Columns((*first, *rest), left.complete and right.complete)


def _merged_value(kind: str, left: Value | None, right: Value | None) -> Value:
    if kind != "JOIN_FULL":
        return (right if kind == "JOIN_RIGHT" else left) or OPAQUE
    if not (left and right and len(left) == len(right) == 1):
        return OPAQUE
    parts = ("COALESCE(", *left[0].parts, ", ", *right[0].parts, ")")
    return (Term(parts, strict=False, choices=(left[0], right[0])),)
