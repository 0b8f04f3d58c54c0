"""A look at a TubeMQ cluster as the connector sees it, without Spark: what `spark-mq` shows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from spark_mq_source.core.errors import OptionError
from spark_mq_source.tubemq.client.bounds import Partitions, fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.offsets import INDEX_BYTES, decode_offsets
from spark_mq_source.tubemq.options import TubeMQOptions


class TubeMQInspector:
    """See `core.ports.Inspector`. Asks under a group of its own, so that no group's progress is touched.

    Args:
        options: as a read has them.

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
        """Closes the connections."""
        self._client.close()

    def topics(self) -> Iterator[Mapping[str, object]]:
        """The topics that the options name, and how many partitions and brokers each has.

        Raises:
            MQSourceError: no master can be reached in time, or it refuses; or a topic is on no broker.
        """
        partitions = self._partitions()
        for name in self._options.topic_names:
            of_topic = [tp for tp in partitions if tp.topic == name]
            yield {"topic": name, "partitions": len(of_topic), "brokers": len({tp.broker_id for tp in of_topic})}

    def partitions(self) -> Iterator[Mapping[str, object]]:
        """The partitions, and the broker that has each.

        Raises:
            MQSourceError: no master can be reached in time, or it refuses; or a topic is on no broker.
        """
        for tp, one in sorted(self._partitions().items()):
            where = {"topic": tp.topic, "broker_id": tp.broker_id, "partition": tp.partition}
            yield where | {"broker": one.broker.address}

    def offsets(self) -> Iterator[Mapping[str, object]]:
        """Where the store of each partition begins and ends; all partitions of a store share its offsets.

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
        """How many messages the store of each partition has after what a streaming query has read.

        Args:
            checkpoint: the query's offsets.

        Raises:
            OptionError: there is no checkpoint, or it is not of this format.
            MQSourceError: the cluster cannot be reached in time, or refuses; or a topic is on no broker.
        """
        if checkpoint is None:
            raise OptionError(
                "tubemq: the lag of what: give a checkpoint; what a group has committed is in TubeMQ's own web pages"
            )
        try:
            read = decode_offsets(checkpoint).positions
        except ValueError as error:
            raise OptionError(f"tubemq: these are not the offsets of this format: {error}") from error
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
        """What has to work for a read, in order; each says what it found, or raises what is wrong."""
        yield "sign in at a master and find the topics", self._find_topics
        yield "ask the brokers where the messages begin and end", self._find_bounds

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
