"""Bytes <-> frames of the Pulsar binary protocol.

::

    frame          = total_size command_size command [body]
    total_size     = u32     ; bytes after this field: 4 + len(command) + len(body)
    command_size   = u32
    command        = protobuf BaseCommand
    body           = [broker_metadata] [checksum] metadata_size metadata payload     ; of MESSAGE and SEND (messages.py)
    broker_metadata = %x0e02 u32 BrokerEntryMetadata       ; of MESSAGE only; the u32 is its size
    checksum       = %x0e01 u32                            ; CRC32-C of everything after it
    metadata_size  = u32
    metadata       = protobuf MessageMetadata
    payload        = *octet

All integers are big-endian and unsigned. Source: Pulsar binary protocol, Framing and Message commands. A body is not
parsed here.

A peer that is no Pulsar broker is recognised by its first bytes: as a size, ``HTTP`` is 1.2 GB and a TLS record 352 MB,
so the size check detects both at once and the error can name them.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import NamedTuple

from spark_mq_source.core.connection import check_frame_size
from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError

DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""The largest message if the broker reports no limit (Pulsar binary protocol, Framing)."""

FRAME_OVERHEAD_BYTES = 10 * 1024 + 16 * 1024
"""Maximum excess of a frame over its message: the broker's own padding of 10 KiB, the command, and the broker entry
metadata that is added on delivery."""

BROKER_METADATA_MAGIC = b"\x0e\x02"
CHECKSUM_MAGIC = b"\x0e\x01"

SIZES = Struct(">II")
_unpack_sizes = SIZES.unpack_from
_new_tuple = tuple.__new__
SIZE_BYTES = 4


class Frame(NamedTuple):
    """One frame, as views of the received bytes.

    Attributes:
        command: the serialized BaseCommand.
        body: the bytes after the command; None if there are none.
    """

    command: memoryview
    body: memoryview | None
    size: int


def encode_frame(command: bytes, body: bytes | memoryview | None = None) -> bytes:
    """Return one encoded frame.

    Raises:
        LocalProtocolError: the frame is too large for its size field.

    Example:
        >>> encode_frame(b"cmd", b"body").hex(" ", -4)
        '0000000b 00000003 636d6462 6f6479'
    """
    return encode_frame_head(command, 0) if body is None else encode_frame_head(command, len(body)) + body


def encode_frame_head(command: bytes, body_bytes: int) -> bytes:
    """Return an encoded frame up to its body.

    Raises:
        LocalProtocolError: the frame is too large for its size field.
    """
    total = SIZE_BYTES + len(command) + body_bytes
    if total >= 1 << 32:
        raise LocalProtocolError(f"a frame of {total} bytes cannot be sent: its size must fit 32 bits")
    return SIZES.pack(total, len(command)) + command


def take_frame(data: memoryview, offset: int, max_frame_bytes: int) -> Frame | None:
    """Return the frame that begins at `offset`, or None while it is incomplete.

    Args:
        data: the received bytes.
        offset: start of the frame.
        max_frame_bytes: a larger `total_size` is refused as soon as it is read.

    Raises:
        RemoteProtocolError: the sizes are impossible, found before the announced bytes arrive.

    Example:
        >>> frame = take_frame(memoryview(encode_frame(b"cmd", b"body") + b"next"), 0, 1000)
        >>> bytes(frame.command), bytes(frame.body), frame.size
        (b'cmd', b'body', 15)
    """
    received = len(data)
    begin = offset + 8
    if received < begin:
        if received >= offset + SIZE_BYTES:
            _check_total(data, offset, max_frame_bytes)
        return None
    total, command_size = _unpack_sizes(data, offset)
    if total > max_frame_bytes or command_size + SIZE_BYTES > total:
        _check_total(data, offset, max_frame_bytes)
        raise RemoteProtocolError(
            f"a frame of {total} bytes cannot hold a command of {command_size}: this is not Pulsar's protocol"
        )
    end = offset + SIZE_BYTES + total
    if received < end:
        return None
    middle = begin + command_size
    # A third of the time of calling the class, which only checks the number of fields.
    return _new_tuple(Frame, (data[begin:middle], data[middle:end] if end > middle else None, end - offset))


_check_total = partial(
    check_frame_size,
    protocol="Pulsar",
    http="a Pulsar broker's binary port: use the port of pulsar:// (6650 unless configured), not the one of the admin "
    "interface (8080)",
    tls="use pulsar+ssl:// for it, or the plain port (6650 unless configured)",
)
