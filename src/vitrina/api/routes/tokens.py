"""`/tokens`: create, list and revoke API tokens."""

from typing import Annotated

from fastapi import APIRouter, Path

from vitrina import schemas
from vitrina.api.requests import TokenRequest
from vitrina.api.security import Admin, GuardedRoute
from vitrina.api.state import State
from vitrina.schemas import Page
from vitrina.services import tokens
from vitrina.services.callers import Role
from vitrina.store import tokens as token_rows

router = APIRouter(tags=["installation"], route_class=GuardedRoute)


@router.get("/tokens")
def list_tokens(state: State, caller: Admin) -> Page[schemas.Token]:
    with state.pool.connection() as connection:
        found = token_rows.list_all(connection)
    return Page(items=[schemas.Token.model_validate(row) for row in found], next_cursor=None)


@router.post("/tokens", status_code=201)
def create_token(state: State, caller: Admin, body: TokenRequest) -> schemas.NewToken:
    """Create a token. It is shown in this answer and never again."""
    with state.pool.connection() as connection:
        row, secret = tokens.create(
            connection, caller, name=body.name, role=Role(body.role), expires_in_days=body.expires_in_days
        )
    return schemas.NewToken.model_validate(row | {"token": secret})


@router.delete("/tokens/{name}", status_code=204)
def revoke_token(state: State, caller: Admin, name: Annotated[str, Path(max_length=100)]) -> None:
    with state.pool.connection() as connection:
        tokens.revoke(connection, caller, name)
