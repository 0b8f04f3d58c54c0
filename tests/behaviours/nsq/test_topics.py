"""Reads of several topics: each row has its topic, and topics that appear later join a stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_mq_source.core.errors import TopicNotFoundError
from tests.behaviours.nsq.reads import Query, numbered, read, read_options
from tests.fix_brokers import NsqUnderTest

TOPIC_ROW = "topic string, value binary"


def test_several_topics_are_one_read(nsq: NsqUnderTest):
    one, two = nsq.topic("c", prefix="several"), nsq.topic("c", prefix="several")
    sent = [(topic, value) for topic in (one, two) for value in numbered(100, topic)]
    for given in ({"topics": f"{one},{two}"}, {"topicsPattern": f"{one}|{two}"}):
        for topic in (one, two):
            nsq.publish(topic, *numbered(100, topic))
        options = read_options(nsq, None, maxRows=200, **given)
        table = read(options, TOPIC_ROW).to_pylist()
        assert sorted((row["topic"], row["value"]) for row in table) == sorted(sent)


def test_a_topic_that_matches_later_joins_a_stream(nsq: NsqUnderTest, tmp_path: Path):
    first = nsq.topic("c", prefix="late")
    without_channel = nsq.topic(prefix="late")
    # Listed by the HTTP interface of nsqd, without a lookup.
    q = Query(
        nsq,
        None,
        tmp_path / "wal",
        topicsPattern=f"late-{first.split('-')[1]}-.*",
        nsqdTcpAddresses=nsq.tcp_address,
        nsqdHttpAddresses=nsq.http_address,
    )
    nsq.publish(first, b"one")
    assert q.trigger() == [b"one"]
    second = nsq.topic("c", prefix="late")
    nsq.publish(first, b"two")
    nsq.publish(second, b"three")
    nsq.publish(without_channel, b"four")
    # Ids are unique only within a topic, so equal ones are not duplicates.
    assert sorted(q.trigger()) == [b"three", b"two"]
    q.stream.close()


def test_a_missing_topic_or_channel_is_named(nsq: NsqUnderTest):
    there = nsq.topic("c")
    missing = nsq.unused_topic()
    with pytest.raises(TopicNotFoundError, match=f"nsq topic {missing}: .*no nsqd is registered"):
        read(read_options(nsq, None, topics=f"{there},{missing}"))
    with pytest.raises(TopicNotFoundError, match=r"nsq topics matching none-such-.*: .*no nsqd is registered"):
        read(read_options(nsq, None, topicsPattern="none-such-.*"))
    with pytest.raises(TopicNotFoundError, match=f"{there}, channel other: .*has no such channel"):
        read(read_options(nsq, None, topicsPattern=there, channel="other"))
