"""The decoders and encoders of messages agree with the oracles: some seeds of what the fuzzer runs without end."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.fuzz import directed_nsq, directed_pulsar, directed_tubemq

# Decoders and encoders; of both loops, see `run`.
SEEDS = (0, 1, 2, 3, 4, 5, 7, 23)


@pytest.mark.parametrize("fuzzer", [directed_pulsar, directed_tubemq, directed_nsq], ids=lambda module: module.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_messages_are_those_of_the_oracle(fuzzer: ModuleType, seed: int) -> None:
    assert fuzzer.run(seed) > 0
