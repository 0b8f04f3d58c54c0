"""Inspects a TubeMQ cluster without Spark, for `spark-mq`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Final

from spark_mq_source.core.errors import OptionError
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.tubemq.client.bounds import Bounds, Partitions, fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.offsets import INDEX_BYTES, TopicPartition, decode_offsets
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from spark_mq_source.tubemq.read.reader import TubeMQRange

_POLL_SECONDS: Final = 1.0


class TubeMQTail:
    """The end of a partition; see `core.ports.Tail`.

    Args:
        inspector: the inspector's client, options and end are used.
        topic_partition: the partition.
        place: the partition with its broker's address.
        bounds: current bounds of the store, which its partitions share.
    """

    def __init__(
        self, inspector: TubeMQInspector, topic_partition: TopicPartition, place: BrokerPartition, bounds: Bounds
    ) -> None:
        self._inspector = inspector
        self._at = topic_partition
        self._place = place
        self._first, self._end = bounds

    def newest(self, messages: int) -> tuple[TubeMQRange, bool]:
        """Return the range of this many of the store's newest messages."""
        start = max(self._first, self._end - messages * INDEX_BYTES)
        return self._range(start, self._end), start == self._first

    def following(self) -> Iterator[TubeMQRange]:
        """Yield the ranges after the end, polled once a second, because a broker does not announce new messages.

        Raises:
            MQSourceError: the broker cannot be reached in time, or refuses.
        """
        while not self._inspector.closed.wait(_POLL_SECONDS):
            last = self._inspector.fetch_bounds({self._at: self._place})[self._at].last
            start, self._end = min(self._end, last), last
            if start < last:
                yield self._range(start, last)

    def _range(self, start: int, end: int) -> TubeMQRange:
        return TubeMQRange(self._at, self._place.broker, start, end, self._inspector.client.authorization.given)


class TubeMQInspector:
    """See `core.ports.Inspector`. Uses its own group, so that no other group's progress changes."""

    def __init__(self, options: TubeMQOptions) -> None:
        self._options = options
        self.client = TubeMQClient(options)
        self.fetch_bounds = partial(fetch_bounds, self.client, options)
        self.closed = threading.Event()

    def close(self) -> None:
        """Close the connections."""
        self.closed.set()
        self.client.close()

    def topics(self) -> Iterator[Mapping[str, object]]:
        """Yield the topics of the options, or else all topics, with their numbers of partitions and brokers.

        Raises:
            MQSourceError: no master can be reached in time, or it refuses; or a topic is on no broker.
        """
        if not self._options.topic_names and self._options.topics_pattern is None:
            yield from self.client.list_topics()
            return
        partitions = self._partitions()
        for name in sorted({tp.topic for tp in partitions}):
            of_topic = [tp for tp in partitions if tp.topic == name]
            yield {"topic": name, "partitions": len(of_topic), "brokers": len({tp.broker_id for tp in of_topic})}

    def partitions(self) -> Iterator[Mapping[str, object]]:
        """Yield the partitions, and the broker of each.

        Raises:
            MQSourceError: no master can be reached in time, or it refuses; or a topic is on no broker.
        """
        for tp, one in sorted(self._partitions().items()):
            yield asdict(tp) | {"broker": one.broker.address}

    def offsets(self) -> Iterator[Mapping[str, object]]:
        """Yield the first and end offset of each partition's store, and its messages, which its partitions share.

        Raises:
            MQSourceError: the cluster cannot be reached in time, or refuses; or a topic is on no broker.
        """
        for tp, bounds in sorted(self.fetch_bounds(self._partitions()).items()):
            yield asdict(tp) | {
                "earliest": bounds.first,
                "latest": bounds.last,
                "messages_in_store": (bounds.last - bounds.first) // INDEX_BYTES,
            }

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterator[Mapping[str, object]]:
        """Yield the number of messages in each partition's store, which its partitions share, after a query's offsets.

        Args:
            checkpoint: the query's offsets.

        Raises:
            OptionError: no checkpoint, or not one of this format.
            MQSourceError: the cluster cannot be reached in time, or refuses; or a topic is on no broker.
        """
        if checkpoint is None:
            raise OptionError(
                "tubemq: cannot compute lag: pass --checkpoint (TubeMQ's web console shows the offsets that a group "
                "has committed)"
            )
        try:
            read = decode_offsets(checkpoint).positions
        except ValueError as error:
            raise OptionError(f"tubemq: not offsets of this format: {error}") from error
        for tp, bounds in sorted(self.fetch_bounds(self._partitions()).items()):
            at = max(read.get(tp, bounds.first), bounds.first)
            yield asdict(tp) | {
                "read": at,
                "latest": bounds.last,
                "messages_behind_in_store": max(0, bounds.last - at) // INDEX_BYTES,
            }

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises an error."""
        yield from TlsSettings.of(self._options).steps()
        yield "sign in at a master and find the topics", self._find_topics
        yield "find the first and last messages", self._find_bounds

    def tails(self) -> list[TubeMQTail]:
        """Return the tail of each partition.

        Raises:
            MQSourceError: the cluster cannot be reached in time, or refuses; or a topic is on no broker.
        """
        partitions = self._partitions()
        return [TubeMQTail(self, tp, partitions[tp], found) for tp, found in self.fetch_bounds(partitions).items()]

    def _partitions(self) -> Partitions:
        return partitions_of(self.client.fetch_partitions())

    def _find_topics(self) -> str:
        return ", ".join(
            f"{row['topic']} ({row['partitions']} partitions on {row['brokers']} brokers)" for row in self.topics()
        )

    def _find_bounds(self) -> str:
        bounds = self.fetch_bounds(self._partitions()).values()
        return f"{len(bounds)} partitions, {sum(b.first == b.last for b in bounds)} of them in empty stores"
