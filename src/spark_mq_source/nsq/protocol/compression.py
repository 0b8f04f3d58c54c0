"""The compressed streams to which a connection can be upgraded, in both directions.

Deflate has no header (RFC 1951, without zlib's); both sides flush after each piece, so that no data waits for more.
Snappy is its framing format: chunks of at most 64 KiB, each with a checksum. Source: V2 specification, IDENTIFY;
recorded from nsqd 1.3.0; snappy framing format description (2013-10-25).

The size of the input bounds that of the output: the caller passes at most `MAX_INPUT_BYTES` at a time, which deflate
can expand a thousandfold at most, and snappy less.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, TypeAlias

from spark_mq_source.core.compression import package_of
from spark_mq_source.core.errors import RemoteProtocolError

MAX_INPUT_BYTES: Final = 32 << 10
"""Maximum number of bytes that a connection receives before it decompresses them: to 33 MB at worst."""

_MAX_OUTPUT_BYTES: Final = 1 << 20

_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_DATA_CHUNKS: Final = (0, 1)
_CHUNK_HEAD_BYTES: Final = 4
_MAX_DATA_CHUNK_BYTES: Final = 4 + 32 + 65_536 * 7 // 6
"""The checksum, and snappy's worst case for 64 KiB (framing format, section 4.2)."""


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
        """Compress data so that the peer can read all of it."""
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield the complete data, in pieces.

        Raises:
            RemoteProtocolError: the stream is damaged, or continues after its end.
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

    Raises:
        UnsupportedFeatureError: snappy is not installed.

    Example:
        >>> ours, theirs = SnappyStream(), SnappyStream()
        >>> b"".join(theirs.decompress(ours.compress(b"NOP")))
        b'NOP'
    """

    def __init__(self) -> None:
        self._snappy = package_of("SNAPPY").snappy
        self._received = bytearray()
        self._identifier = b""

    def compress(self, data: bytes) -> bytes:
        """See `DeflateStream`. Each piece begins with the stream's identifier, which may be repeated (section 4.1)."""
        return bytes(self._snappy.compress(data))

    def decompress(self, data: bytes | memoryview) -> Iterator[bytes]:
        """See `DeflateStream`.

        Raises:
            RemoteProtocolError: the stream is damaged.
        """
        self._received += data
        end = self._end_of_whole_chunks()
        if not end:
            return
        chunks = self._identifier + self._received[:end]
        del self._received[:end]
        try:
            piece = bytes(self._snappy.decompress(chunks))
        except Exception as error:  # the optional package has its own error class
            raise RemoteProtocolError(f"the snappy stream is damaged ({error})") from error
        self._identifier = _IDENTIFIER
        if piece:
            yield piece

    def _end_of_whole_chunks(self) -> int:
        received, end = self._received, 0
        while end + _CHUNK_HEAD_BYTES <= len(received):
            size = int.from_bytes(received[end + 1 : end + _CHUNK_HEAD_BYTES], "little")
            if received[end] in _DATA_CHUNKS and size > _MAX_DATA_CHUNK_BYTES:
                raise RemoteProtocolError(f"the snappy stream is damaged (a chunk of {size} bytes)")
            if end + _CHUNK_HEAD_BYTES + size > len(received):
                break
            end += _CHUNK_HEAD_BYTES + size
        return end


Stream: TypeAlias = DeflateStream | SnappyStream
"""Both directions of a compressed connection."""
