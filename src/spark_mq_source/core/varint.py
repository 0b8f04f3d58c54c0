"""Protobuf varints: https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.errors import CorruptMessageError

_UINT64: Final = 1 << 64
_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))


def encode_varint(value: int) -> bytes:
    """Encode a 64-bit varint; a negative number takes ten bytes.

    Example:
        >>> encode_varint(300).hex()
        'ac02'
    """
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value %= _UINT64
    encoded = []
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_sized(data: bytes) -> bytes:
    r"""Encode bytes after their size.

    Example:
        >>> encode_sized(b"abc")
        b'\x03abc'
    """
    return encode_varint(len(data)) + data


def take_varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Decode the unsigned 64-bit varint at `at`; return its value and its end.

    Raises:
        CorruptMessageError: the varint does not end before `end`, or within ten bytes.

    Example:
        >>> take_varint(bytes.fromhex("9601"), 0, 2)
        (150, 2)
    """
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise CorruptMessageError("a protobuf number does not end")
