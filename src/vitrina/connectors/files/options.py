"""Define the options of a pipeline that writes Parquet files, or reads files."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ParquetOptions(BaseModel):
    """Set how Parquet files are written, by any connector that writes them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    compression: Literal["zstd", "snappy", "none"] = Field("zstd", description="How columns are compressed.")
    file_mb: int = Field(
        32, ge=1, le=64, description="Rows of a file, in MB of memory; compressed files are several times smaller."
    )
    row_group_mb: int = Field(16, ge=1, le=64, description="Rows of a row group, in MB of memory.")
    other_types: Literal["refuse", "string"] = Field(
        "refuse", description="What happens to columns of types that Parquet cannot hold exactly."
    )


class FilesOptions(ParquetOptions):
    """Set the options of one pipeline, in `options.files`."""

    partition_by: list[str] = Field(
        default_factory=list, max_length=5, description="Columns whose values become folders, such as `country=PT`."
    )
    follow: str | None = Field(
        None,
        max_length=1000,
        description="Of a source in mode incremental whose query reads several places: the one, as it is written there,"
        " that is read file by file. The others are read whole.",
    )
    threads: int = Field(2, ge=1, le=64, description="Of a source: what DuckDB uses besides the runner's own.")
    spill_mb: int = Field(
        10_240, ge=0, le=10**7, description="Of a source: disk for what does not fit into memory, in MB."
    )
