"""Consumers of a broker: what they are subscribed to, and the queue of what they were sent."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from spark_mq_source.core.connection import expect
from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.net.inbox import Inbox
from spark_mq_source.pulsar.client.session import Answer, Session, accepted
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.protocol import commands

T = TypeVar("T")

_body_of = operator.attrgetter("body")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription, and how consumers join it; one that does not exist is made by the first consumer.

    Attributes:
        name: of the subscription. One that is not durable is gone when its consumer is closed, and needs a name that is
            used once only: a name in use joins the older cursor and ignores the start (seen on 4.0.8).
        kind: its type, which all consumers must agree on.
        initial: where it begins if it is made now.
        properties: kept with it if it is made now.
        consumer_name: as the broker's statistics show it.
        priority_level: Shared: consumers of a higher number get messages only while those of lower ones have no
            permits. Failover: the active one is among those of the lowest number.
        key_ranges: Key_Shared: the hashes of this consumer's keys, both ends included (STICKY); none lets the broker
            divide them (AUTO_SPLIT).
        read_compacted: Exclusive and Failover: whether to read the compacted topic.
        creates_topic: whether a topic that does not exist is created, as the broker is configured to.
        start: the first entry of a subscription that is not durable; None for a durable one.

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
        """SUBSCRIBE of one consumer."""
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
            # With Earliest a start past the end would begin the topic again (seen on 4.0.8).
            initial_position=self.initial if self.start is None else commands.InitialPosition.Latest,
            # Only who asks for it makes topics (`createTopic`).
            force_topic_creation=self.creates_topic,
            key_shared_meta=meta,
            subscription_properties=tuple(
                commands.KeyValue(key=key, value=value) for key, value in self.properties.items()
            ),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a topic-partition held at one moment, as the half-open range `(first, last]`.

    Attributes:
        first: just before the first message that is kept.
        last: the last message that can be delivered; EARLIEST where there is none.
    """

    first: Position
    last: Position


class BaseConsumer(ABC):
    """A consumer of this process on one topic-partition, and the queue of what it was sent.

    The driver's thread fills the queue; one other thread takes from it. When more than `queue_bytes` wait, the
    connection is no longer read from until half is taken: memory is bounded whatever the broker sends.

    Attributes:
        topic_partition: what it reads.
        session: the connection it is on.
        has_ended: whether the broker has said that the topic is terminated and nothing of it is left to acknowledge.
        taken_entries: how many were taken from the queue.
        taken_bytes: of them.
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
        """Lets the broker send `messages` more messages (FLOW); batches may overshoot it.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self.session.send(commands.Flow(self._consumer_id, messages))

    def receive(self, *, max_bytes: int, timeout_seconds: float) -> list[commands.Message]:
        """Messages in the order they came, at least one and about `max_bytes` at most; none after `timeout_seconds`.

        Raises:
            MQSourceError: the consumer or its connection has ended, once everything that came before is taken.
        """
        taken = self._inbox.take(max_bytes=max_bytes, timeout_seconds=timeout_seconds)
        self.taken_entries += len(taken)
        self.taken_bytes += sum(map(len, map(_body_of, taken)))
        return taken

    def _unbounded_until(self, asked: Future[T]) -> Future[T]:
        """An answer that comes behind the messages under way: the queue may pass its bound until it is here."""
        self._inbox.lift()
        asked.add_done_callback(lambda _: self._inbox.restore())
        return asked

    def request_stats(self) -> Future[commands.ConsumerStatsResponse]:
        """Ask for this consumer's statistics and its subscription's; see `ConsumerStats` for the danger in it.

        `msg_backlog` is how many entries the broker has from the cursor to the end, across ledgers. Exact if nothing
        was received; markers and aborted messages count (seen on broker 4.0.8).
        """
        return self._unbounded_until(
            self.session.request(
                lambda request_id: commands.ConsumerStats(request_id, self._consumer_id),
                accepted(commands.ConsumerStatsResponse),
            )
        )

    def request_close(self) -> Future[object]:
        """CLOSE_CONSUMER; a subscription that is not durable is gone with it."""
        # Nobody takes what is queued any more, so that must not hold the connection back.
        self._inbox.lift()
        return self.session.close_consumer(self._consumer_id)

    def leave(self) -> None:
        """Close the consumer without waiting for the answer; a lost connection has closed it."""
        if not self.session.closed:
            self.request_close()

    # What the session tells, in the driver's thread; nothing of it may block.

    def deliver(self, messages: Sequence[commands.Message]) -> None:
        """Queues what arrived."""
        self._inbox.put(messages, sum(map(len, map(_body_of, messages))))

    @abstractmethod
    def note_active(self, *, is_active: bool) -> None:
        """The broker has chosen this consumer of a Failover subscription, or another one."""

    def note_end(self) -> None:
        """The topic is terminated, and this consumer's subscription has all of it behind it."""
        self.has_ended = True

    def fail(self, error: MQSourceError) -> None:
        """Ends the queue with an error; what is queued can still be taken."""
        self._inbox.fail(error)


class Consumer(BaseConsumer):
    """One subscription of this process, which reads from a position on and acknowledges cumulatively, if at all.

    Attributes:
        opened: where the broker had placed its cursor when it was opened, and the last message then.
        is_closed: whether it, or its connection, has ended.
        is_active: of a Failover subscription: whether the broker has chosen this consumer; None before it has said so.
    """

    def __init__(self, session: Session, consumer_id: int, topic_partition: TopicPartition, queue_bytes: int) -> None:
        super().__init__(session, consumer_id, topic_partition, queue_bytes)
        self.opened = Bounds(EARLIEST, EARLIEST)
        self.is_closed = False
        self.is_active: bool | None = None
        self._chosen: Future[None] = Future()
        # Ledger and entry of the last message that arrived; None before the first.
        self._arrived_at: tuple[int, int] | None = None
        # Behind each run of messages with a gap: its last message, and the bounds that the broker was asked for then.
        self._after_gaps: deque[tuple[tuple[int, int], Future[Bounds]]] = deque()

    def request_bounds(self) -> Future[Bounds]:
        """Asks where the broker has this consumer's cursor (`first`) and what the last message is (`last`).

        The cursor of a consumer that never acknowledges stays where it was opened: if it moved, the broker moved it,
        by TTL, eviction or trimming (seen on broker 4.0.8).

        The answer comes behind the messages under way, so the queue may pass its bound until it is here: by what is
        granted and not yet sent.
        """
        return self._unbounded_until(self._ask_bounds())

    def bounds_after_gap(self, ledger: int, entry: int) -> Future[Bounds]:
        """The bounds as the broker had them after it sent this entry, which is not the one after the last one taken.

        They were asked for when the entry arrived, not now: what the broker has removed since was sent before.
        """
        while self._after_gaps[0][0] < (ledger, entry):
            self._after_gaps.popleft()
        asked = self._after_gaps[0][1]
        # The answer comes behind what is under way, see `request_bounds`.
        return asked if asked.done() else self._unbounded_until(asked)

    def _ask_bounds(self) -> Future[Bounds]:
        return self.session.request(
            lambda request_id: commands.GetLastMessageId(self._consumer_id, request_id), _bounds_of
        )

    def request_ack(self, position: Position) -> Future[object]:
        """Acknowledges everything up to and with an entry. The answer says nothing: read the cursor back.

        The broker answers acknowledgements past the end or backwards as it does good ones (seen on 4.0.8).
        """
        return self.session.request(
            lambda request_id: commands.Ack(
                self._consumer_id,
                commands.AckType.Cumulative,
                (commands.MessageId(position.ledger, position.entry),),
                request_id,
            ),
            accepted(commands.AckResponse),
        )

    def request_seek(self, target: int | Position) -> Future[object]:
        """Puts the cursor to a publish time (ms), or before an entry; that is on disk when the broker answers.

        The broker closes the consumer before it answers (seen on 4.0.8).
        """

        def command(request_id: int) -> commands.Seek:
            if isinstance(target, int):
                return commands.Seek(self._consumer_id, request_id, message_publish_time=target)
            entry = commands.MessageId(target.ledger, target.entry)
            return commands.Seek(self._consumer_id, request_id, message_id=entry)

        return self.session.request(command, accepted(commands.Success))

    def chosen(self) -> Future[None]:
        """Done once the broker has chosen this consumer of a Failover subscription, or the consumer has ended."""
        return self._chosen

    def note_active(self, *, is_active: bool) -> None:
        """The broker has chosen this consumer of a Failover subscription, or another one (the driver's thread)."""
        self.is_active = is_active
        if is_active and not self._chosen.done():
            self._chosen.set_result(None)

    def request_unsubscribe(self) -> Future[object]:
        """UNSUBSCRIBE; the subscription is gone, and the consumer with it."""
        self._inbox.lift()
        return self.session.unsubscribe(self._consumer_id)

    def deliver(self, messages: Sequence[commands.Message]) -> None:
        """Queues what arrived (the driver's thread)."""
        last = messages[-1]
        before = self._arrived_at or (self.opened.first.ledger, self.opened.first.entry)
        self._arrived_at = (last.ledger_id, last.entry_id)
        # Entries of a ledger are numbered without gaps, so the ends of a run tell whether it has one.
        if (last.ledger_id, last.entry_id - len(messages)) != before:
            self._after_gaps.append((self._arrived_at, self._ask_bounds()))
        super().deliver(messages)

    def fail(self, error: MQSourceError) -> None:
        """Ends the queue with an error (the driver's thread); what is queued can still be taken."""
        self.is_closed = True
        if not self._chosen.done():
            self._chosen.set_exception(error)
        super().fail(error)


def open_consumer(
    session: Session, topic_partition: TopicPartition, subscription: Subscription, queue_bytes: int
) -> Answer[Consumer]:
    """SUBSCRIBE and GET_LAST_MESSAGE_ID in one go; the consumer knows its bounds when the future is done."""
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
