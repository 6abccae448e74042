"""Operators that run a pipeline, or compare a mart with its source."""

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from vitrina_airflow.api import Api, Submitted, Target, VitrinaError, pipeline_path, status_path
from vitrina_airflow.assets import TARGETS, announce
from vitrina_airflow.compat import AirflowException, AirflowTaskTimeout, BaseOperator
from vitrina_airflow.hooks import VitrinaHook
from vitrina_airflow.keys import key_of, numbered
from vitrina_airflow.links import URL_KEY, VitrinaRunLink
from vitrina_airflow.runs import PAUSING, SUCCESS, Answer, counters
from vitrina_airflow.triggers import TIMEOUT, VitrinaRequestTrigger, VitrinaResumedTrigger, VitrinaRunTrigger

REQUEST_KEY = "vitrina_request"
# The reason with which Airflow ends a deferred task after its timeout.
_TIMED_OUT = ("Trigger timeout", "Trigger/execution timeout")
# How long a task that is being killed may take to cancel its run; Airflow does not wait much longer.
_KILL_SECONDS = 4.0
# The triggerer watches the deadline itself; the scheduler acts later, in case no triggerer runs.
_SCHEDULER_LATER = timedelta(seconds=30)


class VitrinaRunPipelineOperator(BaseOperator):
    """Request a run of a pipeline and wait for its end; its counters are the task's result.

    A retry finds the run that the try before it requested, instead of requesting another one. After a run that FAILED
    or was CANCELLED it requests a new one, and so does a task that was cleared. A task that is killed or out of time
    cancels its run. With a paused pipeline, the task waits until a user resumes it.

    :param pipeline: its name or uuid.
    :param since: read again from this cursor value on; with `until`, up to it: a backfill.
    :param vitrina_conn_id: a connection of the type `vitrina`.
    :param poll_seconds: how often to poll if Vitrina's events do not arrive.
    :param deferrable: wait in the triggerer instead of holding a worker.
    """

    template_fields = ("pipeline", "since", "until")
    operator_extra_links = (VitrinaRunLink(),)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        pipeline: str,
        since: str | None = None,
        until: str | None = None,
        vitrina_conn_id: str = VitrinaHook.default_conn_name,
        poll_seconds: float = 10.0,
        deferrable: bool = True,
        **options: Any,
    ) -> None:
        options.setdefault("outlets", [TARGETS])
        super().__init__(**options)
        self.pipeline = pipeline
        self.since = since
        self.until = until
        self.vitrina_conn_id = vitrina_conn_id
        self.poll_seconds = poll_seconds
        self.deferrable = deferrable
        self._target: Target | None = None
        self._key: str | None = None
        self._request: Submitted | None = None
        self._killed = False

    def execute(self, context: Any) -> Any:
        """Request the run and wait for it."""
        return self._ask_and_wait(context)

    def _ask_and_wait(self, context: Any) -> Any:
        api = self._connect()
        before = self._leave_a_paused_one_alone(api, context)
        request, answer = self._attach_or_ask(api, key_of(context, self._wish()), before)
        context["ti"].xcom_push(key=REQUEST_KEY, value=_as_json(request))
        self._show(context, api, request, answer)
        if self.deferrable and not answer.over:
            self._wait_in_triggerer(context, request)
        while not answer.over:
            self._pause_between_looks()
            answer = api.look(request)
        return self._conclude(context, api, answer.status, answer.words, counters(answer.run) if answer.run else None)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """Continue after the triggerer has seen the end, or the deadline."""
        api = self._connect()
        self._request = _asked_by(context, self)
        if event["status"] == TIMEOUT:
            self._cancel(api)
            raise AirflowTaskTimeout(f"execution_timeout of {self.execution_timeout}: {event['words']}")
        return self._conclude(context, api, event["status"], event["words"], event.get("run"))

    def execute_resumed(self, context: Any, event: Mapping[str, Any]) -> Any:
        """Start now that the pipeline is no longer paused."""
        if event["status"] == TIMEOUT:
            raise AirflowTaskTimeout(
                f"execution_timeout of {self.execution_timeout}: pipeline {self.pipeline} is paused"
            )
        if "words" in event:
            raise AirflowException(event["words"])
        return self._ask_and_wait(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Cancel the run when Airflow ends a deferred task after its timeout; otherwise as in every operator."""
        if next_method == "__fail__" and str((next_kwargs or {}).get("error")) in _TIMED_OUT:
            api = self._connect()
            self._request = _asked_by(context, self)
            self._cancel(api)
        return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """Cancel the run that this process has requested, or is requesting.

        Called from a signal handler, perhaps during a request, so it uses nothing that the request holds.
        """
        self._killed = True
        if self._target is None or self._key is None:
            return
        api = Api(self._target, patience_seconds=_KILL_SECONDS)
        try:
            # A request under the same key shows whether the first one arrived; if not, this one is withdrawn at once.
            request = self._request or api.submit(self.pipeline, self._key, self._wish())
            api.cancel(request)
        except VitrinaError as error:
            self.log.warning("The run of pipeline %s may continue: %s", self.pipeline, error)
        finally:
            api.close()

    # --- requesting------------------------------------------------------------------------------------------------

    def _connect(self) -> Api:
        hook = VitrinaHook(self.vitrina_conn_id)
        api = hook.get_conn()
        self._target = api.target
        return api

    def _wish(self) -> dict[str, Any]:
        return {"trigger": "api", "since": self.since, "until": self.until}

    def _leave_a_paused_one_alone(self, api: Api, context: Any) -> dict[str, Any]:
        """Wait while the pipeline is paused, and return its status."""
        while True:
            status = api.get(status_path(self.pipeline))
            if status["status"] not in PAUSING:
                return status
            self.log.info("Pipeline %s is paused: waiting until it is resumed", self.pipeline)
            if self.deferrable:
                trigger = VitrinaResumedTrigger(pipeline=self.pipeline, **self._watching(context))
                self.defer(trigger=trigger, method_name="execute_resumed", timeout=self._time_left(context))
            self._pause_between_looks()

    def _attach_or_ask(self, api: Api, key: str, before: dict[str, Any]) -> tuple[Submitted, Answer]:
        ended_badly = 0
        while True:
            self._key = numbered(key, ended_badly)
            request = api.submit(self.pipeline, self._key, self._wish(), before)
            answer = api.look(request)
            if self._killed:
                raise AirflowException(f"the task was killed while it requested a run of pipeline {self.pipeline}")
            if not (request.replayed and answer.ended_badly):
                break
            ended_badly += 1
        self._request = request
        self.log.info(
            "%s: %s", "Found the run requested before" if request.replayed else "Requested a run", answer.words
        )
        return request, answer

    # --- waiting ---------------------------------------------------------------------------------------------------

    def _wait_in_triggerer(self, context: Any, request: Submitted) -> None:
        # From here on the trigger is responsible for the run.
        self._request = self._key = None
        trigger = VitrinaRunTrigger(
            pipeline=request.pipeline,
            requested_at=request.requested_at,
            backfill=request.backfill,
            **self._watching(context),
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self._time_left(context))

    def _watching(self, context: Any) -> dict[str, Any]:
        deadline = self._deadline(context)
        return {
            "conn_id": self.vitrina_conn_id,
            "poll_seconds": self.poll_seconds,
            "deadline": deadline.isoformat() if deadline else None,
        }

    def _deadline(self, context: Any) -> datetime | None:
        """Compute the deadline, because Airflow 3 does not count the time that a task is deferred."""
        if self.execution_timeout is None:
            return None
        started: datetime = context["ti"].start_date
        return started + self.execution_timeout

    def _time_left(self, context: Any) -> timedelta | None:
        deadline = self._deadline(context)
        if deadline is None:
            return None
        return max(deadline - datetime.now(deadline.tzinfo), timedelta()) + _SCHEDULER_LATER

    def _pause_between_looks(self) -> None:
        if self._killed:
            raise AirflowException(f"the task was killed while it waited for pipeline {self.pipeline}")
        time.sleep(self.poll_seconds)

    # --- ending ----------------------------------------------------------------------------------------------------

    def _conclude(
        self, context: Any, api: Api, status: str | None, words: str, told: dict[str, Any] | None
    ) -> dict[str, Any]:
        # Nothing is left to cancel.
        self._request = self._key = None
        if told is not None:
            context["ti"].xcom_push(key=URL_KEY, value=api.target.run_page(told["run_id"]))
        if status != SUCCESS or told is None:
            raise AirflowException(words)
        self.log.info("%s: %s rows written, %s deleted", words, told["rows_written"], told["rows_deleted"])
        target = api.get(pipeline_path(self.pipeline))["target_table"]
        announce(context, self.outlets, target, told)
        return {**told, "target": target}

    def _show(self, context: Any, api: Api, request: Submitted, answer: Answer) -> None:
        page = api.target.run_page(answer.run["id"]) if answer.run else api.target.pipeline_page(request.pipeline)
        context["ti"].xcom_push(key=URL_KEY, value=page)

    def _cancel(self, api: Api) -> None:
        if self._request is None:
            return
        done = api.cancel(self._request)
        self.log.info("The run of pipeline %s %s", self._request.pipeline, "is cancelled" if done else "was over")


class VitrinaReconcileOperator(BaseOperator):
    """Compare a target with its source, and fail when they differ; the report is the task's result.

    :param level: `quick` counts, `full` compares every row, `sample` random keys.
    :param repair: update the rows that differ; never during a run.
    :param fail_on_difference: fail when rows differ (after the repair, if there is one).
    """

    template_fields = ("pipeline",)
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        pipeline: str,
        level: str = "full",
        repair: bool = False,
        limit: int = 100,
        fail_on_difference: bool = True,
        vitrina_conn_id: str = VitrinaHook.default_conn_name,
        poll_seconds: float = 10.0,
        deferrable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.pipeline = pipeline
        self.level = level
        self.repair = repair
        self.limit = limit
        self.fail_on_difference = fail_on_difference
        self.vitrina_conn_id = vitrina_conn_id
        self.poll_seconds = poll_seconds
        self.deferrable = deferrable

    def execute(self, context: Any) -> dict[str, Any]:
        """Ask a runner and wait for its report. A retry asks again, because a repair is idempotent."""
        api = VitrinaHook(self.vitrina_conn_id).get_conn()
        wish = {"level": self.level, "repair": self.repair, "limit": self.limit}
        request = api.post(pipeline_path(self.pipeline, "reconcile"), wish)
        while request["status"] not in ("DONE", "FAILED"):
            if self.deferrable:
                trigger = VitrinaRequestTrigger(
                    request_id=request["id"], conn_id=self.vitrina_conn_id, poll_seconds=self.poll_seconds
                )
                self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
            time.sleep(self.poll_seconds)
            request = api.get(f"/requests/{request['id']}")
        return self._conclude(request)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the triggerer has seen the report."""
        if "request" not in event:
            raise AirflowException(event["words"])
        return self._conclude(event["request"])

    def _conclude(self, request: Mapping[str, Any]) -> dict[str, Any]:
        report: dict[str, Any] | None = request.get("result")
        if report is None:
            error = request.get("error") or {}
            raise AirflowException(f"pipeline {self.pipeline} was not compared: {error.get('message', error)}")
        different = int(report["different_rows"])
        if different and self.fail_on_difference:
            raise AirflowException(
                f"pipeline {self.pipeline}: {different} rows differ from the source. Next: see the report in the"
                " console, or reconcile with repair=True"
            )
        return {name: value for name, value in report.items() if name not in ("keys", "examples")}


def _as_json(request: Submitted) -> dict[str, Any]:
    return {"pipeline": request.pipeline, "requested_at": request.requested_at, "backfill": request.backfill}


def _asked_by(context: Any, task: BaseOperator) -> Submitted | None:
    """Return the request that this try stored before it was deferred."""
    instance = context["ti"]
    told = instance.xcom_pull(task_ids=task.task_id, key=REQUEST_KEY, map_indexes=getattr(instance, "map_index", -1))
    return Submitted(replayed=False, **told) if told else None
