"""Inspects a Pulsar cluster without Spark, for `spark-mq`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from typing import Final

from spark_mq_source.core.errors import (
    AuthorizationError,
    MQSourceError,
    OptionError,
    ResourceBusyError,
    TopicNotFoundError,
)
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition, decode_offsets, is_persistent
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.options.reading import NEVER
from spark_mq_source.pulsar.read.letters import letter_topic_of
from spark_mq_source.pulsar.read.limits import Limiter
from spark_mq_source.pulsar.read.planner import TaskSplitter, stretches_of, topics_of
from spark_mq_source.pulsar.read.reader import PulsarRange

_WAIT_SECONDS: Final = 3600.0
"""Maximum time for which one consumer waits for the next message, before another one is opened."""


class PulsarTail:
    """The end of a topic-partition; see `core.ports.Tail`.

    Each request fails with an MQSourceError if the cluster cannot be reached in time, or refuses it.

    Args:
        client: for `newest`; `following` opens its own.
    """

    def __init__(
        self, client: PulsarClient, options: PulsarOptions, topic_partition: TopicPartition, bounds: Bounds
    ) -> None:
        self._client = client
        self._options = options
        self._at = topic_partition
        self._first = bounds.first
        self._end = bounds.last

    def newest(self, messages: int) -> tuple[PulsarRange, bool]:
        """Return the range of at least this many of the newest entries; most have one message or more."""
        start, wanted = self._end, messages
        while start > self._first and wanted > start.entry + 1:
            wanted -= start.entry + 1
            # The last entry of the previous ledger, because there is none in between.
            found = self._client.fetch_stored({self._at: Position(start.ledger, -1)})[self._at]
            start = min(found, Position(start.ledger, -1))
            if start.entry < 0:
                start = self._first
        if start > self._first:
            start = max(self._first, Position(start.ledger, start.entry - wanted))
        return PulsarRange(self._at, start, self._end, query_start=start), start <= self._first

    def following(self) -> Iterator[PulsarRange]:
        """Yield the ranges after the end: a waiting consumer receives the next message."""
        with PulsarClient(self._options, role="spark-mq") as client:
            while True:
                begin = EARLIEST if self._end == EARLIEST else self._end.next_entry
                consumer = client.open_consumer(self._at, begin)
                try:
                    consumer.grant(1)
                    is_woken = bool(consumer.receive(max_bytes=1, timeout_seconds=_WAIT_SECONDS))
                except MQSourceError as error:
                    # The topic was unloaded, or the connection lost: opening the next one shows whether for good.
                    if not error.retryable:
                        raise
                    continue
                finally:
                    consumer.leave()
                last = client.fetch_bounds([self._at])[self._at].last if is_woken else self._end
                if last > self._end:
                    start, self._end = self._end, last
                    yield PulsarRange(self._at, start, last)


class PulsarInspector:
    """See `core.ports.Inspector` and `Unsubscriber`. Reads only metadata, and leaves nothing on the broker.

    Each request fails with an MQSourceError if the cluster cannot be reached in time, or refuses it,
    or if a topic does not exist.
    """

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self._client = PulsarClient(options, role="spark-mq")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def topics(self) -> Iterator[Mapping[str, object]]:
        """Yield the topics of the options, with their numbers of partitions; 0 for an unpartitioned topic."""
        names = topics_of(self._client, self._options)
        counts = Counter(tp.topic for tp in self._client.fetch_partitions(names) if tp.partition >= 0)
        for name in names:
            yield {"topic": name, "partitions": counts[TopicPartition.parse(name).topic]}

    def partitions(self) -> Iterator[Mapping[str, object]]:
        """Yield the topic-partitions and the broker that serves each."""
        for tp, address in self._client.fetch_addresses(self._topic_partitions()).items():
            yield asdict(tp) | {"broker": address}

    def offsets(self) -> Iterator[Mapping[str, object]]:
        """Yield the first and last position of each topic-partition, and the number of entries (messages or batches).

        Positions have the form of `startingOffsets`; `earliest` is before the first message, `latest` is the last one.
        With `readOffloaded`, there is a row for each part of a topic-partition that is read from the same `source`.
        """
        found = self._client.fetch_bounds(self._topic_partitions())
        filled = {tp: bounds for tp, bounds in found.items() if bounds.first < bounds.last}
        if self._options.read_offloaded != NEVER:
            yield from self._sources([PulsarRange(tp, bounds.first, bounds.last) for tp, bounds in filled.items()])
            return
        entries = self._client.fetch_backlogs(
            {tp: bounds.first for tp, bounds in filled.items()}, {tp: bounds.last for tp, bounds in filled.items()}
        )
        for tp, bounds in found.items():
            yield asdict(tp) | {
                "earliest": bounds.first.to_json(),
                "latest": bounds.last.to_json(),
                "entries": entries.get(tp, 0),
            }

    def _sources(self, ranges: Sequence[PulsarRange]) -> Iterator[Mapping[str, object]]:
        with closing(Limiter(self._client, self._options)) as limiter:
            parts = TaskSplitter(self._client, self._options, limiter).by_source(ranges, sys.maxsize)
        for part in parts:
            yield asdict(part.topic_partition) | {
                "earliest": part.start.to_json(),
                "latest": part.end.to_json(),
                "entries": sum(entries for _, _, entries in stretches_of(self._client, self._options, part)),
                "source": "offloadStorage" if part.ledgers else "brokers",
            }

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterator[Mapping[str, object]]:
        """Yield the backlog of a query or a subscription in each topic-partition, in entries (messages or batches).

        Args:
            checkpoint: the offsets of a streaming query; None for the backlog of the option `subscription`: from
                `adminUrl`, or without it from the broker, see `PulsarClient.fetch_waiting`.

        Raises:
            OptionError: neither a checkpoint nor a subscription, or the checkpoint is not of this format.
            ResourceBusyError: without `adminUrl`, and the type of the subscription's consumers allows no other.
        """
        options = self._options
        partitions = self._topic_partitions()
        if checkpoint is None:
            if options.subscription is None:
                raise OptionError("pulsar-native: cannot compute lag: pass --checkpoint or --subscription")
            for tp, waiting in self._waiting(partitions, options.subscription).items():
                yield asdict(tp) | {"entries_behind": waiting}
            return
        try:
            read = decode_offsets(checkpoint)
        except ValueError as error:
            raise OptionError(
                f"pulsar-native: not offsets of this format: {error}; a query with walDir has none: pass --subscription"
            ) from error
        bounds = self._client.fetch_bounds(partitions)
        starts = {tp: read.get(tp, EARLIEST) for tp in partitions}
        behind = {tp: bounds[tp].last for tp in partitions if starts[tp] < bounds[tp].last}
        waiting_entries = self._client.fetch_backlogs({tp: starts[tp] for tp in behind}, behind)
        for tp in partitions:
            yield asdict(tp) | {
                "read": starts[tp].to_json(),
                "latest": bounds[tp].last.to_json(),
                "entries_behind": waiting_entries.get(tp, 0),
            }

    def unsubscribe(self) -> Iterator[Mapping[str, object]]:
        """Delete the durable subscription `subscription`; return the number of entries in its backlog.

        Also deletes the subscription of the topic's retry topic, if there is one (see `read.letters`).

        Raises:
            OptionError: `subscription` is not set.
            ResourceBusyError: a consumer is connected; nothing is deleted.
        """
        name = self._options.subscription
        if name is None:
            raise OptionError("pulsar-native: cannot unsubscribe: set the option subscription")
        try:
            topics = topics_of(self._client, self._options)
            partitions = self._client.fetch_partitions(topics)
            # A pattern may match retry topics.
            retried = [tp for tp in self._retry_partitions(topics, name) if tp not in partitions]
            deleted = self._client.delete_subscription([*partitions, *retried], name)
        except ResourceBusyError as error:
            where = f"pulsar-native: subscription {name} is in use, so nothing is deleted (stop its consumers first)"
            raise error.within(where) from error
        for tp, entries in deleted.items():
            yield asdict(tp) | {"subscription": name, "entries_released": entries}

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises an error."""
        yield from TlsSettings.of(self._options).steps()
        for host, port in self._options.addresses:
            yield f"connect to {host}:{port}", partial(self._connect, host, port)
        yield "sign in and find the topics", self._find_topics
        yield "find the brokers of all partitions", self._find_brokers
        yield "find the first and last messages", self._find_bounds

    def tails(self) -> list[PulsarTail]:
        """Return the tail of each topic-partition."""
        bounds = self._client.fetch_bounds(self._topic_partitions())
        return [PulsarTail(self._client, self._options, tp, found) for tp, found in bounds.items()]

    def _waiting(self, partitions: list[TopicPartition], subscription: str) -> Mapping[TopicPartition, int]:
        if self._options.admin_url is not None:
            return {tp: self._client.fetch_subscription_backlog(tp, subscription) for tp in partitions}
        try:
            return self._client.fetch_waiting(partitions, subscription)
        except MQSourceError as error:
            raise error.within("pulsar-native: lag") from error

    def _retry_partitions(self, topics: Sequence[str], subscription: str) -> Sequence[TopicPartition]:
        """Return the partitions of this subscription's retry topic; none for a single partition: all share them."""
        found: list[TopicPartition] = []
        for topic in topics:
            at = TopicPartition.parse(topic)
            # Without the permission to read there, no message was put off.
            with suppress(TopicNotFoundError, AuthorizationError):
                if at.partition < 0 and is_persistent(topic):
                    found += self._client.fetch_partitions([letter_topic_of(at.topic, subscription, "RETRY")])
        return self._client.fetch_subscribed(found, subscription) if found else found

    def _topic_partitions(self) -> list[TopicPartition]:
        return self._client.fetch_partitions(topics_of(self._client, self._options))

    def _connect(self, host: str, port: int) -> str:
        options = self._options
        tls = TlsSettings.of(options) if options.uses_tls else None
        connect(host, port, tls=tls, deadline=Deadline.after_ms(options.connect_timeout_ms)).close()
        return "TCP and TLS" if options.uses_tls else "TCP, without TLS"

    def _find_topics(self) -> str:
        found = [f"{row['topic']} ({row['partitions'] or 'not partitioned'})" for row in self.topics()]
        if not found:
            raise TopicNotFoundError("pulsar-native: no topic matches topicsPattern")
        return ", ".join(found)

    def _find_brokers(self) -> str:
        return ", ".join(sorted({str(row["broker"]) for row in self.partitions()}))

    def _find_bounds(self) -> str:
        bounds = self._client.fetch_bounds(self._topic_partitions())
        empty = sum(b.last <= b.first for b in bounds.values())
        return f"{len(bounds)} topic-partitions, {empty} of them empty"
