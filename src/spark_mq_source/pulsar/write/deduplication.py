"""Exactly once by the broker's deduplication: names and sequence ids that make a replay recognisable, and its check.

A broker that deduplicates keeps, for each topic-partition and producer name, the highest sequence id it has stored. It
drops an entry whose *first* id is not above that, whole, with a receipt of (-1, -1); gaps are fine (seen on broker
4.0.8).

So that an attempt at a task can go on where another one was killed, everything about an entry depends on what is
written, and on nothing else:

- The producer's name says which write and which task: the query's id (or `producerName`) and the task's number.
- An entry's ids say which micro-batch, and which of the task's rows for this topic-partition. Which rows share an entry
  depends on the rows and the options alone (`messages.EntryEncoder`).
- The lowest bits of its last id are a fingerprint of all the rows up to here, in order.
- A message in chunks has its id in the last one; the others have that of the entry before (`messages.EntryEncoder`).

::

    63                47                     16                 0
    | micro-batch: 16 | row of the batch: 31 | fingerprint: 16 |

The highest id that the broker has stored is all that it tells of an earlier attempt (PRODUCER_SUCCESS). It stands for
all entries below it because an entry is sent when the one before it is stored, not earlier. A broker refuses an entry
by itself, for a wrong checksum, or a size or a delay above its policies, and stores what was sent behind it (`Producer`
and `PersistentTopic` of broker 4.0.8): with more under way, no id would tell of the gap.

If the highest id is of this micro-batch, this attempt must come to send an entry with this very id: then the rows up to
it are those which are stored, and their entries may be dropped. An entry that reaches as far with another id, or an
attempt that ends before it, shows that rows are others, fewer, in another order or cut otherwise. That fails the task,
before anything is sent that the broker would drop with rows it does not have. Other rows, as many up to the stored one
and cut alike, have the same fingerprint by one chance in 65,536, and are then taken for those which are stored.

A task looks at every topic-partition of the option `topic` for more than it has, also where it writes nothing itself.

What cannot be recognised: a task whose earlier attempt had stored nothing here, in a replay that shares the rows out
to other tasks than the first run; a topic that only rows of the earlier attempt named; and what comes when the broker
has forgotten the name, which it does after it has not been used for
`brokerDeduplicationProducerInactivityTimeoutMinutes` (6 hours unless configured).
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
MOST_ROWS: Final = (1 << ROW_BITS) - 1


def producer_name(base: str | None, attempt: TaskAttempt) -> str:
    """The name under which every attempt at a task writes.

    Every 65,536 micro-batches have a name of their own, since the number that goes into the ids begins anew.

    Args:
        base: which write it is; None for the query, or this one `save`.
        attempt: its task.

    Raises:
        OptionError: a save within `foreachBatch` has none: when its micro-batch is done over, nobody knows it again.

    Example:
        >>> from spark_mq_source.core.ports import TaskAttempt
        >>> producer_name(None, TaskAttempt("8f0e", batch_id=7, partition=3))
        'spark-8f0e-3'
        >>> producer_name("flights", TaskAttempt("8f0e", batch_id=65543, partition=3))
        'flights-3-1'
    """
    if base is None and attempt.in_foreach_batch:
        raise OptionError(
            "pulsar-native: deliveryGuarantee=exactly-once within foreachBatch needs a producerName that is the same "
            'when the micro-batch is done over, and of no other write: f"NAME-{batch_id}", with the number that '
            "foreachBatch hands over"
        )
    era = (attempt.batch_id or 0) >> BATCH_BITS
    return f"{base or f'spark-{attempt.job_id}'}-{attempt.partition}{f'-{era}' if era else ''}"


class EntryNumbers:
    """The sequence ids of one producer's entries, and their check against what the broker has stored.

    Args:
        batch_id: the micro-batch's; None outside of a stream.

    Attributes:
        admitted: the last id of the last entry that was let through; before the first, that of `last_id`.
        last_id: the last id of the last entry; before the first, one that is below it and of this micro-batch.
        stored: the highest id that the broker has stored of this micro-batch; -1 for none.

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
        spark_mq_source.core.errors.ReplayError: rows 0 to 9 are not the ones that are stored under these numbers...
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
        """The number of the first row, without fingerprint: unique for producer and row."""
        # Not 0: a chunk of the first message has an id below it, and the same micro-batch.
        return (self._batch << ROW_BITS) + 1

    def next(self, rows: int, content: bytes | memoryview) -> tuple[int, int]:
        """The first and the last id of the next entry.

        Args:
            rows: how many it has.
            content: what they are, in bytes that depend on the rows alone: not compressed, without a time.

        Raises:
            UnwritableRowError: more rows than there are numbers.
        """
        first = self._rows
        self._rows += rows
        if self._rows > MOST_ROWS:
            raise UnwritableRowError(
                f"more than {MOST_ROWS} rows of one task for one topic-partition: write them in more tasks"
            )
        self._crc = crc32c(content, self._crc)
        fingerprint = self._crc & ((1 << FINGERPRINT_BITS) - 1)
        self.last_id = self._id_of(self._rows - 1) | fingerprint
        return self._id_of(first), self.last_id

    def _id_of(self, row: int) -> int:
        return (self.first_row_id + row) << FINGERPRINT_BITS

    def found(self, last_sequence_id: int, own: Collection[int] = ()) -> None:
        """Notes what the broker has stored, when the producer is opened, for the first time or again.

        Args:
            last_sequence_id: the highest that it has stored.
            own: the last ids of the entries that this attempt has sent since it was told the last time.

        Raises:
            ReplayError: of a later micro-batch, or in the midst of what this attempt has sent, and not its own.
        """
        batch = last_sequence_id >> (ROW_BITS + FINGERPRINT_BITS)
        if last_sequence_id <= self._id_of(-1) or last_sequence_id in own:
            return
        if batch > self._batch:
            raise ReplayError(
                f"a later micro-batch ({batch} of 65,536; this one is {self._batch}) is stored under this name: was "
                f"the checkpoint put back, or is the name used by another query? Give it a producerName of its own"
            )
        if last_sequence_id <= self.admitted and last_sequence_id != self.stored:
            raise ReplayError(f"another attempt writes at the same time, and what it writes differs {self._remedy}")
        if last_sequence_id != self.stored:
            self.stored = last_sequence_id
            self._is_matched = False

    def admit(self, first: int, last: int) -> bool:
        """Whether the broker may have stored an entry that is to be sent, so that it may drop it.

        Raises:
            ReplayError: it would be dropped with rows that are not stored.
        """
        if not self._is_matched and last != self.stored and last >> FINGERPRINT_BITS >= self.stored >> FINGERPRINT_BITS:
            low, high = ((id_ >> FINGERPRINT_BITS) - self.first_row_id for id_ in (first, last))
            raise ReplayError(
                f"rows {low} to {high} are not the ones that are stored under these numbers, by an earlier attempt "
                f"{self._remedy}"
            )
        if last == self.stored:
            self._is_matched = True
        self.admitted = last
        return last <= self.stored

    def finish(self) -> None:
        """There are no more rows.

        Raises:
            ReplayError: there is more in the broker.
        """
        if not self._is_matched:
            stored = (self.stored >> FINGERPRINT_BITS) - self.first_row_id + 1
            raise ReplayError(f"this attempt has {self._rows} rows, an earlier one has stored {stored} {self._remedy}")

    _remedy = (
        "(or by another write with this producerName): exactly-once needs the same rows, in the same order and tasks, "
        "with the same options, whenever a task is done over. Make the query deterministic (sort before a "
        "repartition), or, if what is stored may be there twice, write on under another producerName"
    )
