"""Compare two sides: counts and extremes, buckets narrowed down to the keys that differ, or random keys.

The read order makes the result exact while both sides change: checkpoint, then mart, then source. A source row older
than the checkpoint was delivered before the mart was read, and the mart cannot have a newer one.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from vitrina.ports.batch import Key
from vitrina.ports.compare import AskedBeside, ComparableSide, Difference, Extent, Kind, RowImage
from vitrina.sentences import say
from vitrina.side_by_side import side_by_side

Answer = TypeVar("Answer")

# The average number of rows in a bucket: few enough to list when one of them differs.
BUCKET_ROWS = 256
MIN_BUCKETS, MAX_BUCKETS = 64, 65_536
# Up to this many keys are looked up one by one in the second comparison; for more, their buckets are read again.
LOOKUP_KEYS = 10_000
# Differences that are kept with their keys, to be repaired or removed; further ones are only counted.
KEPT_KEYS = 100_000


# A mask, and numbers of buckets under it.
Buckets = tuple[int, Sequence[int]]


@dataclass
class Comparison:
    """Hold what one comparison of both sides found."""

    extents: tuple[Extent, Extent] | None = None
    rows: tuple[int, int] | None = None
    differences: list[Difference] = field(default_factory=list)
    places: "array[int]" = field(default_factory=lambda: array("q"))  # of all differences, sorted
    buckets: list[Buckets] = field(default_factory=list)  # buckets that differ, in groups
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))  # of all differences

    @property
    def is_complete(self) -> bool:
        """Return whether all differences are kept with their keys."""
        return len(self.differences) == len(self.places)

    def add(self, difference: Difference) -> None:
        self.places.append(difference.place)
        self.counts[difference.kind] += 1
        if len(self.differences) < KEPT_KEYS:
            self.differences.append(difference)

    def has(self, place: int) -> bool:
        at = bisect_left(self.places, place)
        return at < len(self.places) and self.places[at] == place


@dataclass
class Extra:
    """Hold keys that only the target has, as many as may be kept, and count all of them."""

    kept: list[Key] = field(default_factory=list)
    count: int = 0

    def add(self, key: Key) -> None:
        self.count += 1
        if len(self.kept) < KEPT_KEYS:
            self.kept.append(key)


@dataclass
class Confirmation:
    """Hold the differences that both comparisons found."""

    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    in_flight: int = 0
    confirmed: list[Difference] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def look_quickly(source: ComparableSide, target: ComparableSide) -> Comparison:
    there = target.extent()
    here = source.extent()
    return Comparison(extents=(here, there), rows=(here.rows, there.rows))


def look_fully(source: ComparableSide, target: ComparableSide, *, expected_rows: int) -> Comparison:
    """Compare one sum of each side. If they differ, compare the buckets, and list and join those that differ."""
    look = _differing_buckets(source, target, expected_rows)
    for difference in _join_buckets(source, target, look.buckets):
        look.add(difference)
    look.places = array("q", sorted(look.places))  # the groups are not in order
    return look


def look_for_extra(source: ComparableSide, target: ComparableSide, *, expected_rows: int) -> Extra:
    """Find the keys that only the target has, as `look_fully` does.

    Nothing is kept of other differences: of rows that no pass has delivered there may be any number.
    """
    extra = Extra()
    for difference in _join_buckets(source, target, _differing_buckets(source, target, expected_rows).buckets):
        if _is_extra(difference):
            extra.add(difference.key)
    return extra


def _is_extra(difference: Difference) -> bool:
    return difference.kind is Kind.EXTRA and not difference.in_flight


def _differing_buckets(source: ComparableSide, target: ComparableSide, expected_rows: int) -> Comparison:
    wanted, total = _both(source, target, lambda side: side.total())
    if total == wanted:
        return Comparison(rows=(wanted[0], total[0]))
    mask = _bucket_count(max(expected_rows, wanted[0], total[0])) - 1
    here, there = _both(source, target, lambda side: side.buckets(mask))
    differing = sorted(bucket for bucket in here.keys() | there.keys() if here.get(bucket) != there.get(bucket))
    counted = sum(rows for rows, _ in here.values()), sum(rows for rows, _ in there.values())
    return Comparison(rows=counted, buckets=_grouped(mask, differing, max(counted), source.listed_at_once))


def _both(
    source: ComparableSide, target: ComparableSide, ask: Callable[[ComparableSide], Answer]
) -> tuple[Answer, Answer]:
    """Ask both sides, at the same time if they can be: only the order of their snapshots matters."""
    if not (isinstance(source, AskedBeside) and isinstance(target, AskedBeside)):
        there = ask(target)
        return ask(source), there

    def cancel() -> None:
        source.cancel()
        target.cancel()

    here, there = side_by_side([partial(ask, source), partial(ask, target)], cancel)
    return here, there


def _grouped(mask: int, buckets: Sequence[int], rows: int, listed_at_once: int | None) -> list[Buckets]:
    """Group buckets so that a side can list each group at once."""
    if not buckets:
        return []
    size = len(buckets) if listed_at_once is None else max(1, listed_at_once * (mask + 1) // max(rows, 1))
    return [(mask, buckets[start : start + size]) for start in range(0, len(buckets), size)]


def look_at_sample(source: ComparableSide, target: ComparableSide, *, keys: int) -> Comparison:
    """Compare random keys of both sides, because those of the mart alone would never show a missing row."""
    chosen = list(dict.fromkeys([*source.random_keys((keys + 1) // 2), *target.random_keys(keys // 2)]))
    look = Comparison()
    for difference in _join_keys(source, target, chosen):
        look.add(difference)
    return look


def quick_findings(look: Comparison, *, others_write: bool) -> list[str]:
    """Return what counts and extremes prove to be wrong. Rows in flight prove nothing."""
    assert look.extents is not None
    here, there = look.extents
    findings: list[str] = []
    if there.rows < here.rows - here.in_flight:
        findings.append(say("check.rows_missing", mart=there.rows, source=here.rows - here.in_flight))
    if others_write:
        return findings
    if there.rows > here.rows:
        findings.append(say("check.rows_extra", mart=there.rows, source=here.rows))
    if not here.in_flight:
        for word, ours, theirs in (("least", here.least, there.least), ("greatest", here.greatest, there.greatest)):
            findings += [
                say("check.ends_differ", word=word, column=name, source=ours[name], mart=theirs[name])
                for name in ours
                if name in theirs and ours[name] != theirs[name]
            ]
    return findings


def _bucket_count(rows: int) -> int:
    wanted = max(MIN_BUCKETS, min(MAX_BUCKETS, rows // BUCKET_ROWS))
    return 1 << (wanted - 1).bit_length()


def confirm(
    first: Comparison,
    source: ComparableSide,
    target: ComparableSide,
    *,
    still_moving: Callable[[Difference, Difference], bool],
    others_write: bool = False,
) -> Confirmation:
    """Confirm differences that exist in both comparisons and are older than the checkpoint in both.

    If other pipelines write to the same mart, rows that this source lacks belong to them.
    """
    verdict = Confirmation()
    seen = {difference.place: difference for difference in first.differences}
    resolved = len(first.places)
    for again in _look_again(first, source, target):
        if not first.has(again.place):
            continue  # it began to differ after the first comparison
        resolved -= 1
        if others_write and again.kind is Kind.EXTRA:
            continue
        before = seen.get(again.place)
        if again.in_flight or (before is not None and (before.in_flight or still_moving(before, again))):
            verdict.in_flight += 1
            continue
        verdict.counts[again.kind] += 1
        if len(verdict.confirmed) < KEPT_KEYS:
            verdict.confirmed.append(again)
    verdict.in_flight += resolved
    return verdict


def confirm_extra(first: Extra, source: ComparableSide, target: ComparableSide) -> Confirmation:
    """Look up the keys that were kept, and confirm those that only the target still has.

    Keys that were not kept are not looked up: as many of them count, in proportion, as of those that were.
    """
    verdict = Confirmation()
    # A side that cannot look up single keys reads everything for each question.
    size = max(LOOKUP_KEYS, source.listed_at_once or 0)
    for start in range(0, len(first.kept), size):
        verdict.confirmed += filter(_is_extra, _join_keys(source, target, first.kept[start : start + size]))
    kept, confirmed = len(first.kept), len(verdict.confirmed)
    verdict.counts[Kind.EXTRA] = confirmed + (first.count - kept) * confirmed // max(kept, 1)
    return verdict


def _look_again(first: Comparison, source: ComparableSide, target: ComparableSide) -> Iterator[Difference]:
    if first.is_complete and len(first.places) <= LOOKUP_KEYS:
        return _join_keys(source, target, [difference.key for difference in first.differences])
    assert first.buckets, "a sample is small enough to look up"
    return _join_buckets(source, target, first.buckets)


# The mart is read before the source; see the module docstring.


def _join_buckets(source: ComparableSide, target: ComparableSide, groups: Sequence[Buckets]) -> Iterator[Difference]:
    for mask, buckets in groups:
        there = target.images_in(mask, buckets)
        yield from _join(source.images_in(mask, buckets), there)


def _join_keys(source: ComparableSide, target: ComparableSide, keys: Sequence[Key]) -> Iterator[Difference]:
    if keys:
        there = target.images_of(keys)
        yield from _join(source.images_of(keys), there)


def _join(source: Iterator[RowImage], target: Iterator[RowImage]) -> Iterator[Difference]:
    """Join two sides that are both sorted by place and key."""
    here, there = next(source, None), next(target, None)
    while here is not None or there is not None:
        if there is None or (here is not None and here.position < there.position):
            assert here is not None
            if here.image is not None:
                yield Difference(Kind.MISSING, here.place, here.key, here.in_flight, here.image, None)
            here = next(source, None)
        elif here is None or there.position < here.position:
            yield Difference(Kind.EXTRA, there.place, there.key, False, None, there.image)
            there = next(target, None)
        else:
            if here.image != there.image:
                kind = Kind.EXTRA if here.image is None else Kind.DIFFERING
                yield Difference(kind, here.place, here.key, here.in_flight, here.image, there.image)
            here, there = next(source, None), next(target, None)


@dataclass(frozen=True)
class Detail:
    """Show a difference to people: the columns that differ, with both values as text."""

    kind: Kind
    key: dict[str, str]
    columns: dict[str, tuple[str | None, str | None]]


def details(differences: Sequence[Difference], source: ComparableSide, target: ComparableSide) -> list[Detail]:
    keys = [difference.key for difference in differences]
    there, here = (target.texts(keys), source.texts(keys)) if keys else ({}, {})
    return [
        _detail(difference, here.get(difference.key), there.get(difference.key), source) for difference in differences
    ]


Texts = dict[str, str | None]


def _detail(difference: Difference, here: Texts | None, there: Texts | None, side: ComparableSide) -> Detail:
    key = dict(zip(side.key_names, difference.key, strict=True))
    names = [name for name in {**(here or {}), **(there or {})} if name not in key]
    pairs = {name: ((here or {}).get(name), (there or {}).get(name)) for name in names}
    if difference.kind is Kind.DIFFERING:
        removed = here is None or there is None  # since the comparison
        pairs = {} if removed else {name: (ours, theirs) for name, (ours, theirs) in pairs.items() if ours != theirs}
    return Detail(difference.kind, key, pairs)
