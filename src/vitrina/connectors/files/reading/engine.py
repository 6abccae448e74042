"""Read given files, and no others, with DuckDB. This module runs only in the worker process."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import duckdb
import pyarrow as pa

from vitrina.connectors.files.reading import query, types
from vitrina.connectors.files.reading.query import Functions, Query, quoted
from vitrina.connectors.files.reading.types import Result
from vitrina.errors import FatalError, SourceQueryFailed
from vitrina.ports.batch import MAX_BATCH_BYTES

# DuckDB's share of the memory that the process may use; the rest is for Arrow and the interpreter.
_SHARE = 0.6
_ROWS_AT_ONCE = 100_000
_LONGEST_ERROR, _LONGEST_LINE = 1_500, 300
# Macros that expand to expressions over a single row; other macros may group.
_ROW_MACROS = frozenset("if nullif split_part json fdiv fmod date_add md5_number_lower md5_number_upper".split())
_ROW_MACRO_PREFIXES = ("list_", "array_", "map_contains")

Files = Sequence[Sequence[str]]
# The types of the columns of each reading, if they are guessed from text.
Given = Sequence[dict[str, str] | None]


@dataclass(frozen=True)
class Limits:
    """Limit what DuckDB may use."""

    memory_mb: int
    threads: int
    spill_mb: int
    # The folder for data that does not fit into memory.
    spill: str


class Engine:
    """Run one query on one list of files after the other."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits

    @property
    def query(self) -> Query:
        """Return the tree of the query, a new one each time, because files are put into it."""
        return query.check(self._parsed, self._functions)

    @cached_property
    def _parsed(self) -> str:
        return self._parse(self._text)

    @cached_property
    def _parser(self) -> "duckdb.DuckDBPyConnection":
        return self._session([])

    @cached_property
    def _functions(self) -> Functions:
        rows = self._parser.execute("SELECT DISTINCT lower(function_name), function_type FROM duckdb_functions()")
        scalars, others = set(), set()
        for name, kind in rows.fetchall():
            is_of_rows = kind == "macro" and (name in _ROW_MACROS or name.startswith(_ROW_MACRO_PREFIXES))
            if kind == "scalar" or is_of_rows:
                scalars.add(name)
            elif kind in ("aggregate", "macro", "window"):
                others.add(name)
        return Functions(frozenset(scalars), frozenset(others))

    def _parse(self, text: str) -> str:
        with _translated("the query"):
            [found] = self._parser.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
        return str(found[0])

    def _text_with(self, files: Files, given: Given) -> str:
        """Return the query as SQL, with the files of each reading in it."""
        checked = self.query
        for reading, names, kinds in zip(checked.readings, files, given, strict=True):
            call = f"SELECT * FROM {reading.call(names, kinds)}"
            query.put_in(reading, json.loads(self._parse(call)))
        return self._written(checked.tree)

    def _written(self, tree: dict[str, Any]) -> str:
        """Return a tree as SQL."""
        with _translated("the query"):
            asked = self._parser.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)])
            return str(asked.fetchall()[0][0])

    def given_types(self, files: Files) -> list[dict[str, str] | None]:
        """Guess the types of text columns from some files, so that all files are read with the same types."""
        with self._asking(_all(files)) as session:
            self._refuse_unsplit(session, files)
            self._refuse_rounded(session, files)
            if any(reading.takes_types for reading in self.query.readings):
                self._refuse_different(session, files)
        return [
            self._guessed(place, names) if reading.takes_types else None
            for place, (reading, names) in enumerate(zip(self.query.readings, files, strict=True))
        ]

    def _columns_of(self, session: Any, place: int, names: Sequence[str]) -> list[Result]:
        """Describe files as one of the readings sees them, with its parameters."""
        checked = self.query
        reading = checked.readings[place]
        query.put_in(reading, json.loads(self._parse(f"SELECT * FROM {reading.call(names)}")))
        return types.described(session.sql(self._written(query.selecting(checked.tree, reading))))

    def _guessed(self, place: int, names: Sequence[str]) -> dict[str, str] | None:
        with self._asking(names) as session:
            found = {column.name: column.type for column in self._columns_of(session, place, names)}
        # Columns from folder names are in no file, and a value that is not an object has no columns.
        own = {name: kind for name, kind in found.items() if f"/{name}=" not in f"/{names[0]}"}
        return own if list(own) != ["json"] else None

    def describe(self, files: Files, given: Given) -> tuple[list[Result], pa.Schema]:
        """Return the columns of the result, without reading rows."""
        with self._asking(_all(files)) as session:
            found, text, documents = self._typed(session, files, given, None)
            schema = session.sql(text).limit(0).to_arrow_table().schema
            return found, types.tagged(schema, documents)

    def batches(
        self, files: Files, given: Given, expected: Sequence[Result] | None, rows: int, skip: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows after the first `skip`, in batches."""
        names = _all(files)
        with self._asking(names) as session:
            self._refuse_different(session, files)
            _, text, documents = self._typed(session, files, given, expected)
            schema: pa.Schema | None = None
            for batch in session.sql(text).to_arrow_reader(min(max(rows, 1), _ROWS_AT_ONCE)):
                schema = schema or types.tagged(batch.schema, documents)
                kept = batch.slice(min(skip, batch.num_rows))
                skip -= batch.num_rows - kept.num_rows
                types.refuse_infinite(kept)
                types.refuse_no_json(kept, documents)
                for piece in _pieces(kept):
                    yield pa.RecordBatch.from_arrays(
                        [column.cast(one.type) for column, one in zip(piece.columns, schema, strict=True)],
                        schema=schema,
                    )

    def _typed(
        self, session: Any, files: Files, given: Given, expected: Sequence[Result] | None
    ) -> tuple[list[Result], str, dict[str, str]]:
        """Return the query with types that all targets support and that are equal for all files."""
        text = self._text_with(files, given)
        found = types.described(session.sql(text))
        if expected is not None:
            columns = types.fitted(found, expected, _where(files))
            text = f"SELECT {', '.join(columns)} FROM ({text}) AS q"
        relation = session.sql(text)
        expressions, documents = types.carried(relation)
        places = ", ".join(f"c{place}" for place in range(len(expressions)))
        return found, f"SELECT {', '.join(expressions)} FROM ({text}) AS q({places})", documents

    def _refuse_unsplit(self, session: Any, files: Files) -> None:
        """Refuse a CSV file whose lines have different numbers of values: DuckDB would read each line as one value."""
        for place, (reading, names) in enumerate(zip(self.query.readings, files, strict=True)):
            if not reading.is_delimiter_guessed:
                continue
            [first, *others] = self._columns_of(session, place, names[:1])
            if not others and any(mark in first.name for mark in ",;|\t"):
                raise SourceQueryFailed(
                    f'{names[0]} has lines with different numbers of values, or other quotes than ": its lines are not'
                    f" columns, but {first.name!r} is one. Correct the file, or describe its format, such as"
                    f" read_csv({quoted(reading.patterns[0])}, delim = ',', strict_mode = false)"
                )

    def _refuse_rounded(self, session: Any, files: Files) -> None:
        """Refuse decimals in Parquet that DuckDB would read as DOUBLE."""
        for reading, names in zip(self.query.readings, files, strict=True):
            if reading.is_text or not names:
                continue
            listed = ", ".join(map(quoted, names))
            wide = session.execute(
                f"SELECT file_name, name, precision FROM parquet_schema([{listed}]) WHERE precision > 38"
            ).fetchone()
            if wide and self.query.mentions(wide[1]):
                raise SourceQueryFailed(
                    f"{wide[0]} has the column {wide[1]!r} with {wide[2]} digits, which would be rounded: 38 is most."
                    " Name the other columns instead of *, or write the file with fewer digits"
                )

    def _refuse_different(self, session: Any, files: Files) -> None:
        """Refuse columns that differ between files which are read together: DuckDB would leave some out."""
        for place, (reading, names) in enumerate(zip(self.query.readings, files, strict=True)):
            if len(names) < 2 or reading.by_name or "json" in reading.reader:
                continue
            first = self._columns_of(session, place, names[:1])
            for name in names[1:]:
                other = self._columns_of(session, place, [name])
                if {column.name for column in other} != {column.name for column in first}:
                    types.fitted(other, first, name)

    @contextmanager
    def _asking(self, names: Sequence[str]) -> Iterator["duckdb.DuckDBPyConnection"]:
        with _translated(names[0] if len(names) == 1 else None), self._session(names) as session:
            yield session

    def _session(self, names: Sequence[str]) -> "duckdb.DuckDBPyConnection":
        """Open an in-memory database that can read only these files, with its configuration locked."""
        limits = self._limits
        session = duckdb.connect(
            ":memory:",
            config={
                "allow_community_extensions": False,
                "allow_unsigned_extensions": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "arrow_lossless_conversion": True,
                "max_temp_directory_size": f"{limits.spill_mb}MB",
                "memory_limit": f"{int(limits.memory_mb * _SHARE)}MB",
                # Otherwise DuckDB looks for an unknown table among the variables of this program.
                "python_enable_replacements": False,
                "temp_directory": limits.spill,
                "threads": limits.threads,
            },
        )
        session.execute("SET TimeZone = 'UTC'")
        session.execute("SET preserve_insertion_order = true")
        session.execute(f"SET allowed_paths = [{', '.join(map(quoted, names))}]")
        session.execute("SET enable_external_access = false")
        session.execute("SET lock_configuration = true")
        return session


def _all(files: Files) -> list[str]:
    return list(dict.fromkeys(name for names in files for name in names))


def _where(files: Files) -> str:
    names = _all(files)
    return names[0] if len(names) == 1 else f"what is read of {names[0]} and {len(names) - 1} more"


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch of wide rows."""
    if batch.num_rows == 0:
        return
    count = min(batch.nbytes // MAX_BATCH_BYTES + 1, batch.num_rows)
    rows = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


@contextmanager
def _translated(where: str | None) -> Iterator[None]:
    try:
        yield
    # While rows are streamed, DuckDB's errors arrive as errors of Arrow, some of which are an OSError.
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as exc:
        said = _said(exc)
        if isinstance(exc, duckdb.OutOfMemoryException | MemoryError) or "Out of Memory Error" in said:
            raise FatalError(
                f"the query needs more memory than options.step_memory_mb allows ({said}): read less at once, or raise"
                " the option"
            ) from exc
        prefix = "" if where is None or where in said else f"{where}: "
        raise SourceQueryFailed(f"{prefix}{said}") from exc


def _said(exc: BaseException) -> str:
    """Return the message without the query, which holds the names of all files, and without CSV detection details."""
    said = str(exc)
    for rest in ("\n\nLINE ", "\nLINE ", "\n\n  file = "):
        said = said.partition(rest)[0]
    lines = (line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in said.splitlines())
    return "\n".join(lines).strip()[:_LONGEST_ERROR]
