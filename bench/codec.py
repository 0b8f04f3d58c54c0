"""Rates of Pulsar's decoder and encoder alone: no broker, no network, no Spark.

    python -m bench decode [--seconds 0.3] [--repeats 5]
    python -m bench encode

Prints rows per second of processor time (the median of the rounds, and the best) for each implementation and shape: of
the decoder, entries as the Java client writes them; of the encoder, from a RecordBatch of 10,000 rows, as Spark
passes them, to finished entries of 100 KB. "Encrypted" is end to end, with a cached data key.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bench.loops import ROWS, Run, run_of
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.core.varint import encode_sized, encode_varint
from spark_mq_source.pulsar.payload.cipher import PayloadDecryptor, PayloadEncryptor
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, open_rows
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.pulsar.protocol.commands import Send

BATCH_BYTES = 4 * 2**20
"""The bytes decoded before a batch is taken, as in the reader."""


def decoders() -> Iterator[tuple[str, Run]]:
    """Yield every shape of entry, with value alone and the default columns, by both implementations."""
    shapes = {
        "1000 x 100 B a batch": [entry([b"v" * 100] * 1000)] * 64,
        "1000 x 100 B, keyed": [entry([b"v" * 100] * 1000, keyed=True)] * 64,
        "100 x 1 KiB a batch": [entry([b"v" * 1024] * 100)] * 64,
        "single, 100 B, keyed": [entry([b"v" * 100], keyed=True, batched=False)] * 512,
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

    plain = _rows(1024)
    for name, encryptor in (("plain", None), ("encrypted", PayloadEncryptor(["bench"], _key, 0))):
        bodies = [memoryview(bytes(send.body)) for send in _sends(_encoder("native", encryptor=encryptor), plain)]
        decoder = EntryDecoder(
            arrow_schema_of({"value": "binary"}), topic="t", partition=0, decryptor=PayloadDecryptor(_key),
            max_message_bytes=128 << 20, max_pending_chunk_bytes=128 << 20, implementation="native",
        )  # fmt: skip
        yield f"1 KiB in batches of 100 KB, {name}, native", run_of(partial(_decode, decoder, bodies))


_PAIR = rsa.generate_private_key(public_exponent=65_537, key_size=2048)


def _key(kind: str, name: str, metadata: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """Return the key of this kind with any name."""
    del name, metadata
    pem, spki = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    if kind == "public":
        return _PAIR.public_key().public_bytes(pem, spki), {}
    return _PAIR.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()), {}


def _decode(decoder: EntryDecoder, entries: list[memoryview]) -> None:
    for entry_id, body in enumerate(entries):
        decoder.decode(7, entry_id, body)
        if decoder.nbytes >= BATCH_BYTES:
            decoder.take_batch()


def entry(
    values: Sequence[bytes], *, keyed: bool = False, properties: bool = False, batched: bool = True
) -> memoryview:
    """Return an entry as the Java client writes it: a batch with sequence ids, or a single message.

    Args:
        values: of its messages.
        keyed: whether each message has a key.
        properties: whether each message of a batch has two properties.
        batched: False for a single message.
    """
    now_ms = encode_varint(1_795_232_364_243)
    metadata = b"\x0a\x0fstandalone-0-33\x10" + encode_varint(4711) + b"\x18" + now_ms
    if batched:
        metadata += b"\x58" + encode_varint(len(values))
        parts = []
        for index, value in enumerate(values):
            single = b""
            for name, text in ((b"trace", b"%016d" % index), (b"origin", b"bench")) if properties else ():
                single += b"\x0a" + encode_sized(b"\x0a" + encode_sized(name) + b"\x12" + encode_sized(text))
            single += b"\x12" + encode_sized(b"key-%05d" % (index % 1000)) if keyed else b""
            single += b"\x18" + encode_varint(len(value)) + b"\x40" + encode_varint(4711 + index)
            parts += [len(single).to_bytes(4, "big"), single, value]
        payload = b"".join(parts)
    else:
        metadata += b"\x32" + encode_sized(b"key-00001") if keyed else b""
        (payload,) = values
    checked = len(metadata).to_bytes(4, "big") + metadata + payload
    return memoryview(b"\x0e\x01" + crc32c(checked).to_bytes(4, "big") + checked)


def encoders() -> Iterator[tuple[str, Run]]:
    """Yield values alone and four columns, uncompressed and LZ4, by both implementations."""
    shapes = {"100 B, value": _rows(100), "100 B, 4 columns": _rows(100, all_columns=True), "1 KiB, value": _rows(1024)}
    for (shape, batch), codec in itertools.product(shapes.items(), ("NONE", "LZ4")):
        for implementation in ("native", "python"):
            turn = partial(_encode, _encoder(implementation, compression=codec), batch, implementation)
            yield f"{shape}, {codec}, {implementation}", run_of(turn)
    encryptor = PayloadEncryptor(["bench"], _key, 0)
    for codec in ("NONE", "LZ4"):
        encoder = _encoder("native", compression=codec, encryptor=encryptor)
        turn = partial(_encode, encoder, shapes["1 KiB, value"], "native")
        yield f"1 KiB, value, {codec}, encrypted, native", run_of(turn)


def _encoder(implementation: str, **more: Any) -> EntryEncoder:  # noqa: ANN401 - its other arguments
    return EntryEncoder(
        producer_id=1, producer_name="bench", sequence_id=0, max_message_bytes=5 << 20, batch_bytes=100_000,
        batch_rows=2**31 - 1, implementation=implementation, **more,
    )  # fmt: skip


def _encode(encoder: EntryEncoder, batch: pa.RecordBatch, implementation: str) -> None:
    for _ in _sends(encoder, batch, implementation):
        pass


def _sends(encoder: EntryEncoder, batch: pa.RecordBatch, implementation: str = "native") -> Iterator[Send]:
    source = open_rows(batch, implementation)
    at = 0
    while at < ROWS:
        at = encoder.append(source, None, at, ROWS, now_ms=0)
        yield from encoder.take()


def _rows(size: int, *, all_columns: bool = False) -> pa.RecordBatch:
    """Return rows of `size` bytes of words; with a key, an event time and a property if requested."""
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
