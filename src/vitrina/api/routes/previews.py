"""`/preview`, `/explain`: what an unsaved definition would read, and how."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import Field

from vitrina import schemas
from vitrina.api.requests import DEFINITION_EXAMPLES, FILM_DIM, PreviewRequest
from vitrina.api.routes import actions
from vitrina.api.security import GuardedRoute, Operator
from vitrina.api.state import State
from vitrina.services import labels, policy, requests

router = APIRouter(tags=["verbs"], route_class=GuardedRoute)


class DraftPreviewRequest(PreviewRequest):
    """Represent the request of a preview."""

    definition: dict[str, Any] = Field(examples=[FILM_DIM])


@router.post("/preview", responses={202: {"model": schemas.Request}})
def preview_draft(state: State, caller: Operator, response: Response, body: DraftPreviewRequest) -> schemas.Request:
    """Show the first rows of a definition that is not saved; nothing is written. Performed by a runner.

    `name` and `target_table` may be left out: reading needs neither.
    """
    definition = policy.parse_for_reading(labels.split(body.definition)[1])
    payload = {"definition": definition.model_dump(mode="json", exclude_unset=True), "limit": body.limit}
    judge = policy.problems if "target_table" in body.definition else policy.problems_of_reading
    with state.pool.connection() as connection:
        found = judge(definition, state.settings, connection)
        if found:
            raise policy.invalid(found)
        asked = requests.ask_about_draft(connection, caller, "preview", payload)
    return actions.wait_for_runner(state, response, asked)


@router.post("/plan", responses={202: {"model": schemas.Request}})
def plan_draft(
    state: State,
    caller: Operator,
    response: Response,
    definition: Annotated[dict[str, Any], Body(openapi_examples=DEFINITION_EXAMPLES)],
) -> schemas.Request:
    """Report what a definition would change in its target, before it is saved. Performed by a runner.

    The result is that of `POST /pipelines/{pipeline}/plan`. Pass its `id` to `apply` in `require_plans`.
    """
    parsed = policy.parse(labels.split(definition)[1])
    with state.pool.connection() as connection:
        policy.check(parsed, state.settings, connection)
        payload = {"definition": parsed.model_dump(mode="json", exclude_unset=True)}
        asked = requests.ask_about_draft(connection, caller, "plan", payload)
    return actions.wait_for_runner(state, response, asked)


@router.post("/explain", responses={202: {"model": schemas.ValidationReport}})
def explain_draft(
    state: State,
    caller: Operator,
    response: Response,
    definition: Annotated[dict[str, Any], Body(openapi_examples=DEFINITION_EXAMPLES)],
) -> schemas.ValidationReport:
    """Report what is wrong with a definition that is not saved, and how its query would be run; no rows are read.

    A runner plans it against its source and target. While the definition is not complete, it looks at the query alone.
    `deep.result` has the columns and, in `explain`, what the server expects of the query.
    """
    with state.pool.connection() as connection:
        report = requests.static_report(connection, state.settings, definition)
        asking = requests.what_to_ask(report, definition)
        if asking is None or not requests.somebody_works(connection, state.settings):
            return report
        asked = requests.ask_about_typing(connection, caller, *asking)
    report.deep = actions.wait_for_runner(state, response, asked)
    return requests.with_findings(report, definition)
