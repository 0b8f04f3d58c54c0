"""A reference for TubeMQ's answers to GET_MESSAGE and for SEND_MESSAGE: protobuf's runtime reads the messages."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo

from tests.oracles.fields import LENGTH, CorruptError, check, is_text, make_class, parse, take_varint

MESSAGE_FIELDS: Final = {
    "messageId": (1, "int64"), "checkSum": (2, "int32"), "payLoadData": (3, "bytes"), "flag": (4, "int32"),
}  # fmt: skip
ANSWER_FIELDS: Final = {
    "success": (1, "bool"), "errCode": (2, "int32"), "errMsg": (3, "bytes"), "messages": (4, "*bytes"),
    "currOffset": (5, "int64"), "escFlowCtrl": (6, "bool"), "currDataDlt": (7, "int64"), "requireSlow": (8, "bool"),
    "maxOffset": (9, "int64"),
}  # fmt: skip
SEND_FIELDS: Final = {
    "clientId": (1, "bytes"), "topicName": (2, "bytes"), "partitionId": (3, "int32"), "data": (4, "bytes"),
    "flag": (5, "int32"), "checkSum": (6, "int32"), "sentAddr": (7, "int32"), "msgType": (8, "bytes"),
    "msgTime": (9, "bytes"), "authInfo": (10, "bytes"),
}  # fmt: skip
Message: Final = make_class("Message", MESSAGE_FIELDS)
Send: Final = make_class("Send", SEND_FIELDS)
ConnHeader: Final = make_class("ConnHeader", {"flag": (1, "int32")})
RequestHeader: Final = make_class("RequestHeader", {"serviceType": (1, "int32"), "protocolVer": (2, "int32")})
RequestBody: Final = make_class(
    "RequestBody", {"method": (1, "int32"), "timeout": (2, "int64"), "request": (3, "bytes")}
)
TOKEN: Final = 0xFF7FF4FE
EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class UnreadableError(Exception):
    """The answer cannot be read."""


class CountError(Exception):
    """The answer has more messages than expected."""


class MissingError(Exception):
    """The answer has fewer messages than expected."""


@dataclass
class Reader:
    """Options and counts of a decoder.

    Attributes:
        columns: names of the columns to build, and whether they are text.
    """

    columns: dict[str, bool]
    filters: Collection[bytes] = ()
    time_zone: str = "UTC"
    on_corrupt: str = "fail"
    corrupt_messages: int = 0

    def decode(
        self, body: bytes, fetch_offset: int, stop_at: tuple[int, int] | None, expected: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of an answer.

        Raises:
            CorruptError: a message is corrupt, and the options make that an error.
            UnreadableError: the answer is no protobuf message.
            CountError: the answer has more messages than expected before the one to stop at.
            MissingError: it has fewer.
        """
        rows: list[dict[str, Any]] = []
        corrupt = count = 0
        for message in messages_of(body):
            number = None
            count += 1
            try:
                said = parse(Message, message)
                check(all(map(said.HasField, MESSAGE_FIELDS)), "required")
                number = said.messageId
                if (number, said.checkSum) == stop_at:
                    count -= 1
                    break
                cells = self._cells(said)
            except CorruptError:
                if self.on_corrupt == "fail":
                    raise
                corrupt += 1
                if self.on_corrupt == "skip":
                    continue
                cells = {"message_id": number, "attributes": [], "_corrupt": message, "_error": Ellipsis}
            if cells is not None:
                cells |= {"topic": b"t", "broker_id": 1, "partition": 3, "fetch_offset": fetch_offset}
                rows.append({name: cells.get(name) for name in self.columns})
        if expected is not None and count != expected:
            raise MissingError if count < expected else CountError
        self.corrupt_messages += corrupt
        return rows

    def _cells(self, said: Any) -> dict[str, Any] | None:
        """Return the row of a message; None if no filter matches."""
        data = said.payLoadData
        check(said.checkSum in (-1, zlib.crc32(data) & 0x7FFFFFFF), "checksum")
        pairs: list[tuple[bytes, bytes]] = []
        if said.flag & 1:
            size = int.from_bytes(data[:4], "big")
            check(len(data) >= 4 + size, "attributes")
            pairs = [one.partition(b"=")[::2] for one in data[4 : 4 + size].split(b",") if one]
            data = data[4 + size :]
        found: dict[bytes, bytes] = {}
        for key, item in pairs:
            found.setdefault(key, item)
        kind, minute = found.pop(b"$msgType$", None), found.pop(b"$msgTime$", None)
        # Other attributes that are unreadable make a message corrupt before its filter is checked.
        check("attributes" not in self.columns or all(map(is_text, [*found, *found.values()])), "attributes")
        if self.filters and kind not in self.filters:
            return None
        check(not self.columns.get("value") or is_text(data), "value")
        check("message_type" not in self.columns or kind is None or is_text(kind), "type")
        return {
            "value": data,
            "message_id": said.messageId,
            "message_type": kind,
            "message_time": time_of(minute, self.time_zone),
            "attributes": [
                (key.decode(errors="replace"), item.decode(errors="replace")) for key, item in found.items()
            ],
        }


def messages_of(body: bytes) -> Iterator[bytes]:
    """Yield the messages of an answer; see `parts_of`."""
    return (content for is_message, content in parts_of(body) if is_message)


def parts_of(body: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield the fields of an answer, a message without its head, up to the first unreadable byte.

    Raises:
        UnreadableError: the rest cannot be read.
    """
    at = 0
    while at < len(body):
        begin = at
        try:
            tag, after = take_varint(body, at)
            check(8 <= tag < 1 << 32, "number")
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 == 0:
                _, after = take_varint(body, after)
            elif tag & 7 == LENGTH:
                size, after = take_varint(body, after)
            check(bool(size) or tag & 7 in (0, LENGTH), "wire type")
            at = after + size
            check(at <= len(body), "end")
        except CorruptError as error:
            raise UnreadableError from error
        yield (True, body[after:at]) if tag == 4 << 3 | LENGTH else (False, body[begin:at])


def time_of(minute: bytes | None, zone: str) -> int | None:
    """Return the microseconds of a minute written as yyyyMMddHHmm; None if it is invalid."""
    if minute is None or len(minute) != 12 or not minute.isdigit():
        return None
    year, *rest = (int(minute[begin:end]) for begin, end in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12)))
    try:
        local = datetime(year, *rest)  # type: ignore[arg-type]
    except ValueError:
        return None
    offset = local.replace(tzinfo=ZoneInfo(zone)).utcoffset() or timedelta(0)
    return (local.replace(tzinfo=timezone.utc) - EPOCH - offset) // timedelta(microseconds=1)


def sends_of(frames: bytes) -> list[tuple[int, int, Any]]:
    """Return serial number, timeout and message of each call in the frames."""
    found = []
    at = 0
    while at < len(frames):
        token, serial_no, blocks = struct.unpack_from(">IiI", frames, at)
        assert token == TOKEN
        at += 12
        payload = b""
        for _ in range(blocks):
            (size,) = struct.unpack_from(">I", frames, at)
            assert 0 < size <= 8192
            payload += frames[at + 4 : at + 4 + size]
            at += 4 + size
        parts = []
        while payload:
            size, begin = take_varint(payload, 0)
            parts.append(payload[begin : begin + size])
            assert len(parts[-1]) == size
            payload = payload[begin + size :]
        head, header, body = parts
        assert ConnHeader.FromString(head).flag == 0
        assert RequestHeader.FromString(header).protocolVer == 3
        call = RequestBody.FromString(body)
        assert call.method == 13
        found.append((serial_no, call.timeout, Send.FromString(call.request)))
    return found
