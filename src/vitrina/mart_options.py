"""Define options of marts: history, rows that left the source, and how a table is created."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from vitrina import schedule
from vitrina.errors import InvalidField
from vitrina.sentences import said_again, say

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]

# Postgres cuts longer names, by bytes; and it has these columns in every table.
_LONGEST_NAME_BYTES = 63
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def _can_be_added(name: str) -> str:
    size = len(name.encode())
    if size > _LONGEST_NAME_BYTES:
        raise ValueError(say("definition.column_long", column=name, size=size, most=_LONGEST_NAME_BYTES))
    if name in _SYSTEM_COLUMNS:
        raise ValueError(say("definition.column_of_system", column=name))
    return name


# A column that a run adds to the table of a mart.
AddedColumn = Annotated[ColumnName, AfterValidator(_can_be_added)]


class MartOption(BaseModel):
    """Refuse unknown fields and silent conversions, as in every part of a definition."""

    model_config = ConfigDict(extra="forbid", strict=True)


class History(MartOption):
    """Keep every state of a row, with columns for the time during which it was valid."""

    valid_from: AddedColumn = Field(
        "valid_from", description="`timestamptz`: time of the snapshot in which the state was first seen."
    )
    valid_to: AddedColumn = Field(
        "valid_to", description="`timestamptz`: time of the first snapshot without the state, or NULL."
    )
    current: AddedColumn = Field("is_current", description="`boolean`: whether `valid_to` is NULL.")
    current_view: bool = Field(False, description="Keep a view `<mart>_current` of the current rows.")
    unique_by: Literal["valid_from", "valid_to"] = Field(
        "valid_from",
        description=(
            "The column that, with `target_key`, is unique in a new table. `valid_from`: as its primary key, and a"
            " second index keeps current rows apart. `valid_to`: as its only unique constraint, so that a change makes"
            " one index entry instead of three. Such a table has no primary key: no foreign key can refer to a"
            " state, and in a publication that sends updates it needs REPLICA IDENTITY FULL, because without it the"
            " server refuses the changes of a run."
        ),
    )
    exclusion: bool = Field(
        False,
        description=(
            "Create the new table with an exclusion constraint, so that the server itself refuses overlapping states"
            " of one key. Keys other than numbers and dates need the extension `btree_gist`."
        ),
    )

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.valid_from, self.valid_to, self.current

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(say("definition.history_names", names=", ".join(self.columns)))
        return self


class Deletes(MartOption):
    """Configure what happens to rows that left the source, and how an incremental pipeline finds them."""

    scan: str | None = Field(
        None,
        max_length=200,
        description=(
            "How often the keys of source and target of an incremental pipeline are compared, like schedule_interval:"
            " 6h, PT6H, or cron. Default: never."
        ),
        examples=["6h"],
    )
    soft: AddedColumn | None = Field(
        None,
        description=(
            "`timestamptz` column of the mart: rows that left the source stay, with the time at which a run noticed"
            " it. Default: they are deleted."
        ),
    )

    keep: bool = Field(
        False,
        description=(
            "Rows that left the source stay in the target unchanged: a full load removes none. The word `none` in"
            " place of the object means the same."
        ),
    )

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        other = "soft" if self.soft else "scan" if self.scan else None
        if self.keep and other:
            raise ValueError(say("definition.deletes_none_and", option=other))
        return self

    @field_validator("scan")
    @classmethod
    def _scan_is_understood(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                schedule.check(value)
        except InvalidField as exc:
            raise ValueError(said_again(exc.message, field="scan")) from exc
        return value


_DELETES_WORDS: dict[str, dict[str, Any]] = {"none": {"keep": True}, "hard": {}}


def _deletes_of_word(value: object) -> object:
    """Accept a single word: `none` keeps rows, `hard` deletes them, which is the default."""
    return _DELETES_WORDS.get(value, value) if isinstance(value, str) else value


DeletesOption = Annotated[
    Deletes, BeforeValidator(_deletes_of_word, json_schema_input_type=Literal["none", "hard"] | Deletes)
]


class Partitions(MartOption):
    """Partition a new table by one column of its key: by its hash, or by ranges of time."""

    hash: ColumnName | None = Field(None, description="A column of target_key whose hash chooses the partition.")
    partitions: int = Field(8, ge=2, le=1_000, description="Number of partitions by `hash`.")
    range: ColumnName | None = Field(
        None,
        description=(
            "A date or timestamp column of target_key. Each range of time has a partition, which is created when its"
            " first row arrives."
        ),
    )
    every: Literal["day", "month", "year"] = Field(
        "month", description="Length of a partition by `range`; those of a timestamptz begin at midnight in UTC."
    )

    @property
    def column(self) -> str:
        return self.hash or self.range or ""

    @model_validator(mode="after")
    def _is_cut_one_way(self) -> Self:
        if (self.hash is None) == (self.range is None):
            raise ValueError(say("definition.partition_ways"))
        return self


# Methods whose indexes have one column.
_OF_ONE_COLUMN = ("hash", "spgist")


class Index(MartOption):
    """Represent an index of a new table, in addition to that of its key."""

    columns: list[ColumnName] = Field(min_length=1, max_length=32, description="Columns of the index, in order.")
    unique: bool = Field(False, description="Whether the index is unique.")
    method: Literal["btree", "hash", "gin", "gist", "brin", "spgist"] = Field("btree", description="Name of the index.")

    @model_validator(mode="after")
    def _method_can(self) -> Self:
        if self.unique and self.method != "btree":
            raise ValueError(say("definition.index_unique", method=self.method))
        if len(self.columns) > 1 and self.method in _OF_ONE_COLUMN:
            raise ValueError(say("definition.index_columns", method=self.method, columns=", ".join(self.columns)))
        return self


class Grant(MartOption):
    """Represent the privileges of a role on a new table."""

    role: ColumnName = Field(description="A role of the database, or `public` for all of them.")
    privileges: list[Literal["SELECT", "REFERENCES", "TRIGGER"]] = Field(
        ["SELECT"], min_length=1, max_length=3, description="Privileges. Only the pipeline may write."
    )


class TableOptions(MartOption):
    """Configure how Vitrina creates the table of a mart. An existing table is never changed, only compared."""

    partition_by: Partitions | None = Field(None, description="Partition the table.")
    indexes: list[Index] = Field(
        default_factory=list, max_length=50, description=("Indexes in addition to that of the key.")
    )
    comment: str | None = Field(None, max_length=10_000, description="Comment of the table.")
    comments: dict[ColumnName, str] = Field(default_factory=dict, description="Comments of columns, by name.")
    grants: list[Grant] = Field(
        default_factory=list, max_length=100, description=("Roles that may use the table, with their privileges.")
    )
