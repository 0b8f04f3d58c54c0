"""The number of a consumer's permits, and when they are granted again."""

import pytest

from spark_mq_source.pulsar.offsets import EARLIEST
from spark_mq_source.pulsar.read.permits import FIRST_GRANT_MESSAGES, Permits
from tests.unit.pulsar.read.topic import Consumer, Topic


@pytest.mark.parametrize(
    ("most", "taken", "nbytes", "granted"),
    [
        (5000, [], 0, [FIRST_GRANT_MESSAGES]),
        (100, [], 0, [100]),
        (100, [49], 10, [100]),
        (100, [50], 10, [100, 50]),
        (100, [130], 10, [100, 130]),
        # Twice the size of the queue: 2 x 1000 bytes of messages of 100 bytes.
        (5000, [1000], 100_000, [1000, 20]),
        (5000, [1000], 10**9, [1000, 1]),
        (0, [], 0, []),
    ],
)
def test_permits(most, taken, nbytes, granted):
    consumer = Consumer(Topic({}), EARLIEST, 2)
    permits = Permits(1000)
    permits.repay(consumer, permits.fitting(most))
    for messages in taken:
        permits.count(messages, entries=1, nbytes=nbytes)
        permits.repay(consumer, permits.fitting(most))
    assert consumer.granted == granted
