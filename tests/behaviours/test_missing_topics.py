"""The option `waitForTopic`: streaming queries of every format whose topic does not exist yet."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_mq_source.core.errors import TopicNotFoundError
from tests.fix_brokers import wait_until
from tests.formats import Format, numbers, start_query

pytestmark = pytest.mark.parametrize(
    "mq",
    [
        *(pytest.param(name, marks=pytest.mark.broker) for name in ("pulsar", "pulsar_queue", "nsq_embedded")),
        # A master takes half a minute to announce a topic to a broker.
        pytest.param("tubemq", marks=[pytest.mark.broker, pytest.mark.slow]),
    ],
    indirect=True,
)


def stream_of_a_missing_topic(mq: Format, **more: str) -> tuple[str, dict[str, str]]:
    topic = mq.unused_topic()
    where = {
        name: value for name, value in mq.feed(1).stream.items() if name not in {"startingOffsets", "initialPosition"}
    }
    return topic, where | {"topic": topic} | more


def test_a_query_waits_for_its_topic_and_reads_it_from_its_first_message(mq: Format, caplog: pytest.LogCaptureFixture):
    topic, options = stream_of_a_missing_topic(mq, waitForTopic="3m")
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(start_query, mq, options)
        wait_until(lambda: "the query waits for a topic" in caplog.text, "the query waits")
        mq.create(topic)
        mq.publish(topic, numbers(5), partition=0)
        with contextlib.closing(started.result()) as asked:
            asked.until(5)
            assert sorted(asked.values) == numbers(5)


def test_a_query_waits_for_its_topic_no_longer_than_the_option_says(mq: Format):
    _, options = stream_of_a_missing_topic(mq, waitForTopic="1ms")
    with pytest.raises(TopicNotFoundError, match="waited for it for 1 ms: create the topic, or raise waitForTopic"):
        start_query(mq, options)
