"""Find the rows that a batch step fails on, by halving a failed batch until they are isolated."""

from collections.abc import Callable

import pyarrow as pa

from vitrina.errors import RunError
from vitrina.transforms.call import WrongResult

Rejection = tuple[int, Exception]

# Errors that do not depend on single rows.
NOT_ABOUT_ROWS = (RunError, WrongResult, ConnectionError, TimeoutError)


class Isolation:
    """Pass one batch through one step."""

    def __init__(self, step: Callable[[pa.RecordBatch], pa.RecordBatch], *, first_only: bool) -> None:
        self._step = step
        self._first_only = first_only
        self.parts: list[pa.RecordBatch] = []
        self.rejected: list[Rejection] = []

    def run(self, batch: pa.RecordBatch, start: int = 0) -> Exception | None:
        """Return the error with which the whole batch failed. Rows that cause errors are added to `rejected`."""
        try:
            self.parts.append(self._step(batch))
        except NOT_ABOUT_ROWS:
            raise
        except Exception as exc:  # noqa: BLE001 - a step is foreign code and may raise anything
            if batch.num_rows == 1:
                self.rejected.append((start, exc))
            elif batch.num_rows and not (self._first_only and self.rejected):
                middle = batch.num_rows // 2
                self.run(batch.slice(0, middle), start)
                self.run(batch.slice(middle), start + middle)
            return exc
        return None
