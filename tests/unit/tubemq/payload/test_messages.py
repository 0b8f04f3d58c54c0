"""Both decoders of TubeMQ's messages: recorded answers, rows, errors, and decoding after errors."""

from __future__ import annotations

import gc
import json
import zlib
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import CorruptMessageError, OptionError, RemoteProtocolError
from spark_mq_source.tubemq.payload.columns import COLUMNS
from spark_mq_source.tubemq.payload.layout import MissingMessagesError, first_message
from spark_mq_source.tubemq.payload.messages import MessageDecoder
from spark_mq_source.tubemq.protocol.codec import decode_response
from spark_mq_source.tubemq.protocol.commands import GetMessageResponse
from spark_mq_source.tubemq.protocol.wire import take_frame
from tests.protobuf import tubemq as tubemq_pb
from tests.readable import schema_of
from tests.unit.standins import both_loops
from tests.vectors import FOLDER

impl = both_loops("spark_mq_source.tubemq.payload._messages_native")

ALL = schema_of(COLUMNS, without=("_corrupt", "_error"))
VALUE = pa.schema([("value", pa.binary())])


def decoder(impl: str, schema: pa.Schema = ALL, **options: Any) -> MessageDecoder:
    return MessageDecoder(schema, topic="t", broker_id=1, partition=10_002, implementation=impl, **options)


def message(
    value: bytes = b"", attributes: str | bytes | None = None, *, message_id: int = 7, check_sum: int | None = None
) -> Any:
    payload, flag = value, 0
    if attributes is not None:
        text = attributes if isinstance(attributes, bytes) else attributes.encode()
        payload, flag = len(text).to_bytes(4, "big") + text + value, 1
    if check_sum is None:
        check_sum = zlib.crc32(payload) & 0x7FFFFFFF
    return tubemq_pb.TransferedMessage(message_id=message_id, check_sum=check_sum, pay_load_data=payload, flag=flag)


def answer(*messages: Any) -> bytes:
    head = tubemq_pb.GetMessageResponse(success=True, err_code=200).SerializeToString()
    return head + tubemq_pb.TransferedMessages(messages=messages).SerializeToString() + b"\x28\xf0\x15"


def taken(d: MessageDecoder) -> list[dict[str, Any]]:
    batch = d.take_batch()
    batch.validate(full=True)
    return [{k: dict(v) if k == "attributes" else v for k, v in row.items()} for row in batch.to_pylist()]


def rows_of(impl: str, *messages: Any, **options: Any) -> list[dict[str, Any]]:
    d = decoder(impl, **options)
    count = d.decode(memoryview(answer(*messages)), 2800)
    rows = taken(d)
    assert len(rows) == count
    return rows


def broken(message_id: int = 9) -> Any:
    return message(b"broken", message_id=message_id, check_sum=1)


# Recorded answers


def recorded(name: str) -> bytes:
    """Return the body of a recorded answer to GET_MESSAGE."""
    for line in (FOLDER / "tubemq" / "server-2.4.0.jsonl").read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        if item["name"] == name:
            return get_message_body(bytes.fromhex(item["recv"]))
    raise AssertionError(name)


def get_message_body(frame: bytes) -> bytes:
    found = take_frame(memoryview(frame), 0)
    assert found is not None
    _, response = decode_response(found)
    assert isinstance(response, GetMessageResponse)
    return bytes(response.body)


def test_messages_of_a_real_broker(impl: str) -> None:
    body = recorded("broker.getMessage (17) 200 with messages (first fetch)")
    d = decoder(impl)
    assert d.decode(body, 34720112) == 3
    plain, typed, large = taken(d)
    assert plain == {
        "value": b"hello tubemq",
        "topic": "t",
        "broker_id": 1,
        "partition": 10_002,
        "message_id": 234145655977672704,
        "message_time": None,
        "message_type": None,
        "attributes": {},
        "fetch_offset": 34720112,
    }
    assert typed["value"] == "k\u00e4se".encode()
    assert typed["message_type"] == "a"
    assert typed["message_time"] == datetime(2026, 11, 21, 3, 40, tzinfo=timezone.utc)
    assert typed["attributes"] == {}
    assert large["value"] == b"Z" * 20_000
    assert first_message(body) == (234145655977672704, 1242675533)


def test_every_column_has_the_value_of_its_field(impl: str) -> None:
    d = decoder(impl, schema_of(COLUMNS), on_corrupt="null")
    assert d.decode(answer(message(b"v", "$msgType$=a,$msgTime$=202611231200,k=v"), broken(9)), 2800) == 2
    whole, corrupt = taken(d)
    assert [name for name in COLUMNS.readable if whole[name] is None] == ["_corrupt", "_error"]
    assert corrupt["_corrupt"] is not None
    assert corrupt["_error"] is not None
    assert whole == {
        "value": b"v", "topic": "t", "broker_id": 1, "partition": 10_002, "message_id": 7, "attributes": {"k": "v"},
        "message_time": datetime(2026, 11, 23, 12, tzinfo=timezone.utc), "message_type": "a", "fetch_offset": 2800,
        "_corrupt": None, "_error": None,
    }  # fmt: skip


def test_an_answer_without_messages(impl: str) -> None:
    body = recorded("broker.getMessage (17) 200 with no message (not the end)")
    d = decoder(impl)
    assert d.decode(body, 34719720) == 0
    assert taken(d) == []
    assert first_message(body) is None


# Contents


@pytest.mark.parametrize("text", ["202611212440", "202611210360", "20261121034x"])
def test_an_invalid_time_is_null(impl: str, text: str) -> None:
    assert rows_of(impl, message(b"", f"$msgTime$={text}"))[0]["message_time"] is None


def test_only_messages_of_the_filtered_types_are_decoded(impl: str) -> None:
    # "Aa" and "BB" have the same hash in Java, so a broker sends both.
    found = [message(t.encode(), f"$msgType$={t},k={t}") for t in ("Aa", "BB", "AaBB", "c")] + [message(b"none")]
    rows = rows_of(impl, *found, filters=["Aa", "c"])
    assert [(row["value"], row["attributes"]) for row in rows] == [(b"Aa", {"k": "Aa"}), (b"c", {"k": "c"})]
    d = decoder(impl, VALUE, filters=["Aa"])
    d.decode(answer(*found), 0)
    assert taken(d) == [{"value": b"Aa"}]


def test_checksums_detect_one_bit_at_every_size_and_alignment(impl: str) -> None:
    # The compiled one folds 64 bytes at a time, then 16, then takes the rest byte by byte.
    values = [bytes((7 * size + at) % 256 for at in range(size)) for size in range(1, 300)]
    d = decoder(impl, VALUE)
    assert d.decode(answer(*map(message, values)), 0) == len(values)
    d.on_corrupt = "skip"
    for value in values:
        bit = 1 << len(value) % 8
        wrong = bytearray(value)
        wrong[len(value) * 2 // 3] ^= bit
        assert d.decode(answer(message(bytes(wrong), check_sum=message(value).check_sum)), 0) == 0


def test_without_columns_rows_are_counted(impl: str) -> None:
    d = decoder(impl, pa.schema([]))
    d.decode(answer(message(), message()), 0)
    assert d.take_batch().num_rows == 2


def test_batches_outlive_the_decoder_and_the_answer(impl: str) -> None:
    d = decoder(impl)
    batches = []
    for n in range(20):
        body = bytearray(answer(*[message(b"%d" % n * 50, f"n={n}")] * 30))
        d.decode(memoryview(body), n)
        batches.append(d.take_batch())
        body[:] = bytes(len(body))
    del d, body
    gc.collect()
    for n, batch in enumerate(batches):
        batch.validate(full=True)
        assert batch.column("value").to_pylist() == [b"%d" % n * 50] * 30
        assert [dict(a) for a in batch.column("attributes").to_pylist()] == [{"n": str(n)}] * 30


# Corrupt messages

CORRUPT = [
    pytest.param(broken(7), "the checksum does not match: 0x00000001 announced", id="checksum"),
    pytest.param(
        tubemq_pb.TransferedMessage(message_id=7, check_sum=-1, pay_load_data=b"abc", flag=1),
        "the attributes do not fit into the message",
        id="no room for a size",
    ),
    pytest.param(
        tubemq_pb.TransferedMessage(message_id=7, check_sum=-1, pay_load_data=b"\x00\x00\x00\x02x", flag=1),
        "the attributes do not fit into the message",
        id="size past the end",
    ),
    pytest.param(
        tubemq_pb.TransferedMessage(message_id=7, check_sum=-1, pay_load_data=b"\xff\xff\xff\xffx", flag=1),
        "the attributes do not fit into the message",
        id="negative size",
    ),
    pytest.param(message(b"", b"k=\xff"), "the attributes are not UTF-8", id="attributes"),
    pytest.param(message(b"", b"$msgType$=\xff"), "the message_type is not UTF-8", id="type"),
]


@pytest.mark.parametrize(("bad", "sentence"), CORRUPT)
def test_a_corrupt_message_is_named_and_its_answer_dropped(impl: str, bad: Any, sentence: str) -> None:
    d = decoder(impl)
    d.decode(answer(message(b"before", "k=v")), 0)
    nbytes = d.nbytes
    with pytest.raises(CorruptMessageError) as caught:
        d.decode(answer(message(b"x", "a=b"), bad, message(b"y", "c=d")), 2800)
    assert str(caught.value).startswith(f"message 7, number 2 of those fetched at 2800: {sentence}")
    assert (d.rows, d.nbytes, d.corrupt_messages) == (1, nbytes, 0)
    d.decode(answer(message(b"after", "e=f")), 0)
    assert [(row["value"], row["attributes"]) for row in taken(d)] == [(b"before", {"k": "v"}), (b"after", {"e": "f"})]


def test_the_error_of_a_message_without_a_required_field_has_no_id(impl: str) -> None:
    body = b"\x22\x02\x08\x07" + answer(message(b"x"))
    with pytest.raises(CorruptMessageError, match="a message, number 1 of those fetched at 28: the message lacks"):
        decoder(impl).decode(body, 28)
    d = decoder(impl, on_corrupt="null")
    d.decode(body, 28)
    assert [row["message_id"] for row in taken(d)] == [None, 7]


@pytest.mark.parametrize(("count", "error"), [(3, MissingMessagesError), (1, RemoteProtocolError)])
def test_an_answer_needs_as_many_messages_as_the_index(impl: str, count: int, error: type[Exception]) -> None:
    d = decoder(impl, VALUE)
    with pytest.raises(error, match=f"index has {count} messages from 28 on, but the broker sent "):
        d.decode(answer(message(b"x"), message(b"y")), 28, None, count)
    assert d.rows == 0


@pytest.mark.parametrize("on_corrupt", ["fail", "skip", "null"])
def test_an_answer_that_is_no_protobuf_is_an_error_with_any_options(impl: str, on_corrupt: str) -> None:
    d = decoder(impl, on_corrupt=on_corrupt)
    with pytest.raises(RemoteProtocolError, match="answer to GET_MESSAGE cannot be read: a protobuf field reaches"):
        d.decode(answer(message(b"x")) + b"\x22\x7f\x00", 0)
    assert d.rows == 0
    with pytest.raises(RemoteProtocolError):
        first_message(b"\x22\x7f\x00")


def test_unknown_columns_and_types_are_refused(impl: str) -> None:
    with pytest.raises(OptionError, match=r"column valeu is unknown.*column value is int64"):
        decoder(impl, pa.schema([("valeu", pa.binary()), ("value", pa.int64())]))
