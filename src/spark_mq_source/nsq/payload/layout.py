"""Parts that both implementations of the loops share: the check of text, the errors, and the written column."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import pyarrow as pa

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.protocol.wire import MESSAGE, MESSAGE_HEAD_BYTES, SIZE_BYTES

_MESSAGE_HEAD: Final = Struct(">IIqH16s")
_NANOSECONDS_A_US: Final = 1000


class Row(NamedTuple):
    """One message of a run; `timestamp` in microseconds, rounded down."""

    timestamp: int
    timestamp_ns: int
    attempts: int
    message_id: bytes
    value: bytes


def rows_of(run: memoryview) -> Iterator[Row]:
    """Yield the messages of a run.

    Raises:
        CorruptMessageError: it is not a run of complete messages.
    """
    at = 0
    while at < len(run):
        if len(run) - at < MESSAGE_HEAD_BYTES:
            raise not_a_run(at)
        size, kind, nanoseconds, attempts, message_id = _MESSAGE_HEAD.unpack_from(run, at)
        start, end = at + MESSAGE_HEAD_BYTES, at + SIZE_BYTES + size
        if kind != MESSAGE or not start <= end <= len(run):
            raise not_a_run(at)
        yield Row(nanoseconds // _NANOSECONDS_A_US, nanoseconds, attempts, message_id, bytes(run[start:end]))
        at = end


def check_text(run: memoryview, value_is_text: bool, id_is_text: bool) -> None:
    """Refuse a run with a value or an id that is not text.

    Raises:
        CorruptMessageError: names the first message with such a value; or else the first with such an id.
    """
    for is_text, name, encoding in ((value_is_text, "value", "UTF-8"), (id_is_text, "message_id", "ASCII")):
        for row in rows_of(run) if is_text else ():
            try:
                getattr(row, name).decode(encoding)
            except UnicodeDecodeError as error:
                raise CorruptMessageError(
                    f"message {row.message_id.decode('ascii', 'backslashreplace')}: the {name} is not {encoding} "
                    f"(byte {error.start}); read {name} as binary"
                ) from None


def not_a_run(at: int) -> CorruptMessageError:
    """Return the error for bytes that are not complete messages."""
    return CorruptMessageError(f"no whole message begins at byte {at} of what was received as messages")


def bind_value(batch: pa.RecordBatch) -> pa.Array:
    """Return the column ``value`` of a batch.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no ``value``.
    """
    COLUMNS.check(batch.schema, written=True)
    return batch.column(batch.schema.get_field_index("value"))
