"""Watch requests from the triggerer, asynchronously. A trigger never requests a run itself."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import sync_to_async

from vitrina_airflow.api import AsyncApi, Submitted, VitrinaError, status_path
from vitrina_airflow.compat import BaseHook, BaseTrigger, TriggerEvent
from vitrina_airflow.hooks import target_of
from vitrina_airflow.runs import PAUSING, counters, moment

ERROR, TIMEOUT, RESUMED = "ERROR", "TIMEOUT", "RESUMED"
# A changed connection is noticed within this time.
_CLIENT_SECONDS = 300.0
_RETRY_SECONDS = 2.0
# Airflow waits half a minute for a cancelled trigger.
_CANCEL_SECONDS = 25.0
# While events arrive.
_SELDOM_SECONDS = 60.0

_clients: dict[tuple[int, str], tuple[float, "asyncio.Future[AsyncApi]"]] = {}


async def shared_api(conn_id: str) -> AsyncApi:
    """Return the client of all triggers of this process. It has few sessions, and reads the connection once."""
    place = (id(asyncio.get_running_loop()), conn_id)
    made, future = _clients.get(place, (0.0, None))
    if future is None or time.monotonic() - made > _CLIENT_SECONDS or (future.done() and future.exception()):
        future = asyncio.ensure_future(_connect(conn_id))
        _clients[place] = (time.monotonic(), future)
    # A trigger that is cancelled here does not cancel it for the others.
    return await asyncio.shield(future)


async def _connect(conn_id: str) -> AsyncApi:
    if hasattr(BaseHook, "aget_connection"):
        connection = await BaseHook.aget_connection(conn_id)
    else:
        connection = await sync_to_async(BaseHook.get_connection)(conn_id)
    return AsyncApi(target_of(connection))


class _Watch(BaseTrigger):
    """Poll until there is a result, or the deadline has passed.

    It polls every `poll_seconds`. If the pipeline is known by name and its events arrive, it polls on each
    event and once a minute.
    """

    pipeline_name: str | None = None

    def __init__(self, *, conn_id: str, poll_seconds: float, deadline: str | None = None) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.poll_seconds = poll_seconds
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what another triggerer needs to continue; it contains no token."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", self.arguments()

    def arguments(self) -> dict[str, Any]:
        return {"conn_id": self.conn_id, "poll_seconds": self.poll_seconds, "deadline": self.deadline}

    async def look(self, api: AsyncApi) -> dict[str, Any] | None:
        """Return the result for the task, or None to poll again later."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch, and yield exactly one event."""
        try:
            told = await self._watch()
        except VitrinaError as error:
            told = {"status": ERROR, "words": str(error)}
        yield TriggerEvent(told)

    async def _watch(self) -> dict[str, Any]:
        # Triggers that start together would otherwise always poll together.
        await asyncio.sleep(random.uniform(0, min(1.0, self.poll_seconds)))  # noqa: S311
        api, news = None, asyncio.Event()
        with ExitStack() as listening:
            while True:
                current = await shared_api(self.conn_id)
                if current is not api:
                    api = current
                    listening.close()
                    news = listening.enter_context(api.news.about(self.pipeline_name))
                news.clear()
                try:
                    async with asyncio.timeout(self._seconds_left()):
                        told = await api.patiently(self.look, pause_seconds=_RETRY_SECONDS)
                except TimeoutError:
                    return {"status": TIMEOUT, "words": f"still not over at {self.deadline}"}
                if told is not None:
                    return dict(told)
                await self._pause(news, seldom=api.news.arrive and self.pipeline_name is not None)

    async def _pause(self, news: asyncio.Event, *, seldom: bool) -> None:
        """Wait for an event, or until the next poll is due, because events may be lost."""
        seconds = self.poll_seconds
        if seldom:
            seconds = max(seconds, random.uniform(0.7, 1) * _SELDOM_SECONDS)  # noqa: S311
        left = self._seconds_left()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if left is None else min(seconds, max(left, 0))):
                await news.wait()

    def _seconds_left(self) -> float | None:
        if self.deadline is None:
            return None
        return (moment(self.deadline) - datetime.now(UTC)).total_seconds()


class VitrinaRunTrigger(_Watch):
    """Watch the run of one request. It requests none, so a restarted triggerer only polls again."""

    def __init__(
        self,
        *,
        pipeline: str,
        requested_at: str,
        backfill: bool = False,
        owns_run: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.request = Submitted(pipeline, requested_at, replayed=False, backfill=backfill, asked=owns_run)
        self.owns_run = owns_run
        self.pipeline_name = pipeline

    def arguments(self) -> dict[str, Any]:
        request = {name: getattr(self.request, name) for name in ("pipeline", "requested_at", "backfill")}
        return super().arguments() | request | {"owns_run": self.owns_run}

    async def look(self, api: AsyncApi) -> dict[str, Any] | None:
        answer = await api.look(self.request)
        # A sensor waits for a run that is requested elsewhere, perhaps later.
        if not answer.over or (answer.run is None and not self.owns_run):
            return None
        return {
            "status": answer.status,
            "words": answer.words,
            "run": counters(answer.run) if answer.run else None,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch. Before Airflow 3.3, this also detects that a person has ended the task."""
        try:
            async for event in super().run():
                yield event
        except asyncio.CancelledError:
            if not hasattr(BaseTrigger, "on_kill") and await asyncio.shield(_was_ended(self.task_instance)):
                await asyncio.shield(self.on_kill())
            raise

    async def _watch(self) -> dict[str, Any]:
        told = await super()._watch()
        if told["status"] == TIMEOUT:
            # Here, because Airflow 2 ends a task after its timeout without calling it.
            await self.on_kill()
        return told

    async def on_kill(self) -> None:
        """Cancel the run: a person marked the task, or cleared it. Not called when a triggerer restarts."""
        if not self.owns_run:
            return
        api = await shared_api(self.conn_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await api.patiently(lambda api: api.cancel(self.request), pause_seconds=_RETRY_SECONDS)


class VitrinaResumedTrigger(_Watch):
    """Wait until the pipeline is no longer paused."""

    def __init__(self, *, pipeline: str, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = pipeline

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"pipeline": self.pipeline}

    async def look(self, api: AsyncApi) -> dict[str, Any] | None:
        status = await api.get(status_path(self.pipeline))
        return None if status["status"] in PAUSING else {"status": RESUMED}


class VitrinaRequestTrigger(_Watch):
    """Watch a request to a runner, such as a reconciliation."""

    def __init__(self, *, request_id: str, **options: Any) -> None:
        super().__init__(**options)
        self.request_id = request_id

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"request_id": self.request_id}

    async def look(self, api: AsyncApi) -> dict[str, Any] | None:
        request = await api.get(f"/requests/{self.request_id}")
        return {"status": request["status"], "request": request} if request["status"] in ("DONE", "FAILED") else None


async def _was_ended(instance: Any) -> bool:
    """Return whether the task is no longer deferred. A stopping triggerer leaves it deferred; a person does not."""
    if instance is None:
        return False
    try:
        return bool(await sync_to_async(_state_of)(instance) != "deferred")
    except Exception:  # noqa: BLE001 - a triggerer that goes away cannot always ask; its successor goes on watching
        return False


def _state_of(instance: Any) -> str | None:
    """Return the task's state from Airflow's database, as this version lets a triggerer see it."""
    if hasattr(instance, "refresh_from_db"):
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session

        with create_session() as session:
            found = session.get(TaskInstance, _identity(instance))
            return str(found.state.value if hasattr(found.state, "value") else found.state) if found else None
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = RuntimeTaskInstance.get_task_states(
        dag_id=instance.dag_id, task_ids=[instance.task_id], run_ids=[instance.run_id], map_index=instance.map_index
    )
    name = instance.task_id if instance.map_index < 0 else f"{instance.task_id}_{instance.map_index}"
    state = states.get(instance.run_id, {}).get(name)
    return str(state) if state is not None else None


def _identity(instance: Any) -> Any:
    from sqlalchemy import inspect

    return inspect(instance).identity
