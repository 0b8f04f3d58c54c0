"""Reads protobuf messages field by field for interpreted loops: cheaper than one object per message.

Encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.varint import take_varint

CORRUPT_FIELDS: Final = {
    -1: "a protobuf number does not end",
    -2: "a protobuf field has an impossible number",
    -3: "a protobuf field reaches past the end",
    -4: "a protobuf field has an unknown wire type",
}
"""Error texts, by the value that the compiled `read_field` returns."""


def take_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each field of a protobuf message: tag, value (of a varint) or start offset (others), and end offset.

    Raises:
        CorruptMessageError: not a protobuf message.

    Example:
        >>> list(take_fields(bytes.fromhex("0896011202ffff"), 0, 7))
        [(8, 150, 3), (18, 5, 7)]
    """
    while at < end:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = take_varint(data, at, end)
        wire_type = tag & 7
        if tag < 8 or tag > 0xFFFFFFFF:
            raise CorruptMessageError(CORRUPT_FIELDS[-2])
        if wire_type == 0:
            value, at = take_varint(data, at, end)
            yield tag, value, at
        elif wire_type == 2:
            size, at = take_varint(data, at, end)
            start = at
            at += size
            if at > end:
                raise CorruptMessageError(CORRUPT_FIELDS[-3])
            yield tag, start, at
        elif wire_type in (1, 5):
            start = at
            at += 8 if wire_type == 1 else 4
            if at > end:
                raise CorruptMessageError(CORRUPT_FIELDS[-3])
            yield tag, start, at
        else:
            raise CorruptMessageError(CORRUPT_FIELDS[-4])


def signed32(value: int) -> int:
    """Convert a varint to an int32.

    Example:
        >>> signed32(0xFFFFFFFFFFFFFFFF)
        -1
    """
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value
