"""Read files as a source: which files, in which order, and from where an interrupted run resumes."""

import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pyarrow as pa

from vitrina.connectors.files.reading import listing
from vitrina.connectors.files.reading.listing import File
from vitrina.connectors.files.reading.passes import FilesPass, mark_of, marked
from vitrina.connectors.files.reading.places import Staging, open_staging
from vitrina.connectors.files.reading.process import Limits, Private, Reader
from vitrina.connectors.files.urls import Place
from vitrina.errors import Disconnected, FatalError, SourceQueryFailed
from vitrina.ports.batch import Batch, Position, Stopwatch
from vitrina.ports.checkpoint import Checkpoint
from vitrina.ports.source import BaseSource, Description, Form, Mark, Marked, Pass, Unseen, Window
from vitrina.sentences import say

# The value of `incremental_key`, DuckDB's name for the column with the file name.
CURSOR = "filename"


@dataclass(frozen=True)
class Asked:
    """Describe what a pipeline wants to read."""

    query: str
    limits: Limits
    # Read new and changed files, each by itself.
    by_file: bool = False
    # Of several readings, the one that is read by file.
    follow: str | None = None
    allow_none: bool = False
    is_backfill: bool = False
    # Identifies what a checkpoint was taken from.
    identity: str = ""
    connection: str = "the connection"


@dataclass(frozen=True)
class _CheckedQuery:
    """Hold what the worker reported about the query."""

    patterns: tuple[tuple[str, ...], ...]
    # Whether each reading is of CSV or JSON.
    are_texts: tuple[bool, ...]
    is_rowwise: bool
    is_stable: bool
    by_name: bool


@dataclass(frozen=True)
class _Step:
    """Hold the files of one request, for each reading of the query."""

    files: tuple[tuple[File, ...], ...]
    # The file that positions are counted in; None: there are no positions.
    name: str | None = None
    # Files that no later step needs.
    own: tuple[File, ...] = ()
    skip: int = 0

    @property
    def names(self) -> list[list[str]]:
        return [[file.name for file in files] for files in self.files]

    @property
    def all_files(self) -> list[File]:
        return list(dict.fromkeys(file for files in self.files for file in files))


class FilesSource(BaseSource):
    """Run a query over files. A position is a file and the number of its rows that were read."""

    refills_in_passes = True
    version_types: tuple[str, ...] = ()

    def __init__(self, place: Place, asked: Asked, start: type[Reader] = Reader) -> None:
        self._place = place
        self._asked = asked
        self._start = start
        self._guard = threading.RLock()
        self._bringing = threading.Lock()
        self._is_closed = False
        self._private: Private | None = None
        self._staging: Staging | None = None
        self._reader: Reader | None = None
        self._query: _CheckedQuery | None = None
        # The files found by the last listing, for each reading.
        self._listed: tuple[tuple[File, ...], ...] | None = None
        self._columns: list[Any] = []
        self._given: list[Any] = []
        self._schema: pa.Schema | None = None

    @property
    def name(self) -> str:
        return say("plan.files_source", connection=self._asked.connection)

    def describe(self, window: Window) -> Description:
        """Return the columns, learned from the first files."""
        if not self._is_there:
            return Description(digest=self._digest)
        return Description(schema=self._describe(), digest=self._digest)

    def sample(self, rows: int, max_bytes: int, max_row_bytes: int) -> pa.Table:
        """Return the first rows of the first files."""
        if not self._is_there:
            return pa.table({})
        schema = self._describe()
        found, count = [], 0
        for step in self._steps(Window()):
            with closing(self._tables(step, min(rows, 2048))) as tables:
                for table in tables:
                    found.append(table)
                    count += table.num_rows
                    if count >= rows:
                        break
            if count >= rows:
                break
        return pa.concat_tables(found).slice(0, rows) if found else _no_rows(schema)

    def _describe(self) -> pa.Schema:
        if self._schema is not None:
            return self._schema
        sampled = self._open().sampled if self._reads_by_file else None
        step = _Step(tuple(files[:sampled] for files in self._list()))
        self._bring(step)
        answer = self._ask("describe", files=step.names)
        self._columns, self._given = answer.fields["columns"], answer.fields["given"]
        schema = self._schema = pa.ipc.read_schema(answer.payload[0])
        return schema

    @property
    def _digest(self) -> str | None:
        """Identify the files of a load that reads all of them: it is resumed only with the same files."""
        if self._asked.by_file:
            return None
        return sha256(mark_of(file for files in self._list() for file in files).encode()).hexdigest()[:16]

    def mark(self, last: Mark | None) -> Marked:
        """List the files again and return their mark."""
        self._listed = None
        return Marked(mark_of(file for files in self._list() for file in files))

    def _list(self) -> tuple[tuple[File, ...], ...]:
        if self._listed is None:
            query, place = self._checked_query(), self._open().files
            patterns = dict.fromkeys(one for patterns in query.patterns for one in patterns)
            known = {pattern: listing.find(place, pattern) for pattern in patterns}
            found = [
                {pattern: [file for file in known[pattern] if file.size or not is_text] for pattern in patterns}
                for patterns, is_text in zip(query.patterns, query.are_texts, strict=True)
            ]
            listed = tuple(_together(one.values()) for one in found)
            for pattern in (pattern for one in found for pattern, files in one.items() if not files):
                self._require(pattern, query, listed)
            self._listed = listed
        return self._listed

    def _require(self, pattern: str, query: _CheckedQuery, listed: tuple[tuple[File, ...], ...]) -> None:
        """Raise for a pattern that matches no file, unless that is allowed for all files that are followed."""
        followed = self._followed(query)
        are_there = [files for place, files in enumerate(listed) if place in followed or not followed]
        if self._asked.allow_none and not any(are_there):
            return
        raise SourceQueryFailed(
            f"no file of {self._asked.connection} matches {pattern!r}, or only empty ones: correct the name, or set"
            " options.allow_empty if there may be no files at all"
        )

    @property
    def _is_there(self) -> bool:
        return all(self._list())

    def _checked_query(self) -> _CheckedQuery:
        if self._query is None:
            said = self._ask("check").fields
            readings = said["readings"]
            query = _CheckedQuery(
                tuple(tuple(one["patterns"]) for one in readings),
                tuple(one["is_text"] for one in readings),
                said["rowwise"],
                said["stable"],
                any(one["by_name"] for one in readings),
            )
            self._followed(query)
            self._query = query
        return self._query

    def _followed(self, query: _CheckedQuery) -> frozenset[int]:
        """Return the readings that are read file by file. Raise if they cannot be determined."""
        if not self._asked.by_file:
            return frozenset({0}) if query.is_rowwise else frozenset()
        if query.by_name:
            raise SourceQueryFailed("union_by_name reads files together, which mode incremental reads one by one")
        texts = [", ".join(patterns) for patterns in query.patterns]
        follow = self._asked.follow or (texts[0] if len(set(texts)) == 1 else None)
        if follow is None:
            raise SourceQueryFailed(
                f"the query reads {' and '.join(map(repr, dict.fromkeys(texts)))}: say in options.files.follow which of"
                " them is read file by file"
            )
        found = frozenset(place for place, text in enumerate(texts) if text == follow)
        if not found:
            raise SourceQueryFailed(f"options.files.follow is {follow!r}, and the query reads {', '.join(texts)}")
        return found

    @property
    def _reads_by_file(self) -> bool:
        return bool(self._followed(self._checked_query()))

    def _steps(self, window: Window) -> Iterator[_Step]:
        query, listed = self._checked_query(), self._list()
        followed = self._followed(query)
        if not followed:
            yield _Step(listed, own=tuple(dict.fromkeys(file for files in listed for file in files)))
            return
        since, until = marked(window.since), marked(window.until)
        others = [files for place, files in enumerate(listed) if place not in followed]
        if any(file.digest not in since for files in others for file in files):
            since = frozenset()  # any file's rows may have changed
        at, skip = _place(window.after)
        needed = frozenset(file.name for files in others for file in files)
        for file in listed[min(followed)]:
            if file.digest in since or (window.until is not None and file.digest not in until):
                continue
            if at is not None and file.name < at:
                continue
            files = tuple((file,) if place in followed else found for place, found in enumerate(listed))
            own = () if file.name in needed else (file,)
            yield _Step(files, file.name, own, skip if file.name == at else 0)

    def read(self, window: Window, form: Form) -> Generator[Batch, None, None]:
        if not self._is_there:
            return
        self._describe()
        for step in self._steps(window):
            count, watch = step.skip, Stopwatch()
            with closing(self._tables(step, window.batch_rows())) as tables:
                while (table := watch.next_of("read", tables)) is not None:
                    for piece in _pieces(table, window):
                        count += piece.num_rows
                        yield Batch(piece, self._position(step, count), watch=watch)
                        watch = Stopwatch()

    def _tables(self, step: _Step, rows: int) -> Generator[pa.Table, None, None]:
        staging = self._open()
        self._bring(step)
        fields = {"files": step.names, "given": self._given, "columns": self._columns, "rows": rows, "skip": step.skip}
        reader = self._process()
        is_done = False
        try:
            yield from reader.read(fields)
            is_done = True
        finally:
            if not is_done:
                self._end(reader)
        staging.let_go(step.own)

    def _position(self, step: _Step, count: int) -> Position | None:
        """Return where to resume after a batch: within its file, at the beginning of the file, or None."""
        if step.name is None:
            return None
        if self._checked_query().is_rowwise and self._checked_query().is_stable:
            return (step.name, str(count))
        # A merge may read rows twice, a load may not.
        return (step.name, "0") if self._asked.by_file else None

    def guarantee(self) -> str | None:
        return "exact"

    def warnings(self, found: Checkpoint) -> list[str]:
        return []

    def disowned(self, found: Checkpoint) -> str | None:
        """Return why the checkpoint belongs to another query, connection or target, or None."""
        is_ours = found.fingerprint in (None, self._asked.identity) or found.stage is not None
        return None if is_ours else say("plan.other_source")

    def fitting(self, found: Checkpoint) -> Checkpoint:
        return found

    def unseen(self) -> Unseen:
        return Unseen()

    def begin_pass(self, found: Checkpoint) -> Pass:
        if self._asked.is_backfill:
            raise FatalError(say("run.no_range", source=self.name))
        return FilesPass(found, self._asked.identity, self._look)

    def _look(self) -> tuple[Mark, str | None]:
        mark = self.mark(None).mark or ""
        return mark, listing.newest([file for files in self._list() for file in files])

    def begin_load(self, found: Checkpoint) -> Marked:
        return Marked(None)

    def loaded(self, done: Checkpoint, held: Mark | None, rows: int) -> Checkpoint:
        return done

    def close(self) -> None:
        """End the process and remove what was downloaded."""
        with self._guard:
            self._is_closed = True
            reader, private = self._reader, self._private
            self._reader = self._private = None
        if reader:
            reader.close()
        if private and self._bringing.acquire(blocking=False):
            private.remove()
            self._bringing.release()

    def _bring(self, step: _Step) -> None:
        """Provide files. Remove them if the source was closed meanwhile: `close` does not wait for a download."""
        staging, private = self._open(), self._folder()
        try:
            with self._bringing, _disk_errors():
                staging.bring(step.all_files, self._require_open)
        finally:
            if self._is_closed:
                private.remove()

    def _open(self) -> Staging:
        with self._guard:
            if self._staging is None:
                self._staging = open_staging(self._place, self._folder())
            return self._staging

    def _folder(self) -> Private:
        with self._guard:
            self._require_open()
            if self._private is None:
                with _disk_errors():
                    self._private = Private()
            return self._private

    def _process(self) -> Reader:
        with self._guard:
            self._require_open()
            if self._reader is None or self._reader.is_over:
                root, private = self._open().root, self._folder()
                self._reader = self._start(self._asked.query, root, private, self._asked.limits)
            return self._reader

    def _require_open(self) -> None:
        if self._is_closed:
            raise Disconnected("the reading of files was ended with its run")

    def _ask(self, op: str, **fields: Any) -> Any:
        return self._process().ask(op, **fields)

    def _end(self, reader: Reader) -> None:
        """End a process in the middle of an answer; the next request starts another one."""
        reader.close()
        with self._guard:
            if self._reader is reader:
                self._reader = None


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise FatalError(
            f"{tempfile.gettempdir()}, where objects are brought to, cannot be written ({exc.strerror or exc}): set"
            " TMPDIR of the runners to a folder with room"
        ) from exc


def _together(found: Iterable[list[File]]) -> tuple[File, ...]:
    return tuple(sorted({file for files in found for file in files}))


def _place(after: Position | None) -> tuple[str | None, int]:
    if not after or len(after) != 2:
        return None, 0
    return after[0], int(after[1] or 0)


def _pieces(table: pa.Table, window: Window) -> Iterator[pa.Table]:
    start = 0
    while start < table.num_rows:
        piece = table.slice(start, max(window.batch_rows(), 1))
        start += piece.num_rows
        yield piece


def _no_rows(schema: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)
