from __future__ import annotations

import pytest

from spark_mq_source.core.crc import crc32c


# RFC 3720, appendix B.4.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_known_checksums(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert crc32c(memoryview(b"x" + data)[1:]) == expected
    assert crc32c(bytearray(data)) == expected
