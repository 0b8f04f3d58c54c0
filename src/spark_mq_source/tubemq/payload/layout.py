"""Parts that both implementations of the loops share: parsing one message, the zone of times, and the errors."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from spark_mq_source.core.errors import CorruptMessageError, RemoteProtocolError, UnsupportedFeatureError
from spark_mq_source.core.protobuf import signed64
from spark_mq_source.core.protobuf_fields import signed32, take_fields

FAIL, SKIP, NULL = 0, 1, 2
"""Treatments of a corrupt message, see `MessageColumns.append`."""

MESSAGES_TAG: Final = 0x22
"""The tag of the messages in an answer to GET_MESSAGE."""

_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_TIMES: Final = 10_000


class MessageTimes:
    """UTC times of messages in microseconds since 1970; of two local times with the same text, the earlier one.

    Example:
        >>> MessageTimes("Asia/Shanghai")(197001010800), MessageTimes("UTC")(202602290340)
        (0, None)
    """

    def __init__(self, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self._known: dict[int, int | None] = {}

    def __call__(self, digits: int) -> int | None:
        """Return the time of this number, yyyyMMddHHmm in the zone; None if there is no such time."""
        if digits not in self._known:
            if len(self._known) >= _MAX_TIMES:
                self._known.clear()
            self._known[digits] = self._parse(f"{digits:012}")
        return self._known[digits]

    def _parse(self, text: str) -> int | None:
        try:
            local = datetime.strptime(text, "%Y%m%d%H%M")
        except ValueError:
            return None
        offset = local.replace(tzinfo=self._zone).utcoffset() or timedelta(0)
        return (local - _EPOCH - offset) // _MICROSECOND


def parse_message(data: bytes) -> tuple[int, int, bytes, int]:
    """Return messageId, checkSum, payLoadData and flag of a TransferedMessage.

    Raises:
        CorruptMessageError: it is not one, or lacks a field.
    """
    found: dict[int, int | bytes] = {}
    for tag, value, stop in take_fields(data, 0, len(data)):
        found[tag] = data[value:stop] if tag & 7 == 2 else value
    match found:
        case {0x08: int(message_id), 0x10: int(check_sum), 0x1A: bytes(payload), 0x20: int(flag)}:
            return signed64(message_id), signed32(check_sum), payload, signed32(flag)
    raise CorruptMessageError("the message lacks a required field")


def first_message(body: bytes | memoryview) -> tuple[int, int] | None:
    """Return id and checksum of the first message of an answer to GET_MESSAGE; None if it has none.

    Raises:
        RemoteProtocolError: the answer, or its first message, cannot be read.
    """
    data = bytes(body)
    try:
        for tag, start, stop in take_fields(data, 0, len(data)):
            if tag == MESSAGES_TAG:
                return parse_message(data[start:stop])[:2]
    except CorruptMessageError as error:
        raise unreadable_answer(str(error)) from None
    return None


def corrupt_message(sentence: str, message_id: int | None, number: int, fetch_offset: int) -> CorruptMessageError:
    """Return the error for a message that cannot be decoded, with its position."""
    name = "a message" if message_id is None else f"message {message_id}"
    return CorruptMessageError(f"{name}, number {number + 1} of those fetched at {fetch_offset}: {sentence}")


def unreadable_answer(sentence: str) -> RemoteProtocolError:
    """Return the error for an answer that is not protobuf."""
    return RemoteProtocolError(f"the broker's answer to GET_MESSAGE cannot be read: {sentence}")


def column_overflow() -> UnsupportedFeatureError:
    """Return the error for a column that would not fit in one Arrow batch."""
    return UnsupportedFeatureError("a column would pass the 2 GiB that one Arrow batch can hold; lower maxBatchBytes")
