"""Deflate and snappy streams of the embedded broker.

They share no code with the package's own NSQ codecs, so that the broker tests these independently.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, Protocol

import cramjam
from crc32c import crc32c

# The snappy framing format: a chunk is its type, its size in 24 bits little endian, and data.
_STREAM_START: Final = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE = 0x00, 0x01, 0x80
_MAX_PLAIN_BYTES: Final = 65536
_CHECKSUM: Final = struct.Struct("<I")


class Codec(Protocol):
    """Both directions of a compressed connection."""

    def compress(self, data: bytes) -> bytes:
        """Compress `data` so that the client can decompress all of it at once."""

    def decompress(self, data: bytes) -> bytes:
        """Decompress received bytes; return the new output.

        Raises:
            ValueError: corrupt data.
        """


class Deflate:
    """Raw DEFLATE, flushed after every write.

    Args:
        level: 1 to 9.
    """

    def __init__(self, level: int) -> None:
        self._out = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._in = zlib.decompressobj(-zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """See `Codec`."""
        return self._out.compress(data) + self._out.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> bytes:
        """See `Codec`."""
        try:
            return self._in.decompress(data)
        except zlib.error as error:
            raise ValueError(f"corrupt deflate data: {error}") from error


class Snappy:
    """The snappy framing format."""

    def __init__(self) -> None:
        self._started = False
        self._received = b""

    def compress(self, data: bytes) -> bytes:
        """See `Codec`."""
        parts = [] if self._started else [_STREAM_START]
        self._started = True
        for start in range(0, len(data), _MAX_PLAIN_BYTES):
            plain = data[start : start + _MAX_PLAIN_BYTES]
            packed = bytes(cramjam.snappy.compress_raw(plain))
            kind = _COMPRESSED
            # As in the reference implementation: blocks that shrink by less than an eighth stay uncompressed.
            if len(packed) >= len(plain) - len(plain) // 8:
                kind, packed = _PLAIN, plain
            parts += [_chunk_head(kind, 4 + len(packed)), _CHECKSUM.pack(_masked_crc(plain)), packed]
        return b"".join(parts)

    def decompress(self, data: bytes) -> bytes:
        """See `Codec`."""
        received = self._received + data
        parts = []
        start = 0
        while len(received) - start >= 4:
            kind = received[start]
            end = start + 4 + int.from_bytes(received[start + 1 : start + 4], "little")
            if end > len(received):
                break
            if kind in (_COMPRESSED, _PLAIN):
                parts.append(_plain(kind, received[start + 4 : end]))
            elif kind < _FIRST_SKIPPABLE:
                raise ValueError(f"unknown snappy chunk type {kind}")
            start = end
        self._received = received[start:]
        return b"".join(parts)


def _plain(kind: int, chunk: bytes) -> bytes:
    checksum, data = chunk[:4], chunk[4:]
    if kind == _COMPRESSED:
        try:
            data = bytes(cramjam.snappy.decompress_raw(data))
        except cramjam.DecompressionError as error:
            raise ValueError(f"corrupt snappy data: {error}") from error
    if checksum != _CHECKSUM.pack(_masked_crc(data)):
        raise ValueError("a snappy chunk's checksum is wrong")
    return data


def _chunk_head(kind: int, size: int) -> bytes:
    return bytes([kind]) + size.to_bytes(3, "little")


def _masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
