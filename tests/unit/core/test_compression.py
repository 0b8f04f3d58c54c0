from __future__ import annotations

import sys
import tracemalloc
import zlib

import cramjam
import lz4.block
import pytest
import zstandard

from spark_mq_source.core import compression
from spark_mq_source.core.compression import CODECS, decompress
from spark_mq_source.core.errors import CorruptMessageError, UnsupportedFeatureError

TEXT = b"".join(b"some text %d, and so on; " % (n * 7919) for n in range(500))


def compress(codec: str, data: bytes) -> bytes:
    if codec == "LZ4":
        return lz4.block.compress(data, store_size=False)
    if codec == "ZLIB":
        return zlib.compress(data)
    if codec == "ZSTD":
        return zstandard.compress(data)
    if codec == "SNAPPY":
        return bytes(cramjam.snappy.compress_raw(data))
    return data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(100_000)], ids=len)
def test_data_of_any_compressor_is_decompressed(codec: str, data: bytes) -> None:
    ours = compression.compress(codec, memoryview(data))
    assert len(ours) < max(len(data), 20) or codec == "NONE"
    for compressed in (compress(codec, data), memoryview(b"--" + compress(codec, data))[2:], ours):
        assert bytes(decompress(codec, compressed, len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("difference", [-len(TEXT), -1, 1, 1000])
def test_any_other_size_than_announced_is_corrupt(codec: str, difference: int) -> None:
    with pytest.raises(CorruptMessageError, match=codec):
        decompress(codec, compress(codec, TEXT), len(TEXT) + difference)


def test_an_empty_payload_without_a_frame_is_empty() -> None:
    assert decompress("ZSTD", b"", 0) == b""
    with pytest.raises(CorruptMessageError):
        decompress("ZSTD", b"", 1)


@pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("garbage", [b"", b"\0", b"\xff" * 40, b"\x28\xb5\x2f\xfd", bytes(range(256))], ids=len)
def test_garbage_is_corrupt(codec: str, garbage: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        decompress(codec, garbage, 12_345)


@pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_every_proper_prefix_is_corrupt_or_complete(codec: str) -> None:
    data = TEXT[:300]
    compressed = compress(codec, data)
    for size in range(len(compressed)):
        try:
            assert bytes(decompress(codec, compressed[:size], len(data))) == data
        except CorruptMessageError:
            continue
        # Only bytes behind the data may be missing: ZLIB's checksum.
        assert codec == "ZLIB"
        assert size >= len(compressed) - 5


@pytest.mark.parametrize("codec", ["ZLIB", "ZSTD", "SNAPPY", "LZ4"])
def test_decompression_stops_at_the_announced_size(codec: str) -> None:
    bomb = compress(codec, bytes(10_000_000))
    decompress(codec, compress(codec, b"warm"), 4)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessageError):
            decompress(codec, bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_zstd_frames_that_do_not_state_their_size() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    compressed = compressor.compress(TEXT) + compressor.flush()
    assert zstandard.frame_content_size(compressed) == -1
    assert decompress("ZSTD", compressed, len(TEXT)) == TEXT
    with pytest.raises(CorruptMessageError):
        decompress("ZSTD", compressed, len(TEXT) - 1)


def test_a_zlib_stream_that_was_flushed_and_never_finished() -> None:
    # The output of the Java client's codec: Deflater with SYNC_FLUSH, without finish().
    compressor = zlib.compressobj()
    compressed = compressor.compress(TEXT) + compressor.flush(zlib.Z_SYNC_FLUSH)
    assert decompress("ZLIB", compressed, len(TEXT)) == TEXT


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(UnsupportedFeatureError, match="'BROTLI' is not supported; known are NONE, LZ4"):
        decompress("BROTLI", b"", 0)
    with pytest.raises(UnsupportedFeatureError, match="'BROTLI' is not supported; known are NONE, LZ4"):
        compression.compress("BROTLI", b"")


def test_a_negative_size_is_corrupt() -> None:
    with pytest.raises(CorruptMessageError, match="impossible size of -1 bytes"):
        decompress("LZ4", b"", -1)


@pytest.mark.parametrize(
    ("codec", "package", "extra"),
    [("LZ4", "lz4.block", "lz4"), ("ZSTD", "zstandard", "zstd"), ("SNAPPY", "cramjam", "snappy")],
)
def test_a_missing_package_is_named_with_its_extra(
    codec: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    compression._loaded.cache_clear()
    with pytest.raises(UnsupportedFeatureError, match=rf"install spark-mq-source\[{extra}\] on every executor"):
        decompress(codec, b"", 0)
    with pytest.raises(UnsupportedFeatureError, match=rf"install spark-mq-source\[{extra}\] on every executor"):
        compression.compress(codec, b"")
