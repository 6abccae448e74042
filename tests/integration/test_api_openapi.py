"""The OpenAPI document is true: schemathesis plays it against the real server, in every role."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ensure_resource_availability,
    ignored_auth,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
    use_after_free,
)

from tests.integration.api import DEFINITION, create, serving
from vitrina.api.app import create_app
from vitrina.services import tokens
from vitrina.services.callers import Caller, Role
from vitrina.settings import Settings
from vitrina.store import database as postgres

# More in a nightly run: VITRINA_TEST_EXAMPLES=100
EXAMPLES = int(os.environ.get("VITRINA_TEST_EXAMPLES", "4"))
# The phase that covers every boundary of every field makes hundreds of cases for the larger bodies.
CASES = 10 * EXAMPLES
# Seconds that an answer may take on a busy machine.
PATIENCE = 300
NOWHERE = Settings(database_url=SecretStr("postgresql://nobody@127.0.0.1:1/nothing"))

document = schemathesis.openapi.from_dict(create_app(NOWHERE).openapi())
# A stream of events has no end, so it has tests of its own.
finite = document.exclude(path_regex="/events$")

# What a query, a target, a URL or a plan may be cannot be said in a schema, so a request of the right form may be
# refused.
JUDGED = (
    "POST /api/v1/connections",
    "POST /api/v1/pipelines",
    "POST /api/v1/plan",
    "POST /api/v1/preview",
    "GET /api/v1/schedule",
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


# --- one operation behind the other --------------------------------------------------------------------------------

# Which answers lead to which operations, schemathesis finds out by itself: a `pipeline`, a run's or a request's id.
Machine: type[Any] = finite.as_state_machine()
AFTERWARDS = [*FORM, use_after_free, ensure_resource_availability]
# Most bodies that a schema allows are refused for what they mean: these begin with a pipeline that there is.
BEGINNING = DEFINITION | {"name": "film_dim_full", "target_table": "analytics.film_dim_full"}
SCENARIOS, STEPS = 3 * EXAMPLES, 12


class Play(Machine):  # type: ignore[misc]
    """Scenarios in which the three roles take turns. What is wrong is kept, so that a play always goes to its end."""

    sessions: ClassVar[dict[Role, requests.Session]] = {}
    problems: ClassVar[list[str]] = []
    answered: ClassVar[Counter[tuple[Role, bool]]] = Counter()

    def setup(self) -> None:
        admin = self.sessions[Role.ADMIN]
        base = admin.base_url  # type: ignore[attr-defined]
        if admin.get(f"{base}/api/v1/pipelines/film_dim_full", timeout=PATIENCE).status_code == 404:
            admin.post(f"{base}/api/v1/pipelines", json=BEGINNING, timeout=PATIENCE)
        self.turn = 0

    def before_call(self, case: Any) -> None:
        case.query = {name: value for name, value in (case.query or {}).items() if name not in ("cursor", "runners")}

    def get_call_kwargs(self, case: Any) -> dict[str, Any]:
        self.turn += 1
        # A scenario that an administrator begins leads somewhere.
        self.role = (Role.ADMIN, Role.OPERATOR, Role.VIEWER)[(self.turn - 1) % 3]
        session = self.sessions[self.role]
        return {"session": session, "base_url": session.base_url, "timeout": PATIENCE}  # type: ignore[attr-defined]

    def validate_response(self, response: Any, case: Any, additional_checks: Any = None, **kwargs: Any) -> None:
        # A viewer may ask whether a definition is good: that changes nothing.
        changes = case.method != "GET" and not case.path.endswith("/validate")
        changed = changes and response.status_code < 300
        self.answered[self.role, changed] += 1
        try:
            case.validate_response(response, checks=AFTERWARDS, transport_kwargs=kwargs, recorder=self.recorder)
            assert not (changed and self.role is Role.VIEWER), "a viewer changed something"
        except (AssertionError, FailureGroup) as exc:
            told = [str(each) for each in exc.exceptions] if isinstance(exc, FailureGroup) else [str(exc)]
            self.problems.append(f"{self.role} {case.method} {case.formatted_path}: {response.status_code} {told}")


def test_what_operations_lead_to_is_as_the_document_says(sessions: dict[Role, requests.Session]) -> None:
    Play.sessions, Play.problems, Play.answered = sessions, [], Counter()
    # What it draws depends on what the server answered, and that differs: identifiers and times are new each time.
    with suppress(Flaky):
        Play.run(
            settings=settings(
                max_examples=SCENARIOS,
                stateful_step_count=STEPS,
                phases=[Phase.generate],
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
        )
    assert not Play.problems, "\n".join(Play.problems)
    assert Play.answered[Role.ADMIN, True] > 0
    assert Play.answered[Role.VIEWER, False] > 0


def test_every_operation_has_a_name_of_its_own_and_a_summary() -> None:
    seen: set[str] = set()
    for path, operations in create_app(NOWHERE).openapi()["paths"].items():
        for method, operation in operations.items():
            assert operation["operationId"] not in seen
            seen.add(operation["operationId"])
            assert operation["summary"], (method, path)
    assert len(seen) > 40
