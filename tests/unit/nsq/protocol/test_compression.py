from __future__ import annotations

import zlib
from collections.abc import Callable

import cramjam
import pytest

from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.nsq.protocol.compression import MAX_INPUT_BYTES, DeflateStream, SnappyStream, Stream
from tests.unit.nsq.vectors import CASES

STREAMS: list[Callable[[], Stream]] = [lambda: DeflateStream(6), SnappyStream]
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
OK_CHUNK = bytes.fromhex("010e000026982bcf00000006000000004f4b")


def recorded(case: str, key: str) -> list[bytes]:
    return [bytes.fromhex(event[key]) for event in CASES[case] if key in event]


def taken(stream: Stream, data: bytes) -> bytes:
    return b"".join(bytes(piece) for piece in stream.decompress(data))


def test_the_brokers_deflate_stream_is_inflated() -> None:
    stream = DeflateStream(6)
    for data, inflated in zip(
        recorded("deflate upgrade", "recv_deflate"), recorded("deflate upgrade", "inflated"), strict=True
    ):
        assert taken(stream, data) == inflated


def test_our_deflate_stream_is_the_recorded_one() -> None:
    sent = recorded("deflate upgrade", "send")[-1]
    plain = zlib.decompressobj(-zlib.MAX_WBITS).decompress(sent)
    assert plain == b"PUB vec_defl\n\x00\x00\x00\xc8" + b"z" * 200
    # The recorded client has sent it as the stream's first bytes, and so do we.
    assert DeflateStream(6).compress(plain) == sent


def test_the_brokers_snappy_stream_is_decompressed() -> None:
    (data,) = recorded("snappy upgrade", "recv_snappy")
    assert data == IDENTIFIER + OK_CHUNK
    assert taken(SnappyStream(), data) == bytes.fromhex("00000006000000004f4b")


def test_our_snappy_stream_has_the_framing_format() -> None:
    stream = SnappyStream()
    pieces = [b"hello", b"z" * 200_000, bytes(range(256)) * 3]
    packed = b"".join(stream.compress(piece) for piece in pieces)
    assert len(packed) < 30_000
    assert bytes(cramjam.snappy.decompress(packed)) == b"".join(pieces)


def test_the_snappy_stream_of_another_library_is_decompressed() -> None:
    data = b"some text, " * 30_000
    assert taken(SnappyStream(), bytes(cramjam.snappy.compress(data))) == data


@pytest.mark.parametrize("make", STREAMS, ids=["deflate", "snappy"])
def test_streams_may_come_in_any_pieces(make: Callable[[], Stream]) -> None:
    ours, theirs = make(), make()
    data = b"".join(ours.compress(b"message %d" % number) for number in range(20))
    got = b"".join(taken(theirs, data[at : at + 1]) for at in range(len(data)))
    assert got == b"".join(b"message %d" % number for number in range(20))


@pytest.mark.parametrize("make", STREAMS, ids=["deflate", "snappy"])
def test_each_piece_can_be_read_without_the_next(make: Callable[[], Stream]) -> None:
    ours, theirs = make(), make()
    for piece in (b"NOP\n", b"x" * 70_000, b"y"):
        assert taken(theirs, ours.compress(piece)) == piece


def test_a_decompression_bomb_is_read_in_pieces() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = bomb.compress(bytes(100 << 20)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    pieces = [len(piece) for piece in DeflateStream(6).decompress(data[:MAX_INPUT_BYTES])]
    assert max(pieces) <= 1 << 20
    assert sum(pieces) < 34 << 20


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\xff\xff\xff\xff", "damaged"), (zlib.compress(b"x")[2:-4] + b"more", "goes on after its end")],
)
def test_damaged_deflate(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        taken(DeflateStream(6), data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (OK_CHUNK, "expected stream header"),
        (b"\xff\x06\x00\x00sNaPpX", "stream header"),
        (IDENTIFIER + b"\x02\x00\x00\x00", "chunk type: 2"),
        (IDENTIFIER + b"\x01\xff\xff\xff", "a chunk of 16777215 bytes"),
        (IDENTIFIER + OK_CHUNK[:-1] + b"x", "checksum"),
        (IDENTIFIER + b"\x00\x07\x00\x00....\xff\xff\x7f", "damaged"),
        (IDENTIFIER + b"\x00\x06\x00\x00....\x05\x00", "damaged"),
    ],
)
def test_damaged_snappy(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        taken(SnappyStream(), data)


def test_skippable_chunks_are_skipped() -> None:
    padding = b"\xfe\x03\x00\x00..." + b"\x80\x01\x00\x00x"
    data = IDENTIFIER + padding + OK_CHUNK + IDENTIFIER + OK_CHUNK
    assert taken(SnappyStream(), data) == bytes.fromhex("00000006000000004f4b") * 2
