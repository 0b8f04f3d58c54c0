"""Encodes protobuf for the interpreter: the twin of ``_protobuf_encode_native``. Protobuf's runtime writes the bytes.

Its classes are made for the steps: they tell absent from zero, texts are bytes to them, and maps are repeated entries,
which stay in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from spark_mq_source.core.values._loops_python import payloads_of, unwritable
from spark_mq_source.core.values.protobuf_write_steps import (
    NO_CHOICE,
    NO_NAME,
    NO_NULL,
    NO_NUMBER,
    NO_UNSIGNED,
    Form,
    WriteCode,
    WriteStep,
)

_PACKAGE: Final = "steps"
_MESSAGES: Final = (WriteCode.MESSAGE, WriteCode.GROUP, WriteCode.TIMESTAMP, WriteCode.DURATION)
_Put = Callable[[Any, int], None]
"""Writes a row of a column into an instance of protobuf's class."""


def encode(step: WriteStep, array: pa.Array) -> pa.BinaryArray:
    """The bytes of each value; NULL where it is NULL.

    Raises:
        UnwritableRowError: a value does not fit the message, or all do not fit one array.
    """
    file = FileDescriptorProto(name="steps.proto", package=_PACKAGE, syntax="proto2")
    _declare(file, step)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    make: type[Any] = GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.M0"))
    put = _fields(step, array)

    def cell(row: int) -> bytes:
        message = make()
        put(message, row)
        data: bytes = message.SerializeToString()
        return data

    return payloads_of(cell(row) if is_valid else None for row, is_valid in enumerate(array.is_valid().to_pylist()))


def _declare(file: FileDescriptorProto, step: WriteStep) -> str:
    """Adds the class of a message, and those beneath it; returns its name."""
    message = file.message_type.add(name=f"M{len(file.message_type)}")
    for one in step.steps:
        field = message.field.add(name=f"f{one.number}", number=one.number, label="LABEL_OPTIONAL")
        value = one
        if one.code in (WriteCode.LIST, WriteCode.PACKED, WriteCode.MAP):
            field.label = FieldDescriptor.LABEL_REPEATED  # type: ignore[assignment]
            field.options.packed = one.code == WriteCode.PACKED
            value = one if one.code == WriteCode.MAP else one.steps[0]
        if value.code in (*_MESSAGES, WriteCode.MAP):
            field.type_name = f".{_PACKAGE}.{_declare(file, value)}"
            is_group = value.code == WriteCode.GROUP
            field.type = FieldDescriptor.TYPE_GROUP if is_group else FieldDescriptor.TYPE_MESSAGE  # type: ignore[assignment]
        elif value.kind == FieldDescriptor.TYPE_STRING:
            field.type = FieldDescriptor.TYPE_BYTES  # type: ignore[assignment]
        elif value.kind == FieldDescriptor.TYPE_ENUM:
            field.type = FieldDescriptor.TYPE_INT32  # type: ignore[assignment]
        else:
            field.type = value.kind  # type: ignore[assignment]
    return message.name


def _fields(step: WriteStep, array: pa.Array | None) -> _Put:
    """Of a message, all that is in its columns."""
    puts = []
    for at, one in enumerate(step.steps):
        column = (array.items if at else array.keys) if step.code == WriteCode.MAP else array.field(one.column)  # type: ignore[union-attr]
        puts.append((one, column.is_valid().to_pylist(), _field(one, column)))

    def put(message: Any, row: int) -> None:  # noqa: ANN401 - of protobuf's classes
        chosen = set()
        for one, valid, put_one in puts:
            if not valid[row]:
                if one.is_required:
                    raise unwritable(one, NO_NULL)
                continue
            if one.oneof >= 0:
                if one.oneof in chosen:
                    raise unwritable(one, NO_CHOICE)
                chosen.add(one.oneof)
            put_one(message, row)

    return put


def _field(step: WriteStep, column: pa.Array) -> _Put:
    """Of a message, one column that has a value there."""
    name = f"f{step.number}"
    if step.code in (WriteCode.LIST, WriteCode.PACKED):
        return _elements(step.steps[0], name, column)
    if step.code == WriteCode.MAP:
        put_entry = _fields(step, column)
        ends = column.offsets.to_pylist()

        def put_entries(message: Any, row: int) -> None:  # noqa: ANN401 - of protobuf's classes
            for at in range(ends[row], ends[row + 1]):
                put_entry(getattr(message, name).add(), at)

        return put_entries
    if step.code in _MESSAGES:
        put_part = _message(step, column)

        def put_message(message: Any, row: int) -> None:  # noqa: ANN401 - of protobuf's classes
            part = getattr(message, name)
            part.SetInParent()
            put_part(part, row)

        return put_message
    value_of = _value(step, column)

    def put(message: Any, row: int) -> None:  # noqa: ANN401 - of protobuf's classes
        value = value_of(row)
        # Not so the negative zero.
        if not step.is_implicit or value or str(value) == "-0.0":
            setattr(message, name, value)

    return put


def _elements(step: WriteStep, name: str, column: pa.Array) -> _Put:
    ends = column.offsets.to_pylist()
    valid = column.values.is_valid().to_pylist()
    put_part = _message(step, column.values) if step.code in _MESSAGES else None
    value_of = None if put_part is not None else _value(step, column.values)

    def put(message: Any, row: int) -> None:  # noqa: ANN401 - of protobuf's classes
        elements = getattr(message, name)
        for at in range(ends[row], ends[row + 1]):
            if not valid[at]:
                raise unwritable(step, NO_NULL)
            if put_part is not None:
                put_part(elements.add(), at)
            else:
                elements.append(value_of(at))  # type: ignore[misc] # it is there

    return put


def _message(step: WriteStep, column: pa.Array) -> _Put:
    if step.code in (WriteCode.MESSAGE, WriteCode.GROUP):
        return _fields(step, column)
    micros = column.cast(pa.int64()).to_pylist()
    seconds_step, nanos_step = step.steps

    def put(message: Any, row: int) -> None:  # noqa: ANN401 - of protobuf's classes
        seconds, rest = divmod(micros[row], 1_000_000)
        if step.code == WriteCode.DURATION and seconds < 0 and rest:
            seconds, rest = seconds + 1, rest - 1_000_000
        if seconds or not seconds_step.is_implicit:
            setattr(message, f"f{seconds_step.number}", seconds)
        if rest or not nanos_step.is_implicit:
            setattr(message, f"f{nanos_step.number}", rest * 1000)

    return put


def _value(step: WriteStep, column: pa.Array) -> Callable[[int], Any]:
    values: list[Any] = column.to_pylist()
    if step.code == WriteCode.SIZED and step.kind == FieldDescriptor.TYPE_STRING:
        return lambda row: values[row].encode()
    if step.code in (WriteCode.NAME, WriteCode.CHECKED, WriteCode.WIDE, WriteCode.DECIMAL):
        return lambda row: _checked(step, values[row])
    if step.form in (Form.VARINT32, Form.FIXED32) and step.kind in _UNSIGNED:
        return lambda row: values[row] % 2**32
    if step.kind in _UNSIGNED:
        return lambda row: values[row] % 2**64
    return values.__getitem__


_UNSIGNED: Final = (
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_FIXED64,
)


def _checked(step: WriteStep, value: Any) -> int:  # noqa: ANN401 - a text or a number
    if step.code == WriteCode.NAME:
        number = step.number_of(value.encode())
        if number is None:
            raise unwritable(step, NO_NAME)
        return number
    if step.code == WriteCode.CHECKED:
        if value not in step.names.values():
            raise unwritable(step, NO_NUMBER)
    elif not 0 <= value < (2**32 if step.code == WriteCode.WIDE else 2**64):
        raise unwritable(step, NO_UNSIGNED)
    return int(value)
