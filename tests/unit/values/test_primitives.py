"""Primitive payloads, in the Java client's layout, are decoded to the values that were written."""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.decoder import ValueDecoder
from spark_mq_source.values.primitives import primitive_decoder, primitive_type_of

UTC = datetime.timezone.utc
FORMATS = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float": "f", "double": "d", "date": "q",
    "timestamp": "q", "time": "q", "instant": "qi", "local_date": "q", "local_time": "q", "local_date_time": "qq",
}  # fmt: skip
SIZES = {kind: struct.calcsize(f">{form}") for kind, form in FORMATS.items()}


def decoder_of(kind: str) -> ValueDecoder:
    return primitive_decoder(kind, primitive_type_of(kind))


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("bool", "00", False),
        ("bool", "01", True),
        ("bool", "02", True),
        ("int8", "80", -128),
        ("int16", "0102", 258),
        ("int32", "fffffffe", -2),
        ("int64", "0102030405060708", 0x0102030405060708),
        ("float", "3fc00000", 1.5),
        ("double", "bff8000000000000", -1.5),
        ("double", "7ff0000000000000", math.inf),
        ("string", "c3a4", "ä"),
        ("string", "", ""),
        ("date", "00000000000003e8", datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("timestamp", "ffffffffffffffff", datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("time", "0000000000000001", 1),
        ("instant", "000000000000000100000bb8", datetime.datetime(1970, 1, 1, 0, 0, 1, 3, tzinfo=UTC)),
        ("instant", "ffffffffffffffff3b9ac9ff", datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("local_date", "ffffffffffffffff", datetime.date(1969, 12, 31)),
        ("local_time", "00004e94914effff", 86_399_999_999_999),
        ("local_date_time", "0000000000000001000000000001e0f3", datetime.datetime(1970, 1, 2, 0, 0, 0, 123)),
    ],
)
def test_payloads_of_the_java_client(kind: str, payload: str, value: Any) -> None:
    decoded = decoder_of(kind).decode(pa.array([bytes.fromhex(payload)], pa.binary()))
    assert decoded.reasons == {}
    assert decoded.values.type == primitive_type_of(kind)
    assert decoded.values.to_pylist() == [value]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_payload_of_another_length_has_a_reason_and_leaves_no_state(kind: str) -> None:
    size = SIZES[kind]
    good = (1).to_bytes(size, "big")
    payloads = pa.array([good, good[1:], None, good + b"\x00", b"", good], pa.binary())
    decoded = decoder_of(kind).decode(payloads)
    alone = decoder_of(kind).decode(pa.array([good, good], pa.binary()))
    assert sorted(decoded.reasons) == [1, 3, 4]
    assert f"the payload has {size + 1}" in decoded.reasons[3]
    assert decoded.values.is_valid().to_pylist() == [True, False, False, False, False, True]
    assert decoded.values.drop_null().equals(alone.values)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("timestamp", (2**63 // 1000,)),
        ("date", (-(2**63),)),
        ("instant", (2**63 // 1_000_000, 0)),
        ("instant", (0, -1)),
        ("instant", (0, 1_000_000_000)),
        ("local_date", (2**31,)),
        ("local_time", (-1,)),
        ("local_time", (86_400_000_000_000,)),
        ("local_date_time", (2**40, 0)),
        ("local_date_time", (0, 86_400_000_000_000)),
    ],
)
def test_values_that_spark_cannot_hold_have_a_reason(kind: str, numbers: tuple[int, ...]) -> None:
    form = ">" + FORMATS[kind]
    payloads = [struct.pack(form, *numbers), struct.pack(form, *[7] * len(numbers))]
    decoded = decoder_of(kind).decode(pa.array(payloads))
    assert decoded.reasons == {0: f"the {kind} 0x{payloads[0].hex()} is out of range"}
    assert decoded.values.is_valid().to_pylist() == [False, True]


def test_a_string_that_is_not_utf8_has_a_reason() -> None:
    decoded = decoder_of("string").decode(pa.array([b"ok", b"a\xff", None, "ö".encode()], pa.binary()))
    assert decoded.values.to_pylist() == ["ok", None, None, "ö"]
    assert decoded.reasons == {1: "the payload is not UTF-8: invalid start byte at byte 1"}


NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "float": st.floats(allow_nan=False, width=32),
    "bool": st.booleans(),
}


@given(st.data(), st.sampled_from(sorted(NUMBERS)))
def test_values_survive_in_slices_of_batches(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(st.none() | NUMBERS[kind], max_size=20))
    payloads = pa.array([None if v is None else struct.pack(f">{FORMATS[kind]}", v) for v in values], pa.binary())
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values)))
    decoded = decoder_of(kind).decode(payloads.slice(first, count))
    assert decoded.reasons == {}
    decoded.values.validate(full=True)
    assert decoded.values.to_pylist() == values[first : first + count]


@pytest.mark.parametrize(
    ("kind", "wanted", "value"),
    [
        ("int8", pa.int64(), 1),
        ("int32", pa.float64(), 1.0),
        ("int64", pa.decimal128(21, 2), Decimal("1.00")),
        ("float", pa.float64(), struct.unpack(">f", b"\x00\x00\x00\x01")[0]),
        ("timestamp", pa.timestamp("us", "Europe/Paris"), datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        ("local_time", pa.time64("ns"), datetime.time(0)),
        ("string", pa.binary(), b"\x01"),
    ],
)
def test_a_wider_type_can_be_requested(kind: str, wanted: pa.DataType, value: Any) -> None:
    payload = (1).to_bytes(SIZES.get(kind, 1), "big")
    decoded = primitive_decoder(kind, wanted).decode(pa.array([payload, None, b"too long" * 3], pa.binary()))
    assert decoded.values.type == wanted
    if kind == "local_time":  # Python has no nanoseconds
        assert decoded.values.cast(pa.int64()).to_pylist() == [1, None, None]
    else:
        assert decoded.values.to_pylist()[:2] == [value, None]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("int64", pa.int32()), ("int64", pa.float64()), ("int64", pa.decimal128(19, 1)), ("double", pa.float32()),
        ("date", pa.date32()), ("timestamp", pa.timestamp("us")), ("time", pa.time64("ns")), ("string", pa.int8()),
        ("bool", pa.int8()), ("int32", pa.uint64()), ("local_date_time", pa.timestamp("us", "UTC")),
    ],
)  # fmt: skip
def test_lossy_types_are_refused(kind: str, wanted: pa.DataType) -> None:
    with pytest.raises(OptionError, match=f"values of the primitive {kind} are .* do not become"):
        primitive_decoder(kind, wanted)
