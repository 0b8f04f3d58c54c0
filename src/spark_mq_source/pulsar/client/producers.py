"""Producers, and the coordinators of their transactions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any

from spark_mq_source.core.errors import (
    BrokerError,
    MQSourceError,
    RequestTimeoutError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from spark_mq_source.pulsar.client.session import (
    ProducerEvents,
    Session,
    accepted,
)
from spark_mq_source.pulsar.client.topics import COORDINATORS, Topics
from spark_mq_source.pulsar.offsets import TopicPartition, is_persistent
from spark_mq_source.pulsar.options import DeliveryGuarantee
from spark_mq_source.pulsar.protocol import commands

_LONG_SECONDS = 10.0
"""Who has waited longer for its turn than this has had a place in the queue."""

_PRODUCER_FENCED = 25
"""`ServerError.ProducerFenced`: another producer has the topic for itself."""


class Producers(Topics):
    """Requests by producers, and to the coordinators of transactions."""

    def open_producer(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        events: ProducerEvents,
        *,
        name: str | None,
        epoch: int,
        topic_epoch: int | None = None,
        schema: commands.Schema | None = None,
        wait_ms: int | None = None,
    ) -> tuple[Session, commands.ProducerSuccess]:
        """A producer at the broker that serves a topic-partition now, in the `accessMode` of the options.

        Args:
            topic_partition: where it writes. PRODUCER creates a topic that does not exist, where the broker may, so ask
                for it first; one that is gone when a producer is opened again is an error unless `createTopic`.
            producer_id: not in use on any connection of this client.
            events: who is told of receipts, and of its end.
            name: None for one that the broker makes up, to be used when it is opened again.
            epoch: how often it was opened before: the broker lets it take the place of its forerunner.
            topic_epoch: what it was told when it was opened before: a broker that has let another one take over since
                then refuses it.
            schema: of its messages; None for none.
            wait_ms: how long it may wait for its turn with WaitForExclusive; None for ever.
        """
        mode = commands.ProducerAccessMode(self._options.access_mode)
        create = partial(
            self._create_producer,
            topic_partition,
            producer_id,
            name,
            epoch,
            schema=schema,
            # What is the default is not sent, so that brokers that do not know it are not bothered.
            producer_access_mode=mode or None,
            txn_enabled=self._options.delivery_guarantee is DeliveryGuarantee.TRANSACTION or None,
            topic_epoch=topic_epoch,
        )
        waits = mode is commands.ProducerAccessMode.WaitForExclusive
        if epoch and not self._options.create_topic and is_persistent(topic_partition.topic):
            self.fetch_partitions([str(topic_partition)])
        while True:
            asked = time.monotonic()
            session = self._lookup([topic_partition])[topic_partition]
            opened = session.open_producer(producer_id, events, create)
            try:
                if waits:
                    return session, self._wait_for_turn(opened, topic_partition, wait_ms)
                return session, self.wait(opened, f"PRODUCER of {topic_partition}")
            except RequestTimeoutError as error:
                if waits:
                    # Or the broker would not take the same id again (Pulsar binary protocol, Command CloseProducer).
                    session.close_producer(producer_id)
                if schema is None or waits:
                    raise
                raise RequestTimeoutError(
                    f"{error}; a broker does not answer where it cannot read a schema (seen on 4.0.8): check it"
                ) from None
            except MQSourceError as error:
                if name is not None and _is_fenced_by(error, name):
                    # It is in its own way: for the broker, the connection that was lost has not ended yet.
                    raise ServiceNotReadyError(str(error), code=_PRODUCER_FENCED) from error
                # A topic that is unloaded sends away who waits: what was long waited for is waited for again.
                if not (waits and error.retryable and wait_ms is None and time.monotonic() > asked + _LONG_SECONDS):
                    raise

    @staticmethod
    def _wait_for_turn(
        opened: Future[commands.ProducerSuccess], topic_partition: TopicPartition, wait_ms: int | None
    ) -> commands.ProducerSuccess:
        what = f"PRODUCER of {topic_partition}"
        try:
            return opened.result(None if wait_ms is None else wait_ms / 1000)
        except FutureTimeoutError:
            raise RequestTimeoutError(
                f"{what}: others have the topic for themselves since {wait_ms} ms (sendTimeout); it is not waited "
                f"longer by a task that has others for itself, which they may wait for: write to one topic-partition"
            ) from None
        except MQSourceError as error:
            raise error.within(what) from error

    def close_producer(self, session: Session, producer_id: int) -> None:
        """Closes a producer and waits until the broker has; one that is closed already is left alone.

        Raises:
            MQSourceError: no answer in time.
        """
        if not session.closed and session.has_producer(producer_id):
            self.wait(session.close_producer(producer_id), "CLOSE_PRODUCER")

    def fetch_last_sequence_ids(
        self, producers: Mapping[TopicPartition, tuple[int, str]], *, schema: commands.Schema | None
    ) -> dict[TopicPartition, int]:
        """The highest sequence id that the broker has stored of producers that are not open; -1 for none.

        Args:
            producers: the id, not in use on any connection of this client, and the name of each.
            schema: as for `open_producer`: a broker may want one.
        """
        sessions: dict[TopicPartition, Session] = {}

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[commands.ProducerSuccess]]:
            sessions.update(self._lookup(names))
            return {
                at: sessions[at].open_producer(
                    producers[at][0],
                    _NullProducerEvents(),
                    partial(self._create_producer, at, *producers[at], 0, schema=schema),
                )
                for at in names
            }

        found = self._gather(list(producers), ask, "PRODUCER")
        for at in found:
            # Not before it is open; a lost connection has closed it.
            sessions[at].close_producer(producers[at][0])
        return {at: opened.last_sequence_id for at, opened in found.items()}

    @staticmethod
    def _create_producer(
        topic_partition: TopicPartition,
        producer_id: int,
        name: str | None,
        epoch: int,
        request_id: int,
        **more: Any,  # noqa: ANN401
    ) -> commands.Producer:
        return commands.Producer(
            str(topic_partition),
            producer_id,
            request_id,
            producer_name=name,
            epoch=epoch,
            user_provided_producer_name=False,
            **more,
        )

    def fetch_coordinators(self) -> int:
        """How many transaction coordinators the cluster has; 0 where transactions are not enabled."""
        try:
            found = self.fetch_partitions([COORDINATORS])
        except TopicNotFoundError:
            return 0
        return sum(at.partition >= 0 for at in found)

    def open_coordinator(self, number: int) -> Session:
        """The connection to the broker that has a transaction coordinator, loaded."""
        at = TopicPartition(COORDINATORS, number)
        session = self._lookup([at])[at]
        # Once a load would do. Asked each time, the broker that has it since a moment is ready for what comes next.
        loaded = session.request(
            lambda request_id: commands.TcClientConnectRequest(request_id, number),
            accepted(commands.TcClientConnectResponse),
        )
        self.wait(loaded, f"TC_CLIENT_CONNECT of coordinator {number}")
        return session


def _is_fenced_by(error: MQSourceError, name: str) -> bool:
    """Whether a producer of this name has the topic for itself (the broker's own words, seen on 4.0.8)."""
    return (
        isinstance(error, BrokerError)
        and error.code == _PRODUCER_FENCED
        and error.broker_message.endswith(f"existing exclusive producer: {name}")
    )


class _NullProducerEvents:
    """Takes what a producer is told that sends nothing."""

    def opened(self) -> None:
        pass

    def deliver(self, event: commands.SendReceipt | commands.SendError) -> None:
        pass

    def fail(self, error: MQSourceError) -> None:
        pass
