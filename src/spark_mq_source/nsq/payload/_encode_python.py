"""The encoder's inner loop, written for the interpreter, and the rules that it shares with the compiled one.

The body of an MPUB (V2 specification, MPUB)::

    u32 count  ( u32 size  size octets ) x count

What becomes of a row, the same in both implementations: its ``value`` is the message, text as UTF-8. A row whose value
is NULL or empty, or larger than nsqd takes, can be no message (nsqd 1.3.0: ``MPUB invalid message(1) body size 0``).
"""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa

from spark_mq_source.nsq.payload.columns import COLUMNS

COUNT_BYTES: Final = 4
SIZE_BYTES: Final = 4


def bind_value(batch: pa.RecordBatch) -> pa.Array:
    """The column ``value`` of a batch whose columns can all be written.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no ``value``.
    """
    COLUMNS.check_written(batch.schema)
    return batch.column(batch.schema.get_field_index("value"))


class RowSource:
    """The rows of a batch.

    Attributes:
        rows: how many.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        value = bind_value(batch)
        self.rows: int = batch.num_rows
        # Bytes of text are what is sent: no str is made of them.
        self.values: list[bytes | None] = value.cast(pa.binary()).to_pylist()

    def value(self, row: int) -> bytes | None:
        """The message of a row; None for NULL."""
        return self.values[row]


def find_unwritable(source: RowSource, max_message_bytes: int) -> int:
    """The first row that can be no message, -1 where all can."""
    for row, value in enumerate(source.values):
        if not value or len(value) > max_message_bytes:
            return row
    return -1


def build_body(
    source: RowSource, order: array[int] | None, at: int, end: int, *, max_bytes: int, max_rows: int
) -> tuple[bytes, int]:
    """The body of an MPUB of as many rows as fit, in order, and where the next one begins.

    Args:
        source: the rows, of which `find_unwritable` found none.
        order: the numbers of the rows to write; None for all of them as they stand.
        at: where in the order to begin.
        end: where in the order to stop.
        max_bytes: of the body; a first row that does not fit makes no body: nothing is built, and `at` comes back.
        max_rows: the most rows of a body.
    """
    parts = [b""]
    size = COUNT_BYTES
    first = at
    while at < end and at - first < max_rows:
        value = source.values[at if order is None else order[at]] or b""
        size += SIZE_BYTES + len(value)
        if size > max_bytes:
            break
        parts += (len(value).to_bytes(SIZE_BYTES, "big"), value)
        at += 1
    if at == first:
        return b"", at
    parts[0] = (at - first).to_bytes(COUNT_BYTES, "big")
    return b"".join(parts), at
