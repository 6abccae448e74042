"""Comparing two sides: counts and ends, buckets narrowed down to the keys that differ, or random keys.

The order of looking is what makes the answer exact while both sides move: checkpoint, then mart, then source. A source
row older than the checkpoint was delivered before the mart was looked at, and the mart cannot know a newer one.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from vitrina.errors import FatalError
from vitrina.reconcile.sides import Extent, Key, RowImage, Side

# About this many rows share a bucket: few enough to list when one of them differs.
BUCKET_ROWS = 256
MIN_BUCKETS, MAX_BUCKETS = 64, 65_536
# So many keys are looked up one by one in the second look; of more, their buckets are read again.
LOOKUP_KEYS = 10_000
# Differences that are kept with their keys, to be repaired; beyond it they are only counted.
KEPT_KEYS = 100_000


class Kind(StrEnum):
    MISSING = "missing"
    EXTRA = "extra"
    DIFFERING = "differing"


@dataclass(frozen=True)
class Difference:
    """A key on which the sides do not agree."""

    kind: Kind
    place: int
    key: Key
    young: bool
    source_image: int | None
    target_image: int | None


@dataclass
class Look:
    """What one look at both sides found."""

    extents: tuple[Extent, Extent] | None = None
    rows: tuple[int, int] | None = None
    differences: list[Difference] = field(default_factory=list)
    places: "array[int]" = field(default_factory=lambda: array("q"))  # of all differences, in order
    buckets: tuple[int, list[int]] | None = None  # mask, and the buckets that differ

    @property
    def is_complete(self) -> bool:
        """All differences are kept with their keys."""
        return len(self.differences) == len(self.places)

    def add(self, difference: Difference) -> None:
        self.places.append(difference.place)
        if len(self.differences) < KEPT_KEYS:
            self.differences.append(difference)

    def has(self, place: int) -> bool:
        at = bisect_left(self.places, place)
        return at < len(self.places) and self.places[at] == place


@dataclass
class Verdict:
    """What both looks agree on."""

    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    in_flight: int = 0
    confirmed: list[Difference] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def refuse_other_encoding(source: Side, target: Side) -> None:
    encodings = source.encoding(), target.encoding()
    if encodings[0] != encodings[1]:
        raise FatalError(
            f"the source's server encoding is {encodings[0]}, the target's {encodings[1]}: their texts have other"
            " bytes, so hashes of them cannot be compared; move one of the two databases to the other's encoding"
        )


# --- the first look ------------------------------------------------------------------------------------------------


def look_quickly(source: Side, target: Side) -> Look:
    ends = source.extent(), target.extent()
    return Look(extents=ends, rows=(ends[0].rows, ends[1].rows))


def look_fully(source: Side, target: Side, *, expected_rows: int) -> Look:
    """One sum inside each database; if they differ, bucket by bucket; what differs is listed and joined here."""
    totals = source.total(), target.total()
    if totals[0] == totals[1]:
        return Look(rows=(totals[0][0], totals[1][0]))
    mask = _bucket_count(expected_rows) - 1
    there = target.buckets(mask)
    here = source.buckets(mask)
    differing = sorted(bucket for bucket in here.keys() | there.keys() if here.get(bucket) != there.get(bucket))
    look = Look(
        rows=(sum(rows for rows, _ in here.values()), sum(rows for rows, _ in there.values())),
        buckets=(mask, differing),
    )
    if differing:
        for difference in _join_buckets(source, target, (mask, differing)):
            look.add(difference)
    return look


def look_at_sample(source: Side, target: Side, *, keys: int) -> Look:
    """Keys of both sides: those of the mart alone would never show a missing row."""
    chosen = list(dict.fromkeys([*source.random_keys((keys + 1) // 2), *target.random_keys(keys // 2)]))
    look = Look()
    for difference in _join_keys(source, target, chosen):
        look.add(difference)
    return look


def quick_findings(look: Look, *, others_write: bool) -> list[str]:
    """What counts and ends prove to be wrong. Rows that may be on their way prove nothing."""
    assert look.extents is not None
    here, there = look.extents
    findings = []
    if there.rows < here.rows - here.young:
        findings.append(f"the mart has {there.rows} rows, the source {here.rows - here.young} that must be in it")
    if others_write:
        return findings
    if there.rows > here.rows:
        findings.append(f"the mart has {there.rows} rows, the source only {here.rows}")
    if not here.young:
        for word, ours, theirs in (("least", here.least, there.least), ("greatest", here.greatest, there.greatest)):
            findings += [
                f"the {word} {name} is {ours[name]} in the source, {theirs[name]} in the mart"
                for name in ours
                if name in theirs and ours[name] != theirs[name]
            ]
    return findings


def _bucket_count(rows: int) -> int:
    wanted = max(MIN_BUCKETS, min(MAX_BUCKETS, rows // BUCKET_ROWS))
    return 1 << (wanted - 1).bit_length()


# --- the second look -----------------------------------------------------------------------------------------------


def confirm(
    first: Look,
    source: Side,
    target: Side,
    *,
    still_moving: Callable[[Difference, Difference], bool],
    others_write: bool = False,
) -> Verdict:
    """Only what differs again, and is not younger than the checkpoint in either look, is called a difference.

    Where others write to the same mart, rows that this source does not have are theirs.
    """
    verdict = Verdict()
    seen = {difference.place: difference for difference in first.differences}
    gone = len(first.places)
    for again in _look_again(first, source, target):
        if not first.has(again.place):
            continue  # it began to differ between the looks
        gone -= 1
        if others_write and again.kind is Kind.EXTRA:
            continue
        before = seen.get(again.place)
        if again.young or (before is not None and (before.young or still_moving(before, again))):
            verdict.in_flight += 1
            continue
        verdict.counts[again.kind] += 1
        if len(verdict.confirmed) < KEPT_KEYS:
            verdict.confirmed.append(again)
    verdict.in_flight += gone
    return verdict


def _look_again(first: Look, source: Side, target: Side) -> Iterator[Difference]:
    if first.is_complete and len(first.places) <= LOOKUP_KEYS:
        return _join_keys(source, target, [difference.key for difference in first.differences])
    assert first.buckets is not None, "a sample is small enough to look up"
    return _join_buckets(source, target, first.buckets)


# --- joining ---------------------------------------------------------------------------------------------------------


def _join_buckets(source: Side, target: Side, buckets: tuple[int, Sequence[int]]) -> Iterator[Difference]:
    return _join(source.images(source.in_buckets(*buckets)), target.images(target.in_buckets(*buckets)))


def _join_keys(source: Side, target: Side, keys: Sequence[Key]) -> Iterator[Difference]:
    if keys:
        yield from _join(source.images(source.has_key(keys)), target.images(target.has_key(keys)))


def _join(source: Iterator[RowImage], target: Iterator[RowImage]) -> Iterator[Difference]:
    """Both come by place and key."""
    here, there = next(source, None), next(target, None)
    while here is not None or there is not None:
        if there is None or (here is not None and here.position < there.position):
            assert here is not None
            yield Difference(Kind.MISSING, here.place, here.key, here.young, here.image, None)
            here = next(source, None)
        elif here is None or there.position < here.position:
            yield Difference(Kind.EXTRA, there.place, there.key, False, None, there.image)
            there = next(target, None)
        else:
            if here.image != there.image:
                yield Difference(Kind.DIFFERING, here.place, here.key, here.young, here.image, there.image)
            here, there = next(source, None), next(target, None)


# --- details -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detail:
    """A difference as people read it: the columns that differ, with both values as text."""

    kind: Kind
    key: dict[str, str]
    columns: dict[str, tuple[str | None, str | None]]


def details(differences: Sequence[Difference], source: Side, target: Side) -> list[Detail]:
    keys = [difference.key for difference in differences]
    here, there = (source.texts(keys), target.texts(keys)) if keys else ({}, {})
    return [
        _detail(difference, here.get(difference.key), there.get(difference.key), source) for difference in differences
    ]


def _detail(
    difference: Difference, here: dict[str, str | None] | None, there: dict[str, str | None] | None, side: Side
) -> Detail:
    names = [field.name for field in side.columns]
    columns = {}
    if difference.kind is Kind.DIFFERING and here is not None and there is not None:
        columns = {name: (here[name], there[name]) for name in names if here[name] != there[name]}
    elif difference.kind is Kind.MISSING and here is not None:
        columns = {name: (here[name], None) for name in names}
    elif difference.kind is Kind.EXTRA and there is not None:
        columns = {name: (None, there[name]) for name in names}
    key = dict(zip((field.name for field in side.key), difference.key, strict=True))
    return Detail(difference.kind, key, columns)
