"""What people are told is said by code and parameters: nothing is written beside the catalog, Russian has it all."""

import ast
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import vitrina
from vitrina import errors, schemas, sentences
from vitrina.cli import output
from vitrina.sentences import CATALOG, Sentence, params_of, said, say

ROOT = Path(vitrina.__file__).parent
WORDS = ROOT.parents[1] / "console" / "src" / "words"

# The modules whose sentences people read in the console. Whatever else the platform says (log lines, what drivers and
# servers answer, reasons of dead letters, files and the command line) stays English.
MAKERS = [
    "api/errors.py",
    "api/paging.py",
    "api/routes/pipelines.py",
    "api/routes/reports.py",
    "api/routes/stream.py",
    "api/routes/actions.py",
    "connectors/postgres/advice.py",
    "connectors/postgres/provenance.py",
    "definition.py",
    "loads/plan.py",
    "schedule.py",
    "services/advice.py",
    "services/backfills.py",
    "services/idempotency.py",
    "services/pipelines.py",
    "services/policy.py",
    "services/reconciliation.py",
    "services/reports.py",
    "services/requests.py",
    "services/run_after.py",
    "services/tokens.py",
    "services/versions.py",
    "sqlguard/__init__.py",
    "sqlguard/calls.py",
    "sqlguard/expressions.py",
    "sqlguard/queries.py",
    "sqlguard/parser.py",
    "sqlguard/tables.py",
    "sqlguard/tokens.py",
    "sqlguard/types.py",
    "store/kept_connections.py",
    "targets.py",
    "taskplan.py",
]

# Calls whose texts are not for readers of the console: SQL, descriptions of fields, log lines, names of constructs.
QUIET_CALLS = {"Header", "execute", "SQL", "Field", "Query", "Path", "info", "warning", "error", "exception", "compile"}
# Names of types, formats and other words that are no sentences.
NO_SENTENCES = re.compile(
    r"timestamp with(out)? time zone|no such time in the next fifty years|end of the query|Value error, |"
    r"SELECT \* FROM \{\}|"  # SQL of ours
    r"ORDER BY USING|[^ ]+ COLLATE \"C\"| or | after |.* does not match at .*|Scope \| None|a field such as year|"
    r"a subquery or a function|that the operator allows \(none yet\)|cmax .*|"
    r"Input should |syntax at .*|ask_runner .*|<html>.*|"
    r"the schema .* belongs to the server and cannot be opened to queries"
)


@pytest.mark.parametrize(
    ("code", "step"),
    [("run.spark_not_sent", "VITRINA_TRANSFORMS"), ("warning.engine_unasked", "options.engine = local")],
)
def test_a_cluster_that_cannot_be_used_has_a_next_step(code: str, step: str) -> None:
    assert step in CATALOG[code]


@pytest.mark.parametrize("maker", MAKERS)
def test_no_sentence_is_written_beside_the_catalog(maker: str) -> None:
    tree = ast.parse((ROOT / maker).read_text())
    written = [text for text in _texts(tree) if text.count(" ") >= 2 and not NO_SENTENCES.fullmatch(text)]
    assert written == []


def test_one_that_is_written_beside_the_catalog_is_found() -> None:
    tree = ast.parse('def f(name):\n    """It says no."""\n    raise Conflict(f"pipeline {name} is busy")')
    assert list(_texts(tree)) == ["pipeline {} is busy"]


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module that are neither doc strings nor for machines."""
    quiet = {id(part) for node in ast.walk(tree) if _is_quiet(node) for part in ast.walk(node)}
    quiet |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in quiet:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_quiet(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.AnnAssign):
        return True
    return isinstance(node, ast.Call) and _name(node.func) in QUIET_CALLS


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_sentence_is_said_with_what_its_places_need() -> None:
    wrong, used = [], set()
    for path in ROOT.rglob("*.py"):
        if "vitrina.sentences import" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in CATALOG:
                used.add(node.value)
            if not (
                isinstance(node, ast.Call) and _name(node.func) == "say" and isinstance(node.args[0], ast.Constant)
            ):
                continue
            code = str(node.args[0].value)
            given = {keyword.arg for keyword in node.keywords}
            if code not in CATALOG or (None not in given and not given >= set(params_of(CATALOG[code]))):
                wrong.append(f"{path.name}: {code} with {sorted(map(str, given))}")
    assert wrong == []
    # These are made of a part and what happened.
    made = {
        code for code in CATALOG if code.startswith(("advice.", "version.", "request.", "definition.", "pipeline."))
    }
    assert sorted(set(CATALOG) - used - made) == []


def test_every_sentence_has_russian_with_the_same_places() -> None:
    russian = _russian()
    assert sorted(set(CATALOG) - set(russian)) == []
    assert sorted(set(russian) - set(CATALOG)) == []
    # A limit that the English words hold already is a parameter, too.
    extra = {"definition.text_too_long": {"limit"}, "definition.text_too_short": {"limit"}}
    strange = {
        code: places
        for code, text in russian.items()
        if (places := set(re.findall(r"\{(\w+)\}", text)) - set(params_of(CATALOG[code])) - extra.get(code, set()))
    }
    assert strange == {}


def _russian() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in WORDS.glob("ru-*.ts"):
        text = path.read_text()
        if "vitrina/sentences" not in text:
            continue
        for code, words in re.findall(
            r'^  "([a-z_.]+)":\s+((?:"(?:[^"\\]|\\.)*")|(?:\'[^\']*\')),$', text, re.MULTILINE
        ):
            found[code] = words[1:-1]
    return found


def test_a_sentence_is_a_text_and_knows_how_it_was_made() -> None:
    made = say("pipeline.disabled_no_run", name="films")
    assert made == "pipeline films is disabled: enable it, then run it"
    assert said(made) == {"code": "pipeline.disabled_no_run", "params": {"name": "films"}}
    assert said("whatever a driver says") is None
    assert said(None) is None


def test_sentences_within_sentences_go_along() -> None:
    made = say("definition.several", count=2, problems=[say("definition.missing", path="a"), "other"])
    assert made == "2 fields are not valid: a is required; other"
    assert said(made) == {
        "code": "definition.several",
        "params": {
            "count": 2,
            "problems": [{"text": "a is required", "code": "definition.missing", "params": {"path": "a"}}, "other"],
        },
    }


KEPT = sorted(code for code in CATALOG if code.partition(".")[0] in sentences.KEPT_AREAS)


def test_a_text_that_was_kept_is_recognised() -> None:
    """By its words: what was stored as text, also before there were codes, can be said in another language."""
    assert len(KEPT) > 200
    for code in KEPT:
        _expect_recognised(code)


def _expect_recognised(code: str) -> None:
    names = params_of(CATALOG[code])
    numbers = set(re.findall(r"\{(\w+):", CATALOG[code]))
    values: dict[str, object] = {name: 7 if name in numbers else f"<{name}>" for name in names}
    told = said(str(say(code, **values)))
    if told is None:
        assert len(re.sub(r"\{.*?\}", "", CATALOG[code])) < 8
    else:
        same = CATALOG[told["code"]].format(**{name: values[name] for name in params_of(CATALOG[told["code"]])})
        assert same == CATALOG[code].format(**values)


def test_errors_and_answers_carry_it_to_the_client() -> None:
    error = errors.Conflict(say("pipeline.disabled_no_run", name="films"))
    assert isinstance(error.message, Sentence)
    problem = schemas.FieldProblem(path="name", message=error.message, code="conflict")
    assert problem.message_said == schemas.Said(code="pipeline.disabled_no_run", params={"name": "films"})
    assert problem.model_dump()["message"] == "pipeline films is disabled: enable it, then run it"


def test_what_a_runner_left_as_json_is_told_too() -> None:
    told = schemas.TellingObject.__metadata__[0].func(  # type: ignore[attr-defined]
        {"plan": {"reasons": ["pages of 5 rows"], "warnings": []}, "rows": [{"message": "pages of 5 rows"}]}
    )
    assert told["plan"]["reasons_said"] == [{"code": "plan.pages", "params": {"rows": "5"}}]
    assert "message_said" not in told["rows"][0]


def test_a_text_full_of_words_of_sentences_is_read_once() -> None:
    """Looking for places must not try every way to part a text: whoever writes a query writes its errors, too."""
    assert said("pipeline " + " is : reads , outside ( ); " * 20_000) is None


def test_whoever_writes_it_down_writes_a_text() -> None:
    made = say("pipeline.disabled", name="films")
    assert yaml.safe_load(yaml.safe_dump(output.as_plain({"finding": made}))) == {
        "finding": "pipeline films is disabled"
    }
    assert json.loads(json.dumps([made])) == ["pipeline films is disabled"]
    assert pickle.loads(pickle.dumps(made)).code == "pipeline.disabled"
