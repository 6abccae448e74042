"""The contract of a step at run time: forms, stable columns, keys, errors that say where, rows left behind."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import BaseModel

from vitrina.definition import Task
from vitrina.errors import BadKey, ConfigError, FatalError, Invalid, StepFailed, TransientError
from vitrina.testing import SourceContext, run_source, run_step
from vitrina.transforms import chain, registry, source, transform
from vitrina.transforms.context import StepContext

ROWS = [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"id": 3, "name": "eve"}]


class Suffix(BaseModel):
    suffix: str = "!"


@transform("test_arrow", params=Suffix)
def arrow_step(batch: pa.RecordBatch, params: Suffix) -> pa.RecordBatch:
    """Adds a suffix."""
    return batch.set_column(1, "name", pc.binary_join_element_wise(batch.column("name"), params.suffix, ""))


@transform("test_rows", rows=True, columns={"length": pa.int32()})
def row_step(row: dict[str, Any], context: StepContext) -> dict[str, Any] | list[dict[str, Any]] | None:
    """Drops 2, doubles 3, fails on 13."""
    if row["id"] == 13:
        raise ValueError(f"unlucky {row['name']}")
    if row["id"] == 2:
        return None
    made = {**row, "length": len(row["name"]), "batch": context.batch_no}
    return [made, dict(made)] if row["id"] == 3 else made


@transform("test_fails_on_seven")
def fails_on_seven(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails when 7 is there."""
    if 7 in batch.column("id").to_pylist():
        raise ValueError("no seven: secret-7")
    return batch


@transform("test_fails_on_two_rows")
def fails_on_two(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails on batches, not on rows."""
    if batch.num_rows > 1:
        raise RuntimeError("too many")
    return batch


SHAPES: Iterator[Any] = iter(())


@transform("test_changes_shape")
def changes_shape(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Gives whatever the test wants."""
    return next(SHAPES)


@transform("test_raises")
def raises(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises whatever the test wants."""
    raise next(SHAPES)


def make_chain(*tasks: tuple[str, dict[str, Any]], key: tuple[str, ...] = ()) -> chain.Chain:
    plan = [
        Task(order_index=position, task_type="PYTHON", body=name, params=params)
        for position, (name, params) in enumerate(tasks, 1)
    ]
    return chain.Chain(chain.plan_steps(plan, registry.load()), StepContext(), key=key)


def table(rows: list[dict[str, Any]] = ROWS) -> pa.Table:
    return pa.Table.from_pylist(rows)


def test_each_form_is_given_what_it_asks_for() -> None:
    assert [row["name"] for row in run_step(arrow_step, ROWS, params={"suffix": "?"}).rows] == ["ann?", "bob?", "eve?"]
    made = run_step(row_step, ROWS).rows
    assert [(row["id"], row["length"], row["batch"]) for row in made] == [(1, 3, 1), (3, 3, 1), (3, 3, 1)]


def test_steps_run_in_order_and_may_change_the_number_of_rows() -> None:
    steps = make_chain(("test_rows", {}), ("test_arrow", {"suffix": "."}))
    made = steps.apply(table(), 5)
    assert made.batch.to_pylist() == [
        {"id": 1, "name": "ann.", "length": 3, "batch": 5},
        {"id": 3, "name": "eve.", "length": 3, "batch": 5},
        {"id": 3, "name": "eve.", "length": 3, "batch": 5},
    ]


def test_a_failure_names_step_order_batch_and_the_masked_row() -> None:
    steps = make_chain(("test_arrow", {}), ("test_rows", {}))
    rows = [{"id": 1, "name": "ann"}, {"id": 13, "name": "secret person"}]
    with pytest.raises(StepFailed) as failed:
        steps.apply(table(rows), 4)
    assert failed.value.message == (
        "step 2 (test_rows) failed in batch 4: ValueError: unlucky ***; the row was id=<int>, name=<str of 14>"
    )


def test_the_row_that_a_batch_step_fails_on_is_found() -> None:
    rows = [{"id": number, "name": f"secret-{number}"} for number in range(100)]
    with pytest.raises(StepFailed) as failed:
        make_chain(("test_fails_on_seven", {})).apply(table(rows), 1)
    assert failed.value.message.endswith("ValueError: no seven: ***; the row was id=<int>, name=<str of 8>")


def test_a_batch_that_fails_without_a_culprit_still_fails() -> None:
    with pytest.raises(StepFailed, match="on no single row: RuntimeError: too many"):
        make_chain(("test_fails_on_two_rows", {})).apply(table(), 1)


@pytest.mark.parametrize(("step", "bad"), [("test_rows", 13), ("test_fails_on_seven", 7)])
def test_rows_that_a_step_fails_on_can_be_left_behind(step: str, bad: int) -> None:
    steps = make_chain((step, {"on_error": "dead_letter"}), key=("id",))
    rows = [{"id": number, "name": f"person {number}"} for number in range(100) if number not in (2, 3)]

    made = steps.apply(table(rows), 3)

    assert bad not in made.batch.column("id").to_pylist()
    assert made.batch.num_rows == len(rows) - 1
    [letter] = made.letters
    assert letter.document_id == str(bad)
    assert letter.document == f'{{"id": {bad}, "name": "person {bad}"}}'
    assert letter.error.startswith(f"step 1 ({step}): ValueError")


def test_too_many_rows_left_behind_stop_the_run() -> None:
    steps = make_chain(("test_rows", {"on_error": "dead_letter", "max_dead_letters": 5}))
    rows = [{"id": 13, "name": "x"}] * 3
    steps.apply(table(rows), 1)
    with pytest.raises(StepFailed, match="more than 5 rows"):
        steps.apply(table(rows), 2)


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (ConnectionResetError("gone"), TransientError),
        (TimeoutError("slow"), TransientError),
        (TransientError("try again"), TransientError),
        (FatalError("never"), FatalError),
    ],
)
def test_what_a_step_says_about_trying_again_is_heard(
    exception: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SHAPES", iter([exception]))
    with pytest.raises(expected, match=r"step 1 \(test_raises\)"):
        make_chain(("test_raises", {"on_error": "dead_letter"})).apply(table(), 1)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"a": ["x"]}, "column 'a' is string in batch 2 and int64 in the first one"),
        ({"b": [1]}, "other columns in batch 2"),
        ({"a": [1], "b": [1]}, "other columns in batch 2"),
        ({"a": [1.5]}, "column 'a' is double"),
    ],
)
def test_the_columns_of_a_step_stay_the_same(
    second: dict[str, list[Any]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [pa.RecordBatch.from_pydict(shape) for shape in ({"a": [1]}, second)]
    monkeypatch.setitem(globals(), "SHAPES", iter(shapes))
    steps = make_chain(("test_changes_shape", {}))
    steps.apply(table(), 1)
    with pytest.raises(StepFailed, match=words):
        steps.apply(table(), 2)


def test_order_width_and_nulls_of_columns_may_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [
        pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int64()), "b": pa.nulls(1), "c": ["x"]}),
        pa.RecordBatch.from_pydict(
            {"c": pa.array(["y"], pa.large_string()), "b": ["z"], "a": pa.array([2], pa.int8())}
        ),
        pa.RecordBatch.from_pydict({"a": pa.nulls(1), "b": pa.nulls(1), "c": pa.array(["w"]).dictionary_encode()}),
    ]
    monkeypatch.setitem(globals(), "SHAPES", iter(shapes))
    steps = make_chain(("test_changes_shape", {}))
    made = [steps.apply(table(), number).batch for number in (1, 2, 3)]
    assert [batch.to_pylist() for batch in made] == [
        [{"a": 1, "b": None, "c": "x"}],
        [{"a": 2, "b": "z", "c": "y"}],
        [{"a": None, "b": None, "c": "w"}],
    ]
    assert made[2].schema == pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.string()})


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"name": ["x"]}, "'id' is missing"),
        ({"id": pa.array([1, None], pa.int64()), "name": ["x", "y"]}, "NULL in 1 row"),
    ],
)
def test_the_key_must_survive_the_steps(shape: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SHAPES", iter([pa.RecordBatch.from_pydict(shape)]))
    with pytest.raises(BadKey, match=words):
        make_chain(("test_changes_shape", {}), key=("id",)).apply(table(), 1)


@pytest.mark.parametrize("result", [None, [1], "x", 5])
def test_a_result_that_is_no_batch_is_refused(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SHAPES", iter([result]))
    with pytest.raises(StepFailed, match=f"it returned {type(result).__name__}, not a pyarrow.RecordBatch"):
        make_chain(("test_changes_shape", {"on_error": "dead_letter"})).apply(table(), 1)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("nope", {}, "there is no Python step 'nope' here; there are: add_columns, "),
        ("test_source", {}, "there is no Python step 'test_source'"),
        ("test_fails_on_seven", {"x": 1}, "takes no params, but is given x"),
        ("select_columns", {}, "params.columns: Field required"),
        ("select_columns", {"columns": ["a"], "columnz": []}, "params.columnz"),
        ("test_arrow", {"on_error": "ignore"}, "params.on_error"),
        ("test_arrow", {"max_dead_letters": 0}, "params.max_dead_letters"),
    ],
)
def test_a_wrong_plan_is_refused_before_it_runs(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        make_chain((name, params))


def test_every_wrong_step_of_a_plan_is_told_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        make_chain(("nope", {}), ("select_columns", {}), ("neither", {}))
    assert len(refused.value.fields) == 3


# --- registration -----------------------------------------------------------------------------------------------


def fine(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_name_can_be_taken_once() -> None:
    def other(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with pytest.raises(ConfigError, match=r"two Python steps are called 'keep_rows'.*rename one"):
        transform("keep_rows")(other)


@pytest.mark.parametrize(
    "name", ["", "Title", "a.b", "os.system", "__import__", "_x", "a-b", "../etc", "a b", "a" * 64, "é", "1a", "a\n"]
)
def test_names_that_could_be_anything_else_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="lower-case letters"):
        transform(name)(fine)


def test_signatures_are_judged_when_a_step_is_registered() -> None:
    def nothing() -> None: ...
    def strange(batch: pa.RecordBatch, colour: str) -> None: ...
    def wants_params(batch: pa.RecordBatch, params: Suffix) -> None: ...

    for function, words in ((nothing, "takes no argument"), (strange, "'colour'"), (wants_params, "or neither")):
        with pytest.raises(ConfigError, match=words):
            transform("test_signature")(function)
    with pytest.raises(ConfigError, match="or neither"):
        transform("test_signature", params=Suffix)(fine)

    class Reserved(BaseModel):
        on_error: str

    def reserved(batch: pa.RecordBatch, params: Reserved) -> None: ...

    with pytest.raises(ConfigError, match="is reserved"):
        transform("test_signature", params=Reserved)(reserved)


def test_a_module_that_cannot_be_imported_is_listed_and_stops_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_steps.py").write_text("raise RuntimeError('half written')")
    (tmp_path / "good_steps.py").write_text(
        "from vitrina.transforms import transform\n"
        "@transform('test_from_module')\n"
        "def step(batch):\n    'Of a module.'\n    return batch\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry.REGISTRY, "broken", [])

    known = registry.load("broken_steps, good_steps, not_there_at_all")

    assert known.find("test_from_module")
    assert [(module.name, module.error.partition(":")[0]) for module in known.broken] == [
        ("broken_steps", "RuntimeError"),
        ("not_there_at_all", "ModuleNotFoundError"),
    ]
    described = {entry["name"]: entry for entry in known.describe()}
    assert described["broken_steps"]["kind"] == "error"
    assert described["test_from_module"] == {
        "name": "test_from_module",
        "kind": "transform",
        "form": "arrow",
        "doc": "Of a module.",
        "params": None,
        "strict": False,
        "origin": "good_steps.step",
    }


def test_a_module_that_takes_a_name_twice_stops_the_start(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thieving_steps.py").write_text(
        "from vitrina.transforms import transform\n@transform('lookup')\ndef step(batch):\n    return batch\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match="two Python steps are called 'lookup'"):
            registry.load("thieving_steps")


# --- sources ----------------------------------------------------------------------------------------------------


@source("test_source", params=Suffix)
def counting(context: SourceContext) -> Iterator[Any]:
    """Counts to five."""
    for number in range(context.checkpoint or 0, 5):
        context.checkpoint = number + 1
        yield [{"n": number}] if number % 2 else pa.RecordBatch.from_pylist([{"n": number}])


def test_a_source_goes_on_from_its_checkpoint() -> None:
    assert [(made.rows, made.checkpoint) for made in run_source(counting, checkpoint=3)] == [
        ([{"n": 3}], 4),
        ([{"n": 4}], 5),
    ]
    assert len(run_source("test_source", limit=2)) == 2


@source("test_bad_source")
def bad_source(context: SourceContext) -> Iterator[Any]:
    """Yields what the test wants."""
    context.checkpoint = next(SHAPES)
    yield next(SHAPES)
    raise ValueError("broken")


@pytest.mark.parametrize(
    ("shapes", "words"),
    [([1, "rows"], "yielded str"), ([{1, 2}, []], "not JSON"), ([1, []], "test_bad_source failed: ValueError: broken")],
)
def test_a_source_that_misbehaves_is_named(shapes: list[Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SHAPES", iter(shapes))
    with pytest.raises(StepFailed, match=words):
        run_source(bad_source)


# --- rows that are left out ------------------------------------------------------------------------------------------


def noting(*tasks: tuple[str, dict[str, Any]]) -> chain.Chain:
    steps = make_chain(*tasks, key=("id",))
    steps.notes_filtered = True
    return steps


def test_rows_that_a_step_leaves_out_are_told_from_those_that_it_rejects() -> None:
    steps = noting(("test_rows", {"on_error": "dead_letter"}))
    made = steps.apply(table([*ROWS, {"id": 13, "name": "zoe"}]), 1)
    assert made.filtered == (1,)
    assert [letter.document_id for letter in made.letters] == ["13"]
    everything = noting(("keep_rows", {"where": {"column": "id", "op": "gt", "value": 9}}))
    assert everything.apply(table(), 1).filtered == (0, 1, 2)


def test_nothing_counts_as_left_out_while_a_rejected_row_could_be_it() -> None:
    """The key is renamed when the row is rejected, so nobody knows which one it was."""
    steps = noting(
        ("rename_columns", {"names": {"id": "number"}}),
        ("cast_columns", {"types": {"name": "integer"}, "on_error": "dead_letter"}),
        ("rename_columns", {"names": {"number": "id"}}),
    )
    made = steps.apply(table([{"id": 1, "name": "7"}, {"id": 2, "name": "bob"}]), 1)
    assert (made.batch.num_rows, len(made.letters), made.filtered) == (1, 1, ())


def test_a_step_that_changes_a_key_is_refused_where_rows_must_be_found_again() -> None:
    steps = noting(
        ("cast_columns", {"types": {"id": "text"}}), ("normalise_text", {"columns": ["id"], "case": "upper"})
    )
    assert steps.apply(table(), 1).filtered == ()
    with pytest.raises(StepFailed, match="the key B in batch 1, which no row had before them"):
        steps.apply(table([{"id": "b", "name": "x"}]), 1)
