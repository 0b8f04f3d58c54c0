"""A consumer of a subscription whose messages are acknowledged one by one, alone or with other consumers.

For the broker, a subscription is a queue. It sends each message to one consumer, which holds it until it acknowledges
it, returns it or ends; a returned message goes to another consumer. The unit is the entry: a message, a chunk, or a
producer's batch, which is acknowledged as a whole here.

Seen on broker 4.0.8 (tests/behaviours/pulsar/test_queue_consumer.py):

- An ACK is answered when it is in the broker's memory, not on its disk. It need not come from the consumer that
  received the message, and a second one is harmless. An ACK that crosses CLOSE_CONSUMER is not answered.
- A cumulative ACK of Exclusive and Failover covers everything before it, whichever consumer received it, and also works
  for a consumer that is no longer active. Without it, entries that compaction removed stay in the backlog permanently.
- Exclusive and Failover consumers get no redelivery counts.
- Redelivery counts are in the memory of the topic's broker. They are forgotten when the last consumer of the
  subscription leaves. REDELIVER_UNACKNOWLEDGED_MESSAGES increments them, by which other clients return messages; the
  end of a consumer, which is our way, does not.
- A consumer that joins a Failover subscription only for a request needs a higher `priority_level` than the readers.
- All messages of a non-persistent topic have the id 0:0, and are delivered at most once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial

from spark_mq_source.core.errors import MQSourceError, ServiceNotReadyError
from spark_mq_source.net.inbox import Inbox
from spark_mq_source.pulsar.client.consumer import BaseConsumer, Subscription
from spark_mq_source.pulsar.client.session import Session, accepted
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.protocol import commands

MAX_IDS = 1000
"""Maximum number of message ids in one command. With 10, a message costs twice the processor time that it does with 100
or more (14, 7.7, 7.3 and 7.0 us a message with 10, 100, 1000 and 10,000); larger commands delay those after them."""


class QueueConsumer(BaseConsumer):
    """One consumer of a subscription, with its queue of received messages.

    The queue is unbounded while the caller waits for an answer that arrives after the messages in transit.

    Attributes:
        is_active: Failover: whether the broker has chosen it. Always true for other types.
        was_replaced: Failover: whether it was active before, and another one is now.

    Example:
        ::

            consumer = client.open_queue_consumer(topic_partition, Subscription("s", SubType.Shared))
            consumer.grant(1000)
            messages = consumer.receive(max_bytes=8 << 20, timeout_seconds=1)
            consumer.acknowledge([(message.ledger_id, message.entry_id) for message in messages]).result(30)
    """

    def __init__(
        self,
        session: Session,
        consumer_id: int,
        topic_partition: TopicPartition,
        subscription: Subscription,
        queue_bytes: int,
    ) -> None:
        super().__init__(session, consumer_id, topic_partition, queue_bytes)
        self.is_active = subscription.kind is not commands.SubType.Failover
        self.was_replaced = False
        self._unsettled: set[Acknowledgement] = set()

    @property
    def unfinished_bytes(self) -> int:
        """The number of received bytes of a frame that is not complete yet; read in another thread, so an estimate."""
        return self.session.connection.unfinished_bytes

    def acknowledge(
        self, entries: Sequence[tuple[int, int]], damage: commands.ValidationError | None = None
    ) -> Acknowledgement:
        """Acknowledge whole entries (ledger, entry) individually, without waiting for the answers.

        They need not have been sent to this consumer. The broker logs `damage`, the reason why they cannot be read.

        Returns:
            Done when the broker has answered for all of them. After an error, any of them may be unacknowledged:
                acknowledge them again, on another consumer if this one has ended.
        """
        parts = (entries[n : n + MAX_IDS] for n in range(0, len(entries), MAX_IDS))
        if damage is None:
            return self._acknowledge(partial(commands.AckEntries, self._consumer_id, part) for part in parts)
        return self._acknowledge(
            partial(
                commands.Ack,
                self._consumer_id,
                commands.AckType.Individual,
                tuple(commands.MessageId(*entry) for entry in part),
                validation_error=damage,
            )
            for part in parts
        )

    def acknowledge_until(self, entry: tuple[int, int]) -> Acknowledgement:
        """Acknowledge an entry and everything before it; only for Exclusive and Failover."""
        until = (commands.MessageId(*entry),)
        return self._acknowledge([partial(commands.Ack, self._consumer_id, commands.AckType.Cumulative, until)])

    def _acknowledge(self, made: Iterable[Callable[..., commands.Ack | commands.AckEntries]]) -> Acknowledgement:
        acknowledgement = Acknowledgement(self._inbox)
        self._unsettled.add(acknowledgement)
        acknowledgement.add_done_callback(self._unsettled.discard)
        acknowledgement.expect([self.session.request(make, accepted(commands.AckResponse)) for make in made])
        return acknowledgement

    def request_close(self) -> Future[object]:
        """Send CLOSE_CONSUMER: unacknowledged messages go to other consumers, or wait. The queue is dropped.

        Acknowledgements sent before are answered before. Those without an answer have failed when the future is done:
        the broker had already closed the consumer when it unloaded the topic.
        """
        self._inbox.close()
        error = ServiceNotReadyError(f"{self.address}: the consumer was closed here")
        self._inbox.fail(error)
        closing = super().request_close()
        closing.add_done_callback(lambda _: self._fail_unsettled(error))
        return closing

    def close(self, *, timeout_seconds: float) -> None:
        """Close, and wait for the broker; on a lost connection it has closed the consumer, or will."""
        with contextlib.suppress(MQSourceError, FutureTimeoutError):
            self.request_close().result(timeout_seconds)

    def note_active(self, *, is_active: bool) -> None:
        """Handle ACTIVE_CONSUMER_CHANGE (the driver's thread)."""
        self.was_replaced = self.was_replaced or (self.is_active and not is_active)
        self.is_active = is_active

    def fail(self, error: MQSourceError) -> None:
        """End the queue with an error (the driver's thread); queued messages can still be taken."""
        self._fail_unsettled(error)
        super().fail(error)

    def _fail_unsettled(self, error: MQSourceError) -> None:
        # The broker does not answer an ACK of a consumer that it has closed (seen on 4.0.8).
        for acknowledgement in self._unsettled.copy():
            acknowledgement.settle(error)


class Acknowledgement(Future[object]):
    """The answers to the ACKs of `QueueConsumer.acknowledge`.

    The consumer's queue is unbounded while a caller waits for the result: the answers arrive after other messages.
    """

    def __init__(self, inbox: Inbox[commands.Message]) -> None:
        super().__init__()
        self._inbox = inbox
        self._lock = threading.Lock()
        self._left = 0
        self._failure: BaseException | None = None

    def result(self, timeout: float | None = None) -> object:
        """See `Future.result`."""
        if self.done():
            return super().result()
        self._inbox.lift()
        try:
            return super().result(timeout)
        finally:
            self._inbox.restore()

    def expect(self, answers: Sequence[Future[object]]) -> None:
        """Complete when all of these are done."""
        self._left = len(answers)
        if not answers:
            self.settle(None)
        for answer in answers:
            answer.add_done_callback(self._count)

    def _count(self, answer: Future[object]) -> None:
        failure = answer.exception()
        with self._lock:
            self._failure = self._failure or failure
            self._left -= 1
            is_last = not self._left
        if is_last:
            self.settle(self._failure)

    def settle(self, failure: BaseException | None) -> None:
        """Complete, unless already done."""
        with self._lock:
            if self.done():
                return
            if failure is None:
                self.set_result(None)
            else:
                self.set_exception(failure)
