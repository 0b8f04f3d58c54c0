"""How fast the Pulsar decoder is by itself: no broker, no network, no Spark.

    python -m bench decode [--seconds 0.3] [--repeats 5]

Prints messages per second of processor time (the median of the repeats, and the best) for each implementation, shape of
entry and set of columns. The repeats are interleaved, so that whatever else the machine does meets all of them alike;
the decoder never waits, so processor time is what it takes of a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from spark_mq_source.core.crc import crc32c
from spark_mq_source.pulsar.payload.messages import EntryDecoder

MESSAGE_ID = pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("batch_index", pa.int32())])
TIMESTAMP = pa.timestamp("us", "UTC")
VALUE_ONLY = pa.schema([("value", pa.binary())])
DEFAULT_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("message_id", MESSAGE_ID),
        ("publish_time", TIMESTAMP),
        ("event_time", TIMESTAMP),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)
# So much is decoded before a batch is taken, as the reader does.
BATCH_BYTES = 4 * 2**20


def encode_varint(value: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_entry(messages: int, size: int, keyed: bool, batched: bool = True) -> memoryview:
    """An entry as the Java client writes it: each message of a batch with its sequence id, a key where asked for."""
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


def measure(decoder: EntryDecoder, entries: list[memoryview], seconds: float) -> float:
    """Messages a second."""
    decode = decoder.decode
    rows = 0
    entry_id = 0
    start = time.process_time()
    while True:
        for entry in entries:
            rows += decode(7, entry_id, entry)
            entry_id += 1
            if decoder.nbytes >= BATCH_BYTES:
                decoder.take_batch()
        elapsed = time.process_time() - start
        if elapsed >= seconds:
            return rows / elapsed


def main(argv: Sequence[str] | None = None) -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(argv)
    shapes = [
        ("1000 x 100 B a batch", [encode_entry(1000, 100, keyed=False) for _ in range(64)]),
        ("1000 x 100 B, keyed", [encode_entry(1000, 100, keyed=True) for _ in range(64)]),
        ("100 x 1 KiB a batch", [encode_entry(100, 1024, keyed=False) for _ in range(64)]),
        ("single, 100 B, keyed", [encode_entry(1, 100, keyed=True, batched=False) for _ in range(512)]),
    ]
    runs: dict[tuple[str, str, str], Callable[[], float]] = {}
    for shape, entries in shapes:
        for columns, schema in (("value", VALUE_ONLY), ("default 8", DEFAULT_COLUMNS)):
            for implementation in ("native", "python"):
                decoder = EntryDecoder(schema, topic="persistent://public/default/t", partition=0,
                                       implementation=implementation)  # fmt: skip
                runs[shape, columns, implementation] = partial(measure, decoder, entries, arguments.seconds)
    rates: dict[tuple[str, str, str], list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            rates[name].append(run())
    print(f"{'entries':24}{'columns':12}{'decoder':10}{'M messages/s':>14}{'best':>9}{'us/message':>12}")
    for (shape, columns, implementation), measured in rates.items():
        median, best = statistics.median(measured), max(measured)
        print(f"{shape:24}{columns:12}{implementation:10}{median / 1e6:14.2f}{best / 1e6:9.2f}{1e6 / median:12.3f}")


if __name__ == "__main__":
    main()
