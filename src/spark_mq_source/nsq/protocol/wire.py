"""Bytes <-> frames of NSQ's V2 protocol.

::

    to nsqd        = magic *command
    magic          = "  V2"
    command        = name *(SP parameter) LF [body]
    body           = size *octet                        ; of IDENTIFY, AUTH, PUB, DPUB and MPUB
    mpub_body      = size count 1*(size 1*octet)        ; the body of MPUB

    from nsqd      = *frame
    frame          = size frame_type data
    size           = u32                                ; bytes after this field
    frame_type     = u32                                ; 0 response, 1 error, 2 message
    message        = timestamp attempts message_id body ; the data of frame type 2
    timestamp      = i64                                ; nanoseconds since 1970
    attempts       = u16
    message_id     = 16 hexdigit
    body           = *octet

All integers are big-endian. Source: TCP protocol specification V2, Data Format and Commands.

A peer that is no nsqd is recognised by its first bytes: as a size, ``HTTP`` is 1.2 GB and a TLS record 352 MB, so the
size check detects both at once and the error can name them.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from spark_mq_source.core.connection import check_frame_size
from spark_mq_source.core.errors import RemoteProtocolError

MAGIC: Final = b"  V2"
RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2

SIZE_BYTES: Final = 4
HEAD_BYTES: Final = 8
"""Number of bytes before a frame's data: its size and its type."""
MESSAGE_ID_BYTES: Final = 16
MESSAGE_HEAD_BYTES: Final = HEAD_BYTES + 8 + 2 + MESSAGE_ID_BYTES
"""Number of bytes before a message's body in its frame."""

_HEAD: Final = Struct(">II")


class Frame(NamedTuple):
    """One frame, as a view of the received bytes."""

    kind: int
    data: memoryview
    size: int


def encode_command(*words: bytes, body: bytes | bytearray | memoryview | None = None) -> bytes:
    r"""Encode one command: its name and parameters, and its body if it has one.

    Example:
        >>> encode_command(b"PUB", b"flights", body=b"hello")
        b'PUB flights\n\x00\x00\x00\x05hello'
        >>> encode_command(b"NOP")
        b'NOP\n'
    """
    line = b" ".join(words) + b"\n"
    return line if body is None else b"".join((line, len(body).to_bytes(SIZE_BYTES, "big"), body))


def encode_frame(kind: int, data: bytes) -> bytes:
    """Encode one frame, as nsqd sends it.

    Example:
        >>> encode_frame(RESPONSE, b"OK").hex(" ", -4)
        '00000006 00000000 4f4b'
    """
    return _HEAD.pack(SIZE_BYTES + len(data), kind) + data


def take_frame(data: memoryview, offset: int, max_frame_bytes: int) -> Frame | None:
    """Take the frame that begins at `offset`, or return None while it is incomplete.

    Args:
        data: the received bytes.
        offset: start of the frame.
        max_frame_bytes: a larger `size` is refused as soon as it is read.

    Raises:
        RemoteProtocolError: an impossible size or type, found before its bytes arrive.

    Example:
        >>> frame = take_frame(memoryview(encode_frame(RESPONSE, b"OK") + b"next"), 0, 1000)
        >>> frame.kind, bytes(frame.data), frame.size
        (0, b'OK', 10)
    """
    available = len(data) - offset
    if available < SIZE_BYTES:
        return None
    _check_size(data, offset, max_frame_bytes)
    if available < HEAD_BYTES:
        return None
    size, kind = _HEAD.unpack_from(data, offset)
    if kind > MESSAGE:
        raise RemoteProtocolError(
            f"a frame of the unknown type {kind}: either this is not NSQ's protocol, or the stream is damaged"
        )
    end = offset + SIZE_BYTES + size
    if len(data) < end:
        return None
    return Frame(kind, data[offset + HEAD_BYTES : end], SIZE_BYTES + size)


_check_size = partial(
    check_frame_size,
    protocol="NSQ",
    http="nsqd's TCP port: use the port of -tcp-address (4150 unless configured), not the one of -http-address (4151)",
    tls="nsqd's TCP port (4150 unless configured) begins without TLS and is upgraded by tls=true; a proxy that ends "
    "TLS itself is not supported",
)
