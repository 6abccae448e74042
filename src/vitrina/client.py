"""The Python client: every call of the API, typed and synchronous. Errors have the messages of the server."""

import http
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote
from uuid import UUID

from vitrina import __version__, answers, calls, errors
from vitrina.answering import Asked, find_answer, was_broken_off
from vitrina.calls import Reply
from vitrina.status import RunStatus, Status

if TYPE_CHECKING:
    import httpx

    from vitrina import schemas
    from vitrina.settings import Settings
else:
    schemas = answers.Models()

Json = Mapping[str, Any]
Model = TypeVar("Model", bound="schemas.Answer")

PREFIX = "/api/v1"
# A refused connection has carried nothing, so a retry is safe for every method.
_CONNECT_ATTEMPTS = 3
_CONNECT_PAUSE_SECONDS = 0.2
_PAGE = 200
_DRAWN = 2000
# By how much a clock may be set back without hiding a run from the caller that waits for it.
_CLOCK_STEP = timedelta(hours=1)
_LOG_PAGE = 500
# What the API sends as files.
_MEDIA_TYPES = {"csv": "text/csv", "json": "application/json", "yaml": "application/yaml"}


class Client:
    """Talk to one API. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        token: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        transport: "httpx.BaseTransport | None" = None,
        read: Callable[[Any, bytes, str], Any] = answers.validated,
    ) -> None:
        self._read = read
        self.url = url.rstrip("/")
        self._shown_url = calls.without_login(self.url)
        self._headers = {"User-Agent": f"vitrina-client/{__version__}", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {_checked(token)}"
        self._timeout_seconds, self._transport = timeout_seconds, transport
        try:
            self._calls = calls.open_calls(self.url, self._headers, timeout_seconds, transport)
        except calls.BadAddress as exc:
            raise self._cannot_connect(exc) from exc

    @classmethod
    def from_settings(cls, settings: "Settings") -> Self:
        return cls(settings.api_url, settings.token.get_secret_value() if settings.token else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._calls.close()

    # --- pipelines ---------------------------------------------------------------------------------------------

    def list_pipelines(
        self,
        *,
        status: Sequence[str] = (),
        enabled: bool | None = None,
        name: str | None = None,
        target: str | None = None,
        labels: Sequence[str] = (),
        sort: str | None = None,
        limit: int | None = None,
    ) -> list[schemas.Pipeline]:
        """List all pipelines, or the first `limit`; `name` is a part of the name, a label is `key=value` or `key`."""
        narrowed: dict[str, Any] = {"status": list(status), "enabled": enabled, "name": name, "target": target}
        narrowed |= {"sort": sort, "label": list(labels)}
        return list(self._pages("/pipelines", schemas.Pipeline, narrowed, limit))

    def home(self, *, hours: int = 24) -> schemas.Home:
        """Get problems, recent runs, upcoming runs and live runners."""
        return self._ask(schemas.Home, "GET", "/home", params={"hours": hours})

    def schedule_times(self, interval: str, *, count: int = 5) -> list[datetime]:
        """List when a schedule would be due from now on."""
        asked = {"interval": interval, "count": count}
        return self._ask(schemas.ScheduleTimes, "GET", "/schedule", params=asked).times

    def graph(self) -> schemas.Graph:
        """Get which pipeline reads what, and which runs after which, of all pipelines."""
        nodes: Json = {}
        edges: list[Json] = []
        cursor, seen = None, set[str]()
        while True:
            reply = self._send("GET", "/graph", params={"limit": _DRAWN, "cursor": cursor})
            with _understood(reply):
                part = reply.json()
                # A table that several parts show is one node.
                nodes = {**nodes, **{node["id"]: node for node in part["nodes"]}}
                edges += part["edges"]
                cursor = _advanced(part.get("next_cursor"), seen, reply.name)
            if cursor is None:
                whole = {"nodes": list(nodes.values()), "edges": edges, "next_cursor": None}
                return self._parsed(schemas.Graph, replace(reply, content=json.dumps(whole).encode()))

    def get_pipeline(self, pipeline: str | UUID) -> schemas.Pipeline:
        return self._ask(schemas.Pipeline, "GET", self._of(pipeline))

    def create_pipeline(self, definition: Json) -> schemas.Pipeline:
        return self._ask(schemas.Pipeline, "POST", "/pipelines", body=definition)

    def update_pipeline(self, pipeline: str | UUID, changes: Json, *, version: int | None = None) -> schemas.Pipeline:
        """Change the given fields; with `version`, only if it is still the current one."""
        return self._ask(
            schemas.Pipeline, "PATCH", self._of(pipeline), body=changes, headers=_if_match(version), repeatable=False
        )

    def delete_pipeline(self, pipeline: str | UUID, *, version: int | None = None) -> None:
        self._delete(self._of(pipeline), headers=_if_match(version))

    def get_tasks(self, pipeline: str | UUID) -> list[schemas.Task]:
        return self._ask(schemas.TaskPlan, "GET", self._of(pipeline, "tasks")).items

    def replace_tasks(
        self, pipeline: str | UUID, tasks: Sequence[Json], *, version: int | None = None
    ) -> list[schemas.Task]:
        body = {"items": [dict(task) for task in tasks]}
        path = self._of(pipeline, "tasks")
        return self._ask(schemas.TaskPlan, "PUT", path, body=body, headers=_if_match(version)).items

    # --- verbs -------------------------------------------------------------------------------------------------

    def run(
        self,
        pipeline: str | UUID,
        *,
        idempotency_key: str | None = None,
        trigger: str = "manual",
        since: str | None = None,
        until: str | None = None,
        accept: Sequence[str] = (),
    ) -> schemas.RunAccepted:
        """Request a run; repeating the request has no effect. With a range, rows of that range are read again.

        `accept` names checks that may fail in this run.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._ask(
            schemas.RunAccepted,
            "POST",
            self._of(pipeline, "run"),
            body={"trigger": trigger, "since": since, "until": until} | ({"accept": list(accept)} if accept else {}),
            headers=headers,
            # The server recognises a repeated key, so the call may be repeated even if its answer was lost.
            repeatable=bool(idempotency_key),
        )

    def resume(self, pipeline: str | UUID) -> schemas.RunAccepted:
        """Resume a paused pipeline where it stopped; no other run is requested."""
        return self._ask(schemas.RunAccepted, "POST", self._of(pipeline, "resume"))

    def pause(self, pipeline: str | UUID) -> schemas.Accepted:
        return self._ask(schemas.Accepted, "POST", self._of(pipeline, "pause"))

    def cancel(self, pipeline: str | UUID, *, requested_at: datetime | None = None) -> schemas.Accepted:
        """Withdraw a waiting run, or end the current one now; rows that it committed stay.

        With `requested_at`, only the run of that request; `Conflict` when it has ended or was replaced by another.
        """
        body = {"run_requested_at": requested_at.isoformat()} if requested_at else None
        return self._ask(schemas.Accepted, "POST", self._of(pipeline, "cancel"), body=body)

    def enable(self, pipeline: str | UUID) -> schemas.Accepted:
        return self._ask(schemas.Accepted, "POST", self._of(pipeline, "enable"))

    def disable(self, pipeline: str | UUID) -> schemas.Accepted:
        return self._ask(schemas.Accepted, "POST", self._of(pipeline, "disable"))

    def reload_config(self, pipeline: str | UUID) -> schemas.Accepted:
        return self._ask(schemas.Accepted, "POST", self._of(pipeline, "reload-config"))

    def reset_state(self, pipeline: str | UUID, *, cursor: str | None = None) -> schemas.Checkpoint:
        """Start from the beginning, or from a cursor value."""
        return self._ask(schemas.Checkpoint, "POST", self._of(pipeline, "reset-state"), body={"cursor": cursor})

    # --- status and history ------------------------------------------------------------------------------------

    def status(self, pipeline: str | UUID) -> schemas.PipelineStatus:
        return self._ask(schemas.PipelineStatus, "GET", self._of(pipeline, "status"))

    def state(self, pipeline: str | UUID) -> schemas.Checkpoint:
        return self._ask(schemas.Checkpoint, "GET", self._of(pipeline, "state"))

    def lag(self, pipeline: str | UUID) -> schemas.Lag:
        return self._ask(schemas.Lag, "GET", self._of(pipeline, "lag"))

    def list_runs(
        self,
        pipeline: str | UUID | None = None,
        *,
        status: Sequence[str] = (),
        since: datetime | None = None,
        labels: Sequence[str] = (),
        limit: int | None = 20,
    ) -> list[schemas.Run]:
        """List runs, newest first; `labels` (`key=value`, or `key`) narrows those of all pipelines."""
        path = "/runs" if pipeline is None else self._of(pipeline, "runs")
        narrowed = {"status": list(status), "since": since.isoformat() if since else None, "label": list(labels)}
        return list(self._pages(path, schemas.Run, narrowed, limit))

    def get_run(self, run_id: str | UUID) -> schemas.Run:
        return self._ask(schemas.Run, "GET", f"/runs/{_quoted(run_id)}")

    def run_log(self, run_id: str | UUID, *, after: int = 0, level: str = "info") -> list[schemas.LogLine]:
        """List what the run logged, oldest first, after line `after`, from `level` upward."""
        path, lines = f"/runs/{_quoted(run_id)}/logs", list[schemas.LogLine]()
        while True:
            asked = {"after": after, "level": level, "limit": _LOG_PAGE}
            found = self._ask(schemas.Page[schemas.LogLine], "GET", path, params=asked).items
            lines += found
            if len(found) < _LOG_PAGE:
                return lines
            if found[-1].id <= after:
                raise answers.unlike_ours(f"{self._shown_url}{PREFIX}{path} repeated line {after} of the log")
            after = found[-1].id

    def wait_for_run(
        self,
        pipeline: str | UUID,
        *,
        requested_at: datetime,
        asked: Asked = "run",
        on_progress: Callable[[schemas.PipelineStatus], None] | None = None,
        timeout_seconds: float | None = None,
        poll_seconds: float = 0.5,
    ) -> schemas.Run:
        """Wait for the finished run that answers what was accepted (`RunAccepted.run_requested_at` and `.asked`).

        A run whose runner was lost or stopped is continued by another run; wait for that one.
        Raise `TransientError` when `timeout_seconds` pass first, `Conflict` when the request was withdrawn.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            # Read before its runs, which then include every run that this status shows as started or ended.
            seen = self.status(pipeline)
            if on_progress:
                on_progress(seen)
            goes_on = seen.status in (Status.RUN_REQUESTED, Status.RUNNING, Status.PAUSE_REQUESTED)
            runs = self.list_runs(pipeline, since=requested_at, limit=None)[::-1]
            run = find_answer(runs, requested_at, asked)
            if run and run.status != RunStatus.RUNNING and not (goes_on and was_broken_off(run)):
                return run
            if not goes_on and run is None and (dated_back := self._answer_dated_back(pipeline, requested_at)):
                return dated_back
            if not goes_on and not runs:
                raise errors.Conflict(f"pipeline {seen.pipeline} is {seen.status} and the run did not start")
            if not goes_on and run is None:
                return runs[-1]  # no other run will come, so this is the result
            if deadline is not None and time.monotonic() >= deadline:
                raise errors.TransientError(
                    f"pipeline {seen.pipeline} is still {seen.status} after {timeout_seconds:g} s;"
                    " it continues without this client"
                )
            time.sleep(poll_seconds)

    def _answer_dated_back(self, pipeline: str | UUID, requested_at: datetime) -> "schemas.Run | None":
        """Find a run that answers but started before its request, because the database's clock was set back."""
        earlier = self.list_runs(pipeline, since=requested_at - _CLOCK_STEP, limit=None)
        return next((run for run in earlier if run.answers_request == requested_at), None)

    # --- what a runner performs --------------------------------------------------------------------------------

    def validate(self, pipeline: str | UUID) -> schemas.ValidationReport:
        return self._ask(schemas.ValidationReport, "POST", self._of(pipeline, "validate"))

    def validate_definition(self, definition: Json) -> schemas.ValidationReport:
        """Check a definition that is not saved."""
        return self._ask(schemas.ValidationReport, "POST", "/validate", body=definition)

    def explain_definition(self, definition: Json) -> schemas.ValidationReport:
        """Check a definition that is not saved against its source, and see how its query would be run."""
        return self._ask(schemas.ValidationReport, "POST", "/explain", body=definition)

    def preview(self, pipeline: str | UUID, *, limit: int = 20) -> schemas.Request:
        """Get the first rows after the transforms. `result` is there once the request is DONE."""
        return self._ask(schemas.Request, "POST", self._of(pipeline, "preview"), body={"limit": limit})

    def reconcile(
        self, pipeline: str | UUID, *, level: str = "full", repair: bool = False, limit: int = 100
    ) -> schemas.Request:
        """Compare the mart with its source. `result` is the report, once the request is DONE."""
        body = {"level": level, "repair": repair, "limit": limit}
        return self._ask(schemas.Request, "POST", self._of(pipeline, "reconcile"), body=body)

    def plan(self, pipeline: str | UUID) -> schemas.Request:
        """Request a plan of the next full load. `result` is the plan, once the request is DONE."""
        return self._ask(schemas.Request, "POST", self._of(pipeline, "plan"))

    def plan_definition(self, definition: Json) -> schemas.Request:
        """Request a plan of a definition that is not saved."""
        return self._ask(schemas.Request, "POST", "/plan", body=definition)

    def get_plan(self, plan_id: str | UUID) -> schemas.Plan:
        return self._ask(schemas.Plan, "GET", f"/plans/{_quoted(plan_id)}")

    def list_plans(self, pipeline: str | UUID, *, limit: int = 20) -> list[schemas.PlanSummary]:
        """List plans of a pipeline, newest first."""
        return self._ask(
            schemas.Page[schemas.PlanSummary], "GET", self._of(pipeline, "plans"), params={"limit": limit}
        ).items

    def profile(self, pipeline: str | UUID) -> schemas.Request:
        """Request a profile of the target. `result` is the profile, once the request is DONE."""
        return self._ask(schemas.Request, "POST", self._of(pipeline, "profile"))

    def last_reconcile(self, pipeline: str | UUID) -> schemas.Request:
        return self._ask(schemas.Request, "GET", self._of(pipeline, "reconcile"))

    def differences(self, pipeline: str | UUID, file_format: Literal["csv", "json"]) -> bytes:
        """Get the keys that the latest finished report lists, as a file."""
        path, sent_as = self._of(pipeline, "reconcile", "differences"), _MEDIA_TYPES[file_format]
        return self._file(path, sent_as, {"format": file_format}).content

    def get_request(self, request_id: str | UUID) -> schemas.Request:
        return self._ask(schemas.Request, "GET", f"/requests/{_quoted(request_id)}")

    def wait_for_request(
        self, request: schemas.Request, *, timeout_seconds: float = 60.0, poll_seconds: float = 0.5
    ) -> schemas.Request:
        """Wait until a runner is done with the request, and return it. Raise `TransientError` when none is in time."""
        deadline = time.monotonic() + timeout_seconds
        while not request.is_finished:
            if time.monotonic() >= deadline:
                raise errors.TransientError(
                    f"no runner has finished {request.kind} {request.id} within {timeout_seconds:g} s;"
                    " is one running? (`vitrina runner`)"
                )
            time.sleep(poll_seconds)
            request = self.get_request(request.id)
        return request

    # --- versions ----------------------------------------------------------------------------------------------

    def list_versions(self, pipeline: str | UUID) -> list[schemas.Version]:
        """List versions of a definition, newest first."""
        return list(self._pages(self._of(pipeline, "versions"), schemas.Version, {}, None))

    def compare_versions(self, pipeline: str | UUID, before: int, after: int) -> schemas.VersionComparison:
        params = {"from": before, "to": after}
        return self._ask(schemas.VersionComparison, "GET", self._of(pipeline, "versions/compare"), params=params)

    def roll_back(self, pipeline: str | UUID, version: int) -> schemas.Pipeline:
        """Make the definition of an older version the newest one."""
        return self._ask(schemas.Pipeline, "POST", self._of(pipeline, f"versions/{version}/rollback"))

    # --- files -------------------------------------------------------------------------------------------------

    def apply(
        self,
        documents: str | Mapping[str, str],
        *,
        dry_run: bool = False,
        prune: bool = False,
        source: str = "file",
        require_plans: Sequence[str | UUID] = (),
    ) -> schemas.ApplyReport:
        """Apply YAML documents to the pipelines, all of them or none. `source` becomes `managed_by`.

        With a mapping of file names to their texts, errors name file, line and column. With `require_plans`, apply only
        what these plans cover.
        """
        body: dict[str, Any] = {"dry_run": dry_run, "prune": prune, "managed_by": source}
        if require_plans:
            body["require_plans"] = [str(plan) for plan in require_plans]
        if isinstance(documents, str):
            body["documents"] = documents
        else:
            body["files"] = [{"path": path, "text": text} for path, text in documents.items()]
        return self._ask(schemas.ApplyReport, "POST", "/apply", body=body)

    def export(self, pipelines: Sequence[str] = ()) -> str:
        """Get the pipelines as YAML documents, byte for byte the same for the same definitions."""
        reply = self._file("/export", _MEDIA_TYPES["yaml"], {"name": list(pipelines)})
        with _understood(reply):
            return reply.text

    def pipeline_schema(self) -> dict[str, Any]:
        """Get the JSON schema of such a document, for editors."""
        reply = self._send("GET", "/schema/pipeline.json")
        with _understood(reply):
            return dict(reply.json())

    # --- the installation --------------------------------------------------------------------------------------

    def list_runners(self) -> list[schemas.Runner]:
        return self._ask(schemas.Page[schemas.Runner], "GET", "/runners").items

    def list_transforms(self) -> list[schemas.Transform]:
        return self._ask(schemas.Page[schemas.Transform], "GET", "/transforms").items

    def list_connectors(self) -> list[schemas.Connector]:
        return self._ask(schemas.Page[schemas.Connector], "GET", "/connectors").items

    def list_feeds(self) -> list[schemas.Feed]:
        return self._ask(schemas.Page[schemas.Feed], "GET", "/feeds").items

    def list_connections(self) -> list[schemas.Connection]:
        return self._ask(schemas.Page[schemas.Connection], "GET", "/connections").items

    def add_connection(self, name: str, url: str) -> schemas.Connection:
        """Store a connection in the metastore, sealed; its URL is never shown again."""
        return self._ask(schemas.Connection, "POST", "/connections", body={"name": name, "url": url})

    def replace_connection(self, name: str, url: str) -> schemas.Connection:
        return self._ask(schemas.Connection, "PUT", f"/connections/{_quoted(name)}", body={"url": url})

    def remove_connection(self, name: str) -> None:
        self._delete(f"/connections/{_quoted(name)}")

    def list_targets(self) -> schemas.Targets:
        found = part = self._ask(schemas.Targets, "GET", "/targets")
        seen = set[str]()
        while (cursor := _advanced(part.next_cursor, seen, f"{self._shown_url}{PREFIX}/targets")) is not None:
            part = self._ask(schemas.Targets, "GET", "/targets", params={"cursor": cursor})
            found.items += part.items
        found.next_cursor = None
        return found

    def list_audit(self, *, object: str | None = None, limit: int | None = 50) -> list[schemas.AuditEntry]:
        """List entries of the audit log, newest first; `object` is `pipeline:<name>` or `token:<name>`."""
        return list(self._pages("/audit", schemas.AuditEntry, {"object": object}, limit))

    def list_dead_letters(
        self, pipeline: str | UUID | None = None, *, resolved: bool = False, limit: int | None = 50
    ) -> list[schemas.DeadLetter]:
        narrowed = {"pipeline": str(pipeline) if pipeline else None, "resolved": resolved}
        return list(self._pages("/dead-letters", schemas.DeadLetter, narrowed, limit))

    def list_dead_letter_groups(
        self, pipeline: str | UUID | None = None, *, resolved: bool = False
    ) -> list[schemas.DeadLetterGroup]:
        """List dead letters grouped by pipeline and reason, the largest group first."""
        narrowed = {"pipeline": str(pipeline) if pipeline else None, "resolved": resolved}
        return list(self._pages("/dead-letters/groups", schemas.DeadLetterGroup, narrowed, None))

    def replay_dead_letters(
        self, pipeline: str | UUID, letters: Sequence[int] | None = None, *, reason: str | None = None
    ) -> schemas.Request:
        """Replay open dead letters with the current rows of the source; `letters` or a `reason` select some of them."""
        body: dict[str, Any] = {"pipeline": str(pipeline)}
        if letters:
            body["letters"] = list(letters)
        if reason is not None:
            body["reason"] = reason
        return self._ask(schemas.Request, "POST", "/dead-letters/replay", body=body)

    def notifications(self) -> schemas.Notifications:
        """Get the receivers that are notified of failures, and the latest messages."""
        return self._ask(schemas.Notifications, "GET", "/notifications")

    def test_notifications(self) -> schemas.Request:
        """Send a test message to every receiver. `result` says what each answered, once the request is DONE."""
        return self._ask(schemas.Request, "POST", "/notifications/test")

    def events(self, *, last_event_id: int | None = None) -> Generator[schemas.Event, None, None]:
        """Yield events as they happen, until you `close` it; with `last_event_id`, first what came after it."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        try:
            streams = calls.HttpxCalls(self.url, self._headers, self._timeout_seconds, self._transport)
            with closing(streams), streams.lines(f"{PREFIX}/events", headers) as (reply, lines):
                if reply.is_error:
                    raise _error_of(reply)
                _check_media_type(reply, headers["Accept"])
                yield from _events(lines)
        except calls.CallFailed as exc:
            raise self._cannot_connect(exc) from exc

    def create_token(self, name: str, role: str, *, expires_in_days: int | None = None) -> schemas.NewToken:
        """Create a token. The answer is the only one with the secret."""
        body = {"name": name, "role": role, "expires_in_days": expires_in_days}
        return self._ask(schemas.NewToken, "POST", "/tokens", body=body)

    def list_tokens(self) -> list[schemas.Token]:
        return self._ask(schemas.Page[schemas.Token], "GET", "/tokens").items

    def revoke_token(self, name: str) -> None:
        self._delete(f"/tokens/{_quoted(name)}")

    def health(self) -> schemas.Health:
        """Get the health. No error is raised when it is bad: look at `status`."""
        return self._parsed(schemas.Health, self._request("GET", "/health", repeatable=True))

    def version(self) -> schemas.VersionInfo:
        return self._parsed(schemas.VersionInfo, self._request("GET", "/version", repeatable=True))

    # --- transport ---------------------------------------------------------------------------------------------

    def _of(self, pipeline: str | UUID, *rest: str) -> str:
        return "/".join(["/pipelines", _quoted(pipeline), *rest])

    def _pages(self, path: str, model: type[Model], narrowed: Json, limit: int | None) -> Iterator[Model]:
        left, cursor, seen = limit, None, set[str]()
        while left is None or left > 0:
            params = dict(narrowed) | {"limit": min(left or _PAGE, _PAGE), "cursor": cursor}
            page = self._ask(schemas.Page[model], "GET", path, params=params)  # type: ignore[valid-type]
            yield from page.items
            left = None if left is None else left - len(page.items)
            cursor = _advanced(page.next_cursor, seen, f"{self._shown_url}{PREFIX}{path}")
            if cursor is None:
                return

    def _ask(self, model: type[Model], method: str, path: str, **request: Any) -> Model:
        return self._parsed(model, self._send(method, path, **request))

    def _parsed(self, model: type[Model], reply: Reply) -> Model:
        found: Model = self._read(model, reply.content, reply.name)
        return found

    def _file(self, path: str, media_type: str, params: Json) -> Reply:
        reply = self._send("GET", path, params=params)
        _check_media_type(reply, media_type)
        return reply

    def _delete(self, path: str, headers: Json | None = None) -> None:
        """Delete what is there. An API answers without content, and anything else may have deleted nothing."""
        reply = self._send("DELETE", path, headers=headers)
        if reply.status_code != http.HTTPStatus.NO_CONTENT:
            raise answers.unlike_ours(reply.name)

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Json | None = None,
        body: Json | None = None,
        headers: Json | None = None,
        repeatable: bool | None = None,
    ) -> Reply:
        response = self._request(
            method,
            PREFIX + path,
            params={name: value for name, value in (params or {}).items() if value is not None},
            content=None if body is None else _as_json(body),
            headers={"Content-Type": "application/json", **(headers or {})}
            if body is not None
            else dict(headers or {}),
            repeatable=method == "GET" if repeatable is None else repeatable,
        )
        if response.is_error:
            raise _error_of(response)
        return response

    def _request(self, method: str, path: str, *, repeatable: bool, **request: Any) -> Reply:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._calls.request(method, path, **request)
            except calls.BadAddress as exc:
                raise self._cannot_connect(exc) from exc
            except calls.NotConnected as exc:
                if attempt >= _CONNECT_ATTEMPTS:
                    raise self._cannot_connect(exc) from exc
            except calls.CallFailed as exc:
                if not repeatable or attempt >= _CONNECT_ATTEMPTS:
                    raise self._cannot_connect(exc) from exc
            time.sleep(_CONNECT_PAUSE_SECONDS * attempt)

    def _cannot_connect(self, exc: calls.CallFailed) -> errors.VitrinaError:
        if isinstance(exc, calls.BadAddress):
            return errors.ConfigError(f"VITRINA_API_URL {self._shown_url!r} is not an http:// or https:// URL")
        if isinstance(exc, calls.NotConnected | calls.ConnectTimedOut):
            return errors.CannotConnect(
                f"no Vitrina API answers at {self._shown_url}: start one with `vitrina dev` (everything in one)"
                " or `vitrina api`, or set VITRINA_API_URL to its address"
            )
        return errors.CannotConnect(f"the Vitrina API at {self._shown_url} closed the connection: {exc}")


def _checked(token: str) -> str:
    """Refuse a token that no header can carry, without repeating it: the error of the library would show it."""
    if any(not "!" <= letter <= "~" for letter in token):
        raise errors.ConfigError(
            "VITRINA_TOKEN contains a space, a line break or another character that no token has:"
            " set it to the one line that `vitrina tokens create` printed"
        )
    return token


def _quoted(part: str | UUID) -> str:
    # Such a part would leave the path, which then means something else.
    if str(part) in ("", ".", ".."):
        raise errors.NotFound(f"{str(part)!r} is neither a name nor an id: take one from the list that shows them")
    return quote(str(part), safe="")


def _as_json(body: Json) -> bytes:
    import orjson  # most calls have no body

    return orjson.dumps(dict(body))


def _advanced(cursor: str | None, seen: set[str], source: str) -> str | None:
    """Return the cursor of the next page. One that was sent before would repeat the same pages without end."""
    if cursor in seen:
        raise answers.unlike_ours(f"{source} sent the cursor {cursor!r} twice")
    if cursor is not None:
        seen.add(cursor)
    return cursor


def _check_media_type(reply: Reply, expected: str) -> None:
    """Refuse a page that something else than an API sent, where the content itself says nothing about its sender."""
    if reply.content_type.partition(";")[0].strip().lower() != expected:
        raise answers.unlike_ours(reply.name)


@contextmanager
def _understood(reply: Reply) -> Iterator[None]:
    """Translate what goes wrong while an answer without a model is read."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as exc:
        raise answers.unlike_ours(reply.name) from exc


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _events(lines: Iterator[str]) -> Iterator[schemas.Event]:
    """Parse server-sent events: `data:` lines up to an empty one. Comments and other fields are ignored."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").lstrip())
        elif not line and data:
            yield answers.validated(schemas.Event, "\n".join(data).encode())
            data = []


_BY_STATUS: dict[int, type[errors.RequestError]] = {
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    412: errors.PreconditionFailed,
    429: errors.TooManyRequests,
}


def _address(location: str) -> str:
    """Return where a redirect leads, without what a login page is told in its query."""
    return calls.without_login(location.partition("?")[0])


def _error_of(response: Reply) -> errors.VitrinaError:
    """Turn the server's problem document into the error of the same meaning."""
    if response.location and 300 <= response.status_code < 400:
        return errors.CannotConnect(
            f"{response.name}, a redirect to {_address(response.location)}, which is not followed:"
            " set VITRINA_API_URL to the address of the API itself"
        )
    try:
        problem = answers.validated(schemas.Problem, response.content, response.name)
    except errors.CannotConnect as unlike:
        return unlike
    if response.status_code == 422:
        fields = tuple(errors.FieldError(field.path, field.message, field.code) for field in problem.errors)
        return errors.Invalid(problem.detail, fields)
    if response.status_code >= 500:
        return errors.CannotConnect(problem.detail)
    return _BY_STATUS.get(response.status_code, errors.RequestError)(problem.detail)
