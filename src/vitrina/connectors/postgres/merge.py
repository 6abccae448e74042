"""Build the SQL that applies staged rows to a target with the fewest changes: delete, update what differs, insert."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.connectors.postgres.catalog import Table

DIFF = Identifier("pg_temp", "vitrina_diff")
POSITION = "_position"
_NOTHING_MORE = SQL("")
# MERGE .. RETURNING came with PostgreSQL 17.
COUNTS_MERGED_ROWS = 17_00_00

# Types whose values are equal only if their binary images are, which is faster to find out by their own operator.
# Texts are so in a collation that compares bytes.
_PLAIN = frozenset(
    {
        "bigint",
        "boolean",
        "bytea",
        "date",
        "integer",
        "smallint",
        "timestamp with time zone",
        "timestamp without time zone",
        "uuid",
    }
)
_TEXTS = frozenset({"text", "character varying"})
_WITH_FLOATS = frozenset({"real", "double precision", "point", "line", "lseg", "box", "path", "polygon", "circle"})


@dataclass(frozen=True)
class Merge:
    """Describe how the rows of a stage relate to the rows of a target."""

    target: Table
    key: tuple[str, ...]
    columns: tuple[str, ...]  # columns that the query returns and the target accepts, including the key
    not_compared: frozenset[str]  # stamps: a row does not differ because of them
    # The column that records when a row left the source: such rows stay in the target. None: they are deleted.
    soft: str | None
    staged: Composable  # FROM item with exactly the staged rows that count, under the target's column names
    # FROM item with the target's rows and positions, if they differ from those of the table as it is.
    rows: Composable | None = None

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.key)

    @property
    def written(self) -> tuple[str, ...]:
        """Return the columns that an update writes.

        Key columns are included if equal values may differ (1.0 and 1.00).
        """
        return tuple(name for name in self.columns if name not in self.key or name in self.target.loosely_equal)

    @property
    def compared(self) -> tuple[str, ...]:
        return tuple(name for name in self.written if name not in self.not_compared)

    @property
    def finds_by_position(self) -> bool:
        """Return whether rows can be found again by position: partitions and children have positions of their own."""
        return self.target.kind == "r" and not self.target.has_children

    @property
    def touched(self) -> tuple[str, ...]:
        """Return bookkeeping columns that the query does not return. They are updated whenever their row is."""
        return tuple(
            column.name
            for column in self.target.columns
            if column.name == "updated_at" and column.name not in self.columns and _is_clock(column.default)
        )


def upsert(merge: Merge) -> Composed:
    """Merge in one statement; for a target without other keys."""
    matched = SQL("WHEN MATCHED AND {} THEN UPDATE SET {}").format(differs(merge), _comma(_assignments(merge, "s")))
    return SQL(
        """
        MERGE INTO {target} AS t USING {staged} AS s ON {on}
        {matched}
        WHEN NOT MATCHED THEN INSERT ({columns}){overriding} VALUES ({values})
        """
    ).format(
        target=merge.target.identifier,
        staged=merge.staged,
        on=same_key(merge),
        matched=matched if merge.compared or merge.soft else SQL(""),
        columns=_comma(map(Identifier, merge.columns)),
        overriding=overriding(merge.target, merge.columns),
        values=_prefixed("s", merge.columns),
    )


def counted_upsert(merge: Merge) -> Composed:
    """Merge in one statement that returns how many rows it inserted and updated."""
    return SQL(
        """
        WITH done AS ({} RETURNING merge_action() AS action, t.ctid AS place)
        SELECT count(*) FILTER (WHERE action = 'INSERT') AS inserted,
               count(*) FILTER (WHERE action = 'UPDATE') AS updated,
               ARRAY[min(place), max(place)] AS places
        FROM done
        """
    ).format(upsert(merge))


def update_staged(merge: Merge) -> Composed | None:
    """Build an UPDATE of changed rows directly from the stage; None if a row consists only of its key."""
    if not merge.compared:
        return None
    return SQL("UPDATE {} AS t SET {} FROM {} AS s WHERE {} AND {}").format(
        merge.target.identifier, _comma(_assignments(merge, "s")), merge.staged, same_key(merge), differs(merge)
    )


def insert_staged(merge: Merge) -> Composed:
    """Build an INSERT of new rows directly from the stage."""
    return SQL(
        "INSERT INTO {target} ({columns}){overriding} SELECT {values} FROM {staged} AS s"
        " WHERE NOT EXISTS (SELECT FROM {target} AS t WHERE {same})"
    ).format(
        target=merge.target.identifier,
        columns=_comma(map(Identifier, merge.columns)),
        overriding=overriding(merge.target, merge.columns),
        values=_prefixed("s", merge.columns),
        staged=merge.staged,
        same=same_key(merge),
    )


def same_key(merge: Merge, left: str = "s", right: str = "t") -> Composed:
    """Build the condition that a row of the stage and one of the target have the same key."""
    return _all(merge.target.same(name, left, right) for name in merge.key)


def apply_few(merge: Merge, *, rows: int, deletes: bool, shrink_limit: float) -> Composed:
    """Compare and write a few rows in one statement, for a target without other keys.

    Nothing is written (`is_applied`) unless the stage has so many rows, each with a key of its own, and few enough rows
    are deleted of a target that is not empty.
    """
    kept = replace(merge, staged=SQL("vitrina_staged"))
    may, diff = SQL(" AND (SELECT p.is_applied FROM vitrina_planned AS p)"), SQL("vitrina_diff")
    writes = {
        "deleted": delete_rows(kept, diff) + may + SQL(" RETURNING NULL::tid AS place") if deletes else None,
        "updated": update + may + SQL(" RETURNING t.ctid AS place") if (update := update_rows(kept, diff)) else None,
        "inserted": insert_rows(kept, diff, may) + SQL(" RETURNING ctid AS place"),
    }
    done = {name: write or SQL("SELECT NULL::tid AS place WHERE false") for name, write in writes.items()}
    return SQL(
        """
        WITH vitrina_staged AS MATERIALIZED (SELECT * FROM {staged} AS s),
        vitrina_diff AS MATERIALIZED ({difference}),
        vitrina_planned AS MATERIALIZED (
            SELECT n.*, n.rows = {rows} AND n.keys = n.rows AND {may_delete} AS is_applied
            FROM (SELECT (SELECT count(*) FROM vitrina_staged) AS rows,
                         (SELECT count(*) FROM (SELECT DISTINCT {key} FROM vitrina_staged AS s) AS k) AS keys,
                         count(*) FILTER (WHERE "_op" = 'I') AS inserted,
                         count(*) FILTER (WHERE "_op" = 'U') AS updated,
                         count(*) FILTER (WHERE "_op" = 'D') AS deleted
                  FROM vitrina_diff) AS n
        ),
        vitrina_deleted AS ({deleted}), vitrina_updated AS ({updated}), vitrina_inserted AS ({inserted})
        SELECT p.*, (SELECT count(*) FROM vitrina_deleted) AS done_deleted,
               (SELECT count(*) FROM vitrina_updated) AS done_updated,
               (SELECT count(*) FROM vitrina_inserted) AS done_inserted,
               (SELECT ARRAY[min(place), max(place)]
                FROM (TABLE vitrina_updated UNION ALL TABLE vitrina_inserted) AS w) AS places
        FROM vitrina_planned AS p
        """
    ).format(
        staged=merge.staged,
        difference=_difference(kept, deletes=deletes),
        rows=Literal(rows),
        key=_prefixed("s", merge.key),
        may_delete=_may_delete(merge, shrink_limit) if deletes else SQL("true"),
        **done,
    )


def _may_delete(merge: Merge, shrink_limit: float) -> Composed:
    return SQL("(SELECT count(*) > 0 AND n.deleted <= count(*) * {}::float8 FROM {})").format(
        Literal(shrink_limit), merge.target.identifier
    )


def create_diff(merge: Merge, *, deletes: bool) -> Composed:
    """Join stage and target once into a temporary table."""
    difference = _difference(merge, deletes=deletes)
    return SQL("CREATE TEMPORARY TABLE vitrina_diff ON COMMIT DROP AS {}").format(difference)


def _difference(merge: Merge, *, deletes: bool) -> Composed:
    """Join stage and target: op I, U or D, with the rows themselves.

    Rows differ if their binary images do: IS DISTINCT FROM treats 1.0 and 1.00 as equal, and fails on json.
    """
    return SQL(
        """
        SELECT CASE WHEN {target_absent} THEN 'I' WHEN {stage_absent} THEN 'D' ELSE 'U' END::"char" AS "_op",
               {position}{key_columns}{other_columns}
        FROM {staged} AS s {join} JOIN {target} AS t ON {on}
        WHERE {target_absent} OR CASE WHEN {stage_absent} THEN {is_there} ELSE {differs} END
        """
    ).format(
        is_there=SQL("t.{} IS NULL").format(Identifier(merge.soft)) if merge.soft else SQL("true"),
        # Not the key: existing rows of a mart may lack it, and a composite of NULLs "is NULL".
        target_absent=SQL("t.ctid IS NULL"),
        stage_absent=SQL("s.{} IS NOT DISTINCT FROM NULL").format(Identifier(merge.key[0])),
        position=SQL("t.ctid AS {}, ").format(Identifier(POSITION)) if merge.finds_by_position else SQL(""),
        key_columns=_comma(SQL("coalesce(s.{0}, t.{0}) AS {0}").format(Identifier(name)) for name in merge.key),
        other_columns=SQL("").join(SQL(", s.{}").format(Identifier(name)) for name in merge.others),
        staged=merge.staged,
        join=SQL("FULL" if deletes else "LEFT"),
        target=merge.rows or merge.target.identifier,
        on=same_key(merge),
        differs=differs(merge),
    )


def differs(merge: Merge) -> Composable:
    """Build the condition that rows differ; a row that returned to the source differs from the one kept."""
    back = SQL("t.{} IS NOT NULL").format(Identifier(merge.soft)) if merge.soft else SQL("false")
    if not merge.compared:
        return back
    changed = SQL("({})").format(SQL(" OR ").join(_changes(merge.target, merge.compared)))
    return SQL("({} OR {})").format(back, changed) if merge.soft else changed


def _changes(target: Table, names: Sequence[str]) -> Iterator[Composed]:
    """Build conditions of which one is true for a changed row, the cheapest first: most changed rows need one."""
    kinds = {name: _base_type(target, name) for name in names}
    for name, kind in kinds.items():
        if kind in _PLAIN or kind in _TEXTS:
            # With the collation of a column, texts that differ may be equal.
            collate = SQL(' COLLATE "C"' if kind in _TEXTS else "")
            yield SQL("t.{0}{1} IS DISTINCT FROM s.{0}{1}").format(Identifier(name), collate)
    others = [name for name in names if kinds[name] not in _PLAIN | _TEXTS]
    if exact := [name for name in others if not _has_several_images(target, name)]:
        yield _image_differs("s", exact)
    if loose := [name for name in others if name not in exact]:
        # As text only if the images differ.
        yield SQL("({} AND {})").format(_image_differs("s", loose), _text_differs("s", loose))


def _base_type(target: Table, name: str) -> str:
    """Return the type of a column without a length or precision."""
    column = target.column(name)
    kind = column.base_type if column else ""
    return kind if kind.endswith("[]") else re.sub(r"\([^)]*\)", "", kind)


def _image_differs(alias: str, names: Sequence[str]) -> Composed:
    return SQL("ROW({})::record OPERATOR(pg_catalog.*<>) ROW({})::record").format(
        _prefixed("t", names), _prefixed(alias, names)
    )


def _text_differs(alias: str, names: Sequence[str]) -> Composed:
    return SQL("ROW({})::text <> ROW({})::text").format(_prefixed("t", names), _prefixed(alias, names))


def _has_several_images(target: Table, name: str) -> bool:
    """Tell whether one value may have several binary images, by the route on which it came.

    NaN has a sign, which inf - inf sets and text does not; an array may keep a map of NULLs that it no longer has.
    """
    column = target.column(name)
    return column is not None and (column.base_type.endswith("[]") or column.base_type in _WITH_FLOATS)


def count_diff() -> Composed:
    return SQL('SELECT "_op"::text AS op, count(*) AS rows FROM {} GROUP BY 1').format(DIFF)


def count_changed_columns(merge: Merge) -> Composed:
    """Count for each column the rows whose value would change; the outputs are in the order of `compared`."""
    changed = (
        SQL("count(*) FILTER (WHERE {}) AS {}").format(_column_differs(merge, name), Identifier(f"c{place}"))
        for place, name in enumerate(merge.compared)
    )
    return SQL("SELECT {} FROM {} AS d JOIN {} AS t ON {} WHERE d.\"_op\" = 'U'").format(
        _comma(changed), DIFF, merge.rows or merge.target.identifier, _same_row(merge)
    )


def _column_differs(merge: Merge, name: str) -> Composed:
    changed = _image_differs("d", [name])
    if not _has_several_images(merge.target, name):
        return changed
    return SQL("{} AND {}").format(changed, _text_differs("d", [name]))


def first_differences(merge: Merge, op: str, limit: int) -> Composed:
    """Read the first rows of one kind by key: as text, before and after."""
    texts = {alias: _comma(_text(alias, name) for name in merge.columns) for alias in ("t", "d")}
    before, after = (SQL("(SELECT to_jsonb(x.*)::text FROM (SELECT {}) AS x)").format(texts[a]) for a in ("t", "d"))
    # For a removed row the difference contains only the key, and a new row is not in the target.
    return SQL(
        "SELECT {before} AS before, {after} AS after"
        ' FROM (SELECT * FROM {diff} WHERE "_op" = {op} ORDER BY {key} LIMIT {limit}) AS d {target} ORDER BY {ordered}'
    ).format(
        before=SQL("NULL") if op == "I" else before,
        after=SQL("NULL") if op == "D" else after,
        diff=DIFF,
        op=Literal(op),
        key=_comma(map(Identifier, merge.key)),
        limit=Literal(limit),
        target=SQL("")
        if op == "I"
        else SQL("JOIN {} AS t ON {}").format(merge.rows or merge.target.identifier, _same_row(merge)),
        ordered=_prefixed("d", merge.key),
    )


def _text(alias: str, name: str) -> Composed:
    return SQL("{0}.{1}::text AS {1}").format(SQL(alias), Identifier(name))


def is_in_diff(merge: Merge) -> Composed:
    """Build a condition that is true for rows `t` of the target that this merge wrote."""
    return SQL("EXISTS (SELECT FROM {} AS d WHERE d.\"_op\" <> 'D' AND {})").format(
        DIFF, _all(_same_value(merge.target, name) for name in merge.key)
    )


def is_staged(merge: Merge) -> Composed:
    """Build a condition on rows `q` of the target: their keys are among the staged rows."""
    same = same_key(merge, "s", "q")
    return SQL("EXISTS (SELECT FROM {} AS s WHERE {})").format(merge.staged, same)


def delete_rows(merge: Merge, diff: Composable = DIFF) -> Composed:
    if merge.soft:
        return SQL("UPDATE {} AS t SET {} = now() FROM {} AS d WHERE d.\"_op\" = 'D' AND {}").format(
            merge.target.identifier, Identifier(merge.soft), diff, _same_row(merge)
        )
    return SQL("DELETE FROM {} AS t USING {} AS d WHERE d.\"_op\" = 'D' AND {}").format(
        merge.target.identifier, diff, _same_row(merge)
    )


def update_rows(merge: Merge, diff: Composable = DIFF) -> Composed | None:
    """Build an UPDATE of rows that differ. Return None if a row consists only of its key."""
    if not merge.written and not merge.soft:
        return None
    return SQL("UPDATE {} AS t SET {} FROM {} AS d WHERE d.\"_op\" = 'U' AND {}").format(
        merge.target.identifier,
        _comma(_assignments(merge, "d")),
        diff,
        _same_row(merge),
    )


def _assignments(merge: Merge, alias: str) -> Iterator[Composed]:
    for name in merge.written:
        yield SQL("{0} = {1}.{0}").format(Identifier(name), SQL(alias))
    if merge.soft:
        yield SQL("{} = NULL").format(Identifier(merge.soft))
    for name in merge.touched:
        yield SQL("{} = DEFAULT").format(Identifier(name))


def _same_row(merge: Merge) -> Composable:
    """Match by position, which costs one page and no index.

    If another session moved the row, the counts will not agree.
    """
    if merge.finds_by_position:
        return SQL("t.ctid = d.{}").format(Identifier(POSITION))
    return _all(_same_value(merge.target, name) for name in merge.key)


def _same_value(target: Table, name: str) -> Composed:
    column, equal = target.column(name), target.same(name, "t", "d")
    if column and column.not_null:
        return equal
    if column and column.equal != "=":  # IS NOT DISTINCT FROM would look for the operator in search_path
        return SQL("({0} OR t.{1} IS NULL AND d.{1} IS NULL)").format(equal, Identifier(name))
    return SQL("t.{0} IS NOT DISTINCT FROM d.{0}").format(Identifier(name))


def insert_rows(merge: Merge, diff: Composable = DIFF, condition: Composable = _NOTHING_MORE) -> Composed:
    return SQL("INSERT INTO {} ({}){} SELECT {} FROM {} AS d WHERE d.\"_op\" = 'I'{} ORDER BY {}").format(
        merge.target.identifier,
        _comma(map(Identifier, merge.columns)),
        overriding(merge.target, merge.columns),
        _prefixed("d", merge.columns),
        diff,
        condition,
        _prefixed("d", merge.key),
    )


def insert_all(merge: Merge, *, in_order: bool) -> Composed:
    """Insert directly from the stage without a comparison; for an empty target."""
    return SQL("INSERT INTO {} ({}){} SELECT {} FROM {} AS s{}").format(
        merge.target.identifier,
        _comma(map(Identifier, merge.columns)),
        overriding(merge.target, merge.columns),
        _prefixed("s", merge.columns),
        merge.staged,
        SQL(" ORDER BY {}").format(_prefixed("s", merge.key)) if in_order else SQL(""),
    )


def count_staged(merge: Merge) -> Composed:
    """Count rows and distinct keys. Fewer keys than rows means that a key is repeated."""
    return SQL("SELECT count(*) AS rows, count(DISTINCT ({})) AS keys FROM {} AS s").format(
        _prefixed("s", merge.key), merge.staged
    )


def find_duplicates(merge: Merge, shown: Sequence[str] | None = None) -> Composed:
    """Count the repeated keys and return one of them; `shown`: its columns to return, if not all."""
    keys = _prefixed("s", merge.key)
    return SQL(
        """
        SELECT count(*) AS keys, (array_agg(example))[1] AS example
        FROM (SELECT concat_ws(', ', {texts}) AS example FROM {staged} AS s GROUP BY {keys} HAVING count(*) > 1) twice
        """
    ).format(
        texts=_comma(SQL("s.{}::text").format(Identifier(name)) for name in shown or merge.key),
        staged=merge.staged,
        keys=keys,
    )


def overriding(table: Table, columns: Sequence[str]) -> Composable:
    given = [table.column(name) for name in columns]
    return SQL(" OVERRIDING SYSTEM VALUE" if any(column and column.identity for column in given) else "")


def _is_clock(default: str | None) -> bool:
    return default is not None and any(
        word in default for word in ("now()", "CURRENT_TIMESTAMP", "clock_timestamp()", "statement_timestamp()")
    )


def _prefixed(alias: str, names: Sequence[str]) -> Composed:
    return _comma(SQL("{}.{}").format(SQL(alias), Identifier(name)) for name in names)


def _comma(parts: Iterable[Composable]) -> Composed:
    return Composed(list(parts)).join(", ")


def _all(parts: Iterable[Composable]) -> Composed:
    return Composed(list(parts)).join(" AND ")
