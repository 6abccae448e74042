"""Wait for a run that a schedule, a person or another DAG requested."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from vitrina_airflow.api import Submitted
from vitrina_airflow.compat import AirflowException, BaseSensorOperator, PokeReturnValue
from vitrina_airflow.hooks import VitrinaHook
from vitrina_airflow.runs import SUCCESS, Answer, counters
from vitrina_airflow.triggers import VitrinaRunTrigger


class VitrinaRunSensor(BaseSensorOperator):
    """Wait for a run: the one named by `run_id`, else the first that starts at `since` or later.

    Fail when that run fails. A run whose runner was lost is continued by another, which the sensor then waits for.

    :param since: an ISO timestamp; without it, the end of the DAG run's data interval, or when the DAG run was due.
    """

    template_fields = ("pipeline", "run_id", "since")
    ui_color = "#fef7e0"

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        run_id: str | None = None,
        since: str | None = None,
        vitrina_conn_id: str = VitrinaHook.default_conn_name,
        deferrable: bool = True,
        **options: Any,
    ) -> None:
        options.setdefault("poke_interval", 10.0)
        super().__init__(**options)
        self.pipeline = pipeline
        self.run_id = run_id
        self.since = since
        self.vitrina_conn_id = vitrina_conn_id
        self.deferrable = deferrable

    def execute(self, context: Any) -> Any:
        """Check once here, then continue in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        watched = self._watched(context)
        answer = VitrinaHook(self.vitrina_conn_id).get_conn().look(watched)
        if answer.over and answer.run:
            return _verdict(answer.status, answer.words, counters(answer.run))
        trigger = VitrinaRunTrigger(
            conn_id=self.vitrina_conn_id,
            poll_seconds=float(self.poke_interval),
            pipeline=watched.pipeline,
            requested_at=watched.requested_at,
            backfill=watched.backfill,
            owns_run=False,
        )
        return self.defer(
            trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=float(self.timeout))
        )

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the triggerer has seen the run end."""
        return _verdict(event["status"], event["words"], event.get("run"))

    def poke(self, context: Any) -> Any:
        """Check once, in a worker."""
        answer: Answer = VitrinaHook(self.vitrina_conn_id).get_conn().look(self._watched(context))
        if not answer.over or answer.run is None:
            return PokeReturnValue(is_done=False)
        told = _verdict(answer.status, answer.words, counters(answer.run))
        return PokeReturnValue(is_done=True, xcom_value=told)

    def _watched(self, context: Any) -> Submitted:
        if self.run_id:
            run = VitrinaHook(self.vitrina_conn_id).get_conn().get(f"/runs/{self.run_id}")
            backfill = bool(run.get("backfill"))
            return Submitted(run["pipeline"], run["started_at"], replayed=False, backfill=backfill, asked=False)
        if not self.pipeline:
            raise AirflowException("VitrinaRunSensor needs a pipeline or a run_id")
        return Submitted(self.pipeline, self.since or _due(context), replayed=False, asked=False)


def _due(context: Any) -> str:
    run = context["dag_run"]
    # In Airflow 3, a DAG run that a person triggered has no data interval.
    due = context.get("data_interval_end") or getattr(run, "run_after", None) or run.start_date
    return str(due.isoformat())


def _verdict(status: str | None, words: str, told: dict[str, Any] | None) -> dict[str, Any]:
    if status != SUCCESS or told is None:
        raise AirflowException(words)
    return told
