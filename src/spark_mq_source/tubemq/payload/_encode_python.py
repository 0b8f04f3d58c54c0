"""The specification of the loops over messages that are sent, which run if no compiled ones are installed.

They turn messages into the bytes of their calls, and take the answers that confirm them. `hot` knows these bytes and
hands in its functions: of a call, only the checksum and the sizes are its own, the bytes before and after the data are
the same for many; and all answers to stored messages begin alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spark_mq_source.tubemq.payload.layout import SHORT_BYTES, begins_so
from spark_mq_source.tubemq.protocol.wire import BEGIN_TOKEN, ONE_BLOCK


def encode_sends(
    calls: Sequence[tuple[int, Any]],
    timeout_ms: int,
    encode_one: Callable[[int, Any, int], bytes],
    before_data: Callable[[str, str, int, int, int, int], bytes],
    tail_of: Callable[[Any, Any, Any, Any], bytes],
) -> bytes:
    """Return the frames of calls, in their order.

    Args:
        calls: serial numbers and `SendMessage`s.
        timeout_ms: of each call.
        encode_one: makes the frame of any of them.
        before_data: makes the bytes before the data, of client id, topic, partition, the sizes of the data and of the
            bytes after it, and the timeout.
        tail_of: makes the bytes after the checksum, of a message's last four fields.
    """
    return b"".join([encode_one(serial_no, send, timeout_ms) for serial_no, send in calls])


def take_stored(data: memoryview, offset: int, beginnings: Sequence[tuple[int, bytes]]) -> tuple[list[int], int]:
    """Take the answers from `offset` on that confirm a message, up to the first that does not or is not whole.

    Args:
        data: the bytes received.
        offset: where a frame begins.
        beginnings: of such a payload, see `begins_so`; only frames of one short block are compared.

    Returns:
        Their serial numbers, and where the next frame begins.
    """
    serial_nos = []
    while len(data) - offset >= ONE_BLOCK.size:
        token, serial_no, blocks, size = ONE_BLOCK.unpack_from(data, offset)
        begin = offset + ONE_BLOCK.size
        end = begin + size
        if token != BEGIN_TOKEN or blocks != 1 or not 0 <= size < SHORT_BYTES or end > len(data):
            break
        if not begins_so(data[begin:end], beginnings):
            break
        serial_nos.append(serial_no)
        offset = end
    return serial_nos, offset
