"""`/notifications`: receivers of notifications, recent messages, and a test message."""

from fastapi import APIRouter, Response

from vitrina import schemas
from vitrina.api.routes import actions
from vitrina.api.security import Admin, GuardedRoute, Viewer
from vitrina.api.state import State
from vitrina.services import requests
from vitrina.store import notifications

router = APIRouter(tags=["installation"], route_class=GuardedRoute)

LATEST = 20


@router.get("/notifications")
def get_notifications(state: State, caller: Viewer, response: Response) -> schemas.Notifications:
    """List the receivers that runners have, and the latest messages of all pipelines; addresses are never shown."""
    with state.pool.connection() as connection:
        latest = notifications.list_latest(connection, limit=LATEST)
        asked = requests.ask_for_receivers(connection, caller)
    told = actions.wait_for_runner(state, Response(), asked)
    return schemas.Notifications.model_validate({"receivers": (told.result or {}).get("receivers"), "latest": latest})


@router.post("/notifications/test", responses={202: {"model": schemas.Request}})
def test_notifications(state: State, caller: Admin, response: Response) -> schemas.Request:
    """Send a test message to every receiver, from a runner. `result.receivers` says what each of them answered."""
    with state.pool.connection() as connection:
        asked = requests.ask_to_notify(connection, caller)
    return actions.wait_for_runner(state, response, asked)
