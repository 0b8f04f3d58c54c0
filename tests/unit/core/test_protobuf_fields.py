from __future__ import annotations

import pytest

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf_fields import signed32, take_fields
from spark_mq_source.core.varint import take_varint


def fields(text: str) -> list[tuple[int, int, int]]:
    data = bytes.fromhex(text)
    return list(take_fields(data, 0, len(data)))


def test_numbers_bytes_and_fixed_widths_are_yielded() -> None:
    # Field 1 is a number, 2 fixed64, 3 fixed32, 4 of three bytes, 17 with a tag of two bytes.
    text = "0805 11" + "00" * 8 + "1d" + "00" * 4 + "2203 616263 880107"
    assert fields(text) == [(8, 5, 2), (17, 3, 11), (29, 12, 16), (34, 18, 21), (136, 7, 24)]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("0005", "impossible number"),
        ("2204 616263", "reaches past the end"),
        ("11" + "00" * 7, "reaches past the end"),
        ("0b", "unknown wire type"),
        ("08" + "80" * 3, "does not end"),
        ("08" + "80" * 10 + "01", "does not end"),
    ],
)
def test_anything_else_is_corrupt(text: str, mistake: str) -> None:
    with pytest.raises(CorruptMessageError, match=mistake):
        fields(text)


def test_varints_are_of_64_bits_and_int32_keeps_the_lower_half() -> None:
    assert take_varint(b"\xff" * 9 + b"\x7f", 0, 10) == (2**64 - 1, 10)
    assert [signed32(value) for value in (2**31 - 1, 2**31, 2**64 - 1)] == [2**31 - 1, -(2**31), -1]
