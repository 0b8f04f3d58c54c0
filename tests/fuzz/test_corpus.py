from __future__ import annotations

import pytest

from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import CORPUS, check_group, inputs_of

pytest.importorskip("spark_mq_source.pulsar.payload._messages_native", exc_type=ImportError)


@pytest.mark.parametrize("name", TARGETS)
def test_both_implementations_agree_on_the_corpus(name: str) -> None:
    target = TARGETS[name]
    inputs = list(inputs_of(target, CORPUS))
    assert inputs
    for seed in range(3):
        check_group(target, seed, inputs)
