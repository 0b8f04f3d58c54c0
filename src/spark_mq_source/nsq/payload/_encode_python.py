"""The specification of the encoder's inner loop, which runs if no compiled one is installed.

The body of an MPUB (V2 specification, MPUB)::

    u32 count  ( u32 size  size octets ) x count

The rule for a row, the same in both implementations: its ``value`` is the message, text as UTF-8. A row whose value is
NULL or empty, or larger than nsqd accepts, is unwritable (nsqd 1.3.0: ``MPUB invalid message(1) body size 0``).
"""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa

from spark_mq_source.nsq.payload.layout import bind_value

_U32_BYTES: Final = 4


class RowSource:
    """The rows of a batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.rows: int = batch.num_rows
        self._values: list[bytes | None] = bind_value(batch).cast(pa.binary()).to_pylist()

    def value(self, row: int) -> bytes | None:
        """Return the message of a row; None for NULL."""
        return self._values[row]

    def find_unwritable(self, max_message_bytes: int) -> int:
        """Return the first unwritable row, -1 if there is none."""
        sizes = (len(value or b"") for value in self._values)
        return next((row for row, size in enumerate(sizes) if not 0 < size <= max_message_bytes), -1)

    def build_body(
        self, order: array[int] | None, at: int, end: int, *, max_bytes: int, max_rows: int
    ) -> tuple[bytes, int]:
        """Return the body of an MPUB of as many rows as fit, in order, and the index in `order` after them.

        Args:
            order: the indices of the rows to write, all writable (see `find_unwritable`); None for all, in order.
            at: index in `order` at which to begin.
            end: index in `order` at which to stop.
            max_bytes: maximum size; if the first row does not fit, the body is empty, and `at` is returned.
            max_rows: maximum number of rows.
        """
        body = bytearray()
        count = 0
        for place in range(at, min(end, at + max_rows)):
            value = self._values[place if order is None else order[place]] or b""
            if 2 * _U32_BYTES + len(body) + len(value) > max_bytes:
                break
            body += len(value).to_bytes(_U32_BYTES, "big") + value
            count += 1
        return count.to_bytes(_U32_BYTES, "big") + body if count else b"", at + count
