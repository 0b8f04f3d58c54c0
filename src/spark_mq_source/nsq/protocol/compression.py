"""The compressed streams that a connection can be upgraded to: every byte both ways, from the upgrade on.

Deflate is bare (RFC 1951, without zlib's header); after each piece both sides flush, so that nothing waits for more.
Snappy is its framing format: chunks of at most 64 KiB, each with a checksum. Source: V2 specification, IDENTIFY;
recorded from nsqd 1.3.0; snappy framing format description (2013-10-25).

What is decompressed is bounded by what goes in: the caller gives no more than `MAX_INPUT_BYTES` at a time, which
deflate can blow up a thousandfold at most, and snappy by less.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

from spark_mq_source.core.compression import compress, decompress
from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.errors import CorruptMessageError, RemoteProtocolError

MAX_INPUT_BYTES: Final = 32 << 10
"""The most bytes that a connection receives before it decompresses them: to 33 MB at worst."""

_MAX_OUTPUT_BYTES: Final = 1 << 20

_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_FIRST_SKIPPABLE: Final = 0x80
_STREAM_IDENTIFIER: Final = 0xFF
_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEAD_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 4
_MAX_CHUNK_BYTES: Final = 65536
"""The most bytes of a chunk, uncompressed (framing format, section 4.2)."""
_MAX_COMPRESSED_BYTES: Final = 32 + _MAX_CHUNK_BYTES + _MAX_CHUNK_BYTES // 6
"""The most bytes of a compressed chunk: snappy's worst case."""


class Stream(Protocol):
    """Both directions of a compressed connection."""

    def compress(self, data: bytes) -> bytes:
        """Compress data so that the peer can read all of it."""

    def decompress(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Yield the data that is complete, in pieces. Raises RemoteProtocolError if the stream is damaged."""


class DeflateStream:
    """A connection compressed with deflate.

    Args:
        level: effort, 1 to 9.

    Example:
        >>> ours, theirs = DeflateStream(6), DeflateStream(6)
        >>> b"".join(theirs.decompress(ours.compress(b"NOP")))
        b'NOP'
    """

    def __init__(self, level: int) -> None:
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """See `Stream`."""
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes | memoryview) -> Iterator[bytes]:
        """See `Stream`.

        Raises:
            RemoteProtocolError: the stream is damaged, or has ended and goes on.
        """
        while True:
            try:
                piece = self._inflater.decompress(data, _MAX_OUTPUT_BYTES)
            except zlib.error as error:
                raise RemoteProtocolError(f"the deflate stream is damaged ({error})") from error
            if self._inflater.unused_data:
                raise RemoteProtocolError("the deflate stream goes on after its end")
            if piece:
                yield piece
            data = self._inflater.unconsumed_tail
            if not data and len(piece) < _MAX_OUTPUT_BYTES:
                return


class SnappyStream:
    """A connection compressed with snappy.

    Example:
        >>> ours, theirs = SnappyStream(), SnappyStream()
        >>> b"".join(theirs.decompress(ours.compress(b"NOP")))
        b'NOP'
    """

    def __init__(self) -> None:
        self._has_sent = False
        self._has_received = False
        self._received = bytearray()

    def compress(self, data: bytes) -> bytes:
        """See `Stream`."""
        parts: list[bytes | memoryview] = [] if self._has_sent else [_IDENTIFIER]
        self._has_sent = True
        for begin in range(0, len(data), _MAX_CHUNK_BYTES):
            piece = data[begin : begin + _MAX_CHUNK_BYTES]
            packed = compress("SNAPPY", piece)
            kind = _COMPRESSED if len(packed) < len(piece) else _UNCOMPRESSED
            stored = packed if kind == _COMPRESSED else piece
            parts += (
                bytes([kind]),
                (_CHECKSUM_BYTES + len(stored)).to_bytes(3, "little"),
                _masked_checksum(piece).to_bytes(_CHECKSUM_BYTES, "little"),
                stored,
            )
        return b"".join(parts)

    def decompress(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """See `Stream`.

        Raises:
            RemoteProtocolError: the stream is damaged.
            UnsupportedFeatureError: snappy is not installed.
        """
        self._received += data
        at = 0
        try:
            while len(self._received) - at >= _CHUNK_HEAD_BYTES:
                kind = self._received[at]
                size = int.from_bytes(self._received[at + 1 : at + _CHUNK_HEAD_BYTES], "little")
                self._check_head(kind, size)
                begin = at + _CHUNK_HEAD_BYTES
                if len(self._received) < begin + size:
                    return
                chunk = bytes(self._received[begin : begin + size])
                at = begin + size
                if kind in {_COMPRESSED, _UNCOMPRESSED}:
                    yield _opened(kind, chunk)
                elif kind == _STREAM_IDENTIFIER:
                    _check_identifier(chunk)
        finally:
            del self._received[:at]

    def _check_head(self, kind: int, size: int) -> None:
        if not self._has_received and kind != _STREAM_IDENTIFIER:
            raise RemoteProtocolError("the snappy stream does not begin with its identifier")
        self._has_received = True
        if kind in {_COMPRESSED, _UNCOMPRESSED}:
            if not _CHECKSUM_BYTES < size <= _CHECKSUM_BYTES + _MAX_COMPRESSED_BYTES:
                raise RemoteProtocolError(f"a snappy chunk of {size} bytes")
        elif kind < _FIRST_SKIPPABLE:
            raise RemoteProtocolError(f"a snappy chunk of the unknown type {kind}")


def _check_identifier(chunk: bytes) -> None:
    if chunk != _IDENTIFIER[_CHUNK_HEAD_BYTES:]:
        raise RemoteProtocolError("an invalid snappy stream identifier")


def _opened(kind: int, chunk: bytes) -> bytes | memoryview:
    """Return the content of a chunk after checking its checksum."""
    checksum = int.from_bytes(chunk[:_CHECKSUM_BYTES], "little")
    stored = memoryview(chunk)[_CHECKSUM_BYTES:]
    piece: bytes | memoryview = stored
    if kind == _COMPRESSED:
        try:
            piece = decompress("SNAPPY", stored, _announced_size(stored))
        except CorruptMessageError as error:
            raise RemoteProtocolError(str(error)) from error
    if len(piece) > _MAX_CHUNK_BYTES or _masked_checksum(piece) != checksum:
        raise RemoteProtocolError("a snappy chunk whose checksum or size is wrong: the stream is damaged")
    return piece


def _announced_size(block: memoryview) -> int:
    """Return the uncompressed size in a snappy block: a little-endian varint (snappy format description, section 1)."""
    size = 0
    for index, byte in enumerate(block[:3]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if size <= _MAX_CHUNK_BYTES:
                return size
            break
    raise RemoteProtocolError("a snappy chunk that says it holds more than 64 KiB")


def _masked_checksum(data: bytes | memoryview) -> int:
    """Return the CRC32-C in the form of the framing format (section 3)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
