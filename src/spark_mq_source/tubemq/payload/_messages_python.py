"""The decoder's inner loop over the messages of a fetch, written for the interpreter, and the rules it shares.

An answer to GET_MESSAGE is a protobuf message (`GetMessageResponseB2C`) whose field 4, `messages`, is there once for
each message: `TransferedMessage{messageId, checkSum, payLoadData, flag}`. Where `flag & 1`, the payload is::

    i32 size  attributes  body          ; big-endian; attributes are UTF-8 text: key=value,key=value

The system's own attributes are ``$msgType$`` and ``$msgTime$`` (yyyyMMddHHmm, without a zone). `checkSum` is the CRC-32
of the payload & 0x7FFFFFFF, or -1 (seen on broker 2.4.0).

The rules, the same in both implementations:

- A protobuf field of a known number but another wire type is skipped like an unknown one; the last of several counts.
  Wire types 3, 4, 6 and 7, field number 0, a varint of more than ten bytes and a length past the end are corrupt.
- All four fields of a message are required; the attributes must fit into the payload, the checksum must match.
- Between commas stands ``key=value``, divided at the first ``=``; without one the value is empty. Nothing between two
  commas is nothing. Of several with one key the first counts.
- Text is checked to be UTF-8 only where a column is built of it. A time that is none is NULL.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa

from spark_mq_source.core._columns_python import Columns
from spark_mq_source.core.columns import MAX_COLUMN_BYTES
from spark_mq_source.core.errors import CorruptMessageError, RemoteProtocolError, UnsupportedFeatureError
from spark_mq_source.core.protobuf_fields import signed32, take_fields
from spark_mq_source.tubemq.payload.columns import COLUMNS

FAIL, SKIP, NULL = 0, 1, 2
"""What to do with a corrupt message, see `MessageColumns.append`."""

_TYPE_KEY: Final = b"$msgType$"
_TIME_KEY: Final = b"$msgTime$"
_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_MINUTE: Final = re.compile(rb"[0-9]{12}")
_MAX_SHIFTS: Final = 10_000


class ZoneShift:
    """Turns local times of one zone into UTC, both in microseconds since 1970; of two the earlier one.

    Example:
        >>> ZoneShift("Asia/Shanghai")(8 * 3_600_000_000)
        0
    """

    def __init__(self, zone: str) -> None:
        self.is_utc = zone == "UTC"
        self._zone = ZoneInfo(zone)
        self._known: dict[int, int] = {}

    def __call__(self, local_us: int) -> int:
        """The time in UTC."""
        shifted = self._known.get(local_us)
        if shifted is None:
            local = _EPOCH + timedelta(microseconds=local_us)
            offset = local.replace(tzinfo=self._zone).utcoffset() or timedelta(0)
            shifted = local_us - offset // _MICROSECOND
            if len(self._known) >= _MAX_SHIFTS:
                self._known.clear()
            self._known[local_us] = shifted
        return shifted


class _Message(NamedTuple):
    """One message, of which the columns asked for want nothing but this."""

    message_id: int | None
    value: bytes | None = None
    message_type: bytes | None = None
    message_time: int | None = None
    attributes: Mapping[bytes, bytes] = {}


class MessageColumns(Columns):
    """The columns of the messages decoded so far. It looks at no byte outside what it is given.

    Attributes:
        corrupt_messages: how many were skipped or became NULL, ever.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        broker_id: int,
        partition: int,
        filters: frozenset[bytes],
        shift: ZoneShift,
    ) -> None:
        super().__init__(schema, {"topic": topic, "broker_id": broker_id, "partition": partition})
        self._filters = filters
        self._shift = shift
        self._wants = {name: name in self._cells for name in COLUMNS.readable}
        self.corrupt_messages = 0
        self.corrupt_rows: list[tuple[int, str, bytes]] = []
        """Of the last answer, as NULL gives them: the row among its own, what is wrong, and the message."""

    def append(
        self,
        body: bytes | memoryview,
        fetch_offset: int,
        on_corrupt: int = FAIL,
        stop_at: tuple[int, int] | None = None,
    ) -> int:
        """Add the messages of one answer.

        Args:
            body: the answer to GET_MESSAGE.
            fetch_offset: where it began.
            on_corrupt: FAIL raises; SKIP leaves the message out; NULL gives a row of which only topic, broker,
                partition, fetch and, where it can be told, message id are known.
            stop_at: id and checksum of the first message that is not wanted any more; where it is not there, all are.

        Returns:
            How many rows were added: after an error none.

        Raises:
            CorruptMessageError: a message is corrupt, and `on_corrupt` is FAIL.
            RemoteProtocolError: the answer itself cannot be read.
            UnsupportedFeatureError: a column would pass 2 GiB.
        """
        data = bytes(body)
        if self.nbytes + len(data) > MAX_COLUMN_BYTES:
            raise column_overflow()
        messages: list[_Message] = []
        corrupt = 0
        self.corrupt_rows = []
        for number, (start, stop) in enumerate(self._messages(data)):
            message_id: int | None = None
            try:
                message_id, check_sum, payload, flag = _parse_message(data, start, stop)
                if stop_at == (message_id, check_sum):
                    break
                message = self._message(message_id, check_sum, payload, flag)
            except CorruptMessageError as error:
                if on_corrupt == FAIL:
                    raise corrupt_message(str(error), message_id, number, fetch_offset) from None
                corrupt += 1
                message = _Message(message_id) if on_corrupt == NULL else None
                self.corrupt_rows.append((len(messages), str(error), data[start:stop]))
            if message is not None:
                messages.append(message)
        self._add(messages, fetch_offset)
        self.corrupt_messages += corrupt
        return len(messages)

    @staticmethod
    def _messages(data: bytes) -> Iterator[tuple[int, int]]:
        try:
            for tag, start, stop in take_fields(data, 0, len(data)):
                if tag == 0x22:
                    yield start, stop
        except CorruptMessageError as error:
            raise unreadable_answer(str(error)) from None

    def _message(self, message_id: int, check_sum: int, payload: bytes, flag: int) -> _Message | None:
        """The message, or None where the filters leave it out."""
        if check_sum != -1 and (computed := zlib.crc32(payload) & 0x7FFFFFFF) != check_sum:
            raise CorruptMessageError(
                f"the checksum does not match: {check_sum:#010x} announced, {computed:#010x} found"
            )
        message_type = time_us = None
        attributes: Mapping[bytes, bytes] = {}
        if flag & 1:
            size = int.from_bytes(payload[:4], "big", signed=True)
            if len(payload) < 4 or not 0 <= size <= len(payload) - 4:
                raise CorruptMessageError("the attributes do not fit into the message")
            if self._filters or self._wants["message_type"] or self._wants["message_time"] or self._wants["attributes"]:
                found = _parse_attributes(payload[4 : 4 + size])
                message_type, minute = found.pop(_TYPE_KEY, None), found.pop(_TIME_KEY, None)
                if self._wants["attributes"]:
                    attributes = found
                    for text in (*found, *found.values()):
                        _check_utf8(text, "attributes are")
                if self._wants["message_time"]:
                    time_us = self._time_us(minute)
            payload = payload[4 + size :]
        if self._filters and message_type not in self._filters:
            return None
        if "value" in self._texts:
            _check_utf8(payload, "value is")
        if self._wants["message_type"] and message_type is not None:
            _check_utf8(message_type, "message_type is")
        return _Message(message_id, payload, message_type, time_us, attributes)

    def _time_us(self, minute: bytes | None) -> int | None:
        if minute is None or not _MINUTE.fullmatch(minute):
            return None
        try:
            time = datetime.strptime(minute.decode(), "%Y%m%d%H%M")
        except ValueError:
            return None
        return self._shift((time - _EPOCH) // _MICROSECOND)

    def _add(self, messages: list[_Message], fetch_offset: int) -> None:
        added: dict[str, Sequence[Any]] = {
            name: [getattr(message, name) for message in messages] for name in self._cells if name != "fetch_offset"
        }
        if "fetch_offset" in self._cells:
            added["fetch_offset"] = [fetch_offset] * len(messages)
        self._extend(len(messages), added, self._measure(added))


def first_message(body: bytes | memoryview) -> tuple[int, int] | None:
    """Id and checksum of the first message of an answer to GET_MESSAGE; None where it has none.

    Raises:
        RemoteProtocolError: the answer, or its first message, cannot be read.
    """
    data = bytes(body)
    try:
        for tag, start, stop in take_fields(data, 0, len(data)):
            if tag == 0x22:
                message_id, check_sum, _, _ = _parse_message(data, start, stop)
                return message_id, check_sum
    except CorruptMessageError as error:
        raise unreadable_answer(str(error)) from None
    return None


def without_messages(body: bytes | memoryview) -> bytes:
    """What an answer says beside its messages: a protobuf message with all its other fields.

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
            if tag != 0x22:
                others.append(data[at:stop])
            at = stop
    except CorruptMessageError as error:
        raise unreadable_answer(str(error)) from None
    return b"".join(others)


def corrupt_message(sentence: str, message_id: int | None, number: int, fetch_offset: int) -> CorruptMessageError:
    """The error for a message that cannot be decoded, with where it is."""
    name = "a message" if message_id is None else f"message {message_id}"
    return CorruptMessageError(f"{name}, number {number + 1} of those fetched at {fetch_offset}: {sentence}")


def unreadable_answer(sentence: str) -> RemoteProtocolError:
    """The error for an answer that is no protobuf."""
    return RemoteProtocolError(f"the broker's answer to GET_MESSAGE cannot be read: {sentence}")


def column_overflow() -> UnsupportedFeatureError:
    """The error for a column that would not fit in one Arrow batch."""
    return UnsupportedFeatureError("a column would pass the 2 GiB that one Arrow batch can hold; lower maxBatchBytes")


def _parse_message(data: bytes, at: int, end: int) -> tuple[int, int, bytes, int]:
    """messageId, checkSum, payLoadData and flag of a TransferedMessage.

    Raises:
        CorruptMessageError: see the module's rules.
    """
    message_id: int | None = None
    check_sum: int | None = None
    flag: int | None = None
    payload: bytes | None = None
    for tag, value, stop in take_fields(data, at, end):
        if tag == 0x08:
            message_id = value - 2**64 if value >= 2**63 else value
        elif tag == 0x10:
            check_sum = signed32(value)
        elif tag == 0x1A:
            payload = data[value:stop]
        elif tag == 0x20:
            flag = signed32(value)
    if message_id is None or check_sum is None or payload is None or flag is None:
        raise CorruptMessageError("the message lacks a required field")
    return message_id, check_sum, payload, flag


def _parse_attributes(text: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for pair in text.split(b","):
        if pair:
            key, _, value = pair.partition(b"=")
            found.setdefault(key, value)
    return found


def _check_utf8(cell: bytes, what: str) -> None:
    if not cell.isascii():
        try:
            cell.decode()
        except UnicodeDecodeError:
            raise CorruptMessageError(f"the {what} not UTF-8") from None
