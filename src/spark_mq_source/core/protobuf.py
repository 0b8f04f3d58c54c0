"""Protobuf messages declared as dataclasses and named tuples: annotations give the numbers and types on the wire.

::

    @dataclass(frozen=True, slots=True)
    class MessageId:
        ledger_id: Annotated[Uint64, 1]
        partition: Annotated[Int32, 3] = -1
        ack_set: Annotated[tuple[Int64, ...], 5] = ()

Besides the integers below, a field can be a `bool`, `str`, `bytes`, `float` (a double), an `IntEnum` (an int32) or a
message; a tuple or a sequence is a repeated field. A field without a number is not written, and a field without a
default is required. A `TypedDict` also declares a message; write it with protobuf's class (`class_of`).

The library `protobuf` encodes and parses the bytes with classes built here at run time, because code that its compiler
generates rejects libraries older than the compiler. The classes have their own descriptor pool, because `pulsar-client`
and others register messages of the same names in the default pool. Works with protobuf 4.25 and newer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum
from functools import partial
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message_factory import GetMessageClass

from spark_mq_source.core.errors import CorruptMessageError

_OPTIONAL, _REQUIRED, _REPEATED = 1, 2, 3
_LABELS: Final[dict[object, int]] = {tuple: _REPEATED, Sequence: _REPEATED}
_PACKAGE: Final = "spark_mq_source"
_UINT64: Final = 1 << 64


class _Number(IntEnum):
    INT32 = FieldDescriptorProto.TYPE_INT32
    UINT32 = FieldDescriptorProto.TYPE_UINT32
    INT64 = FieldDescriptorProto.TYPE_INT64
    UINT64 = FieldDescriptorProto.TYPE_UINT64


Int32 = Annotated[int, _Number.INT32]
Uint32 = Annotated[int, _Number.UINT32]
Int64 = Annotated[int, _Number.INT64]
Uint64 = Annotated[int, _Number.UINT64]
"""Numbers from 2^63 on are negative in this package's classes, because brokers encode "none" as 2^64-1."""

_TYPES: Final[dict[type, int]] = {
    bool: FieldDescriptorProto.TYPE_BOOL,
    float: FieldDescriptorProto.TYPE_DOUBLE,
    str: FieldDescriptorProto.TYPE_STRING,
    bytes: FieldDescriptorProto.TYPE_BYTES,
}
MessageT = TypeVar("MessageT")


class MissingFieldsError(ValueError):
    """A message lacks required fields, whose names are the arguments."""


class _Field(NamedTuple):
    number: int
    name: str
    label: int
    wire_type: int | None
    """None for a message."""
    kind: type
    """The type of a value."""
    default: object


class _Plan(NamedTuple):
    make: type[Any]
    """Protobuf's class."""
    contents: Callable[[object], tuple[Any, ...]]
    """The values of the fields."""
    writes: list[tuple[str, object, bool, Callable[[Any, Any], None] | None]]
    """For each field: its name, the value that is not written, whether it is a `Uint64`, and the function that fills
    protobuf's container for a message or for repeated values."""
    reads: dict[Any, tuple[str, Callable[[Any], object] | None]]
    """For each field, by protobuf's descriptor: its name, and the conversion from protobuf's value."""
    empty: dict[str, tuple[()]]
    """The repeated fields as empty tuples."""


class ProtobufCodec:
    """Encoder and decoder of messages; it evaluates the annotations of a class once.

    None is not written, and an absent field gets the class's default.

    Args:
        leave_defaults_out: classes whose fields are not written if they have their default.
    """

    def __init__(self, leave_defaults_out: Collection[type] = ()) -> None:
        self._leave_defaults_out = leave_defaults_out
        self._plans: dict[type, _Plan] = {}
        self._pool = DescriptorPool()

    def class_of(self, kind: type) -> type[Any]:
        """Return protobuf's class for a message."""
        return (self._plans.get(kind) or self._plan_of(kind)).make

    def encode(self, message: object) -> bytes:
        """Encode a message.

        Raises:
            TypeError: a field has the wrong type.
            ValueError: a number is out of range, a text is not Unicode, or a required field is None.

        Example:
            >>> class KeyValue(NamedTuple):
            ...     key: Annotated[str, 1]
            ...     value: Annotated[Int32, 2]
            >>> ProtobufCodec().encode(KeyValue("k", 300)).hex(" ", -3)
            '0a016b 10ac02'
        """
        target = self.class_of(type(message))()
        self.fill(target, message)
        return serialized(target)

    def fill(self, target: Any, message: object) -> None:  # noqa: ANN401 - of protobuf's classes
        """Write the fields of a message into an instance of protobuf's class; see `encode`."""
        plan = self._plans.get(type(message)) or self._plan_of(type(message))
        for (name, left_out, unsigned, write), content in zip(plan.writes, plan.contents(message), strict=True):
            if content is None or content == left_out:
                continue
            if write is not None:
                write(getattr(target, name), content)
            else:
                setattr(target, name, content + _UINT64 if unsigned and content < 0 else content)

    def decode(self, kind: type[MessageT], data: bytes, /, **given: object) -> MessageT:
        """Decode a message of the class `kind`.

        Raises:
            CorruptMessageError: the bytes cannot be parsed.
            MissingFieldsError: required fields are absent.
            ValueError: a text is not UTF-8, or a number is not a value of its enum.

        Example:
            >>> class KeyValue(NamedTuple):
            ...     key: Annotated[str, 1]
            ...     value: Annotated[Int32, 2] = -1
            >>> ProtobufCodec().decode(KeyValue, bytes.fromhex("0a016b"))
            KeyValue(key='k', value=-1)
        """
        return self.message_of(kind, parsed(self.class_of(kind), data), **given)

    def message_of(self, kind: type[MessageT], instance: Any, /, **given: object) -> MessageT:  # noqa: ANN401
        """Convert an instance of protobuf's class to a message of class `kind`; see `decode`."""
        _, _, _, reads, empty = self._plans.get(kind) or self._plan_of(kind)
        fields = empty | given
        for descriptor, content in instance.ListFields():
            name, convert = reads[descriptor]
            fields[name] = content if convert is None else convert(content)
        return kind(**fields)

    def _plan_of(self, kind: type) -> _Plan:
        fields = list(_fields_of(kind))
        names = [field.name for field in fields]
        make = self._make_class(kind, fields)
        descriptors = make.DESCRIPTOR.fields_by_name
        plan = self._plans[kind] = _Plan(
            make,
            attrgetter(*names) if len(names) > 1 else lambda message: tuple([getattr(message, name) for name in names]),
            [
                (
                    field.name,
                    field.default if kind in self._leave_defaults_out else None,
                    field.wire_type == _Number.UINT64,
                    self._writer_of(field),
                )
                for field in fields
            ],
            {descriptors[field.name]: (field.name, self._reader_of(field)) for field in fields},
            {field.name: () for field in fields if field.label == _REPEATED},
        )
        return plan

    def _make_class(self, kind: type, fields: list[_Field]) -> type[Any]:
        file = FileDescriptorProto(name=kind.__name__, package=_PACKAGE, syntax="proto2")
        message = file.message_type.add(name=kind.__name__)
        for field in fields:
            declared = message.field.add(name=field.name, number=field.number, label=field.label)
            if field.wire_type is not None:
                declared.type = field.wire_type  # type: ignore[assignment]
                continue
            declared.type_name = f".{_PACKAGE}.{field.kind.__name__}"
            if field.kind is not kind and field.kind.__name__ not in file.dependency:
                self.class_of(field.kind)
                file.dependency.append(field.kind.__name__)
        self._pool.AddSerializedFile(file.SerializeToString())
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{_PACKAGE}.{kind.__name__}"))

    def _writer_of(self, field: _Field) -> Callable[[Any, Any], None] | None:
        if field.wire_type is not None:
            return None if field.label != _REPEATED else lambda target, content: target.extend(content)
        return self._fill_parts if field.label == _REPEATED else self._fill_part

    def _fill_part(self, target: Any, part: object) -> None:  # noqa: ANN401 - of protobuf's classes
        target.SetInParent()
        self.fill(target, part)

    def _fill_parts(self, target: Any, parts: Collection[object]) -> None:  # noqa: ANN401 - of protobuf's classes
        for part in parts:
            if isinstance(part, dict):
                target.add(**part)
            else:
                self.fill(target.add(), part)

    def _reader_of(self, field: _Field) -> Callable[[Any], object] | None:
        convert: Callable[[Any], object] | None = None
        if field.wire_type is None:
            convert = partial(self.message_of, field.kind)
        elif field.wire_type == _Number.UINT64:
            convert = signed64
        elif field.wire_type == FieldDescriptorProto.TYPE_STRING:
            convert = _text_of
        elif field.kind is not int and field.wire_type == _Number.INT32:
            convert = field.kind
        if field.label != _REPEATED:
            return convert
        return tuple if convert is None else lambda items: tuple(map(convert, items))


def parsed(make: type[Any], data: bytes) -> Any:  # noqa: ANN401 - of `make`
    """Parse bytes into an instance of protobuf's class.

    Raises:
        CorruptMessageError: the bytes cannot be parsed.
        MissingFieldsError: required fields are absent.
    """
    message = make()
    try:
        message.MergeFromString(data)
    except (DecodeError, ValueError) as error:
        raise CorruptMessageError(str(error)) from error
    if not message.IsInitialized():
        # The Python runtimes parse a message without required fields, although they refuse to write it.
        raise MissingFieldsError(*message.FindInitializationErrors())
    return message


def serialized(message: Any) -> bytes:  # noqa: ANN401 - of protobuf's classes
    """Serialize an instance of protobuf's class.

    Raises:
        ValueError: a required field is absent.
    """
    try:
        return message.SerializeToString()  # type: ignore[no-any-return]
    except EncodeError as error:
        raise ValueError(str(error)) from error


def _fields_of(message: type) -> Iterator[_Field]:
    defaults: dict[str, object]
    if is_typeddict(message):
        defaults = dict.fromkeys(message.__required_keys__, inspect.Parameter.empty)  # type: ignore[attr-defined]
    else:
        defaults = {name: parameter.default for name, parameter in inspect.signature(message).parameters.items()}
    for name, annotation in get_type_hints(message, include_extras=True).items():
        hint = annotation
        marks: dict[type, Any] = {}
        label = _REQUIRED if defaults.get(name) is inspect.Parameter.empty else _OPTIONAL
        while (origin := get_origin(hint)) is not None:
            hint, *more = (argument for argument in get_args(hint) if argument is not NoneType)
            marks |= {type(mark): mark for mark in more}
            label = _LABELS.get(origin, label)
        if int in marks:
            wire_type = _TYPES.get(hint) or marks.get(_Number)
            if wire_type is None and issubclass(hint, int):
                wire_type = _Number.INT32
            yield _Field(marks[int], name, label, wire_type, hint, None if label == _REQUIRED else defaults.get(name))


def constant_name(class_name: str) -> str:
    """Return the name that the protocol's enumeration of messages has for a class.

    Example:
        >>> constant_name("SendReceipt")
        'SEND_RECEIPT'
    """
    return re.sub("(?<!^)(?=[A-Z])", "_", class_name).upper()


def signed64(value: int) -> int:
    """Convert a `Uint64` to its value in this package's classes.

    Example:
        >>> signed64(2**64 - 1)
        -1
    """
    return value - _UINT64 if value >> 63 else value


def _text_of(value: object) -> str:
    # For invalid UTF-8, some Python runtimes of protobuf return the bytes instead of raising an error.
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not UTF-8")  # noqa: TRY004 - the peer's error, caught with the other ValueErrors
    return value
