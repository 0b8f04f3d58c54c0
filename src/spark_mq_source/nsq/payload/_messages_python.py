"""The specification of the message decoder's inner loops, which run if no compiled ones are installed.

A run consists of complete message frames, as nsqd sent them (see `wire`)::

    ( u32 size  u32 2  i64 timestamp  u16 attempts  16 octets message_id  body ) x count

The rules for its columns, the same in both implementations:

- ``value`` is the body; as text it must be UTF-8. NSQ has no NULL.
- ``message_id`` is the 16 octets, in nsqd 1.3.0 hexadecimal digits; as text they must be ASCII.
- ``timestamp`` is rounded down to microseconds; ``timestamp_ns`` is not. ``attempts`` counts this delivery.
- ``topic``, ``channel`` and ``nsqd`` are the same in every row.
"""

from __future__ import annotations

import pyarrow as pa

from spark_mq_source.core._columns_python import Columns
from spark_mq_source.nsq.payload.layout import check_text, rows_of
from spark_mq_source.nsq.protocol.wire import HEAD_BYTES, MESSAGE, MESSAGE_HEAD_BYTES, MESSAGE_ID_BYTES, SIZE_BYTES


def scan_messages(data: memoryview, offset: int, max_frame_bytes: int) -> tuple[int, int]:
    """Return the number of complete message frames from `offset` on, and their end.

    They end at the first other frame: one that is incomplete, of another type, or impossible; `wire.take_frame`
    distinguishes these.

    Args:
        data: the received bytes.
        offset: start of a frame.
        max_frame_bytes: maximum `size`.
    """
    count = 0
    while offset + HEAD_BYTES <= len(data):
        size = int.from_bytes(data[offset : offset + SIZE_BYTES], "big")
        kind = int.from_bytes(data[offset + SIZE_BYTES : offset + HEAD_BYTES], "big")
        end = offset + SIZE_BYTES + size
        if kind != MESSAGE or size > max_frame_bytes or not offset + MESSAGE_HEAD_BYTES <= end <= len(data):
            break
        offset = end
        count += 1
    return count, offset


def message_ids(data: memoryview) -> bytes:
    """Return the ids of a run's messages, 16 bytes each.

    Raises:
        CorruptMessageError: it is not a run of complete messages.
    """
    return b"".join(row.message_id for row in rows_of(data))


def encode_id_commands(name: bytes, ids: bytes | bytearray | memoryview, tail: bytes = b"") -> bytes:
    r"""Return one command for each id, concatenated.

    Args:
        name: name of the command, such as ``b"FIN"``.
        ids: ids of 16 bytes each.
        tail: bytes after each id, including the space before them.

    Raises:
        ValueError: an id is incomplete.

    Example:
        >>> encode_id_commands(b"REQ", b"0123456789abcdef", b" 0")
        b'REQ 0123456789abcdef 0\n'
    """
    if len(ids) % MESSAGE_ID_BYTES:
        raise ValueError(f"message ids have {MESSAGE_ID_BYTES} bytes each; {len(ids)} are not whole ones")
    starts = range(0, len(ids), MESSAGE_ID_BYTES)
    return b"".join(name + b" " + ids[at : at + MESSAGE_ID_BYTES] + tail + b"\n" for at in starts)


class MessageColumns(Columns):
    """The columns of the messages decoded so far."""

    def __init__(self, schema: pa.Schema, *, topic: str, channel: str, nsqd: str) -> None:
        super().__init__(schema, {"topic": topic, "channel": channel, "nsqd": nsqd})

    def append(self, data: memoryview) -> None:
        """Decode a run completely or, after an error, not at all.

        Raises:
            CorruptMessageError: text that is not UTF-8, with the message's id; or not a run of complete messages.
            UnsupportedFeatureError: the values would pass the 2 GiB of one Arrow batch.
        """
        rows = [row._asdict() for row in rows_of(data)]
        check_text(data, "value" in self._texts, "message_id" in self._texts)
        self._add(rows)
