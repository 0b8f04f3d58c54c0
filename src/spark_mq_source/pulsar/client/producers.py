"""Producers, and transaction coordinators."""

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
from spark_mq_source.pulsar.client.session import ProducerEvents, Session, accepted
from spark_mq_source.pulsar.client.topics import COORDINATORS, Topics
from spark_mq_source.pulsar.offsets import TopicPartition, is_persistent
from spark_mq_source.pulsar.options import DeliveryGuarantee
from spark_mq_source.pulsar.protocol import commands

_LONG_SECONDS = 10.0
"""A producer that has waited longer than this had a place in the broker's queue."""

_PRODUCER_FENCED = 25
"""`ServerError.ProducerFenced`: another producer has exclusive access to the topic."""


class Producers(Topics):
    """Requests of producers, and to transaction coordinators."""

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
        """Open a producer at the broker that serves a topic-partition now, with the `accessMode` of the options.

        Args:
            topic_partition: its target. PRODUCER creates a missing topic if the broker may, so check for it first; a
                topic that is missing when a producer is reopened is an error unless `createTopic`.
            producer_id: not in use on any connection of this client.
            events: callbacks for receipts, and for its end.
            name: None to let the broker generate one, for later reopens.
            epoch: number of earlier opens: a higher one replaces the broker's older producer of the same name.
            topic_epoch: from the previous open: the broker refuses it if another producer has taken over since.
            schema: schema of its messages; None for none.
            wait_ms: maximum wait for exclusive access with WaitForExclusive; None for no limit.
        """
        mode = self._options.access_mode
        create = partial(
            self._create_producer,
            topic_partition,
            producer_id,
            name,
            epoch,
            schema=schema,
            # The default is not sent, for brokers that do not know the field.
            producer_access_mode=mode or None,
            txn_enabled=self._options.delivery_guarantee is DeliveryGuarantee.TRANSACTION or None,
            topic_epoch=topic_epoch,
        )
        waits = mode is commands.ProducerAccessMode.WaitForExclusive
        if epoch and not self._options.create_topic and is_persistent(topic_partition.topic):
            self.fetch_partitions([str(topic_partition)])
        while True:
            asked = time.monotonic()
            self._check_migration(topic_partition)
            session = self._lookup([topic_partition])[topic_partition]
            opened = session.open_producer(producer_id, events, create)
            try:
                if waits:
                    return session, self._wait_for_turn(opened, topic_partition, wait_ms)
                return session, self.wait(opened, f"PRODUCER of {topic_partition}")
            except RequestTimeoutError as error:
                if waits:
                    # Otherwise the broker refuses to reuse the id (Pulsar binary protocol, Command CloseProducer).
                    session.close_producer(producer_id)
                if schema is None or waits:
                    raise
                raise RequestTimeoutError(
                    f"{error}; a broker does not answer where it cannot read a schema (seen on 4.0.8): check it"
                ) from None
            except MQSourceError as error:
                if name is not None and _is_fenced_by(error, name):
                    # It conflicts with itself: for the broker, the lost connection has not ended yet.
                    raise ServiceNotReadyError(str(error), code=_PRODUCER_FENCED) from error
                # The unload of a topic ends the wait of its producers: one that waited long enough waits again.
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
        """Close a producer and wait for the broker; do nothing if it is closed already.

        Raises:
            MQSourceError: no answer in time.
        """
        if not session.closed and session.has_producer(producer_id):
            self.wait(session.close_producer(producer_id), "CLOSE_PRODUCER")

    def fetch_last_sequence_ids(
        self, producers: Mapping[TopicPartition, tuple[int, str, ProducerEvents]], *, schema: commands.Schema | None
    ) -> dict[TopicPartition, int]:
        """Return the highest sequence id that the broker has stored for producers that are not open; -1 for none.

        Args:
            producers: id (not in use on any connection of this client), name and callbacks of each.
            schema: as for `open_producer`: a broker may require one.
        """
        sessions: dict[TopicPartition, Session] = {}

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[commands.ProducerSuccess]]:
            for at in names:
                self._check_migration(at)
            sessions.update(self._lookup(names))
            opening = {}
            for at in names:
                number, name, events = producers[at]
                create = partial(self._create_producer, at, number, name, 0, schema=schema)
                opening[at] = sessions[at].open_producer(number, events, create)
            return opening

        found = self._gather(list(producers), ask, "PRODUCER")
        for at in found:
            # Only once it is open; a lost connection has closed it.
            sessions[at].close_producer(producers[at][0])
        return {at: opened.last_sequence_id for at, opened in found.items()}

    def _check_migration(self, topic_partition: TopicPartition) -> None:
        """Refuse to follow a topic to a cluster that does not know the sequence ids or transactions of this write.

        Raises:
            BrokerError: the topic has migrated, and the guarantee is more than at-least-once.
        """
        moved = self._migrated_to(str(topic_partition))
        if moved is not None and self._options.delivery_guarantee is not DeliveryGuarantee.AT_LEAST_ONCE:
            raise BrokerError(
                f"{topic_partition} has migrated to {moved}, which does not know what this write has stored: "
                f"deliveryGuarantee={self._options.delivery_guarantee.value} must not continue there; see what is "
                "stored, then set serviceUrl to that cluster"
            )

    def _create_producer(
        self,
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
            metadata=commands.key_values(self._options.producer_properties),
            # A namespace may require encryption of its producers; the default is not sent.
            encrypted=bool(self._options.public_key_names) or None,
            **more,
        )

    def fetch_coordinators(self) -> int:
        """Return the number of transaction coordinators of the cluster; 0 if transactions are disabled."""
        try:
            found = self.fetch_partitions([COORDINATORS])
        except TopicNotFoundError:
            return 0
        return sum(at.partition >= 0 for at in found)

    def open_coordinator(self, number: int) -> Session:
        """Return the connection to the broker of a transaction coordinator, and have it loaded."""
        at = TopicPartition(COORDINATORS, number)
        session = self._lookup([at])[at]
        # Once per load would be enough. A request each time makes sure that a broker that just took over is ready.
        connect = partial(commands.TcClientConnectRequest, tc_id=number)
        loaded = session.request(connect, accepted(commands.TcClientConnectResponse))
        self.wait(loaded, f"TC_CLIENT_CONNECT of coordinator {number}")
        return session


def _is_fenced_by(error: MQSourceError, name: str) -> bool:
    """Return whether a producer of this name has exclusive access (by the broker's message, seen on 4.0.8)."""
    return (
        isinstance(error, BrokerError)
        and error.code == _PRODUCER_FENCED
        and error.broker_message.endswith(f"existing exclusive producer: {name}")
    )
