"""The specification of the loop over the messages of a fetch, which runs if no compiled one is installed.

An answer to GET_MESSAGE is a protobuf message (`GetMessageResponseB2C`) with one field 4, `messages`, for each
message: `TransferedMessage{messageId, checkSum, payLoadData, flag}`. If `flag & 1`, the payload is::

    i32 size  attributes  body          ; big-endian; attributes are UTF-8 text: key=value,key=value

The system's own attributes are ``$msgType$`` and ``$msgTime$`` (yyyyMMddHHmm, without a zone). `checkSum` is the CRC-32
of the payload & 0x7FFFFFFF, or -1 (seen on broker 2.4.0).

The rules, the same in both implementations:

- A protobuf field of a known number but another wire type is skipped like an unknown one; the last of several counts.
  Wire types 3, 4, 6 and 7, field number 0, a varint of more than ten bytes and a length past the end are corrupt.
- All four fields of a message are required; the attributes must fit into the payload, the checksum must match.
- ``key=value`` pairs are separated by commas, and split at the first ``=``; without one the value is empty. Empty pairs
  are ignored. Of several with the same key, the first counts.
- Text is checked to be UTF-8 only if a column is built of it. An impossible time is NULL.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core._columns_python import Columns
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf_fields import take_fields
from spark_mq_source.tubemq.payload.layout import (
    FAIL,
    MESSAGES_TAG,
    NULL,
    check_count,
    corrupt_message,
    parse_message,
    unreadable_answer,
)

_MINUTE: Final = re.compile(rb"[0-9]{12}")


class MessageColumns(Columns):
    """The columns of the messages decoded so far. It reads no byte beyond its arguments.

    Attributes:
        corrupt_messages: total number of messages skipped or returned as NULL.
        corrupt_rows: of the last answer, with NULL: row index in the answer, error, and message.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        broker_id: int,
        partition: int,
        filters: frozenset[bytes],
        times: Callable[[int], int | None],
    ) -> None:
        super().__init__(schema, {"topic": topic, "broker_id": broker_id, "partition": partition})
        self._filters = filters
        self._times = times
        self.corrupt_messages = 0
        self.corrupt_rows: list[tuple[int, str, bytes]] = []

    def append(
        self,
        body: bytes | memoryview,
        fetch_offset: int,
        on_corrupt: int = FAIL,
        stop_at: tuple[int, int] | None = None,
        expected: int | None = None,
    ) -> int:
        """Add the messages of one answer, and return how many; see `MessageDecoder.decode`.

        Raises:
            CorruptMessageError: a message is corrupt, and `on_corrupt` is FAIL.
            RemoteProtocolError: the answer itself cannot be read, or has not as many messages as expected.
            UnsupportedFeatureError: a column would pass 2 GiB.
        """
        data = bytes(body)
        rows: list[dict[str, Any]] = []
        corrupt_rows: list[tuple[int, str, bytes]] = []
        unknown: dict[str, Any] = {name: {} if name in self._maps else None for name in self._cells} | {
            "fetch_offset": fetch_offset
        }
        messages = 0
        for start, stop in _messages_of(data):
            message_id = None
            try:
                message_id, check_sum, payload, flag = parse_message(data[start:stop])
                if stop_at == (message_id, check_sum):
                    break
                cells = self._cells_of(check_sum, payload, flag)
            except CorruptMessageError as error:
                if on_corrupt == FAIL:
                    raise corrupt_message(str(error), message_id, messages, fetch_offset) from None
                corrupt_rows.append((len(rows), str(error), data[start:stop]))
                cells = {} if on_corrupt == NULL else None
            if cells is not None:
                rows.append(unknown | cells | {"message_id": message_id})
            messages += 1
        check_count(messages, expected, fetch_offset)
        self._add(rows)
        self.corrupt_rows = corrupt_rows
        self.corrupt_messages += len(corrupt_rows)
        return len(rows)

    def _cells_of(self, check_sum: int, payload: bytes, flag: int) -> dict[str, Any] | None:
        """Return the cells of a message, or None if the filters leave it out."""
        if check_sum != -1 and (computed := zlib.crc32(payload) & 0x7FFFFFFF) != check_sum:
            raise CorruptMessageError(
                f"the checksum does not match: {check_sum:#010x} announced, {computed:#010x} found"
            )
        attributes: dict[bytes, bytes] = {}
        if flag & 1:
            size = int.from_bytes(payload[:4], "big", signed=True)
            if len(payload) < 4 or not 0 <= size <= len(payload) - 4:
                raise CorruptMessageError("the attributes do not fit into the message")
            attributes, payload = _parse_attributes(payload[4 : 4 + size]), payload[4 + size :]
        message_type, minute = attributes.pop(b"$msgType$", None), attributes.pop(b"$msgTime$", b"")
        if "attributes" in self._cells:
            _check_utf8("attributes are", *attributes, *attributes.values())
        if self._filters and message_type not in self._filters:
            return None
        if "value" in self._texts:
            _check_utf8("value is", payload)
        if "message_type" in self._cells:
            _check_utf8("message_type is", message_type or b"")
        return {
            "value": payload,
            "message_type": message_type,
            "message_time": self._times(int(minute)) if _MINUTE.fullmatch(minute) else None,
            "attributes": attributes,
        }


def _messages_of(data: bytes) -> Iterator[tuple[int, int]]:
    try:
        yield from ((start, stop) for tag, start, stop in take_fields(data, 0, len(data)) if tag == MESSAGES_TAG)
    except CorruptMessageError as error:
        raise unreadable_answer(str(error)) from None


def without_messages(body: bytes | memoryview) -> bytes:
    """Return an answer without its messages: a protobuf message with all its other fields.

    Args:
        body: the answer to GET_MESSAGE.

    Raises:
        RemoteProtocolError: it cannot be read.

    Example:
        >>> without_messages(bytes.fromhex("0801 10c801 2202ffff 281c")).hex(" ", -1)
        '08 01 10 c8 01 28 1c'
    """
    data = bytes(body)
    others, at = [], 0
    try:
        for tag, _, stop in take_fields(data, 0, len(data)):
            if tag != MESSAGES_TAG:
                others.append(data[at:stop])
            at = stop
    except CorruptMessageError as error:
        raise unreadable_answer(str(error)) from None
    return b"".join(others)


def _parse_attributes(text: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for pair in filter(None, text.split(b",")):
        key, _, value = pair.partition(b"=")
        found.setdefault(key, value)
    return found


def _check_utf8(subject: str, *texts: bytes) -> None:
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError:
        raise CorruptMessageError(f"the {subject} not UTF-8") from None
