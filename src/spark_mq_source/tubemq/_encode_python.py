"""Messages to the bytes of their calls, written for the interpreter: one call after the other.

Which bytes these are is `commands`' business, which hands in the functions that know: of a call, only the checksum and
the sizes are its own; what comes before and after the data is the same for many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["encode_sends"]


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
