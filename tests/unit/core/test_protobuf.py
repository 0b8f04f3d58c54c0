from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

import pytest

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf import Int32, Int64, MissingFieldsError, ProtobufCodec, Uint32, Uint64
from spark_mq_source.core.varint import encode_sized
from tests.protobuf import Classes


class Kind(IntEnum):
    NONE = 0
    LZ4 = 1


class Pair(NamedTuple):
    key: Annotated[str, 1]
    value: Annotated[str, 2] = "default"


@dataclass(frozen=True)
class Everything:
    """A message whose fields are not in wire order, and include one that is not on the wire."""

    name: Annotated[str, 2]
    id: Annotated[Uint64, 1]
    beside: str = "not on the wire"
    small: Annotated[Int32, 3] = -1
    count: Annotated[Uint32 | None, 4] = None
    time: Annotated[Int64 | None, 500] = None
    rate: Annotated[float, 6] = 0.0
    is_it: Annotated[bool | None, 7] = None
    data: Annotated[bytes, 8] = b""
    kind: Annotated[Kind | None, 9] = None
    words: Annotated[tuple[Int64, ...], 10] = ()
    pairs: Annotated[tuple[Pair, ...], 11] = ()
    texts: Annotated[tuple[str, ...], 12] = ()
    within: Annotated[Everything | None, 13] = None


class Ping(NamedTuple):
    """A message without fields."""


PROTOBUF = Classes("test", Everything, Ping)
MOST = Everything(
    "ä",
    2**63 - 1,
    "not on the wire",
    -5,
    2**32 - 1,
    -(2**63),
    0.5,
    True,
    b"\xff",
    Kind.LZ4,
    (-1, 300),
    (Pair("k", ""),),
    ("t",),
)


def decode(text: str, kind: type = Everything) -> object:
    return ProtobufCodec().decode(kind, bytes.fromhex(text), **({"beside": "given"} if kind is Everything else {}))


@pytest.mark.parametrize("message", [Everything("", 0), MOST, Everything("n", 1, within=MOST), Ping()])
def test_encoding_agrees_with_protobuf(message: object) -> None:
    codec = ProtobufCodec()
    data = codec.encode(message)
    theirs = PROTOBUF.of[type(message)].FromString(data)
    assert theirs.SerializeToString() == data
    given = {} if isinstance(message, Ping) else {"beside": message.beside}  # type: ignore[attr-defined]
    assert codec.decode(type(message), data, **given) == message


def test_unsigned_numbers_of_2_to_the_63_and_more_are_negative() -> None:
    for number in (-1, 2**64 - 1):
        data = ProtobufCodec().encode(Everything("", number))
        assert PROTOBUF.Everything.FromString(data).id == 2**64 - 1
        assert ProtobufCodec().decode(Everything, data).id == -1


def test_classes_can_omit_defaults() -> None:
    for codec, written in ((ProtobufCodec(), True), (ProtobufCodec({Everything}), False)):
        message = PROTOBUF.Everything.FromString(codec.encode(Everything("", 0)))
        assert message.HasField("small") is written
        assert message.HasField("id")
        assert not message.HasField("count")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Everything(None, 7), ValueError),  # type: ignore[arg-type]
        (Everything("n", None), ValueError),  # type: ignore[arg-type]
        (Everything(7, 7), TypeError),  # type: ignore[arg-type]
        (Everything("n", "7"), TypeError),  # type: ignore[arg-type]
        (Everything("n", 7, data="text"), TypeError),  # type: ignore[arg-type]
        (Everything("n", 7, data=7), TypeError),  # type: ignore[arg-type]
        (Everything("n", 7, words=7), TypeError),  # type: ignore[arg-type]
        (Everything("n", 2**64), ValueError),
        (Everything("n", 7, small=2**31), ValueError),
        (Everything("n", 7, small=-(2**31) - 1), ValueError),
        (Everything("n", 7, count=-1), ValueError),
        (Everything("n", 7, count=2**32), ValueError),
        (Everything("n", 7, time=2**63), ValueError),
        (Everything("\ud800", 1), ValueError),
    ],
)
def test_values_that_do_not_fit_are_refused(message: Everything, error: type[Exception]) -> None:
    with pytest.raises(error):
        ProtobufCodec().encode(message)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param("0801 1200", Everything("", 1, "given"), id="defaults"),
        pytest.param("0801 1200 0802", Everything("", 2, "given"), id="the last one counts"),
        pytest.param("0801 1200 3a00 a00101 2a0161", Everything("", 1, "given"), id="another type, other numbers"),
        pytest.param("0801 1200 18ffffffff0f", Everything("", 1, "given", -1), id="32 bits"),
        pytest.param("0801 1200 5203010203 5004", Everything("", 1, "given", words=(1, 2, 3, 4)), id="packed"),
        pytest.param(
            "0801 1200 6a020805 6a03120161",
            Everything("", 1, "given", within=Everything("a", 5)),
            id="a message in two parts",
        ),
    ],
)
def test_valid_encodings_of_peers_are_read(data: str, expected: Everything) -> None:
    assert decode(data) == expected


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ("08", CorruptMessageError, "Everything|rror parsing"),
        ("0a02", CorruptMessageError, "Everything|rror parsing"),
        ("0801 1200 520180", CorruptMessageError, "Everything|rror parsing"),
        ("00", CorruptMessageError, "Everything|rror parsing"),
        ("0801 1201ff", ValueError, "(?i)utf-8"),
        ("0801 1200 4809", ValueError, "9 is not a valid Kind"),
        ("", MissingFieldsError, "name.*id"),
        ("0801 1200 5a00", MissingFieldsError, r"pairs\[0\]\.key"),
        ("0801 1200 6a00", MissingFieldsError, r"within\.name.*within\.id"),
    ],
)
def test_invalid_bytes_are_refused(data: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        decode(data)


def test_recursive_messages_end() -> None:
    data = b""
    for _ in range(1000):
        data = b"\x6a" + encode_sized(data)
    with pytest.raises(CorruptMessageError):
        ProtobufCodec().decode(Everything, data)
