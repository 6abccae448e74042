"""Stage rows in a pipeline's private, unlogged table, tagged with epoch and batch, until a checkpoint accepts them."""

from dataclasses import dataclass

from psycopg import sql
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina.ports.checkpoint import Accepted
from vitrina.store.database import Connection

SCHEMA = "etl_stage"
# Prefixes of stage names: those of a run, and those of a plan, which no run may drop.
RUN, PLAN = "p", "d"
EPOCH, BATCH = "_epoch", "_batch"
CURSOR_KEY, CURSOR_ID = "_cursor_key", "_cursor_id"
# The physical position of a staged row, by which checks delete rejected rows.
PLACE = "_row"


@dataclass(frozen=True)
class StageColumn:
    """Describe a staged column: `type` as it is staged, `target_type` as it is merged."""

    name: str
    type: str
    target_type: str
    # That of the target, by which texts that differ may be equal: keys repeat and match by it.
    collation: str | None = None


@dataclass(frozen=True)
class Stage:
    """Represent one stage table. Only the parts that the checkpoint has accepted count."""

    name: str
    columns: tuple[StageColumn, ...]
    key: tuple[str, ...]
    cursor_types: tuple[str, ...] = ()  # of the cursor's key and id, stored with the data while rows are staged
    cursor_as_text: bool = False  # set if they arrive through Arrow
    # Whether rows record their part. A stage that is to become the mart (`first_load`) has only one part.
    is_tagged: bool = True

    @property
    def identifier(self) -> sql.Identifier:
        return Identifier(SCHEMA, self.name)

    @property
    def cursor_columns(self) -> tuple[str, ...]:
        return (CURSOR_KEY, CURSOR_ID)[: len(self.cursor_types)]

    def _cursor(self) -> list[tuple[str, str]]:
        return list(zip(self.cursor_columns, self.cursor_types, strict=True))

    def creation(self, *, fillable_by: str | None, readable_by: str | None = None) -> Composed:
        """Build the statements that create the table. Sent together: each round trip costs more than most of them.

        Key columns refuse NULL, so that an error names a row without a key when it is staged; the merge would silently
        lose that row. The roles that fill it, or read it for a check, get no other rights on it.
        """
        types = [(column.name, column.type) for column in self.columns]
        types += [(name, "text" if self.cursor_as_text else kind) for name, kind in self._cursor()]
        # First, so that reading them does not require skipping the columns before them: every reader filters by them.
        definitions = [
            SQL("{} bigint NOT NULL").format(Identifier(EPOCH)),
            SQL("{} integer NOT NULL").format(Identifier(BATCH)),
        ]
        definitions += [
            SQL("{} {}{}").format(Identifier(name), SQL(kind), SQL(" NOT NULL" if name in self.key else ""))
            for name, kind in types
        ]
        statements = [
            SQL("DROP TABLE IF EXISTS {}").format(self.identifier),
            SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = off)").format(
                self.identifier, SQL(", ").join(definitions)
            ),
        ]
        if readable_by:
            statements.append(SQL("GRANT SELECT ON {} TO {}").format(self.identifier, Identifier(readable_by)))
        if fillable_by:
            statements.append(SQL("GRANT INSERT ON {} TO {}").format(self.identifier, Identifier(fillable_by)))
        return SQL("; ").join(statements)

    def counted(self, accepted: Accepted) -> Composed:
        """Build a FROM item with exactly the rows that count, in the target's types."""
        return self._rows(self._is_accepted(accepted))

    def of_batch(self, epoch: int, number: int) -> Composed:
        """Build a FROM item with the rows of one batch, including the cursor."""
        return self._rows(self._is_of_batch(epoch, number))

    def counted_to_judge(self, accepted: Accepted) -> Composed:
        """Build a FROM item with the rows that count and the position of each, for checks."""
        return self._to_judge(self._is_accepted(accepted))

    def batch_to_judge(self, epoch: int, number: int) -> Composed:
        """Build a FROM item with the rows of one batch and the position of each, for checks."""
        return self._to_judge(self._is_of_batch(epoch, number))

    def _to_judge(self, condition: Composed) -> Composed:
        """Hide the condition from the planner.

        Without statistics it would expect one or two rows and choose a slow join.
        """
        hidden = SQL("CASE WHEN {} THEN true ELSE false END").format(condition)
        return self._rows(hidden, SQL("ctid AS {}").format(Identifier(PLACE)))

    def _is_of_batch(self, epoch: int, number: int) -> Composed:
        return SQL("{} = {} AND {} = {}").format(Identifier(EPOCH), Literal(epoch), Identifier(BATCH), Literal(number))

    def in_batches(self) -> Composed:
        """Build a FROM item with all rows, each with the number of its batch and its place on disk."""
        return self._rows(SQL("{}").format(Literal(True)), Identifier(BATCH), SQL("ctid"))

    def _rows(self, condition: Composed, *others: Composable) -> Composed:
        columns: list[Composable] = [_as_merged(column) for column in self.columns]
        columns += [SQL("{0}::{1} AS {0}").format(Identifier(name), SQL(kind)) for name, kind in self._cursor()]
        columns += others
        return SQL("(SELECT {} FROM {} WHERE {})").format(SQL(", ").join(columns), self.identifier, condition)

    def _is_accepted(self, accepted: Accepted) -> Composed:
        if not accepted or not self.is_tagged:
            return SQL("{}").format(Literal(bool(accepted)))
        return SQL(" OR ").join(
            SQL("({} = {} AND {} BETWEEN {} AND {})").format(
                Identifier(EPOCH), Literal(epoch), Identifier(BATCH), Literal(first), Literal(last)
            )
            for epoch, (first, last) in accepted
        )

    def discard_uncounted(self, connection: Connection, accepted: Accepted) -> None:
        """Discard rows that were staged but not accepted before an attempt ended; their batch number is used again."""
        if not self.is_tagged:
            if not accepted:
                self.truncate(connection)
            return
        connection.execute(SQL("DELETE FROM {} WHERE NOT ({})").format(self.identifier, self._is_accepted(accepted)))

    def count(self, connection: Connection, accepted: Accepted) -> int:
        row = connection.execute(
            SQL("SELECT count(*) AS rows FROM {} WHERE {}").format(self.identifier, self._is_accepted(accepted))
        ).fetchone()
        return int(row["rows"]) if row else 0

    def analyze(self, connection: Connection) -> None:
        """Analyze the key columns only: the planner needs the number of rows and the key.

        Statistics of other columns cost more than they help.
        """
        keys = SQL(", ").join(map(Identifier, self.key))
        connection.execute(SQL("ANALYZE {} ({})").format(self.identifier, keys))

    def truncate(self, connection: Connection) -> None:
        connection.execute(SQL("TRUNCATE {}").format(self.identifier))

    def drop(self, connection: Connection) -> None:
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(self.identifier))

    def has_tags(self, connection: Connection) -> bool:
        """Return whether a stage that an earlier run has left has tags."""
        row = connection.execute(
            """
            SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relname = %s AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = %s)
            """,
            [SCHEMA, self.name, EPOCH],
        ).fetchone()
        return row is None

    def exists(self, connection: Connection) -> bool:
        row = connection.execute(
            """
            SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relname = %s
            """,
            [SCHEMA, self.name],
        ).fetchone()
        return row is not None


def _as_merged(column: StageColumn) -> Composable:
    name, kind = Identifier(column.name), SQL(column.target_type)
    if column.collation:
        return SQL("{0}::{1} COLLATE {2} AS {0}").format(name, kind, SQL(column.collation))
    return name if column.type == column.target_type else SQL("{0}::{1} AS {0}").format(name, kind)


class Turns:
    """Say which stage a part is in. Stages take turns; one alone takes every part until another is added.

    A part is begun only when the part before the previous one has been merged, so that with two stages no part shares
    its stage with the next.
    """

    def __init__(self, *stages: Stage) -> None:
        self.stages = stages
        self._taken: dict[int, Stage] = {}

    def of(self, number: int) -> Stage:
        """Return the stage of a part; the first question for a part gives it the next stage."""
        found = self._taken.get(number)
        if found is None:
            latest = next(reversed(self._taken.values()), None)
            found = next((stage for stage in self.stages if stage is not latest), self.stages[0])
            # Parts before those were merged long ago.
            self._taken = dict([*self._taken.items()][-3:]) | {number: found}
        return found

    def add(self, stage: Stage) -> None:
        """Let one more stage take its turns, from the next part that is begun."""
        self.stages = (*self.stages, stage)


def stage_name(pipeline_id: str, suffix: str, prefix: str = RUN) -> str:
    """Build `p_<pipeline>_<suffix>`. Operators see the owner, and housekeeping sees whether the table is needed."""
    return f"{prefix}_{pipeline_id.replace('-', '')}_{suffix}"
