"""Define `options.clickhouse` of a pipeline: how its table is built.

Every expression is parsed here; none reaches the server as it was written.
"""

import re
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# Functions that a partition may be computed with. Others could read files or other servers.
_PARTITION_FUNCTIONS = frozenset({
    "toDate", "toMonday", "toStartOfDay", "toStartOfHour", "toStartOfMonth", "toStartOfQuarter", "toStartOfWeek",
    "toStartOfYear", "toYYYYMM", "toYYYYMMDD", "toYear",
})  # fmt: skip
_PARTITION = re.compile(rf"(?:(?P<function>{_NAME})\((?P<argument>{_NAME})\)|(?P<column>{_NAME}))")
_TTL = re.compile(
    rf"(?P<column>{_NAME})\s*\+\s*INTERVAL\s+(?P<number>\d{{1,6}})\s+(?P<unit>SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|YEAR)",
    re.IGNORECASE,
)
_TABLE_SETTINGS = frozenset({
    "index_granularity", "index_granularity_bytes", "max_bytes_to_merge_at_max_space_in_pool", "max_parts_in_total",
    "merge_with_ttl_timeout", "min_bytes_for_wide_part", "min_rows_for_wide_part", "parts_to_delay_insert",
    "parts_to_throw_insert", "storage_policy", "ttl_only_drop_parts",
})  # fmt: skip

Engine = Literal["ReplacingMergeTree", "MergeTree", "ReplicatedReplacingMergeTree", "ReplicatedMergeTree"]


class ClickHouseOptions(BaseModel):
    """Set how the table of one pipeline is built, in `options.clickhouse`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    engine: Engine = Field(
        "ReplacingMergeTree",
        description="`MergeTree` holds no versions: only for full loads, which are read faster and cannot be repaired.",
    )
    order_by: list[str] | None = Field(
        None, max_length=32, description="Columns that the table is sorted by; with versions, those of `target_key`."
    )
    partition_by: str | None = Field(
        None,
        max_length=200,
        description="A column, or a function of a date: `toYYYYMM(created)`.",
        examples=["toYear(day)"],
    )
    ttl: str | None = Field(
        None,
        max_length=200,
        description="When rows expire: `day + INTERVAL 90 DAY`. With versions, by a column of the key.",
    )
    settings: dict[str, int | str] = Field(
        default_factory=dict, description="Settings of the table, such as `index_granularity` and `storage_policy`."
    )
    as_string: list[str] = Field(
        default_factory=list, description="Columns that are written as their text, such as a numeric without limits."
    )
    tombstone_hours: int = Field(
        168, ge=1, le=87_600, description="Deleted rows are removed permanently after this many hours."
    )

    @field_validator("partition_by")
    @classmethod
    def _partition_is_understood(cls, value: str | None) -> str | None:
        if value is not None:
            found = _PARTITION.fullmatch(value.strip())
            if not found or (found["function"] and found["function"] not in _PARTITION_FUNCTIONS):
                raise ValueError(f"write a column, or one of {', '.join(sorted(_PARTITION_FUNCTIONS))} of a column")
        return value

    @field_validator("ttl")
    @classmethod
    def _ttl_is_understood(cls, value: str | None) -> str | None:
        if value is not None and not _TTL.fullmatch(value.strip()):
            raise ValueError("write COLUMN + INTERVAL NUMBER UNIT, such as `day + INTERVAL 90 DAY`")
        return value

    @field_validator("settings")
    @classmethod
    def _settings_are_of_tables(cls, value: dict[str, int | str]) -> dict[str, int | str]:
        unknown = sorted(value.keys() - _TABLE_SETTINGS)
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: settings of a table are {', '.join(sorted(_TABLE_SETTINGS))}")
        return value

    @model_validator(mode="after")
    def _names_are_names(self) -> Self:
        for name in self.order_by or ():
            if not re.fullmatch(_NAME, name):
                raise ValueError(f"order_by: {name!r} is not the name of a column")
        return self

    @property
    def is_versioned(self) -> bool:
        return "Replacing" in self.engine

    @property
    def partition(self) -> tuple[str | None, str] | None:
        """Return the function, if any, and the column."""
        found = _PARTITION.fullmatch(self.partition_by.strip()) if self.partition_by else None
        return (found["function"], found["argument"] or found["column"]) if found else None

    @property
    def expiry(self) -> tuple[str, int, str] | None:
        """Return the column, the number and the unit."""
        found = _TTL.fullmatch(self.ttl.strip()) if self.ttl else None
        return (found["column"], int(found["number"]), found["unit"].upper()) if found else None
