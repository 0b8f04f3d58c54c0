"""The cost of the option for dead letters when every message is good: no broker, no network, no Spark.

    python -m bench letters [--seconds 0.3] [--repeats 5]

Prints messages per second of processor time (the median of the rounds, and the best) of entries of 1,000 flights as
Avro, from the bytes to columns of twelve fields or of one: with `onCorrupt=skip`, which reads the values alone, and
with `deadLetter`, which reads keys, properties and positions as well; for messages without keys and properties, and
for those with a key and two properties.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from bench import avro
from bench.codec import entry
from bench.loops import Run, run_of
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.dead_letters import DeadLetters
from spark_mq_source.core.ports import RowWriter
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.values.avro.decode import arrow_type_of
from spark_mq_source.values.encodings import Encoding, TypedRead
from spark_mq_source.values.rows import TypedRows

MESSAGES: Final = 1000
ENTRIES: Final = 10


def runs() -> Iterator[tuple[str, Run]]:
    """Yield both ways to read both kinds of messages."""
    typed = TypedRead(Encoding("avro", json.dumps(avro.SCHEMA)))
    whole = arrow_type_of(json.dumps(avro.SCHEMA))
    values = avro.flights()[:MESSAGES]
    for is_described, one in itertools.product((False, True), (False, True)):
        entries = [entry(values, keyed=is_described, properties=is_described)] * ENTRIES
        schema = pa.schema([("value", pa.struct([whole.field("carrier")]) if one else whole)])
        for on_corrupt in ("skip", "deadLetter"):
            letters = DeadLetters("", "dead", _no_writer, COLUMNS, **PulsarFormat._dead_letter_form)
            stage = TypedRows(
                schema,
                typed,
                COLUMNS,
                on_corrupt=on_corrupt,
                raw_errors=PulsarFormat.raw_errors,
                dead_letters=letters if on_corrupt == "deadLetter" else None,
            )
            decoder = EntryDecoder(
                stage.raw_schema,
                topic="persistent://public/default/t",
                partition=0,
                max_message_bytes=128 << 20,
                max_pending_chunk_bytes=128 << 20,
            )
            what = f"{'key, properties' if is_described else 'plain'}, {'one column' if one else 'all columns'}"
            yield f"{what}, {on_corrupt}", run_of(partial(_read, decoder, stage, entries), MESSAGES * ENTRIES)


def _read(decoder: EntryDecoder, stage: TypedRows, entries: Sequence[memoryview]) -> None:
    for entry_id, body in enumerate(entries):
        decoder.decode(7, entry_id, body)
    stage.take(decoder.take_batch())


def _no_writer(_: Counters) -> RowWriter:
    raise AssertionError("every message is good")
