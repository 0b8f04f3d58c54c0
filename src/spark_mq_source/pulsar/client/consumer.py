"""Consumers of a broker: their subscriptions, and the queues of received messages."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from spark_mq_source.core.connection import expect
from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.net.inbox import Inbox
from spark_mq_source.pulsar.client.session import Answer, Session, accepted
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import SubscriptionType
from spark_mq_source.pulsar.protocol import commands

T = TypeVar("T")

KINDS: Final = {kind: commands.SubType[kind.title()] for kind in SubscriptionType}
"""The types of subscriptions, by those of the options."""

_body_of = operator.attrgetter("body")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription, and how consumers join it. The first consumer creates it if it does not exist.

    Attributes:
        name: its name. A non-durable subscription ends with its consumer and needs a unique name: a name in use joins
            the older cursor and ignores the start (seen on 4.0.8).
        kind: its type, which all consumers must agree on.
        initial: where it begins if it is created now.
        properties: stored with it if it is created now.
        priority_level: Shared: consumers with a higher number get messages only while those with lower ones have no
            permits. Failover: the active consumer is among those with the lowest number.
        key_ranges: Key_Shared: hash ranges of this consumer's keys, both ends included (STICKY); if empty, the broker
            divides the keys (AUTO_SPLIT).
        read_compacted: Exclusive and Failover: whether to read the compacted topic.
        creates_topic: whether a missing topic is created, with the broker's defaults.
        start: the first entry of a non-durable subscription; None for a durable one.

    Example:
        >>> Subscription("s", commands.SubType.Shared, consumer_name="spark-0").kind.name
        'Shared'
    """

    name: str
    kind: commands.SubType = commands.SubType.Exclusive
    initial: commands.InitialPosition = commands.InitialPosition.Latest
    properties: Mapping[str, str] = field(default_factory=dict)
    consumer_name: str | None = None
    priority_level: int = 0
    key_ranges: tuple[tuple[int, int], ...] = ()
    read_compacted: bool = False
    creates_topic: bool = False
    start: Position | None = None

    def command(self, topic_partition: TopicPartition, consumer_id: int, request_id: int) -> commands.Subscribe:
        """Return the SUBSCRIBE of one consumer."""
        meta = None
        if self.kind is commands.SubType.Key_Shared:
            mode = commands.KeySharedMode.STICKY if self.key_ranges else commands.KeySharedMode.AUTO_SPLIT
            meta = commands.KeySharedMeta(mode, tuple(commands.IntRange(*ends) for ends in self.key_ranges))
        return commands.Subscribe(
            topic=str(topic_partition),
            subscription=self.name,
            sub_type=self.kind,
            consumer_id=consumer_id,
            request_id=request_id,
            consumer_name=self.consumer_name,
            priority_level=self.priority_level or None,
            read_compacted=self.read_compacted or None,
            durable=self.start is None,
            start_message_id=None if self.start is None else commands.MessageId(self.start.ledger, self.start.entry),
            # With Earliest, a start past the end would restart at the beginning of the topic (seen on 4.0.8).
            initial_position=self.initial if self.start is None else commands.InitialPosition.Latest,
            # Only the option `createTopic` creates topics.
            force_topic_creation=self.creates_topic,
            key_shared_meta=meta,
            subscription_properties=commands.key_values(self.properties.items()),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a topic-partition at one moment, as the half-open range `(first, last]`.

    Attributes:
        first: the position just before the first message that still exists.
        last: the last message that can be delivered; EARLIEST if there is none.
    """

    first: Position
    last: Position


class BaseConsumer(ABC):
    """A consumer of this process on one topic-partition, with its queue of received messages.

    The driver's thread fills the queue; one other thread takes from it. While more than `queue_bytes` are queued, the
    connection is not read until half of them are taken: memory is bounded whatever the broker sends.

    Attributes:
        has_ended: whether the broker has reported that the topic is terminated and fully acknowledged.
    """

    def __init__(self, session: Session, consumer_id: int, topic_partition: TopicPartition, queue_bytes: int) -> None:
        self.topic_partition = topic_partition
        self.session = session
        self.has_ended = False
        self.taken_entries = 0
        self.taken_bytes = 0
        self._consumer_id = consumer_id
        self._inbox: Inbox[commands.Message] = Inbox(
            queue_bytes,
            size_of=lambda message: len(message.body),
            hold=session.pause_reading,
            let_go=session.resume_reading,
        )

    @property
    def address(self) -> str:
        """The broker's address."""
        return self.session.address

    def grant(self, messages: int) -> None:
        """Allow the broker to send `messages` more messages (FLOW); batches may exceed it.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self.session.send(commands.Flow(self._consumer_id, messages))

    def receive(self, *, max_bytes: int, timeout_seconds: float) -> list[commands.Message]:
        """Return messages in order of arrival, at least one and about `max_bytes`; none after `timeout_seconds`.

        Raises:
            MQSourceError: the consumer or its connection has ended, and everything received before is taken.
        """
        taken = self._inbox.take(max_bytes=max_bytes, timeout_seconds=timeout_seconds)
        self.taken_entries += len(taken)
        self.taken_bytes += sum(map(len, map(_body_of, taken)))
        return taken

    def _unbounded_until(self, asked: Future[T]) -> Future[T]:
        """Return an answer that arrives after the messages in transit; until then the queue may exceed its bound."""
        self._inbox.lift()
        asked.add_done_callback(lambda _: self._inbox.restore())
        return asked

    def request_stats(self) -> Future[commands.ConsumerStatsResponse]:
        """Request the statistics of this consumer and its subscription; see `ConsumerStats` for a danger.

        `msg_backlog` is the number of entries from the cursor to the end, across ledgers. It is exact if nothing was
        received; markers and aborted messages count (seen on broker 4.0.8).
        """
        return self._unbounded_until(
            self.session.request(
                partial(commands.ConsumerStats, consumer_id=self._consumer_id), accepted(commands.ConsumerStatsResponse)
            )
        )

    def request_bounds(self) -> Future[Bounds]:
        """Request the broker's cursor of this consumer (`first`) and the last message (`last`).

        The cursor of a consumer that never acknowledges stays where it was opened: if it moved, TTL, eviction or
        trimming moved it (seen on broker 4.0.8).

        The answer arrives after the messages in transit, so until then the queue may exceed its bound by the permits.
        """
        return self._unbounded_until(self._send_bounds())

    def _send_bounds(self) -> Future[Bounds]:
        return self.session.request(partial(commands.GetLastMessageId, self._consumer_id), _bounds_of)

    def request_close(self) -> Future[object]:
        """Send CLOSE_CONSUMER, which also ends a non-durable subscription."""
        # The queued messages are no longer taken, so they must not block the connection.
        self._inbox.lift()
        return self.session.close_consumer(self._consumer_id)

    def leave(self) -> None:
        """Close the consumer without waiting for the answer; if the connection is lost, it is closed already."""
        if not self.session.closed:
            self.request_close()

    # Callbacks of the session, in the driver's thread; they must not block.

    def deliver(self, messages: Sequence[commands.Message]) -> None:
        """Queue received messages."""
        self._inbox.put(messages, sum(map(len, map(_body_of, messages))))

    @abstractmethod
    def note_active(self, *, is_active: bool) -> None:
        """Handle ACTIVE_CONSUMER_CHANGE of a Failover subscription."""

    def fail(self, error: MQSourceError) -> None:
        """End the queue with an error; queued messages can still be taken."""
        self._inbox.fail(error)


class Consumer(BaseConsumer):
    """A consumer that reads from a position, and acknowledges cumulatively, if at all.

    Attributes:
        opened: the broker's cursor and the last message when it was opened.
        is_closed: whether it, or its connection, has ended.
        is_active: Failover: whether the broker has chosen this consumer; None while unknown.
        chosen: done when the broker has chosen it, or it has ended.
    """

    def __init__(self, session: Session, consumer_id: int, topic_partition: TopicPartition, queue_bytes: int) -> None:
        super().__init__(session, consumer_id, topic_partition, queue_bytes)
        self.opened = Bounds(EARLIEST, EARLIEST)
        self.is_closed = False
        self.is_active: bool | None = None
        self.chosen: Future[None] = Future()
        # Ledger and entry of the last received message; None before the first.
        self._arrived_at: tuple[int, int] | None = None
        # For each gap between runs of messages: the last message after it, and the request for the bounds sent then.
        self._after_gaps: deque[tuple[tuple[int, int], Future[Bounds]]] = deque()

    def request_entry(self) -> None:
        """Request one entry, which is queued whatever its size: it must not hold up those of other consumers.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self._inbox.lift()
        self.grant(1)

    def bounds_after_gap(self, ledger: int, entry: int) -> Future[Bounds]:
        """Return the bounds after the broker sent this entry, which does not follow the last one taken.

        They were requested when the entry arrived, not now: what the broker has removed since was sent before.
        """
        while self._after_gaps[0][0] < (ledger, entry):
            self._after_gaps.popleft()
        asked = self._after_gaps[0][1]
        # The answer arrives after the messages in transit, see `request_bounds`.
        return asked if asked.done() else self._unbounded_until(asked)

    def request_ack(self, position: Position) -> Future[object]:
        """Acknowledge everything up to and including an entry. The answer proves nothing: read the cursor back.

        The broker also confirms acknowledgements past the end or backwards (seen on 4.0.8).
        """
        until = (commands.MessageId(position.ledger, position.entry),)
        ack = partial(commands.Ack, self._consumer_id, commands.AckType.Cumulative, until)
        return self.session.request(ack, accepted(commands.AckResponse))

    def request_seek(self, target: int | Position) -> Future[object]:
        """Move the cursor to a publish time (ms), or before an entry; it is on disk when the broker answers.

        The broker closes the consumer before it answers (seen on 4.0.8).
        """
        if isinstance(target, int):
            seek = partial(commands.Seek, self._consumer_id, message_publish_time=target)
        else:
            entry = commands.MessageId(target.ledger, target.entry)
            seek = partial(commands.Seek, self._consumer_id, message_id=entry)
        return self.session.request(seek, accepted(commands.Success))

    def note_active(self, *, is_active: bool) -> None:
        """Handle ACTIVE_CONSUMER_CHANGE (the driver's thread)."""
        self.is_active = is_active
        if is_active and not self.chosen.done():
            self.chosen.set_result(None)

    def request_unsubscribe(self) -> Future[object]:
        """Send UNSUBSCRIBE, which deletes the subscription and closes the consumer."""
        self._inbox.lift()
        return self.session.unsubscribe(self._consumer_id)

    def deliver(self, messages: Sequence[commands.Message]) -> None:
        """Queue received messages (the driver's thread)."""
        last = messages[-1]
        before = self._arrived_at or (self.opened.first.ledger, self.opened.first.entry)
        self._arrived_at = (last.ledger_id, last.entry_id)
        # Entries of a ledger are numbered without gaps, so the ends of a run show whether it has one.
        if (last.ledger_id, last.entry_id - len(messages)) != before:
            self._after_gaps.append((self._arrived_at, self._send_bounds()))
        super().deliver(messages)

    def fail(self, error: MQSourceError) -> None:
        """End the queue with an error (the driver's thread); queued messages can still be taken."""
        self.is_closed = True
        if not self.chosen.done():
            self.chosen.set_exception(error)
        super().fail(error)


def open_consumer(
    session: Session, topic_partition: TopicPartition, subscription: Subscription, queue_bytes: int
) -> Answer[Consumer]:
    """Send SUBSCRIBE and GET_LAST_MESSAGE_ID together; the consumer has its bounds when the future is done."""
    opened: Answer[Consumer] = Answer(session)

    def place(consumer: Consumer, done: Future[Bounds]) -> None:
        error = done.exception()
        if error is not None:
            session.forget_consumer(consumer._consumer_id)
            opened.set_exception(error)
        else:
            consumer.opened = done.result()
            opened.set_result(consumer)

    def ask(done: Future[Consumer]) -> None:
        error = done.exception()
        if error is not None:
            opened.set_exception(error)
        else:
            done.result().request_bounds().add_done_callback(partial(place, done.result()))

    made = session.subscribe(
        lambda consumer_id: Consumer(session, consumer_id, topic_partition, queue_bytes),
        partial(subscription.command, topic_partition),
    )
    made.add_done_callback(ask)
    return opened


def _bounds_of(response: object) -> Bounds:
    answer = expect(response, commands.GetLastMessageIdResponse)
    mark, last = answer.consumer_mark_delete_position, answer.last_message_id
    return Bounds(
        EARLIEST if mark is None else Position(mark.ledger_id, mark.entry_id),
        Position(last.ledger_id, last.entry_id),
    )
