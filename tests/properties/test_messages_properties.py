"""Both decoders against each other, and against what protobuf's own encoder was told to write."""

from __future__ import annotations

import contextlib
import tracemalloc
import zlib
from typing import Any

import cramjam
import lz4.block
import pyarrow as pa
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.errors import CorruptMessageError, MQSourceError
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY, EntryDecoder
from spark_mq_source.pulsar.protocol.wire import take_frame
from tests.protobuf import pulsar as pulsar_pb
from tests.vectors import pulsar_frames

pytest.importorskip("spark_mq_source.pulsar.payload._messages_native", exc_type=ImportError)

MAX_MESSAGE_BYTES = 1 << 20
TIME = pa.timestamp("us", "UTC")
COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "message_id": pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("batch_index", pa.int32())]),
    "publish_time": TIME,
    "event_time": TIME,
    "properties": pa.map_(pa.string(), pa.string()),
    "producer_name": pa.string(),
    "sequence_id": pa.int64(),
    "ordering_key": pa.binary(),
    "schema_version": pa.binary(),
    "replicated_from": pa.string(),
    "broker_publish_time": TIME,
    "broker_index": pa.int64(),
}
ALL = pa.schema(list(COLUMNS.items()))
TEXT = pa.schema([(name, pa.string() if name in {"key", "value"} else type_) for name, type_ in COLUMNS.items()])
VALUE = pa.schema([("value", pa.binary())])
COMPRESS = {
    0: bytes,
    1: lambda data: lz4.block.compress(data, store_size=False),
    2: zlib.compress,
    3: zstandard.compress,
    4: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}

text = st.text(st.characters(codec="utf-8"), max_size=20)
uint64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
times = st.integers(0, 9_223_372_036_854_775)
pairs = st.lists(st.tuples(text | st.sampled_from(["a", "b"]), text), max_size=20)
values = st.binary(max_size=200)
singles = st.fixed_dictionaries(
    {"value": values, "properties": pairs},
    optional={
        "partition_key": text,
        "event_time": times,
        "ordering_key": values,
        "sequence_id": uint64,
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
        "compacted_out": st.booleans(),
    },
)
entries = st.fixed_dictionaries(
    {
        "producer_name": text,
        "sequence_id": uint64,
        "publish_time": times,
        "properties": pairs,
        "compression": st.sampled_from(sorted(COMPRESS)),
    },
    optional={
        "event_time": times,
        "replicated_from": text,
        "partition_key": text,
        "schema_version": values,
        "ordering_key": values,
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
        "compacted_batch_indexes": st.lists(st.integers(-1, 20), max_size=5),
    },
)
brokers = st.none() | st.fixed_dictionaries({}, optional={"broker_timestamp": times, "index": st.integers(0, 2**62)})


def key_values(items: list[tuple[str, str]]) -> list[Any]:
    return [pulsar_pb.KeyValue(key=key, value=value) for key, value in items]


def with_properties(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: key_values(value) if name == "properties" else value for name, value in fields.items()}


def encode(fields: dict[str, Any], payload: bytes, broker: dict[str, int] | None, *, checked: bool = True) -> bytes:
    metadata = pulsar_pb.MessageMetadata(**with_properties(fields), uncompressed_size=len(payload)).SerializeToString()
    body = len(metadata).to_bytes(4, "big") + metadata + COMPRESS[fields["compression"]](payload)
    if checked:
        body = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    if broker is not None:
        extra = pulsar_pb.BrokerEntryMetadata(**broker).SerializeToString()
        body = b"\x0e\x02" + len(extra).to_bytes(4, "big") + extra + body
    return body


def encode_batch(messages: list[dict[str, Any]]) -> bytes:
    parts = []
    for message in messages:
        fields = with_properties({name: value for name, value in message.items() if name != "value"})
        metadata = pulsar_pb.SingleMessageMetadata(**fields, payload_size=len(message["value"])).SerializeToString()
        parts += [len(metadata).to_bytes(4, "big"), metadata, message["value"]]
    return b"".join(parts)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def expected_row(
    entry: dict[str, Any], message: dict[str, Any], index: int, broker: dict[str, int] | None, count: int
) -> dict[str, Any]:
    def own(name: str, default: Any = None) -> Any:
        return message.get(name, entry.get(name, default))

    event_time = own("event_time", 0)
    broker = broker or {}
    return {
        "key": None
        if own("null_partition_key") or "partition_key" not in message
        else message["partition_key"].encode(),
        "value": None if own("null_value") else message["value"],
        "topic": "t",
        "partition": -1,
        "message_id": {"ledger_id": 7, "entry_id": 5, "batch_index": index},
        "publish_time": entry["publish_time"] * 1000,
        "event_time": event_time * 1000 or None,
        "properties": dict(message["properties"]),
        "producer_name": entry["producer_name"],
        "sequence_id": signed(own("sequence_id")),
        "ordering_key": message.get("ordering_key"),
        "schema_version": entry.get("schema_version"),
        "replicated_from": entry.get("replicated_from"),
        "broker_publish_time": broker["broker_timestamp"] * 1000 if "broker_timestamp" in broker else None,
        "broker_index": broker["index"] - (count - 1) + max(index, 0) if "index" in broker else None,
    }


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        if name == "properties":
            columns[name] = [dict(items) for items in columns[name]]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


class Both:
    """Both decoders, given the same."""

    def __init__(self, schema: pa.Schema, **options: Any) -> None:
        self.decoders = [
            EntryDecoder(
                schema,
                topic="t",
                partition=-1,
                **{"max_message_bytes": MAX_MESSAGE_BYTES, "max_pending_chunk_bytes": 256 << 20, **options},
                implementation=name,
            )
            for name in ("native", "python")
        ]

    def decode(self, body: bytes, *args: Any) -> int | type[MQSourceError]:
        """What both did with the entry: rows appended, or the class of the error."""
        outcomes: list[tuple[Any, ...]] = []
        for decoder in self.decoders:
            before = decoder.rows, decoder.nbytes
            outcome: int | type[MQSourceError]
            sentence = ""
            try:
                outcome = decoder.decode(7, 5, memoryview(body), *args)
            except MQSourceError as error:
                outcome = type(error)
                sentence = str(error)
                assert sentence.startswith("message 7:5: ")
                assert (decoder.rows, decoder.nbytes) == before
            else:
                assert decoder.rows == before[0] + outcome
            outcomes.append(
                (outcome, decoder.rows, decoder.nbytes, decoder.entry_messages, decoder.corrupt_entries, decoder.orphan,
                 decoder.pending_chunk_start())
            )  # fmt: skip
        assert outcomes[0] == outcomes[1]
        return outcomes[0][0]

    def take(self) -> pa.RecordBatch:
        """The batch, which both have."""
        native, python = (decoder.take_batch() for decoder in self.decoders)
        native.validate(full=True)
        assert native.schema.equals(python.schema, check_metadata=True)
        assert native.equals(python)
        return native


@settings(deadline=None)
@given(entries, values, brokers, st.booleans())
def test_single_messages(entry: dict[str, Any], value: bytes, broker: dict[str, int] | None, checked: bool) -> None:
    both = Both(ALL)
    assert both.decode(encode(entry, value, broker, checked=checked)) == 1
    assert to_rows(both.take()) == [expected_row(entry, entry | {"value": value}, -1, broker, 1)]


@settings(deadline=None)
@given(
    entries,
    st.lists(singles, min_size=1, max_size=20),
    brokers,
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
    st.integers(0, 3),
    st.integers(0, 20) | st.just(WHOLE_ENTRY),
)
def test_batches(
    entry: dict[str, Any],
    messages: list[dict[str, Any]],
    broker: dict[str, int] | None,
    ack_set: list[int],
    first: int,
    last: int,
) -> None:
    both = Both(ALL)
    count = len(messages)
    body = encode(entry | {"num_messages_in_batch": count}, encode_batch(messages), broker)
    expected = [
        expected_row(entry, message, index, broker, count)
        for index, message in enumerate(messages)
        if first <= index <= last
        and not message.get("compacted_out")
        and index not in entry.get("compacted_batch_indexes", ())
        and (not ack_set or (index // 64 < len(ack_set) and ack_set[index // 64] >> index % 64 & 1))
    ]
    assert both.decode(body, ack_set, first, last) == len(expected)
    assert to_rows(both.take()) == expected


def valid_bodies() -> st.SearchStrategy[bytes]:
    single = st.builds(encode, entries, values, brokers, checked=st.booleans())
    batches = st.builds(
        lambda entry, messages, broker, checked: encode(
            entry | {"num_messages_in_batch": len(messages)}, encode_batch(messages), broker, checked=checked
        ),
        entries,
        st.lists(singles, min_size=1, max_size=8),
        brokers,
        st.booleans(),
    )
    chunks = st.builds(
        lambda entry, value, chunk, total: encode(
            entry
            | {
                "uuid": "u",
                "chunk_id": chunk,
                "num_chunks_from_msg": 3,
                "total_chunk_msg_size": total,
                "compression": 0,
            },
            value,
            None,
        ),
        entries,
        values,
        st.integers(0, 3),
        st.integers(0, 600),
    )
    recorded = [frame for frame in pulsar_frames() if frame.kind == "MESSAGE"]
    frames = [take_frame(memoryview(frame.data), 0, 1 << 23) for frame in recorded]
    vectors = st.sampled_from([bytes(frame.body) for frame in frames if frame is not None and frame.body is not None])
    return single | batches | chunks | vectors


VALID = valid_bodies()


@st.composite
def mutated_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(VALID))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(body) - 1, 0)))
        match draw(st.sampled_from(["set", "flip", "cut", "insert", "remove", "repeat", "high"])):
            case "set" if body:
                body[at] = draw(st.integers(0, 255))
            case "flip" if body:
                body[at] ^= 1 << draw(st.integers(0, 7))
            case "high" if body:
                body[at] |= 0x80
            case "cut":
                del body[at:]
            case "insert":
                body[at:at] = draw(st.binary(max_size=12))
            case "remove":
                del body[at : at + draw(st.integers(1, 8))]
            case "repeat":
                body[at:at] = body[at : at + draw(st.integers(1, 20))]
    return bytes(body)


@settings(max_examples=400, deadline=None)
@given(st.lists(mutated_bodies() | VALID, min_size=1, max_size=5), st.sampled_from([ALL, TEXT, VALUE]), st.booleans())
def test_mutated_entries_have_the_same_outcome_in_both(bodies: list[bytes], schema: pa.Schema, verifies: bool) -> None:
    both = Both(schema, verify_checksum=verifies)
    for body in bodies:
        both.decode(body)
    both.take()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(mutated_bodies() | VALID, min_size=1, max_size=5),
    st.sampled_from(["skip", "null"]),
    st.sampled_from(["fail", "raw"]),
    st.booleans(),
    st.integers(0, 2),
)
def test_mutated_entries_never_raise_where_corruption_is_allowed(
    bodies: list[bytes], on_corrupt: str, on_encrypted: str, emits: bool, first: int
) -> None:
    both = Both(ALL, verify_checksum=False, on_corrupt=on_corrupt, on_encrypted=on_encrypted)
    for body in bodies:
        outcome = both.decode(body, (), first, WHOLE_ENTRY, emits)
        assert outcome is not CorruptMessageError
    both.take()


# Without a checksum every byte counts; the size before the metadata is right, so that the garbage is looked at.
def garbage_bodies() -> st.SearchStrategy[bytes]:
    known = pulsar_pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    batch = pulsar_pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=3)

    def metadata_of(base: bytes, extra: bytes, payload: bytes) -> bytes:
        return (len(base) + len(extra)).to_bytes(4, "big") + base + extra + payload

    def message_of(metadata: bytes, payload: bytes) -> bytes:
        return len(metadata).to_bytes(4, "big") + metadata + payload

    field = st.builds(
        lambda number, wire, value: bytes([number << 3 | wire]) + value,
        st.integers(0, 15),
        st.integers(0, 7),
        st.binary(max_size=11),
    )
    fields = st.lists(field, max_size=4).map(b"".join) | st.binary(max_size=40)
    payloads = st.binary(max_size=60) | st.lists(
        st.builds(message_of, st.just(b"\x18\x02") | fields, st.binary(max_size=4)), max_size=4
    ).map(b"".join)
    base = st.sampled_from([b"", known.SerializeToString(), batch.SerializeToString()])
    return st.binary(max_size=100) | st.builds(metadata_of, base, fields, payloads)


@settings(max_examples=400, deadline=None)
@given(garbage_bodies(), st.sampled_from([ALL, TEXT, VALUE]))
@example(b"\x0e\x02\xff\xff\xff\xff", ALL)
@example(b"\xff\xff\xff\xff" + bytes(20), ALL)
def test_garbage_has_the_same_outcome_in_both(body: bytes, schema: pa.Schema) -> None:
    both = Both(schema)
    both.decode(body)
    both.take()


@settings(max_examples=100, deadline=None)
@given(mutated_bodies() | garbage_bodies(), st.sampled_from(["native", "python"]))
def test_no_input_makes_the_decoder_allocate_beyond_its_limit(body: bytes, implementation: str) -> None:
    decoder = EntryDecoder(
        ALL,
        topic="t",
        partition=0,
        verify_checksum=False,
        on_corrupt="skip",
        max_message_bytes=MAX_MESSAGE_BYTES,
        max_pending_chunk_bytes=MAX_MESSAGE_BYTES,
        implementation=implementation,
    )
    tracemalloc.start()
    try:
        with contextlib.suppress(MQSourceError):
            decoder.decode(1, 1, body)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_MESSAGE_BYTES
    finally:
        tracemalloc.stop()


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_text_is_what_python_accepts(value: bytes) -> None:
    both = Both(TEXT)
    outcome = both.decode(
        encode({"producer_name": "p", "sequence_id": 0, "publish_time": 0, "compression": 0}, value, None)
    )
    try:
        decoded = value.decode()
    except UnicodeDecodeError:
        assert outcome is CorruptMessageError
    else:
        assert outcome == 1
        assert both.take().column("value").to_pylist() == [decoded]
