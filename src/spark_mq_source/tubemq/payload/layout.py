"""Parts that both implementations of the loops share: parsing one message, the zone of times, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from spark_mq_source.core.errors import CorruptMessageError, RemoteProtocolError
from spark_mq_source.core.protobuf import signed64
from spark_mq_source.core.protobuf_fields import signed32, take_fields
from spark_mq_source.core.time_zones import time_zone

FAIL, SKIP, NULL = 0, 1, 2
"""Treatments of a corrupt message, see `MessageColumns.append`."""

MESSAGES_TAG: Final = 0x22
"""The tag of the messages in an answer to GET_MESSAGE."""

_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


def message_times(zone: str) -> Callable[[int], int | None]:
    """Return a function that converts a number yyyyMMddHHmm in a zone to microseconds since 1970.

    It returns None if there is no such time, and of two local times with the same text the earlier one.

    Example:
        >>> message_times("Asia/Shanghai")(197001010800), message_times("UTC")(202602290340)
        (0, None)
    """
    local_zone = time_zone(zone)

    @lru_cache(maxsize=10_000)
    def time_of(digits: int) -> int | None:
        try:
            local = datetime.strptime(f"{digits:012}", "%Y%m%d%H%M")
        except ValueError:
            return None
        offset = local.replace(tzinfo=local_zone).utcoffset() or timedelta(0)
        return (local - _EPOCH - offset) // _MICROSECOND

    return time_of


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


class MissingMessagesError(RemoteProtocolError):
    """An answer to GET_MESSAGE has fewer messages than entries of the index that it passed."""


def check_count(messages: int, expected: int | None, fetch_offset: int) -> None:
    """Check the number of messages of an answer.

    Raises:
        MissingMessagesError: there are fewer than expected.
        RemoteProtocolError: there are more.
    """
    if expected is not None and messages != expected:
        kind = MissingMessagesError if messages < expected else RemoteProtocolError
        raise kind(f"the index has {expected} messages from {fetch_offset} on, but the broker sent {messages}")


def unreadable_answer(sentence: str) -> RemoteProtocolError:
    """Return the error for an answer that is not protobuf."""
    return RemoteProtocolError(f"the broker's answer to GET_MESSAGE cannot be read: {sentence}")
