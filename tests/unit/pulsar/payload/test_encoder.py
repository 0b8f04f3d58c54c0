from __future__ import annotations

import gc
from array import array
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.compression import CODECS
from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, encoding, open_rows
from spark_mq_source.pulsar.payload.layout import JAVA_STRING_HASH, MURMUR3_32_HASH
from spark_mq_source.pulsar.protocol.codec import decode_command
from spark_mq_source.pulsar.protocol.commands import Send
from spark_mq_source.pulsar.protocol.wire import take_frame
from spark_mq_source.pulsar.write.deduplication import EntryNumbers
from tests.protobuf import pulsar as pb
from tests.unit.standins import both_loops
from tests.vectors import pulsar_frames

impl = both_loops("spark_mq_source.pulsar.payload._encode_native")

TIME = pa.timestamp("us", "UTC")
MAP = pa.map_(pa.string(), pa.string())


def encoder(impl: str, **options: Any) -> EntryEncoder:
    given = {"producer_id": 1, "producer_name": "p", "sequence_id": 0, "max_message_bytes": 5 << 20}
    given |= {"batch_bytes": 100_000, "batch_rows": 2**31 - 1} | options
    return EntryEncoder(**given, implementation=impl)


def encode(impl: str, columns: dict[str, Any], **options: Any) -> list[Send]:
    made = encoder(impl, **options)
    append_all(made, impl, columns)
    made.flush(now_ms=1)
    return made.take()


def append_all(made: EntryEncoder, impl: str, columns: dict[str, Any]) -> None:
    batch = pa.record_batch(columns)
    source = open_rows(batch, impl)
    at = 0
    while at < batch.num_rows:
        at = made.append(source, None, at, batch.num_rows, now_ms=1)


def parse(send: Send) -> tuple[Any, bytes]:
    body = bytes(send.body)
    size = int.from_bytes(body[6:10], "big")
    return pb.MessageMetadata.FromString(body[10 : 10 + size]), body[10 + size :]


def sizes(sends: list[Send]) -> list[int]:
    return [send.num_messages for send in sends]


# The same rows as the official Java client wrote them.


def recorded_sends(case: str) -> list[tuple[Any, bytes]]:
    found = []
    for recorded in pulsar_frames():
        if recorded.case == case and recorded.kind == "SEND":
            frame = take_frame(memoryview(recorded.data), 0, 1 << 20)
            assert frame is not None
            send = decode_command(frame)
            assert isinstance(send, Send)
            found.append(parse(send))
    return found


def test_a_batch_is_that_of_the_java_client(impl: str) -> None:
    rows = [
        {"key": ["a", "b", "a"], "value": [b"a1", b"b1", b"a2"]},
        {"key": pa.array(["b", None, "c"]), "value": [b"b2", b"no key", None]},
    ]
    for columns, (theirs, payload) in zip(rows, recorded_sends("compacted"), strict=False):
        (send,) = encode(impl, columns, producer_name="standalone-0-4")
        metadata, ours = parse(send)
        assert singles(ours) == singles(payload)
        for name in ("sequence_id", "highest_sequence_id", "partition_key", "num_messages_in_batch"):
            assert getattr(metadata, name) == getattr(theirs, name)


def singles(payload: bytes) -> list[tuple[str, bytes]]:
    """Return the messages of a batch; the Java client writes the defaults of some fields, too."""
    found = []
    at = 0
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size + single.payload_size
        for field in ("compacted_out", "partition_key_b64_encoded", "null_value", "null_partition_key"):
            if not getattr(single, field):
                single.ClearField(field)
        found.append((str(single), payload[at - single.payload_size : at]))
    return found


def test_single_messages_are_those_of_the_java_client(impl: str) -> None:
    time = pa.array([1_700_000_000_000_000], TIME)
    rows = [
        {
            "key": ["text key"],
            "value": [b"value"],
            "properties": pa.array([[("a", "1"), ("b", "2")]], MAP),
            "event_time": time,
        },
        {"key": [b"\x00\xffkey"], "value": pa.array([None], pa.binary())},
        {"ordering_key": [b"order\x00"], "value": [b""]},
    ]
    recorded = recorded_sends("java messages")[:3]
    for number, (columns, (theirs, payload)) in enumerate(zip(rows, recorded, strict=True)):
        (send,) = encode(impl, columns, producer_name="standalone-0-0", sequence_id=number, batching=False)
        metadata, ours = parse(send)
        assert ours == payload
        theirs.publish_time = 1
        for field in ("uncompressed_size", "partition_key_b64_encoded"):
            if not metadata.HasField(field):
                theirs.ClearField(field)
        assert metadata == theirs


def test_chunks_are_those_of_the_java_client(impl: str) -> None:
    recorded = recorded_sends("java chunks")[:3]
    head = len(recorded[0][0].SerializeToString())
    sends = encode(
        impl,
        {"value": [b"0123456789" * 12]},
        producer_name="standalone-0-1",
        max_message_bytes=head + 50,
        chunking=True,
    )
    assert b"".join(parse(send)[1] for send in sends) == b"".join(payload for _, payload in recorded)
    for number, send in enumerate(sends):
        # All chunks of the Java client have the id 0. A broker that loads a topic with the first ones then drops the
        # last one as a duplicate (seen on 4.0.8).
        assert (send.sequence_id, send.num_messages, send.is_chunk) == (number, 1, True)
        metadata = parse(send)[0]
        assert metadata.sequence_id == number
        assert (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg) == (
            "standalone-0-1-0",
            number,
            len(sends),
        )
        assert metadata.total_chunk_msg_size == 120


def test_sequence_ids_continue_after_those_of_chunks(impl: str) -> None:
    values = [b"a", b"b" * 1500, b"c"]
    sends = encode(impl, {"value": values}, max_message_bytes=1000, batching=False, chunking=True)
    assert [(send.sequence_id, send.is_chunk) for send in sends] == [(0, False), (1, True), (2, True), (3, False)]
    assert all(len(send.body) <= 1000 for send in sends)


def test_a_batch_has_one_key_if_requested(impl: str) -> None:
    columns = {
        "value": [b"1", b"2", b"3", b"4", b"5", b"6"],
        "key": ["a", "a", "b", "b", None, None],
        "ordering_key": pa.array([None, None, None, b"o", None, None], pa.binary()),
    }
    sends = encode(impl, columns, batching_by_key=True)
    assert sizes(sends) == [2, 1, 1, 2]
    keys = [(m.partition_key, m.ordering_key) for m in (parse(send)[0] for send in sends)]
    assert keys == [("a", b""), ("b", b""), ("b", b"o"), ("", b"")]
    assert sizes(encode(impl, columns)) == [6]


def test_with_made_ids_all_chunks_but_the_last_have_the_id_of_the_entry_before(impl: str) -> None:
    numbers = EntryNumbers(3)
    before = numbers.last_id
    values = [b"b" * 2500, b"a", b"b" * 1500]
    sends = encode(impl, {"value": values}, max_message_bytes=1000, chunking=True, numbering=numbers)
    ids = [send.sequence_id if send.highest_sequence_id is None else send.highest_sequence_id for send in sends]
    assert [send.is_chunk for send in sends] == [True, True, True, False, True, True]
    assert ids == [before, before, ids[2], ids[3], ids[3], ids[5]]
    assert ids[0] < ids[2] < ids[3] < ids[5]
    assert [parse(send)[0].sequence_id for send in sends] == [send.sequence_id for send in sends]
    again = encode(impl, {"value": values}, max_message_bytes=1000, chunking=True, numbering=EntryNumbers(3))
    uuids = [{parse(send)[0].uuid for send in attempt if send.is_chunk} for attempt in (sends, again)]
    assert [len(one) for one in uuids] == [2, 2]
    assert uuids[0].isdisjoint(uuids[1]), "the chunks of two attempts would be assembled to one message"


@pytest.mark.parametrize(
    ("text", "java", "murmur"),
    [("", 0, 0), ("hello", 99162322, 613153351), ("héllo😀", None, None)],
)
def test_hashes_are_those_of_the_java_client(impl: str, text: str, java: int | None, murmur: int | None) -> None:
    keys = pa.array([text, None])
    if java is None:
        # String.hashCode over UTF-16, as the language defines it.
        java = 0
        for unit in array("H", text.encode("utf-16-le")):
            java = (31 * java + unit) & 0xFFFFFFFF
        java &= 0x7FFFFFFF
    assert encoding.load(impl).hashes_of(keys, JAVA_STRING_HASH).tolist() == [java, -1]
    if murmur is not None:
        assert encoding.load(impl).hashes_of(keys, MURMUR3_32_HASH).tolist() == [murmur, -1]


# Grouping of rows into entries.


@pytest.mark.parametrize(("batch_rows", "expected"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])])
def test_a_batch_has_at_most_its_row_limit(impl: str, batch_rows: int, expected: list[int]) -> None:
    assert sizes(encode(impl, {"value": [b"x"] * 7}, batch_rows=batch_rows)) == expected


def test_a_batch_has_at_most_its_byte_limit(impl: str) -> None:
    # 4 bytes of size, 4 of metadata (payload_size, sequence_id), 10 of value.
    assert sizes(encode(impl, {"value": [b"x" * 10] * 7}, batch_bytes=54)) == [3, 3, 1]
    assert sizes(encode(impl, {"value": [b"x" * 10] * 7}, batch_bytes=53)) == [2, 2, 2, 1]


def test_a_message_whose_key_does_not_fit_twice_is_sent_alone(impl: str) -> None:
    # The first key of a batch is in its metadata, too.
    for size, is_batch in ((40, True), (41, False)):
        (send,) = encode(impl, {"value": [b"12345678"], "key": ["k" * size]}, batch_bytes=98)
        assert parse(send)[0].HasField("num_messages_in_batch") == is_batch


def test_append_stops_at_the_end_of_an_entry_so_that_the_partition_can_change(impl: str) -> None:
    made = encoder(impl, batch_rows=3)
    source = open_rows(pa.record_batch({"value": [b"x"] * 7}), impl)
    assert made.append(source, None, 0, 7, now_ms=1) == 3
    assert sizes(made.take()) == [3]
    assert made.append(source, None, 3, 5, now_ms=1) == 5
    assert made.take() == []
    assert made.sequence_id == 5
    assert made.nbytes > 0
    made.flush(now_ms=2)
    made.flush(now_ms=3)
    (send,) = made.take()
    assert parse(send)[0].publish_time == 2
    assert made.nbytes == 0


# Encoding of a row.


@pytest.mark.parametrize("compression", CODECS)
def test_incompressible_payloads_are_not_compressed(impl: str, compression: str) -> None:
    for value, helps in ((b"x" * 1000, compression != "NONE"), (b"x", False), (b"", False), (None, False)):
        for batching in (True, False):
            columns = {"value": pa.array([value], pa.binary())}
            (send,) = encode(impl, columns, compression=compression, batching=batching)
            metadata, payload = parse(send)
            assert metadata.HasField("compression") == helps
            assert (metadata.uncompressed_size > len(payload)) == helps


@pytest.mark.parametrize("time_us", [999, 0, -1, -(10**15)])
def test_an_event_time_that_pulsar_cannot_represent(impl: str, time_us: int) -> None:
    made = encoder(impl)
    columns = {"value": [b"good", b"bad"], "event_time": pa.array([None, time_us], TIME)}
    with pytest.raises(UnwritableRowError, match=rf"event_time of {time_us // 1000} ms since 1970.*NULL"):
        append_all(made, impl, columns)
    assert sizes(made.take()) == [1]


def test_a_property_without_a_value(impl: str) -> None:
    columns = {"value": [b"x"], "properties": pa.array([[("a", "1"), ("colour", None)]], MAP)}
    with pytest.raises(UnwritableRowError, match="property 'colour' is NULL"):
        encode(impl, columns)


@pytest.mark.parametrize("batching", [True, False])
def test_a_message_larger_than_the_broker_accepts(impl: str, batching: bool) -> None:
    with pytest.raises(
        UnwritableRowError, match=r"of 20\d\d bytes is larger than the 1000.*chunking=true.*maxMessageSize"
    ):
        encode(impl, {"value": [b"x" * 2000]}, max_message_bytes=1000, batching=batching)
    with pytest.raises(UnwritableRowError, match="leave no room for its value within the 1000"):
        encode(impl, {"value": [b"x"], "key": ["k" * 2000]}, max_message_bytes=1000, batching=batching, chunking=True)
    (send,) = encode(impl, {"value": [b"x" * 2000]}, max_message_bytes=1000, batching=batching, compression="LZ4")
    assert len(send.body) < 100


def test_columns_that_cannot_be_written(impl: str) -> None:
    with pytest.raises(OptionError, match="no column value"):
        open_rows(pa.record_batch({"key": ["a"]}), impl)
    with pytest.raises(OptionError, match=r"column valeu is unknown.*column event_time is int64"):
        open_rows(pa.record_batch({"valeu": ["a"], "event_time": [1]}), impl)


def test_a_partition_that_does_not_exist_is_named_by_its_row(impl: str) -> None:
    partitions = pa.array([1, None, 2, 0], pa.int32())
    with pytest.raises(IndexError, match="2"):
        encoding.load(impl).group_rows(partitions, None, None, 4, 2)
    groups = encoding.load(impl).group_rows(partitions, array("i", [5, 5, 5, 5]), None, 4, 3)
    assert [(partition, rows.tolist()) for partition, rows in groups] == [(0, [3]), (1, [0]), (2, [1, 2])]


# Memory.


def test_an_entry_outlives_its_rows_and_its_encoder(impl: str) -> None:
    sends = encode(impl, {"value": [b"x" * 100] * 5000}, batch_bytes=10_000)
    before = [bytes(send.body) for send in sends]
    gc.collect()
    encode(impl, {"value": [b"y" * 100] * 5000}, batch_bytes=10_000)
    assert [bytes(send.body) for send in sends] == before
