"""Targets of the fuzzer: for each one, initial inputs, and the session that takes them.

A session feeds a group of inputs to one decoder or encoder, as a task does with the entries of a range. Both
implementations must return equal results for each input, and finish with the same rows.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa

from spark_mq_source.core.columns import CORRUPT, ERROR
from spark_mq_source.core.compression import CODECS, compress, decompress
from spark_mq_source.core.errors import MQSourceError, UnwritableRowError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.nsq.payload import _messages_python as nsq_python
from spark_mq_source.nsq.payload import messages as nsq_messages
from spark_mq_source.nsq.payload.columns import COLUMNS as NSQ_COLUMNS
from spark_mq_source.nsq.protocol import commands as nsq_commands
from spark_mq_source.nsq.protocol.compression import DeflateStream, SnappyStream
from spark_mq_source.nsq.protocol.connection import NsqConnection
from spark_mq_source.nsq.protocol.wire import MESSAGE, encode_frame
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, encoding, open_rows
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY, EntryDecoder
from spark_mq_source.pulsar.protocol import wire as pulsar_wire
from spark_mq_source.pulsar.protocol.codec import decode_command
from spark_mq_source.tubemq.payload import _messages_python
from spark_mq_source.tubemq.payload.columns import COLUMNS as TUBEMQ_COLUMNS
from spark_mq_source.tubemq.payload.layout import first_message
from spark_mq_source.tubemq.payload.messages import MessageDecoder
from spark_mq_source.tubemq.protocol import wire as tubemq_wire
from spark_mq_source.tubemq.protocol.codec import decode_response
from spark_mq_source.tubemq.protocol.hot import take_stored
from tests.fuzz.values import (
    AvroEncoding,
    ProtobufEncoding,
    avro_decoding,
    avro_values,
    json_decoding,
    json_values,
    pair_decoding,
    pairs,
    protobuf_decoding,
    protobuf_values,
)
from tests.oracles.pulsar_messages import framed
from tests.protobuf import pulsar as pulsar_pb
from tests.protobuf import tubemq as tubemq_pb
from tests.readable import schema_of
from tests.unit.nsq.vectors import FROM_NSQD
from tests.vectors import pulsar_frames, tubemq_calls

MAX_MESSAGE_BYTES = 1 << 20
"""The limit of decoders; the sanitizer refuses much larger allocations."""

FULL_BYTES = 4 << 20
"""The size of rows at which a session takes them, as a reader does."""

TIME = pa.timestamp("us", "UTC")
MAP = pa.map_(pa.string(), pa.string())
# Of several faults in one input, each implementation reports the first that it finds.
PULSAR_SCHEMA = schema_of(COLUMNS, without=(ERROR,))
TUBEMQ_SCHEMA = schema_of(TUBEMQ_COLUMNS, without=(ERROR,))
# The reader makes the other columns from the rows that it logs.
NSQ_SCHEMA = schema_of(NSQ_COLUMNS, without=(CORRUPT, ERROR))


class Session(Protocol):
    """One decoder or encoder, made from a seed: the same seed makes the same options."""

    def feed(self, data: memoryview) -> object:
        """Take an input; return the outcome, to be compared with that of the other implementation."""

    def finish(self) -> object:
        """End the session; return the remaining results, checked."""


class Target(NamedTuple):
    """A target; one that is not compiled has no twin to compare with."""

    name: str
    session: Callable[[int, str], Session]
    inputs: Callable[[], Iterator[bytes]]
    has_twin: bool = True


def random_schema(rng: Random, columns: pa.Schema) -> pa.Schema:
    """Return all columns half of the time, otherwise some; some binary columns as text."""
    names = columns.names if rng.random() < 0.5 else rng.sample(columns.names, rng.randint(0, len(columns)))
    as_text = rng.random() < 0.3
    texts = {"key", "value"} if as_text else set()
    return pa.schema(
        [columns.field(name).with_type(pa.string()) if name in texts else columns.field(name) for name in names]
    )


class DecoderSession:
    """A session that feeds a decoder, and takes its rows when they reach a size."""

    decoder: Any

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def feed(self, data: memoryview) -> object:
        decoder = self.decoder
        outcome: object
        try:
            outcome = self.decode(data)
        except MQSourceError as error:
            # Of several faults in one input, each implementation reports the first that it finds.
            outcome = type(error)
        if decoder.nbytes > FULL_BYTES:
            self.take()
        return outcome, decoder.rows, decoder.nbytes

    def decode(self, data: memoryview) -> object:
        raise NotImplementedError

    def take(self) -> None:
        batch = self.decoder.take_batch()
        batch.validate(full=True)
        self.batches.append(batch)

    def finish(self) -> object:
        self.take()
        return self.batches


class PulsarDecoding(DecoderSession):
    """A session whose input is two bytes with the delivery of an entry, and the entry."""

    def __init__(self, seed: int, implementation: str) -> None:
        super().__init__()
        rng = Random(seed)
        self.decoder = EntryDecoder(
            random_schema(rng, PULSAR_SCHEMA),
            topic="t",
            partition=3,
            verify_checksum=rng.random() < 0.1,
            on_corrupt=rng.choice(["fail", "fail", "skip", "null"]),
            on_encrypted=rng.choice(["fail", "raw"]),
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_pending_chunk_bytes=rng.choice([2_000, MAX_MESSAGE_BYTES]),
            # Taking batches is slower than decoding them.
            max_batch_rows=rng.choice([3, 30, *[WHOLE_ENTRY] * 20]),
            implementation=implementation,
        )
        self.entry = 0

    def decode(self, data: memoryview) -> object:
        decoder = self.decoder
        how = data[0] if data else 0
        bits = data[1] if len(data) > 1 else 0
        ack_set = () if how < 192 else (bits, -1)[: how & 3]
        first = bits & 7 if how & 4 else 0
        last = first + (bits >> 3) if how & 8 else WHOLE_ENTRY
        self.entry += not how & 16
        appended = decoder.decode(7, self.entry, data[2:], ack_set, first, last, how & 48 != 48, how << 24)
        while decoder.unfinished:
            self.take()
            appended += decoder.decode_rest()
        orphan, decoder.orphan = decoder.orphan, None
        return appended, orphan, decoder.entry_messages, decoder.corrupt_entries, decoder.pending_chunk_start()


def pulsar_entries() -> Iterator[bytes]:
    """Yield recorded entries, and entries with every field."""
    for frame in pulsar_frames():
        taken = pulsar_wire.take_frame(memoryview(frame.data), 0, 1 << 23)
        if taken is not None and taken.body is not None:
            yield b"\0\0" + bytes(taken.body)
    pairs = [
        pulsar_pb.KeyValue(key="a", value="1"),
        pulsar_pb.KeyValue(key="a", value="2"),
        pulsar_pb.KeyValue(key="ü", value=""),
    ]
    fields: dict[str, Any] = {
        "producer_name": "prodücer",
        "sequence_id": 10,
        "publish_time": 1_700_000_000_000,
        "event_time": 5,
        "properties": pairs * 6,
        "replicated_from": "r",
        "partition_key": "YWJj",
        "partition_key_b64_encoded": True,
        "schema_version": b"s",
        "ordering_key": b"o",
        "null_value": False,
        "null_partition_key": False,
    }
    broker = pulsar_pb.BrokerEntryMetadata(broker_timestamp=6, index=70).SerializeToString()
    yield b"\0\0" + framed(pulsar_pb.MessageMetadata(**fields).SerializeToString(), b"value", broker=broker)
    single = pulsar_pb.SingleMessageMetadata(
        properties=pairs,
        partition_key="YWJj",
        payload_size=3,
        event_time=7,
        partition_key_b64_encoded=True,
        ordering_key=b"o",
        sequence_id=9,
        null_value=False,
        null_partition_key=False,
        compacted_out=False,
    ).SerializeToString()
    small = pulsar_pb.SingleMessageMetadata(payload_size=3).SerializeToString()
    one, other = (len(part).to_bytes(4, "big") + part + b"abc" for part in (single, small))
    for messages in ([one], [one, other] * 3, [other] * 70, [one] * 30):
        payload = b"".join(messages)
        said = pulsar_pb.MessageMetadata(
            **fields,
            num_messages_in_batch=len(messages),
            compacted_batch_indexes=[2, 4],
            uncompressed_size=len(payload),
        )
        for number, codec in enumerate(CODECS):
            said.compression = number
            packed = bytes(compress(codec, payload))
            yield b"\0\0" + framed(said.SerializeToString(), packed, is_checked=False, broker=broker)
    for number in range(3):
        said = pulsar_pb.MessageMetadata(
            producer_name="p",
            sequence_id=1,
            publish_time=2,
            uuid="u",
            chunk_id=number,
            num_chunks_from_msg=3,
            total_chunk_msg_size=12,
        )
        yield b"\0\0" + framed(said.SerializeToString(), b"four", is_checked=False)
    said = pulsar_pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=2, encryption_algo="AES/GCM/NoPadding"
    )
    said.encryption_keys.add(key="k", value=b"v", metadata=pairs)
    said.encryption_param = bytes(12)
    yield b"\0\0" + framed(said.SerializeToString(), bytes(20), is_checked=False)


class TubeMQDecoding(DecoderSession):
    """A session whose input is the answer to GET_MESSAGE."""

    def __init__(self, seed: int, implementation: str) -> None:
        super().__init__()
        rng = Random(seed)
        self.decoder = MessageDecoder(
            random_schema(rng, TUBEMQ_SCHEMA),
            topic="t",
            broker_id=1,
            partition=3,
            filters=rng.choice([(), (), ("a", "type")]),
            time_zone=rng.choice(["UTC", "Asia/Shanghai"]),
            on_corrupt=rng.choice(["fail", "skip", "null"]),
            implementation=implementation,
        )
        self.loops = Implementation(_messages_python, implementation).module
        self.stop_at: tuple[int, int] | None = None

    def decode(self, data: memoryview) -> object:
        appended = self.decoder.decode(data, 28, self.stop_at)
        # A message of the last answer, as where two ranges meet.
        self.stop_at = first_message(data) if appended % 3 == 1 else None
        return appended, self.decoder.corrupt_messages, self.stop_at, bytes(self.loops.without_messages(data))


def tubemq_answers() -> Iterator[bytes]:
    """Yield recorded answers, and messages whose checksum is -1: not checked."""
    for call in tubemq_calls():
        taken = tubemq_wire.take_frame(memoryview(call.answer), 0)
        if taken is not None:
            yield bytes(taken.payload)
    for text in (b"", b"$msgType$=a,$msgTime$=202611221200,k=v,k=w,x=", b",".join(b"k%d=v" % n for n in range(40))):
        payload = len(text).to_bytes(4, "big") + text + b"value"
        for flag, check_sum in ((1, -1), (0, -1), (1, zlib.crc32(payload) & 0x7FFFFFFF)):
            message = tubemq_pb.TransferedMessage(message_id=5, check_sum=check_sum, pay_load_data=payload, flag=flag)
            head = tubemq_pb.GetMessageResponse(success=True, err_code=200, err_msg="OK")
            yield head.SerializeToString() + tubemq_pb.TransferedMessages(messages=[message] * 3).SerializeToString()


class NsqDecoding(DecoderSession):
    """A session whose input is received frames: the whole messages at its beginning are decoded."""

    def __init__(self, seed: int, implementation: str) -> None:
        super().__init__()
        self.loops = Implementation(nsq_python, implementation).module
        self.decoder = nsq_messages.MessageDecoder(
            random_schema(Random(seed), NSQ_SCHEMA), topic="t", channel="c", nsqd="n", implementation=implementation
        )

    def decode(self, data: memoryview) -> object:
        stop, count = self.loops.scan_messages(data, 0, MAX_MESSAGE_BYTES)
        run = data[:stop]
        ids = self.loops.message_ids(run)
        commands = self.loops.encode_id_commands(b"REQ", ids, b" 0")
        return stop, count, bytes(ids), bytes(commands), self.decoder.append(nsq_commands.Messages(run, count))


def nsq_frames() -> Iterator[bytes]:
    """Yield recorded frames, and runs of messages."""
    yield from FROM_NSQD
    message = encode_frame(
        MESSAGE, (1_700_000_000_000_000_000).to_bytes(8, "big") + b"\0\1" + b"0123456789abcdef" + b"v"
    )
    yield message * 5
    yield b"".join(FROM_NSQD)[:2000]


def drawn_batch(data: memoryview, columns: dict[str, pa.DataType], *, is_null_free: bool = False) -> pa.RecordBatch:
    """Return rows made from an input: cells are pieces of it, sliced so that arrays begin within their buffers."""
    raw = bytes(data)
    rng = Random(zlib.crc32(raw))
    rows = rng.randint(0, 12)
    arrays = []
    for type_ in columns.values():
        cells: list[Any] = []
        for _ in range(rows + 2):
            at = rng.randint(0, len(raw))
            piece = raw[at : at + rng.choice([0, 1, 3, 9, 40, 200, 9000])]
            if rng.random() < 0.15 and not is_null_free:
                cells.append(None)
            elif pa.types.is_binary(type_):
                cells.append(piece)
            elif pa.types.is_string(type_):
                cells.append(piece.decode(errors="replace"))
            elif pa.types.is_map(type_):
                text = piece.decode(errors="replace")
                cells.append([(text[:n], None if rng.random() < 0.02 else text[n:9]) for n in range(rng.randint(0, 4))])
            else:
                cells.append(int.from_bytes(piece[:8].ljust(8, b"\0"), "big", signed=True))
        arrays.append(pa.array(cells, type_))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns)).slice(1, rows)


class PulsarEncoding:
    """A session that makes rows from an input, encodes them, and decodes the result again."""

    columns: ClassVar[dict[str, pa.DataType]] = {
        "value": pa.binary(),
        "key": pa.binary(),
        "ordering_key": pa.binary(),
        "event_time": TIME,
        "deliver_at": TIME,
        "properties": MAP,
    }

    def __init__(self, seed: int, implementation: str) -> None:
        rng = Random(seed)
        self.implementation = implementation
        names = ["value", *rng.sample(list(self.columns)[1:], rng.randint(0, 5))]
        self.types = {name: self.columns[name] for name in names}
        if rng.random() < 0.5 and "key" in self.types:
            self.types["key"] = pa.string()
        self.hashing = rng.randint(0, 1)
        self.encoder = EntryEncoder(
            producer_id=1,
            producer_name="p",
            sequence_id=rng.choice([0, 126, 2**31, 2**62]),
            max_message_bytes=rng.choice([700, 8000]),
            batch_bytes=rng.choice([1, 100, 5000]),
            batch_rows=rng.choice([1, 3, 2**31 - 1]),
            batching=rng.random() < 0.8,
            batching_by_key=rng.random() < 0.3,
            chunking=rng.random() < 0.5,
            compression=rng.choice(CODECS),
            implementation=implementation,
        )

    def feed(self, data: memoryview) -> object:
        batch = drawn_batch(data, self.types)
        source = open_rows(batch, self.implementation)
        at = 0
        said: list[object] = []
        while at < batch.num_rows:
            try:
                at = self.encoder.append(source, None, at, batch.num_rows, now_ms=5)
            except UnwritableRowError as error:
                said.append(str(error))
                break
        if "key" in self.types:
            loops = encoding.load(self.implementation)
            said.append(loops.hashes_of(batch.column(list(self.types).index("key")), self.hashing))
        self.encoder.flush(now_ms=5)
        sends = [send._replace(body=bytes(send.body)) for send in self.encoder.take()]
        decoder = EntryDecoder(
            pa.schema([("value", pa.binary()), ("properties", MAP)]),
            topic="t",
            partition=0,
            max_message_bytes=MAX_MESSAGE_BYTES,
            max_pending_chunk_bytes=MAX_MESSAGE_BYTES,
            implementation=self.implementation,
        )
        for number, send in enumerate(sends):
            decoder.decode(1, number, send.body)
        decoder.take_batch().validate(full=True)
        return said, sends

    def finish(self) -> object:
        return self.encoder.sequence_id


class NsqEncoding:
    """A session that makes rows from an input, and encodes them."""

    def __init__(self, seed: int, implementation: str) -> None:
        rng = Random(seed)
        self.implementation = implementation
        self.types = {"value": rng.choice([pa.binary(), pa.string()])}
        self.max_bytes, self.max_rows = rng.choice([49, 300, 100_000]), rng.choice([1, 3, 1000])
        self.is_ordered = rng.random() < 0.5

    def feed(self, data: memoryview) -> object:
        batch = drawn_batch(data, self.types)
        source = nsq_messages.open_rows(batch, self.implementation)
        said: list[object] = [source.find_unwritable(limit) for limit in (0, 40, 1 << 20)]
        sound = [row for row, value in enumerate(batch.column(0).to_pylist()) if value and len(value) <= 40]
        order = array("i", sound if self.is_ordered else sound[::-1])
        at = 0
        while at < len(order):
            body, at = source.build_body(
                order, at, len(order), max_bytes=max(self.max_bytes, 200), max_rows=self.max_rows
            )
            said.append(bytes(body))
        return said

    def finish(self) -> object:
        return None


class PythonSession:
    """A session of code without a compiled twin, which may raise errors of this package only."""

    def __init__(self, run: Callable[[memoryview, int], object], seed: int) -> None:
        self.run = run
        self.seed = seed

    def feed(self, data: memoryview) -> object:
        try:
            return self.run(data, self.seed)
        except MQSourceError as error:
            return str(error)

    def finish(self) -> object:
        return None


def run_pulsar_frames(data: memoryview, _seed: int) -> None:
    offset = 0
    while (frame := pulsar_wire.take_frame(data, offset, MAX_MESSAGE_BYTES)) is not None:
        decode_command(frame)
        offset += frame.size


def run_tubemq_frames(data: memoryview, _seed: int) -> None:
    frame = tubemq_wire.take_frame(data, 0)
    if frame is not None:
        decode_response(frame)
    take_stored(data, 0)


class NsqReceiving:
    """A session whose input is received by one connection, in two pieces."""

    def __init__(self, seed: int, _implementation: str) -> None:
        self.seed = seed
        self.connection: NsqConnection | None = None

    def feed(self, data: memoryview) -> object:
        if self.connection is None:
            self.connection = NsqConnection(nsq_commands.Identify("i", "h", "u"), now=0.0)
        half = self.seed % (len(data) + 1)
        try:
            self.connection.receive_data(data[:half])
            self.connection.receive_data(data[half:])
            self.connection.events_received()
        except MQSourceError as error:
            self.connection = None
            return str(error)
        return None

    def finish(self) -> object:
        return None


def run_nsq_compression(data: memoryview, seed: int) -> int:
    stream = DeflateStream(6) if seed & 1 else SnappyStream()
    total = 0
    for part in stream.decompress(data):
        total += len(part)
        if total > 4 * MAX_MESSAGE_BYTES:
            break
    return total


def run_decompression(data: memoryview, _seed: int) -> int:
    if len(data) < 4:
        return 0
    codec = CODECS[data[0] % len(CODECS)]
    out = decompress(codec, data[4:], int.from_bytes(data[1:4], "big") % MAX_MESSAGE_BYTES)
    return len(out)


def compressed_inputs() -> Iterator[bytes]:
    for number, codec in enumerate(CODECS):
        for plain in (b"", b"a" * 1000, bytes(range(256)) * 3):
            yield bytes([number]) + len(plain).to_bytes(3, "big") + bytes(compress(codec, plain))


def nsq_streams() -> Iterator[bytes]:
    for stream in (DeflateStream(6), SnappyStream()):
        yield stream.compress(b"".join(FROM_NSQD)[:500]) + stream.compress(b"more")


def texts() -> Iterator[bytes]:
    yield b"hostile rows \xc3\xa4 \xf0\x9f\x98\x80 \xff" * 20
    yield bytes(300)
    yield (2**63 - 1).to_bytes(8, "big") * 9


def without_twin(name: str, run: Callable[[memoryview, int], object], inputs: Callable[[], Iterator[bytes]]) -> Target:
    return Target(name, lambda seed, _implementation: PythonSession(run, seed), inputs, has_twin=False)


TARGETS = {
    target.name: target
    for target in (
        Target("pulsar_entries", PulsarDecoding, pulsar_entries),
        Target("tubemq_answers", TubeMQDecoding, tubemq_answers),
        Target("nsq_messages", NsqDecoding, nsq_frames),
        # `directed_avro` and `directed_protobuf` compare these with their oracles.
        Target("avro_values", avro_decoding, avro_values, has_twin=False),
        Target("avro_rows", AvroEncoding, avro_values, has_twin=False),
        Target("json_values", json_decoding, json_values),
        Target("pairs", pair_decoding, pairs),
        Target("protobuf_values", protobuf_decoding, protobuf_values, has_twin=False),
        Target("protobuf_rows", ProtobufEncoding, protobuf_values, has_twin=False),
        Target("pulsar_rows", PulsarEncoding, texts),
        Target("nsq_rows", NsqEncoding, texts),
        without_twin("pulsar_frames", run_pulsar_frames, lambda: (frame.data for frame in pulsar_frames())),
        without_twin("tubemq_frames", run_tubemq_frames, lambda: (call.answer for call in tubemq_calls())),
        Target("nsq_frames", NsqReceiving, nsq_frames, has_twin=False),
        without_twin("nsq_streams", run_nsq_compression, nsq_streams),
        without_twin("compressed", run_decompression, compressed_inputs),
    )
}
