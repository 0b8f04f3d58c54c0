from __future__ import annotations

import base64
import gc
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import cramjam
import lz4.block
import pyarrow as pa
import pytest
import zstandard

from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    OptionError,
    UnreadableKeyError,
    UnsupportedFeatureError,
)
from spark_mq_source.pulsar.payload.chunks import ChunkAssembly, OrphanChunk
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY, EntryDecoder, TransactionalEntryError
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata
from spark_mq_source.pulsar.protocol.wire import take_frame
from tests.oracles.pulsar_messages import framed
from tests.protobuf import pulsar as pulsar_pb
from tests.readable import schema_of
from tests.unit.standins import both_loops
from tests.vectors import RecordedFrame, pulsar_frames

impl = both_loops("spark_mq_source.pulsar.payload._messages_native")

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TIME = pa.timestamp("us", "UTC")
MESSAGE_ID = pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("batch_index", pa.int32())])
# `SparseColumns` builds the other columns.
ALL = schema_of(COLUMNS, without=("encryption_context", "_corrupt", "_error"))
VALUE = pa.schema([("value", pa.binary())])
CODECS = {
    1: lambda data: lz4.block.compress(data, store_size=False),
    2: zlib.compress,
    3: zstandard.compress,
    4: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def decoder(impl: str, schema: pa.Schema = ALL, **options: Any) -> EntryDecoder:
    given = {"max_message_bytes": 64 << 20, "max_pending_chunk_bytes": 256 << 20} | options
    return EntryDecoder(schema, topic="t", partition=3, implementation=impl, **given)


def entry(payload: bytes = b"", *, broker: Any | None = None, checked: bool = True, **fields: Any) -> bytes:
    compression = fields.get("compression", 0)
    if compression in CODECS and "num_chunks_from_msg" not in fields:
        fields.setdefault("uncompressed_size", len(payload))
        payload = CODECS[compression](payload)
    fields = {"producer_name": "p", "sequence_id": 10, "publish_time": 1000} | fields
    metadata, extra = pulsar_pb.MessageMetadata(**fields).SerializeToString(), broker and broker.SerializeToString()
    return framed(metadata, payload, broker=extra, is_checked=checked)


def single(value: bytes = b"", **fields: Any) -> bytes:
    metadata = pulsar_pb.SingleMessageMetadata(**({"payload_size": len(value)} | fields)).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + value


def batch(*singles: bytes, **fields: Any) -> bytes:
    return entry(b"".join(singles), **({"num_messages_in_batch": len(singles)} | fields))


def taken(decoder_: EntryDecoder) -> list[dict[str, Any]]:
    result = decoder_.take_batch()
    result.validate(full=True)
    return [{k: dict(v) if k == "properties" else v for k, v in row.items()} for row in result.to_pylist()]


def ms(value: int) -> datetime:
    return EPOCH + timedelta(milliseconds=value)


def rows_of(impl: str, body: bytes, *args: Any, **options: Any) -> list[dict[str, Any]]:
    d = decoder(impl, **options)
    expected = d.decode(7, 5, memoryview(body), *args)
    rows = taken(d)
    assert len(rows) == expected
    return rows


def indexes(rows: Sequence[dict[str, Any]]) -> list[int]:
    return [row["message_id"]["batch_index"] for row in rows]


# Recorded messages


RECORDED = [frame for frame in pulsar_frames() if frame.kind == "MESSAGE"]


def body_of(frame: RecordedFrame) -> memoryview:
    taken_frame = take_frame(memoryview(frame.data), 0, 1 << 23)
    assert taken_frame is not None
    assert taken_frame.body is not None
    return taken_frame.body


def test_recorded_messages(impl: str) -> None:
    d = decoder(impl)
    appended = [d.decode(141, n, body_of(frame)) for n, frame in enumerate(RECORDED[:12])]
    assert appended == [1, 3, 1, 2, 2, 2, 2, 1, 0, 0, 1, 1]
    rows = taken(d)
    assert [
        (r["key"], r["value"], r["sequence_id"], r["broker_index"], r["message_id"]["batch_index"]) for r in rows
    ] == [
        (b"k", b"hello", 0, 0, -1),
        (b"k1", b"a", 1, 1, 0),
        (None, None, 2, 2, 1),
        (None, b"ccc", 3, 3, 2),
        (None, b"solo", 4, 4, 0),
        (None, b"compress me " * 4, 11, 5, 0),
        (None, b"compress me " * 5, 11, 6, 1),
        (None, b"compress me " * 4, 12, 7, 0),
        (None, b"compress me " * 5, 12, 8, 1),
        (None, b"compress me " * 4, 13, 9, 0),
        (None, b"compress me " * 5, 13, 10, 1),
        (None, b"compress me " * 4, 14, 11, 0),
        (None, b"compress me " * 5, 14, 12, 1),
        (None, b"single " * 9, 20, 13, -1),
        (None, b"chunk-one-chunk-two-three", 30, 16, -1),
        (b"k", None, 40, 17, -1),
    ]
    assert rows[0]["event_time"] == ms(1_700_000_000_000)
    assert rows[0]["publish_time"] == ms(1_795_232_364_243)
    assert rows[0]["broker_publish_time"] == ms(1_795_232_364_244)
    assert rows[3]["event_time"] == ms(5)
    assert {r["producer_name"] for r in rows} == {"standalone-0-33"}
    assert {(r["topic"], r["partition"]) for r in rows} == {("t", 3)}
    assert rows[-2]["message_id"] == {"ledger_id": 141, "entry_id": 10, "batch_index": -1}


def test_recorded_messages_without_broker_metadata(impl: str) -> None:
    d = decoder(impl)
    for frame in RECORDED:
        if frame.case == "messages without supports_broker_entry_metadata flag":
            d.decode(141, 0, body_of(frame))
    rows = taken(d)
    assert [r["value"] for r in rows[:2]] == [b"hello", b"a"]
    assert {(r["broker_index"], r["broker_publish_time"]) for r in rows} == {(None, None)}


def recorded_rows(impl: str, case: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a recorded case, in the order of recording."""
    d = decoder(impl)
    for n, frame in enumerate(frame for frame in RECORDED if frame.case == case):
        d.decode(7, n, body_of(frame))
    return [tuple(row[column] for column in columns) for row in taken(d)]


def test_messages_and_batches_of_the_java_client(impl: str) -> None:
    columns = ("key", "value", "ordering_key", "event_time", "properties")
    places = recorded_rows(impl, "java messages", ("message_id", "sequence_id", "broker_index"))
    assert [(i["entry_id"], i["batch_index"], sequence, index) for i, sequence, index in places] == [
        *((n, -1, n, n) for n in range(3)),
        *((3, n, n, 3 + n) for n in range(3)),
    ]
    sent = [
        (b"text key", b"value", None, ms(1_700_000_000_000), {"a": "1", "b": "2"}),
        (b"\x00\xffkey", None, None, None, {}),
        (None, b"", b"order\x00", None, {}),
    ]
    assert recorded_rows(impl, "java messages", columns) == sent + sent


def test_chunks_of_the_official_clients(impl: str) -> None:
    columns = ("key", "value", "message_id")
    assert recorded_rows(impl, "java chunks", columns) == [
        (None, b"0123456789" * 12, {"ledger_id": 7, "entry_id": 2, "batch_index": -1}),
        (None, bytes(range(120)), {"ledger_id": 7, "entry_id": 5, "batch_index": -1}),
    ]
    assert recorded_rows(impl, "cpp chunks", columns) == [
        (b"k", b"0123456789" * 220, {"ledger_id": 7, "entry_id": 2, "batch_index": -1})
    ]


def test_batches_compacted_by_the_broker(impl: str) -> None:
    rows = recorded_rows(impl, "compacted", ("key", "value", "message_id"))
    assert [(key, value, i["entry_id"], i["batch_index"]) for key, value, i in rows] == [
        # The last value of each key, without tombstones and messages without a key.
        (b"a", b"a2", 0, 2),
        (b"b", b"b2", 1, 0),
        (b"e", b"e1", 2, 1),
        (b"d", b"d2", 2, 2),
        (b"f", b"f1", 3, -1),
    ]


@pytest.mark.parametrize("frame", RECORDED, ids=[str(n) for n in range(len(RECORDED))])
def test_every_prefix_and_every_flipped_bit_of_a_recorded_message_is_corrupt(impl: str, frame: RecordedFrame) -> None:
    body = bytes(body_of(frame))
    d = decoder(impl)
    for size in range(len(body)):
        with pytest.raises(CorruptMessageError, match="message 1:2: "):
            d.decode(1, 2, body[:size])
    checked_from = body.index(b"\x0e\x01") + 2
    for bit in range(8 * checked_from, 8 * len(body)):
        flipped = bytearray(body)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(CorruptMessageError, match="checksum does not match"):
            d.decode(1, 2, bytes(flipped))
    assert d.rows == 0


# Fields


def test_every_column_has_the_value_of_its_field(impl: str) -> None:
    pair = pulsar_pb.KeyValue(key="k", value="v")
    said = {
        "producer_name": "p", "sequence_id": 1, "publish_time": 2, "properties": [pair], "replicated_from": "r",
        "partition_key": "k", "event_time": 3, "encryption_algo": "AES", "encryption_param": b"iv",
        "schema_version": b"s", "partition_key_b64_encoded": False, "ordering_key": b"o", "deliver_at_time": 4,
        "txnid_least_bits": 5, "txnid_most_bits": 6, "highest_sequence_id": 7, "null_value": False,
        "null_partition_key": False, "compression": 0, "uncompressed_size": 8, "schema_id": b"\xffi",
        "replicate_to": ["c"],
    }  # fmt: skip
    key = {"key": "k", "value": b"v", "metadata": [pair]}
    more = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 1, "chunk_id": 0,
            "num_messages_in_batch": 1, "compacted_batch_indexes": [1]}  # fmt: skip
    fields = {field.name for field in pulsar_pb.MessageMetadata.DESCRIPTOR.fields}
    assert {*said, *more, "encryption_keys", "marker_type"} == fields
    d = decoder(impl, schema_of(COLUMNS), on_encrypted="raw", on_corrupt="null")
    broker = pulsar_pb.BrokerEntryMetadata(broker_timestamp=8, index=9)
    body = entry(b"v", broker=broker, encryption_keys=[key], **said, **more)
    assert d.decode(7, 5, body, redelivery_count=3) == 1
    assert d.decode(7, 6, b"corrupt") == 1
    whole, corrupt = taken(d)
    assert [name for name in whole if whole[name] is None and corrupt[name] is None] == []
    assert [name for name in COLUMNS.readable if whole[name] is None] == ["_corrupt", "_error"]
    context = whole.pop("encryption_context")
    assert (context["param"], context["uuid"], context["num_chunks"]) == (b"iv", "u", 2)
    assert whole == {
        "key": b"k", "value": b"v", "topic": "t", "partition": 3,
        "message_id": {"ledger_id": 7, "entry_id": 5, "batch_index": -1}, "publish_time": ms(2), "event_time": ms(3),
        "properties": {"k": "v"}, "producer_name": "p", "sequence_id": 1, "ordering_key": b"o", "schema_version": b"s",
        "schema_id": b"\xffi", "replicated_from": "r", "broker_publish_time": ms(8), "broker_index": 9,
        "redelivery_count": 3, "_corrupt": None, "_error": None,
    }  # fmt: skip


@pytest.mark.parametrize("key", ["a", "a===", "=", "====", "ab=", "abc==", "abcd=", "abcd==", "ab-_", "ab c", "abcde"])
def test_keys_that_are_not_base64(impl: str, key: str) -> None:
    body = batch(single(), single(partition_key=key, partition_key_b64_encoded=True))
    with pytest.raises(CorruptMessageError, match="message 7:5: batch index 1: the key is not base64"):
        rows_of(impl, body)
    assert rows_of(impl, body, schema=VALUE) == [{"value": b""}] * 2


@pytest.mark.parametrize("time_ms", [1, 9_223_372_036_854_775, 2**64 - 9_223_372_036_854_775, 2**64 - 1])
def test_event_times_that_fit(impl: str, time_ms: int) -> None:
    d = decoder(impl, pa.schema([("event_time", TIME)]))
    d.decode(1, 1, entry(event_time=time_ms))
    signed = time_ms - 2**64 if time_ms >= 2**63 else time_ms
    assert d.take_batch().column(0).cast(pa.int64()).to_pylist() == [signed * 1000]


@pytest.mark.parametrize("time_ms", [9_223_372_036_854_776, 2**63, 2**63 - 1, 2**64 - 9_223_372_036_854_776])
def test_times_that_do_not_fit(impl: str, time_ms: int) -> None:
    for body in (entry(event_time=time_ms), batch(single(), single(event_time=time_ms)), entry(publish_time=time_ms)):
        with pytest.raises(CorruptMessageError, match=r"_time of -?\d+ ms is beyond what a timestamp can hold"):
            rows_of(impl, body)
        assert rows_of(impl, body, schema=VALUE)


# Selection of messages of a batch


def numbered(count: int, **fields: Any) -> bytes:
    return batch(*(single(b"%d" % n) for n in range(count)), **fields)


# Markers, encryption, compression


def encrypted(payload: bytes, **fields: Any) -> bytes:
    return entry(payload, encryption_keys=[{"key": "k", "value": b"v"}], encryption_algo="a", **fields)


def test_encrypted_messages_are_an_error_or_their_ciphertext(impl: str) -> None:
    bodies = {
        "single": encrypted(b"secret"),
        "batch": encrypted(b"secret", num_messages_in_batch=9),
        "compressed": encrypted(b"secret", compression=1),
        "chunk": encrypted(b"secret", uuid="u", num_chunks_from_msg=2, chunk_id=1, total_chunk_msg_size=9),
    }
    for body in bodies.values():
        for on_corrupt in ("fail", "skip", "null"):
            with pytest.raises(EncryptedMessageError, match=r"message 7:5: .*cryptoFailureAction=CONSUME"):
                rows_of(impl, body, on_corrupt=on_corrupt)
        assert rows_of(impl, body, (), 0, WHOLE_ENTRY, False) == []
        rows = rows_of(impl, body, on_encrypted="raw")
        assert indexes(rows) == [-1]
        assert rows_of(impl, body, (), 1, on_encrypted="raw") == []
    for name in ("single", "batch", "chunk"):
        assert rows_of(impl, bodies[name], on_encrypted="raw")[0]["value"] == b"secret"
    assert rows_of(impl, bodies["compressed"], on_encrypted="raw")[0]["value"] == CODECS[1](b"secret")


class Reversal:
    """A trivial cipher that reverses the payload. It has no key named `lost`, and cannot read the one named `busy`."""

    def decrypt(self, payload: memoryview, metadata: MessageMetadata) -> bytes:
        if metadata["encryption_keys"][0]["key"] == "lost":
            raise EncryptedMessageError("there is no key")
        if metadata["encryption_keys"][0]["key"] == "busy":
            raise UnreadableKeyError("the key store is busy")
        return bytes(payload)[::-1]


@pytest.mark.parametrize("action", ["fail", "skip", "raw"])
def test_a_key_that_cannot_be_read_is_an_error_whatever_the_action_is(impl: str, action: str) -> None:
    busy = entry(b"secret", encryption_keys=[{"key": "busy", "value": b"v"}], encryption_algo="a")
    with pytest.raises(UnreadableKeyError, match="message 7:5: the key store is busy"):
        rows_of(impl, busy, decryptor=Reversal(), on_encrypted=action, on_corrupt="skip")


def test_decrypted_entries_are_decoded_like_unencrypted_ones(impl: str, caplog: pytest.LogCaptureFixture) -> None:
    d = decoder(impl, VALUE, decryptor=Reversal(), on_encrypted="skip")
    assert d.decode(7, 0, encrypted(b"eno")) == 1
    three = single(b"a") + single(b"b") + single(b"c")
    assert d.decode(7, 1, encrypted(three[::-1], num_messages_in_batch=3), (), 1, 1) == 1
    packed = CODECS[1](three)[::-1]
    body = framed(
        pulsar_pb.MessageMetadata(
            producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3, compression=1,
            uncompressed_size=len(three), encryption_keys=[{"key": "k", "value": b"v"}],
        ).SerializeToString(),
        packed,
    )  # fmt: skip
    assert d.decode(7, 2, body, (0b101,)) == 2
    # The first chunks of a message, before the range, are decrypted too.
    for number, (part, emit) in enumerate([(b"fi", False), (b"tsr", True)]):
        chunk = {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": number, "total_chunk_msg_size": 5}
        assert d.decode(7, 3 + number, encrypted(part, **chunk), (), 0, WHOLE_ENTRY, emit) == number
    with caplog.at_level("WARNING"):
        for entry_id in (5, 6):
            lost = entry(b"secret", encryption_keys=[{"key": "lost", "value": b"v"}], num_messages_in_batch=3)
            assert d.decode(7, entry_id, lost) == 0
    assert (d.discarded_entries, d.entry_messages) == (2, 3)
    (record,) = caplog.records
    assert record.getMessage().startswith("t: message 7:5 and others like it are left out")
    assert d.take_batch().column("value").to_pylist() == [b"one", b"b", b"a", b"c", b"ifrst"]


KEY = pa.struct([("key", pa.string()), ("value", pa.binary()), ("metadata", pa.map_(pa.string(), pa.string()))])
CONTEXT = pa.struct(
    [
        ("keys", pa.list_(KEY)),
        ("param", pa.binary()),
        ("algorithm", pa.string()),
        ("compression", pa.string()),
        ("uncompressed_size", pa.int64()),
        ("batch_size", pa.int32()),
        ("uuid", pa.string()),
        ("chunk_id", pa.int32()),
        ("num_chunks", pa.int32()),
    ]
)


def test_a_ciphertext_has_its_encryption_context(impl: str) -> None:
    schema = pa.schema([("encryption_context", CONTEXT), ("value", pa.binary())])
    d = decoder(impl, schema, on_encrypted="raw", on_corrupt="null")
    keys = [
        {"key": "a", "value": b"1", "metadata": [pulsar_pb.KeyValue(key="k", value="v")]},
        {"key": "b", "value": b"2"},
    ]
    said = {"encryption_keys": keys, "encryption_algo": "AES", "encryption_param": b"iv"}
    broker = pulsar_pb.BrokerEntryMetadata(index=1)
    d.decode(1, 0, entry(b"plain"))
    d.decode(1, 1, entry(b"secret", **said, num_messages_in_batch=9, uncompressed_size=3_000_000_000, broker=broker))
    d.decode(1, 2, b"corrupt")
    d.decode(1, 3, encrypted(b"chunk", uuid="u", num_chunks_from_msg=2, chunk_id=1, checked=False, compression=3))
    before = d.nbytes
    assert before > 2 * 30
    result = d.take_batch()
    result.validate(full=True)
    assert result.schema.equals(schema)
    batched = {
        "keys": [{"key": "a", "value": b"1", "metadata": [("k", "v")]}, {"key": "b", "value": b"2", "metadata": []}],
        "param": b"iv",
        "algorithm": "AES",
        "compression": "NONE",
        "uncompressed_size": 3_000_000_000,
        "batch_size": 9,
        "uuid": None,
        "chunk_id": None,
        "num_chunks": None,
    }
    chunked = {
        "keys": [{"key": "k", "value": b"v", "metadata": []}],
        "param": None,
        "algorithm": "a",
        "compression": "ZSTD",
        "uncompressed_size": 0,
        "batch_size": None,
        "uuid": "u",
        "chunk_id": 1,
        "num_chunks": 2,
    }
    assert result.column("encryption_context").to_pylist() == [None, batched, None, chunked]
    assert result.column("value").to_pylist()[:3] == [b"plain", b"secret", None]
    d.decode(1, 4, entry(b"next"))
    assert d.take_batch().column("encryption_context").to_pylist() == [None]


def test_an_encryption_context_that_is_not_text_is_corrupt(impl: str) -> None:
    metadata = pulsar_pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, encryption_algo="XX")
    metadata.encryption_keys.add(key="k", value=b"v")
    body = framed(metadata.SerializeToString().replace(b"XX", b"\xff\xff"), b"secret")
    d = decoder(impl, pa.schema([("encryption_context", CONTEXT)]), on_encrypted="raw")
    with pytest.raises(CorruptMessageError, match="message 7:5: the encryption metadata"):
        d.decode(7, 5, body)
    assert d.rows == d.nbytes == 0


def test_an_encryption_context_of_another_type_is_refused(impl: str) -> None:
    with pytest.raises(OptionError, match="column encryption_context is struct"):
        decoder(impl, pa.schema([("encryption_context", pa.struct(list(CONTEXT)[1:]))]))


@pytest.mark.parametrize("codec", CODECS)
def test_a_wrong_size_is_corrupt(impl: str, codec: int) -> None:
    for size in (0, 99, 101, 2**32 - 1):
        with pytest.raises(CorruptMessageError):
            rows_of(impl, entry(b"x" * 100, compression=codec, uncompressed_size=size))


def test_an_uncompressed_size_is_bounded(impl: str) -> None:
    assert rows_of(impl, entry(b"x" * 100, compression=1), max_message_bytes=100)
    with pytest.raises(CorruptMessageError, match="100 bytes uncompressed, more than maxMessageBytes=99 allows"):
        rows_of(impl, entry(b"x" * 100, compression=1), max_message_bytes=99)


def test_an_unknown_compression_is_unsupported(impl: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="message 7:5: compression type 5 is not supported"):
        rows_of(impl, entry(b"x", compression=5), on_corrupt="skip")


# Corrupt entries


CORRUPT = {
    "empty": b"",
    "too short": b"\0\0\0",
    "metadata cut off": b"\0\0\0\x09abc",
    "magic alone": b"\x0e\x01",
    "checksum cut off": b"\x0e\x01\0\0\0",
    "broker metadata cut off": b"\x0e\x02\0\0\0\x05ab",
    "broker metadata garbage": b"\x0e\x02\0\0\0\x02\x0f\xff" + entry(),
    "no required field": framed(b"", b""),
    "only a producer name": framed(b"\x0a\x01p", b""),
    "wire type 3": framed(
        pulsar_pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0).SerializeToString() + b"\x0b", b""
    ),
    "field number 0": framed(b"\x00\x00", b""),
    "huge field number": framed(b"\x80\x80\x80\x80\x10\x00", b""),
    "varint without end": framed(b"\x10" + b"\xff" * 11, b""),
    "length past the end": framed(b"\x0a\x7f", b""),
    "fixed64 past the end": framed(b"\x11\0\0\0", b""),
    "length one past the end": framed(b"\x0a\x01p\x10\x00\x18\x00\x32\x02k", b"x"),
    "fixed64 one past the end": framed(b"\x0a\x01p\x10\x00\x18\x00\xc1\x3e" + bytes(7), b"x"),
    "fixed32 one past the end": framed(b"\x0a\x01p\x10\x00\x18\x00\xc5\x3e" + bytes(3), b"x"),
    "varint one past the end": framed(b"\x0a\x01p\x10\x00\x18\x00\x60\x80", b"\x01"),
    "single metadata field one past the end": batch(single(b"x"), b"\0\0\0\x05\x18\x01\x12\x02k" + b"x"),
    "property field one past the end": framed(b"\x0a\x01p\x10\x00\x18\x00\x22\x06\x0a\x01k\x12\x02v", b"x"),
    "batch without messages": entry(b"", num_messages_in_batch=1),
    "batch of 0": entry(b"", num_messages_in_batch=0),
    "batch of -1": entry(b"abcdef", num_messages_in_batch=-1),
    "batch of 2^31-1": entry(b"abcdef", num_messages_in_batch=2**31 - 1),
    "batch of 3 with 2": batch(single(b"long enough"), single(b"for three"), num_messages_in_batch=3),
    "payload past the end": batch(single(b"ok"), single(b"x", payload_size=2)),
    "negative payload": batch(single(b"ok"), single(b"x", payload_size=-1)),
    "no payload size": batch(single(b"x"), (6).to_bytes(4, "big") + b"\x40\x01\x40\x01\x40\x01"),
    "single metadata past the end": batch(single(b"x"), b"\0\0\0\xff\x18\x01x"),
    "single metadata 4 GiB": batch(single(b"x"), b"\xff\xff\xff\xff\x18\x01x"),
    "property without value": framed(b"\x0a\x01p\x10\x00\x18\x00\x22\x03\x0a\x01k", b""),
    "property garbage": framed(b"\x0a\x01p\x10\x00\x18\x00\x22\x02\x0f\xff", b""),
    "property not UTF-8": framed(b"\x0a\x01p\x10\x00\x18\x00\x22\x06\x0a\x01k\x12\x01\xff", b""),
    "producer name not UTF-8": framed(b"\x0a\x01\xff\x10\x00\x18\x00", b""),
    "replicated_from not UTF-8": framed(b"\x0a\x01p\x10\x00\x18\x00\x2a\x01\xff", b""),
    "packed varint without end": framed(b"\x0a\x01p\x10\x00\x18\x00\xfa\x01\x01\xff", b""),
    "LZ4 garbage": entry(b"", compression=1, uncompressed_size=50),
    "chunk past its number": entry(b"x", uuid="u", num_chunks_from_msg=2, chunk_id=2, total_chunk_msg_size=5),
    "chunk without uuid": entry(b"x", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=5),
    "negative chunk total": entry(b"x", uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=-1),
    "chunk larger than its message": entry(b"xxx", uuid="u", num_chunks_from_msg=2, chunk_id=0, total_chunk_msg_size=2),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_entries(impl: str, name: str) -> None:
    body = CORRUPT[name]
    d = decoder(impl)
    d.decode(1, 0, numbered(3))
    before = d.rows, d.nbytes
    with pytest.raises(CorruptMessageError, match=r"^message 1:2: .+") as caught:
        d.decode(1, 2, body)
    assert type(caught.value) is CorruptMessageError
    assert (d.rows, d.nbytes) == before
    assert d.decode(1, 3, body, (), 0, WHOLE_ENTRY, False) == 0
    assert d.corrupt_entries == 0
    d.on_corrupt = "skip"
    assert d.decode(1, 4, body) == 0
    assert d.corrupt_entries == 1
    d.on_corrupt = "null"
    assert d.decode(1, 5, body) == 1
    assert d.decode(1, 6, body, (), 1) == 0
    assert d.corrupt_entries == 2
    d.decode(1, 7, numbered(2))
    rows = taken(d)
    assert [r["value"] for r in rows] == [b"0", b"1", b"2", None, b"0", b"1"]
    known = {"topic": "t", "partition": 3, "message_id": {"ledger_id": 1, "entry_id": 5, "batch_index": -1}}
    assert rows[3] == dict.fromkeys(ALL.names) | known | {"properties": {}}


def test_every_byte_of_the_checksum_is_verified_unless_disabled(impl: str) -> None:
    body = bytearray(entry(b"hello"))
    body[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="checksum does not match: CRC32C 0x"):
        rows_of(impl, bytes(body))
    assert rows_of(impl, bytes(body), verify_checksum=False)[0]["value"] == b"helln"


TEXT_KEY_VALUE = pa.schema([("key", pa.string()), ("value", pa.string()), ("message_id", MESSAGE_ID)])
NOT_UTF8 = [
    b"\xff", b"\x80", b"\xc3", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80",
    b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80",
    b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3\x41", b"\xe2\x82\x41", b"\xf0\x9f\x98\x41",
]  # fmt: skip


@pytest.mark.parametrize("bad", NOT_UTF8, ids=bytes.hex)
@pytest.mark.parametrize("before", ["", "ascii", "16 ascii letters", "ü€😀"])
def test_values_that_are_not_utf8(impl: str, bad: bytes, before: str) -> None:
    value = before.encode() + bad
    with pytest.raises(UnicodeDecodeError) as expected:
        value.decode()
    at = expected.value.start
    body = batch(single(b"fine"), single(b"x"), single(value, partition_key="k"))
    message = f"message 7:5: batch index 2: the value is not UTF-8 \\(byte {at}\\)"
    with pytest.raises(CorruptMessageError, match=message):
        rows_of(impl, body, schema=TEXT_KEY_VALUE)
    key = base64.b64encode(value).decode()
    body = batch(single(b"fine"), single(partition_key=key, partition_key_b64_encoded=True))
    with pytest.raises(CorruptMessageError, match=f"batch index 1: the key is not UTF-8 \\(byte {at}\\)"):
        rows_of(impl, body, schema=TEXT_KEY_VALUE)
    with pytest.raises(CorruptMessageError, match="message 7:5: the value is not UTF-8"):
        rows_of(impl, entry(value), schema=TEXT_KEY_VALUE)
    d = decoder(impl, TEXT_KEY_VALUE, on_corrupt="null")
    d.decode(1, 1, batch(single(b"fine"), single(value)))
    assert [(r["key"], r["value"]) for r in taken(d)] == [(None, None)]


def test_a_decompression_bomb_in_a_batch_is_refused(impl: str) -> None:
    name = "n" * 10_000
    schema = pa.schema([("producer_name", pa.string())])
    body = numbered(1000, producer_name=name)
    with pytest.raises(CorruptMessageError, match="a producer_name of 10000 bytes for each of 1000 messages"):
        rows_of(impl, body, schema=schema, max_message_bytes=1000)
    assert len(rows_of(impl, body, schema=schema, max_message_bytes=1_000_000)) == 1000


@pytest.mark.parametrize("name", ["producer_name", "schema_version", "schema_id", "replicated_from"])
def test_a_batch_bomb_is_refused_even_if_its_parts_would_fit(impl: str, name: str) -> None:
    long: str | bytes = b"n" * 80_000 if name.startswith("schema") else "n" * 80_000
    messages = 860_000
    # 87 KB that would become 69 GB: no part of 1,000 rows has more than 80 MB of them.
    body = entry(single() * messages, num_messages_in_batch=messages, compression=2, **{name: long})
    assert len(body) < 90_000
    d = decoder(impl, max_message_bytes=5 << 20, max_batch_rows=1000)
    sentence = f"message 7:5: a {name} of 80000 bytes for each of 860000 messages is more than maxMessageBytes allows"
    with pytest.raises(CorruptMessageError, match=sentence):
        d.decode(7, 5, body)
    assert (d.rows, d.nbytes, d.unfinished) == (0, 0, False)
    # A column that is not read is not repeated.
    assert (
        decoder(impl, VALUE, max_message_bytes=5 << 20, max_batch_rows=10).decode(
            7, 5, batch(*[single()] * 20, **{name: long})
        )
        == 10
    )


# Chunks


def chunk(payload: bytes, chunk_id: int, chunks: int, total: int, uuid: str = "u", **fields: Any) -> bytes:
    return entry(
        payload, uuid=uuid, chunk_id=chunk_id, num_chunks_from_msg=chunks, total_chunk_msg_size=total, **fields
    )


def test_a_chunked_message(impl: str) -> None:
    d = decoder(impl)
    assert d.decode(1, 4, chunk(b"ab", 0, 3, 6, sequence_id=1)) == 0
    assert d.pending_chunk_start() == (1, 4)
    assert d.decode(1, 5, chunk(b"cd", 1, 3, 6, sequence_id=2)) == 0
    assert d.decode(2, 0, chunk(b"ef", 2, 3, 6, sequence_id=3, partition_key="k")) == 1
    assert d.pending_chunk_start() is None
    (row,) = taken(d)
    assert (row["value"], row["key"], row["sequence_id"]) == (b"abcdef", b"k", 3)
    assert row["message_id"] == {"ledger_id": 2, "entry_id": 0, "batch_index": -1}


@pytest.mark.parametrize("codec", CODECS)
def test_a_chunked_message_is_compressed_as_a_whole(impl: str, codec: int) -> None:
    value = bytes(range(256)) * 40
    whole = CODECS[codec](value)
    parts = [whole[:100], whole[100:101], whole[101:]]
    # Larger than the maximum message size, as chunked messages may be.
    d = decoder(impl, max_message_bytes=1000)
    for n, part in enumerate(parts):
        d.decode(1, n, chunk(part, n, 3, len(whole), compression=codec, uncompressed_size=len(value)))
    assert [r["value"] for r in taken(d)] == [value]


def test_a_chunk_0_of_another_size_begins_another_message_under_the_same_uuid(impl: str) -> None:
    d = decoder(impl)
    for entry_id, (total, chunk_id, part) in enumerate([(6, 0, b"old"), (7, 0, b"new"), (7, 1, b"er!!")]):
        d.decode(1, entry_id, chunk(part, chunk_id, 2, total, "a"))
        assert d.orphan is None
    assert [r["value"] for r in taken(d)] == [b"newer!!"]
    assert d.pending_chunk_start() is None


def test_a_chunk_without_its_beginning_is_an_orphan(impl: str) -> None:
    d = decoder(impl)
    assert d.decode(1, 9, chunk(b"c", 2, 3, 3)) == 0
    assert d.orphan == OrphanChunk(b"u", 1, 9, 2, 3, None)
    d.orphan = None
    d.decode(1, 10, entry())
    assert d.orphan is None
    # Read again from an earlier entry.
    assert [d.decode(1, 7 + n, chunk(b"abc"[n : n + 1], n, 3, 3), (), 0, WHOLE_ENTRY, n == 2) for n in range(3)] == [
        0,
        0,
        1,
    ]
    assert [r["value"] for r in taken(d)] == [b"", b"abc"]


def test_a_chunk_that_contradicts_the_first_one_does_not_belong_to_it(impl: str) -> None:
    d = decoder(impl)
    d.decode(1, 0, chunk(b"a", 0, 4, 4))
    d.decode(1, 1, chunk(b"x", 1, 2, 2))
    assert d.orphan == OrphanChunk(b"u", 1, 1, 1, 2, None)
    assert d.pending_chunk_start() == (1, 0)


def test_a_repeated_last_chunk_at_its_position_is_an_orphan(impl: str) -> None:
    # The message is assembled, and cannot be decompressed: only its first chunk shows that.
    d = decoder(impl)
    d.decode(1, 0, chunk(b"a", 0, 2, 2, compression=2, uncompressed_size=9))
    for _ in range(2):
        with pytest.raises(CorruptMessageError, match="message 1:1: ZLIB"):
            d.decode(1, 1, chunk(b"b", 1, 2, 2, compression=2, uncompressed_size=9))
        assert d.decode(1, 1, chunk(b"b", 1, 2, 2, compression=2, uncompressed_size=9)) == 0
        assert d.orphan == OrphanChunk(b"u", 1, 1, 1, 2, None)
        d.orphan = None
        assert d.decode(1, 0, chunk(b"a", 0, 2, 2), (), 0, WHOLE_ENTRY, False) == 0


@pytest.mark.parametrize("last", [b"b", b"bbbbb"])
def test_chunks_of_a_wrong_total_size_are_corrupt_at_each_read(impl: str, last: bytes) -> None:
    d = decoder(impl)
    d.decode(1, 0, chunk(b"a", 0, 2, 5))
    message = f"message 1:1: 2 of 2 chunks hold {1 + len(last)} bytes where 5 were announced for all of them"
    for _ in range(2):
        with pytest.raises(CorruptMessageError, match=message):
            d.decode(1, 1, chunk(last, 1, 2, 5))
        assert d.pending_chunk_start() == (1, 0)
        d.decode(1, 0, chunk(b"a", 0, 2, 5))


@pytest.mark.parametrize(("on_corrupt", "rows"), [("skip", 0), ("null", 1)])
def test_chunks_of_a_wrong_total_size_are_dropped_if_corruption_is_allowed(
    impl: str, on_corrupt: str, rows: int
) -> None:
    d = decoder(impl, on_corrupt=on_corrupt)
    d.decode(1, 0, chunk(b"a", 0, 2, 5))
    assert d.decode(1, 1, chunk(b"b", 1, 2, 5)) == rows
    assert d.pending_chunk_start() is None


@pytest.mark.parametrize("on_corrupt", ["fail", "skip", "null"])
def test_a_complete_message_beyond_the_bound_names_the_option(impl: str, on_corrupt: str) -> None:
    d = decoder(impl, max_pending_chunk_bytes=2000, on_corrupt=on_corrupt)
    assert d.decode(1, 0, chunk(bytes(2000), 0, 2, 2001)) == 0
    message = r"message 1:1: a chunked message of 2001 bytes, whose first chunk is 1:0, .*maxPendingChunkBytes=2000"
    with pytest.raises(UnsupportedFeatureError, match=message):
        d.decode(1, 1, chunk(b"a", 1, 2, 2001))


def test_an_abandoned_or_earlier_message_beyond_the_bound_is_no_error(impl: str) -> None:
    d = decoder(impl, max_pending_chunk_bytes=2000)
    d.decode(1, 0, chunk(bytes(1000), 0, 3, 1 << 30, uuid="abandoned"))
    for n in range(2):
        assert d.decode(1, 1 + n, chunk(bytes(1000), n, 2, 2000, uuid="before"), (), 0, WHOLE_ENTRY, False) == 0
    for n in range(2):
        d.decode(1, 3 + n, chunk(b"b" * 100, n, 2, 200))
    assert [r["value"] for r in taken(d)] == [b"b" * 200]


def test_abandoned_messages_are_dropped_at_the_memory_bound_and_live_ones_kept(impl: str, caplog: Any) -> None:
    caplog.set_level("INFO")
    d = decoder(impl, max_pending_chunk_bytes=5000)
    d.decode(1, 0, chunk(b"a" * 100, 0, 50, 5000 - 513, uuid="l"))
    for n in range(1, 40):
        d.decode(1, 2 * n - 1, chunk(bytes(900), 0, 2, 1800, uuid=f"abandoned-{n}"))
        d.decode(1, 2 * n, chunk(b"%03d" % n, n, 50, 5000 - 513, uuid="l"))
    assert d.orphan is None
    assert d.pending_chunk_start() == (1, 0)
    assert "t: dropped 1 of 2 chunks of the message that began at 1:1: maxPendingChunkBytes is reached" in caplog.text


def test_assembly_releases_its_memory() -> None:
    chunks = ChunkAssembly(max_bytes=10_000)
    for n in range(1000):
        assert chunks.add(b"u%d" % n, 0, 2, 2000, (0, n), bytes(1000)) is None
        assert chunks.add(b"u%d" % n, 1, 2, 2000, (0, n), bytes(1000)) == bytes(2000)
        assert chunks.nbytes == 0
        chunks.add(b"v", 1, 2, 2, (0, n), b"x")
        assert chunks.nbytes == 0
    for n in range(1000):
        chunks.add(b"u", 0, 2, 2000, (1, n), bytes(1000))
    assert chunks.nbytes == 1000 + 1 + 512
    chunks.discard(b"u")
    assert chunks.nbytes == 0


# Batches and columns


def test_columns_have_the_order_and_types_of_the_schema(impl: str) -> None:
    schema = pa.schema(
        [
            pa.field("properties", pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.string()))),
            pa.field("value", pa.string(), metadata={"a": "b"}),
            pa.field("publish_time", pa.timestamp("us", "Europe/Berlin")),
            pa.field("topic", pa.string(), nullable=False),
            pa.field(
                "message_id", pa.struct([pa.field("ledger_id", pa.int64(), nullable=False), *list(MESSAGE_ID)[1:]])
            ),
            pa.field("event_time", pa.timestamp("us")),
        ],
        metadata={"c": "d"},
    )
    d = decoder(impl, schema)
    for rows in (0, 1, 3):
        for n in range(rows):
            d.decode(1, n, entry(b"x", properties=[pulsar_pb.KeyValue(key="a", value="b")], event_time=3))
        result = d.take_batch()
        result.validate(full=True)
        assert result.num_rows == rows
        assert result.schema.equals(schema, check_metadata=True)


def test_a_schema_without_columns(impl: str) -> None:
    d = decoder(impl, pa.schema([]))
    d.decode(1, 1, numbered(5))
    d.decode(1, 1, entry())
    assert d.take_batch().num_rows == 6
    assert d.take_batch().num_rows == 0


def test_columns_that_cannot_be_built_are_refused(impl: str) -> None:
    for name, type_ in [("value", pa.large_binary()), ("partition", pa.int64()), ("publish_time", pa.timestamp("ms"))]:
        with pytest.raises(OptionError, match=f"column {name} is "):
            decoder(impl, pa.schema([(name, type_)]))
    with pytest.raises(OptionError, match=r"column colour is unknown \(known: key, value"):
        decoder(impl, pa.schema([("colour", pa.binary())]))
    with pytest.raises(OptionError, match="column message_id is struct"):
        decoder(impl, pa.schema([("message_id", pa.struct([("ledger_id", pa.int64())]))]))


def test_batches_outlive_the_decoder_and_its_input(impl: str) -> None:
    d = decoder(impl)
    body = bytearray(numbered(1000, producer_name="pp"))
    batches = []
    for n in range(20):
        d.decode(1, n, memoryview(body))
        batches.append(d.take_batch())
    expected = batches[0].column("value").to_pylist()
    # A reference into it would be an error here (a memoryview), or visible below.
    body[:] = bytes(len(body))
    del d
    gc.collect()
    for n, result in enumerate(batches):
        result.validate(full=True)
        assert result.column("value").to_pylist() == expected == [b"%d" % i for i in range(1000)]
        assert set(result.column("message_id").field("entry_id").to_pylist()) == {n}


def test_the_body_is_released_after_each_entry(impl: str) -> None:
    d = decoder(impl, on_corrupt="null")
    for body in (entry(b"x"), numbered(3), entry(b"text", compression=1)):
        block = bytearray(body)
        d.decode(1, 1, memoryview(block))
        block.append(0)  # BufferError if a view of it still exists


def test_rows_and_nbytes(impl: str) -> None:
    d = decoder(impl, pa.schema([("value", pa.binary()), ("topic", pa.string()), ("sequence_id", pa.int64())]))
    assert (d.rows, d.nbytes) == (0, 0)
    d.decode(1, 1, batch(single(b"12345"), single(b"123")))
    assert (d.rows, d.nbytes) == (2, 8 + 2 * (4 + 8))
    d.take_batch()
    assert (d.rows, d.nbytes) == (0, 0)


def test_a_decoder_can_refuse_entries_of_transactions(impl: str) -> None:
    txn = {"txnid_least_bits": 7, "txnid_most_bits": 0}
    d = decoder(impl, refuses_transactions=True)
    # A value that contains the bytes of the field, and a marker, which ends a transaction.
    assert d.decode(1, 1, entry(b"\xb0\x01\x07")) == 1
    assert d.decode(1, 2, entry(marker_type=21, **txn)) == 0
    for number, body in enumerate((entry(b"x", **txn), entry(b"x", num_messages_in_batch=1, **txn))):
        with pytest.raises(TransactionalEntryError, match=rf"message 1:{number}: it belongs to a transaction"):
            d.decode(1, number, body)
    assert rows_of(impl, entry(b"x", **txn))[0]["value"] == b"x"


def test_entry_messages_counts_for_flow(impl: str) -> None:
    d = decoder(impl)
    for body, expected in [(numbered(7), 7), (entry(), 1), (numbered(1), 1), (entry(marker_type=1), 1)]:
        d.decode(1, 1, body, (0,))
        assert d.entry_messages == expected
        d.decode(1, 1, body, (), 0, WHOLE_ENTRY, False)
        assert d.entry_messages == expected
    with pytest.raises(CorruptMessageError):
        d.decode(1, 1, b"")
    assert d.entry_messages == 1


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_large_values(impl: str, size: int) -> None:
    # Beyond some size the compiled loop releases the GIL.
    value = os.urandom(size)
    assert rows_of(impl, entry(value))[0]["value"] == value
    assert rows_of(impl, batch(single(b"a"), single(value), single(b"c")))[1]["value"] == value
    rows = rows_of(impl, batch(single(value, compacted_out=True), single(value)))
    assert [r["value"] == value for r in rows] == [True]


# The choice of the implementation


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True, check=False
    )


HIDE_NATIVE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("_messages_native"):
            raise ImportError("hidden")
sys.meta_path.insert(0, Hide())
"""


MAKE_DECODER = """
from spark_mq_source.pulsar.payload.messages import EntryDecoder
for _ in range(2):
    EntryDecoder(pa.schema([]), topic="t", partition=0, max_message_bytes=1, max_pending_chunk_bytes=1)
"""


def test_falling_back_warns_once_and_counts() -> None:
    code = f"""
import warnings, pyarrow as pa
from spark_mq_source import implementation
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {MAKE_DECODER.strip().replace(chr(10), chr(10) + "    ")}
print(implementation(), len(caught), *[w.category.__name__ for w in caught], *[w.message for w in caught])
"""
    result = run(HIDE_NATIVE + code, SPARK_MQ_SOURCE_IMPL="")
    words = "python 1 RuntimeWarning spark-mq-source runs without its compiled loops"
    assert result.stdout.startswith(words), result.stderr
    assert run(code, SPARK_MQ_SOURCE_IMPL="python").stdout == "python 0\n"


# Entries with more messages than the row limit of a batch


def parts_of(d: EntryDecoder, body: bytes, *args: Any) -> list[list[dict[str, Any]]]:
    """Return the rows of an entry, in parts."""
    appended = [d.decode(7, 5, body, *args)]
    parts = [taken(d)]
    while d.unfinished:
        appended.append(d.decode_rest())
        parts.append(taken(d))
    assert appended == [len(part) for part in parts]
    return parts


@pytest.mark.parametrize("codec", [0, 2])
@pytest.mark.parametrize("args", [(), ((0b1010_1111_0000,),), ((), 4), ((), 0, 8), ((), 2, 5)], ids=str)
def test_an_entry_of_many_messages_is_decoded_in_parts(impl: str, codec: int, args: tuple[Any, ...]) -> None:
    body = batch(
        *(single(b"%d" % n, partition_key="k" * n, compacted_out=n == 3, sequence_id=n) for n in range(11)),
        compression=codec,
        compacted_batch_indexes=[6],
        broker=pulsar_pb.BrokerEntryMetadata(index=70),
    )
    whole = rows_of(impl, body, *args)
    for most in (1, 3, 4, 10, 11):
        d = decoder(impl, max_batch_rows=most)
        parts = parts_of(d, body, *args)
        assert [row for part in parts for row in part] == whole
        assert max(map(len, parts)) <= most
        assert len(parts) == -(-11 // most)
        assert parts_of(d, body, *args) == parts


@pytest.mark.parametrize("what", ["value", "end", "producer"])
def test_an_entry_of_many_messages_is_checked_before_its_first_rows(impl: str, what: str) -> None:
    last = {"value": single(b"\xff"), "end": single(b"x")[:-1], "producer": single(b"x")}[what]
    fields = {"publish_time": 2**62} if what == "producer" else {}
    body = batch(*[single(b"x")] * 10, last, **fields)
    schema = pa.schema([("value", pa.string()), ("publish_time", TIME)])
    sentences = []
    for most in (WHOLE_ENTRY, 3):
        d = decoder(impl, schema, max_batch_rows=most)
        d.decode(7, 4, batch(single(b"before")))
        with pytest.raises(CorruptMessageError) as raised:
            d.decode(7, 5, body)
        sentences.append(str(raised.value))
        assert not d.unfinished
        assert d.take_batch().column("value").to_pylist() == ["before"]
    assert sentences[0] == sentences[1]


def test_the_rest_of_an_entry_is_dropped_when_the_next_one_is_opened(impl: str) -> None:
    d = decoder(impl, max_batch_rows=2)
    assert d.decode(7, 5, numbered(5)) == 2
    assert d.decode(7, 6, entry(b"next")) == 1
    assert not d.unfinished
    assert [row["value"] for row in taken(d)] == [b"0", b"1", b"next"]


def test_a_column_never_exceeds_the_range_of_offsets(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Growth doubles the capacity, which once exceeded the bound without an error.
    d = decoder(impl, VALUE)
    monkeypatch.setattr(sys.modules[type(d._columns).__base__.__module__], "MAX_COLUMN_BYTES", 1000)
    for n in range(3):
        d.decode(7, n, entry(bytes(300)))
    with pytest.raises(UnsupportedFeatureError, match="column value would pass the 2 GiB"):
        d.decode(7, 3, entry(bytes(300)))
    assert d.take_batch().num_rows == 3
