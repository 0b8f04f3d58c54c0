"""Reused decoders of messages: after corrupt entries, and within their limits of memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.nsq.payload.columns import COLUMNS as NSQ_COLUMNS
from spark_mq_source.nsq.payload.messages import MessageDecoder as NsqDecoder
from spark_mq_source.nsq.protocol.commands import Messages
from spark_mq_source.pulsar.payload.columns import COLUMNS as PULSAR_COLUMNS
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.tubemq.payload.columns import COLUMNS as TUBEMQ_COLUMNS
from spark_mq_source.tubemq.payload.messages import MessageDecoder as TubeMQDecoder
from tests.fuzz import directed_nsq, directed_pulsar, directed_tubemq, hostile
from tests.fuzz.directed import compare
from tests.oracles import nsq_messages, pulsar_messages, tubemq_messages
from tests.oracles.fields import CorruptError, damaged, put_field, rows_of
from tests.readable import schema_of


@pytest.mark.parametrize("loops", ["native", "python"])
def test_no_entry_makes_the_decoder_allocate_beyond_its_limit(loops: str) -> None:
    most = 1 << 20
    rng = Random(1)
    decoder = EntryDecoder(
        schema_of(PULSAR_COLUMNS),
        topic="t",
        partition=0,
        verify_checksum=False,
        on_corrupt="skip",
        max_message_bytes=most,
        max_pending_chunk_bytes=most,
        implementation=loops,
    )
    for entry in range(6):
        body = directed_pulsar.random_entry(rng, makes_damage=True)
        tracemalloc.start()
        try:
            with contextlib.suppress(MQSourceError):
                decoder.decode(1, entry, body)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 3 * most, body.hex()
        decoder.take_batch()


# Reused decoders


def pulsar_reader(loops: str) -> tuple[Callable[[bytes], object], Callable[[], pa.RecordBatch], Any]:
    decoder = EntryDecoder(
        schema_of(PULSAR_COLUMNS, without=("_error",)),
        topic="t",
        partition=3,
        verify_checksum=False,
        on_encrypted="raw",
        max_message_bytes=1 << 20,
        max_pending_chunk_bytes=1 << 20,
        implementation=loops,
    )
    reader = pulsar_messages.Reader(
        dict.fromkeys(decoder.take_batch().schema.names, False)
        | dict.fromkeys(("producer_name", "replicated_from"), True),
        verifies=False,
        is_raw=True,
    )
    return lambda body: decoder.decode(7, 5, body), decoder.take_batch, lambda body: reader.decode((7, 5), body)


def tubemq_reader(loops: str) -> tuple[Callable[[bytes], object], Callable[[], pa.RecordBatch], Any]:
    decoder = TubeMQDecoder(
        schema_of(TUBEMQ_COLUMNS, without=("_error",)), topic="t", broker_id=1, partition=3, implementation=loops
    )
    reader = tubemq_messages.Reader(dict.fromkeys(decoder.take_batch().schema.names, False))
    return lambda body: decoder.decode(body, 28), decoder.take_batch, lambda body: reader.decode(body, 28, None)


def nsq_reader(loops: str) -> tuple[Callable[[bytes], object], Callable[[], pa.RecordBatch], Any]:
    schema = schema_of(NSQ_COLUMNS, without=("_corrupt", "_error"), value="string")
    decoder = NsqDecoder(schema, topic="t", channel="c", nsqd="n", implementation=loops)
    reader = nsq_messages.Reader({field.name: field.type == pa.string() for field in schema})
    return lambda body: decoder.append(Messages(memoryview(body), 0)), decoder.take_batch, reader.decode


def random_pulsar(rng: Random, *, makes_damage: bool) -> bytes:
    return directed_pulsar.random_entry(rng, makes_damage=makes_damage)


def random_tubemq(rng: Random, *, makes_damage: bool) -> bytes:
    messages = [directed_tubemq.random_message(rng, makes_damage=makes_damage) for _ in range(3)]
    body = b"".join(put_field(0x22, message) for message in messages)
    return damaged(rng, body) if makes_damage else body


def random_nsq(rng: Random, *, makes_damage: bool) -> bytes:
    body = b"".join(directed_nsq.random_frame(rng) for _ in range(3))
    return damaged(rng, body) if makes_damage else body


READERS = {
    "pulsar": (pulsar_reader, random_pulsar, hostile.PULSAR),
    "tubemq": (tubemq_reader, random_tubemq, hostile.TUBEMQ),
    "nsq": (nsq_reader, random_nsq, hostile.NSQ),
}


@pytest.mark.parametrize(("loops", "faults"), [("native", 12), ("python", 2)])
@pytest.mark.parametrize("name", READERS)
def test_a_thousand_entries_after_a_corrupt_one_are_decoded(name: str, loops: str, faults: int) -> None:
    make_reader, make, shapes = READERS[name]
    decode, take, expect = make_reader(loops)
    rng = Random(27)
    sound: list[tuple[bytes, list[dict[str, Any]]]] = []
    while len(sound) < 40:
        body = make(rng, makes_damage=False)
        with contextlib.suppress(CorruptError, pulsar_messages.UnsupportedError):
            sound.append((body, expect(body)))
    corrupt: list[bytes] = [part for shape in shapes.values() for part in shape(1000)[:2]]
    corrupt += [make(rng, makes_damage=True) for _ in range(20 * faults)]
    seen = 0
    for bad in corrupt:
        try:
            # Decoded by a new reader.
            make_reader(loops)[2](bad)
        except (CorruptError, tubemq_messages.UnreadableError):
            pass
        else:
            continue
        with pytest.raises(MQSourceError):
            decode(bad)
        for _ in range(25):
            for body, _rows in sound:
                decode(body)
        # All columns are of one length: see `rows_of`.
        expected = 25 * [row for _, rows in sound for row in rows]
        compare(rows_of([take()]), expected, [bad.hex()] * len(expected))
        seen += 1
        if seen == faults:
            break
    assert seen == faults
