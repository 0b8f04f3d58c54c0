"""Bytes that change on their way: an entry is believed to be corrupt when it came so twice, and not before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_mq_source.core.errors import CorruptMessageError
from tests.behaviours.pulsar.queues import SUBSCRIPTION, drain_options, read, values
from tests.behaviours.pulsar.raw_producer import RawProducer, metadata
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import HOST, Fault, FaultProxy
from tests.formats.pulsar import PulsarFormat

SIZE = 500_000


def publish(pulsar: PulsarUnderTest) -> tuple[str, list[str]]:
    topic, sent = pulsar.topic(), [b"x" * SIZE, b"y" * SIZE]
    with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
        for value in sent:
            producer.send(metadata(), value)
    return topic, [value.decode() for value in sent]


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_flipped_bit_is_read_again_before_it_is_acknowledged(
    pulsar: PulsarUnderTest, link: FaultProxy, tmp_path: Path, kind: str
):
    topic, sent = publish(pulsar)
    link.add(flip := Fault("flip", "b2c", at=SIZE + SIZE // 2, connections=2))
    how = {"serviceUrl": f"pulsar://{HOST}:{link.port}", "subscriptionType": kind}
    # One of the connections is of the planning, which reads less.
    table = read(drain_options(pulsar, topic, **how, walDir=tmp_path, runId="1", maxRows=2))
    assert link.happened == [flip]
    assert values(table) == sent
    assert pulsar.admin.stats(topic)["subscriptions"][SUBSCRIPTION]["msgBacklog"] == 0


def test_a_bit_that_is_always_flipped_is_reported(pulsar: PulsarUnderTest, link: FaultProxy, tmp_path: Path):
    topic, _ = publish(pulsar)
    for n in range(8):
        link.add(Fault("flip", "b2c", at=SIZE // 2 + SIZE * n, connections=100))
    how = {"serviceUrl": f"pulsar://{HOST}:{link.port}", "walDir": tmp_path, "runId": "1", "maxRows": 2}
    with pytest.raises(CorruptMessageError, match=rf"{re.escape(topic)}.*checksum"):
        read(drain_options(pulsar, topic, **how))
