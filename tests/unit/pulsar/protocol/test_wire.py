from __future__ import annotations

import pytest

from spark_mq_source.core.connection import missing_bytes
from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.pulsar.protocol.wire import encode_frame, take_frame

LIMIT = 1 << 20


@pytest.mark.parametrize("body", [None, b"body"])
def test_every_proper_prefix_is_incomplete_and_reports_missing_bytes(body: bytes | None) -> None:
    data = encode_frame(b"command", body)
    for size in range(len(data)):
        part = memoryview(data[:size])
        assert take_frame(part, 0, LIMIT) is None
        assert 1 <= missing_bytes(part, 0) <= len(data) - size
        if size >= 4:
            assert missing_bytes(part, 0) == len(data) - size


@pytest.mark.parametrize(
    ("start", "words"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", "HTTP server", id="http"),
        pytest.param(b"HTTP", "HTTP server", id="http, four bytes"),
        pytest.param(bytes.fromhex("15030300020246"), r"TLS port: use pulsar\+ssl://", id="tls alert"),
        pytest.param(bytes.fromhex("1603030050020000"), "TLS port", id="tls handshake"),
        pytest.param(bytes.fromhex("ffffffff"), "4294967295 bytes", id="4 GiB"),
        pytest.param((LIMIT + 1).to_bytes(4, "big"), "1048577 bytes", id="one over the limit"),
        pytest.param(bytes.fromhex("00000003"), "3 bytes was announced", id="no room for the command's size"),
        pytest.param(bytes.fromhex("00000000"), "0 bytes", id="empty"),
        pytest.param(bytes.fromhex("0000000800000005"), "cannot hold a command of 5", id="command over the frame"),
        pytest.param(bytes.fromhex("00000008ffffffff"), "cannot hold", id="command of 4 GiB"),
    ],
)
def test_impossible_sizes_are_refused_as_soon_as_they_are_read(start: bytes, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        take_frame(memoryview(start), 0, LIMIT)


def test_the_largest_frame_is_accepted() -> None:
    data = encode_frame(b"c", bytes(LIMIT - 5))
    frame = take_frame(memoryview(data), 0, LIMIT)
    assert frame is not None
    assert frame.size == LIMIT + 4
