"""The soak's own judgement: an hour is too long to find out that it would not have noticed."""

import pytest

from tests.chaos.soak import Sample, _judge

# Looks fall between runs and into the middle of them.
STEADY = [Sample(450.0, 5 + (i % 7) * 2, 3.0, 0.1) for i in range(360)]


def test_steady_work_is_steady() -> None:
    assert _judge(STEADY) == []
    assert _judge(STEADY[:1]) == ["too short to tell: give it more --minutes"]


@pytest.mark.parametrize(
    ("field", "growth", "told"),
    [
        ("megabytes", 0.5, "megabytes grew from 508.2 to 589.2"),
        ("connections", 0.01, "connections at rest grew from 5 to 7"),
        ("lag_seconds", 0.1, "a change waited 38.9 s for its mart"),
    ],
)
def test_what_grows_is_noticed(field: str, growth: float, told: str) -> None:
    grown = [
        Sample(**{**vars(sample), field: getattr(sample, field) + type(getattr(sample, field))(i * growth)})
        for i, sample in enumerate(STEADY)
    ]
    assert told in _judge(grown)
