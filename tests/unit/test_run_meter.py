"""What a run counts, and takes back if the transaction that counts it is rolled back."""

from copy import deepcopy
from typing import Any

import pytest

from vitrina.observe.run_meter import RunMeter
from vitrina.ports.batch import Counts, Part, Timing
from vitrina.ports.checks import CheckOutcome, Found


def count_a_batch(meter: RunMeter, nulls: int = 1) -> None:
    meter.rejected(nulls)
    meter.left_behind(2)
    meter.checked([CheckOutcome("few", "row_count", "warned", Found.of_rows(3, ()))])
    meter.batch(
        Part(1, 10, ("7",), seconds=0.5, timings={"read": Timing(0.0, 0.5)}, reopened=nulls > 1), Counts(), 0.25
    )
    meter.merged(Counts(inserted=4, updated=5, deleted=6))


def shown(meter: RunMeter) -> dict[str, Any]:
    return deepcopy({name: value for name, value in vars(meter).items() if name not in ("tally", "_observers")})


def test_what_was_counted_is_taken_back() -> None:
    meter = RunMeter()
    count_a_batch(meter)
    before, remembered = shown(meter), meter.remember()
    count_a_batch(meter, nulls=2)
    assert shown(meter) != before
    meter.restore(remembered)
    assert shown(meter) == before


@pytest.mark.parametrize("figure", ["rows_read", "rows_written", "rows_deleted", "rows_rejected", "batches"])
def test_a_batch_that_is_counted_again_counts_once(figure: str) -> None:
    once, again = RunMeter(), RunMeter()
    count_a_batch(once)
    remembered = again.remember()
    count_a_batch(again)
    again.restore(remembered)
    count_a_batch(again)
    assert getattr(again.counters, figure) == getattr(once.counters, figure) > 0
    assert again.counters.metrics["checks"] == once.counters.metrics["checks"]
    assert (again.counts, again.letters) == (once.counts, once.letters)
