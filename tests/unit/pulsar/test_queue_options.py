"""Options of a subscription that is read as a queue."""

from __future__ import annotations

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, Scope
from spark_mq_source.pulsar.options import KeySharedMode, PulsarOptions, SubscriptionType

WHERE = {"serviceUrl": "pulsar://h", "topic": "t", "subscription": "s"}
SHARED = WHERE | {"subscriptionType": "Shared"}
WAL = {"walDir": "/w"}
DRAIN = SHARED | {"maxRows": "1"}


def made(given: dict[str, str], scope: Scope) -> PulsarOptions:
    return PulsarOptions.from_spark(given, scope)


def refusal(given: dict[str, str], scope: Scope) -> str:
    with pytest.raises(OptionError) as refused:
        made(given, scope)
    return str(refused.value)


def test_types_may_be_spelled_as_in_java():
    options = made(
        WHERE
        | {"subscriptionType": "Key_Shared", "walDir": "/w", "keySharedMode": "STICKY", "keyRanges": "0-9,10-65535"},
        STREAM,
    )
    assert options.subscription_type is SubscriptionType.KEY_SHARED
    assert options.key_shared_mode is KeySharedMode.STICKY
    assert options.key_ranges == ((0, 9), (10, 65535))


def test_a_stream_without_a_queue_is_exclusive():
    assert made(WHERE, STREAM).subscription_kind is SubscriptionType.EXCLUSIVE
    assert made(WHERE | {"walDir": "/w"}, STREAM).subscription_kind is SubscriptionType.EXCLUSIVE


@pytest.mark.parametrize(
    ("scope", "given", "sentence"),
    [
        (STREAM, SHARED, "subscriptionType=shared has no positions from which a query could continue: set walDir"),
        (STREAM, {"serviceUrl": "pulsar://h", "topic": "t", "walDir": "/w"}, "walDir needs subscription"),
        (
            STREAM,
            WHERE | {"idleTimeout": "1s"},
            "idleTimeout has no meaning unless subscription is a queue: set walDir",
        ),
        (
            STREAM,
            SHARED | WAL | {"startingOffsets": "earliest"},
            "startingOffsets has no meaning for a queue",
        ),
        (
            STREAM,
            SHARED | WAL | {"maxBytesPerTrigger": "1m"},
            "maxBytesPerTrigger has no meaning for a queue",
        ),
        (STREAM, SHARED | WAL | {"failOnDataLoss": "false"}, "failOnDataLoss has no meaning for a queue"),
        (READ, DRAIN | {"failOnDataLoss": "false"}, "failOnDataLoss has no meaning for a queue"),
        (
            STREAM,
            SHARED | WAL | {"readCompacted": "true"},
            "readCompacted needs subscriptionType=exclusive or",
        ),
        (
            STREAM,
            SHARED | WAL | {"keyRanges": "0-9"},
            "keySharedMode and keyRanges need subscriptionType=key_",
        ),
        (
            STREAM,
            SHARED | WAL | {"subscriptionType": "key_shared", "keyRanges": "0-9"},
            "keySharedMode=sticky and keyRanges go together: set both",
        ),
        (
            STREAM,
            WHERE | WAL | {"consumersPerPartition": "2"},
            "consumersPerPartition needs subscriptionType=",
        ),
        (STREAM, SHARED | WAL | {"onMaxRedeliver": "deadLetter"}, "onMaxRedeliver has no meaning without"),
        (READ, SHARED, "a queue has no end: set maxRows, maxSeconds or idleTimeout"),
        (READ, DRAIN | {"walDir": "/w"}, "walDir needs runId, which identifies the rows stored there"),
        (READ, DRAIN | {"walDir": "/w", "runId": "../x"}, "expected letters, digits"),
        (READ, DRAIN | WAL | {"runId": "r", "ackMode": "nack"}, "ackMode=nack and walDir"),
        (
            READ,
            DRAIN | {"ackMode": "nack", "maxRedeliverCount": "1", "onMaxRedeliver": "deadLetter"},
            "onMaxRedeliver=deadLetter and ackMode=nack contradict each other without retryTopic=true",
        ),
        (
            READ,
            DRAIN | {"nackDelay": "1s"},
            "nackDelay and nackMaxDelay need ackMode=nack and retryTopic",
        ),
        (READ, DRAIN | {"keyRanges": "9-0"}, "'9-0' is not a range of hashes"),
        (READ, DRAIN | {"keyRanges": "0-9,9-12"}, "0-9 and 9-12 overlap"),
        (READ, WHERE | {"maxRows": "1"}, "maxRows has no meaning unless subscription is a queue: set subscriptionType"),
    ],
)
def test_contradictory_options_of_queues(scope: Scope, given: dict[str, str], sentence: str):
    assert sentence in refusal(given, scope)


def test_a_dead_letter_topic_has_a_name_by_default():
    given = SHARED | WAL | {"maxRedeliverCount": "3", "onMaxRedeliver": "deadLetter"}
    assert made(given, STREAM).dead_letter_topic is None
    assert made(given | {"deadLetterTopic": "dead"}, STREAM).dead_letter_topic == "persistent://public/default/dead"


def test_a_read_that_puts_messages_off_may_give_them_up():
    given = DRAIN | {"ackMode": "nack", "retryTopic": "true", "maxRedeliverCount": "1", "onMaxRedeliver": "deadLetter"}
    assert made(given, READ).retry_topic


LIVE = SHARED | {"topic": "non-persistent://a/b/c"}


@pytest.mark.parametrize(
    "given",
    [
        LIVE | WAL | {"createTopic": "true", "maxRowsPerTrigger": "5", "consumersPerPartition": "2"},
        {"serviceUrl": "pulsar://h", "topics": "t,non-persistent://a/b/c", "subscription": "s"} | WAL,
    ],
)
def test_a_topic_that_stores_nothing_is_read_as_a_queue(given: dict[str, str]):
    assert made(given, STREAM).live_topics == ("non-persistent://a/b/c",)
    assert made(SHARED | WAL, STREAM).live_topics == ()


@pytest.mark.parametrize(
    ("scope", "given", "name"),
    [
        (STREAM, WAL | {"maxRedeliverCount": "3"}, "maxRedeliverCount"),
        (STREAM, WAL | {"retryTopic": "true"}, "retryTopic"),
        (STREAM, WAL | {"initialPosition": "earliest"}, "initialPosition"),
        (STREAM, WAL | {"minRowsPerTrigger": "5"}, "minRowsPerTrigger"),
        (STREAM, WAL | {"endAtTermination": "true"}, "endAtTermination"),
        (STREAM, WAL | {"subscriptionType": "failover", "readCompacted": "true"}, "readCompacted"),
        (READ, {"maxRows": "1", "ackMode": "nack"}, "ackMode"),
    ],
)
def test_options_that_need_stored_messages_are_refused(scope: Scope, given: dict[str, str], name: str):
    expected = f"{name} has no meaning for non-persistent://a/b/c: a non-persistent topic stores nothing"
    assert expected in refusal(LIVE | given, scope)


def test_a_topic_that_stores_nothing_has_no_positions():
    for scope, given in ((STREAM, {"subscription": "s"}), (STREAM, {}), (READ, {"subscription": "s"})):
        where = {"serviceUrl": "pulsar://h", "topic": "non-persistent://a/b/c"}
        assert "there are no positions to read from: only a queue can read it" in refusal(where | given, scope)
