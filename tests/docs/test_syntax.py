"""Check commands and pipelines of the documentation without a platform: by the command line and the API's rules."""

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml
from pydantic import SecretStr

from tests.docs import blocks
from tests.docs.blocks import ROOT, Block
from vitrina.cli.app import make_app
from vitrina.definition import Definition
from vitrina.services import policy
from vitrina.settings import Settings

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BODY = re.compile(
    r"/pipelines -H 'Content-Type: application/json' -d '(\{.*?\})'(?= > |\s*$)", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*$")
OPERATORS = frozenset("();<>|&\n")
ASSIGNMENT = re.compile(r"\w+=")
# What the examples have beside the demo; the targets are those of `make dev SEARCH=1`.
SETTINGS = Settings(
    allowed_source_schemas="content,ugc,sales",
    allowed_targets="analytics.*,clickhouse:*,es:*,files:*,iceberg:*",
    connections={
        "lake": SecretStr("file:///lake"),
        "lakehouse": SecretStr("iceberg+postgresql://lake/lake?warehouse=file:///lake"),
        "olap": SecretStr("clickhouse://olap/default"),
        "shop": SecretStr("postgresql://shop/shop"),
    },
)
REFUSED = ("evil", "nope")


def commands() -> list[Block]:
    found = [block for page in PAGES for block in blocks.of(page) if block.is_command]
    assert len(found) > 40
    return found


@pytest.mark.parametrize("block", commands(), ids=str)
def test_the_command_line_knows_it(block: Block) -> None:
    for words in calls(block.script):
        with contextlib.suppress(typer.Exit):  # --version has done its work
            parse(words)


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such command"):
        parse(["stauts"])
    with pytest.raises(Exception, match="No such option"):
        parse(["run", "films", "--wiat"])


def test_every_pipeline_of_the_documentation_would_be_taken() -> None:
    found = list(definitions())
    assert len(found) > 8
    for where, fields in found:
        problems = policy.problems(Definition(**fields), SETTINGS)
        assert bool(problems) == (fields["name"] in REFUSED), f"{where}: {problems}"


def definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    for page in PAGES:
        for block in blocks.of(page):
            if block.language == "yaml" and "apiVersion" in block.text:
                for document in yaml.safe_load_all(block.text):
                    yield str(block), {"name": document["metadata"]["name"], **document["spec"]}
            for body in BODY.findall(block.script.replace("'\"'", "").replace('"\'"', "")) if block.is_command else ():
                yield str(block), json.loads(body)


def calls(script: str) -> Iterator[list[str]]:
    """Find the arguments of each call of `vitrina`, anywhere in a line."""
    plain = COMMENT.sub("", script.replace("\\\n", " "))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters = " \t", ""
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if not set(word) <= OPERATORS:
            words.append(word)
            continue
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        if words and words[0].endswith("vitrina"):
            yield words[1:]
        words = []


def parse(words: list[str]) -> None:
    """Parse words as the command line would, without executing the command."""
    command: Any = typer.main.get_command(make_app())
    context: Any = None
    while True:
        context = command.make_context(words[0] if words else "vitrina", list(words), parent=context)
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "resolve_command") or not rest:
            return
        _, command, words = command.resolve_command(context, rest)
