"""Bytes <-> frames of TubeMQ's RPC.

::

    frame       = begin_token serial_no list_size 1*block
    begin_token = %xFF7FF4FE
    serial_no   = i32              ; chosen by the client; the answer has its request's
    list_size   = i32              ; number of blocks, 1 to 3584
    block       = size *octet      ; size is an i32
    payload     = conn_header header body          ; the blocks' contents, one after the other (codec.py)

All integers are big-endian. Blocks are the Java side's buffers and mean nothing: 8192 bytes are written, any size is
read, as by server 2.4.0 (seed "Client RPC", section 1, which says 8196 by mistake).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from spark_mq_source.core.connection import wrong_protocol
from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError

BEGIN_TOKEN: Final = b"\xff\x7f\xf4\xfe"

BLOCK_BYTES: Final = 8192
"""Size of every written block but the last."""

MAX_BLOCKS: Final = 3584
"""Maximum number of blocks that a server accepts: (20 + 8) MiB in blocks of 8192 (server 2.4.0)."""

MAX_PAYLOAD_BYTES: Final = MAX_BLOCKS * BLOCK_BYTES
"""Maximum payload; an answer has about 0.5 MiB, or one message of at most 20 MiB."""

HEAD: Final = Struct(">4sii")
SIZE: Final = Struct(">i")
ONE_BLOCK: Final = Struct(">4siii")
_unpack_one_block = ONE_BLOCK.unpack_from
_new_tuple = tuple.__new__


class Frame(NamedTuple):
    """One frame.

    Attributes:
        serial_no: the number of its call.
        payload: a view of the received bytes if it is one block, else a copy.
        size: of the whole frame, in bytes.
    """

    serial_no: int
    payload: memoryview
    size: int


def encode_frame(serial_no: int, payload: bytes) -> bytes:
    """Encode one frame.

    Raises:
        LocalProtocolError: the payload is empty or larger than a server accepts.

    Example:
        >>> encode_frame(7, b"payload").hex(" ", -4)
        'ff7ff4fe 00000007 00000001 00000007 7061796c 6f6164'
    """
    size = len(payload)
    if not 0 < size <= MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"a call of {size} bytes cannot be sent: a server accepts 1 to {MAX_PAYLOAD_BYTES}")
    blocks = [HEAD.pack(BEGIN_TOKEN, serial_no, -(-size // BLOCK_BYTES))]
    for start in range(0, size, BLOCK_BYTES):
        block = payload[start : start + BLOCK_BYTES]
        blocks += (SIZE.pack(len(block)), block)
    return b"".join(blocks)


class SeenBlocks:
    """Progress in an incomplete frame: the blocks already checked; offsets are relative to its start.

    A fetch of half a MiB has 64 blocks and arrives in several pieces, each of which would otherwise require all checks.
    """

    __slots__ = ("at", "bounds", "total")

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Reset for the next frame."""
        self.at = HEAD.size
        self.bounds: list[tuple[int, int]] = []
        self.total = 0


def take_frame(data: memoryview, offset: int, seen: SeenBlocks | None = None) -> Frame | None:
    """Take the frame that begins at `offset`, or return None while it is incomplete.

    Args:
        data: the received bytes.
        offset: start of the frame.
        seen: the progress in this frame from earlier calls; updated here.

    Raises:
        RemoteProtocolError: it does not begin with the token, or the sizes are impossible, or more than a server
            accepts; found before the announced bytes arrive.

    Example:
        >>> frame = take_frame(memoryview(encode_frame(7, b"payload") + b"next"), 0)
        >>> frame.serial_no, bytes(frame.payload), frame.size
        (7, b'payload', 23)
    """
    received = len(data)
    if received >= offset + ONE_BLOCK.size:
        # The usual case, except for fetched messages.
        token, serial_no, blocks, size = _unpack_one_block(data, offset)
        if blocks == 1 and token == BEGIN_TOKEN and 0 <= size <= MAX_PAYLOAD_BYTES:
            begin = offset + 16
            end = begin + size
            return _new_tuple(Frame, (serial_no, data[begin:end], end - offset)) if end <= received else None
    at = offset + HEAD.size
    if received < at:
        if received >= offset + len(BEGIN_TOKEN):
            _check_token(data, offset)
        return None
    token, serial_no, blocks = HEAD.unpack_from(data, offset)
    if token != BEGIN_TOKEN:
        _check_token(data, offset)
    if not 1 <= blocks <= MAX_BLOCKS:
        raise RemoteProtocolError(
            f"a frame of {blocks} blocks was announced, where 1 to {MAX_BLOCKS} are possible: the stream is damaged"
        )
    seen = seen or SeenBlocks()
    frame = data[offset:]
    received -= offset
    while len(seen.bounds) < blocks:
        begin = seen.at + SIZE.size
        if received < begin:
            return None
        (size,) = SIZE.unpack_from(frame, seen.at)
        total = seen.total + size
        if size < 0 or total > MAX_PAYLOAD_BYTES:
            raise RemoteProtocolError(
                f"a frame with a block of {size} bytes, {total} in all, was announced, where at most "
                f"{MAX_PAYLOAD_BYTES} are possible: the stream is damaged"
            )
        end = begin + size
        if received < end:
            return None
        seen.bounds.append((begin, end))
        seen.at, seen.total = end, total
    payload = memoryview(b"".join([frame[begin:end] for begin, end in seen.bounds]))
    taken = _new_tuple(Frame, (serial_no, payload, seen.at))
    seen.start_over()
    return taken


def _check_token(data: memoryview, offset: int) -> None:
    start = bytes(data[offset : offset + len(BEGIN_TOKEN)])
    if start != BEGIN_TOKEN:
        raise wrong_protocol(
            start,
            http="TubeMQ: masters takes the port of the RPC (8715 unless configured), not the one of the web interface "
            "(8080)",
            tls="set tls=true, or take the plain port (8715 of a master unless configured)",
            otherwise=f"a frame begins with {start.hex()} and not {BEGIN_TOKEN.hex()}: not a TubeMQ server, or a "
            f"damaged stream",
        )
