"""Default values (JSON in a schema) encoded as Avro, so that a decoder reads them like any other bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

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
        return b"".join(_encoded(type_, value))
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"{value!r} is not a value of {type_!r}") from error


def _encoded(type_: AvroType, value: Any) -> Iterator[bytes]:  # noqa: ANN401 - JSON
    kind = type_.kind
    if kind == "union":
        for number, branch in enumerate(type_.branches):
            try:
                data = encode_default(branch, value)
            except ValueError:
                continue
            yield _zigzag(number) + data
            return
        raise ValueError
    if kind == "array":
        yield from _encoded_block([b"".join(_encoded(inner_of(type_), one)) for one in _checked(value, list)])
    elif kind == "map":
        items = _checked(value, dict).items()
        yield from _encoded_block(
            [_sized(key.encode()) + b"".join(_encoded(inner_of(type_), one)) for key, one in items]
        )
    elif kind == "record":
        given = _checked(value, dict)
        for field in type_.fields:
            if field.name not in given and not field.has_default:
                raise ValueError
            yield from _encoded(field.type, given.get(field.name, field.default))
    else:
        yield _encoded_leaf(type_, value)


def _encoded_leaf(type_: AvroType, value: Any) -> bytes:  # noqa: ANN401 - JSON
    if type_.kind in ("int", "long"):
        return _encoded_number(31 if type_.kind == "int" else 63, value)
    if type_.kind in ("float", "double"):
        # Java's library writes numbers that JSON cannot express as texts.
        given = value if isinstance(value, str) else _checked(value, (int, float))
        return struct.pack("<f" if type_.kind == "float" else "<d", float(given))
    if type_.kind == "fixed":
        data: bytes = _checked(value, str).encode("latin-1")
        if len(data) != type_.size:
            raise ValueError
        return data
    if type_.kind == "enum":
        return _zigzag(type_.symbols.index(value))
    return _LEAVES[type_.kind](value)


_LEAVES: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "null": lambda value: _checked(value, type(None)) or b"",
    "boolean": lambda value: bytes([_checked(value, bool)]),
    "string": lambda value: _sized(_checked(value, str).encode()),
    "bytes": lambda value: _sized(_checked(value, str).encode("latin-1")),
}


def _encoded_number(bits: int, value: Any) -> bytes:  # noqa: ANN401 - JSON
    if not -(1 << bits) <= _checked(value, int) < 1 << bits:
        raise ValueError
    return _zigzag(value)


def _checked(value: Any, types: type | tuple[type, ...]) -> Any:  # noqa: ANN401 - JSON
    # In Python True is an int; in JSON it is not a number.
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        raise ValueError
    return value


def _encoded_block(items: Sequence[bytes]) -> Iterator[bytes]:
    if items:
        yield _zigzag(len(items))
        yield from items
    yield b"\0"


def _sized(data: bytes) -> bytes:
    return _zigzag(len(data)) + data


def _zigzag(value: int) -> bytes:
    return encode_varint(value << 1 if value >= 0 else ~(value << 1))
