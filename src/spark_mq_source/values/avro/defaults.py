"""Default values (JSON in a schema) encoded as Avro, so that a decoder reads them like any other bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from spark_mq_source.core.varint import encode_varint
from spark_mq_source.values.avro.schema import AvroType
from spark_mq_source.values.avro.types import inner_of


def encode_default(type_: AvroType, value: Any) -> bytes:  # noqa: ANN401 - JSON
    r"""Encode a default value.

    Raises:
        ValueError: the value does not have that type.

    Example:
        >>> encode_default(AvroType("union", branches=(AvroType("null"), AvroType("string"))), "ab")
        b'\x02\x04ab'
    """
    try:
        return _encoded(type_, value)
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"{value!r} is not a value of {type_!r}") from error


def _encoded(type_: AvroType, value: Any) -> bytes:  # noqa: ANN401, PLR0911 - JSON; a kind each
    match type_.kind:
        case "null":
            _check(value is None)
            return b""
        case "boolean":
            return bytes([_checked(value, bool)])
        case "int" | "long" as kind:
            bits = 31 if kind == "int" else 63
            _check(-(1 << bits) <= _checked(value, int) < 1 << bits)
            return _zigzag(value)
        case "float" | "double" as kind:
            # Java's library writes numbers that JSON cannot express as texts.
            number = value if isinstance(value, str) else _checked(value, (int, float))
            return struct.pack("<f" if kind == "float" else "<d", float(number))
        case "string":
            return _sized(_checked(value, str).encode())
        case "bytes":
            return _sized(_checked(value, str).encode("latin-1"))
        case "fixed":
            data: bytes = _checked(value, str).encode("latin-1")
            _check(len(data) == type_.size)
            return data
        case "enum":
            return _zigzag(type_.symbols.index(value))
        case "array":
            return _block([_encoded(inner_of(type_), one) for one in _checked(value, list)])
        case "map":
            items = _checked(value, dict).items()
            return _block([_sized(key.encode()) + _encoded(inner_of(type_), one) for key, one in items])
        case "union":
            for number, branch in enumerate(type_.branches):
                with suppress(ValueError):
                    return _zigzag(number) + encode_default(branch, value)
            raise ValueError
    given = _checked(value, dict)
    _check(all(field.name in given or field.has_default for field in type_.fields))
    return b"".join(_encoded(field.type, given.get(field.name, field.default)) for field in type_.fields)


def _check(fits: bool) -> None:
    if not fits:
        raise ValueError


def _checked(value: Any, types: type | tuple[type, ...]) -> Any:  # noqa: ANN401 - JSON
    # In Python True is an int; in JSON it is not a number.
    _check(isinstance(value, types) and (types is bool or not isinstance(value, bool)))
    return value


def _block(items: Sequence[bytes]) -> bytes:
    return _zigzag(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _sized(data: bytes) -> bytes:
    return _zigzag(len(data)) + data


def _zigzag(value: int) -> bytes:
    return encode_varint(value << 1 if value >= 0 else ~(value << 1))
