from __future__ import annotations

import itertools

import pytest

from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.tubemq.protocol.wire import BLOCK_BYTES, MAX_BLOCKS, MAX_PAYLOAD_BYTES, encode_frame, take_frame
from tests.vectors import RecordedCall, tubemq_calls

HEAD = "ff7ff4fe 00000007"


@pytest.mark.parametrize("recorded", tubemq_calls(), ids=str)
def test_a_recorded_frame_is_split_and_joined(recorded: RecordedCall) -> None:
    for data in (recorded.request, recorded.answer):
        frame = take_frame(memoryview(b"before" + data + b"\xff\x7ftrailing"), 6)
        assert frame is not None
        assert frame.size == len(data)
        assert encode_frame(frame.serial_no, bytes(frame.payload)) == data


@pytest.mark.parametrize("size", [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_a_payload_is_split_into_blocks_of_8192(size: int) -> None:
    payload = bytes(n % 251 for n in range(size))
    data = encode_frame(-3, payload)
    assert int.from_bytes(data[8:12], "big") == -(-size // 8192)
    assert int.from_bytes(data[12:16], "big") == min(size, 8192)
    frame = take_frame(memoryview(data), 0)
    assert frame is not None
    assert (frame.serial_no, bytes(frame.payload), frame.size) == (-3, payload, len(data))


def test_blocks_of_any_size_are_read() -> None:
    data = bytes.fromhex(f"{HEAD} 00000004 00000001 61 00000000 00000003 626364 00000001 65")
    frame = take_frame(memoryview(data), 0)
    assert frame is not None
    assert bytes(frame.payload) == b"abcde"


@pytest.mark.parametrize("payload", [b"payload", bytes(2 * BLOCK_BYTES + 3)], ids=["one block", "three blocks"])
def test_every_proper_prefix_needs_more_bytes(payload: bytes) -> None:
    data = memoryview(encode_frame(1, payload))
    for size in itertools.chain(range(40), range(8180, 8230), [len(data) - 1]):
        if size < len(data):
            assert take_frame(data[:size], 0) is None


@pytest.mark.parametrize(
    ("start", "words"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", "HTTP server", id="http"),
        pytest.param(b"HTTP", "HTTP server", id="http, four bytes"),
        pytest.param(bytes.fromhex("15030300020246"), "TLS port: set tls=true", id="tls alert"),
        pytest.param(bytes.fromhex("1603030050020000"), "TLS port", id="tls handshake"),
        pytest.param(bytes.fromhex("ff7ff4ff"), "begins with ff7ff4ff", id="another token"),
        pytest.param(bytes.fromhex(f"{HEAD} 00000000"), "0 blocks", id="no block"),
        pytest.param(bytes.fromhex(f"{HEAD} ffffffff"), "-1 blocks", id="-1 blocks"),
        pytest.param(bytes.fromhex(f"{HEAD} 00000e01"), "3585 blocks", id="one block too many"),
        pytest.param(bytes.fromhex(f"{HEAD} 00000001 ffffffff"), "block of -1 bytes", id="a block of -1 bytes"),
        pytest.param(bytes.fromhex(f"{HEAD} 00000001 7fffffff"), "at most 29360128", id="a block of 2 GiB"),
        pytest.param(bytes.fromhex(f"{HEAD} 00000002 00000001 61 01c00000"), "29360129 in all", id="too much in all"),
    ],
)
def test_invalid_frames_are_refused_as_soon_as_they_are_read(start: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        take_frame(memoryview(start), 0)


def test_the_largest_frame_is_written_and_read() -> None:
    data = encode_frame(1, bytes(MAX_PAYLOAD_BYTES))
    assert int.from_bytes(data[8:12], "big") == MAX_BLOCKS
    frame = take_frame(memoryview(data), 0)
    assert frame is not None
    assert len(frame.payload) == MAX_PAYLOAD_BYTES


@pytest.mark.parametrize("size", [0, MAX_PAYLOAD_BYTES + 1])
def test_frames_that_no_server_accepts_are_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"{size} bytes cannot be sent"):
        encode_frame(1, bytes(size))
