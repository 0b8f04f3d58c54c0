"""How fast the Pulsar encoder is by itself: no broker, no network, no Spark.

    python -m bench encode [--seconds 0.3] [--repeats 5]

Prints rows per second of processor time (the median of the repeats, and the best) for each implementation, set of
columns and codec: from a RecordBatch of 10,000 rows, as Spark hands them over, to finished entries of 100 KB. The
repeats are interleaved, as in `python -m bench decode`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from spark_mq_source.pulsar.payload.messages import EntryEncoder, open_rows

ROWS = 10_000
TIMESTAMP = pa.timestamp("us", "UTC")


def make_batch(size: int, *, all_columns: bool) -> pa.RecordBatch:
    """Rows of `size` bytes of words; with a key, an event time and a property where asked for."""
    rng = random.Random(20_260)
    words = [rng.randbytes(4).hex().encode() for _ in range(64)]
    values = [b" ".join(rng.choices(words, k=size // 9 + 1))[:size] for _ in range(ROWS)]
    columns: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
    if all_columns:
        columns["key"] = pa.array([f"key-{n % 1000:05d}" for n in range(ROWS)])
        columns["event_time"] = pa.array(range(1_795_232_364_243_000, 1_795_232_364_243_000 + ROWS), TIMESTAMP)
        columns["properties"] = pa.array([[("origin", "bench")]] * ROWS, pa.map_(pa.string(), pa.string()))
    return pa.record_batch(columns)


def measure(batch: pa.RecordBatch, codec: str, implementation: str, seconds: float) -> float:
    """Rows a second."""
    encoder = EntryEncoder(
        producer_id=1,
        producer_name="bench",
        sequence_id=0,
        max_message_bytes=5 << 20,
        compression=codec,
        implementation=implementation,
    )
    rows = 0
    start = time.process_time()
    while True:
        source = open_rows(batch, implementation)
        at = 0
        while at < ROWS:
            at = encoder.append(source, None, at, ROWS, now_ms=0)
            encoder.take()
        rows += ROWS
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
        ("100 B, value", make_batch(100, all_columns=False)),
        ("100 B, 4 columns", make_batch(100, all_columns=True)),
        ("1 KiB, value", make_batch(1024, all_columns=False)),
    ]
    runs: dict[tuple[str, str, str], Callable[[], float]] = {}
    for shape, batch in shapes:
        for codec in ("NONE", "LZ4"):
            for implementation in ("native", "python"):
                runs[shape, codec, implementation] = partial(measure, batch, codec, implementation, arguments.seconds)
    rates: dict[tuple[str, str, str], list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            rates[name].append(run())
    print(f"{'rows':20}{'codec':8}{'encoder':10}{'M rows/s':>12}{'best':>9}{'us/row':>10}")
    for (shape, codec, implementation), measured in rates.items():
        median, best = statistics.median(measured), max(measured)
        print(f"{shape:20}{codec:8}{implementation:10}{median / 1e6:12.2f}{best / 1e6:9.2f}{1e6 / median:10.3f}")


if __name__ == "__main__":
    main()
