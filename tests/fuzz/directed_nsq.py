"""Directed fuzzing of NSQ's loops: a seed makes frames and rows, which are compared with the oracle."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import CorruptMessageError, MQSourceError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.nsq.payload import _messages_python
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.payload.messages import MessageDecoder, open_rows
from spark_mq_source.nsq.protocol.commands import Messages
from tests.fuzz.directed import compare, random_columns, seeded
from tests.oracles import nsq_messages as oracle
from tests.oracles.fields import CorruptError, damaged, rows_of

RUNS = 100
ROWS = 200
MAX_BYTES = 400
VALUES = (b"", b"v", "wert ä".encode(), b"x" * 200, b"x" * 370, b"x" * 371, b"\xc3", b"\xa4", b"\xff")


def run_decoder(rng: Random, seed: int, loops: str) -> int:
    """Decode runs of frames, and compare rows, errors and ids."""
    columns = random_columns(rng, COLUMNS.readable)
    columns = {name: type_ for name, type_ in columns.items() if not name.startswith("_")}
    reader = oracle.Reader({name: type_ == "string" for name, type_ in columns.items()})
    decoder = MessageDecoder(arrow_schema_of(columns), topic="t", channel="c", nsqd="n", implementation=loops)
    module = Implementation(_messages_python, loops).module
    expected: list[dict[str, Any]] = []
    origins: list[Any] = []
    makes_damage = rng.random() < 0.5
    compared = 0
    for number in range(RUNS):
        data = b"".join(random_frame(rng) for _ in range(rng.choice([0, 1, 3, 20])))
        if makes_damage and rng.random() < 0.5:
            data = damaged(rng, data)
        case = (seed, number, loops, columns, data.hex())
        count, end = oracle.scan(data, MAX_BYTES)
        before = rng.randint(0, 9)
        scanned = module.scan_messages(memoryview(bytes(before) + data), before, MAX_BYTES)
        assert scanned == (count, before + end), case
        if rng.random() < 0.7:
            data = data[:end]
        wanted: Any
        try:
            rows = reader.decode(data)
            wanted = b"".join(message_id for _, _, message_id, _ in oracle.run_of(data))
            tail = rng.choice([b"", b" 0"])
            commands = b"".join(b"REQ " + wanted[at : at + 16] + tail + b"\n" for at in range(0, len(wanted), 16))
            assert module.encode_id_commands(b"REQ", wanted, tail) == commands, case
        except CorruptError:
            rows, wanted = [], CorruptMessageError
        outcome: Any
        before = decoder.rows
        try:
            outcome = decoder.append(Messages(memoryview(data), count))
        except MQSourceError as error:
            outcome = type(error)
        assert (outcome, decoder.rows) == (wanted, before + len(rows)), (outcome, wanted, case)
        compared += max(1, count)
        expected += rows
        origins += [case] * len(rows)
    compare(rows_of([decoder.take_batch()]), expected, origins)
    return compared


def random_frame(rng: Random) -> bytes:
    """Return a frame, nearly always that of a message."""
    value = rng.choice(VALUES[:6]) if rng.random() < 0.97 else rng.choice(VALUES)
    message_id = b"%016x" % rng.getrandbits(64) if rng.random() < 0.99 else rng.randbytes(16)
    nanoseconds = rng.choice([0, -1, 1_700_000_000_123_456_789, rng.getrandbits(63), -rng.getrandbits(63)])
    return oracle.frame(nanoseconds, rng.getrandbits(16), message_id, value, 2 if rng.random() < 0.99 else 0)


def run_encoder(rng: Random, seed: int, loops: str) -> int:
    """Write bodies of rows, read them as nsqd does, and compare."""
    whole = rng.choice([1, 5, ROWS])
    kind = rng.choice([pa.binary(), pa.string()])
    values: list[Any] = [rng.randbytes(rng.choice([1, 9, 60])).hex().encode() for _ in range(whole)]
    for _ in range(rng.choice([0, 0, 2])):
        values[rng.randint(0, whole - 1)] = rng.choice([None, b"", b"x" * 500])
    rows = rng.randint(0, whole)
    start = rng.randint(0, whole - rows)
    array_ = pa.array(values, pa.binary()).cast(kind)
    source = open_rows(pa.record_batch({"value": array_}).slice(start, rows), loops)
    values = values[start : start + rows]
    limit = rng.choice([1, 40, 1 << 20])
    case = (seed, loops, kind, values, limit)
    bad = [row for row, value in enumerate(values) if not value or len(value) > limit]
    assert source.find_unwritable(limit) == (bad[0] if bad else -1), case
    assert [source.value(row) for row in range(rows)] == values, case
    sound = [row for row in range(rows) if values[row]]
    order = None if len(sound) == rows and rng.random() < 0.5 else array("i", rng.sample(sound, len(sound)))
    chosen = range(rows) if order is None else order
    max_bytes, max_rows = rng.choice([12, 100, 5000]), rng.choice([1, 7, 1000])
    at = 0
    while at < len(chosen):
        body, following = source.build_body(order, at, len(chosen), max_bytes=max_bytes, max_rows=max_rows)
        wanted = [values[row] for row in chosen[at:following]]
        if following == at:
            assert (body, 8 + len(values[chosen[at]]) > max_bytes) == (b"", True), case
            following += 1
        else:
            assert oracle.messages_of(bytes(body)) == wanted, case
            assert len(body) <= max_bytes, case
            assert len(wanted) <= max_rows, case
            # It is as full as allowed.
            is_last = following == len(chosen) or len(wanted) == max_rows
            assert is_last or len(body) + 4 + len(values[chosen[following]]) > max_bytes, case
        at = following
    return max(1, rows)


run = seeded(run_decoder, run_encoder)
