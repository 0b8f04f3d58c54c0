"""The decoders and encoders of messages agree with the oracles: some seeds of what the fuzzer runs without end."""

from __future__ import annotations

import contextlib
import tracemalloc
from random import Random
from types import ModuleType

import pytest

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.pulsar.payload.columns import COLUMNS as PULSAR_COLUMNS
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from tests.fuzz import directed_nsq, directed_pulsar, directed_tubemq
from tests.readable import schema_of

# Decoders and encoders; of both loops, see `run`.
SEEDS = (0, 1, 2, 3, 4, 5, 7, 23)


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
    for entry in range(25):
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


@pytest.mark.parametrize("fuzzer", [directed_pulsar, directed_tubemq, directed_nsq], ids=lambda module: module.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_messages_are_those_of_the_oracle(fuzzer: ModuleType, seed: int) -> None:
    assert fuzzer.run(seed) > 0
