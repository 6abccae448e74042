"""Find the groups of files of an unfinished load, keep those that count, and trim those that count in part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vitrina.connectors.files import names, parquet
from vitrina.connectors.files.columns import ROW_BITS, VERSION, Layout
from vitrina.connectors.files.folder import UNFINISHED
from vitrina.connectors.files.manifest import DataFile
from vitrina.connectors.files.objects import Objects
from vitrina.connectors.files.scan import Reader
from vitrina.connectors.files.writer import Group
from vitrina.connectors.files.writer import refuse_repeats as refuse_repeats_in
from vitrina.ports.batch import PartId
from vitrina.ports.checkpoint import Accepted


def listed(objects: Objects, folder: str, prefix: str) -> list[Group]:
    """Return the groups whose files are in the folder of a load."""
    found: dict[tuple[int, str, int, int], list[DataFile]] = {}
    for one in objects.list(f"{folder}/{prefix}"):
        path = one.name.removeprefix(f"{folder}/")
        about = names.parse(path)
        if about is None or path.rpartition("/")[2].startswith(UNFINISHED):
            continue
        group = found.setdefault((about.epoch, about.attempt, about.first, about.last), [])
        group.append(DataFile(path, about.rows, one.size))
    return [Group(*name, tuple(sorted(files, key=lambda file: file.path))) for name, files in sorted(found.items())]


@dataclass(frozen=True)
class Keeper:
    """Keep the parts of an unfinished load that the checkpoint accepted."""

    objects: Objects
    folder: str
    key: tuple[str, ...]
    packing: parquet.Packing

    def settle(
        self,
        found: Sequence[Group],
        accepted: Accepted,
        attempt_of: Callable[[int, int], str | None],
        sequence: Callable[[int], int],
    ) -> list[Group]:
        """Return the groups that count. A group that counts in part is written again without the rest.

        The new name says what is left. A runner killed in between leaves both versions. The next one writes the same
        files again from those that still exist, and the names of the others show that they are done.
        """
        kept: dict[tuple[int, str, int, int], Group] = {}
        left: list[str] = []
        for group in found:
            counted = [
                number
                for number in range(group.first, group.last + 1)
                if PartId(group.epoch, number) in accepted and attempt_of(group.epoch, number) == group.attempt
            ]
            if len(counted) == group.last - group.first + 1:
                _add(kept, group)
                continue
            if counted:
                _add(kept, self._trimmed(group, counted, {sequence(number) for number in counted}))
            left += [file.path for file in group.files]
        self.objects.delete(f"{self.folder}/{path}" for path in left)
        return list(kept.values())

    def _trimmed(self, group: Group, counted: Sequence[int], sequences: set[int]) -> Group:
        files = [made for file in group.files if (made := self._trim(file, counted[-1], sequences))]
        return replace(group, last=counted[-1], files=tuple(files), extent=None)

    def _trim(self, file: DataFile, last: int, sequences: set[int]) -> DataFile | None:
        rows = parquet.decode(self.objects.get(f"{self.folder}/{file.path}"))
        numbers = pc.shift_right(rows.column(VERSION), ROW_BITS)
        rows = rows.filter(pc.is_in(numbers, pa.array(sorted(sequences), pa.int64())))
        if not rows.num_rows:
            return None
        made = parquet.encode(rows, self.key, self.packing)
        name = replace(names.get(file.path), last=last, rows=rows.num_rows)
        path = f"{file.path.rpartition('/')[0]}/{name}"
        self.objects.put(f"{self.folder}/{path}", made)
        return DataFile(path, rows.num_rows, made.nbytes)


def _add(kept: dict[tuple[int, str, int, int], Group], group: Group) -> None:
    """Add a group to those kept. Two runners may have trimmed files of one group, one after the other."""
    name = (group.epoch, group.attempt, group.first, group.last)
    known = kept.get(name)
    files = {file.path: file for file in (*(known.files if known else ()), *group.files)}
    kept[name] = replace(group, files=tuple(files.values()), extent=None if known else group.extent)


def refuse_repeats(kept: Sequence[Group], reader: Reader, layout: Layout) -> None:
    """Raise if two files hold the same key. Repeats within a file were refused before.

    Files whose rows arrived in key order need not be read. For others, the keys that may occur again are held in
    memory.
    """
    extents = sorted(
        ((_extent(group, reader, layout), group) for group in kept if group.files), key=lambda one: one[0][0]
    )
    in_order = all(one[0][1] < after[0][0] for one, after in pairwise(extents))
    if in_order and not any(_may_repeat(group) for group in kept):
        return
    held: pa.Table | None = None
    for place, (_, group) in enumerate(extents):
        keys = pa.concat_tables([reader.keys(file) for file in group.files] + ([held] if held is not None else []))
        keys = parquet.sorted_by_key(keys.combine_chunks(), layout.key)
        refuse_repeats_in(keys, layout)
        if place + 1 < len(extents):
            least = pa.scalar(extents[place + 1][0][0], keys.column(0).type)
            held = keys.filter(pc.greater_equal(keys.column(layout.key[0]), least))


def _may_repeat(group: Group) -> bool:
    """Return whether files of the group were written at different times, as those of a part that came in pieces."""
    return group.extent is None and len(group.files) > 1


def _extent(group: Group, reader: Reader, layout: Layout) -> tuple[Any, Any]:
    if group.extent is not None:
        return group.extent
    columns = [reader.keys(file).column(layout.key[0]) for file in group.files]
    found = [pc.min_max(column).as_py() for column in columns]
    return min(one["min"] for one in found), max(one["max"] for one in found)
