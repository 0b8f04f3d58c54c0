"""Where the subscription of a queue's stream begins in each topic, with a scripted client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq_source.core.errors import DataLossError, TopicNotFoundError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.client.consumer import Bounds, Subscription
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol.commands import InitialPosition
from spark_mq_source.pulsar.read import queue_stream as module
from spark_mq_source.pulsar.read.queue_stream import PulsarQueueStream

A, B = (f"persistent://public/default/{name}" for name in "ab")


class Client:
    """A client whose topics the test adds.

    Attributes:
        topics: the topics that exist.
        made: where the subscription began in each topic.
    """

    def __init__(self) -> None:
        self.topics = [A]
        self.made: dict[str, str] = {}

    def matching_topics(self, *_: object) -> list[str]:
        return self.topics

    def fetch_partitions(self, topics: Sequence[str], *, create: bool = False) -> list[TopicPartition]:
        for topic in topics:
            if topic not in self.topics:
                raise TopicNotFoundError(topic)
        return [TopicPartition(topic, -1) for topic in topics]

    def fetch_subscribed(self, topic_partitions: Sequence[TopicPartition], _: str) -> list[TopicPartition]:
        return [tp for tp in topic_partitions if str(tp) in self.made]

    def open_queue_consumers(
        self, topic_partitions: Sequence[TopicPartition], how: Subscription
    ) -> dict[TopicPartition, Any]:
        for tp in topic_partitions:
            self.made.setdefault(str(tp), InitialPosition(how.initial).name)
        done: Future[object] = Future()
        done.set_result(None)
        consumer = SimpleNamespace(
            session=SimpleNamespace(closed=False), request_close=lambda: done, request_bounds=lambda: done
        )
        return dict.fromkeys(topic_partitions, consumer)

    def wait_for_durable_backlogs(self, consumers: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(consumers, 1)

    def wait_for(self, answers: Iterable[tuple[TopicPartition, object]], _: str) -> dict[TopicPartition, Bounds]:
        return {tp: Bounds(Position(1, 0), Position(1, 0)) for tp, _ in answers}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(module, "PulsarClient", lambda _: made)
    monkeypatch.setattr(module, "topics_of", lambda *_: list(made.topics))
    return made


def stream(folder: Path, **given: str) -> PulsarQueueStream:
    made = {"serviceUrl": "pulsar://h:1", "topicsPattern": ".*", "subscription": "s", "subscriptionType": "shared"}
    return PulsarQueueStream(PulsarOptions.from_spark(made | {"walDir": str(folder)} | given, STREAM))


@pytest.mark.parametrize(("given", "first"), [({}, "Latest"), ({"initialPosition": "earliest"}, "Earliest")])
def test_a_topic_that_appears_later_is_read_from_its_first_message(
    client: Client, tmp_path: Path, given: dict[str, str], first: str
) -> None:
    query = stream(tmp_path, **given)
    start = query.initial()
    client.topics.append(B)
    query.latest(start)
    assert client.made == {A: first, B: "Earliest"}


def test_a_topic_that_appears_before_a_restart_is_read_from_its_first_message(client: Client, tmp_path: Path) -> None:
    query = stream(tmp_path)
    end = query.latest(query.initial())
    client.topics.append(B)
    stream(tmp_path).latest(end)
    assert client.made == {A: "Latest", B: "Earliest"}


@pytest.mark.parametrize(("is_new", "begins"), [(True, "Latest"), (False, "Earliest")])
def test_available_now_begins_a_topic_where_the_query_does(
    client: Client, tmp_path: Path, is_new: bool, begins: str
) -> None:
    end = {} if is_new else stream(tmp_path).latest(stream(tmp_path).initial())
    client.topics.append(B)
    query = stream(tmp_path)
    query.cap_at_current_end()
    assert B not in client.made
    end = query.latest(query.initial() if is_new else end)
    assert client.made == {A: "Latest", B: begins}
    assert [task.source.name for task in query.ranges(end | {"batch": 0}, end)][-1:] == [B]


@pytest.mark.parametrize("is_available_now", [False, True])
def test_existing_topics_are_subscribed_before_the_wait_for_missing_ones(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_available_now: bool
) -> None:
    made_before: list[dict[str, str]] = []

    def until_found(look: Callable[[], Sequence[object]], _: int) -> Sequence[object]:
        made_before.append(dict(client.made))
        client.topics.append(B)
        return look()

    monkeypatch.setattr(module, "topics_of", lambda *_: [A, B])
    monkeypatch.setattr(module, "until_found", until_found)
    query = stream(tmp_path, waitForTopic="5m")
    if is_available_now:
        query.cap_at_current_end()
    query.initial()
    assert made_before == [{A: "Latest"}]
    assert client.made == {A: "Latest", B: "Earliest"}


@pytest.mark.parametrize("calls_first", ["latest", "ranges", "cap"])
def test_a_restarted_query_refuses_a_missing_subscription(client: Client, tmp_path: Path, calls_first: str) -> None:
    query = stream(tmp_path)
    start = query.initial()
    end = query.latest(start)
    del client.made[A]
    query.ranges(start, end)  # once in each driver
    for _ in range(2):
        query = stream(tmp_path)
        if calls_first == "cap":
            query.cap_at_current_end()
        with pytest.raises(DataLossError, match=f"subscription s: it no longer exists in {A}, so .* -s s -m earliest"):
            query.ranges(start, end) if calls_first == "ranges" else query.latest(end)
    client.made[A] = "Earliest"
    assert stream(tmp_path).ranges(start, end)
