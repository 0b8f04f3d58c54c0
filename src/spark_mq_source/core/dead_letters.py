"""Dead letters: messages that cannot be decoded, stored in the dead letter topic before their batch is passed on.

A message is acknowledged after its batch was passed on, so its dead letter is stored before the acknowledgement. If a
task runs again, it sends its dead letters again.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_mq_source.core.columns import (
    CORRUPT,
    KEY,
    SCHEMA_VERSION,
    VALUE,
    int_array,
    map_array_of,
    text_array,
    version_name,
)
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import MQSourceError

if TYPE_CHECKING:
    from spark_mq_source.core.columns import ColumnTable
    from spark_mq_source.core.ports import RowWriter

logger = logging.getLogger(__name__)

REAL_TOPIC: Final = "REAL_TOPIC"
"""The property with the topic of the original message; the name is that of Pulsar's Java client."""

ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""The property with the message's position in that topic; the name is that of Pulsar's Java client."""

ORIGIN_SCHEMA_VERSION: Final = "ORIGIN_SCHEMA_VERSION"
"""The property with the version of the message's schema."""

REASON: Final = "REASON"
"""The property with the reason why the message cannot be decoded."""

ATTEMPT: Final = "ATTEMPT"
"""The property with the number of earlier attempts of the task that read the message."""

_MAX_REASON: Final = 1000
_TOPIC: Final = "topic"


def origin_of(cells: Mapping[str, Any], position: Sequence[str]) -> str:
    """Return the numbers of a message's position as text.

    Example:
        >>> origin_of({"broker_id": 1, "partition": 0, "message_id": 280}, ("broker_id", "partition", "message_id"))
        '1:0:280'
    """
    return ":".join(str(cells[name]) for name in position)


class DeadLetters:
    """The dead letters of one task, with the payload, key and properties of the messages.

    Args:
        where: the format and the task, for errors and logs.
        topic: the dead letter topic.
        open_writer: opens a writer of the format to that topic with its counters; called at the first dead letter.
        columns: the columns of the format.
        attempt: the number of earlier attempts of the task.
        counters: updated with dead letters and wait time.
        fitting: selects the properties that a writer of the format accepts.
        origin: the columns with the position of a message.
        origin_text: returns the position of a message as text, from these columns.
        topic_text: returns the topic of a message, from these columns and its topic.
        copied: further columns that a dead letter copies from its message.
        about: default properties of a dead letter.

    Attributes:
        columns: the columns to read besides the requested ones.
    """

    def __init__(
        self,
        where: str,
        topic: str,
        open_writer: Callable[[Counters], RowWriter],
        columns: ColumnTable,
        *,
        attempt: int = 0,
        counters: Counters | None = None,
        fitting: Callable[[Mapping[str, str]], Mapping[str, str]] = dict,
        origin: Sequence[str] = (),
        origin_text: Callable[[Mapping[str, Any]], str] | None = None,
        topic_text: Callable[[Mapping[str, Any]], str] = operator.itemgetter(_TOPIC),
        copied: Sequence[str] = (),
        about: Mapping[str, str] | None = None,
    ) -> None:
        self._where = where
        self._topic = topic
        self._open_writer = open_writer
        self._attempt = str(attempt)
        self._counters = counters or Counters()
        self._properties = columns.properties
        self._fitting = fitting
        self._origin = origin or columns.position
        self._origin_text = origin_text or (lambda cells: origin_of(cells, self._origin))
        self._topic_text = topic_text
        self._copied = copied
        self._about = about or {}
        self._writer: RowWriter | None = None
        self._sent = Counters()
        wanted = (KEY, VALUE, _TOPIC, SCHEMA_VERSION, columns.properties, *copied, *self._origin)
        self.columns = tuple(name for name in dict.fromkeys(wanted) if name in columns.readable)

    def send(self, messages: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Store the dead letters of messages.

        Args:
            messages: with `columns`, and with `_corrupt` if a whole message can be corrupt.
            reasons: by row, the reason why a message cannot be decoded.

        Raises:
            MQSourceError: the dead letter topic did not accept them.
        """
        batches = self._batches(messages, reasons)
        waited = self._sent.wait_seconds
        try:
            if self._writer is None:
                self._writer = self._open_writer(self._sent)
            for letters in batches:
                self._writer.write(letters)
            self._writer.flush()
        except MQSourceError as error:
            raise error.within(f"{self._where}: dead letters to topic {self._topic}") from error
        finally:
            self._counters.wait_seconds += self._sent.wait_seconds - waited
        self._count(self._counters, len(reasons))

    def _count(self, counters: Counters, letters: int) -> None:
        counters.dead_letters += letters

    def close(self) -> None:
        """Close the writer, if there is one."""
        if self._writer is not None:
            self._writer.close()

    def _batches(self, messages: pa.RecordBatch, reasons: Mapping[int, str]) -> list[pa.RecordBatch]:
        """Return the dead letters in order, with a new batch at each change between keys of text and no keys."""
        rows = sorted(reasons)
        names = [
            name for name in messages.schema.names if name in (*self.columns, CORRUPT) and name not in self._copied
        ]
        cells = messages.select(names).take(int_array(rows, pa.int32())).to_pylist()
        described = [self._described(one, reasons[row]) for one, row in zip(cells, rows, strict=True)]
        if not self._properties:
            for one in described:
                about = ", ".join(f"{name} {text}" for name, text in one.items())
                logger.warning("%s: a dead letter to topic %s: %s", self._where, self._topic, about)
        letters = zip(cells, described, rows, strict=True)
        return [
            self._batch(messages, list(run), is_text)
            for is_text, run in groupby(letters, lambda one: _has_text_key(one[0]))
        ]

    def _batch(
        self,
        messages: pa.RecordBatch,
        letters: Sequence[tuple[Mapping[str, Any], Mapping[str, str], int]],
        has_text_keys: bool,
    ) -> pa.RecordBatch:
        payloads = [cells[VALUE] if cells.get(CORRUPT) is None else cells[CORRUPT] for cells, _, _ in letters]
        columns = {VALUE: text_array(dict(enumerate(payloads)), len(letters), pa.binary())}
        if KEY in self.columns:
            type_ = pa.string() if has_text_keys else pa.binary()
            keys = {row: cells[KEY] for row, (cells, _, _) in enumerate(letters)}
            columns[KEY] = text_array(keys, len(letters), type_)
        if self._properties:
            pairs = [{name.encode(): text.encode() for name, text in described.items()} for _, described, _ in letters]
            columns[self._properties] = map_array_of(pairs, pa.map_(pa.string(), pa.string()))
        chosen = int_array((row for _, _, row in letters), pa.int32())
        for name in self._copied:
            columns[name] = messages.column(name).take(chosen)
        columns |= self._more_columns([described for _, described, _ in letters])
        return pa.record_batch(list(columns.values()), names=list(columns))  # pyarrow 14 takes no dict

    def _more_columns(self, described: Sequence[Mapping[str, str]]) -> Mapping[str, pa.Array]:
        """Return further columns of dead letters with these properties."""
        del described
        return {}

    def _described(self, cells: Mapping[str, Any], reason: str) -> Mapping[str, str]:
        described = self._with_origin(cells)
        described |= {REASON: reason[:_MAX_REASON], ATTEMPT: self._attempt}
        if cells.get(SCHEMA_VERSION) is not None:
            described[ORIGIN_SCHEMA_VERSION] = version_name(cells[SCHEMA_VERSION])
        return self._fitting(described)

    def _with_origin(self, cells: Mapping[str, Any]) -> dict[str, str]:
        """Return the properties of a message and its origin; a dead letter read again keeps its first topic."""
        described = dict(cells.get(self._properties) or ())
        described.setdefault(REAL_TOPIC, self._topic_text(cells))
        described.setdefault(ORIGIN_MESSAGE_ID, self._origin_text(cells))
        for name, text in self._about.items():
            described.setdefault(name, text)
        return described


def _has_text_key(cells: Mapping[str, Any]) -> bool:
    try:
        (cells.get(KEY) or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
