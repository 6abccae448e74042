"""Define the connection type `vitrina`, and the hook that calls its API."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from vitrina_airflow import FIELD_BEHAVIOUR
from vitrina_airflow.api import Api, Target, VitrinaError
from vitrina_airflow.compat import AIRFLOW_3, AirflowException, BaseHook


class VitrinaHook(BaseHook):
    """Call one Vitrina API; `api` has the calls. The token of the connection needs the role `operator`."""

    conn_name_attr = "vitrina_conn_id"
    default_conn_name = "vitrina_default"
    conn_type = "vitrina"
    hook_name = "Vitrina"

    def __init__(self, vitrina_conn_id: str = default_conn_name, **options: Any) -> None:
        super().__init__(**options)
        self.vitrina_conn_id = vitrina_conn_id
        self._api: Api | None = None

    if not AIRFLOW_3:  # Airflow 3 reads them from `get_provider_info`

        @staticmethod
        def get_ui_field_behaviour() -> dict[str, Any]:
            """Show only the fields that an API needs: a URL and a token."""
            return {name.replace("-", "_"): value for name, value in FIELD_BEHAVIOUR.items()}

        @staticmethod
        def get_connection_form_widgets() -> dict[str, Any]:
            """Define form fields for values without a standard field."""
            from flask_appbuilder.fieldwidgets import BS3TextFieldWidget
            from wtforms import StringField

            return {
                "console_url": StringField("Console URL", widget=BS3TextFieldWidget()),
                "timeout_seconds": StringField("Timeout in seconds", widget=BS3TextFieldWidget()),
            }

    def get_conn(self) -> Api:
        """Return the API client; the hook always returns the same one."""
        if self._api is None:
            self._api = Api(self.target())
        return self._api

    def target(self) -> Target:
        """Return the address of the API, and the token."""
        return target_of(self.get_connection(self.vitrina_conn_id))

    def list_pipelines(
        self, *, labels: Mapping[str, str] | None = None, enabled: bool | None = True
    ) -> list[dict[str, Any]]:
        """List all pipelines whose labels have these values; enabled and disabled ones with `enabled=None`."""
        narrowed = {} if enabled is None else {"enabled": "true" if enabled else "false"}
        wanted = (labels or {}).items()
        return [found for found in self.get_conn().pages("/pipelines", narrowed) if wanted <= found["labels"].items()]

    def test_connection(self) -> tuple[bool, str]:
        """Ask the API for the caller's name and role, for the button *Test* of the connection form."""
        try:
            api = Api(self.target(), patience_seconds=0)
            try:
                me = api.get("/me")
            finally:
                api.close()
        except (VitrinaError, AirflowException, ValueError) as error:
            return False, str(error)
        if me["role"] not in ("operator", "admin"):
            return False, f"the token of {me['name']} has the role {me['role']}: running pipelines needs operator"
        return True, f"Vitrina answers; this connection is {me['name']} with the role {me['role']}"


def target_of(connection: Any) -> Target:
    """Read a connection: the host is a URL or a host; the password is the token."""
    host = (connection.host or "").rstrip("/")
    if not host:
        raise ValueError(
            f"connection {connection.conn_id} has no host: set it to the URL of the Vitrina API,"
            " such as https://vitrina.example.org"
        )
    if "://" not in host:
        local = host in ("localhost", "127.0.0.1", "[::1]")
        host = f"{connection.schema or ('http' if local else 'https')}://{host}"
    if connection.port and urlsplit(host).port is None:
        host = f"{host}:{connection.port}"
    extra = connection.extra_dejson
    return Target(
        host,
        connection.password or None,
        float(extra.get("timeout_seconds") or Target.timeout_seconds),
        (extra.get("console_url") or "").rstrip("/") or None,
    )
