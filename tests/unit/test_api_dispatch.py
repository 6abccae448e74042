"""The short way finds the route that FastAPI would find, and leaves alone what is not for it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic import SecretStr

from vitrina.api.app import create_app
from vitrina.api.dispatch import Tree
from vitrina.settings import Settings

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(Settings(database_url=SecretStr("postgresql://nobody@127.0.0.1:1/none")))


@pytest.fixture(scope="module")
def tree(app: FastAPI) -> Tree:
    return Tree.of(app, ThreadPoolExecutor(1))


def test_it_finds_what_fastapi_would(app: FastAPI, tree: Tree) -> None:
    contexts = list(iter_route_contexts(app.routes))
    words = {word for context in contexts for word in (context.path_format or "").split("/") if word}
    plain = 0
    for context in contexts:
        for word in ("films", *(word for word in words if "{" not in word)):  # also where it is another route's word
            path = re.sub(r"{[^}]+}", word, context.path_format or "")
            for method in METHODS:
                first = next((c for c in contexts if c.path_regex.match(path) and method in (c.methods or ())), None)
                found = tree.find({"type": "http", "path": path, "method": method})
                if found is None:
                    continue
                plain += 1
                assert first is not None, (method, path)
                assert (found[0].path, found[0].methods) == (first.path_format, first.methods), (method, path)
                assert found[1] == first.path_regex.match(path).groupdict(), (method, path)
    assert plain > 100


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/pipelines/"),
        ("GET", "/api/v1/pipelines//status"),
        ("GET", "/api/v1/me\n"),
        ("GET", "/api/v1/events"),
        ("HEAD", "/api/v1/pipelines"),
        ("DELETE", "/api/v1/pipelines/films"),
        ("GET", "/health"),
        ("GET", "/"),
        ("GET", ""),
    ],
)
def test_it_leaves_the_rest_to_fastapi(tree: Tree, method: str, path: str) -> None:
    assert tree.find({"type": "http", "path": path, "method": method}) is None
