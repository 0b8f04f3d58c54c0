"""Values as text: in JSON, in the cells of tables, and in the lines of `peek`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

# Characters that break a line or control a terminal: a message may come from anyone.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_START: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_POSITIONS: Final = (("ledger", "entry", "batch"), ("ledger_id", "entry_id", "batch_index"))


def as_json(value: object, *, as_hex: bool = False, compact: bool = False) -> str:
    r"""Encode a value as JSON; bytes are UTF-8 text, or else hexadecimal, and times are ISO 8601.

    Example:
        >>> as_json({"key": b"f\xc3\xbcr", "value": b"\xff"})
        '{"key": "für", "value": "ff"}'
    """

    def plain(value: object) -> object:
        if isinstance(value, bytes):
            try:
                return value.hex() if as_hex else value.decode()
            except UnicodeDecodeError:
                return value.hex()
        return value.isoformat() if isinstance(value, datetime) else str(value)

    return json.dumps(value, default=plain, ensure_ascii=False, separators=(",", ":") if compact else None)


def as_text(value: object, *, as_hex: bool = False) -> str:
    r"""Format a value as one line; escape control characters and bytes that are not UTF-8, as Python does.

    Args:
        value: a value of a column. NULL is ``NULL``, a position ``ledger:entry``, ``ledger:entry:batch`` or ``before
            ledger:0``, and a time with a zone is in UTC.
        as_hex: whether bytes are hexadecimal.

    Example:
        >>> as_text(b"f\xc3\xbcr\xff\n"), as_text(b"\xff", as_hex=True), as_text(None)
        ('für\\xff\\n', 'ff', 'NULL')
        >>> as_text({"ledger_id": 309, "entry_id": 0, "batch_index": -1}), as_text({"a": [1, None]})
        ('309:0', '{"a":[1,null]}')
    """
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        text = value.hex() if as_hex else value.decode("utf-8", "backslashreplace")
    elif isinstance(value, datetime):
        moment = value.astimezone(timezone.utc) if value.tzinfo else value
        text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    elif isinstance(value, Mapping) and tuple(value) in _POSITIONS:
        text = _position(*value.values())
    else:
        text = value if isinstance(value, str) else as_json(value, as_hex=as_hex, compact=True)
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def microseconds_of(time: datetime | int | None) -> int:
    """Return the microseconds since 1970 of a time, which can be this number already; -1 for NULL."""
    if isinstance(time, datetime):
        return (time - _START) // timedelta(microseconds=1)
    return -1 if time is None else time


def _position(ledger: int, entry: int, batch: int) -> str:
    """Format a position; ``none`` if no message was read, or if the topic-partition has none."""
    if ledger < 0:
        return "none"
    if entry < 0:
        return f"before {ledger}:0"
    return f"{ledger}:{entry}" if batch < 0 else f"{ledger}:{entry}:{batch}"
