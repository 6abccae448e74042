"""The OpenAPI document is true: schemathesis plays it against the real server, in every role."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.api import create, serving
from vitrina.api.app import create_app
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database as postgres

# More in a nightly run: VITRINA_TEST_EXAMPLES=100
EXAMPLES = int(os.environ.get("VITRINA_TEST_EXAMPLES", "4"))
# The phase that covers every boundary of every field makes hundreds of cases for the larger bodies.
CASES = 10 * EXAMPLES
NOWHERE = Settings(database_url=SecretStr("postgresql://nobody@127.0.0.1:1/nothing"))

document = schemathesis.openapi.from_dict(create_app(NOWHERE).openapi())
# A stream of events has no end, so it has tests of its own.
finite = document.exclude(path_regex="/events$")

# What a query, a target or a plan may be cannot be said in a schema, so a request of the right form may be refused.
JUDGED = (
    "POST /api/v1/pipelines",
    "POST /api/v1/preview",
    "PATCH",
    "PUT",
    "update-config",
    "/rollback",
    "/apply",
    "/reset-state",
)


@schemathesis.deserializer("application/yaml")
def _documents(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> list[Any]:
    """An export is a stream of documents; schemathesis by itself expects one."""
    return list(yaml.safe_load_all(response.content))  # bytes: YAML knows its own encoding


FORM = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def sessions(api_settings: Settings) -> Iterator[dict[Role, requests.Session]]:
    """One session a role, on an API that does not slow down wrong tokens: trying them is part of the play."""
    guarded = api_settings.model_copy(update={"auth": "token"})
    with postgres.connect(guarded.require_database_url(), "vitrina:test") as connection:
        connection.execute("DELETE FROM etl.etl_api_tokens")
        setup = Caller("setup", Role.ADMIN)
        secrets = {role: tokens.create(connection, setup, name=f"a-{role}", role=role)[1] for role in Role}
    with serving(guarded, request_wait_seconds=0, wrong_tokens_a_minute=1_000_000) as client:
        client.headers["Authorization"] = f"Bearer {secrets[Role.ADMIN]}"
        if client.get("/api/v1/pipelines/film_dim_full").status_code == 404:
            create(client, name="film_dim_full")
        opened = {}
        for role, secret in secrets.items():
            opened[role] = requests.Session()
            opened[role].headers["Authorization"] = f"Bearer {secret}"
            opened[role].base_url = str(client.base_url)  # type: ignore[attr-defined]
        yield opened
        for session in opened.values():
            session.close()


played: Counter[str] = Counter()


@finite.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_document_is_true(case: Any, sessions: dict[Role, requests.Session]) -> None:
    # Cursors are opaque: only ones that were given out are good, and no schema can say which.
    case.query = {name: value for name, value in (case.query or {}).items() if name != "cursor"}
    operation = f"{case.method} {case.path}"
    played[operation] += 1
    if played[operation] > CASES:
        return
    excluded = [ignored_auth]
    if any(part in operation for part in JUDGED):
        excluded.append(positive_data_acceptance)
    # 503 is its documented answer where nobody runs anything, as here.
    if case.query.get("runners") == "required":
        excluded.append(not_a_server_error)
    form = [check for check in FORM if check not in excluded]
    admin = sessions[Role.ADMIN]
    case.call_and_validate(base_url=admin.base_url, session=admin, excluded_checks=excluded, timeout=60)  # type: ignore[attr-defined]
    for role in (Role.VIEWER, Role.OPERATOR) if played[operation] <= EXAMPLES else ():
        session = sessions[role]
        case.call_and_validate(base_url=session.base_url, session=session, checks=form, timeout=60)  # type: ignore[attr-defined]


def test_every_operation_has_a_name_of_its_own_and_a_summary() -> None:
    seen: set[str] = set()
    for path, operations in create_app(NOWHERE).openapi()["paths"].items():
        for method, operation in operations.items():
            assert operation["operationId"] not in seen
            seen.add(operation["operationId"])
            assert operation["summary"], (method, path)
    assert len(seen) > 40
