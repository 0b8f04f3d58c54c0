"""The driver's part of a queue: the backlog of a subscription, and its division among tasks (`net.queue_stream`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from spark_mq_source.core.errors import DataLossError, MQSourceError, TopicNotFoundError
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.core.queue_offsets import BatchOffset
from spark_mq_source.net.queue_plan import plan_once, share_drain, share_waiting, split_parts
from spark_mq_source.net.queue_stream import QueueStream
from spark_mq_source.net.retry import Deadline, retrying, until_found
from spark_mq_source.net.stops import all_read
from spark_mq_source.net.write_ahead import read_plan
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.queue_consumer import QueueConsumer
from spark_mq_source.pulsar.offsets import TopicPartition, is_persistent
from spark_mq_source.pulsar.options import SHARED_TYPES, AckMode, InitialPosition, OnMaxRedeliver, PulsarOptions
from spark_mq_source.pulsar.protocol.commands import SubType
from spark_mq_source.pulsar.read.ends import TERMINATED, EndWatch
from spark_mq_source.pulsar.read.letters import letter_topic_of
from spark_mq_source.pulsar.read.planner import no_topic_matches, topics_of
from spark_mq_source.pulsar.read.queue_reader import PulsarQueueRange, QueueSource, subscription_of
from spark_mq_source.pulsar.read.recent import EntryRanges

_DRIVER: Final = "driver"

_IDLE_TRIGGERS: Final = 2
"""Number of triggers without data after which a query can end with its topics."""


def plan_queue(options: PulsarOptions) -> list[PulsarQueueRange]:
    """Return the tasks of one batch read, see `plan_once`.

    Raises:
        TopicNotFoundError: a topic does not exist.
        MQSourceError: the cluster cannot be reached in time, or refuses; or `walDir` cannot be used.
    """
    return plan_once("pulsar-native", options, PulsarQueueRange, lambda: _drain_tasks(options))


def _drain_tasks(options: PulsarOptions) -> list[PulsarQueueRange]:
    with PulsarClient(options) as client:
        _check_letter_topics(client, options)
        sources = _sources_of(client, options)
        waiting = _Backlogs(client, options).fetch(sources) if options.max_rows is not None else {}
        client.hand_over()
    parts = share_drain({one: _scaled(waiting.get(one), options.max_rows or 0) for one in sources}, options.max_rows)
    split = split_parts(parts.items(), _tasks_per_source(options, sources))
    return [PulsarQueueRange(source, rows, task=number) for number, (source, rows) in enumerate(split)]


def _scaled(entries: int | None, messages: int) -> int | None:
    """Return entries as a weight for shares of messages, because messages per entry are unknown before the read."""
    return None if entries is None else entries * messages


def _sources_of(client: PulsarClient, options: PulsarOptions, topics: Sequence[str] | None = None) -> list[QueueSource]:
    """Return the sources to read now, of all topics or of these; with `retryTopic` also those of messages put off.

    Raises:
        MQSourceError: a topic does not exist, or the cluster cannot be reached in time.
    """
    topics = _topics_of(client, options) if topics is None else topics
    partitions = [(tp, None) for tp in _partitions_of(client, options, topics)]
    retried = [(tp, base) for base in topics for tp in _retry_partitions(client, options, base)]
    return [
        QueueSource(tp.topic, tp.partition, *ends, base=base)
        for tp, base in (*partitions, *retried)
        for ends in options.key_ranges or ((-1, -1),)
    ]


def _partitions_of(client: PulsarClient, options: PulsarOptions, topics: Sequence[str]) -> list[TopicPartition]:
    live = [topic for topic in topics if not is_persistent(topic)]
    found = client.fetch_partitions([topic for topic in topics if is_persistent(topic)])
    try:
        return found + client.fetch_partitions(live, create=options.create_topic)
    except TopicNotFoundError as error:
        raise error.within("a non-persistent topic exists only while it is used") from error


def _topics_of(client: PulsarClient, options: PulsarOptions) -> list[str]:
    subscription = options.subscription or ""
    # A pattern may match this subscription's own letters.
    letters = (letter_topic_of("", subscription, "DLQ"), letter_topic_of("", subscription, "RETRY"))
    return [name for name in topics_of(client, options) if name in options.topic_names or not name.endswith(letters)]


def _retry_partitions(client: PulsarClient, options: PulsarOptions, base: str) -> Sequence[TopicPartition]:
    """Return the partitions of a topic's retry topic; none if no message was put off yet."""
    if not options.retry_topic:
        return ()
    topic = letter_topic_of(TopicPartition.parse(base).topic, options.subscription or "", "RETRY")
    with suppress(TopicNotFoundError):
        return client.fetch_partitions([topic])
    return ()


def _check_letter_topics(client: PulsarClient, options: PulsarOptions) -> None:
    """Check, before the first letter, that its topic exists; create it with `createTopic`.

    Also subscribes to the retry topic: a broker keeps letters only for existing subscriptions.

    Raises:
        TopicNotFoundError: it does not exist.
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    subscription = options.subscription or ""
    for base in dict.fromkeys(TopicPartition.parse(topic).topic for topic in _topics_of(client, options)):
        if options.on_max_redeliver is OnMaxRedeliver.DEAD_LETTER:
            topic = options.dead_letter_topic or letter_topic_of(base, subscription, "DLQ")
            _check_letter_topic(client, options, topic)
        if options.retry_topic:
            retry_topic = letter_topic_of(base, subscription, "RETRY")
            try:
                partitions = _check_letter_topic(client, options, retry_topic)
                source = QueueSource(retry_topic, -1, *(options.key_ranges or ((-1, -1),))[0], base=base)
                how = replace(subscription_of(options, source, _DRIVER), creates_topic=options.create_topic)
                opened = client.open_queue_consumers(partitions, how)
                client.wait_for(((tp, one.request_close()) for tp, one in opened.items()), "CLOSE_CONSUMER")
            except TopicNotFoundError:
                # Other clients may put off messages later; they subscribe before.
                if options.ack_mode is AckMode.NACK:
                    raise


def _check_letter_topic(client: PulsarClient, options: PulsarOptions, topic: str) -> Sequence[TopicPartition]:
    try:
        return client.fetch_partitions([topic], create=options.create_topic)
    except TopicNotFoundError as error:
        raise error.within(f"pulsar-native: letters to {topic}") from error


def _tasks_per_source(options: PulsarOptions, sources: Sequence[QueueSource]) -> int:
    if options.subscription_kind not in SHARED_TYPES or options.key_ranges or not sources:
        return 1
    return max(options.consumers_per_partition, -(-(options.min_partitions or 1) // len(sources)))


class _Backlogs:
    """Backlog of a subscription in entries, for which the subscription is created if necessary.

    The broker answers CONSUMER_STATS only to a consumer, so one joins without permits and leaves at once. If it stayed,
    it would get keys of a Key_Shared subscription, and prevent the redelivery of chunks, which the broker ties to a
    consumer until all have left (seen on 4.0.8). With `adminUrl` the admin API is used, once the subscription exists.
    """

    def __init__(self, client: PulsarClient, options: PulsarOptions) -> None:
        self._client = client
        self._options = options
        self._made: set[TopicPartition] = set()

    def fetch(self, sources: Sequence[QueueSource]) -> dict[QueueSource, int | None]:
        """Return the backlog of each source; for all key ranges of a topic-partition, its whole backlog.

        None for a non-persistent topic, which has no backlog. No consumer joins there either: the broker may choose a
        consumer without permits for a message, which is lost then.
        """
        asked = [source for source in sources if source.is_stored]
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        found = retrying(lambda: self._ask(_by_partition(asked)), deadline=deadline) if asked else {}
        return {source: found.get(source.topic_partition) for source in sources}

    def _ask(self, sources: Mapping[TopicPartition, QueueSource]) -> dict[TopicPartition, int]:
        options, client = self._options, self._client
        if options.admin_url is not None and self._made.issuperset(sources):
            found = {tp: client.fetch_subscription_backlog(tp, options.subscription or "") for tp in sources}
            if min(found.values()) >= 0:
                return found
        with self._joined(sources) as consumers:
            self._made.update(sources)
            return client.wait_for_durable_backlogs(consumers)

    @contextmanager
    def _joined(
        self, sources: Mapping[TopicPartition, QueueSource]
    ) -> Iterator[Mapping[TopicPartition, QueueConsumer]]:
        """Open a consumer of each for a short time."""
        consumers: dict[TopicPartition, QueueConsumer] = {}
        try:
            for is_retry in (False, True):
                some = {tp: source for tp, source in sources.items() if (source.base is not None) is is_retry}
                if not some:
                    continue
                subscription = subscription_of(self._options, next(iter(some.values())), _DRIVER)
                if subscription.kind is SubType.Failover:
                    # After all readers: the broker would choose it before some of them, and deliver everything again.
                    subscription = replace(subscription, priority_level=INT32_MAX)
                consumers |= self._client.open_queue_consumers(list(some), subscription)
            yield consumers
        finally:
            closing = {tp: one.request_close() for tp, one in consumers.items() if not one.session.closed}
            with suppress(MQSourceError):
                self._client.wait_for(closing.items(), "CLOSE_CONSUMER")


def _by_partition(sources: Sequence[QueueSource]) -> dict[TopicPartition, QueueSource]:
    return {source.topic_partition: source for source in reversed(sources)}


class PulsarQueueStream(QueueStream[QueueSource, PulsarQueueRange]):
    """Planner of the triggers of one query."""

    counts_held = True
    task_type = PulsarQueueRange

    def __init__(self, options: PulsarOptions) -> None:
        super().__init__(
            "pulsar-native",
            f"pulsar-native: subscription {options.subscription}",
            options,
            topic=options.topic or ", ".join(options.topics) or str(options.topics_pattern),
        )
        self._options = options
        self._client = PulsarClient(options)
        # A subscription that is missing once the query has begun is of a new topic-partition, or was deleted.
        self._backlogs = _Backlogs(self._client, replace(options, initial_position=InitialPosition.EARLIEST))
        self._is_subscribed = False
        self._ends = EndWatch(self._client)
        self._idle = 0

    def close(self) -> None:
        """Close the connections; the subscription keeps unread messages."""
        self._client.close()

    def latest(self, start: Mapping[str, object], *, limited: bool = True) -> dict[str, object]:
        """Return the end of the next trigger, see `QueueStream`.

        Raises:
            EndOfStreamError: with `endAtTermination`: every topic-partition is terminated and read.
            DataLossError: the write-ahead log or the subscription was deleted.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        self._check_subscribed(self._offset(start))
        end = super().latest(start, limited=limited)
        waiting = (self.newest or {}).get("waiting")
        self._idle = self._idle + 1 if end == start and waiting == 0 else 0
        if self._options.end_at_termination and self._left is None and self._idle:
            bounds = self._client.fetch_bounds(list(_by_partition(self._sources())))
            are_ended = self._ends.are_ended({tp: one.last for tp, one in bounds.items()})
            # Not at once: a trigger without data may follow, in which Spark completes results behind a watermark.
            if are_ended and self._idle > _IDLE_TRIGGERS:
                # Spark commits a trigger when the next one begins, and there is none.
                self.commit(end)
                raise all_read(self._where, len(bounds), TERMINATED)
        return end

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[PulsarQueueRange]:
        """Return the tasks of a trigger, see `QueueStream`.

        Raises:
            DataLossError: the write-ahead log or the subscription was deleted.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        # The tasks of a repeated batch would create the subscription.
        self._check_subscribed(self._offset(end))
        return super().ranges(start, end)

    def _check_subscribed(self, at: BatchOffset) -> None:
        """Check, once in each driver, that the subscription exists in the topic-partitions that earlier drivers read.

        Raises:
            DataLossError: it does not.
        """
        if self._is_subscribed or not at.batch:
            return
        planned = {task.source.name for task in self._planned(at)}
        known = planned | read_plan(self._store, at.folder)["recent"].keys()
        asked = [one for one in _by_partition(self._sources()) if str(one) in known and is_persistent(one.topic)]
        name = self._options.subscription or ""
        subscribed = self._client.fetch_subscribed(asked, name)
        if missing := [str(one) for one in asked if one not in subscribed]:
            raise DataLossError(
                f"{self._where}: it no longer exists in {', '.join(missing)}, so its unread messages may be deleted: "
                f"it has expired (subscriptionExpirationTimeMinutes), or it or the topic was deleted; to read what is "
                f"left, create it (pulsar-admin topics create-subscription -s {name} -m earliest TOPIC)"
            )
        self._is_subscribed = True

    def _existing(self) -> list[QueueSource]:
        """Return the sources to read now, with `waitForTopic` without those of missing topics."""
        if self._options.wait_for_topic_ms is None:
            return _sources_of(self._client, self._options)
        found: list[QueueSource] = []
        for topic in _topics_of(self._client, self._options):
            with suppress(TopicNotFoundError):
                found += _sources_of(self._client, self._options, [topic])
        return found

    def _await_topics(self) -> None:
        """Wait for missing topics.

        Raises:
            TopicNotFoundError: a topic is missing after `waitForTopic`.
        """
        client, options = self._client, self._options
        if options.wait_for_topic_ms is None:
            return

        def look() -> Sequence[QueueSource]:
            sources = _sources_of(client, options)
            if not sources:
                raise no_topic_matches(options)
            return sources

        until_found(look, options.wait_for_topic_ms)

    def _begin(self) -> None:
        # The subscription is created here, if necessary: messages published from now on are read, and all messages of
        # topic-partitions that appear from now on.
        first = _Backlogs(self._client, self._options).fetch(self._existing())
        self._await_topics()
        _check_letter_topics(self._client, self._options)
        self._backlogs.fetch([source for source in self._sources() if source not in first])
        self._is_subscribed = True

    def _sources(self) -> Sequence[QueueSource]:
        return _sources_of(self._client, self._options)

    def _sources_now(self) -> Sequence[QueueSource]:
        self._await_topics()
        return self._sources()

    def _waiting(self, sources: Sequence[QueueSource]) -> dict[QueueSource, int | None]:
        return self._backlogs.fetch(sources)

    def _unknown_reason(self, source: QueueSource) -> str:
        return super()._unknown_reason(source) if source.is_stored else "it stores none"

    def _check(self, source: QueueSource) -> None:
        self._client.fetch_addresses([source.topic_partition])

    def _tasks(
        self, waiting: Mapping[QueueSource, int | None], budget: int | None, *, turn: int
    ) -> Sequence[PulsarQueueRange]:
        depths = dict(waiting)
        count = _tasks_per_source(self._options, list(depths))
        if budget is None:
            parts = split_parts(depths.items(), count)
            return [PulsarQueueRange(source, max_entries=entries) for source, entries in parts]
        shares = share_waiting({one: _scaled(depth, budget) for one, depth in depths.items()}, budget, turn)
        tasks: list[PulsarQueueRange] = []
        for source, messages in shares.items():
            entries = [part for _, part in split_parts([(source, depths[source])], count)]
            rows = [part for _, part in split_parts([(source, messages)], count)]
            tasks += [PulsarQueueRange(source, r, max_entries=e) for e, r in zip(entries, rows, strict=False)]
        return tasks

    def _merged(self, recent: str, last: str) -> str:
        return EntryRanges([recent, last]).text()

    def _compact(self, ids: Iterable[str]) -> Iterable[str]:
        return EntryRanges(ids).texts()
