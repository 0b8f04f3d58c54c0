"""Protobuf messages for the oracles of messages: protobuf's runtime reads them, a short walk finds corruption.

All text is declared as bytes, because a decoder checks text only if a column is built from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

WIRE_TYPES: Final = {"bytes": 2, "bool": 0, "int32": 0, "uint32": 0, "int64": 0, "uint64": 0}
LENGTH: Final = 2
_SMALL: Final = [bytes([number]) for number in range(0x80)]
_PACKED: Final[set[str]] = set()
"""Names of types of repeated numbers."""
_TABLE: Final[list[int]] = []
for _value in range(256):
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE.append(_value)


class CorruptError(Exception):
    """The bytes are corrupt."""


def check(holds: bool, what: str) -> None:
    """Refuse corrupt bytes.

    Raises:
        CorruptError: the condition is false.
    """
    if not holds:
        raise CorruptError(what)


def make_class(name: str, fields: Mapping[str, tuple[int, str]]) -> Any:
    """Return protobuf's class of a message from names to number and type of fields; ``*type`` is repeated."""
    message = DescriptorProto(name=name)
    for field, (number, kind) in fields.items():
        if kind == "*int32":
            _PACKED.add(field)
        message.field.add(
            name=field,
            number=number,
            type=getattr(FieldDescriptorProto, f"TYPE_{kind.lstrip('*').upper()}"),
            label=FieldDescriptorProto.LABEL_REPEATED if kind[0] == "*" else FieldDescriptorProto.LABEL_OPTIONAL,
        )
    file = FileDescriptorProto(name=f"oracle_{name}.proto", package="oracle", syntax="proto2", message_type=[message])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"oracle.{name}"))


@lru_cache(50_000)
def parse(kind: Any, data: bytes, is_sound: bool = False) -> Any:
    """Parse a message.

    Args:
        kind: protobuf's class for it.
        data: its bytes.
        is_sound: whether they are undamaged: then protobuf's runtime parses them directly. Damaged bytes are walked
            first, because runtimes differ in the bytes that they refuse.

    Raises:
        CorruptError: they are no message.
    """
    if is_sound:
        return kind.FromString(data)
    fields = kind.DESCRIPTOR.fields_by_number
    parts = []
    for tag, content in walk(data):
        known = fields.get(tag >> 3)
        if known is not None and known.name in _PACKED and tag & 7 == LENGTH:
            at = 0
            while at < len(content):
                number, at = take_varint(content, at)
                parts.append(put_field(tag & ~7, number))
        elif known is not None:
            # All readers agree on this form: no number is longer than necessary.
            parts.append(put_field(tag, content))
    message = kind()
    message.MergeFromString(b"".join(parts))
    return message


def walk(data: bytes) -> list[tuple[int, Any]]:
    """Return tag and content of each field: a number, or bytes.

    Raises:
        CorruptError: the bytes are no message.
    """
    fields: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = take_varint(data, at)
        if not 8 <= tag < 1 << 32:
            raise CorruptError("number")
        content: Any
        if tag & 7 == 0:
            content, at = take_varint(data, at)
        elif tag & 7 in (1, 2, 5):
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 == LENGTH:
                size, at = take_varint(data, at)
            content, at = data[at : at + size], at + size
        else:
            raise CorruptError("wire type")
        if at > len(data):
            raise CorruptError("end")
        fields.append((tag, content))
    return fields


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and its end.

    Raises:
        CorruptError: it does not end.
    """
    for size in range(1, 11):
        if at + size > len(data):
            break
        if data[at + size - 1] < 0x80:
            if size == 1:
                return data[at], at + 1
            return sum((data[at + n] & 0x7F) << 7 * n for n in range(size)) & (1 << 64) - 1, at + size
    raise CorruptError("varint")


def put_varint(value: int, rng: Random | None = None, most: int = 10) -> bytes:
    """Return the varint of a number; with a random generator it may be padded."""
    value &= (1 << 64) - 1
    if value < 0x80 and rng is None:
        return _SMALL[value]
    size = max(1, -(-value.bit_length() // 7))
    if rng is not None:
        size = rng.randint(size, most)
    return bytes(value >> 7 * n & 0x7F | (0x80 if n < size - 1 else 0) for n in range(size))


def put_field(tag: int, content: Any, rng: Random | None = None) -> bytes:
    """Return a field's bytes."""
    number = put_varint(tag)
    if isinstance(content, int):
        return number + put_varint(content, rng)
    # A size in more than five bytes is corrupt for protobuf's runtime, but not for Java's and ours.
    return number + (put_varint(len(content), rng, 5) if tag & 7 == LENGTH else b"") + content


def put_fields(rng: Random, fields: Mapping[str, tuple[int, str]], contents: Sequence[tuple[str, Any]]) -> bytes:
    """Return a message with these fields in any order, some of them repeated, among unknown ones.

    Args:
        rng: the random generator.
        fields: as for `make_class`.
        contents: names and contents; fields of one name keep their order.
    """
    parts: list[tuple[str, bytes]] = []
    for name, content in contents:
        number, kind = fields[name]
        # Repeated numbers may be packed.
        tag = number << 3 | (LENGTH if isinstance(content, bytes) else WIRE_TYPES[kind.lstrip("*")])
        longer = rng if rng.random() < 0.1 else None
        if kind[0] != "*" and rng.random() < 0.05:
            # Readers take the last one.
            parts.append((name, put_field(tag, 1 if tag & 7 == 0 else b"earlier")))
        parts.append((name, put_field(tag, content, longer)))
    if rng.random() < 0.3:
        names = [name for name, _ in parts]
        rng.shuffle(names)
        queues: dict[str, list[bytes]] = {}
        for name, part in parts:
            queues.setdefault(name, []).append(part)
        parts = [(name, queues[name].pop(0)) for name in names]
    while rng.random() < 0.15:
        parts.insert(rng.randint(0, len(parts)), ("", _unknown(rng, fields)))
    return b"".join(part for _, part in parts)


def _unknown(rng: Random, fields: Mapping[str, tuple[int, str]]) -> bytes:
    """Return a field of an unknown number, or of a known number with another wire type."""
    number, kind = rng.choice([(rng.choice([200, 3000, (1 << 29) - 1]), ""), *fields.values()])
    wires = [
        wire
        for wire in (0, 1, 2, 5)
        if wire != WIRE_TYPES.get(kind.lstrip("*")) and (wire != LENGTH or kind != "*int32")
    ]
    wire = rng.choice(wires)
    content = {0: rng.getrandbits(64), 1: rng.randbytes(8), 2: rng.randbytes(rng.randint(0, 9)), 5: rng.randbytes(4)}
    return put_field(number << 3 | wire, content[wire])


def damaged(rng: Random, data: bytes, hostile: Sequence[bytes] = ()) -> bytes:
    """Return bytes with one to three faults, some of which are chosen to break readers."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, max(0, len(out) - 1))
        match rng.randint(0, 6 if hostile else 5) if out else 3:
            case 0:
                out[at] = rng.getrandbits(8)
            case 1:
                out[at] ^= 1 << rng.randint(0, 7)
            case 2:
                del out[at:]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 6))
            case 4:
                del out[at : at + rng.randint(1, 8)]
            case 5:
                out[at:at] = out[at : at + rng.randint(1, 20)]
            case 6:
                out[at : at + rng.randint(0, 2)] = rng.choice(hostile)
    return bytes(out)


@lru_cache(1000)
def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes, by its table."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def signed(value: int, bits: int = 64) -> int:
    """Return a number's two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def is_text(data: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def rows_of(batches: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of Arrow batches: times as numbers, maps as lists of pairs, bytes instead of text.

    All columns of a batch must be of one length, and all of their contents valid.
    """
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        columns = []
        for column in batch.columns:
            assert len(column) == batch.num_rows
            cells = (column.cast("int64") if str(column.type).startswith("timestamp") else column).to_pylist()
            columns.append([cell.encode() if isinstance(cell, str) else cell for cell in cells])
        if columns:
            rows += [dict(zip(batch.schema.names, cells, strict=True)) for cells in zip(*columns, strict=True)]
        else:
            rows += [{} for _ in range(batch.num_rows)]
    return rows
