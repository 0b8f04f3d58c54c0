"""Text that is not UTF-8 is never written to a message, in any column, row, loop and kind of entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.columns import struct_array
from spark_mq_source.core.errors import UnwritableRowError
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.core.utf8 import check_texts
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.payload import messages as nsq
from spark_mq_source.nsq.write.writer import NsqWriter
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload import encoder as pulsar
from spark_mq_source.pulsar.write.writer import PulsarWriter
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.write.writer import TubeMQWriter
from tests.java_arrow import as_java_writes

MAP = pa.map_(pa.string(), pa.string())
ROWS = 5
# Invalid text that Spark's cast of binary to string accepts: stray bytes, a truncated sequence, a surrogate.
BAD = {"no lead byte": (b"abc\xff", 3), "cut off": (b"\xe2\x82", 0), "surrogate": (b"\xc3\xa4\xed\xa0\x80", 2)}
LOOPS = ("native", "python")


def encode_pulsar(batch: pa.RecordBatch, *, loops: str, batching: bool) -> None:
    encoder = pulsar.EntryEncoder(
        producer_id=1,
        producer_name="p",
        sequence_id=0,
        max_message_bytes=5 << 20,
        batch_bytes=100_000,
        batch_rows=1000,
        batching=batching,
        implementation=loops,
    )
    source = pulsar.open_rows(batch, loops, first_row=1000)
    at = 0
    while at < source.rows:
        at = encoder.append(source, None, at, source.rows, now_ms=1)
    encoder.flush(now_ms=1)


def open_nsq(batch: pa.RecordBatch, *, loops: str) -> None:
    nsq.open_rows(batch, loops, first_row=1000)


def write_tubemq(batch: pa.RecordBatch) -> None:
    with TubeMQWriter(TubeMQOptions.from_spark({"masters": "none.invalid:1"}, WRITE), TaskAttempt("q")) as writer:
        writer.rows = 1000
        writer.write(batch)


PLACES = {
    f"{label} {name}": (write, name)
    for label, write, names in (
        *(
            (f"pulsar {loops} {how}", partial(encode_pulsar, loops=loops, batching=how == "batched"),
             ("key", "topic", "properties"))
            for loops in LOOPS
            for how in ("batched", "single")
        ),
        *((f"nsq {loops}", partial(open_nsq, loops=loops), ("topic",)) for loops in LOOPS),
        ("tubemq", write_tubemq, ("topic", "message_type", "attributes")),
    )
    for name in names
}  # fmt: skip


def texts(cells: list[bytes | None]) -> pa.Array:
    return pa.array(cells, pa.binary()).view(pa.string())


def maps(rows: list[list[tuple[bytes, bytes]] | None]) -> pa.Array:
    built = pa.array(rows, pa.map_(pa.binary(), pa.binary()))
    entries = struct_array(MAP.field(0).type, [built.keys.view(pa.string()), built.items.view(pa.string())])
    return pa.Array.from_buffers(MAP, len(rows), built.buffers()[:2], children=[entries])


def column(name: str, bad: bytes, row: int, *, in_key: bool) -> pa.Array:
    if name not in {"properties", "attributes"}:
        return texts([bad if at == row else None if at == 1 and name != "topic" else b"k" for at in range(ROWS)])
    pair = (bad, b"1") if in_key else (b"b", bad)
    return maps([[(b"a", b"1"), pair] if at == row else None if at == 1 else [(b"a", b"1")] for at in range(ROWS)])


@pytest.mark.parametrize(("bad", "byte"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("row", [0, 2, ROWS - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize(("write", "name"), PLACES.values(), ids=PLACES)
def test_text_that_is_not_utf8_is_refused_with_the_number_of_its_row(
    write: Callable[[pa.RecordBatch], None], name: str, row: int, bad: bytes, byte: int
) -> None:
    sentence = f"its {name} is not UTF-8 (byte {byte}); make_valid_utf8 replaces such bytes; nothing of its batch was"
    for in_key in (True, False):
        whole = pa.record_batch({"value": [b"v"] * ROWS, name: column(name, bad, row, in_key=in_key)})
        for batch, number in ((whole, row), (whole.slice(row), 0)):
            with pytest.raises(UnwritableRowError) as error:
                write(batch)
            assert f"row {1000 + number} of the task cannot be a message: {sentence}" in str(error.value)
        if write is not write_tubemq:
            # Outside of the slice it is ignored.
            write(whole.slice(0, row))
            write(whole.slice(row + 1))


def test_the_error_names_the_topic_of_the_row() -> None:
    batch = pa.record_batch({"key": texts([b"k", b"\xff"]), "topic": ["a", "b"]})
    with pytest.raises(UnwritableRowError, match="row 1 of the task for topic b cannot be a message: its key is not"):
        check_texts(batch, ("key", "topic"))
    with pytest.raises(UnwritableRowError, match="row 0 of the task cannot be a message: its topic is not"):
        check_texts(pa.record_batch({"key": ["k"], "topic": texts([b"\xff"])}), ("key", "topic"))


def test_bytes_beneath_a_null_and_columns_of_bytes_are_not_checked() -> None:
    valid = pa.py_buffer(bytes([0b01]))
    hidden = pa.Array.from_buffers(pa.string(), 2, [valid, *texts([b"k", b"\xff"]).buffers()[1:]])
    check_texts(pa.record_batch({"key": hidden, "value": texts([b"\xff"] * 2)}), ("key",))
    check_texts(pa.record_batch({"key": pa.array([b"\xff"])}), ("key",))
    check_texts(pa.record_batch({"key": texts([])}), ("key",))


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
def test_empty_maps_from_spark_without_offsets_are_written(loops: str, batching: bool) -> None:
    """With pyspark 4.0, all batches with empty properties failed with an IndexError."""
    empty = {"properties": as_java_writes(maps([[]] * 3)), "key": as_java_writes(texts([None] * 3))}
    encode_pulsar(pa.record_batch({"value": [b"v"] * 3} | empty), loops=loops, batching=batching)
    check_texts(pa.record_batch({"attributes": as_java_writes(maps([None, [], None]))}), ("attributes",))
    encode_pulsar(pa.record_batch({"value": as_java_writes(pa.array([], pa.binary()))}), loops=loops, batching=batching)


@pytest.mark.parametrize(
    ("writer", "options", "where"),
    [
        (lambda given: PulsarWriter(PulsarOptions.from_spark(given, WRITE), TaskAttempt("q")),
         {"serviceUrl": "pulsar://none.invalid:6650", "topic": "t"},
         "pulsar-native: writing to persistent://public/default/t: row 3 of the task cannot"),
        (lambda given: TubeMQWriter(TubeMQOptions.from_spark(given, WRITE), TaskAttempt("q")),
         {"masters": "none.invalid:1", "topic": "t"}, "tubemq: writing to t: row 3 of the task cannot"),
        (lambda given: NsqWriter(NsqOptions.from_spark(given, WRITE), TaskAttempt("q")),
         {"nsqdTcpAddresses": "none.invalid:4150", "topic": "t"}, "nsq: row 3 of the task cannot"),
    ],
    ids=["pulsar", "tubemq", "nsq"],
)  # fmt: skip
def test_errors_of_writers_name_their_destination(
    writer: Callable[[dict[str, str]], Any], options: dict[str, str], where: str
) -> None:
    made = writer(options)
    # A batch was written before this one.
    setattr(made, "rows" if hasattr(made, "rows") else "_rows", 2)
    name = {"pulsar-native": "key", "tubemq": "message_type", "nsq": "topic"}[where.partition(":")[0]]
    with made, pytest.raises(UnwritableRowError, match=re.escape(where)):
        made.write(pa.record_batch({"value": [b"v", b"w"], name: texts([b"k", b"\xff"])}))
