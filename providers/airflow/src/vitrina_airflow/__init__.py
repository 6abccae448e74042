"""Vitrina for Apache Airflow: run pipelines, wait for them, compare marts with their sources."""

from typing import Any

__version__ = "0.1.0"


def get_provider_info() -> dict[str, Any]:
    """Describe this package to Airflow's provider manager."""
    return {
        "package-name": "airflow-provider-vitrina",
        "name": "Vitrina",
        "description": "Run Vitrina pipelines over HTTP.",
        "versions": [__version__],
        "connection-types": [
            {
                "connection-type": "vitrina",
                "hook-class-name": "vitrina_airflow.hooks.VitrinaHook",
                "hook-name": "Vitrina",
                "conn-fields": {
                    "console_url": {
                        "label": "Console URL",
                        "description": "Address of the console, if it differs from that of the API.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "timeout_seconds": {
                        "label": "Timeout in seconds",
                        "schema": {"type": ["number", "null"], "default": 30},
                    },
                },
                "ui-field-behaviour": FIELD_BEHAVIOUR,
            }
        ],
        "extra-links": ["vitrina_airflow.links.VitrinaRunLink"],
    }


FIELD_BEHAVIOUR: dict[str, Any] = {
    "hidden-fields": ["login", "schema"],
    "relabeling": {"host": "URL or host", "password": "Token"},
    "placeholders": {"host": "https://vitrina.example.org", "password": "vitrina_…, with the role operator"},
}
