"""The message decoder's inner loops, written for the interpreter, and the rules that they share with the compiled ones.

A run is whole frames of messages, one after the other, as nsqd sent them (see `wire`)::

    ( u32 size  u32 2  i64 timestamp  u16 attempts  16 octets message_id  body ) x count

What becomes of them, the same in both implementations:

- ``value`` is the body; as text it must be UTF-8. NSQ has no NULL.
- ``message_id`` is the 16 octets, in nsqd 1.3.0 hexadecimal digits; as text they must be ASCII.
- ``timestamp`` is cut to microseconds, towards the past. ``attempts`` counts this delivery.
- ``topic``, ``channel`` and ``nsqd`` are the same in every row.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final, NamedTuple

import pyarrow as pa

from spark_mq_source.core._columns_python import Columns
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.nsq.protocol.wire import HEAD_BYTES, MESSAGE, MESSAGE_HEAD_BYTES, MESSAGE_ID_BYTES, SIZE_BYTES

_MESSAGE_HEAD: Final = Struct(">IIqH16s")
_IDS: Final = re.compile(rb"(?s).{%d}" % MESSAGE_ID_BYTES)
_NANOSECONDS_A_US: Final = 1000


def scan_messages(data: memoryview, offset: int, max_frame_bytes: int) -> tuple[int, int]:
    """How many whole frames of messages follow each other from `offset` on, and where they end.

    It stops before anything else: a frame that is not whole, of another type, or one that cannot be; what it is, is for
    `wire.take_frame` to say.

    Args:
        data: what was received.
        offset: where a frame begins.
        max_frame_bytes: the largest `size`.
    """
    count = 0
    end = len(data)
    least = MESSAGE_HEAD_BYTES - SIZE_BYTES
    while offset + HEAD_BYTES <= end:
        size = int.from_bytes(data[offset : offset + SIZE_BYTES], "big")
        kind = int.from_bytes(data[offset + SIZE_BYTES : offset + HEAD_BYTES], "big")
        if kind != MESSAGE or not least <= size <= max_frame_bytes or offset + SIZE_BYTES + size > end:
            break
        offset += SIZE_BYTES + size
        count += 1
    return count, offset


def message_ids(data: memoryview) -> bytes:
    """The ids of a run's messages, 16 bytes each.

    Raises:
        CorruptMessageError: it is no run.
    """
    return b"".join(row.message_id for row in _walk(data))


def encode_id_commands(name: bytes, ids: bytes | bytearray | memoryview, tail: bytes = b"") -> bytes:
    r"""One command for each id, in one piece.

    Args:
        name: such as ``b"FIN"``.
        ids: 16 bytes each.
        tail: what follows an id, with the space before it.

    Raises:
        ValueError: `ids` are not whole.

    Example:
        >>> encode_id_commands(b"REQ", b"0123456789abcdef", b" 0")
        b'REQ 0123456789abcdef 0\n'
    """
    if len(ids) % MESSAGE_ID_BYTES:
        raise ValueError(f"message ids have {MESSAGE_ID_BYTES} bytes each; {len(ids)} are not whole ones")
    return _IDS.sub(name + rb" \g<0>" + tail + b"\n", bytes(ids))


class MessageColumns(Columns):
    """The columns of the messages decoded so far."""

    def __init__(self, schema: pa.Schema, *, topic: str, channel: str, nsqd: str) -> None:
        super().__init__(schema, {"topic": topic, "channel": channel, "nsqd": nsqd})

    def append(self, data: memoryview) -> None:
        """Decodes a run; all of it or, on an error, nothing.

        Raises:
            CorruptMessageError: text that is not UTF-8, with the message's id; or no run.
            UnsupportedFeatureError: the values would pass what one Arrow batch can hold.
        """
        rows = _walk(data)
        added = {name: [getattr(row, name) for row in rows] for name in self._cells}
        sizes = self._measure(added)
        check_text(data, "value" in self._texts, "message_id" in self._texts)
        self._extend(len(rows), added, sizes)


class _Row(NamedTuple):
    """One message of a run; `timestamp` in microseconds."""

    timestamp: int
    attempts: int
    message_id: bytes
    value: bytes


def _walk(data: memoryview) -> list[_Row]:
    rows = []
    whole = bytes(data)
    at, end = 0, len(whole)
    while at < end:
        if end - at < MESSAGE_HEAD_BYTES:
            raise not_a_run(at)
        size, kind, nanoseconds, attempts, message_id = _MESSAGE_HEAD.unpack_from(whole, at)
        following = at + SIZE_BYTES + size
        if kind != MESSAGE or following > end or size < MESSAGE_HEAD_BYTES - SIZE_BYTES:
            raise not_a_run(at)
        value = whole[at + MESSAGE_HEAD_BYTES : following]
        rows.append(_Row(nanoseconds // _NANOSECONDS_A_US, attempts, message_id, value))
        at = following
    return rows


def check_text(data: memoryview, value_is_text: bool, id_is_text: bool) -> None:
    """Refuses a run with a value or an id that cannot be read as text.

    Raises:
        CorruptMessageError: naming the first message with such a value; or else the first with such an id.
    """
    rows = _walk(data)
    if value_is_text:
        for row in rows:
            _check_text("value", "UTF-8", row.value, row.message_id)
    if id_is_text:
        for row in rows:
            _check_text("message_id", "ASCII", row.message_id, row.message_id)


def _check_text(name: str, encoding: str, text: bytes, message_id: bytes) -> None:
    try:
        text.decode(encoding)
    except UnicodeDecodeError as error:
        raise CorruptMessageError(
            f"message {message_id.decode('ascii', 'backslashreplace')}: the {name} is not {encoding} "
            f"(byte {error.start}); read {name} as binary"
        ) from None


def not_a_run(at: int) -> CorruptMessageError:
    """The error for bytes that are no whole messages."""
    return CorruptMessageError(f"no whole message begins at byte {at} of what was received as messages")
