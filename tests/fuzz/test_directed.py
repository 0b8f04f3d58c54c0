"""Decoders and encoders, compared with the oracles on some seeds of the directed targets."""

from __future__ import annotations

import pytest

from tests.fuzz.worker import directed_targets

pytest.importorskip("spark_mq_source.pulsar.payload._messages_native", exc_type=ImportError)

TARGETS = directed_targets()


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5, 7, 15, 23, 31])
@pytest.mark.parametrize("name", TARGETS)
def test_loops_agree_with_the_oracle_on_seeds(name: str, seed: int) -> None:
    assert TARGETS[name].run(seed) > 0


@pytest.mark.parametrize(
    ("name", "seed"), [pytest.param("directed_pulsar", 2912479039, id="an encryption key without its required fields")]
)
def test_seeds_that_once_failed(name: str, seed: int) -> None:
    assert TARGETS[name].run(seed) > 0


def test_each_format_and_encoding_has_a_target() -> None:
    names = ["avro", "json", "nsq", "pairs", "protobuf", "pulsar", "tubemq"]
    assert list(TARGETS) == [f"directed_{name}" for name in names]
