"""Options of the commands' reads: none takes messages from a queue or leaves state on a broker."""

from __future__ import annotations

from typing import Any

import pytest

from spark_mq_source.cli.sources import Source
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.shared_options import OnCorrupt
from spark_mq_source.formats import load_format

GIVEN = {
    "pulsar-native": {"serviceurl": "pulsar://h"},
    "tubemq": {"masters": "h"},
    "nsq": {"nsqdtcpaddresses": "h"},
}
QUEUE = {"topic": "t", "subscription": "s", "subscriptiontype": "shared", "waldir": "/wal", "runid": "r"}


def options(name: str, parse: str, **more: str) -> Any:
    return getattr(load_format(name), f"parse_{parse}_options")(GIVEN[name] | more)


@pytest.mark.parametrize("name", GIVEN)
def test_the_topic_of_a_list_is_optional(name: str):
    assert options(name, "list").topic is None
    assert options(name, "list", topic="flights").topic.endswith("flights")


def test_all_topics_of_pulsar_are_those_of_a_namespace():
    assert options("pulsar-native", "list").topics_pattern.namespaces == ("public/default",)
    with pytest.raises(OptionError, match=r"^format tubemq has no namespaces: remove --namespace$"):
        Source("tubemq", GIVEN["tubemq"]).open_lister("public/default")


def test_a_tail_of_pulsar_reads_from_positions_and_ignores_options_of_queues():
    tail = options("pulsar-native", "tail", **QUEUE, retrytopic="true", maxredelivercount="3", maxrows="5")
    assert (tail.subscription_type, tail.subscription, tail.wal_dir, tail.retry_topic) == (None, None, None, False)
    assert not tail.fail_on_data_loss


def test_a_peek_at_a_queue_of_pulsar_neither_delays_nor_gives_up_messages():
    more = {"retrytopic": "true", "nackdelay": "1s", "maxredelivercount": "3", "onmaxredeliver": "deadLetter"}
    look = options("pulsar-native", "look", **QUEUE, **more, deadlettertopic="dead", createtopic="true")
    assert (look.ack_mode, look.retry_topic, look.max_redeliver_count, look.create_topic) == ("nack", False, 0, False)
    corrupt = options("pulsar-native", "look", **QUEUE, **more, deadlettertopic="dead", oncorrupt="deadLetter")
    assert corrupt.on_corrupt is OnCorrupt.NULL


def test_a_tail_of_tubemq_includes_messages_in_memory_by_default():
    assert options("tubemq", "tail", topic="t").low_latency
    assert not options("tubemq", "tail", topic="t", lowlatency="false").low_latency


def test_each_tail_of_nsq_has_a_new_channel_and_no_end():
    tails = [options("nsq", "tail", topic="t", channel="c", waldir="/wal", runid="r", maxrows="5") for _ in range(2)]
    channels = [tail.channel for tail in tails]
    assert all(channel.startswith("spark-mq-tail-") and channel.endswith("#ephemeral") for channel in channels)
    assert channels[0] != channels[1]
    assert [(tail.wal_dir, tail.max_rows, tail.idle_timeout_ms) for tail in tails] == [(None, None, None)] * 2


@pytest.mark.parametrize(
    ("url", "parsed"), [("http://m:8080/", "http://m:8080"), ("https://m", "https://m"), ("m:8080", None), ("", None)]
)
def test_the_web_address_of_a_master_is_a_url(url: str, parsed: str | None):
    if parsed is not None:
        assert options("tubemq", "list", adminurl=url).admin_url == parsed
    else:
        with pytest.raises(OptionError, match=r"adminUrl='.*': expected http://host:8080"):
            options("tubemq", "list", adminurl=url)
