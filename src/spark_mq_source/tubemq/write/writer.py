"""Writes the rows of one task until the brokers have acknowledged them: partitions in turn, limits, resending.

Each message goes to the next partition of its topic, in turn over all working brokers. Every message is one request,
and many requests are pipelined on the single connection to a broker. A message that a broker temporarily refuses, drops
or never answers is sent again, to the same partition or another one. So nothing is lost, but a message whose answer was
lost is stored twice, and messages keep the order of the rows only without resending.

Rows with a key or a partition go to one partition, and keep their order: if one of them is not stored, those after it
are sent again as well, stored or not, once the broker has answered all (`_Target.broken`).

Answers arrive in other threads, which share `_Target` with the task's thread, under one lock.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_mq_source.core.columns import default_topic
from spark_mq_source.core.errors import ConnectionLostError, MQSourceError, RequestTimeoutError, UnwritableRowError
from spark_mq_source.core.time_zones import time_zone
from spark_mq_source.core.utf8 import check_texts
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.net.sending import Writer
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.tubemq.client.bounds import fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import ClusterMeta, ProducerMember
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY
from spark_mq_source.tubemq.payload.columns import COLUMNS
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import SUCCESS, SendMessage
from spark_mq_source.tubemq.protocol.error_codes import (
    CERTIFICATE_FAILURE,
    SERVER_RECEIVE_OVERFLOW,
    error_for_code,
    error_for_exception,
)
from spark_mq_source.tubemq.write.receipts import WriteReport

if TYPE_CHECKING:
    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import TaskAttempt
    from spark_mq_source.tubemq.client.bounds import Bounds, Partitions
    from spark_mq_source.tubemq.client.session import Deliver, Receipt, Session
    from spark_mq_source.tubemq.offsets import TopicPartition
    from spark_mq_source.tubemq.options import TubeMQOptions

logger = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 256
"""Number of rows encoded and sent at once; more do not increase the rate."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 1.0
"""Pause after a failure: the first and the longest; doubled until a message is acknowledged."""

MIN_ASIDE_SECONDS, MAX_ASIDE_SECONDS = 1.0, 30.0
"""Time for which a failed broker is set aside: at first, and at most; doubled each time that it fails again."""

_TEXT_COLUMNS: Final = ("topic", "key", "message_type", "attributes")
_RESERVED: Final = ("$msgType$", "$msgTime$")
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""The characters that Java's `String.trim` removes."""
_SEPARATORS: Final = str.maketrans(",=", ";:")
_EPOCH: Final = datetime(1970, 1, 1)
_MINUTE_US: Final = 60_000_000
_MINUTES_KEPT: Final = 10_000
# Codes of errors that are not retryable on the same broker, but another broker may accept the message (403: no such
# topic there, 423: publishing disabled, 500: see the broker's log).
_ELSEWHERE: Final = frozenset({403, 423, 500})
_new_tuple = tuple.__new__


class RowEncoder:
    r"""Encoder of rows as messages.

    Attributes are pairs of texts. The first ones are the message's type and time, as in the Java client (2.4.0).
    Ambiguous texts are refused, as in that client.

    Example:
        >>> import pyarrow as pa
        >>> batch = pa.record_batch({"value": [b"v"], "message_type": ["a"]})
        >>> list(RowEncoder("demo").encode(batch))
        [('demo', b'\x00\x00\x00\x0b$msgType$=av', 1, 'a', None)]
    """

    def __init__(self, topic: str | None, zone: str = "UTC") -> None:
        self._topic = topic
        self._zone = time_zone(zone)
        self._minutes: dict[tuple[int, bool], str] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes, int, str | None, str | None]]:
        """Yield topic, data, flag, message type and message time of each row.

        Raises:
            OptionError: a column is unknown or not writable, or ``value`` is missing.
            UnwritableRowError: a row cannot become a message.
        """
        COLUMNS.check(batch.schema, written=True)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        values = columns["value"].cast(pa.binary()).to_pylist()
        rows = batch.num_rows
        topics = self._topics(columns.get("topic"), rows)
        if len(columns) == 1 + ("topic" in columns):
            for topic, value in zip(topics, values, strict=True):
                if not value:
                    raise _empty()
                yield topic, value, 0, None, None
            return
        nothing: list[None] = [None] * rows
        types = columns["message_type"].to_pylist() if "message_type" in columns else nothing
        times = self._times(columns["message_time"]) if "message_time" in columns else nothing
        attributes = columns["attributes"].to_pylist() if "attributes" in columns else nothing
        for topic, value, message_type, message_time, pairs in zip(
            topics, values, types, times, attributes, strict=True
        ):
            text = _encode_attributes(message_type, message_time, pairs)
            if value is None or not (value or text):
                raise _empty()
            if text:
                yield topic, len(text).to_bytes(4, "big") + text + value, 1, message_type, message_time
            else:
                yield topic, value, 0, None, None

    def _topics(self, column: pa.Array | None, rows: int) -> Iterator[str]:
        if column is None:
            return itertools.repeat(default_topic(self._topic, "tubemq"), rows)
        return (default_topic(self._topic, "tubemq") if name is None else name for name in column.to_pylist())

    def _times(self, column: pa.Array) -> Iterator[str | None]:
        is_local = column.type.tz is None
        for time_us in column.cast(pa.int64()).to_pylist():
            yield None if time_us is None else self._minute(time_us, is_local)

    def _minute(self, time_us: int, is_local: bool) -> str:
        """Format a time since 1970 as yyyyMMddHHmm, in the encoder's zone unless it is already local."""
        minute = time_us // _MINUTE_US, is_local
        if minute in self._minutes:
            return self._minutes[minute]
        try:
            moment = _EPOCH + timedelta(microseconds=time_us)
            if not is_local:
                moment = moment.replace(tzinfo=timezone.utc).astimezone(self._zone)
        except OverflowError:
            raise UnwritableRowError("tubemq: a row has a message_time outside the years 1 to 9999") from None
        text = f"{moment.year:04}{moment:%m%d%H%M}"
        # An offset of the local mean time, Shanghai's until 1901, has seconds: its minutes are not those of UTC.
        if not (moment.utcoffset() or timedelta(0)) % timedelta(minutes=1):
            if len(self._minutes) >= _MINUTES_KEPT:
                self._minutes.clear()
            self._minutes[minute] = text
        return text


def _encode_attributes(
    message_type: str | None, message_time: str | None, pairs: Sequence[tuple[str, str | None]] | None
) -> bytes:
    parts = []
    if message_type is not None:
        _check_attribute("message_type", message_type)
        if message_type != message_type.strip(_TRIMMED):
            # 2.4.0, BrokerServiceServer: the index has the hash of the trimmed type, and filters are compared exactly.
            raise UnwritableRowError(
                f"tubemq: a row has {message_type!r} as message_type: no filter would find it, because a broker "
                f"ignores white space at its ends; remove it"
            )
        parts.append(f"$msgType$={message_type}")
    if message_time is not None:
        parts.append(f"$msgTime$={message_time}")
    for key, value in pairs or ():
        if _has_reserved_name(key, value or ""):
            raise UnwritableRowError(
                f"tubemq: a row has the attribute {key}={value}, with a name of TubeMQ's own: set the column "
                f"message_type or message_time instead"
            )
        _check_attribute("the key of an attribute", key)
        _check_attribute(f"the attribute {key!r}", value)
        parts.append(f"{key}={value}")
    return ",".join(parts).encode()


def _has_reserved_name(key: str, value: str) -> bool:
    """Return whether Java's client takes an attribute for the type or time (2.4.0, `Message.parseSystemHeader`)."""
    return any(name in key or name in value for name in _RESERVED)


def writable_attributes(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return attributes in which characters that TubeMQ's text of attributes cannot hold are replaced or left out.

    Example:
        >>> writable_attributes({"REASON": "field a: 1, not 2", "n": "a=b", "$msgType$": "t", "empty": ""})
        {'REASON': 'field a: 1; not 2', 'n': 'a:b'}
    """
    texts = {key.translate(_SEPARATORS): text.translate(_SEPARATORS) for key, text in pairs.items() if text is not None}
    return {
        key: text for key, text in texts.items() if key.strip() and text.strip() and not _has_reserved_name(key, text)
    }


def _check_attribute(what: str, text: str | None) -> None:
    if text is None or not text.strip() or "," in text or "=" in text:
        raise UnwritableRowError(f"tubemq: a row has {text!r} as {what}: it must not be blank, or contain , or =")


def _empty() -> UnwritableRowError:
    # A broker 2.4.0 refuses it with 400.
    return UnwritableRowError(
        "tubemq: a row has a NULL value, or an empty one without attributes, and TubeMQ has no empty messages"
    )


def _places(batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, int | None, int | None]] | None:
    """Return key, broker id and partition of each row; None if no column has them."""
    if not {"key", "broker_id", "partition"} & set(batch.schema.names):
        return None
    nothing = pa.nulls(batch.num_rows)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys = columns.get("key", nothing).cast(pa.binary()).to_pylist()
    return zip(keys, *(columns.get(name, nothing).to_pylist() for name in ("broker_id", "partition")), strict=True)


def _place_of(send: SendMessage) -> tuple[str, int]:
    return send.topic_name, send.partition_id


class _Target:
    """The messages pending at one broker. For the task's thread, under the lock.

    Attributes:
        pending_rows: messages sent and not answered.
        pending_bytes: bytes of these.
        outbox: messages to send next, together.
        most_rows: maximum of `pending_rows`: `maxPendingMessages`, or fewer for a slow broker, because brokers drop
            messages that they reach too late (seen on broker 2.4.0).
        trusted: whether the broker acknowledges; if not, it is tried with one message at a time.
        aside_until: the time before which a broker that failed is not tried again, in monotonic seconds.
        ordered: topics and partitions whose messages keep their order.
        broken: those of them in which a message was not stored: later ones are sent again, even if stored.
        again: messages of `ordered` to send again, in the order of the answers, when no message is pending.
        unsent: messages of `ordered` to send after these.
    """

    def __init__(self, broker: Broker, writer: TubeMQWriter) -> None:
        self.broker = broker
        self.pending_rows = 0
        self.pending_bytes = 0
        self.outbox: list[SendMessage] = []
        self.most_rows = writer._options.max_pending_messages
        self.trusted = True
        self.aside_until = self._aside_seconds = 0.0
        self.links: list[_Link] = []
        self.ordered: set[tuple[str, int]] = set()
        self.broken: set[tuple[str, int]] = set()
        self.again: list[SendMessage] = []
        self.unsent: list[SendMessage] = []
        self._writer = writer

    def has_room(self, rows: int, size: int) -> bool:
        """Return whether this many more messages may be pending; a single one always may, whatever its size."""
        return self.pending_rows == 0 or (
            self.pending_rows + rows <= self.most_rows
            and self.pending_bytes + size <= self._writer._options.max_pending_bytes
        )

    def failed(self) -> None:
        """Set the broker aside for a while."""
        self.trusted = False
        now = time.monotonic()
        if now >= self.aside_until:
            # Many messages fail at once with a broker: they count as one failure.
            self._aside_seconds = min(max(MIN_ASIDE_SECONDS, 2 * self._aside_seconds), MAX_ASIDE_SECONDS)
            self.aside_until = now + self._aside_seconds

    def acknowledged(self, rows: int) -> None:
        """Trust the broker, which has acknowledged `rows` messages, and raise `most_rows` a little."""
        self.trusted = True
        self.aside_until = self._aside_seconds = 0.0
        self.most_rows = min(self._writer._options.max_pending_messages, self.most_rows + max(1, rows // 4))

    def link(self, session: Session) -> _Link:
        """Return the target over this connection."""
        if not self.links or self.links[-1].session is not session:
            link = _Link(session)
            link.deliver = partial(self._writer._deliver, self, link)
            self.links.append(link)
        return self.links[-1]


@dataclass(slots=True)
class _Link:
    """A target on one connection, which never outlives the broker's process.

    Attributes:
        deliver: takes the outcomes; one function for all messages, so that those that arrive together come together.
        stored_rows: messages acknowledged on this connection and not known to be on the broker's disk.
    """

    session: Session
    deliver: Deliver = field(init=False)
    stored_rows: int = 0


class _Topic:
    """The partitions of a topic.

    Attributes:
        turn: counter of messages, which selects the next partition.
        used: the partitions to which messages may have been sent.
    """

    def __init__(self, name: str, turn: int) -> None:
        self.name = name
        self.turn = turn
        self.used: set[BrokerPartition] = set()
        self._meta: ClusterMeta | None = None
        self._partitions: list[BrokerPartition] = []
        self._sorted: list[BrokerPartition] = []

    def partitions(self, meta: ClusterMeta) -> list[BrokerPartition]:
        """Return the writable partitions from the master's last answer, alternating between brokers."""
        if meta is not self._meta:
            self._meta = meta
            by_broker: dict[Broker, list[BrokerPartition]] = {}
            for partition in meta.partitions(self.name):
                by_broker.setdefault(partition.broker, []).append(partition)
            rounds = itertools.zip_longest(*by_broker.values())
            found = [partition for one in rounds for partition in one if partition is not None]
            # A master that has just started may not know the brokers yet: keep the previous partitions.
            self._partitions = found or self._partitions
            self.used.update(found)
            self._sorted = sorted(self.used)
        return self._partitions

    def place(self, key: bytes | None, broker_id: int | None, partition_id: int | None) -> BrokerPartition | None:
        """Return the partition for a row's columns; None if it may be any. A key's depends on all partitions.

        Raises:
            UnwritableRowError: there is no such partition, or there are several.
        """
        if partition_id is None and broker_id is None:
            return None if key is None else self._sorted[zlib.crc32(key) % len(self._sorted)]
        found = [
            one for one in self._sorted if one.partition_id == partition_id and broker_id in {None, one[0].broker_id}
        ]
        if len(found) == 1:
            return found[0]
        where = f"a row is for partition {partition_id} of topic {self.name}"
        if found:
            brokers = ", ".join(str(one.broker.broker_id) for one in found)
            raise UnwritableRowError(f"tubemq: {where}, which brokers {brokers} have: set the column broker_id as well")
        where += "" if broker_id is None else f" on broker {broker_id}"
        known = ", ".join(f"{one.broker.broker_id}:{one.partition_id}" for one in self._sorted)
        raise UnwritableRowError(f"tubemq: {where}, but its partitions (broker_id:partition) are {known}")


class TubeMQWriter(Writer["TubeMQOptions", WriteReport]):
    """Writer of the rows of one task, see `net.sending.Writer`. Tasks begin with different partitions.

    Attributes:
        report: the receipts, with `logReceipts`.
    """

    def __init__(self, options: TubeMQOptions, attempt: TaskAttempt, counters: Counters | None = None) -> None:
        super().__init__(options, attempt, counters)
        self._client = TubeMQClient(options)
        self._encoder = RowEncoder(options.topic, options.message_time_zone)
        self._sent_addr = 0
        self._producer: ProducerMember | None = None
        self._topics: dict[str, _Topic] = {}
        self.report = WriteReport()
        self._targets: dict[Broker, _Target] = {}
        # Shared with the threads that deliver answers, under the lock:
        self._again: list[SendMessage] = []
        self._reason: MQSourceError | None = None
        self._fatal: MQSourceError | None = None
        self._renew_since: commands.AuthorizedInfo | None = None
        self._last_progress = 0.0
        self._failures = 0

    def close(self) -> None:
        """Close the connections without waiting for answers; see `flush`."""
        if self._producer is not None:
            self._producer.close()
        self._client.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; wait while `maxPendingMessages` or `maxPendingBytes` are pending at a broker.

        Raises:
            OptionError: a column is unknown or not writable, or ``value`` is missing.
            UnwritableRowError: a row cannot become a message, is too large for its topic, or has no topic.
            TopicNotFoundError: a topic is on no broker.
            MQSourceError: a broker refused a message permanently, or acknowledged none within `sendTimeout`.
        """
        try:
            check_texts(batch, _TEXT_COLUMNS, self.rows)
        except UnwritableRowError as error:
            to = f": writing to {self._options.topic}" if "topic" not in batch.schema.names else ""
            raise error.within(f"tubemq{to}") from None
        self.rows += batch.num_rows
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            self._write_some(batch.slice(start, ROWS_AT_ONCE))

    def flush(self) -> None:
        """Wait until the brokers have acknowledged all messages, and resend those they have not.

        Raises:
            MQSourceError: a broker refused a message permanently, or acknowledged none within `sendTimeout`; with
                `waitForDisk`, acknowledged messages may be lost, or were not on disk within `sendTimeout`.
        """
        self._wait_until(lambda: not any(target.pending_rows for target in self._targets.values()))
        if self._options.wait_for_disk:
            self._wait_for_disk()

    def finish(self) -> WriteReport:
        """Wait as in `flush`; return the receipts and the number of rows.

        Raises:
            MQSourceError: as for `flush`.
        """
        self.flush()
        self.report.rows = self.rows
        return self.report

    # -- routing

    def _write_some(self, batch: pa.RecordBatch) -> None:
        chosen: dict[str, tuple[_Topic, Sequence[BrokerPartition], int]] = {}
        auth_info = None
        client_id, sent_addr = "", 0
        places = _places(batch)
        for name, data, flag, message_type, message_time in self._encoder.encode(batch):
            known = chosen.get(name)
            if known is None:
                producer, topic = self._open(name)
                known = chosen[name] = (
                    topic,
                    self._working(topic.partitions(producer.meta)),
                    producer.max_bytes(name) or 0,
                )
                client_id, sent_addr = producer.client_id, self._sent_addr
                auth_info = self._client.authorization.for_broker()
            topic, partitions, largest = known
            if largest and len(data) > largest:
                raise UnwritableRowError(
                    f"tubemq: a row for topic {name} has {len(data)} bytes with its attributes, but the master allows "
                    f"at most {largest}"
                )
            place = topic.place(*next(places)) if places is not None else None
            if place is None:
                place = partitions[topic.turn % len(partitions)]
                topic.turn += 1
            else:
                self._target(place.broker).ordered.add((name, place.partition_id))
            broker, _, partition_id = place
            self._target(broker).outbox.append(
                _new_tuple(
                    SendMessage,
                    (
                        client_id,
                        name,
                        partition_id,
                        data,
                        flag,
                        zlib.crc32(data) & 0x7FFFFFFF,
                        sent_addr,
                        message_type,
                        message_time,
                        auth_info,
                    ),
                )
            )
        for target in self._targets.values():
            if target.outbox:
                self._send(target)

    def _open(self, name: str) -> tuple[ProducerMember, _Topic]:
        try:
            if self._producer is None:
                self._producer = self._client.enter(ProducerMember(self._client.masters, [name]))
                address = self._client.masters.local_address()
                self._sent_addr = int.from_bytes(IPv4Address(address).packed, "big", signed=True)
            topic = self._topics.get(name)
            if topic is None:
                producer = self._producer
                if not producer.meta.partitions(name):
                    deadline = Deadline.after_ms(self._options.operation_timeout_ms)
                    retrying(lambda: producer.add_topics([name]), deadline=deadline)
                topic = self._topics[name] = _Topic(name, self._attempt.partition)
        except MQSourceError as error:
            raise error.within(f"tubemq: writing to {name}") from error
        return self._producer, topic

    def _working(self, partitions: Sequence[BrokerPartition]) -> Sequence[BrokerPartition]:
        """Return the partitions on brokers that work or can be tried now; all of them if there are none."""
        bad = {
            target.broker
            for target in self._targets.values()
            if not target.trusted and (target.pending_rows or time.monotonic() < target.aside_until)
        }
        return [one for one in partitions if one.broker not in bad] or partitions if bad else partitions

    def _target(self, broker: Broker) -> _Target:
        target = self._targets.get(broker)
        if target is None:
            target = self._targets[broker] = _Target(broker, self)
        return target

    # -- sending and resending

    def _send(self, target: _Target) -> None:
        sends, target.outbox = target.outbox, []
        at = 0
        while at < len(sends):
            some, size = self._within_limits(target, sends[at:])
            self._wait_until(partial(self._can_send, target, len(some), size))
            if not target.trusted:
                with self._arrived:
                    for send in sends[at:]:
                        (target.unsent if _place_of(send) in target.ordered else self._again).append(send)
                return
            self._send_now(target, some, size)
            at += len(some)

    def _can_send(self, target: _Target, rows: int, size: int) -> bool:
        return not target.trusted or target.has_room(rows, size)

    def _within_limits(self, target: _Target, sends: Sequence[SendMessage]) -> tuple[Sequence[SendMessage], int]:
        """Return as many messages as may be pending at once: usually all."""
        size = sum(len(send.data) for send in sends)
        while len(sends) > 1 and (len(sends) > target.most_rows or size > self._options.max_pending_bytes):
            sends = sends[: len(sends) // 2]
            size = sum(len(send.data) for send in sends)
        return sends, size

    def _send_now(self, target: _Target, sends: Sequence[SendMessage], size: int) -> None:
        with self._arrived:
            if not any(other.pending_rows for other in self._targets.values()) and not self._failures:
                self._last_progress = time.monotonic()
            target.pending_rows += len(sends)
            target.pending_bytes += size
        self._counters.entries += len(sends)
        self._counters.entry_bytes += size
        try:
            session = self._client.broker(target.broker)
        except MQSourceError as error:
            self._deliver(target, None, [(send, error) for send in sends])
            return
        if self._options.wait_for_disk:
            # Later messages would not help.
            self._check_links([link for link in target.links if link.stored_rows])
            session.is_kept = True
        session.send_messages(sends, target.link(session).deliver)

    def _deliver(self, target: _Target, link: _Link | None, receipts: Sequence[Receipt]) -> None:
        """Handle the results of messages sent to a target's broker; called by any thread."""
        refused: list[Receipt] = []
        size = 0
        for receipt in receipts:
            size += len(receipt[0].data)
            answer = receipt[1]
            if type(answer) is not commands.SendMessageResponse or answer.err_code != SUCCESS:
                refused.append(receipt)
        with self._arrived:
            self._note(target, receipts)
            target.pending_rows -= len(receipts)
            target.pending_bytes -= size
            if len(refused) < len(receipts):
                target.acknowledged(len(receipts) - len(refused))
                if link is not None:
                    link.stored_rows += len(receipts) - len(refused)
                self._last_progress = time.monotonic()
                self._failures = 0
            if any(isinstance(answer, RequestTimeoutError) for _, answer in refused):
                target.most_rows = max(1, target.most_rows // 2)
            for send, answer in receipts if target.broken or (refused and target.ordered) else refused:
                if type(answer) is commands.SendMessageResponse and answer.err_code == SUCCESS:
                    if _place_of(send) in target.broken:
                        target.again.append(send)
                else:
                    self._refuse(target, send, self._error_of(target, answer))
            self._wake(is_due=bool(refused or target.broken))

    def _note(self, target: _Target, receipts: Sequence[Receipt]) -> None:
        """Add receipts to the report, if they are to be logged; call under the lock."""
        if self._options.log_receipts:
            for send, answer in receipts:
                if type(answer) is commands.SendMessageResponse and answer.err_code == SUCCESS:
                    self.report.add(target.broker.broker_id, send, answer)

    @staticmethod
    def _error_of(target: _Target, answer: commands.Response | MQSourceError) -> MQSourceError:
        if isinstance(answer, MQSourceError):
            return answer
        address = f"broker {target.broker}"
        if isinstance(answer, commands.RpcException):
            return error_for_exception(answer.exception_name, answer.stack_trace, address)
        return error_for_code(answer.err_code, answer.err_msg, address)

    def _refuse(self, target: _Target, send: SendMessage, error: MQSourceError) -> None:
        """Handle a message that was not stored, or may not be; call under the lock."""
        code = getattr(error, "code", None)
        if code == CERTIFICATE_FAILURE:
            self._renew_since = send.auth_info
        elif code == SERVER_RECEIVE_OVERFLOW:
            # The store flushes its memory, which takes milliseconds: the broker works.
            pass
        elif error.retryable or code in _ELSEWHERE:
            if target.trusted:
                logger.info("tubemq: broker %s is set aside for a while: %s", target.broker, error)
                self._counters.reconnects += 1
            target.failed()
        elif self._fatal is None:
            where = f"tubemq: writing to topic {send.topic_name}, partition {send.partition_id}"
            self._fatal = error.within(where)
        self._reason = error
        if _place_of(send) in target.ordered:
            target.broken.add(_place_of(send))
            target.again.append(send)
        else:
            self._again.append(send)

    def _owed(self) -> int:
        """Return the number of messages to send again; call under the lock."""
        return len(self._again) + sum(len(target.again) + len(target.unsent) for target in self._targets.values())

    def _is_due(self) -> bool:
        return self._fatal is not None or self._owed() > 0

    def _until(self) -> float:
        return self._last_progress + self._options.send_timeout_ms / 1000

    def _attend(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        with self._arrived:
            self._check_time()
        if self._owed():
            self._resend()

    def _resend(self) -> None:
        """Send messages again after a pause, to brokers that work then.

        Raises:
            MQSourceError: no message was acknowledged within `sendTimeout`.
        """
        with self._arrived:
            pause = min(FIRST_PAUSE_SECONDS * 2**self._failures, MAX_PAUSE_SECONDS)
            self._failures += 1
            self._check_time(pause)
            until = time.monotonic() + pause
            on_trial = not all(target.trusted for target in self._targets.values())
            while (left := until - time.monotonic()) > 0 and self._fatal is None and (self._failures or not on_trial):
                with waiting(self._counters):
                    self._arrived.wait(left)
            refused, self._renew_since = self._renew_since, None
            sends, self._again = self._again, []
        if refused is not None:
            self._client.authorization.renew(refused)
        auth_info = self._client.authorization.for_broker()
        for send in sends:
            producer, topic = self._open(send.topic_name)
            partitions = self._working(topic.partitions(producer.meta))
            partition = partitions[topic.turn % len(partitions)]
            topic.turn += 1
            target = self._target(partition.broker)
            send = send._replace(partition_id=partition.partition_id, auth_info=auth_info)  # noqa: PLW2901 - the same
            size = len(send.data)
            if target.has_room(1, size) and (target.trusted or not target.pending_rows):
                self._send_now(target, [send], size)
            else:
                with self._arrived:
                    self._again.append(send)
        for target in self._targets.values():
            self._send_in_order(target, auth_info)

    def _send_in_order(self, target: _Target, auth_info: commands.AuthorizedInfo) -> None:
        """Send the messages of a target again that keep their order, unless the broker has not answered yet."""
        with self._arrived:
            if target.pending_rows or not (target.again or target.unsent):
                return
            sends = [send._replace(auth_info=auth_info) for send in (*target.again, *target.unsent)]
            some, size = self._within_limits(target, sends if target.trusted else sends[:1])
            target.again, target.unsent = [], sends[len(some) :]
            target.broken.clear()
        self._send_now(target, some, size)

    # -- waiting for the disk

    def _wait_for_disk(self) -> None:
        """Wait until the brokers have flushed all acknowledged messages to disk.

        A killed broker reuses the offsets of lost messages, so an offset alone proves nothing. But a connection is
        served by one process: while it lasts, nothing in memory is lost. So once the flushed end of a store has reached
        its end after the last acknowledgement, all messages are on disk (broker 2.4.0, whose `maxOffset` for
        qryPriorityId 1 is the flushed index).

        Raises:
            ConnectionLostError: a connection with acknowledged messages ended before their flush.
            RequestTimeoutError: the flush took longer than `sendTimeout`.
            MQSourceError: a broker cannot be queried.
        """
        links = [link for target in self._targets.values() for link in target.links if link.stored_rows]
        brokers = {target.broker for target in self._targets.values() if any(link.stored_rows for link in target.links)}
        used = {one for topic in self._topics.values() for one in topic.used if one.broker in brokers}
        stores = partitions_of(used)
        deadline = Deadline.after_ms(self._options.send_timeout_ms)
        self._check_links(links)
        wanted = {tp: found.last for tp, found in self._bounds(stores, WITH_MEMORY, links).items()}
        pause = FIRST_PAUSE_SECONDS
        while stores:
            flushed = self._bounds(stores, FLUSHED_ONLY, links)
            stores = {tp: one for tp, one in stores.items() if flushed[tp].last < wanted[tp]}
            self._check_links(links)
            if not stores:
                break
            if deadline.expired:
                behind = ", ".join(f"{tp} ({flushed[tp].last} of {wanted[tp]})" for tp in sorted(stores))
                raise RequestTimeoutError(
                    "tubemq: writing: rows are not on the brokers' disks within sendTimeout "
                    f"({self._options.send_timeout_ms} ms): {behind}; set sendTimeout above the topic's "
                    "memCacheFlushIntvl plus 30 s"
                )
            with waiting(self._counters):
                threading.Event().wait(pause)  # brokers do not notify of a flush
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        for link in links:
            link.stored_rows = 0

    def _bounds(self, stores: Partitions, priority: int, links: Sequence[_Link]) -> dict[TopicPartition, Bounds]:
        try:
            return fetch_bounds(self._client, self._options, stores, priority=priority)
        except MQSourceError as error:
            self._check_links(links)  # a broker that was killed cannot be queried either, but its lost rows matter more
            raise error.within("tubemq: writing: querying the brokers' flushed offsets") from error

    def _check_links(self, links: Sequence[_Link]) -> None:
        for link in links:
            if link.session.closed:
                raise ConnectionLostError(
                    f"tubemq: writing: {link.session.address}: the connection ended before {link.stored_rows} "
                    "acknowledged rows were on the broker's disk, and they are lost if the broker was killed; the task "
                    "must write its rows again, which Spark does if it retries tasks"
                )

    def _check_time(self, pause: float = 0.0) -> None:
        """Raise the timeout error if it is due after a pause of these seconds; call under the lock."""
        if time.monotonic() + pause < self._until():
            return
        waiting = self._owed() + sum(target.pending_rows for target in self._targets.values())
        seconds = self._options.send_timeout_ms
        msg = f"tubemq: writing: none of {waiting} messages was acknowledged within sendTimeout ({seconds} ms)"
        if self._reason is not None:
            msg += f"; last error: {self._reason}"
        raise RequestTimeoutError(msg)
