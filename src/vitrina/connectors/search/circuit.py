"""Decide when to pause requests to a failing search server, and when to give up."""

import random
import time

from vitrina import errors


class Circuit:
    """Count consecutive failures of the server and compute how long to wait.

    While open, it allows one request at a time; the first success closes it.
    """

    def __init__(
        self, *, first_delay_seconds: float, longest_delay_seconds: float, patience_seconds: float, threshold: int
    ) -> None:
        self._first_delay_seconds = first_delay_seconds
        self._longest_delay_seconds = longest_delay_seconds
        self._patience_seconds = patience_seconds
        self._threshold = threshold
        self._failures_in_a_row = 0
        self._not_before = 0.0
        self._last_success = time.monotonic()
        self._latest: errors.RunError | None = None

    @property
    def is_open(self) -> bool:
        return self._failures_in_a_row >= self._threshold

    @property
    def must_wait(self) -> bool:
        return self.seconds_to_wait > 0

    @property
    def seconds_to_wait(self) -> float:
        return max(0.0, self._not_before - time.monotonic())

    def fail(self, problem: errors.RunError, attempt: int | None = None) -> None:
        """Wait longer after each failure. `attempt` counts failures of one request while the server otherwise works."""
        exponent = self._failures_in_a_row if attempt is None else attempt
        self._failures_in_a_row += 1
        self._latest = problem
        delay = min(self._first_delay_seconds * 2 ** min(exponent, 16), self._longest_delay_seconds)
        # Jitter: several runners that met the same outage must not retry at the same time.
        self._not_before = time.monotonic() + delay * random.uniform(0.5, 1.0)  # noqa: S311  not a secret

    def close(self) -> None:
        self._failures_in_a_row = 0
        self._latest = None
        self._last_success = time.monotonic()

    def check_patience(self) -> None:
        """Raise the latest problem once nothing has progressed for `patience_seconds`."""
        waited = time.monotonic() - self._last_success
        if self._latest is None or waited < self._patience_seconds:
            return
        message = f"gave up after {waited:.0f} s without progress: {self._latest.message}"
        raise type(self._latest)(message) from self._latest
