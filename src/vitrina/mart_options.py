"""Options of tables in Postgres: the history that a mart keeps."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from vitrina.sentences import say

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[^\x00]+$")]


class MartOption(BaseModel):
    """Unknown fields and silent conversions are refused, as in every part of a definition."""

    model_config = ConfigDict(extra="forbid", strict=True)


class History(MartOption):
    """Keep every state of a row: the columns that say from when until when it was valid."""

    valid_from: ColumnName = Field("valid_from", description="`timestamptz`: the snapshot in which it was first seen.")
    valid_to: ColumnName = Field("valid_to", description="`timestamptz`: the first in which it was no longer; or NULL.")
    current: ColumnName = Field("is_current", description="`boolean`: whether `valid_to` is NULL.")
    current_view: bool = Field(False, description="Keep a view `<mart>_current` of the current rows.")
    exclusion: bool = Field(
        False,
        description="Make the new table with an exclusion constraint, by which the server itself refuses states of one"
        " key that overlap. Keys other than numbers and dates need the extension `btree_gist`.",
    )

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.valid_from, self.valid_to, self.current

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(say("definition.history_names", names=", ".join(self.columns)))
        return self
