"""`/connections`: the databases that pipelines may name. URLs are accepted and never shown."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field, SecretStr

from vitrina import schemas
from vitrina.api.routes import actions
from vitrina.api.security import Admin, GuardedRoute, Operator, Viewer
from vitrina.api.state import State
from vitrina.definition import Strict
from vitrina.schemas import Page
from vitrina.services import connections, requests

router = APIRouter(tags=["installation"], route_class=GuardedRoute)

Name = Annotated[str, Path(max_length=100)]


class ConnectionUrl(Strict):
    """Represent the URL of a connection."""

    url: SecretStr = Field(
        max_length=connections.MAX_URL_LENGTH,
        examples=["postgresql://reader:PASSWORD@db.example:5432/shop"],
        description="Sealed at once with a runner's public key; never shown again.",
    )


class NewConnection(ConnectionUrl):
    """Represent a connection to store in the metastore."""

    name: str = Field(pattern=connections.NAME, examples=["shop"])


@router.get("/connections")
def list_connections(state: State, caller: Viewer) -> Page[schemas.Connection]:
    """List connections by name, with who set them. Their URLs are not shown."""
    with state.pool.connection() as connection:
        return Page(items=connections.list_all(connection, state.settings), next_cursor=None)


@router.post("/connections", status_code=201)
def add_connection(state: State, caller: Admin, body: NewConnection) -> schemas.Connection:
    """Store a new connection in the metastore, sealed with a runner's public key, so that the API cannot open it."""
    with state.changing() as connection:
        connections.add(connection, state.settings, caller, body.name, body.url.get_secret_value())
        return connections.get(connection, state.settings, body.name)


@router.put("/connections/{name}")
def replace_connection(state: State, caller: Admin, name: Name, body: ConnectionUrl) -> schemas.Connection:
    """Replace the URL of a connection; runs that start from now on use it."""
    with state.changing() as connection:
        connections.replace(connection, state.settings, caller, name, body.url.get_secret_value())
        return connections.get(connection, state.settings, name)


@router.delete("/connections/{name}", status_code=204)
def remove_connection(state: State, caller: Admin, name: Name) -> None:
    """Delete a connection from the metastore. 409 while pipelines use it."""
    with state.changing() as connection:
        connections.remove(connection, state.settings, caller, name)


@router.get("/connections/{name}/tables", responses={202: {"model": schemas.Request}})
def list_tables(state: State, caller: Viewer, response: Response, name: Name) -> schemas.Request:
    """List the tables and columns that queries on this connection may read. Performed by a runner."""
    with state.pool.connection() as connection:
        asked = requests.ask_for_tables(connection, caller, connections.require(connection, state.settings, name))
    return actions.wait_for_runner(state, response, asked)


@router.post("/connections/{name}/test", responses={202: {"model": schemas.Request}})
def try_connection(state: State, caller: Admin, response: Response, name: Name) -> schemas.Request:
    """Log in and report what is wrong, with the statement that corrects it. Performed by a runner.

    The answer contains the address and the login of the connection, so it is for admins only.
    """
    with state.pool.connection() as connection:
        asked = requests.ask_to_try(connection, caller, connections.require(connection, state.settings, name))
    return actions.wait_for_runner(state, response, asked)


class CopyRequest(Strict):
    """Represent the request to suggest a definition. Fields that are left out are suggested."""

    table: str = Field(min_length=1, max_length=63, examples=["orders"])
    table_schema: str = Field(alias="schema", min_length=1, max_length=63, examples=["shop"])
    target: str | None = Field(None, max_length=200, examples=["analytics.orders"])
    name: str | None = Field(None, max_length=100, description="Name of the pipeline. Default: that of the target.")
    key: list[Annotated[str, Field(max_length=63)]] = Field(default_factory=list, max_length=32, examples=[["id"]])


@router.post("/connections/{name}/copy", responses={202: {"model": schemas.Request}})
def suggest_copy(state: State, caller: Operator, response: Response, name: Name, body: CopyRequest) -> schemas.Request:
    """Suggest the definition that copies a table, with key, cursor, mode and guarantee. Performed by a runner.

    `result.reasons` says why. Nothing is created: send `result.definition` to `POST /pipelines`.
    """
    with state.pool.connection() as connection:
        known = connections.require(connection, state.settings, name)
        payload = {"connection": known, **body.model_dump(by_alias=True, exclude_none=True)}
        asked = requests.ask_for_copy(connection, caller, payload)
    return actions.wait_for_runner(state, response, asked)
