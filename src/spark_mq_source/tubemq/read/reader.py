"""One bounded range of one topic-partition as Arrow batches, without duplicates or loss.

A range is ``[start, end)`` in the index of the partition's store. Each fetch is immediately followed by its commit,
whose answer has the offset where the fetch ended; several of these pairs are in transit, and a broker answers in their
order. If a fetch goes past `end`, the first message at or after `end` is looked up, and the messages from there on are
left out: so the rows of a range are always the same, regardless of its division into fetches (seen on broker 2.4.0).

A partition has one reader per group, and a reader that vanished is kept for 30 s. So readers must not compete: a task
uses the first of the groups ``GROUP-read-0``, ``GROUP-read-1``, ... in which its partition is free, under its own
client id. Attempts at the same task, queries over the same topic and the group's consumers can read at the same time;
the positions are those of the range, never those of a group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import BrokerError, MQSourceError, RequestTimeoutError, ServiceNotReadyError
from spark_mq_source.core.shared_options import OnCorrupt
from spark_mq_source.net.resume import ResumingReader
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.tubemq.client.bounds import Bounds, fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.flow import FlowPace, FlowRules
from spark_mq_source.tubemq.client.reading_groups import register_in_any_group
from spark_mq_source.tubemq.client.session import PartitionConsumer
from spark_mq_source.tubemq.offsets import INDEX_BYTES, TopicPartition
from spark_mq_source.tubemq.options import WITH_MEMORY
from spark_mq_source.tubemq.payload.layout import MissingMessagesError, first_message
from spark_mq_source.tubemq.payload.messages import MessageDecoder
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import (
    SUCCESS,
    AuthorizedInfo,
    CommitOffsetResponse,
    GetMessageResponse,
    RegisterPartitionResponse,
)
from spark_mq_source.tubemq.protocol.error_codes import DUPLICATE_PARTITION, SERVER_CONSUME_SPEED_LIMIT

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.tubemq.options import TubeMQOptions


logger = logging.getLogger(__name__)

MAX_LIMIT_MS: Final = 10_000
"""Time for which flow control delays the next fetch."""

MAX_UNPROVEN: Final = 16
"""Maximum number of fetches without a reported start, after which the broker must confirm that nothing was deleted."""

FAILED_READS: Final = frozenset({0, 301, 500})
"""Codes of fetches that may succeed later (2.4.0, `MessageStore`, `MsgFileStore`); the Java client repeats them too.

0: a file could not be read, and what was read before is left out. 301: the messages have just been deleted, which is
reported when the partition is opened again. 500: a file could not be read, or the store is being closed.
"""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 0.5
"""Pauses between fetches while the broker has nothing to read before the end of the range."""


@dataclass(frozen=True, slots=True)
class TubeMQRange:
    """The work of one task: the messages of one topic-partition from `start` on, before `end`.

    Attributes:
        start: an offset; if the broker's first message is later, messages are lost.
        end: an offset, exclusive.
        authorized: the driver's authorization by a master.
        flow: the flow rules that the driver got.
        readers: number of tasks that read this partition at the same time.
        owns_store: whether it is known that each entry of the index is a message of this partition.

    Example:
        >>> str(TubeMQRange(TopicPartition("flights", 1, 0), Broker(1, "host", 8123), 280, 560))
        '1:flights:0 [280, 560)'
    """

    topic_partition: TopicPartition
    broker: Broker
    start: int
    end: int
    authorized: AuthorizedInfo | None = field(default=None, repr=False)
    flow: FlowRules | None = field(default=None, repr=False)
    readers: int = field(default=1, repr=False)
    owns_store: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.start}, {self.end})"


def read_range(
    options: TubeMQOptions, task: TubeMQRange, schema: pa.Schema, counters: Counters | None = None
) -> Iterator[pa.RecordBatch]:
    """Read one range, over a separate connection.

    Yields:
        Batches of `schema`, of at most `maxBatchRows` rows, and of about `maxBatchBytes` bytes and one fetch.

    Raises:
        DataLossError: messages of the range have been deleted, and `failOnDataLoss` is true.
        CorruptMessageError: a message cannot be decoded, also when fetched again.
        MQSourceError: the broker cannot be reached, or sends nothing, for `operationTimeout`; or it refuses.
    """
    with TubeMQClient(options, authorized=task.authorized, rules=task.flow) as client:
        try:
            yield from _RangeReader(client, options, task, schema, counters or Counters()).batches()
        except MQSourceError as error:
            raise error.within(f"tubemq: reading {task}") from error


def _all_there_is(client: TubeMQClient, options: TubeMQOptions, partition: BrokerPartition) -> Bounds:
    """Fetch the bounds of a partition, including messages that are only in memory."""
    (bounds,) = fetch_bounds(client, options, partitions_of([partition]), priority=WITH_MEMORY).values()
    return bounds


class _Cursor:
    """Fetches of one registered partition, in order, several in transit.

    A fetch with a message, or without one but with code 200, reports its start. One with code 404 does not, though it
    has moved on: if messages were deleted meanwhile, a broker silently moves the cursor to its first message (seen on
    2.4.0's `getOffset`). So after such fetches the broker must confirm that it still has the messages at their start.

    Attributes:
        position: end of the last fetch taken.
    """

    def __init__(
        self,
        client: TubeMQClient,
        options: TubeMQOptions,
        consumer: PartitionConsumer,
        start: int,
        pace: FlowPace | None = None,
    ) -> None:
        self.position = self.began = start
        self._pace = pace if pace is not None and pace.has_rules else None
        self._client = client
        self._options = options
        self._consumer = consumer
        # A fetch sent ahead could not wait as the rules demand.
        self._most = options.fetches_in_flight if self._pace is None else 1
        self._not_before = 0.0
        self._timeout_ms = options.operation_timeout_ms
        self._pairs: deque[tuple[Future[GetMessageResponse], Future[CommitOffsetResponse]]] = deque()
        """The pending fetches, each with its commit."""
        self._advance = 1
        self._pause = FIRST_PAUSE_SECONDS
        self._is_held_back = False

    def next_fetch(self, end: int) -> GetMessageResponse:
        """Return the next fetch that advanced, possibly without a message; the position is then the end of the fetch.

        Fetches that do not report their beginning are skipped, up to `MAX_UNPROVEN` and the end: the returned fetch is
        known to have left nothing out.

        Args:
            end: no fetch is requested ahead that would likely begin past this offset.

        Raises:
            RequestTimeoutError: the broker had nothing for `operationTimeout`.
            MQSourceError: the connection broke, the partition was lost, messages were removed, or the broker refuses.
        """
        patience = Deadline.after_ms(self._timeout_ms)
        unproven: list[int] = []
        while True:
            patience = self._wait_as_ruled(patience)
            self._prefetch(end)
            got, ended = self._wait(*self._pairs.popleft())
            default_ms = round(self._pause * 1000)
            wait_ms = None if self._pace is None else self._pace.wait_ms(got, default_ms)
            if got.err_code == SUCCESS and got.curr_offset != self.position:
                raise ServiceNotReadyError(
                    f"{self._consumer.address}: a fetch began at {got.curr_offset}, expected was {self.position}"
                )
            if ended > self.position:
                self._advance = max(ended - self.position, 1)
                self._pause = FIRST_PAUSE_SECONDS
                self._is_held_back = False
                if wait_ms and (got.err_code == SUCCESS or wait_ms != default_ms):
                    self._not_before = time.monotonic() + wait_ms / 1000
                self.began, self.position = self.position, ended
                if got.err_code != SUCCESS:
                    unproven.append(self.began)
                    patience = Deadline.after_ms(self._timeout_ms)
                    if self.position < end and len(unproven) < MAX_UNPROVEN:
                        continue
                if unproven:
                    self._check_retained(unproven[0])
                return got
            seconds = self._pause
            if wait_ms is not None and wait_ms != default_ms:
                self._not_before, seconds = time.monotonic() + wait_ms / 1000, 0.0
            if got.err_code == SERVER_CONSUME_SPEED_LIMIT:
                # A deliberate delay does not count as silence.
                patience = Deadline.after_ms(self._timeout_ms)
                limit_ms = min(max(got.min_limit_time, 1), MAX_LIMIT_MS)
                seconds = limit_ms / 1000
                if not self._is_held_back:
                    self._is_held_back = True
                    logger.info("tubemq: %s: flow control lets it wait for %d ms", self._consumer.partition, limit_ms)
            elif patience.expired:
                raise RequestTimeoutError(
                    f"{self._consumer.address}: nothing to read at {self.position} for {self._timeout_ms} ms "
                    f"({got.err_code}: {got.err_msg}), though the range ends at {end}"
                )
            self._rest(seconds)

    def _check_retained(self, position: int) -> None:
        """Check that the broker has deleted nothing from a position on.

        Raises:
            ServiceNotReadyError: it has; opening the partition again reports the loss.
        """
        bounds = _all_there_is(self._client, self._options, self._consumer.partition)
        if bounds.first > position:
            raise ServiceNotReadyError(
                f"{self._consumer.address}: its first message is now at {bounds.first}, after {position}, "
                f"where fetches have found none"
            )

    def _wait(
        self, fetch: Future[GetMessageResponse], commit: Future[CommitOffsetResponse]
    ) -> tuple[GetMessageResponse, int]:
        """Return an answer to a fetch, and where it ended."""
        what = f"fetch at {self.position}"
        try:
            # The commit's answer comes last: waiting for the fetch first would wake the thread twice.
            ended = self._client.wait(commit, f"commit of the {what}").curr_offset
        except MQSourceError:
            if fetch.done():
                self._fetched(fetch, what)  # if this failed, its error explains the commit's
            raise
        return self._fetched(fetch, what), ended

    def _fetched(self, fetch: Future[GetMessageResponse], what: str) -> GetMessageResponse:
        try:
            return self._client.wait(fetch, what)
        except BrokerError as error:
            error.retryable = error.retryable or error.code in FAILED_READS
            raise

    def _wait_as_ruled(self, patience: Deadline) -> Deadline:
        """Wait as the flow rules demand, which does not count as silence of the broker; return the later deadline."""
        seconds = self._not_before - time.monotonic() if self._pace is not None else 0.0
        if seconds <= 0:
            return patience
        threading.Event().wait(seconds)
        return Deadline(patience.at + seconds)

    def _prefetch(self, end: int) -> None:
        """Keep as many fetches in transit as likely end within the range, and at least one."""
        escapes = self._pace is not None and self._pace.escapes_cluster
        while not self._pairs or (
            len(self._pairs) < self._most and self.position + len(self._pairs) * self._advance < end
        ):
            self._pairs.append(self._consumer.get_and_commit(escapes=escapes))

    def _rest(self, seconds: float) -> None:
        # Fetches in transit get the same answer; then there is one at a time until the position moves again.
        self._advance = 1 << 62
        if not self._pairs:
            threading.Event().wait(seconds)  # the broker does not announce new messages
            self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)


class _RangeReader(ResumingReader[TubeMQRange, int, PartitionConsumer]):
    def __init__(
        self, client: TubeMQClient, options: TubeMQOptions, task: TubeMQRange, schema: pa.Schema, counters: Counters
    ) -> None:
        super().__init__(task, task.start, timeout_ms=options.operation_timeout_ms, counters=counters)
        tp = task.topic_partition
        filters = options.filters_of(tp.topic)
        self._client = client
        self._options = options
        self._partition = BrokerPartition(task.broker, tp.topic, tp.partition)
        self._decoder = MessageDecoder(
            schema,
            topic=tp.topic,
            broker_id=tp.broker_id,
            partition=tp.partition,
            filters=filters,
            time_zone=options.message_time_zone,
        )
        self._end = task.end
        self._is_counted = task.owns_store and not filters
        self._pace = FlowPace(client.flow_rules, filtered=bool(filters), readers=task.readers)

    def _is_finished(self) -> bool:
        return self._done >= self._end

    def _may_pass(self, error: MQSourceError) -> bool:
        # Another client may take over a partition without a heartbeat for 30 s; there are other groups.
        return error.retryable or getattr(error, "code", None) == DUPLICATE_PARTITION

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self._decoder.corrupt_messages:
            logger.warning("%s: %d corrupt messages", self._task, self._decoder.corrupt_messages)
        yield from self._taken(at_least_rows=1)

    def _open(self) -> PartitionConsumer:
        # After a lost connection this is another group: the former one stays occupied for 30 s. In that one, a broker
        # may still execute a fetch of the lost connection, whose length the next commit takes instead of that of its
        # own fetch: rows came twice, and could be left out (seen on a busy broker 2.4.0).
        consumer, response = register_in_any_group(
            self._client, self._options, self._partition, self._done, priority=self._client.read_priority
        )
        try:
            self._check(consumer, response)
        except MQSourceError:
            self._leave(consumer)
            raise
        return consumer

    def _check(self, consumer: PartitionConsumer, response: RegisterPartitionResponse) -> None:
        """Compare the broker's bounds with the plan's: a broker silently moves registrations to existing messages."""
        at, most = response.curr_offset, response.max_offset
        if at > self._done:
            self._report_loss(
                f"{consumer.address}: the messages between {self._done} and {at} are gone: the topic's deletePolicy "
                f"removed them"
            )
            self._done = at
        if most < self._end:
            # An earlier plan may include messages that are not flushed yet: `lowLatency`, or the group's priority, has
            # changed since (2.4.0 counts only flushed messages for `FLUSHED_ONLY`).
            most = _all_there_is(self._client, self._options, self._partition).last
        if at < self._done or most < self._end:
            self._report_loss(
                f"{consumer.address}: it has messages up to {most} only, but had them up to {self._end} before: a "
                f"killed broker loses the messages in its memory, and reuses their offsets"
            )
            self._end = most if at == self._done < most else self._done

    def _drain(self, consumer: PartitionConsumer) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one registration, until the range is finished or an error ends it."""
        options, decoder = self._options, self._decoder
        cursor = _Cursor(self._client, options, consumer, self._done, self._pace)
        while self._done < self._end:
            with waiting(self._counters):
                got = cursor.next_fetch(self._end)
                stop_at = None
                if cursor.position > self._end:
                    stop_at = self._find_end(consumer, cursor.position)
            self._counters.entries += 1
            self._counters.entry_bytes += len(got.body)
            # A message that is corrupt again when fetched again is corrupt on the broker: the option applies.
            decoder.on_corrupt = options.on_corrupt if self._is_distrusted() else OnCorrupt.FAIL
            end = min(cursor.position, self._end)
            # A broker deletes data and index separately, and leaves out messages without data (seen on 2.4.0).
            expected = (end - self._done) // INDEX_BYTES if self._is_counted else None
            try:
                decoder.decode(got.body, cursor.began, stop_at, expected)
            except MissingMessagesError as error:
                if not self._is_distrusted():
                    raise
                self._report_loss(
                    f"{consumer.address}: {error}: the topic's deletePolicy removed the others, the topic had more "
                    f"partitions when they were sent, or the broker cannot deliver them (damaged, or sent with flag 1 "
                    f"and without attributes)"
                )
                decoder.decode(got.body, cursor.began, stop_at)
            self._done = end
            yield from self._taken(at_least_rows=options.max_batch_rows, at_least_bytes=options.max_batch_bytes)

    def _find_end(self, consumer: PartitionConsumer, passed: int) -> tuple[int, int] | None:
        """Return id and checksum of the first message from the end on; None if there is none before `passed`."""
        # The messages passed may be only in memory, or being flushed: a fetch that begins within flushed data includes
        # them, one that begins at its end must request memory (seen on 2.4.0).
        filters = self._options.filters_of(self._partition.topic)
        answer = consumer.register(curr_offset=self._end, filters=filters, qry_priority_id=WITH_MEMORY)
        at = self._client.wait(answer, f"register of {self._partition}").curr_offset
        if at != self._end:
            # It existed a moment ago: the broker has just deleted or lost something, which reopening reports.
            raise ServiceNotReadyError(f"{consumer.address}: registered at {at} and not at {self._end}")
        cursor = _Cursor(self._client, self._options, consumer, at)
        while cursor.position < passed:
            got = cursor.next_fetch(at)
            found = first_message(got.body)
            if found is not None:
                return found
        return None

    def _taken(self, *, at_least_rows: int, at_least_bytes: int = 1 << 62) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows, if there are that many, in batches within the limits."""
        if self._decoder.rows >= at_least_rows or self._decoder.nbytes >= at_least_bytes:
            batch = self._decoder.take_batch()
            for at in range(0, batch.num_rows, self._options.max_batch_rows):
                yield batch.slice(at, self._options.max_batch_rows)

    def _leave(self, consumer: PartitionConsumer) -> None:
        try:
            self._client.wait(consumer.unregister(), f"unregister of {self._partition}")
        except MQSourceError as error:
            # After a lost connection the partition stays occupied in that group for 30 s: see `_open`.
            logger.debug("%s: %s", self._task, error)

    def _report_loss(self, what: str) -> None:
        loss = f"{what}; set failOnDataLoss=false to continue with the remaining messages"
        self._options.report_loss(loss, task=self._task)
