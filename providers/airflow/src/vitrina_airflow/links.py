"""Add a button to the task that opens the run in Vitrina's console."""

from typing import Any

from vitrina_airflow.compat import BaseOperatorLink, XCom

URL_KEY = "vitrina_run_url"


class VitrinaRunLink(BaseOperatorLink):
    """Open the run, or the pipeline until a runner has started the run."""

    name = "Vitrina run"

    @property
    def xcom_key(self) -> str:
        """Name the XCom that Airflow 3 shows, which exists while the task still waits."""
        return URL_KEY

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Read the link that the task has stored."""
        return str(XCom.get_value(ti_key=ti_key, key=URL_KEY) or "")
