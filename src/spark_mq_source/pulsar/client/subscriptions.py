"""Subscriptions: consumers, and the positions and backlogs that a broker reports only to consumers."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from spark_mq_source.core.errors import BrokerError, ResourceBusyError, ServiceNotReadyError
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client.consumer import BaseConsumer, Bounds, Consumer, Subscription, open_consumer
from spark_mq_source.pulsar.client.queue_consumer import QueueConsumer
from spark_mq_source.pulsar.client.session import Answer, ConsumerT, Session
from spark_mq_source.pulsar.client.topics import Topics
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position, TopicPartition
from spark_mq_source.pulsar.protocol import commands

T = TypeVar("T")


_SAME_NAME = "Durable subscription with the same name already exists"
"""The broker's error text for a subscription that is not durable (4.0.8)."""

_PAST_EVERY_LEDGER = 2**62

DELIVERY_MS = 1000
"""Time to wait for a message of a topic-partition that should have none."""

MAX_ENTRIES_AT_ONCE = 16
"""Number of entries fetched at once: each is as large as the broker accepts, 5 MiB by default."""


class Subscriptions(Topics):
    """Requests of consumers, and requests that need a consumer."""

    def subscription(self, name: str | None = None, **how: Any) -> Subscription:  # noqa: ANN401 - as declared there
        """Return a subscription for consumers of this client, with a unique name unless one is given."""
        return Subscription(
            name or f"{self._options.subscription_base}-{uuid.uuid4().hex}",
            consumer_name=self._consumer_name,
            read_compacted=self._options.read_compacted,
            **how,
        )

    def fetch_bounds(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the first and last position of each topic-partition; the first is EARLIEST with `readCompacted`."""
        bounds = self._probe(topic_partitions, {})
        ends = self.fetch_terminated_ends({tp: b.first for tp, b in bounds.items() if b.last == EARLIEST})
        return self.with_compacted(bounds | {tp: Bounds(bounds[tp].first, end) for tp, end in ends.items()})

    def with_compacted(self, bounds: dict[TopicPartition, Bounds]) -> dict[TopicPartition, Bounds]:
        """Return bounds that include the compacted ledger, with `readCompacted`.

        A cursor is at the first original message that is left. The compacted ledger keeps older ones, whose originals
        are deleted, and is read from its beginning only with the start EARLIEST (4.0.8, CompactedTopicUtils).
        """
        if not self._options.read_compacted:
            return bounds
        return {tp: Bounds(EARLIEST, found.last) for tp, found in bounds.items()}

    def fetch_terminated_ends(self, firsts: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Return the ends of those topic-partitions that have messages, but for which the last message is unknown.

        GET_LAST_MESSAGE_ID has no answer for a topic that was terminated while its newest ledger was empty and then
        loaded again (seen on 4.0.8). A subscription past every ledger has its cursor at the beginning of that ledger,
        and older ledgers are kept only if they have messages.

        Args:
            firsts: the positions just before the first message that still exists.
        """
        ends = self._fetch_stored_ends(firsts)
        return {tp: end for tp, end in ends.items() if end.entry < 0 and end.ledger > firsts[tp].ledger}

    def confirmed(self, look: Callable[[], dict[TopicPartition, Bounds]]) -> dict[TopicPartition, Bounds]:
        """Return the bounds that `look` returns, once each topic-partition without a last message delivers none.

        While a broker takes the first snapshot of a topic's transactions, GET_LAST_MESSAGE_ID has no answer for the
        topic. The broker repeats that answer until a transaction ends there (seen on 4.0.8).

        Raises:
            ServiceNotReadyError: one still delivers a message after `operationTimeout`.
            MQSourceError: any other error of `look`.
        """

        def ask() -> dict[TopicPartition, Bounds]:
            bounds = look()
            empty = [tp for tp, found in bounds.items() if found.last == EARLIEST]
            starts = {tp: EARLIEST for tp, end in self._fetch_stored_ends(empty).items() if end.entry >= 0}
            for tp, position in self.fetch_first_entries(starts, DELIVERY_MS).items():
                raise ServiceNotReadyError(
                    f"{tp}: the broker reports no last message, but delivers {position}; it may do this until a "
                    f"transaction of the topic ends: try again then"
                )
            # A message that comes late is no proof of an empty topic, if the broker reports a last one by now.
            if starts and any(look()[tp].last > EARLIEST for tp in starts):
                raise ServiceNotReadyError("the broker has found the last message only now")
            return bounds

        return retrying(ask, deadline=self._deadline())

    def fetch_positions_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        """Return the position before the first entry published at or after each time; if there is none, the last.

        Publish times are from the producers' clocks and need not be in order; the broker searches as if they were. With
        broker entry metadata, it compares the broker's own times (both seen on 4.0.8).
        """
        # Times before 1970 cannot be sent: the field is unsigned.
        found = self._probe(list(timestamps_ms), {tp: max(0, ms) for tp, ms in timestamps_ms.items()})
        return {topic_partition: bounds.first for topic_partition, bounds in found.items()}

    def _probe(
        self, topic_partitions: Sequence[TopicPartition], timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Bounds]:
        """Return the bounds that a consumer sees if opened at the start, or moved to a time; close it again."""

        def ask(names: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
            sessions = self._lookup(names)

            def subscribed(subscriptions: Mapping[TopicPartition, Subscription]) -> dict[TopicPartition, Consumer]:
                asked = ((tp, self._subscribe(sessions[tp], tp, one)) for tp, one in subscriptions.items())
                return self.wait_for(asked, "SUBSCRIBE")

            subscriptions = {tp: self.subscription(start=EARLIEST) for tp in names}
            consumers = subscribed(subscriptions)
            sought = [tp for tp in names if tp in timestamps_ms]
            others = subscribed({tp: self.subscription(start=EARLIEST) for tp in sought})
            self.wait_for(((tp, consumers[tp].request_seek(timestamps_ms[tp])) for tp in sought), "SEEK")
            # SEEK has closed the consumers; under the same name the cursor is kept.
            consumers |= subscribed({tp: subscriptions[tp] for tp in sought})
            # If the topic is unloaded meanwhile, the broker forgets the cursor, and the new one is at the beginning. An
            # unload also closes the other consumers (4.0.8, PersistentTopic).
            unloaded = [str(tp) for tp, other in others.items() if other.is_closed]
            for consumer in others.values():
                consumer.leave()
            self.wait_for(((tp, consumers[tp].request_close()) for tp in names), "CLOSE_CONSUMER")
            if unloaded:
                raise ServiceNotReadyError(
                    f"{', '.join(unloaded)}: unloaded while the broker searched it for a time: try again"
                )
            return {tp: consumers[tp].opened for tp in names}

        return self._in_windows(topic_partitions, ask)

    def fetch_stored(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Return the last entry at or before each position, delivered or not; a later one if that no longer exists.

        This is the cursor of a subscription that starts with the entry after the position (seen on broker 4.0.8).
        """

        def ask() -> dict[TopicPartition, Position]:
            consumers = self.open_consumers({tp: at.next_entry for tp, at in positions.items()})
            for consumer in consumers.values():
                consumer.leave()
            return {tp: consumer.opened.first for tp, consumer in consumers.items()}

        return retrying(ask, deadline=self._deadline())

    def _fetch_stored_ends(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the last entry of each topic-partition, delivered or not; entry -1 of a ledger that is empty."""
        return self.fetch_stored(dict.fromkeys(topic_partitions, Position(_PAST_EVERY_LEDGER, 0)))

    def fetch_backlogs(
        self, starts: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, int]:
        """Return the number of entries after each start up to its end, which is the last message; at least 1.

        Across ledgers it is the broker's count: entries after the end and markers count too.
        """
        # If the start is within a batch, a part of its entry is still to be read.
        near = {
            tp: ends[tp].entry - start.entry + (start.batch >= 0)
            for tp, start in starts.items()
            if ends[tp].ledger == start.ledger
        }
        far = {tp: start for tp, start in starts.items() if tp not in near}

        def ask() -> dict[TopicPartition, int]:
            consumers = self.open_consumers(far)
            try:
                backlogs = self.wait_for_backlogs(consumers)
            finally:
                for consumer in consumers.values():
                    consumer.leave()
            # The cursor is before the start's entry if that still exists.
            return {tp: backlogs[tp] - (consumers[tp].opened.first < far[tp] and far[tp].batch < 0) for tp in far}

        counted = near | retrying(ask, deadline=self._deadline())
        return {tp: max(1, counted[tp]) for tp in starts}

    def fetch_first_entries(
        self, starts: Mapping[TopicPartition, Position], timeout_ms: int | None = None
    ) -> dict[TopicPartition, Position]:
        """Return the first entry at or after each position, if one arrives in this time or `operationTimeout`."""
        return self.sample_first_entries(starts, lambda _, entry: Position(entry.ledger_id, entry.entry_id), timeout_ms)

    def sample_first_entries(
        self,
        starts: Mapping[TopicPartition, Position],
        take: Callable[[TopicPartition, commands.Message], T],
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, T]:
        """Return what `take` makes of the first entry at or after each position; a few entries are held at once."""

        def look(window: Sequence[TopicPartition]) -> dict[TopicPartition, T]:
            found: dict[TopicPartition, T] = {}
            consumers = self.open_consumers({tp: starts[tp] for tp in window})
            waiting: deque[tuple[TopicPartition, Consumer]] = deque()
            # Of one deadline: there may be nothing for delivery at many positions.
            deadline = self._deadline() if timeout_ms is None else Deadline.after_ms(timeout_ms)

            def receive() -> None:
                tp, consumer = waiting.popleft()
                messages = consumer.receive(max_bytes=1, timeout_seconds=deadline.remaining_seconds())
                if messages:
                    found[tp] = take(tp, messages[0])

            try:
                for tp, consumer in consumers.items():
                    consumer.request_entry()
                    waiting.append((tp, consumer))
                    if len(waiting) == MAX_ENTRIES_AT_ONCE:
                        receive()
                while waiting:
                    receive()
            finally:
                for consumer in consumers.values():
                    consumer.leave()
            return found

        return self._in_windows(list(starts), look)

    def wait_for_backlogs(self, consumers: Mapping[TopicPartition, BaseConsumer]) -> dict[TopicPartition, int]:
        """Return the number of entries from the cursor of each consumer to the end.

        Raises:
            MQSourceError: no answer in time, a refusal, or a consumer has ended.
        """
        answers = self.wait_for(((tp, one.request_stats()) for tp, one in consumers.items()), "backlog")
        return {tp: answer.msg_backlog for tp, answer in answers.items()}

    def wait_for_durable_backlogs(self, consumers: Mapping[TopicPartition, BaseConsumer]) -> dict[TopicPartition, int]:
        """Return the same for consumers of a durable subscription, and 1 for a backlog that is wrongly 0 or negative.

        Acknowledged entries that the topic does not count make a backlog too low until the topic is loaded anew (seen
        on 4.0.8). The cursor is then before the last message.
        """
        found = self.wait_for_backlogs(consumers)
        empty = [tp for tp, entries in found.items() if entries <= 0]
        bounds = self.wait_for(((tp, consumers[tp].request_bounds()) for tp in empty), "the last message")
        return found | {tp: int(at.first < at.last) for tp, at in bounds.items()}

    def open_consumer(self, topic_partition: TopicPartition, start: Position) -> Consumer:
        """Open one consumer, see `open_consumers`."""
        return self.open_consumers({topic_partition: start})[topic_partition]

    def open_consumers(
        self,
        starts: Mapping[TopicPartition, Position],
        *,
        durable: Subscription | None = None,
        waits_for_turn: bool = True,
    ) -> dict[TopicPartition, Consumer]:
        """Open consumers whose first entry is that of their start: the caller skips messages up to the start.

        Unless `durable`, they are exclusive and end with their consumers, and each has a unique name: a name in use
        joins the older cursor and ignores the start. A durable subscription ignores the start (both seen on 4.0.8).
        Waits for a subscription that another client holds, unless told otherwise.
        """

        def subscribe(session: Session, tp: TopicPartition) -> Future[Consumer]:
            return self._subscribe(session, tp, durable or self.subscription(start=starts[tp]))

        return self._open_all(list(starts), subscribe, waits_for_turn=waits_for_turn)

    def _subscribe(self, session: Session, at: TopicPartition, subscription: Subscription) -> Future[Consumer]:
        return open_consumer(session, at, subscription, self._options.receive_queue_bytes)

    def open_queue_consumer(self, topic_partition: TopicPartition, subscription: Subscription) -> QueueConsumer:
        """Open one consumer, see `open_queue_consumers`."""
        return self.open_queue_consumers([topic_partition], subscription)[topic_partition]

    def open_queue_consumers(
        self,
        topic_partitions: Sequence[TopicPartition],
        subscription: Subscription,
    ) -> dict[TopicPartition, QueueConsumer]:
        """Open consumers of a subscription whose messages are acknowledged one by one.

        Waits for an Exclusive subscription that another client holds.

        Raises:
            ResourceBusyError: others hold the subscription or some of its keys, or use it with another type.
        """
        queue_bytes = self._options.receive_queue_bytes

        def subscribe(session: Session, tp: TopicPartition) -> Future[QueueConsumer]:
            return session.subscribe(
                lambda consumer_id: QueueConsumer(session, consumer_id, tp, subscription, queue_bytes),
                partial(subscription.command, tp),
            )

        return self._open_all(topic_partitions, subscribe)

    def _open_all(
        self,
        topic_partitions: Sequence[TopicPartition],
        subscribe: Callable[[Session, TopicPartition], Future[ConsumerT]],
        *,
        waits_for_turn: bool = True,
    ) -> dict[TopicPartition, ConsumerT]:
        opening: list[Future[ConsumerT]] = []
        consumers: dict[TopicPartition, ConsumerT] = {}

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[ConsumerT]]:
            sessions = self._lookup(names)
            asked = {tp: subscribe(sessions[tp], tp) for tp in names}
            opening.extend(asked.values())
            return asked

        def close_unless_kept(opened: Future[ConsumerT]) -> None:
            if opened.exception() is None and opened.result() not in kept:
                opened.result().leave()

        try:
            final = () if waits_for_turn else (ResourceBusyError,)
            consumers = self._gather(topic_partitions, ask, "SUBSCRIBE", final)
        finally:
            # Consumers that open too late, or although another one has failed for good, must be closed.
            kept = set(consumers.values())
            for opened in opening:
                opened.add_done_callback(close_unless_kept)
        return consumers

    def delete_subscription(self, topic_partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
        """Delete a durable subscription, unless it has a consumer; return its backlog in each topic-partition.

        The backlog is the broker's count of entries, across ledgers, with markers. The protocol does not show whether
        the subscription existed: a missing one has a backlog of 0.

        Raises:
            ResourceBusyError: a consumer is connected; the subscription is deleted nowhere.
        """
        consumers = self.open_consumers(
            dict.fromkeys(topic_partitions, EARLIEST), durable=self.subscription(name), waits_for_turn=False
        )
        backlogs = self.wait_for_durable_backlogs(consumers)
        self.wait_for(((tp, one.request_unsubscribe()) for tp, one in consumers.items()), "UNSUBSCRIBE")
        return backlogs

    def fetch_waiting(self, topic_partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
        """Return the backlogs of a durable subscription in entries, without taking any message.

        The broker answers CONSUMER_STATS only to a consumer. So one joins briefly, without permits: the broker sends
        nothing to such a consumer of a Shared subscription. In a Failover subscription it has the lowest rank, so that
        the broker does not choose it while there are others. Exclusive allows no other consumer, and with Key_Shared
        another one would be given a part of the keys (all seen on 4.0.8).

        Raises:
            BrokerError: the durable subscription does not exist.
            ResourceBusyError: its type does not allow another consumer.
        """
        found = self.fetch_subscribed(topic_partitions, name)
        lacking = [str(tp) for tp in topic_partitions if tp not in found]
        if lacking:
            raise BrokerError(f"{', '.join(lacking)}: there is no durable subscription {name}")
        waiting: dict[TopicPartition, int] = {}
        for kind in (commands.SubType.Shared, commands.SubType.Failover):
            missing = [tp for tp in topic_partitions if tp not in waiting]
            durable = self.subscription(name, kind=kind, priority_level=INT32_MAX)
            waiting |= self._in_windows(missing, partial(self._fetch_shared, durable=durable))
        unknown = [str(tp) for tp in topic_partitions if tp not in waiting]
        if unknown:
            raise ResourceBusyError(
                f"{', '.join(unknown)}: the consumers of subscription {name} are of type Exclusive or Key_Shared, "
                f"which another one cannot join without disturbing them: set adminUrl"
            )
        return waiting

    def _fetch_shared(
        self, topic_partitions: Sequence[TopicPartition], durable: Subscription
    ) -> dict[TopicPartition, int]:
        """Return the backlog of a subscription in those topic-partitions in which a consumer of this type may join."""
        sessions = self._lookup(topic_partitions)
        opening = {tp: self._subscribe(sessions[tp], tp, durable) for tp in topic_partitions}
        joined: dict[TopicPartition, Consumer] = {}
        for tp, opened in opening.items():
            with suppress(ResourceBusyError):
                joined[tp] = self.wait(opened, f"SUBSCRIBE of {tp}")
        found = self.wait_for_durable_backlogs(joined)
        self.wait_for(((tp, one.request_close()) for tp, one in joined.items()), "CLOSE_CONSUMER")
        return found

    def fetch_subscribed(self, topic_partitions: Sequence[TopicPartition], name: str) -> list[TopicPartition]:
        """Return those topic-partitions that have this durable subscription, without creating one.

        The broker refuses a non-durable subscription of the same name. If none exists, the non-durable one is removed
        again at once (both seen on 4.0.8).
        """

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[bool]]:
            sessions = self._lookup(names)
            return {tp: self._request_is_durable(sessions[tp], tp, name) for tp in names}

        found = self._gather(topic_partitions, ask, "SUBSCRIBE")
        return [tp for tp in topic_partitions if found[tp]]

    def _request_is_durable(self, session: Session, topic_partition: TopicPartition, name: str) -> Future[bool]:
        result: Answer[bool] = Answer(session)

        def settle(opened: Future[Consumer]) -> None:
            error = opened.exception()
            if error is None:
                opened.result().leave()
                result.set_result(False)
            elif (
                isinstance(error, BrokerError)
                and error.code_name == "NotAllowedError"
                and error.broker_message.startswith(_SAME_NAME)
            ):
                result.set_result(True)
            elif isinstance(error, ResourceBusyError):
                result.set_result(False)  # another client's non-durable reader does not count
            else:
                result.set_exception(error)

        self._subscribe(session, topic_partition, self.subscription(name, start=LATEST)).add_done_callback(settle)
        return result
