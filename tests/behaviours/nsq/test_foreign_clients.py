"""Clients by others publish to the broker and consume from it: all messages arrive and are finished."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.behaviours.nsq import foreign_clients
from tests.behaviours.nsq.foreign_clients import ForeignClient
from tests.fix_brokers import NsqUnderTest, wait_until

MESSAGES = 10_000
COMPRESSED_MESSAGES = 2_000
ODD = 17  # published one by one, after the batches


def numbered(count: int) -> list[bytes]:
    """Return different messages of different sizes that contain every byte."""
    return [b"%d:" % number + bytes(range(number % 256)) for number in range(count)]


@pytest.mark.parametrize(
    ("client", "compression"),
    [
        (foreign_clients.pynsq, "none"),
        (foreign_clients.pynsq, "snappy"),
        # nsqd also fails this one with compression.
        (foreign_clients.java, "none"),
        (foreign_clients.nsqjs, "none"),
        (foreign_clients.nsqjs, "deflate"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_publishes_and_consumes(nsq: NsqUnderTest, client: Callable[[], ForeignClient], compression: str):
    messages = numbered((MESSAGES if compression == "none" else COMPRESSED_MESSAGES) + ODD)
    topic = nsq.topic("c")
    client().publish(nsq, topic, messages, compression)
    assert nsq.channel_stats(topic, "c")["depth"] == len(messages)
    assert nsq.topic_stats(topic)["message_bytes"] == sum(map(len, messages))
    found = client().consume(nsq, topic, "c", len(messages), compression)
    assert sorted(found) == sorted(messages)

    def all_finished() -> bool:
        stats = nsq.channel_stats(topic, "c")
        return (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)

    wait_until(all_finished, "every message is finished")
