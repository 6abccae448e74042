"""Define the options of a pipeline that writes Iceberg tables."""

from pydantic import Field

from vitrina.connectors.files.options import ParquetOptions


class IcebergOptions(ParquetOptions):
    """Set the options of one pipeline, in `options.iceberg`."""

    expire_days: int | None = Field(
        5,
        ge=0,
        le=3650,
        description="Days for which a replaced snapshot can still be read. Null: snapshots are never expired here.",
    )
    keep_snapshots: int = Field(3, ge=1, le=10_000, description="So many snapshots are kept, however old they are.")
    orphan_days: int = Field(
        3,
        ge=0,
        le=3650,
        description="Days after which files of metadata that no snapshot names are removed. 0 is safe only where one"
        " pipeline, and no other program, writes the table.",
    )
