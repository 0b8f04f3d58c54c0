"""Answers to GET_MESSAGE to Arrow RecordBatches.

`MessageDecoder` turns the messages of one topic-partition into rows. The loop over bytes and rows is `MessageColumns`,
compiled in ``_messages_native``. ``_messages_python`` specifies it, with the rules for corrupt messages, and runs if no
compiled loop is installed. Both give the same rows, and errors of the same class and position: see
`core.implementation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import pyarrow as pa

from spark_mq_source.core.columns import CORRUPT, ERROR, ColumnDecoder
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.tubemq.payload import _messages_python
from spark_mq_source.tubemq.payload.columns import COLUMNS
from spark_mq_source.tubemq.payload.layout import FAIL, NULL, SKIP, message_times

_ON_CORRUPT: Final = {"fail": FAIL, "skip": SKIP, "null": NULL}

_decoding: Final = Implementation(_messages_python)

without_messages: Callable[[bytes | memoryview], bytes] = _decoding.module.without_messages
"""See `_messages_python.without_messages`."""


class MessageDecoder(ColumnDecoder):
    """Decoder of the messages of one topic-partition into RecordBatches.

    Not for use by several threads at once.

    Args:
        schema: the columns wanted, in this order; also the schema of `take_batch`.
        filters: the wanted message types; empty for all messages. A broker compares only their hashes.
        on_corrupt: ``fail``; ``skip``: a corrupt message gives no row; ``null``: it gives one row with the error in
            ``_error``, the message as sent in ``_corrupt``, and NULL in every other column but topic, broker_id,
            partition, fetch_offset and, if readable, message_id (attributes are empty). May be changed between answers.
        implementation: ``native`` or ``python``; None for that of the environment variable, else the best available.

    Attributes:
        on_corrupt: as above.

    Raises:
        OptionError: `schema` has a column or a type that cannot be built.
        ImportError: `implementation` is ``native`` and the compiled decoder cannot be loaded.

    Example:
        >>> import pyarrow as pa
        >>> decoder = MessageDecoder(pa.schema([("value", pa.binary())]), topic="t", broker_id=1, partition=0)
        >>> message = bytes.fromhex("0807 10ffffffffffffffffff01 1a05") + b"hello" + bytes.fromhex("2000")
        >>> decoder.decode(bytes([0x22, len(message)]) + message, 2800)
        1
        >>> decoder.take_batch().to_pydict()
        {'value': [b'hello']}
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        broker_id: int,
        partition: int,
        filters: Iterable[str] = (),
        time_zone: str = "UTC",
        on_corrupt: str = "fail",
        implementation: str | None = None,
    ) -> None:
        module = _decoding.load(implementation)
        super().__init__(schema, COLUMNS, (CORRUPT, ERROR))
        make = partial(
            module.MessageColumns,
            topic=topic,
            broker_id=broker_id,
            partition=partition,
            filters=frozenset(one.encode() for one in filters),
            times=message_times(time_zone),
        )
        self._columns: _messages_python.MessageColumns = make(self._sparse.dense)
        self._twin = partial(_messages_python.MessageColumns, self._sparse.dense, **make.keywords)
        self.on_corrupt = on_corrupt

    @property
    def corrupt_messages(self) -> int:
        """The number of messages that were skipped or became NULL."""
        return self._columns.corrupt_messages

    def decode(
        self,
        body: bytes | memoryview,
        fetch_offset: int,
        stop_at: tuple[int, int] | None = None,
        expected: int | None = None,
    ) -> int:
        """Append the rows of one answer.

        Args:
            body: the answer to GET_MESSAGE; used only during this call.
            fetch_offset: its start offset.
            stop_at: id and checksum of the first unwanted message (see `first_message`); if it is not there, all are
                wanted.
            expected: the number of wanted messages, with those that the filters leave out; None if unknown.

        Returns:
            The number of rows appended; 0 after an error.

        Raises:
            CorruptMessageError: a message is corrupt, and `on_corrupt` is ``fail``.
            MissingMessagesError: the answer has fewer messages than `expected`.
            RemoteProtocolError: it has more, or cannot be read.
            UnsupportedFeatureError: a column would pass 2 GiB.
        """
        columns, before, corrupt = self._columns, self._columns.rows, self._columns.corrupt_messages
        rows = columns.append(body, fetch_offset, _ON_CORRUPT[self.on_corrupt], stop_at, expected)
        if self._sparse and self.on_corrupt == "null" and columns.corrupt_messages > corrupt:
            # The compiled loop only counts them; the twin finds which and why.
            twin = self._twin()
            twin.append(body, fetch_offset, NULL, stop_at)
            for row, reason, message in twin.corrupt_rows:
                self._sparse.put(CORRUPT, before + row, message, len(message))
                self._sparse.put(ERROR, before + row, reason, len(reason))
        return rows
