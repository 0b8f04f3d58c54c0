"""Dead letters and retry letters of a queue's task, stored in other topics before the entry is acknowledged.

Names and properties are those of Pulsar's Java client (`org.apache.pulsar.client.util.RetryMessageUtil`, 4.0.8), so
that its consumers can process our letters, and we theirs: one with `enableRetry` reads `TOPIC-SUBSCRIPTION-RETRY`
besides its topic, and puts messages that came back too often into `TOPIC-SUBSCRIPTION-DLQ`.

A letter may be stored again by a repeated task, if the broker did not get the acknowledgement. `ORIGIN_MESSAGE_ID` is
the same then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from spark_mq_source.core.columns import CORRUPT, ERROR, int_array
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.dead_letters import ORIGIN_MESSAGE_ID, DeadLetters
from spark_mq_source.core.errors import TooManyAttemptsError
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import OnMaxRedeliver, PulsarOptions
from spark_mq_source.pulsar.payload.columns import COLUMNS, java_message_id
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY
from spark_mq_source.pulsar.read.decoding import decoder_of

if TYPE_CHECKING:
    from spark_mq_source.core.ports import RowWriter

RECONSUMETIMES: Final = "RECONSUMETIMES"
"""The property with the number of times that the message was put off."""

DELAY_TIME: Final = "DELAY_TIME"
"""The property with the delay in milliseconds."""

REAL_SUBSCRIPTION: Final = "REAL_SUBSCRIPTION"
"""The property with the subscription from which the message was read."""

OLD_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_IDY_TIME"
"""The property with the message's position, as older clients name it."""

PROPERTIES: Final = "properties"

LETTER_FORM: Final[Mapping[str, Any]] = {
    "origin": ("message_id", "partition"),
    "origin_text": java_message_id,
    "topic_text": lambda cells: str(TopicPartition(cells["topic"], cells["partition"])),
    "copied": ("event_time", "ordering_key"),
}
"""Arguments of `DeadLetters`: besides payload, key and properties, a letter has what Java's client copies."""

_DELIVER_AT: Final = "deliver_at"
_TIME: Final = pa.timestamp("us", "UTC")

_MAX_ROWS: Final = 10_000
_MAX_BYTES: Final = 16 << 20
"""Maximum number and size of messages that are decoded and sent at once."""

OpenWriter = Callable[[str, Counters], "RowWriter"]
"""Opens a writer to a topic, which updates the counters."""


def letter_topic_of(topic: str, subscription: str, kind: Literal["DLQ", "RETRY"]) -> str:
    """Return the topic of the Java client for messages that were redelivered too often, or are put off.

    Example:
        >>> letter_topic_of("persistent://public/default/t", "s", "DLQ")
        'persistent://public/default/t-s-DLQ'
    """
    return f"{topic}-{subscription}-{kind}"


def nack_delay_ms(first_ms: int, most_ms: int, times: int) -> int:
    """Return the delay of a message that was put off `times` times before: it doubles each time.

    Example:
        >>> [nack_delay_ms(1000, 600_000, times) for times in (0, 1, 5, 10, 1000)]
        [1000, 2000, 32000, 600000, 600000]
    """
    # Before the shift: the count comes from another client, and may be arbitrarily large.
    return min(most_ms, first_ms << min(times, 40))


def times_put_off(properties: Mapping[str, str]) -> int:
    """Return how often a message was put off, by its property; 0 without a valid one.

    Example:
        >>> times_put_off({"RECONSUMETIMES": "3"}), times_put_off({}), times_put_off({"RECONSUMETIMES": "many"})
        (3, 0, 0)
    """
    text = properties.get(RECONSUMETIMES, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def too_many_deliveries(position: object, how_often: str, limit: int) -> TooManyAttemptsError:
    """Return the error that ends a read with `onMaxRedeliver=fail`.

    Example:
        >>> str(too_many_deliveries("7:3", "put off 2 times", 2)).partition(";")[0]
        'message 7:3 was put off 2 times, and maxRedeliverCount is 2'
    """
    return TooManyAttemptsError(
        f"message {position} was {how_often}, and maxRedeliverCount is {limit}; set onMaxRedeliver=deadLetter to put "
        f"such messages aside"
    )


class RetryLetters(DeadLetters):
    """The messages that one task puts off: the retry topic delivers each again when its delay is over.

    The broker applies the delay, for consumers of Shared and Key_Shared subscriptions. Those of the other types get the
    message at once.

    Args:
        open_writer: opens a writer for that topic, with its counters; called for the first letter.
        options: of the query, with the delays.
        more: as for `DeadLetters`.
    """

    def __init__(
        self,
        where: str,
        topic: str,
        open_writer: Callable[[Counters], RowWriter],
        options: PulsarOptions,
        **more: Any,  # noqa: ANN401 - as declared there
    ) -> None:
        super().__init__(where, topic, open_writer, COLUMNS, **more)
        self._options = options

    def _count(self, counters: Counters, letters: int) -> None:
        """Count messages that are put off, which are not dead letters."""

    def _described(self, cells: Mapping[str, Any], reason: str) -> Mapping[str, str]:
        """Return the properties of a letter; it needs no reason."""
        del reason
        # The first topic and position are kept, as in Java's client.
        described = self._with_origin(cells)
        described.setdefault(OLD_ORIGIN_MESSAGE_ID, described[ORIGIN_MESSAGE_ID])
        times = times_put_off(described)
        delay_ms = nack_delay_ms(self._options.nack_delay_ms, self._options.nack_max_delay_ms, times)
        return described | {RECONSUMETIMES: str(times + 1), DELAY_TIME: str(delay_ms)}

    def _more_columns(self, described: Sequence[Mapping[str, str]]) -> Mapping[str, pa.Array]:
        now_ms = int(time.time() * 1000)
        times = [(now_ms + int(one[DELAY_TIME])) * 1000 for one in described]
        return {_DELIVER_AT: int_array(times, _TIME)}


class QueueLetters:
    """The letters of one task of a queue, from entries of its log.

    Args:
        options: of the query; dead letters go to `deadLetterTopic`, or `TOPIC-SUBSCRIPTION-DLQ`.
        base: the topic whose letters they are, if the entries come from another one: a retry topic's letters are those
            of its topic.
        attempt: the number of earlier attempts at the task.
    """

    def __init__(
        self,
        options: PulsarOptions,
        topic_partition: TopicPartition,
        where: str,
        open_writer: OpenWriter,
        *,
        base: str | None = None,
        attempt: int = 0,
        counters: Counters | None = None,
    ) -> None:
        self._options = options
        self._at = topic_partition
        subscription = options.subscription or ""
        form = {**LETTER_FORM, "counters": counters, "about": {REAL_SUBSCRIPTION: subscription}}
        base = base or topic_partition.topic
        dead_topic = options.dead_letter_topic or letter_topic_of(base, subscription, "DLQ")
        retry_topic = letter_topic_of(base, subscription, "RETRY")
        self._dead = DeadLetters(
            where, dead_topic, lambda sent: open_writer(dead_topic, sent), COLUMNS, attempt=attempt, **form
        )
        self._retry = RetryLetters(where, retry_topic, lambda sent: open_writer(retry_topic, sent), options, **form)

    def give_up(self, logged: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Store the messages of entries in the dead letter topic; a corrupt entry unchanged.

        Args:
            logged: the entries; all chunks of a message follow one another.
            reasons: the reason for each entry.

        Raises:
            EncryptedMessageError: an entry cannot be decrypted, and `cryptoFailureAction` is `FAIL`.
            MQSourceError: the dead letter topic did not accept them.
        """
        schema = _schema_of((*self._dead.columns, ERROR, CORRUPT))
        for messages, rows in self._messages(logged, schema, "null"):
            self._dead.send(messages, {n: reasons[row] for n, row in enumerate(rows)})

    def put_off(self, logged: pa.RecordBatch) -> None:
        """Store the messages of entries in the retry topic, for redelivery after their delay.

        After `maxRedeliverCount` times, `onMaxRedeliver` applies.

        Args:
            logged: the entries; all chunks of a message follow one another.

        Raises:
            TooManyAttemptsError: a message was put off that often, and `onMaxRedeliver` is `fail`.
            CorruptMessageError: an entry is corrupt, so that its messages cannot be sent again.
            EncryptedMessageError: an entry cannot be decrypted, and `cryptoFailureAction` is `FAIL`.
            MQSourceError: the retry topic did not accept them.
        """
        limit = self._options.max_redeliver_count
        for messages, rows in self._messages(logged, _schema_of(self._retry.columns), "fail"):
            times = [times_put_off(dict(one or ())) + 1 for one in messages.column(PROPERTIES).to_pylist()]
            late = {n: f"put off {t - 1} times" for n, t in enumerate(times) if 0 < limit < t}
            if late and self._options.on_max_redeliver is OnMaxRedeliver.FAIL:
                first = min(late)
                ledger, entry = (logged.column(name)[rows[first]] for name in ("ledger", "entry"))
                raise too_many_deliveries(f"{ledger}:{entry}", late[first], limit)
            if late:
                self._dead.send(messages, late)
            if len(late) < len(rows):
                self._retry.send(messages, {n: "" for n in range(len(rows)) if n not in late})

    def close(self) -> None:
        """Close the writers."""
        try:
            self._dead.close()
        finally:
            self._retry.close()

    def _messages(
        self, logged: pa.RecordBatch, schema: pa.Schema, on_corrupt: str
    ) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """Yield the messages of entries, and for each of them the row of its entry."""
        decoder = decoder_of(self._options, self._at, schema, on_corrupt=on_corrupt, max_batch_rows=WHOLE_ENTRY)
        names = ("ledger", "entry", "body", "ack_set")
        rows: list[int] = []
        columns = [logged.column(name) for name in names]
        for row in range(logged.num_rows):
            ledger, entry, body, ack_set = (column[row] for column in columns)
            words = memoryview(ack_set.as_py()).cast("q").tolist()
            rows += [row] * decoder.decode(ledger.as_py(), entry.as_py(), memoryview(body.as_buffer()), words)
            if decoder.rows >= _MAX_ROWS or decoder.nbytes >= _MAX_BYTES:
                yield decoder.take_batch(), rows
                rows = []
        if rows:
            yield decoder.take_batch(), rows


def _schema_of(names: Sequence[str]) -> pa.Schema:
    return arrow_schema_of({name: COLUMNS.readable[name][0] for name in dict.fromkeys(names)})
