"""Import names that differ between Airflow 2.11 and 3."""

try:
    from airflow.sdk import (
        Asset,
        AssetAlias,
        BaseHook,
        BaseOperator,
        BaseOperatorLink,
        BaseSensorOperator,
        PokeReturnValue,
    )
    from airflow.sdk.exceptions import AirflowTaskTimeout
    from airflow.sdk.execution_time.xcom import XCom

    AIRFLOW_3 = True
except ImportError:
    from airflow.datasets import Dataset as Asset
    from airflow.datasets import DatasetAlias as AssetAlias
    from airflow.exceptions import AirflowTaskTimeout
    from airflow.hooks.base import BaseHook
    from airflow.models import BaseOperator, BaseOperatorLink, XCom
    from airflow.sensors.base import BaseSensorOperator, PokeReturnValue

    AIRFLOW_3 = False

from airflow.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = [
    "AIRFLOW_3",
    "AirflowException",
    "AirflowTaskTimeout",
    "Asset",
    "AssetAlias",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "PokeReturnValue",
    "TriggerEvent",
    "XCom",
]
