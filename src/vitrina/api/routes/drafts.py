"""`/preview`: what a definition that is not saved yet would read."""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from vitrina import answers
from vitrina.api import bodies
from vitrina.api.routes import verbs
from vitrina.api.security import GuardedRoute, Operator
from vitrina.api.state import State
from vitrina.services import policy, requests

router = APIRouter(tags=["verbs"], route_class=GuardedRoute)


class DraftPreviewWish(bodies.PreviewWish):
    """Which rows to show."""

    definition: dict[str, Any] = Field(examples=[bodies.FILM_DIM])


@router.post("/preview", responses={202: {"model": answers.Request}})
def preview_draft(state: State, caller: Operator, response: Response, wish: DraftPreviewWish) -> answers.Request:
    """The first rows of a definition that is not saved; nothing is written. Performed by a runner."""
    definition = policy.parse(wish.definition)
    payload = {"definition": definition.model_dump(mode="json", exclude_unset=True), "limit": wish.limit}
    with state.pool.connection() as connection:
        policy.check(definition, state.settings, connection)
        asked = requests.ask_about_draft(connection, caller, "preview", payload)
    return verbs.wait_for_runner(state, response, asked)
