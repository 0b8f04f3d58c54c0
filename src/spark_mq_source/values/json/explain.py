"""Decodes JSON in Python to find the reasons for bad payloads of ``_decode_native``.

It also decodes all payloads if no compiled loop is installed.
"""

from __future__ import annotations

import binascii
import datetime
import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from spark_mq_source.values._loops_python import BadPayloadError, RowDecoder
from spark_mq_source.values.json.steps import MAX_DEPTH, Step

_MAX_SHOWN: Final = 60
_INTEGER: Final = re.compile(r"-?[0-9]+")
_MAX_DIGITS: Final = 19
_DECIMAL: Final = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_MAX_EXPONENT_DIGITS: Final = 9
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIMESTAMP: Final = re.compile(
    _DATE.pattern + r"(?:[T ]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]+))?)?"
    r"(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_SECONDS: Final = re.compile(r"(-?)([0-9]+)\.([0-9]+)")
_MAX_SECONDS: Final = (2**63 - 1) // 1_000_000
_DAY_US: Final = 86_400_000_000
_MAX_OFFSET: Final = 18 * 60
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_NAMED_FLOATS: Final = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "+INF": math.inf,
    "-Infinity": -math.inf,
    "-INF": -math.inf,
}
_MARK: Final = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
"""Matches at most two characters, so that a search visits each character once, whatever the text is."""
_TOKEN: Final = re.compile(r'[\[\]{}]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s\[\]{},:"]+', re.DOTALL)
"""Only for valid JSON: in other texts, a search for the end of a string could start at each quote."""


class _Object(list[tuple[str, Any]]):
    """A JSON object: its members in order, including equal keys, and its text if known."""

    span = (0, 0)
    text = ""


class _Array(list[Any]):
    """A JSON array; `text` is the whole payload if known, so that nothing is copied, and `span` the array's part."""

    span = (0, 0)
    text = ""


class _Number(str):
    """A JSON number, as written."""

    __slots__ = ()


class _NamedNumber(str):
    """A value that JSON cannot express as a number, as Python writes it: NaN, Infinity, -Infinity."""

    __slots__ = ()


class _RawTextNeeded(Exception):  # noqa: N818 - no error
    """Signal that an array or object is read as a text."""


class JsonDecoder(RowDecoder):
    """A decoder of JSON payloads; `step` comes from `json.steps.steps_of`."""

    def __init__(self, step: Step) -> None:
        super().__init__(step.type)
        self._step = step

    def _read_row(self, payload: bytes) -> Any:  # noqa: ANN401 - of any type
        return _value_of(self._step, payload)


def reason_of(step: Step, data: bytes) -> str:
    """Return the reason why a payload cannot be decoded; an empty text if it can be."""
    try:
        _value_of(step, data)
    except BadPayloadError as bad:
        return bad.reason
    return ""


def _value_of(step: Step, data: bytes) -> Any:  # noqa: ANN401 - of any type
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadPayloadError(f"it is not UTF-8 at byte {error.start}") from None
    _check_depth(data, text)
    try:
        value = _reader.decode(text)
    except RecursionError:  # the stack was deep already
        raise BadPayloadError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        what = "it begins with a byte order mark" if text.startswith("\ufeff") else f"{error.msg} at byte {at}"
        raise BadPayloadError(f"it is not JSON: {what}") from None
    try:
        return _convert(step, value)
    except _RawTextNeeded:
        return _convert(step, _with_raw_texts(text))


def _check_depth(data: bytes, text: str) -> None:
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return
    depth, in_string = 0, False
    for mark in _MARK.finditer(text):
        character = mark[0]
        if character == '"':
            in_string = not in_string
        elif not in_string:
            depth += (character in ("[", "{")) - (character in ("]", "}"))
            if depth > MAX_DEPTH:
                raise BadPayloadError(f"it is nested more than {MAX_DEPTH} deep")


_reader: Final = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_NamedNumber
)


def _with_raw_texts(text: str) -> Any:  # noqa: ANN401 - of any type
    """Parse a valid text like `_reader`, but with the texts of arrays and objects."""
    around: list[tuple[list[Any], int]] = [([], 0)]
    for token in _TOKEN.finditer(text):
        first = token[0][0]
        if first in "[{":
            around.append(([], token.start()))
        elif first in "]}":
            members, start = around.pop()
            made: _Array | _Object = (
                _Array(members) if first == "]" else _Object(zip(members[::2], members[1::2], strict=True))
            )
            made.text, made.span = text, (start, token.end())
            around[-1][0].append(made)
        else:
            around[-1][0].append(_reader.decode(token[0]))
    return around[0][0][0]


def _shown(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list):
        return "an object" if isinstance(value, _Object) else "an array"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = json.dumps(value, ensure_ascii=not _is_text(value)) if type(value) is str else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _mismatch(step: Step, value: Any) -> BadPayloadError:  # noqa: ANN401
    return BadPayloadError(f"{_shown(value)} is not a valid {step.title}")


def _is_text(value: str) -> bool:
    """Return whether a text can be UTF-8: half a surrogate pair cannot."""
    return value.isascii() or not _SURROGATE.search(value)


# -- converters of the values that `_reader` returns, except null


def _convert(step: Step, value: Any) -> Any:  # noqa: ANN401
    return None if value is None else _CONVERTERS[step.code](step, value)


def _convert_within(step: Step, value: Any, at: int | str) -> Any:  # noqa: ANN401
    try:
        return _convert(step, value)
    except BadPayloadError as bad:
        bad.path.append(f"[{_shown(at)}]")
        raise


def _boolean(step: Step, value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise _mismatch(step, value)
    return value


def _int(step: Step, value: Any) -> int:  # noqa: ANN401
    if step.unit_ns and isinstance(value, list):
        number = _ns_of_day(step, value, _parts(step, value, (2, 3, 4))) // step.unit_ns
        if number >= 1 << step.type.bit_width - 1:
            raise _mismatch(step, value)
        return number
    return _int_within(step, value, step.type.bit_width)


def _int_within(step: Step, value: Any, bits: int, factor: int = 1) -> int:  # noqa: ANN401
    if isinstance(value, _Number) and len(value) <= _MAX_DIGITS + 1 and _INTEGER.fullmatch(value):
        number = int(value) * factor
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return number
    raise _mismatch(step, value)


def _double(step: Step, value: Any) -> float:  # noqa: ANN401
    if isinstance(value, _Number):
        number = float(value)
        if math.isfinite(number):
            return number
    elif isinstance(value, str) and value in _NAMED_FLOATS:
        return _NAMED_FLOATS[value]
    raise _mismatch(step, value)


def _float(step: Step, value: Any) -> float:  # noqa: ANN401
    number = _double(step, value)
    try:
        struct.pack("<f", number)
    except OverflowError:
        raise _mismatch(step, value) from None
    return number


def unscaled_of(text: str, precision: int, scale: int) -> int | None:
    """Return the digits of a decimal as an integer; None if the text is not a number, or does not fit the decimal.

    Example:
        >>> unscaled_of("-1.50", 3, 2), unscaled_of("15e-1", 3, 2), unscaled_of("1.505", 9, 2), unscaled_of("10", 3, 2)
        (-150, 150, None, None)
    """
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent = found.groups(default="")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    power = exponent.lstrip("+-0")
    if len(power) > _MAX_EXPONENT_DIGITS:
        return None
    shift = (
        int(("-" if exponent[:1] == "-" else "") + (power or "0"))
        - len(fraction)
        + len(digits)
        - len(significant)
        + scale
    )
    if shift < 0 or len(significant) + shift > precision:
        return None
    unscaled: int = int(sign + significant) * 10**shift
    return unscaled


def _decimal(step: Step, value: Any) -> Decimal:  # noqa: ANN401
    if isinstance(value, str):
        unscaled = unscaled_of(value, step.type.precision, step.type.scale)
        if unscaled is not None:
            digits = tuple(map(int, str(abs(unscaled))))
            return Decimal((unscaled < 0, digits, -step.type.scale))
    raise _mismatch(step, value)


def _text(step: Step, value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if not isinstance(value, _Array | _Object) or not value.text:
            raise _RawTextNeeded
        return value.text[slice(*value.span)]
    if not _is_text(value):
        raise _mismatch(step, value)
    return str(value)


def _binary(step: Step, value: Any) -> bytes:  # noqa: ANN401
    if type(value) is not str or len(value) % 4 or not _BASE64.fullmatch(value):
        raise _mismatch(step, value)
    return binascii.a2b_base64(value)


def _parts(step: Step, value: list[Any], counts: tuple[int, ...]) -> list[int]:
    """Return the integers of an array whose length is one of `counts`."""
    if isinstance(value, _Object) or len(value) not in counts:
        raise _mismatch(step, value)
    try:
        return [_int_within(step, part, 64) for part in value]
    except BadPayloadError:
        raise _mismatch(step, value) from None


def _ns_of_day(step: Step, value: Any, parts: Sequence[int]) -> int:  # noqa: ANN401
    """Return the nanoseconds of hour, minute, and optional second and nanosecond."""
    hour, minute, second, ns = (*parts, 0, 0)[:4]
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= ns < 10**9):
        raise _mismatch(step, value)
    return ((hour * 60 + minute) * 60 + second) * 10**9 + ns


def _day(step: Step, value: Any, parts: Sequence[int | str]) -> int:  # noqa: ANN401
    year, month, day = map(int, parts)
    try:
        return datetime.date(year, month, day).toordinal() - _EPOCH_DAY
    except (ValueError, OverflowError):
        raise _mismatch(step, value) from None


def _date(step: Step, value: Any) -> int:  # noqa: ANN401
    if isinstance(value, _Number) and step.factor:
        return _int_within(step, value, 32)
    if isinstance(value, list):
        return _day(step, value, _parts(step, value, (3,)))
    found = _DATE.fullmatch(value) if type(value) is str else None
    if found is None:
        raise _mismatch(step, value)
    return _day(step, value, found.groups())


def _timestamp(step: Step, value: Any) -> int:  # noqa: ANN401
    if isinstance(value, _Number) and step.factor:
        seconds_and_ns = _SECONDS.fullmatch(value) if step.has_seconds else None
        if seconds_and_ns is None:
            return _int_within(step, value, 64, step.factor)
        return _seconds(step, value, *seconds_and_ns.groups())
    if isinstance(value, list) and not step.type.tz:
        parts = _parts(step, value, (5, 6, 7))
        return _day(step, value, parts[:3]) * _DAY_US + _ns_of_day(step, value, parts[3:]) // 1000
    found = _TIMESTAMP.fullmatch(value) if type(value) is str else None
    if found is None:
        raise _mismatch(step, value)
    fraction, zone = found.groups()[6:]
    offset = 0
    if zone and zone[0] in "+-":
        minutes = int(zone[-2:]) if len(zone) > len("+00") else 0
        offset = int(zone[1:3]) * 60 + minutes
        if minutes > 59 or offset > _MAX_OFFSET:
            raise _mismatch(step, value)
        offset = -offset if zone[0] == "-" else offset
    if zone and not step.type.tz:
        raise _mismatch(step, value)
    time_ns = _ns_of_day(step, value, [int(part or 0) for part in found.groups()[3:6]])
    day = _day(step, value, found.groups()[:3])
    if step.type.tz and not zone:
        raise BadPayloadError(f"{_shown(value)} names no time zone; read it as timestamp_ntz, or as string")
    return day * _DAY_US + time_ns // 1000 - offset * 60_000_000 + _microseconds(fraction or "")


def _microseconds(fraction: str) -> int:
    return int(f"{fraction}000000"[:6])


def _seconds(step: Step, value: _Number, sign: str, seconds: str, fraction: str) -> int:
    """Return the microseconds of an Instant; its fraction counts towards the future, even for negative seconds."""
    whole = int(seconds) if len(seconds) <= _MAX_DIGITS else 1 << 63
    us = _microseconds(fraction)
    # Between -1 and 0 seconds, the digits count from 0 towards the past.
    us = whole * 1_000_000 + us if not sign else us - whole * 1_000_000 if whole else -us
    if whole > _MAX_SECONDS or us >= 1 << 63:
        raise _mismatch(step, value)
    return us


def _struct(step: Step, value: Any) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, _Object):
        raise _mismatch(step, value)
    slots = {key: slot for slot, key in enumerate(step.keys)}
    made: dict[str, Any] = {}
    for key, member in value:
        slot = slots.get(key)
        if slot is not None:
            try:
                made[step.names[slot]] = _convert(step.steps[slot], member)
            except BadPayloadError as bad:
                bad.path.append(f".{key}")
                raise
    return made


def _list(step: Step, value: Any) -> list[Any]:  # noqa: ANN401
    if not isinstance(value, list) or isinstance(value, _Object):
        raise _mismatch(step, value)
    return [_convert_within(step.steps[0], item, at) for at, item in enumerate(value)]


def _map(step: Step, value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    if not isinstance(value, _Object):
        raise _mismatch(step, value)
    made: dict[str, Any] = {}
    for key, member in value:
        if not _is_text(key):
            raise BadPayloadError(f"the key {_shown(key)} is not a valid string")
        item = _convert_within(step.steps[0], member, key)
        made.pop(key, None)  # the last of several equal keys counts, with its position
        made[key] = item
    return list(made.items())


_CONVERTERS: Final[dict[str, Callable[[Step, Any], Any]]] = {
    "NOTHING": lambda _step, _value: None,
    "BOOLEAN": _boolean,
    "INT": _int,
    "FLOAT": _float,
    "DOUBLE": _double,
    "DECIMAL": _decimal,
    "TEXT": _text,
    "BINARY": _binary,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "STRUCT": _struct,
    "LIST": _list,
    "MAP": _map,
}
