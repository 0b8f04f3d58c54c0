"""The interpreted twin of ``_protobuf_native``: protobuf's runtime parses, with classes made for the plan.

The classes know the fields of the plan alone, so the runtime skips the others as unknown; and they tell absent from
zero. Texts are bytes to them and maps are repeated entries, because the runtime checks and orders those in ways of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_mq_source.core.values._loops_python import BadPayloadError, RowDecoder
from spark_mq_source.core.values.protobuf_schema import CORRUPT, MOST_SECONDS, FieldPlan, MessagePlan

_PACKAGE: Final = "plan"
_OPTIONAL, _REPEATED = 1, 3
_MOST_NUMBER: Final = 2**29 - 1
_UNSIGNED: Final[Mapping[int, int]] = {
    FieldDescriptor.TYPE_UINT32: 32,
    FieldDescriptor.TYPE_FIXED32: 32,
    FieldDescriptor.TYPE_UINT64: 64,
    FieldDescriptor.TYPE_FIXED64: 64,
}
_Emit = Callable[[Any], Any]


class Decoder(RowDecoder):
    """Decodes messages of one plan; see `ValueDecoder`.

    Args:
        plan: the fields of the message.
        type_: the Arrow type of a value, which fits the plan.
    """

    def __init__(self, plan: MessagePlan, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._name = plan.name
        file = FileDescriptorProto(name="plan.proto", package=_PACKAGE, syntax="proto2")
        _declare(file, plan)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        self._make: type[Any] = GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.M0"))
        self._emit = _struct(plan)

    def _read_row(self, payload: bytes) -> object:
        message = self._make()
        try:
            message.MergeFromString(payload)
        except DecodeError as error:
            raise BadPayloadError(f"it is no protobuf message {self._name} ({error})") from None
        return self._emit(message)


def _declare(file: FileDescriptorProto, plan: MessagePlan) -> str:
    """Adds the class of a plan, and those beneath it; returns its name."""
    message: DescriptorProto = file.message_type.add(name=f"M{len(file.message_type)}")
    for oneof in sorted({field.oneof for field in plan.fields if field.oneof >= 0}):
        message.oneof_decl.add(name=f"o{oneof}")
    places = {oneof.name: at for at, oneof in enumerate(message.oneof_decl)}
    if plan.name and not plan.fields:
        # Or else protobuf's C runtime lets a field 0 pass (seen in 7.36), as it does in a group that is skipped.
        message.field.add(name="unused", number=_MOST_NUMBER, label=_OPTIONAL, type="TYPE_BOOL")
    for field in plan.fields:
        declared = message.field.add(name=f"f{field.number}", number=field.number)
        declared.label = _REPEATED if field.is_repeated else _OPTIONAL  # type: ignore[assignment]
        if field.oneof >= 0:
            declared.oneof_index = places[f"o{field.oneof}"]
        kind = field.kind
        if field.message is not None:
            declared.type_name = f".{_PACKAGE}.{_declare(file, field.message)}"
        elif kind == FieldDescriptor.TYPE_GROUP:
            declared.type_name = f".{_PACKAGE}.{_declare(file, MessagePlan((), 0, ''))}"
        elif kind in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            kind = FieldDescriptor.TYPE_BYTES
        elif field.names is not None:
            kind = FieldDescriptor.TYPE_INT32
            if field.unknown is None:
                kind = FieldDescriptor.TYPE_ENUM
                enum = file.enum_type.add(name=f"E{len(file.enum_type)}")
                declared.type_name = f".{_PACKAGE}.{enum.name}"
                for number in field.names:
                    enum.value.add(name=f"{enum.name}_{number % 2**32}", number=number)
        declared.type = kind  # type: ignore[assignment]
    return message.name


# -- from a parsed message to Python objects


def _struct(plan: MessagePlan) -> _Emit:
    columns = [(field.column, field.name, _field(field)) for field in plan.fields[: plan.columns]]

    def emit(message: Any) -> dict[str, object]:  # noqa: ANN401 - of protobuf's classes
        found = {}
        for column, name, value_of in columns:
            try:
                found[column] = value_of(message)
            except BadPayloadError as bad:
                bad.path.append(f".{name}")
                raise
        return found

    return emit


def _field(field: FieldPlan) -> _Emit:
    """Of a message, the value of its field."""
    name = f"f{field.number}"
    convert = _convert(field)
    if field.is_map:
        return _map(field, name, convert)
    if field.is_repeated:
        return lambda message: _elements(getattr(message, name), convert)
    # Protobuf's class has the message that an entry of a map lacks.
    is_message = field.default is not None and field.message is not None
    default = None if field.default is None or is_message else _default(field)

    def emit(message: Any) -> object:  # noqa: ANN401 - of protobuf's classes
        if is_message or message.HasField(name):
            value = getattr(message, name)
            return None if field.is_implicit and _is_zero(value) else convert(value)
        if field.is_required:
            raise BadPayloadError(CORRUPT[-7])
        return default

    return emit


def _is_zero(value: object) -> bool:
    # Not so the negative zero.
    return not value and str(value) != "-0.0"


def _elements(values: Any, convert: _Emit) -> list[object]:  # noqa: ANN401 - protobuf's container
    found: list[object] = []
    for value in values:
        try:
            found.append(convert(value))
        except BadPayloadError as bad:
            bad.path.append(f"[{len(found)}]")
            raise
    return found


def _map(field: FieldPlan, name: str, convert: _Emit) -> _Emit:
    assert field.message is not None  # noqa: S101 - for mypy
    value = field.message.fields[1]
    is_closed = value.names is not None and value.unknown is None

    def emit(message: Any) -> list[tuple[object, object]]:  # noqa: ANN401 - of protobuf's classes
        entries = getattr(message, name)
        if is_closed:
            entries = [entry for entry in entries if not _has_unknown_value(entry)]
        found: dict[object, object] = {}
        for entry in _elements(entries, convert):
            found.pop(entry["key"], None)  # type: ignore[index] # a struct of key and value
            found[entry["key"]] = entry["value"]  # type: ignore[index]
        return list(found.items())

    return emit


def _has_unknown_value(entry: Any) -> bool:  # noqa: ANN401 - of protobuf's classes
    """Whether the closed enum has not the number in an entry of a map, which then is none."""
    unknown: Any = UnknownFieldSet(entry)
    return any(field.field_number == 2 and field.wire_type == 0 for field in unknown)


def _default(field: FieldPlan) -> object:
    value = field.default
    if isinstance(value, str):
        value = value.encode()
    return _convert(field)(value)


def _convert(field: FieldPlan) -> _Emit:
    """Of a value or an element as the class has it, what `pa.array` takes."""
    type_: Any = field.type
    if field.message is not None:
        return _struct(field.message) if field.is_map or pa.types.is_struct(type_) else _micros
    if field.kind == FieldDescriptor.TYPE_STRING:
        return _text
    if field.names is not None and pa.types.is_string(type_):
        names, unknown = field.names, field.unknown
        return lambda number: names.get(number) or f"{unknown}{number}"
    if pa.types.is_decimal(type_):
        return Decimal
    if pa.types.is_floating(type_):
        return float
    bits = _UNSIGNED.get(field.kind)
    if bits is None or (bits == 32 and type_.bit_width == 64):
        return lambda value: value
    return lambda value: value - (1 << bits) if value >> (bits - 1) else value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadPayloadError(CORRUPT[-8]) from error


def _micros(message: Any) -> int:  # noqa: ANN401 - of protobuf's classes
    seconds, nanos = message.f1, message.f2
    if abs(seconds) > MOST_SECONDS:
        raise BadPayloadError(CORRUPT[-9])
    # As in Java, which rounds towards zero.
    return int(seconds * 1_000_000 + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000)))
