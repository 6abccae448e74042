"""Define the options of a pipeline that runs on a Spark cluster."""

from pydantic import BaseModel, ConfigDict, Field


class SparkOptions(BaseModel):
    """Options under `options.spark`."""

    model_config = ConfigDict(extra="forbid")

    connection: str = Field(
        "cluster",
        pattern=r"[A-Za-z][A-Za-z0-9_]{0,62}",
        description="The cluster, by the name of its connection: `VITRINA_CONN_CLUSTER=sc://host:15002`.",
    )
