"""Messages to the bytes of their calls, and the answers that say they are stored: written for the interpreter.

Which bytes these are is `commands`' business, which hands in what it knows: of a call, only the checksum and the sizes
are its own, what comes before and after the data is the same for many; and all answers to what was stored begin alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from spark_mq_source.tubemq.protocol.wire import BEGIN_TOKEN, ONE_BLOCK

SHORT_BYTES: Final = 256


def encode_sends(
    calls: Sequence[tuple[int, Any]],
    timeout_ms: int,
    encode_one: Callable[[int, Any, int], bytes],
    before_data: Callable[[str, str, int, int, int, int], bytes],
    tail_of: Callable[[Any, Any, Any, Any], bytes],
) -> bytes:
    """The frames of calls, in their order.

    Args:
        calls: serial numbers and `SendMessage`s.
        timeout_ms: of each call.
        encode_one: makes the frame of any of them.
        before_data: makes what comes before the data, of client id, topic, partition, the sizes of the data and of what
            comes after it, and the timeout.
        tail_of: makes what comes after the checksum, of a message's last four fields.
    """
    del before_data, tail_of
    return b"".join([encode_one(serial_no, send, timeout_ms) for serial_no, send in calls])


def take_stored(data: memoryview, offset: int, beginnings: Sequence[tuple[int, bytes]]) -> tuple[list[int], int]:
    """The answers from `offset` on that say a message was stored, up to the first that does not or is not whole.

    Args:
        data: what was received.
        offset: where a frame begins.
        beginnings: of such a payload, see `begins_so`: frames of one short block are looked at.

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


def begins_so(payload: memoryview, beginnings: Sequence[tuple[int, bytes]]) -> bool:
    """Whether a payload has each of these parts at its place."""
    return all(payload[at : at + len(part)] == part for at, part in beginnings)
