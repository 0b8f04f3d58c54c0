"""Compression and decompression by codec name, with output limited to the announced size.

The announced size comes from the wire, so the caller must check it first. No codec allocates a larger output, and any
other output size is a corrupt message. (If a ZSTD frame does not state its size, ZSTD also needs a window of at most
128 MiB, the library's limit.)

The package of a codec is imported at first use, so uncompressed topics need no package.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from spark_mq_source.core.errors import CorruptMessageError, UnsupportedFeatureError

ByteString = bytes | bytearray | memoryview

# The package of each codec, and the extra of spark-mq-source that installs it; None if Python includes the codec.
_PACKAGES: dict[str, tuple[str, str] | None] = {
    "NONE": None,
    "LZ4": ("lz4.block", "lz4"),
    "ZLIB": None,
    "ZSTD": ("zstandard", "zstd"),
    "SNAPPY": ("cramjam", "snappy"),
}

CODECS: tuple[str, ...] = tuple(_PACKAGES)
"""The supported codecs, with the names of Pulsar's CompressionType."""


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
    decompressor = _decompressors.get(codec)
    if decompressor is None:
        package = package_of(codec)
        decompressor = _decompressors[codec] = _LOADERS[codec](package)
    if uncompressed_size < 0:
        raise CorruptMessageError(f"{codec} payload announces an impossible size of {uncompressed_size} bytes")
    out = decompressor(data, uncompressed_size)
    if len(out) != uncompressed_size:
        raise CorruptMessageError(
            f"{codec} payload holds {len(out)} bytes, but the message announced {uncompressed_size}"
        )
    return out


def compress(codec: str, data: ByteString) -> bytes | memoryview:
    """Compress `data`, in the formats of `decompress`.

    Args:
        codec: one of `CODECS`.
        data: not copied.

    Raises:
        UnsupportedFeatureError: the codec is unknown, or its package is not installed; names the extra to install.

    Example:
        >>> bytes(decompress("LZ4", compress("LZ4", b"hello" * 9), 45)) == b"hello" * 9
        True
    """
    compressor = _compressors.get(codec)
    if compressor is None:
        package = package_of(codec)
        compressor = _compressors[codec] = _COMPRESSORS[codec](package)
    return compressor(data)


def package_of(codec: str) -> ModuleType:
    """Import the package of `codec`.

    Raises:
        UnsupportedFeatureError: the codec is unknown, or its package is not installed.
    """
    if codec not in _PACKAGES:
        raise UnsupportedFeatureError(f"compression {codec!r} is not supported; known are {', '.join(CODECS)}")
    package = _PACKAGES[codec]
    try:
        return import_module(package[0] if package else "zlib")
    except ImportError as error:
        name, extra = package or ("", "")
        raise UnsupportedFeatureError(
            f"the message is compressed with {codec}, which needs the Python package {name.partition('.')[0]}: "
            f"install spark-mq-source[{extra}] on every executor"
        ) from error


def _corrupt(codec: str, error: Exception) -> CorruptMessageError:
    return CorruptMessageError(f"{codec} payload does not decompress: {error}")


def _load_none(_module: ModuleType) -> Callable[[ByteString, int], bytes | memoryview]:
    return lambda data, _size: memoryview(data)


def _load_lz4(module: ModuleType) -> Callable[[ByteString, int], bytes | memoryview]:
    decompress_block = module.decompress

    def run(data: ByteString, size: int) -> bytes:
        try:
            out: bytes = decompress_block(data, uncompressed_size=size)
        except (module.LZ4BlockError, ValueError) as error:
            raise _corrupt("LZ4", error) from error
        return out

    return run


def _load_zlib(_module: ModuleType) -> Callable[[ByteString, int], bytes | memoryview]:
    def run(data: ByteString, size: int) -> bytes:
        inflater = zlib.decompressobj()
        try:
            # One more byte than announced, to detect too much output. The end of the stream is not checked: the Java
            # client flushes its deflater without finishing it, so the stream has no trailer.
            return inflater.decompress(data, size + 1)
        except zlib.error as error:
            raise _corrupt("ZLIB", error) from error

    return run


def _load_zstd(module: ModuleType) -> Callable[[ByteString, int], bytes | memoryview]:
    decompressor = module.ZstdDecompressor()

    def run(data: ByteString, size: int) -> bytes:
        try:
            # The library allocates the size stated in the frame, regardless of max_output_size, so check it first.
            stated = module.frame_content_size(data)
            if stated not in (-1, size):
                raise CorruptMessageError(f"ZSTD payload holds {stated} bytes, but the message announced {size}")
            # max_output_size=0 would mean "unlimited".
            out: bytes = decompressor.decompress(data, max_output_size=max(size, 1))
        except module.ZstdError as error:
            raise _corrupt("ZSTD", error) from error
        return out

    return run


def _load_snappy(module: ModuleType) -> Callable[[ByteString, int], bytes | memoryview]:
    snappy = module.snappy

    def run(data: ByteString, size: int) -> bytes | memoryview:
        try:
            stated = snappy.decompress_raw_len(data)
            if stated != size:
                raise CorruptMessageError(f"SNAPPY payload holds {stated} bytes, but the message announced {size}")
            out = bytearray(size)
            written = snappy.decompress_raw_into(data, out)
        except module.DecompressionError as error:
            raise _corrupt("SNAPPY", error) from error
        return memoryview(out)[:written]

    return run


def _lz4_compressor(module: ModuleType) -> Callable[[ByteString], bytes]:
    compress_block = module.compress
    return lambda data: compress_block(data, store_size=False)


def _zstd_compressor(module: ModuleType) -> Callable[[ByteString], bytes]:
    # Level 3 is the default of the library and of Pulsar's clients.
    return module.ZstdCompressor(level=3).compress  # type: ignore[no-any-return]


_COMPRESSORS: dict[str, Callable[[ModuleType], Callable[[ByteString], bytes | memoryview]]] = {
    "NONE": lambda _module: memoryview,
    "LZ4": _lz4_compressor,
    "ZLIB": lambda module: module.compress,
    "ZSTD": _zstd_compressor,
    "SNAPPY": lambda module: lambda data: memoryview(module.snappy.compress_raw(data)),
}
_compressors: dict[str, Callable[[ByteString], bytes | memoryview]] = {}

_LOADERS: dict[str, Callable[[ModuleType], Callable[[ByteString, int], bytes | memoryview]]] = {
    "NONE": _load_none,
    "LZ4": _load_lz4,
    "ZLIB": _load_zlib,
    "ZSTD": _load_zstd,
    "SNAPPY": _load_snappy,
}
_decompressors: dict[str, Callable[[ByteString, int], bytes | memoryview]] = {}
