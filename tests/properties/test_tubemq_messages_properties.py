"""Both of TubeMQ's decoders against each other, and against what protobuf's own encoder was told to write."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.core.errors import CorruptMessageError, MQSourceError, RemoteProtocolError
from spark_mq_source.tubemq.payload import _messages_python
from spark_mq_source.tubemq.payload._messages_python import first_message
from spark_mq_source.tubemq.payload.messages import MessageDecoder
from tests.protobuf import tubemq as tubemq_pb

_messages_native = pytest.importorskip("spark_mq_source.tubemq.payload._messages_native", exc_type=ImportError)

COLUMNS = {
    "value": pa.binary(),
    "topic": pa.string(),
    "broker_id": pa.int32(),
    "partition": pa.int32(),
    "message_id": pa.int64(),
    "message_time": pa.timestamp("us", "UTC"),
    "message_type": pa.string(),
    "attributes": pa.map_(pa.string(), pa.string()),
    "fetch_offset": pa.int64(),
}
ALL = pa.schema(list(COLUMNS.items()))
TEXT = pa.schema([("attributes", COLUMNS["attributes"]), ("value", pa.string())])
VALUE = pa.schema([("value", pa.binary())])
SCHEMAS = st.sampled_from([ALL, TEXT, VALUE, pa.schema([])])

words = st.text(st.characters(codec="utf-8", exclude_characters=",="), max_size=8) | st.sampled_from(["a", "b", "Aa"])
minutes = st.datetimes(min_value=datetime(1, 1, 1)).map(lambda t: f"{t.year:04}{t:%m%d%H%M}")
headers = st.fixed_dictionaries(
    {},
    optional={
        "$msgType$": words,
        "$msgTime$": minutes | words | st.text("0123456789", min_size=12, max_size=12),
    },
)
own = st.lists(st.tuples(words, words), max_size=25)
values = st.binary(max_size=300)
contents = st.tuples(values, st.none() | st.tuples(headers, own), st.integers(-(2**63), 2**63 - 1))


def payload_of(value: bytes, said: tuple[dict[str, str], list[tuple[str, str]]] | None) -> tuple[bytes, int]:
    if said is None:
        return value, 0
    text = ",".join(f"{k}={v}" for k, v in [*said[0].items(), *said[1]]).encode()
    return len(text).to_bytes(4, "big") + text + value, 1


def encode(messages: list[Any]) -> bytes:
    made = []
    for value, said, message_id in messages:
        payload, flag = payload_of(value, said)
        check_sum = zlib.crc32(payload) & 0x7FFFFFFF
        made.append(
            tubemq_pb.TransferedMessage(message_id=message_id, check_sum=check_sum, pay_load_data=payload, flag=flag)
        )
    return tubemq_pb.TransferedMessages(messages=made).SerializeToString()


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        if name == "attributes":
            columns[name] = [dict(items) for items in columns[name]]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


class Both:
    """Both decoders, given the same."""

    def __init__(self, schema: pa.Schema, **options: Any) -> None:
        self.decoders = [
            MessageDecoder(schema, topic="t", broker_id=1, partition=3, implementation=name, **options)
            for name in ("native", "python")
        ]

    def decode(self, body: bytes, fetch_offset: int = 28, stop_at: tuple[int, int] | None = None) -> Any:
        """What both did with the answer: rows appended, or the error's class and sentence."""
        outcomes: list[Any] = []
        for decoder in self.decoders:
            before = decoder.rows, decoder.nbytes
            outcome: Any
            try:
                outcome = decoder.decode(memoryview(body), fetch_offset, stop_at)
            except MQSourceError as error:
                outcome = type(error), str(error)
                assert (decoder.rows, decoder.nbytes) == before
            else:
                assert decoder.rows == before[0] + outcome
            outcomes.append((outcome, decoder.rows, decoder.nbytes, decoder.corrupt_messages))
        assert outcomes[0] == outcomes[1]
        return outcomes[0][0]

    def take(self) -> pa.RecordBatch:
        native, python = (decoder.take_batch() for decoder in self.decoders)
        native.validate(full=True)
        assert native.equals(python)
        return native


def time_of(text: str | None) -> int | None:
    if text is None or len(text) != 12 or not (text.isascii() and text.isdecimal()):
        return None
    try:
        parts = int(text[:4]), *(int(text[at : at + 2]) for at in range(4, 12, 2))
        time = datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        return None
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def row_of(value: bytes, said: tuple[dict[str, str], list[tuple[str, str]]] | None, message_id: int) -> dict[str, Any]:
    header, pairs = said or ({}, [])
    attributes: dict[str, str] = {}
    for key, item in pairs:
        attributes.setdefault(key, item)
    return {
        "value": value,
        "topic": "t",
        "broker_id": 1,
        "partition": 3,
        "message_id": message_id,
        "message_time": time_of(header.get("$msgTime$")),
        "message_type": header.get("$msgType$"),
        "attributes": attributes,
        "fetch_offset": 28,
    }


@settings(max_examples=300, deadline=None)  # a busy machine is no failure
@given(st.lists(contents, max_size=6), st.lists(contents, max_size=6))
def test_rows_are_what_was_written(first: list[Any], second: list[Any]) -> None:
    both = Both(ALL)
    for part in (first, second):
        assert both.decode(encode(part)) == len(part)
    assert to_rows(both.take()) == [row_of(*one) for one in [*first, *second]]


@settings(max_examples=100, deadline=None)
@given(st.lists(contents, max_size=6), st.sets(words, min_size=1, max_size=3), st.integers(0, 6))
def test_filters_and_the_stop_leave_out_what_they_should(messages: list[Any], filters: set[str], stop: int) -> None:
    both = Both(ALL, filters=filters)
    ids = [message_id for _, _, message_id in messages]
    kept = messages
    stop_at = None
    if stop < len(messages):
        stop_at = first_message(encode(messages[stop:]))
        assert stop_at is not None
        keys = [first_message(encode([one])) for one in messages]
        kept = messages[: keys.index(stop_at)]
        assert ids[len(kept)] == stop_at[0]
    both.decode(encode(messages), 28, stop_at)
    expected = [row_of(*one) for one in kept]
    assert to_rows(both.take()) == [row for row in expected if row["message_type"] in filters]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(contents, max_size=6),
    st.builds(
        tubemq_pb.GetMessageResponse, success=st.booleans(), err_code=st.integers(0, 999), err_msg=st.text(max_size=5)
    ),
    st.integers(0, 1 << 40),
)
def test_an_answer_without_its_messages(messages: list[Any], head: Any, most: int) -> None:
    tail = tubemq_pb.GetMessageResponse(curr_offset=most, max_offset=most)
    other = b"\x7d\0\0\0\0\x61\0\0\0\0\0\0\0\0"  # fields 15 and 12, of fixed sizes
    body = head.SerializeToString() + encode(messages) + other + tail.SerializePartialToString()
    expected = head.SerializeToString() + other + tail.SerializePartialToString()
    assert _messages_native.without_messages(body) == _messages_python.without_messages(body) == expected


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    body = bytearray(encode(draw(st.lists(contents, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        if draw(st.booleans()) and at < len(body):
            body[at] = draw(st.integers(0, 255))
        else:
            body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(body)


@settings(max_examples=600, deadline=None)
@given(mutated() | st.binary(max_size=60), SCHEMAS, st.sampled_from(["fail", "skip", "null"]))
@example(b"\x22\x00", ALL, "null")
@example(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ALL, "skip")
@example(b"\x22\x0a\x08\x01\x10\xff\xff\xff\xff\x0f\x1a\x00", ALL, "fail")
def test_garbage_has_the_same_outcome_in_both(body: bytes, schema: pa.Schema, on_corrupt: str) -> None:
    both = Both(schema, on_corrupt=on_corrupt)
    good = encode([(b"good", ({"$msgType$": "a"}, [("k", "v")]), 1)])
    both.decode(good)
    outcome = both.decode(body)
    assert isinstance(outcome, int) or outcome[0] in {CorruptMessageError, RemoteProtocolError}
    both.decode(good)
    both.take()
    others = []
    for implementation in (_messages_native, _messages_python):
        try:
            others.append(implementation.without_messages(body))
        except RemoteProtocolError as error:
            others.append(str(error))
    assert others[0] == others[1]


@settings(deadline=None)
@given(st.binary(max_size=40000))
def test_checksums_are_those_of_zlib(payload: bytes) -> None:
    both = Both(VALUE)
    assert both.decode(encode([(payload, None, 1)])) == 1
    damaged = encode([(payload + b"x", None, 1)])
    assert both.decode(damaged[:-3] + b"y" + damaged[-2:])[0] is CorruptMessageError


@settings(deadline=None)
@given(st.datetimes(min_value=datetime(1901, 1, 1)), st.sampled_from(["Europe/Berlin", "Asia/Shanghai", "UTC"]))
def test_zones_are_the_same_in_both(time: datetime, zone: str) -> None:
    both = Both(ALL, time_zone=zone)
    text = f"{time.year:04}{time:%m%d%H%M}"
    both.decode(encode([(b"", ({"$msgTime$": text}, []), 1)] * 3))
    both.take()
