"""Compression and decompression by codec name, with output limited to the announced size.

The announced size comes from the wire, so the caller must check it first. No codec allocates a larger output, and any
other output size is a corrupt message. (If a ZSTD frame does not state its size, ZSTD also needs a window of at most
128 MiB, the library's limit.)

The package of a codec is imported at first use, so uncompressed topics need no package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from spark_mq_source.core.errors import CorruptMessageError, UnsupportedFeatureError

ByteString = bytes | bytearray | memoryview


def decompress(codec: str, data: ByteString, uncompressed_size: int) -> bytes | memoryview:
    """Decompress `data` into exactly `uncompressed_size` bytes.

    Args:
        codec: one of `CODECS`. LZ4 is the block format and SNAPPY the raw (unframed) format, as in Pulsar's clients.
        data: the compressed bytes; not copied.
        uncompressed_size: bytes, as announced by the message; never exceeded while decompressing.

    Raises:
        CorruptMessageError: `data` is invalid, or does not decompress to exactly `uncompressed_size` bytes.
        UnsupportedFeatureError: the codec is unknown, or its package is not installed.

    Example:
        >>> import zlib
        >>> bytes(decompress("ZLIB", zlib.compress(b"hello"), 5))
        b'hello'
    """
    loaded = _loaded(codec)
    if uncompressed_size < 0:
        raise CorruptMessageError(f"{codec} payload announces an impossible size of {uncompressed_size} bytes")
    try:
        out = loaded.decompress(data, uncompressed_size)
    except loaded.errors as error:
        raise CorruptMessageError(f"{codec} payload does not decompress: {error}") from error
    _check_size(codec, len(out), uncompressed_size)
    return out


def _check_size(codec: str, size: int, announced: int) -> None:
    if size != announced:
        raise CorruptMessageError(f"{codec} payload holds {size} bytes, but the message announced {announced}")


def compress(codec: str, data: ByteString) -> bytes | memoryview:
    """Compress `data`, in the formats of `decompress`.

    Raises:
        UnsupportedFeatureError: the codec is unknown, or its package is not installed; names the extra to install.

    Example:
        >>> bytes(decompress("LZ4", compress("LZ4", b"hello" * 9), 45)) == b"hello" * 9
        True
    """
    return _loaded(codec).compress(data)


@cache
def _loaded(codec: str) -> _Functions:
    package = package_of(codec)
    return _CODECS[codec].load(package)


def package_of(codec: str) -> Any:  # noqa: ANN401 - a module with types of its own
    """Import the package of `codec`.

    Raises:
        UnsupportedFeatureError: the codec is unknown, or its package is not installed.
    """
    if codec not in _CODECS:
        raise UnsupportedFeatureError(f"compression {codec!r} is not supported; known are {', '.join(CODECS)}")
    name, extra, _ = _CODECS[codec]
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"the message is compressed with {codec}, which needs the Python package {name.partition('.')[0]}: "
            f"install spark-mq-source[{extra}] on every executor"
        ) from error


class _Functions(NamedTuple):
    """The functions of a codec, and the errors of `decompress`, which gets the announced size."""

    compress: Callable[[ByteString], bytes | memoryview]
    decompress: Callable[[ByteString, int], bytes | memoryview]
    errors: tuple[type[Exception], ...] = ()


def _none(_package: Any) -> _Functions:  # noqa: ANN401 - as `package_of`
    return _Functions(memoryview, lambda data, _size: memoryview(data))


def _lz4(block: Any) -> _Functions:  # noqa: ANN401
    return _Functions(
        lambda data: block.compress(data, store_size=False),
        lambda data, size: block.decompress(data, uncompressed_size=size),
        (block.LZ4BlockError, ValueError),
    )


def _zlib(zlib: Any) -> _Functions:  # noqa: ANN401
    # One more byte than announced, to detect too much output. The end of the stream is not checked: the Java client
    # flushes its deflater without finishing it, so the stream has no trailer.
    return _Functions(zlib.compress, lambda data, size: zlib.decompressobj().decompress(data, size + 1), (zlib.error,))


def _zstd(zstandard: Any) -> _Functions:  # noqa: ANN401
    decompressor = zstandard.ZstdDecompressor()

    def decompress(data: ByteString, size: int) -> bytes:
        if not len(data) and not size:
            return b""  # Go's client without cgo has no frame for an empty payload (klauspost/compress, EncodeAll)
        # The library allocates the size stated in the frame, regardless of max_output_size, so check it first.
        stated = zstandard.frame_content_size(data)
        if stated != -1:
            _check_size("ZSTD", stated, size)
        # max_output_size=0 would mean "unlimited".
        return decompressor.decompress(data, max_output_size=max(size, 1))  # type: ignore[no-any-return]

    # Level 3 is the default of the library and of Pulsar's clients.
    return _Functions(zstandard.ZstdCompressor(level=3).compress, decompress, (zstandard.ZstdError,))


def _snappy(cramjam: Any) -> _Functions:  # noqa: ANN401
    snappy = cramjam.snappy

    def decompress(data: ByteString, size: int) -> memoryview:
        _check_size("SNAPPY", snappy.decompress_raw_len(data), size)
        out = bytearray(size)
        return memoryview(out)[: snappy.decompress_raw_into(data, out)]

    return _Functions(lambda data: memoryview(snappy.compress_raw(data)), decompress, (cramjam.DecompressionError,))


class _Codec(NamedTuple):
    """A codec: its package, the extra of spark-mq-source that installs it, and the functions made of the package."""

    package: str
    extra: str
    load: Callable[[Any], _Functions]


_CODECS = {
    "NONE": _Codec("zlib", "", _none),
    "LZ4": _Codec("lz4.block", "lz4", _lz4),
    "ZLIB": _Codec("zlib", "", _zlib),
    "ZSTD": _Codec("zstandard", "zstd", _zstd),
    "SNAPPY": _Codec("cramjam", "snappy", _snappy),
}

CODECS: tuple[str, ...] = tuple(_CODECS)
"""The supported codecs, with the names of Pulsar's CompressionType."""
