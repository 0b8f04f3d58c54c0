"""NSQ messages to Arrow RecordBatches, and rows to the bodies of MPUB.

The loops over bytes and rows have two implementations: compiled (``_messages_native``, ``_encode_native``), and in
Python (``_messages_python``, ``_encode_python``), which specify the rules and run if no compiled loop is installed.
Both give the same rows, bytes and errors; see `core.implementation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa

from spark_mq_source.core.columns import ColumnDecoder
from spark_mq_source.core.errors import CorruptMessageError, UnsupportedFeatureError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.utf8 import check_texts
from spark_mq_source.nsq.payload import _encode_python, _messages_python
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.protocol.commands import Messages

_decoding: Final = Implementation(_messages_python)
_encoding: Final = Implementation(_encode_python)

RowSource: TypeAlias = _encode_python.RowSource
"""The rows of `open_rows`."""


# The functions of this process, which `_messages_python` describes.
scan_messages: Callable[[memoryview, int, int], tuple[int, int]] = _decoding.module.scan_messages
message_ids: Callable[[memoryview], bytes] = _decoding.module.message_ids
encode_id_commands: Callable[..., bytes] = _decoding.module.encode_id_commands


class MessageDecoder(ColumnDecoder):
    r"""Collector of messages as columns, until they are taken as a batch.

    Args:
        nsqd: the column ``nsqd``: the address of the nsqd.
        implementation: ``native`` or ``python``; None for that of this process.

    Raises:
        OptionError: columns or types that cannot be built.

    Example:
        >>> from spark_mq_source.nsq.protocol.wire import MESSAGE, encode_frame
        >>> decoder = MessageDecoder(
        ...     pa.schema([("value", pa.string()), ("attempts", pa.int32())]), topic="t", channel="c", nsqd="h:4150"
        ... )
        >>> frame = encode_frame(MESSAGE, bytes(8) + b"\0\1" + b"0123456789abcdef" + b"hello")
        >>> decoder.append(Messages(memoryview(frame), 1))
        b'0123456789abcdef'
        >>> decoder.take_batch().to_pylist()
        [{'value': 'hello', 'attempts': 1}]
    """

    def __init__(
        self, schema: pa.Schema, *, topic: str, channel: str, nsqd: str, implementation: str | None = None
    ) -> None:
        self._module = _decoding.load(implementation)
        super().__init__(schema, COLUMNS)
        self._where = f"nsq topic {topic}, channel {channel}, nsqd {nsqd}"
        self._columns = self._module.MessageColumns(schema, topic=topic, channel=channel, nsqd=nsqd)

    def append(self, run: Messages) -> bytes:
        """Decode a run completely or, after an error, not at all, and return its ids (see `message_ids`).

        Raises:
            CorruptMessageError: text that is not UTF-8, with the message's id.
            UnsupportedFeatureError: the values would exceed the limit of an Arrow batch.
        """
        try:
            self._columns.append(run.data)
        except (CorruptMessageError, UnsupportedFeatureError) as error:
            raise error.within(self._where) from error
        ids: bytes = self._module.message_ids(run.data)
        return ids


def open_rows(batch: pa.RecordBatch, implementation: str | None = None, *, first_row: int = 0) -> RowSource:
    """Return the rows of a batch, ready to be encoded.

    Args:
        batch: the column ``value``, and if present ``topic`` and ``defer``.
        implementation: ``native`` or ``python``; None for that of this process.
        first_row: the number of the first row among those of the task, for errors.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no ``value``.
        UnwritableRowError: the topic of a row is not UTF-8.
    """
    check_texts(batch, ("topic",), first_row)
    source: RowSource = _encoding.load(implementation).RowSource(batch)
    return source
