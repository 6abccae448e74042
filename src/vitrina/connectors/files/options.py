"""Options of a pipeline that writes Parquet files."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ParquetOptions(BaseModel):
    """How Parquet files are written, whatever names them."""

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
    """Options of one pipeline, in `options.files`."""

    partition_by: list[str] = Field(
        default_factory=list, max_length=5, description="Columns whose values become folders, such as `country=PT`."
    )
