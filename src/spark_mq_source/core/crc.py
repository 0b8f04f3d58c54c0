"""CRC32C (Castagnoli), the checksum of Pulsar's message metadata and payloads."""

from __future__ import annotations

import crc32c as _crc32c


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC32C of `data`: 0 to 2^32-1.

    Uses the processor's instruction if available: about 20 GB/s, 0.15 µs for a short message.

    Args:
        data: contiguous bytes; not copied.
        value: the CRC32C of the preceding bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
        >>> hex(crc32c(b"56789", crc32c(b"1234")))
        '0xe3069283'
    """
    return _crc32c.crc32c(data, value)
