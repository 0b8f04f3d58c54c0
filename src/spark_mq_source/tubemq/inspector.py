"""Inspects a TubeMQ cluster without Spark, for `spark-mq`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from spark_mq_source.core.errors import OptionError
from spark_mq_source.tubemq.client.bounds import Partitions, fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.offsets import INDEX_BYTES, decode_offsets
from spark_mq_source.tubemq.options import TubeMQOptions


class TubeMQInspector:
    """See `core.ports.Inspector`. Uses its own group, so that no other group's progress changes.

    Args:
        options: options of a read.

    Example:
        ::

            inspector = TubeMQInspector(options)
            try:
                print(list(inspector.offsets()))
            finally:
                inspector.close()
    """

    def __init__(self, options: TubeMQOptions) -> None:
        self._options = options
        self._client = TubeMQClient(options)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def topics(self) -> Iterator[Mapping[str, object]]:
        """Yield the topics of the options, with their numbers of partitions and brokers.

        Raises:
            MQSourceError: no master can be reached in time, or it refuses; or a topic is on no broker.
        """
        partitions = self._partitions()
        for name in self._options.topic_names:
            of_topic = [tp for tp in partitions if tp.topic == name]
            yield {"topic": name, "partitions": len(of_topic), "brokers": len({tp.broker_id for tp in of_topic})}

    def partitions(self) -> Iterator[Mapping[str, object]]:
        """Yield the partitions, and the broker of each.

        Raises:
            MQSourceError: no master can be reached in time, or it refuses; or a topic is on no broker.
        """
        for tp, one in sorted(self._partitions().items()):
            where = {"topic": tp.topic, "broker_id": tp.broker_id, "partition": tp.partition}
            yield where | {"broker": one.broker.address}

    def offsets(self) -> Iterator[Mapping[str, object]]:
        """Yield the first and end offset of each partition's store; all partitions of a store share its offsets.

        Raises:
            MQSourceError: the cluster cannot be reached in time, or refuses; or a topic is on no broker.
        """
        for tp, bounds in sorted(fetch_bounds(self._client, self._options, self._partitions()).items()):
            yield {
                "topic": tp.topic,
                "broker_id": tp.broker_id,
                "partition": tp.partition,
                "earliest": bounds.first,
                "latest": bounds.last,
            }

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterator[Mapping[str, object]]:
        """Yield the number of messages in each partition's store after the offsets of a streaming query.

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
        for tp, bounds in sorted(fetch_bounds(self._client, self._options, self._partitions()).items()):
            at = max(read.get(tp, bounds.first), bounds.first)
            yield {
                "topic": tp.topic,
                "broker_id": tp.broker_id,
                "partition": tp.partition,
                "read": at,
                "latest": bounds.last,
                "messages_behind": max(0, bounds.last - at) // INDEX_BYTES,
            }

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises an error."""
        yield "sign in at a master and find the topics", self._find_topics
        yield "find the first and last messages", self._find_bounds

    def _partitions(self) -> Partitions:
        options = self._options
        meta = self._client.fetch_topics(options.topic_names, group=options.group_name, filters=options.filters)
        return partitions_of(meta.partitions())

    def _find_topics(self) -> str:
        return ", ".join(
            f"{row['topic']} ({row['partitions']} partitions on {row['brokers']} brokers)" for row in self.topics()
        )

    def _find_bounds(self) -> str:
        bounds = fetch_bounds(self._client, self._options, self._partitions()).values()
        return f"{len(bounds)} partitions, {sum(b.first == b.last for b in bounds)} of them in empty stores"
