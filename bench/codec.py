"""How fast Pulsar's decoder and encoder are by themselves: no broker, no network, no Spark.

    python -m bench decode [--seconds 0.3] [--repeats 5]
    python -m bench encode

Prints rows per second of processor time (the median of the rounds, and the best) for each implementation and shape: of
the decoder, entries as the Java client writes them; of the encoder, from a RecordBatch of 10,000 rows, as Spark hands
them over, to finished entries of 100 KB.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from bench.loops import ROWS, Run, run_of
from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, open_rows
from spark_mq_source.pulsar.payload.messages import EntryDecoder

BATCH_BYTES = 4 * 2**20
"""So much is decoded before a batch is taken, as the reader does."""


def decoders() -> Iterator[tuple[str, Run]]:
    """Yield every shape of entry, with value alone and the default columns, by both implementations."""
    shapes = {
        "1000 x 100 B a batch": [_entry(1000, 100, keyed=False)] * 64,
        "1000 x 100 B, keyed": [_entry(1000, 100, keyed=True)] * 64,
        "100 x 1 KiB a batch": [_entry(100, 1024, keyed=False)] * 64,
        "single, 100 B, keyed": [_entry(1, 100, keyed=True, batched=False)] * 512,
    }
    for (shape, entries), names in itertools.product(shapes.items(), (("value",), COLUMNS.default)):
        schema = arrow_schema_of({name: COLUMNS.readable[name][0] for name in names})
        for implementation in ("native", "python"):
            decoder = EntryDecoder(
                schema,
                topic="persistent://public/default/t",
                partition=0,
                max_message_bytes=128 << 20,
                max_pending_chunk_bytes=128 << 20,
                implementation=implementation,
            )
            rows = len(entries) * int(shape.split()[0].replace("single,", "1"))
            yield f"{shape}, {len(names)} columns, {implementation}", run_of(partial(_decode, decoder, entries), rows)


def _decode(decoder: EntryDecoder, entries: list[memoryview]) -> None:
    for entry_id, entry in enumerate(entries):
        decoder.decode(7, entry_id, entry)
        if decoder.nbytes >= BATCH_BYTES:
            decoder.take_batch()


def _entry(messages: int, size: int, keyed: bool, batched: bool = True) -> memoryview:
    """Return an entry as the Java client writes it: with a sequence id, and on request a key, in each message."""
    now_ms = encode_varint(1_795_232_364_243)
    key = b"key-%05d"
    metadata = b"\x0a\x0fstandalone-0-33\x10" + encode_varint(4711) + b"\x18" + now_ms
    if batched:
        metadata += b"\x58" + encode_varint(messages)
        parts = []
        for index in range(messages):
            single = b"\x12\x09" + key % (index % 1000) if keyed else b""
            single += b"\x18" + encode_varint(size) + b"\x40" + encode_varint(4711 + index)
            parts += [len(single).to_bytes(4, "big"), single, bytes([index & 0xFF]) * size]
        payload = b"".join(parts)
    else:
        metadata += b"\x32\x09" + key % 1 if keyed else b""
        payload = b"x" * size
    checked = len(metadata).to_bytes(4, "big") + metadata + payload
    return memoryview(b"\x0e\x01" + crc32c(checked).to_bytes(4, "big") + checked)


def encoders() -> Iterator[tuple[str, Run]]:
    """Yield values alone and four columns, uncompressed and LZ4, by both implementations."""
    shapes = {"100 B, value": _rows(100), "100 B, 4 columns": _rows(100, all_columns=True), "1 KiB, value": _rows(1024)}
    for (shape, batch), codec in itertools.product(shapes.items(), ("NONE", "LZ4")):
        for implementation in ("native", "python"):
            encoder = EntryEncoder(
                producer_id=1, producer_name="bench", sequence_id=0, max_message_bytes=5 << 20, compression=codec,
                batch_bytes=100_000, batch_rows=2**31 - 1, implementation=implementation,
            )  # fmt: skip
            turn = partial(_encode, encoder, batch, implementation)
            yield f"{shape}, {codec}, {implementation}", run_of(turn)


def _encode(encoder: EntryEncoder, batch: pa.RecordBatch, implementation: str) -> None:
    source = open_rows(batch, implementation)
    at = 0
    while at < ROWS:
        at = encoder.append(source, None, at, ROWS, now_ms=0)
        encoder.take()


def _rows(size: int, *, all_columns: bool = False) -> pa.RecordBatch:
    """Return rows of `size` bytes of words; with a key, an event time and a property where asked for."""
    rng = random.Random(20_260)
    words = [rng.randbytes(4).hex().encode() for _ in range(64)]
    values = [b" ".join(rng.choices(words, k=size // 9 + 1))[:size] for _ in range(ROWS)]
    columns: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
    if all_columns:
        columns["key"] = pa.array([f"key-{n % 1000:05d}" for n in range(ROWS)])
        first_us = 1_795_232_364_243_000
        columns["event_time"] = pa.array(range(first_us, first_us + ROWS), pa.timestamp("us", "UTC"))
        columns["properties"] = pa.array([[("origin", "bench")]] * ROWS, pa.map_(pa.string(), pa.string()))
    return pa.record_batch(columns)
