"""Exactly-once writes with the broker's deduplication: producer names and sequence ids that identify replayed rows.

A deduplicating broker keeps the highest stored sequence id for each topic-partition and producer name. It drops an
entry whose *first* id is not higher, as a whole, with a receipt of (-1, -1); gaps are allowed (seen on broker 4.0.8).

So that a task attempt can continue where a killed one stopped, an entry depends only on the rows and the options:

- The producer's name identifies the write and the task: the query's id (or `producerName`) and the task's number.
- An entry's ids identify the micro-batch, and the rows among the task's rows for this topic-partition. The division of
  rows into entries depends only on the rows, the options and the topic's number of partitions (`encoder.EntryEncoder`).
- The lowest bits of its last id are a fingerprint of all rows so far, in order.
- Of a message in chunks, the last chunk has the message's id, the others that of the previous entry.

::

    63                47                     16                 0
    | micro-batch: 16 | row of the batch: 31 | fingerprint: 16 |

The broker returns only the highest id stored by earlier attempts (PRODUCER_SUCCESS). It covers all lower entries
because an entry is sent only after the previous one is stored. A broker can refuse a single entry, for a wrong
checksum, or a size or delay above its policies, and store the following ones (`Producer` and `PersistentTopic` of
broker 4.0.8): with several entries pending, no id would show the gap.

If the highest id belongs to this micro-batch, this attempt must at some point send an entry with exactly this id. Then
the rows up to it are the stored ones, and the broker may drop their entries. If an entry passes that row with another
id, or the attempt ends before it, the rows differ, are fewer, or are ordered or divided differently. That fails the
task before an entry is sent that the broker would drop although its rows are not stored. Different rows in equal number
and division have the same fingerprint with a probability of 1 in 65,536, and are then taken for the stored ones.

A task checks every topic-partition of the option `topic` for additional stored rows, also those it writes nothing to.

Not detected: a replay that distributes rows differently over tasks, for a task whose earlier attempt had stored
nothing; a topic named only by rows of the earlier attempt; and a replay after the broker has dropped the producer name,
which it does after `brokerDeduplicationProducerInactivityTimeoutMinutes` without use (by default 6 hours).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from spark_mq_source.core.errors import OptionError, ReplayError, UnwritableRowError

if TYPE_CHECKING:
    from spark_mq_source.core.ports import TaskAttempt


FINGERPRINT_BITS: Final = 16
ROW_BITS: Final = 31
BATCH_BITS: Final = 16
MAX_ROWS: Final = (1 << ROW_BITS) - 1


def producer_name(base: str | None, attempt: TaskAttempt) -> str:
    """Return the producer name of all attempts of a task.

    It changes every 65,536 micro-batches, when the micro-batch number in the ids wraps around.

    Args:
        base: `producerName`; None to use the id of the query or of this `save`.
        attempt: the task attempt.

    Raises:
        OptionError: a save within `foreachBatch` without `producerName`, which a repeated micro-batch could not
            identify.

    Example:
        >>> from spark_mq_source.core.ports import TaskAttempt
        >>> producer_name(None, TaskAttempt("8f0e", batch_id=7, partition=3))
        'spark-8f0e-3'
        >>> producer_name("flights", TaskAttempt("8f0e", batch_id=65543, partition=3))
        'flights-3-1'
    """
    if base is None and attempt.in_foreach_batch:
        raise OptionError(
            "pulsar-native: deliveryGuarantee=exactly-once within foreachBatch needs a producerName that is unique to "
            'this write and the same when the micro-batch is repeated: f"NAME-{batch_id}", with the batch id that '
            "foreachBatch passes"
        )
    era = (attempt.batch_id or 0) >> BATCH_BITS
    return f"{base or f'spark-{attempt.job_id}'}-{attempt.partition}{f'-{era}' if era else ''}"


class EntryNumbers:
    """The sequence ids of one producer's entries, and their check against the ids stored by the broker.

    Args:
        batch_id: id of the micro-batch; None outside a stream.

    Attributes:
        admitted: the last id of the last admitted entry; initially that of `last_id`.
        last_id: the last id of the last entry; initially a lower id of this micro-batch.
        stored: the highest id of this micro-batch stored by the broker; -1 for none.

    Example:
        >>> numbers = EntryNumbers(7)
        >>> first, last = numbers.next(10, b"the payload of ten rows")
        >>> first == (7 << 47) + (1 << 16), last >> 16 == (7 << 31) + 10
        (True, True)
        >>> again = EntryNumbers(7)
        >>> again.found(last)
        >>> again.admit(*again.next(10, b"the payload of ten rows"))
        True
        >>> other = EntryNumbers(7)
        >>> other.found(last)
        >>> other.admit(*other.next(10, b"other rows of these sizes"))
        Traceback (most recent call last):
        ...
        spark_mq_source.ReplayError: rows 0 to 9 differ from the rows stored under these numbers...
    """

    def __init__(self, batch_id: int | None) -> None:
        self._batch = (batch_id or 0) % (1 << BATCH_BITS)
        self._rows = 0
        self._crc = 0
        self.admitted = self._id_of(-1)
        self._is_matched = True
        self.last_id = self._id_of(-1)
        self.stored = -1

    @property
    def first_row_id(self) -> int:
        """The number of the first row, without fingerprint: unique per producer and row."""
        # Not 0: a chunk of the first message has a lower id, in the same micro-batch.
        return (self._batch << ROW_BITS) + 1

    def next(self, rows: int, content: bytes | memoryview) -> tuple[int, int]:
        """Return the first and the last id of the next entry.

        Args:
            rows: number of rows in the entry.
            content: bytes that depend only on the rows: uncompressed, without a time.

        Raises:
            UnwritableRowError: more rows than row numbers.
        """
        first = self._rows
        self._rows += rows
        if self._rows > MAX_ROWS:
            raise UnwritableRowError(f"more than {MAX_ROWS} rows of one task for one topic-partition: use more tasks")
        self._crc = crc32c(content, self._crc)
        fingerprint = self._crc & ((1 << FINGERPRINT_BITS) - 1)
        self.last_id = self._id_of(self._rows - 1) | fingerprint
        return self._id_of(first), self.last_id

    def _id_of(self, row: int) -> int:
        return (self.first_row_id + row) << FINGERPRINT_BITS

    def found(self, last_sequence_id: int, own: Collection[int] = ()) -> None:
        """Record the highest id stored by the broker, each time the producer is opened.

        Args:
            last_sequence_id: the highest stored id.
            own: the last ids of the entries that this attempt has sent since the previous call.

        Raises:
            ReplayError: the id belongs to a later micro-batch, or is within the sent entries but not one of them.
        """
        batch = last_sequence_id >> (ROW_BITS + FINGERPRINT_BITS)
        if last_sequence_id <= self._id_of(-1) or last_sequence_id in own:
            return
        if batch > self._batch:
            raise ReplayError(
                f"a later micro-batch ({batch} of 65,536; this one is {self._batch}) is stored under this name: was "
                "the checkpoint reset, or does another query use the name? Set a producerName that no other query uses"
            )
        if last_sequence_id <= self.admitted and last_sequence_id != self.stored:
            raise ReplayError(f"another attempt writes at the same time, and its rows differ {self._remedy}")
        if last_sequence_id != self.stored:
            self.stored = last_sequence_id
            self._is_matched = False

    def admit(self, first: int, last: int) -> bool:
        """Return whether the broker may have stored an entry already, and so may drop it.

        Raises:
            ReplayError: the broker would drop the entry although its rows are not stored.
        """
        if not self._is_matched and last != self.stored and last >> FINGERPRINT_BITS >= self.stored >> FINGERPRINT_BITS:
            low, high = ((id_ >> FINGERPRINT_BITS) - self.first_row_id for id_ in (first, last))
            raise ReplayError(
                f"rows {low} to {high} differ from the rows stored under these numbers by an earlier attempt "
                f"{self._remedy}"
            )
        if last == self.stored:
            self._is_matched = True
        self.admitted = last
        return last <= self.stored

    def finish(self) -> None:
        """Check, after the last row, that no more rows are stored.

        Raises:
            ReplayError: the broker has stored more rows.
        """
        if not self._is_matched:
            stored = (self.stored >> FINGERPRINT_BITS) - self.first_row_id + 1
            raise ReplayError(f"this attempt has {self._rows} rows, an earlier one has stored {stored} {self._remedy}")

    _remedy = (
        "(or by another write with this producerName): exactly-once needs the same rows, in the same order and tasks, "
        "with the same options, whenever a task is repeated. Make the query deterministic (sort before a repartition), "
        "or, if duplicates are acceptable, continue under another producerName"
    )
