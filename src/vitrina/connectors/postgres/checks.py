"""Check the rows of a mart in SQL: staged rows before they are published, and the mart itself after a pass.

SQL of the author, and every check that names a table, passes the guard like a source query and runs in a read-only
transaction under the reader's login. Only statements built here run under the application's login.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from vitrina import sqlguard
from vitrina.connectors.postgres import plan_check
from vitrina.connectors.postgres.check_reading import CheckCounts, Question, Rows, is_broken, leads_to_one_row
from vitrina.connectors.postgres.reach import Name
from vitrina.connectors.postgres.source import Query, SqlReader
from vitrina.connectors.postgres.stage import PLACE, SCHEMA, Stage
from vitrina.connectors.postgres.target import PostgresWriter
from vitrina.data_checks import (
    STAGED,
    TARGET,
    Asked,
    ChangedShare,
    CheckOption,
    Freshness,
    Relationship,
    RowCheck,
    RowCount,
    Select,
    SetCheck,
    Unique,
    names_given,
)
from vitrina.errors import BadCheck, Disconnected, InvalidQuery, SourceQueryFailed, TransientError
from vitrina.ports.batch import Counts, DeadLetter
from vitrina.ports.checks import MAX_EXAMPLES, CheckOutcome, Checks, Found, Judgement, of_age, refuse_failed
from vitrina.ports.types import base_type
from vitrina.sentences import say
from vitrina.settings import Settings
from vitrina.store import database
from vitrina.store.database import Connection

# The longest value that is shown, in characters.
_LONGEST_SHOWN = 200
# Outputs about rows `q`: their number, and the text of each. `q` alone might be a column.
_TOLD = SQL("count(*) OVER () AS rows, to_jsonb(q.*)::text AS found")

# Added to the reader's statement timeout.
_PATIENCE_MS = 60_000

Row = dict[str, Any]


class MartChecks:
    """Check the rows of one run."""

    def __init__(
        self,
        checks: Checks,
        writer: PostgresWriter,
        settings: Settings,
        *,
        open_reader: Callable[[], SqlReader],
        beside: Callable[[], AbstractContextManager[Connection]],
    ) -> None:
        self._checks = checks
        self._writer = writer
        self._session = writer.connection
        self._settings = settings
        self._open_reader = open_reader
        # Opens another session of the application, for use while its main session is in a transaction.
        self._beside = beside
        # Queries whose plan has been checked against the allow-lists.
        self._admitted: set[str] = set()
        # Whether a value of the check matches at most one row of the other table.
        self._to_one_row: dict[str, bool] = {}
        self._rejected: dict[str, int] = {}
        # The number of staged rows checked last, without rejected ones; None if they were not counted.
        self.rows_judged: int | None = None
        # Document ids of rejected rows, by which a live run recognises its own dead letters.
        self._watched = set(checks.watched)

    # --- rows in a stage, inside the caller's transaction -----------------------------------------------------------

    def judge_batch(self, stage: Stage, item: Composable) -> Judgement:
        """Check the rows of a batch before it is merged. Rejected rows are deleted from the stage."""
        rows, judged, _ = self._judge_rows(stage, self._of_stage(stage, item))
        refuse_failed(self._checks, judged.outcomes, "run.check_failed_batch")
        delivered = self._delivered(rows)
        self._watched.update(letter.document_id for letter in judged.letters)
        return Judgement(judged.outcomes, judged.letters, delivered)

    def judge_load(self, stage: Stage, item: Composable, *, has_rows: bool) -> Judgement:
        """Check a load before it is published: each row, and the checks over all rows.

        A load without rows may lack the columns too; no row of it violates anything.
        """
        rows, judged, known = self._of_stage(stage, item), Judgement(), dict[str, Found]()
        if has_rows:
            rows, judged, known = self._judge_rows(stage, rows, self._measured)
        known |= {check.called: _of_values(check) for check in self._proven([self._writer.key])}
        outcomes = (*judged.outcomes, *self._judge_sets(rows, known))
        refuse_failed(self._checks, outcomes, "run.check_failed")
        return Judgement(outcomes, judged.letters)

    def refuse_repeated(self, judged: Judgement, stage: Stage, item: Composable) -> None:
        """Report a repeated key, which publishing has found, as a failure of the checks on that key."""
        rows = self._of_stage(stage, item)
        repeated = [
            self._checks.outcome(check, self._repeated(check, rows)) for check in self._proven([self._writer.key])
        ]
        by_name = {outcome.name: outcome for outcome in repeated}
        refuse_failed(
            self._checks, [by_name.get(outcome.name, outcome) for outcome in judged.outcomes], "run.check_failed"
        )

    def rows_before(self, *, deletes: bool) -> int | None:
        """Count the rows of the mart if a check needs that number and the counts of the load do not imply it."""
        if not self._of_kind(ChangedShare) or (deletes and not self._writer.keeps_rows):
            return None
        return self._writer.count_rows()

    def judge_change(self, judged: Judgement, counts: Counts, before: int | None) -> Judgement:
        """Check what publishing changed, before it is committed. Without `before`, the counts include every row."""
        if before is None:
            before = counts.updated + counts.unchanged + counts.deleted
        outcomes = [*judged.outcomes]
        for check in self._of_kind(ChangedShare):
            outcomes.append(self._checks.outcome(check, _changed(check, counts, before)))
        refuse_failed(self._checks, outcomes, "run.check_failed")
        return Judgement(tuple(outcomes), judged.letters, judged.delivered)

    def judge_mart(self, written: Counts) -> Judgement:
        """Check the current rows of the mart and what a pass wrote to it."""
        columns = tuple(column.name for column in self._writer.table.columns)
        writer = self._writer
        # In a history only current rows are checked, and no index covers exactly those.
        keys = () if writer.keeps_history else writer.table.unique_keys
        known = {check.called: _of_values(check) for check in self._proven(keys)}
        outcomes = self._judge_sets(Rows(writer.rows, columns, has_place=False), known)
        compared = self._of_kind(ChangedShare)
        now = writer.count_rows() if compared else 0
        for check in compared:
            found = _changed(check, written, now - written.inserted + written.deleted)
            outcomes.append(self._checks.outcome(check, found))
        return Judgement(tuple(outcomes))

    def _of_stage(self, stage: Stage, item: Composable) -> Rows:
        gone = self._writer.gone
        names = tuple(column.name for column in stage.columns if column.name != gone)
        if PLACE in names:
            raise BadCheck(say("run.check_place", column=PLACE))
        return Rows(item, names, gone)

    @property
    def _measured(self) -> list[SetCheck]:
        return [check for check in self._checks.of_sets if isinstance(check, RowCount | Freshness)]

    def _proven(self, keys: Sequence[Sequence[str]]) -> list[Unique]:
        """List the checks that cannot fail if rows are unique in one of these keys."""
        return [check for check in self._of_kind(Unique) if any(set(key) <= set(check.columns) for key in keys)]

    def _of_kind(self, kind: type[Any]) -> list[Any]:
        return [check for check in self._checks.listed if isinstance(check, kind)]

    # --- each row by itself ----------------------------------------------------------------------------------------

    def _judge_rows(
        self, stage: Stage, rows: Rows, measured: Sequence[SetCheck] = ()
    ) -> tuple[Rows, Judgement, dict[str, Found]]:
        """Check each row and measure all rows in the same scan.

        Rejected rows are removed first. The other checks do not see them, and the remaining rows are read again.
        """
        self._wait_for_reader()
        rejecting = [check for check in self._checks.of_rows if self._checks.rejects(check)]
        reading = self._read_before(rejecting, measured, rows)
        outcomes, letters = [], list[DeadLetter]()
        for check in rejecting:
            found, broken = self._reject(check, rows, reading or CheckCounts())
            outcomes.append(found)
            letters += [self._letter(check, row) for row in broken]
            rows = rows.but([row["place"] for row in broken])
        others = [check for check in self._checks.of_rows if check not in rejecting]
        if rows.left_out or reading is None:
            reading = self._read_once(others, measured, rows)
        if rows.left_out:
            self._session.execute(
                SQL("DELETE FROM {} WHERE ctid = ANY ({}::tid[])").format(
                    stage.identifier, Literal(list(rows.left_out))
                )
            )
        outcomes += [self._outcome(check, rows, reading) for check in others]
        self.rows_judged = reading.rows
        return rows, Judgement(tuple(outcomes), tuple(letters)), reading.measured

    def _read_before(
        self, rejecting: Sequence[RowCheck], measured: Sequence[SetCheck], rows: Rows
    ) -> CheckCounts | None:
        """Read rows of which some may be rejected; return None if a check cannot run, perhaps because of them."""
        if not rejecting:
            return self._read_once(self._checks.of_rows, measured, rows)
        with suppress(BadCheck), self._session.transaction():
            return self._read_once(self._checks.of_rows, measured, rows)
        return None

    def _wait_for_reader(self) -> None:
        """Allow our transaction to idle while the reader's query runs.

        It holds no lock that another session waits for.
        """
        if any(isinstance(check, Asked) for check in self._checks.listed):
            longest = int(self._settings.statement_timeout_on(None) * 1000) + _PATIENCE_MS
            setting = SQL("SET LOCAL idle_in_transaction_session_timeout = {}").format(Literal(longest))
            self._session.execute(setting)

    def _reject(self, check: RowCheck, rows: Rows, reading: CheckCounts) -> tuple[CheckOutcome, list[Row]]:
        before = self._rejected.get(check.called, 0)
        number, broken = (0, []) if reading.holds(check) else self._broken_rows(check, rows, check.max_rejected)
        found = self._checks.outcome(check, _of_rows(number, broken), rejected_before=before)
        if found.result == "rejected":
            self._rejected[check.called] = before + number
        return found, broken

    def _outcome(self, check: RowCheck, rows: Rows, reading: CheckCounts) -> CheckOutcome:
        """Read the rows again only if some violate the check, to show them."""
        if reading.holds(check):
            return self._checks.outcome(check, _of_rows(0, []))
        return self._checks.outcome(check, _of_rows(*self._broken_rows(check, rows, MAX_EXAMPLES)))

    def _read_once(self, checks: Sequence[RowCheck], measured: Sequence[SetCheck], rows: Rows) -> CheckCounts:
        """Evaluate all checks in one scan. If that fails, evaluate each check separately to name the one that fails."""
        question = Question([check for check in checks if self._is_counted(check)], measured)
        if not question:
            return CheckCounts()
        try:
            with nullcontext() if question.is_of_author else self._session.transaction():
                return self._answer(question, rows)
        except BadCheck:
            if len(question) == 1:
                raise
        parts = [self._answer(part, rows) for part in question.parts()]
        return CheckCounts(
            {name: number for part in parts for name, number in part.broken.items()},
            {name: found for part in parts for name, found in part.measured.items()},
        )

    def _is_counted(self, check: RowCheck) -> bool:
        """Return whether the check can share a scan with others; its join must not multiply rows."""
        if not isinstance(check, Relationship):
            return True
        if check.called not in self._to_one_row:
            own = self._writer.table.column(check.column)
            is_so = own is not None and leads_to_one_row(self._session, check, base_type(own.base_type))
            self._to_one_row[check.called] = is_so
        return self._to_one_row[check.called]

    def _answer(self, question: Question, rows: Rows) -> CheckCounts:
        check = question.query()
        given = SQL("{} AS NOT MATERIALIZED ({})").format(Identifier(STAGED), question.given(rows))
        if question.is_of_author:
            judged = self._judge_sql(check)
            statement = SQL("WITH {} {}").format(given, SQL(judged.text))
            [row] = self._read(check, self._open_reader(), judged, statement)
        else:
            named = [*question.counted, *question.measured][0]
            [row] = self._all(named, SQL("WITH {} {}").format(given, SQL(check.query)))
        return question.read(row, self._checks)

    def _broken_rows(self, check: RowCheck, rows: Rows, limit: int) -> tuple[int, list[Row]]:
        """Count the rows that violate the check and read the first of them."""
        if isinstance(check, Asked):
            return self._ask(check, rows, limit)
        statement = SQL("SELECT {} FROM ({}) AS q WHERE {} LIMIT {}").format(
            self._told_of_row, rows.select(with_place=True), is_broken(check), Literal(limit)
        )
        return _first_rows(self._all(check, statement))

    @property
    def _told_of_row(self) -> Composed:
        """Build the outputs about rows `q`: their number, and for each row its text, place and dead-letter name."""
        return SQL(
            "count(*) OVER () AS rows, (to_jsonb(q.*) - {place}{key})::text AS found, q.{column}::text AS place,"
            " {name} AS name"
        ).format(place=Literal(PLACE), key=self._exact_key, column=Identifier(PLACE), name=self._name_of("q"))

    @property
    def _exact_key(self) -> Composable:
        """Write numeric keys as text: most JSON readers keep only 15 digits of a number."""
        types = {column.name: column.base_type for column in self._writer.table.columns}
        numbers = [name for name in self._writer.key if types[name].startswith("numeric")]
        pairs = [SQL("{}, q.{}::text").format(Literal(name), Identifier(name)) for name in numbers]
        return SQL(" || jsonb_build_object({})").format(SQL(", ").join(pairs)) if pairs else SQL("")

    def _name_of(self, alias: str) -> Composed:
        """Build the name of a row in its dead letter: its key."""
        key = [SQL("{}.{}::text").format(SQL(alias), Identifier(name)) for name in self._writer.key]
        return SQL("concat_ws('|', {})").format(SQL(", ").join(key))

    def _letter(self, check: RowCheck, row: Row) -> DeadLetter:
        said = say("check.rejected", check=check.called)
        return DeadLetter.about(row["name"], said, row["found"].encode(errors="replace"), by_check=True)

    def _delivered(self, rows: Rows) -> frozenset[str]:
        """Find rows that were rejected before and pass now."""
        if not self._watched:
            return frozenset()
        statement = SQL("SELECT DISTINCT k.name FROM ({}) AS s, {} AS k(name) WHERE k.name = ANY ({})").format(
            rows.select(with_place=False), self._name_of("s"), Literal(sorted(self._watched))
        )
        found = self._session.execute(statement).fetchall()
        return frozenset(row["name"] for row in found)

    # --- all rows --------------------------------------------------------------------------------------------------

    def _judge_sets(self, rows: Rows, known: Mapping[str, Found]) -> list[CheckOutcome]:
        """Run the checks over all rows, except those whose result is known already."""
        checks = [check for check in self._checks.of_sets if not isinstance(check, ChangedShare)]
        there = [check for check in checks if check.called not in known and set(check.columns_read) <= set(rows.names)]
        measured = [check for check in there if check in self._measured]
        found = {**known, **self._read_once([], measured, rows).measured}
        found |= {check.called: self._look(check, rows) for check in there if check not in measured}
        return [self._checks.outcome(check, found.get(check.called) or _nothing(check)) for check in checks]

    def _look(self, check: SetCheck, rows: Rows) -> Found:
        if isinstance(check, Select):
            return _of_rows(*self._ask(check, rows, MAX_EXAMPLES))
        if isinstance(check, Unique):
            return self._repeated(check, rows)
        raise TypeError(f"no rows are judged by {check}")

    def _repeated(self, check: Unique, rows: Rows) -> Found:
        names = [SQL("s.{}").format(Identifier(name)) for name in check.columns]
        statement = SQL(
            "SELECT {told} FROM (SELECT {names}, count(*) AS times FROM ({rows}) AS s WHERE {there} GROUP BY {names}"
            " HAVING count(*) > 1) AS q LIMIT {limit}"
        ).format(
            told=_TOLD,
            names=SQL(", ").join(names),
            rows=rows.select(with_place=False),
            there=SQL(" AND ").join(SQL("{} IS DISTINCT FROM NULL").format(name) for name in names),
            limit=Literal(MAX_EXAMPLES),
        )
        return _of_values(check, *_first_rows(self._all(check, statement)))

    # --- under the application's login: statements that are made here ------------------------------------------------

    def _all(self, check: CheckOption, statement: Composed) -> list[Row]:
        try:
            return self._session.execute(statement).fetchall()
        except (psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError) as exc:
            raise _bad(check, database.sql_message(exc)) from exc

    # --- under the reader's login: what the author wrote -------------------------------------------------------------

    def _ask(self, check: Asked, rows: Rows, limit: int) -> tuple[int, list[Row]]:
        """Run the author's query over the rows; each row that it returns violates the check."""
        judged = self._judge_sql(check)
        reader = self._open_reader()
        with self._mart_shown_to(reader.connection.info.user, check, rows) as mart:
            by_row = isinstance(check, RowCheck)
            staged = rows.select(with_place=by_row) if rows.has_place else SQL("SELECT * FROM {}").format(mart)
            given = [(STAGED, staged), *([(TARGET, SQL("SELECT * FROM {}").format(mart))] if mart else [])]
            statement = SQL("WITH {given} SELECT {told} FROM (\n{text}\n) AS q LIMIT {limit}").format(
                told=self._told_of_row if by_row else _TOLD,
                given=SQL(", ").join(
                    SQL("{} AS NOT MATERIALIZED ({})").format(Identifier(name), item) for name, item in given
                ),
                text=SQL(judged.text),
                limit=Literal(limit),
            )
            return _first_rows(self._read(check, reader, judged, statement))

    def _judge_sql(self, check: Asked) -> sqlguard.CheckedQuery:
        """Check the SQL again: the definition may have been changed directly in the metastore."""
        try:
            judged = sqlguard.check(check.select, self._settings.sql_policy, given=names_given(check))
        except InvalidQuery as exc:
            raise _bad(check, exc.message) from exc
        if judged.parameters:
            raise _bad(check, say("check.no_parameters"))
        return judged

    def _read(self, check: Asked, reader: SqlReader, judged: sqlguard.CheckedQuery, statement: Composed) -> list[Row]:
        try:
            if judged.text not in self._admitted:
                named = say("check.named", check=check.called)
                own = self._own_relations
                plan_check.admit(reader, Query(judged), self._settings, named, statement=statement, own=own)
                self._admitted.add(judged.text)
            with reader.reading():
                return reader.connection.execute(statement, prepare=True).fetchall()
        except SourceQueryFailed as exc:
            raise _bad(check, exc.message) from exc
        except psycopg.Error as exc:
            if database.is_disconnect(exc):
                raise Disconnected(database.sql_message(exc)) from exc
            if database.is_transient(exc):
                raise TransientError(database.sql_message(exc)) from exc
            raise _bad(check, database.sql_message(exc)) from exc

    @property
    def _own_relations(self) -> frozenset[Name]:
        """List the relations that the reader may see during this run: stages, the mart and its partitions."""
        table = self._writer.table
        found = self._session.execute(
            """
            SELECT n.nspname AS schema, c.relname AS name
            FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(%s)) AS t
            JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            UNION ALL
            SELECT n.nspname, c.relname FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %s AND c.relname LIKE %s
            """,
            [table.identifier.as_string(self._session), SCHEMA, self._writer.stage_names],
        ).fetchall()
        return frozenset({(table.schema, table.name), *((row["schema"], row["name"]) for row in found)})

    @contextmanager
    def _mart_shown_to(self, login: str, check: Asked, rows: Rows) -> Iterator[Identifier | None]:
        """Show the mart to the reader as a view during the block; the reader gets no right on the mart itself."""
        if rows.has_place and not _mentions_target(check):
            yield None
            return
        view = Identifier(SCHEMA, self._writer.new_stage_name())
        self._aside(
            SQL("CREATE VIEW {} AS SELECT * FROM {} AS q").format(view, self._writer.rows),
            SQL("GRANT SELECT ON {} TO {}").format(view, Identifier(login)),
        )
        try:
            yield view
        finally:
            self._aside(SQL("DROP VIEW IF EXISTS {}").format(view))

    def _aside(self, *statements: Composed) -> None:
        """Run statements in a separate transaction, so that other sessions see their effect."""
        with self._beside() as session, session.transaction():
            for statement in statements:
                session.execute(statement)


def _nothing(check: SetCheck) -> Found:
    """Return the result for a load that has no rows and lacks the column."""
    return of_age(check, None) if isinstance(check, Freshness) else _of_rows(0, [])


def _mentions_target(check: Asked) -> bool:
    return isinstance(check, Select) and TARGET in check.query.lower()


def _first_rows(found: Sequence[Row]) -> tuple[int, list[Row]]:
    return (found[0]["rows"] if found else 0), list(found)


def _of_rows(number: int, broken: Sequence[Row]) -> Found:
    return Found.of_rows(number, _shown(broken[:MAX_EXAMPLES]))


def _of_values(check: Unique, number: int = 0, examples: Sequence[Row] = ()) -> Found:
    message = say("check.unique", values=number, columns=", ".join(check.columns))
    return Found(message, number > 0, number, examples=_shown(examples))


def _shown(rows: Sequence[Row]) -> list[Row]:
    """Parse the texts of rows and truncate long values."""
    return [{name: _short(value) for name, value in json.loads(row["found"]).items()} for row in rows]


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _changed(check: ChangedShare, counts: Counts, before: int) -> Found:
    changed = counts.inserted + counts.updated + counts.deleted
    if not before:
        return Found(say("check.first_load"), broken=False)
    share = changed / before
    message = say("check.changed_share", changed=changed, rows=before, most=f"{check.max:.0%}")
    return Found(message, share > check.max, value=round(share, 6))


def _bad(check: CheckOption, message: str) -> BadCheck:
    return BadCheck(say("run.check_cannot", check=check.called, message=message))
