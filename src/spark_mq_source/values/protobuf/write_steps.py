"""The steps that write Arrow structs as protobuf, derived from descriptor and Arrow type, for the compiled encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.values.protobuf.schema import (
    ENUM_WITHOUT_NAME,
    KINDS,
    descriptor_of,
    find_field,
    is_map,
    is_packed,
    is_repeated,
    is_required,
    is_time,
    time_type_of,
)
from spark_mq_source.values.steps import check_write_step

NO_NULL: Final = "is NULL in a row, which Protobuf cannot represent here"
NO_NAME: Final = "has a text in a row that is not a name of its enum"
NO_NUMBER: Final = "has a number in a row that is not a value of its enum"
NO_UNSIGNED: Final = "has a number in a row that does not fit its unsigned field"
NO_CHOICE: Final = "and another field of its oneof are both set in a row, but at most one may be"

_SIZED: Final = 2
_START_GROUP, _END_GROUP = 3, 4


@dataclass(frozen=True, slots=True)
class WriteStep:
    """One action that writes a value.

    Attributes:
        code: the content of the column; ``_encode_native.pxd`` has all codes, as for `form`.
        form: the form of a number on the wire.
        column: the field of the enclosing struct that contains the values.
        head: the tag before each value; empty within a packed field.
        is_implicit: whether zero is left out.
        is_required: whether a value is required.
        steps: the inner steps, in the order of the fields' numbers.
        names: of an enum: the number of each name.
        unknown: of an open enum: the prefix for a number without a name.
    """

    code: str
    path: str = ""
    number: int = 0
    column: int = -1
    head: bytes = b""
    form: str = "VARINT"
    is_implicit: bool = False
    is_required: bool = False
    oneof: int = -1
    steps: tuple[WriteStep, ...] = ()
    names: Mapping[bytes, int] = field(default_factory=dict)
    unknown: str | None = None

    def number_of(self, name: bytes) -> int | None:
        """Return the number for an enum's name, or for the text of a number without a name; None for another text."""
        if name in self.names:
            return self.names[name]
        if self.unknown is not None and name.startswith(prefix := self.unknown.encode()):
            try:
                number = int(name.removeprefix(prefix))
            except ValueError:
                return None
            return number if -(2**31) <= number < 2**31 else None
        return None


def plan_writing(type_: pa.DataType, descriptors: bytes, message: str, column: str = "value") -> WriteStep:
    """Return the step that writes the structs of a column.

    Raises:
        OptionError: the descriptors or the name are wrong, or the type does not fit the message; all problems in one
            sentence.
    """
    found = descriptor_of(descriptors, message)
    if not pa.types.is_struct(type_):
        raise OptionError(f"column {column} is {type_}: a protobuf message is written of a struct, such as struct(*)")
    problems: list[str] = []
    steps = _fields(found, type_, column, problems)
    if problems:
        raise OptionError(f"the columns do not fit the protobuf message {found.full_name}: {'; '.join(problems)}")
    step = WriteStep("MESSAGE", column, steps=steps)
    check_write_step(step, type_, _READS)
    return step


def _fields(message: Descriptor, struct: pa.StructType, path: str, problems: list[str]) -> tuple[WriteStep, ...]:
    steps = []
    paths: dict[str, list[str]] = {one.name: [] for one in message.fields}
    for at, column in enumerate(struct):
        inside = f"{path}.{column.name}"
        found = find_field(message, column.name)
        if isinstance(found, str):
            problems.append(f"{inside} is not a field of {message.full_name} ({found})")
            continue
        paths[found.name].append(inside)
        step = _field(found, column.type, inside, problems)
        if step is not None:
            steps.append(replace(step, column=at))
    problems += [f"{' and '.join(several)} are one field" for several in paths.values() if len(several) > 1]
    problems += [
        f"{path}.{one.name} is missing, which is required"
        for one in message.fields
        if is_required(one) and not paths[one.name]
    ]
    return tuple(sorted(steps, key=lambda step: step.number))


def _field(field_: FieldDescriptor, type_: pa.DataType, path: str, problems: list[str]) -> WriteStep | None:
    if is_map(field_):
        return _map(field_, type_, path, problems)
    if is_repeated(field_):
        return _list(field_, type_, path, problems)
    step = _value(field_, type_, path, problems)
    if step is None:
        return None
    oneof = field_.containing_oneof
    return replace(
        step,
        is_implicit=not field_.has_presence,
        is_required=is_required(field_),
        oneof=oneof.index if oneof is not None and len(oneof.fields) > 1 else -1,
    )


def _map(field_: FieldDescriptor, type_: pa.DataType, path: str, problems: list[str]) -> WriteStep | None:
    if not pa.types.is_map(type_):
        problems.append(f"{path} is {type_}, which cannot be written as a map")
        return None
    steps = []
    for part, wanted in zip(field_.message_type.fields, (type_.key_type, type_.item_type), strict=True):  # type: ignore[union-attr]
        step = _value(part, wanted, f"{path}{{}}", problems)
        if step is None:
            return None
        steps.append(replace(step, is_required=True))
    head = encode_varint(field_.number << 3 | _SIZED)
    return WriteStep("MAP", path, field_.number, head=head, steps=tuple(steps))


def _list(field_: FieldDescriptor, type_: pa.DataType, path: str, problems: list[str]) -> WriteStep | None:
    if not pa.types.is_list(type_):
        problems.append(f"{path} is {type_}, which cannot be written as a repeated field: it needs an array")
        return None
    element = _value(field_, type_.value_type, f"{path}[]", problems)
    if element is None:
        return None
    element = replace(element, is_required=True)
    if not is_packed(field_):
        return WriteStep("LIST", path, field_.number, steps=(element,))
    head = encode_varint(field_.number << 3 | _SIZED)
    return WriteStep("PACKED", path, field_.number, head=head, steps=(replace(element, head=b""),))


def _value(field_: FieldDescriptor, type_: pa.DataType, path: str, problems: list[str]) -> WriteStep | None:
    """Return the step for a field's value or for an element of the field."""
    kind = KINDS[field_.type]
    inner = field_.message_type
    head = encode_varint(field_.number << 3 | kind.wire_type)
    step = WriteStep("MESSAGE", path, field_.number, head=head, form=kind.form)
    if inner is None:
        code = kind.codes.get(type_)
        enum = field_.enum_type
        if enum is not None:
            names = {one.name.encode(): one.number for one in enum.values}
            unknown = None if enum.is_closed else ENUM_WITHOUT_NAME.format(enum.name)
            step = replace(step, names=names, unknown=unknown)
            if code == "INT" and enum.is_closed:
                code = "CHECKED"
    elif pa.types.is_struct(type_):
        code = "GROUP" if field_.type == FieldDescriptor.TYPE_GROUP else "MESSAGE"
        step = replace(step, steps=_fields(inner, type_, path, problems))
    else:
        code = _time_code(inner, type_)
        if code is not None:
            parts = [
                WriteStep(
                    "LONG",
                    path,
                    one.number,
                    head=encode_varint(one.number << 3),
                    is_implicit=not one.has_presence,
                )
                for one in inner.fields
            ]
            step = replace(step, steps=tuple(parts))
    if code is None:
        name = FieldDescriptorProto.Type.Name(field_.type).removeprefix("TYPE_").lower()  # type: ignore[arg-type]
        wanted = f"the message {inner.full_name}" if inner is not None else name
        problems.append(f"{path} is {type_}, which cannot be written as {wanted}: cast it")
        return None
    return replace(step, code=code)


def _time_code(message: Descriptor, type_: pa.DataType) -> str | None:
    time = time_type_of(message)
    if time is None or not is_time(type_, time):
        return None
    return "DURATION" if pa.types.is_duration(time) else "TIMESTAMP"


def end_of_group(step: WriteStep) -> bytes:
    """Return the tag of a group's end."""
    return encode_varint(step.number << 3 | _END_GROUP)


_READS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "BYTE": pa.types.is_int8,
    "SHORT": pa.types.is_int16,
    "INT": lambda type_: pa.types.is_int32(type_) or pa.types.is_float32(type_),
    "LONG": lambda type_: pa.types.is_int64(type_) or pa.types.is_float64(type_),
    "WIDE": pa.types.is_int64,
    "DECIMAL": pa.types.is_decimal128,
    "BOOLEAN": pa.types.is_boolean,
    "FLOAT": pa.types.is_float32,
    "SIZED": lambda type_: pa.types.is_string(type_) or pa.types.is_binary(type_),
    "NAME": pa.types.is_string,
    "CHECKED": pa.types.is_int32,
    "TIMESTAMP": pa.types.is_timestamp,
    "DURATION": pa.types.is_duration,
    "MESSAGE": pa.types.is_struct,
    "GROUP": pa.types.is_struct,
    "LIST": pa.types.is_list,
    "PACKED": pa.types.is_list,
    "MAP": pa.types.is_map,
}
