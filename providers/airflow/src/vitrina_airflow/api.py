"""Call the HTTP API from Airflow, synchronously and asynchronously. Requests survive a restart of the server."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from vitrina_airflow import __version__
from vitrina_airflow.runs import Answer, answers, began_after, judge, looks_over, moment
from vitrina_airflow.stream import News

Json = dict[str, Any]

PREFIX = "/api/v1"
# A restarted server is back by then. A trigger waits longer, because it occupies no worker.
PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_PAGE = 200
_AT_ONCE = 20
# By how much a clock may be set back without hiding a run from the task that waits for it.
_CLOCK_STEP = timedelta(hours=1)
_PASSING = (429, 502, 503, 504)


class VitrinaError(Exception):
    """The API refused the request; the message is that of the API, `status` the HTTP status."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


class VitrinaUnreachable(VitrinaError):
    """No server answered, or not as a Vitrina API does."""


@dataclass(frozen=True)
class Target:
    """Hold the address of the API, and the token."""

    url: str
    token: str | None = None
    timeout_seconds: float = 30.0
    console_url: str | None = None

    def options(self) -> dict[str, Any]:
        headers = {"User-Agent": f"airflow-provider-vitrina/{__version__}", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        # Proxies of the environment are for other machines, not for a server on this one.
        local = (urlsplit(self.url).hostname or "") in ("localhost", "127.0.0.1", "::1")
        return {
            "base_url": self.url + PREFIX,
            "headers": headers,
            "timeout": self.timeout_seconds,
            "trust_env": not local,
        }

    def run_page(self, run_id: str) -> str:
        return f"{self.console_url or self.url}/ui/runs/{quote(run_id, safe='')}"

    def pipeline_page(self, pipeline: str) -> str:
        return f"{self.console_url or self.url}/ui/pipelines/{quote(pipeline, safe='')}"


@dataclass(frozen=True)
class Submitted:
    """Represent a requested run. `replayed`: the key was known before this call, so the run may be an older one.

    Without `asked`, it is the first run since then, whoever requested it.
    """

    pipeline: str
    requested_at: str
    replayed: bool
    backfill: bool = False
    asked: bool = True


class Api:
    """Call one API synchronously, from workers."""

    def __init__(self, target: Target, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.target = target
        self._patience = patience_seconds
        self._http = httpx.Client(**target.options())

    def close(self) -> None:
        self._http.close()

    def submit(self, pipeline: str, key: str, wish: Mapping[str, Any], before: Json | None = None) -> Submitted:
        """Request a run under a key. A lost call is repeated, and stays one request.

        `before` is the pipeline's status just before. It distinguishes an older request from one that was sent twice.
        """
        answer, tries = self._send("POST", _of(pipeline, "run"), json=dict(wish), headers={"Idempotency-Key": key})
        told = answer.json()
        replayed = "idempotent-replayed" in answer.headers
        if tries > 1:
            # The key may be known from the first copy of this same call, which is not an older request.
            replayed = replayed and began_after(told["run_requested_at"], before)
        backfill = bool(wish.get("since") or wish.get("until"))
        return Submitted(told["pipeline"], told["run_requested_at"], replayed, backfill)

    def look(self, request: Submitted) -> Answer:
        """Return the progress of the request."""
        status = self.get(_of(request.pipeline, "status"))
        runs: list[Json] = []
        if looks_over(status, request.requested_at):
            runs = list(self.runs_since(request.pipeline, request.requested_at))[::-1]
            runs = runs or answers_dated_back(self.runs_since(request.pipeline, before_a_clock_step(request)), request)
        elif status.get("run") and status["run"]["status"] == "RUNNING":
            runs = [status["run"]]
        return judge(status, runs, request.requested_at, backfill=request.backfill, asked=request.asked)

    def cancel(self, request: Submitted) -> bool:
        """Cancel the run of this request and no other. Return False when there is nothing to cancel."""
        try:
            self._send("POST", _of(request.pipeline, "cancel"), json={"run_requested_at": request.requested_at})
        except VitrinaError as error:
            if error.status == 409:
                return False
            raise
        return True

    def runs_since(self, pipeline: str, since: str) -> Iterator[Json]:
        """List runs, newest first."""
        yield from self.pages(_of(pipeline, "runs"), {"since": since})

    def pages(self, path: str, narrowed: Mapping[str, Any]) -> Iterator[Json]:
        cursor: str | None = None
        while True:
            page = self.get(path, {**narrowed, "limit": _PAGE, **({"cursor": cursor} if cursor else {})})
            yield from page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        found: Json = self._send("GET", path, params=dict(params or {}))[0].json()
        return found

    def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """Send a request that may be repeated."""
        found: Json = self._send("POST", path, json=dict(body))[0].json()
        return found

    def _send(self, method: str, path: str, **request: Any) -> tuple[httpx.Response, int]:
        deadline = time.monotonic() + self._patience
        tries = 0
        while True:
            tries += 1
            try:
                return _checked(self._http.request(method, path, **request)), tries
            except (httpx.TransportError, VitrinaUnreachable) as error:
                if time.monotonic() >= deadline:
                    raise _unreachable(self.target, error) from error
            time.sleep(_PAUSE_SECONDS)


class AsyncApi:
    """Call one API asynchronously, from the triggerer. It only reads, except for `cancel`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # One client for all triggers of a process: one connection each could be a thousand.
        limits = httpx.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE, keepalive_expiry=3.0)
        self._http = httpx.AsyncClient(**target.options(), limits=limits)
        # The pool scans all waiting requests each time that one is served, so they wait here instead.
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self.news = News(target.options())

    async def look(self, request: Submitted) -> Answer:
        """Return the progress of the request, as `Api.look`."""
        status = await self.get(_of(request.pipeline, "status"))
        runs: list[Json] = []
        if looks_over(status, request.requested_at):
            runs = (await self.runs_since(request.pipeline, request.requested_at))[::-1]
            runs = runs or answers_dated_back(
                await self.runs_since(request.pipeline, before_a_clock_step(request)), request
            )
        elif status.get("run") and status["run"]["status"] == "RUNNING":
            runs = [status["run"]]
        return judge(status, runs, request.requested_at, backfill=request.backfill, asked=request.asked)

    async def runs_since(self, pipeline: str, since: str) -> list[Json]:
        found: list[Json] = []
        cursor: str | None = None
        while True:
            params = {"since": since, "limit": _PAGE, **({"cursor": cursor} if cursor else {})}
            page = await self.get(_of(pipeline, "runs"), params)
            found += page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        async with self._turn:
            response = await self._http.get(path, params=dict(params or {}))
        found: Json = _checked(response).json()
        return found

    async def cancel(self, request: Submitted) -> None:
        """Cancel the run of this request and no other, if there is one."""
        body = {"run_requested_at": request.requested_at}
        try:
            _checked(await self._http.post(_of(request.pipeline, "cancel"), json=body))
        except VitrinaUnreachable:
            raise
        except VitrinaError:
            return

    async def patiently(self, ask: Callable[["AsyncApi"], Awaitable[Any]], *, pause_seconds: float) -> Any:
        """Repeat the request until the server answers. The run continues meanwhile."""
        while True:
            try:
                return await ask(self)
            except (httpx.TransportError, VitrinaUnreachable):
                await asyncio.sleep(pause_seconds)


def before_a_clock_step(request: Submitted) -> str:
    return (moment(request.requested_at) - _CLOCK_STEP).isoformat()


def answers_dated_back(runs: Iterable[Json], request: Submitted) -> list[Json]:
    """Find runs that started before their request, because the clock of Vitrina's database was set back in between."""
    return [run for run in runs if request.asked and answers(run, request.requested_at)]


def status_path(pipeline: str) -> str:
    return _of(pipeline, "status")


def pipeline_path(pipeline: str, *rest: str) -> str:
    return _of(pipeline, *rest)


def _of(pipeline: str, *rest: str) -> str:
    return "/".join(["/pipelines", quote(pipeline, safe=""), *rest])


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code in _PASSING:
        raise VitrinaUnreachable(f"{response.request.url} answered {response.status_code}", response.status_code)
    if not response.is_error:
        return response
    try:
        words = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        raise VitrinaError(
            f"{response.request.url} answered {response.status_code}, but not as a Vitrina API does: check the URL of"
            " the connection",
            response.status_code,
        ) from None
    raise VitrinaError(words, response.status_code)


def _unreachable(target: Target, error: Exception) -> VitrinaUnreachable:
    reason = str(error) or type(error).__name__
    return VitrinaUnreachable(
        f"no Vitrina API answers at {target.url} ({reason}): check the host of the connection, and that"
        " `vitrina api` runs"
    )
