from __future__ import annotations

import pytest

from spark_mq_source.core.connection import missing_bytes
from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.nsq.protocol.wire import ERROR, MESSAGE, RESPONSE, encode_command, encode_frame, take_frame
from tests.unit.nsq.vectors import FROM_NSQD, sent

LIMIT = 1 << 20


def test_every_recorded_frame_is_parsed() -> None:
    for data in FROM_NSQD:
        frame = take_frame(memoryview(data + b"next"), 0, LIMIT)
        assert frame is not None
        assert (frame.size, frame.kind) == (len(data), int.from_bytes(data[4:8], "big"))
        assert encode_frame(frame.kind, bytes(frame.data)) == data
    assert {int.from_bytes(data[4:8], "big") for data in FROM_NSQD} == {RESPONSE, ERROR, MESSAGE}


def test_an_incomplete_frame_is_waited_for() -> None:
    data = FROM_NSQD[0]
    for size in range(len(data)):
        part = memoryview(data[:size])
        assert take_frame(part, 0, LIMIT) is None
        assert 0 < missing_bytes(part, 0) <= len(data) - size or size < 4


def test_commands_are_encoded_as_recorded() -> None:
    assert encode_command(b"PUB", b"vec_pub", body=b"hello") == sent("pub ok", 1)
    assert encode_command(b"NOP") == sent("nop is silent", 1)
    assert encode_command(b"DPUB", b"vec_dpub", b"1500", body=b"hi") == sent("dpub ok", 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request", "an HTTP server"),
        (bytes.fromhex("15030100020246"), "a TLS port"),
        (bytes.fromhex("16030100020246"), "a TLS port"),
        (bytes.fromhex("00000003 00000000"), "a frame of 3 bytes"),
        (bytes.fromhex("7fffffff"), "a frame of 2147483647 bytes"),
        (bytes.fromhex("ffffffff"), "a frame of 4294967295 bytes"),
        (bytes.fromhex("00000006 00000003 4f4b"), "unknown type 3"),
    ],
)
def test_invalid_frames_are_refused_as_soon_as_possible(data: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        take_frame(memoryview(data), 0, LIMIT)
