"""Columns of a protobuf message from its descriptor, and the plan of a decoder for some of them.

The columns are those of Spark's own `from_protobuf` with its default options (Spark 4.0 to 4.3, `SchemaConverters` and
`ProtobufDeserializer` of its connector):

======================================  ===============================================================================
protobuf                                Spark
======================================  ===============================================================================
int32, sint32, sfixed32                 int
uint32, fixed32                         int: the same 32 bits, so negative from 2^31 on; as a wanted bigint, the number
int64, sint64, sfixed64                 bigint
uint64, fixed64                         bigint: likewise, negative from 2^63 on; as a wanted decimal(20,0), the number
float, double, bool, string, bytes      float, double, boolean, string, binary
enum                                    string, its name (``UNKNOWN_ENUM_VALUE_Color_7`` if an open enum has none); as
                                        a wanted int, its number
message, group, each field of a oneof   struct, or the type of the field; NULL if absent
repeated, map                           array, map; empty if absent
Timestamp, Duration                     timestamp, interval day to second (Arrow's duration): to the microsecond; as a
                                        wanted struct<seconds bigint, nanos int>, without loss
other well-known types                  structs, like any message
an empty message                        no column
======================================  ===============================================================================

An absent field is NULL, or the default that its descriptor declares. A field that does not distinguish absent from zero
(proto3 without ``optional``) is NULL if it is zero or empty.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf import __version__ as protobuf_version
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from spark_mq_source.core.errors import OptionError, UnsupportedFeatureError
from spark_mq_source.core.protobuf_fields import CORRUPT_FIELDS
from spark_mq_source.values.limits import check_size

_NEEDS: Final = "protoc --descriptor_set_out=FILE --include_imports makes a FileDescriptorSet of it"
_NEEDS_ONE: Final = "protoc --descriptor_set_out=FILE --include_imports makes one of a .proto file"
_PROTO: Final = re.compile(rb"^\s*(//|/\*|syntax\s*=|edition\s*=|package\s|import\s|message\s)")
_HAS_EDITIONS: Final = (5, 27)
_LABEL_REQUIRED: Final = 2
_LABEL_REPEATED: Final = 3


class Kind(NamedTuple):
    """A type of protobuf; for a message, which has further rules, only `wire_type` has a meaning.

    Attributes:
        read: the conversion of a number on the wire to a value; ``_decode_native.pxd`` has all.
        form: the form of a number on the wire; ``_encode_native.pxd`` has all.
        puts: the types that it can be read as, Spark's own first, then lossless ones, with the form in the column.
        codes: the types that can be written as it, without loss and in the forms that are read, with the code.
    """

    wire_type: int
    read: str
    form: str
    puts: Mapping[pa.DataType, str]
    codes: Mapping[pa.DataType, str]

    @property
    def type(self) -> pa.DataType:
        """Its type in Spark."""
        return next(iter(self.puts))


_PUT_32: Final = {pa.int32(): "INT", pa.int64(): "LONG", pa.float64(): "NUMBER"}
_PUT_INT64: Final = {pa.int64(): "LONG"}
_PUT_UINT64: Final = {pa.int64(): "LONG", pa.decimal128(20, 0): "DECIMAL"}
_OF_INT32: Final = {pa.int8(): "BYTE", pa.int16(): "SHORT", pa.int32(): "INT"}
_OF_INT64: Final = {**_OF_INT32, pa.int64(): "LONG"}
_OF_UINT32: Final = {pa.int32(): "INT", pa.int64(): "WIDE"}
_OF_ENUM: Final = {pa.string(): "NAME", pa.int32(): "INT"}

KINDS: Final[Mapping[int, Kind]] = {
    FieldDescriptor.TYPE_INT32: Kind(0, "SIGNED32", "VARINT", _PUT_32, _OF_INT32),
    FieldDescriptor.TYPE_SINT32: Kind(0, "ZIGZAG32", "ZIGZAG32", _PUT_32, _OF_INT32),
    FieldDescriptor.TYPE_SFIXED32: Kind(5, "SIGNED32", "FIXED32", _PUT_32, _OF_INT32),
    FieldDescriptor.TYPE_UINT32: Kind(0, "UNSIGNED32", "VARINT32", _PUT_32, _OF_UINT32),
    FieldDescriptor.TYPE_FIXED32: Kind(5, "UNSIGNED32", "FIXED32", _PUT_32, _OF_UINT32),
    FieldDescriptor.TYPE_INT64: Kind(0, "AS_IS", "VARINT", _PUT_INT64, _OF_INT64),
    FieldDescriptor.TYPE_SINT64: Kind(0, "ZIGZAG64", "ZIGZAG64", _PUT_INT64, _OF_INT64),
    FieldDescriptor.TYPE_SFIXED64: Kind(1, "AS_IS", "FIXED64", _PUT_INT64, _OF_INT64),
    FieldDescriptor.TYPE_UINT64: Kind(0, "AS_IS", "VARINT", _PUT_UINT64, _PUT_UINT64),
    FieldDescriptor.TYPE_FIXED64: Kind(1, "AS_IS", "FIXED64", _PUT_UINT64, _PUT_UINT64),
    FieldDescriptor.TYPE_FLOAT: Kind(
        5, "AS_IS", "FIXED32", {pa.float32(): "INT", pa.float64(): "FLOAT"}, {pa.float32(): "INT"}
    ),
    FieldDescriptor.TYPE_DOUBLE: Kind(
        1, "AS_IS", "FIXED64", {pa.float64(): "LONG"}, {pa.float64(): "LONG", pa.float32(): "FLOAT"}
    ),
    FieldDescriptor.TYPE_BOOL: Kind(0, "TRUTH", "VARINT", {pa.bool_(): "BOOL"}, {pa.bool_(): "BOOLEAN"}),
    FieldDescriptor.TYPE_ENUM: Kind(0, "SIGNED32", "VARINT", _OF_ENUM | {pa.int64(): "LONG"}, _OF_ENUM),
    FieldDescriptor.TYPE_STRING: Kind(2, "AS_IS", "VARINT", {pa.string(): "TEXT"}, {pa.string(): "SIZED"}),
    FieldDescriptor.TYPE_BYTES: Kind(2, "AS_IS", "VARINT", {pa.binary(): "BINARY"}, {pa.binary(): "SIZED"}),
    FieldDescriptor.TYPE_MESSAGE: Kind(2, "AS_IS", "VARINT", {}, {}),
    FieldDescriptor.TYPE_GROUP: Kind(3, "AS_IS", "VARINT", {}, {}),
}
_SIZES: Final = {"uint32": 2**32, "fixed32": 2**32, "uint64": 2**64, "fixed64": 2**64}

MAX_DEPTH: Final = 100
"""The maximum depth of messages and groups, as in protobuf's runtimes."""

MAX_SECONDS: Final = 2**63 // 1_000_000 - 3
"""The maximum seconds of a timestamp or duration whose microseconds, with any nanos, fit an int64."""

CORRUPT: Final = CORRUPT_FIELDS | {
    -5: "a protobuf group does not end",
    -6: f"protobuf messages are nested deeper than {MAX_DEPTH}",
    -7: "it is required, and missing",
    -8: "the text is not UTF-8",
    -9: "it is out of range as microseconds",
}
"""Reasons why a message is corrupt, by the codes of the decoders."""

ENUM_WITHOUT_NAME: Final = "UNKNOWN_ENUM_VALUE_{}_"
"""The prefix of an open enum's number without a name, as in Java."""

_MISSING: Final = -7
_TIMES: Final = {"Timestamp": pa.timestamp("us", "UTC"), "Duration": pa.duration("us")}
_TIME_PARTS: Final = [("seconds", FieldDescriptor.TYPE_INT64), ("nanos", FieldDescriptor.TYPE_INT32)]


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field of a message, for a decoder.

    Attributes:
        number: the field's number on the wire.
        read: the conversion of a number on the wire to a value; ``_decode_native.pxd`` has all, as for `put`.
        put: the form of a value, or an element, in its column.
        is_repeated: whether it is repeated, or a map.
        is_required: whether a message without it is corrupt.
        is_implicit: whether zero means absent.
        default: the value of an absent field, a message as its bytes; None for NULL.
        names: of an enum: the name of each number.
        unknown: of an open enum: the prefix for a number without a name; None if the enum is closed.
    """

    number: int
    name: str
    wire_type: int
    read: str
    put: str
    type: pa.DataType | None
    is_repeated: bool
    is_map: bool
    is_required: bool
    is_implicit: bool
    default: Any
    oneof: int
    names: Mapping[int, str] | None
    unknown: str | None
    message: MessagePlan | None


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """A message, for a decoder; it does not contain skipped fields.

    Attributes:
        fields: the fields of the columns in their order, then the fields that clear others of their oneof.
        columns: the number of fields that are columns.
    """

    fields: tuple[FieldPlan, ...]
    columns: int
    name: str


def why_of(code: int, position: int) -> str:
    """Return the reason why a message cannot be decoded.

    Args:
        code: a code of `CORRUPT`.
        position: the position of the faulty byte.

    Example:
        >>> why_of(-8, 17)
        'the text is not UTF-8 (byte 17)'
    """
    return CORRUPT[code] if code == _MISSING else f"{CORRUPT[code]} (byte {position})"


# -- from bytes to a descriptor


@lru_cache(maxsize=64)
def descriptor_of(descriptors: bytes, message: str) -> Descriptor:
    """Return the descriptor of a message.

    Args:
        descriptors: a serialized FileDescriptorSet with all its imports, in any order.
        message: the full name, or the name without the package if that is unique.

    Raises:
        OptionError: the bytes are not descriptors, an import is missing, or the message does not exist.
        UnsupportedFeatureError: the installed protobuf is too old for the descriptors.
    """
    pool, names = _pool_of(descriptors)
    found = [name for name in names if name == message] or [
        name for name in names if name.rpartition(".")[2] == message
    ]
    if len(found) != 1:
        problem = f"there are {' and '.join(found)}: give the full name" if found else f"it has {', '.join(names)}"
        raise OptionError(f"the descriptor set has no single protobuf message {message!r}; {problem}")
    return pool.FindMessageTypeByName(found[0])


@lru_cache(maxsize=64)
def _pool_of(descriptors: bytes) -> tuple[DescriptorPool, list[str]]:
    try:
        files = FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise OptionError(f"it is not a FileDescriptorSet of protobuf ({error}); {_NEEDS_ONE}") from error
    if not files:
        raise OptionError(f"it is an empty FileDescriptorSet of protobuf; {_NEEDS_ONE}")
    pool = DescriptorPool()
    for file in _in_order(files):
        # Older runtimes silently treat an edition as proto2.
        if file.syntax == "editions" and tuple(map(int, protobuf_version.split(".")[:2])) < _HAS_EDITIONS:
            raise UnsupportedFeatureError(
                f"the protobuf descriptor of {file.name} is of an edition, which the Python package protobuf has from "
                f"{'.'.join(map(str, _HAS_EDITIONS))} on, and this is {protobuf_version}: install a newer one"
            )
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as error:
            raise OptionError(f"the protobuf descriptor of {file.name} is invalid: {error}") from error
    return pool, [
        name for file in files for name in _message_names(file.message_type, f"{file.package}." if file.package else "")
    ]


def _in_order(files: Sequence[FileDescriptorProto]) -> Iterator[FileDescriptorProto]:
    """Yield each file after its imports; registries store files in any order."""
    by_name = {file.name: file for file in files}
    done: set[str] = set()
    for first, file in by_name.items():
        waiting = [] if first in done else [(first, iter(file.dependency))]
        while waiting:
            name, imports = waiting[-1]
            wanted = next((other for other in imports if other not in done), None)
            if wanted is None:
                waiting.pop()
                done.add(name)
                yield by_name[name]
            elif wanted not in by_name:
                raise OptionError(
                    f"the descriptor set lacks {wanted}, which {name} imports; {_NEEDS_ONE} with all its imports"
                )
            elif any(wanted == other for other, _ in waiting):
                raise OptionError(f"the protobuf descriptors of {name} and {wanted} import each other")
            else:
                waiting.append((wanted, iter(by_name[wanted].dependency)))


def _message_names(messages: Sequence[Any], prefix: str) -> Iterator[str]:
    for message in messages:
        if not message.options.map_entry:
            yield f"{prefix}{message.name}"
            yield from _message_names(message.nested_type, f"{prefix}{message.name}.")


def descriptors_of(definition: bytes) -> bytes:
    """Return the serialized FileDescriptorSet of an option, which may be base64.

    Raises:
        OptionError: the bytes are not a FileDescriptorSet.

    Example:
        >>> descriptors_of(b"CgkKB2EucHJvdG8=") == descriptors_of(bytes.fromhex("0a090a07612e70726f746f"))
        True
        >>> descriptors_of(b'syntax = "proto3"; message Flight {}')
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: it is the text of a .proto file, which protoc has to compile: \
protoc --descriptor_set_out=FILE --include_imports makes a FileDescriptorSet of it
    """
    with contextlib.suppress(binascii.Error):
        definition = base64.b64decode(b"".join(definition.split()), validate=True)
    if _PROTO.search(definition):
        raise OptionError(f"it is the text of a .proto file, which protoc has to compile: {_NEEDS}")
    _pool_of(definition)
    return definition


class FlatField(NamedTuple):
    """A field of a message without messages or enums.

    Attributes:
        kind: a scalar type of protobuf, such as ``sint32``.
        default: the value of an absent field in Java's form (unsigned numbers are signed, bytes are a Latin-1 text);
            None for NULL.
    """

    number: int
    name: str
    kind: str
    label: str
    default: bool | float | str | None = None


def flat_descriptors(message: str, fields: Iterable[FlatField]) -> bytes:
    """Return a serialized FileDescriptorSet with one message.

    Raises:
        ValueError: protobuf lacks the kind or label.

    Example:
        >>> descriptors = flat_descriptors("Flight", [FlatField(1, "carrier", "string", "optional")])
        >>> arrow_type_of(descriptors, "Flight")
        StructType(struct<carrier: string>)
    """
    file = FileDescriptorProto(name=f"{message}.proto", syntax="proto2")
    declared = file.message_type.add(name=message)
    for field in fields:
        kind = FieldDescriptorProto.Type.Value(f"TYPE_{field.kind.upper()}")
        label = FieldDescriptorProto.Label.Value(f"LABEL_{field.label.upper()}")
        one = declared.field.add(name=field.name, number=field.number, type=kind, label=label)
        if field.default is None:
            continue
        default = field.default
        if kind == FieldDescriptor.TYPE_BYTES:
            default = "".join(f"\\{byte:03o}" for byte in str(default).encode("latin-1"))
        elif isinstance(default, bool):
            default = str(default).lower()
        elif field.kind in _SIZES:
            default = int(default) % _SIZES[field.kind]
        one.default_value = str(default)
    return FileDescriptorSet(file=[file]).SerializeToString()


# -- from a descriptor to columns


def arrow_type_of(descriptors: bytes, message: str) -> pa.DataType:
    """Return the Arrow type of all columns of a message, as in Spark's `from_protobuf`.

    Raises:
        OptionError: the descriptors or the name are wrong, or the message contains itself, is nested too deeply or has
            too many columns.

    Example:
        >>> from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
        >>> file = FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
        >>> flight = file.message_type.add(name="Flight")
        >>> _ = flight.field.add(name="carrier", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
        >>> _ = flight.field.add(name="delays", number=2, type="TYPE_SINT32", label="LABEL_REPEATED")
        >>> str(arrow_type_of(FileDescriptorSet(file=[file]).SerializeToString(), "air.Flight"))
        'struct<carrier: string, delays: list<item: int32>>'
    """
    found = descriptor_of(descriptors, message)
    try:
        check_size(found, _parts_of, attrgetter("full_name"))
    except ValueError as error:
        raise OptionError(
            f"protobuf message {found.full_name} cannot be columns as a whole: {error}; name the wanted columns, down "
            "to some depth, by .schema()"
        ) from None
    return pa.struct(list(_columns(found)))


def _parts_of(part: Any) -> list[Any]:  # noqa: ANN401 - a message or a field
    """Return the fields of a message, with the messages in place of fields that contain one."""
    if isinstance(part, FieldDescriptor) or time_type_of(part) is not None:
        return []
    return [field if field.message_type is None else field.message_type for field in part.fields]


def _columns(message: Descriptor) -> Iterator[tuple[str, pa.DataType]]:
    for field in message.fields:
        type_ = _type_of(field)
        if type_ is not None:
            yield field.name, type_ if is_map(field) or not is_repeated(field) else pa.list_(type_)


def _type_of(field: FieldDescriptor) -> pa.DataType | None:
    """Return the type of a map, or of an element of a field; None without columns."""
    inner = field.message_type
    if inner is None:
        return KINDS[field.type].type
    if is_map(field):
        key, value = map(_type_of, inner.fields)
        return None if value is None else pa.map_(key, value)
    time = time_type_of(inner)
    if time is not None:
        return time
    columns = list(_columns(inner))
    return pa.struct(columns) if columns else None


def is_repeated(field: FieldDescriptor) -> bool:
    """Return whether a field is repeated. Runtimes before protobuf 6 need the label; later ones deprecate it."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == _LABEL_REPEATED)  # type: ignore[attr-defined] # of an older runtime


def is_required(field: FieldDescriptor) -> bool:
    """Return whether a message without the field is invalid."""
    if hasattr(field, "is_required"):
        return bool(field.is_required)
    return bool(field.label == _LABEL_REQUIRED)  # type: ignore[attr-defined]


def is_packed(field: FieldDescriptor) -> bool:
    """Return whether the elements of a repeated field are written together."""
    if hasattr(field, "is_packed"):
        return bool(field.is_packed)
    if KINDS[field.type].wire_type in (2, 3):
        return False
    options = field.GetOptions()
    return bool(options.packed) if options.HasField("packed") else field.file.syntax == "proto3"  # type: ignore[attr-defined]


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def time_type_of(message: Descriptor) -> pa.DataType | None:
    """Return Spark's type of a Timestamp or Duration, whatever its package is; None for another message."""
    is_time = [(field.name, field.type) for field in message.fields] == _TIME_PARTS
    return _TIMES.get(message.name) if is_time else None


def is_time(type_: pa.DataType, time: pa.DataType) -> bool:
    """Return whether a type is that of `time_type_of`, in any time zone."""
    return bool(type_.id == time.id and type_.unit == time.unit and (pa.types.is_duration(time) or type_.tz))


# -- from wanted columns to a plan


def plan_of(
    descriptors: bytes, message: str, wanted: pa.StructType, reader: tuple[bytes, str] | None = None
) -> MessagePlan:
    """Return the plan of a decoder for the wanted columns of a message.

    Args:
        descriptors: those with which the messages were written.
        message: the name of the message.
        wanted: the columns.
        reader: the descriptors and the message that the columns belong to; None for those of the writer. Fields are
            found by their numbers there. A field that the writer lacks is absent from all messages.

    Raises:
        OptionError: the reader's message has no such column, or a field has another type; all problems in one sentence.
    """
    found = descriptor_of(descriptors, message)
    problems: list[str] = []
    plan = _plan(found, found if reader is None else descriptor_of(*reader), wanted, "", problems)
    if problems:
        raise OptionError(f"protobuf message {found.full_name} does not fit the wanted columns: {'; '.join(problems)}")
    return plan


def _plan(message: Descriptor, reader: Descriptor, wanted: pa.DataType, path: str, problems: list[str]) -> MessagePlan:
    oneofs = {oneof.name: at for at, oneof in enumerate(message.oneofs) if len(oneof.fields) > 1}
    fields = []
    for column in wanted:
        named = find_field(reader, column.name)
        if isinstance(named, str):
            problems.append(f"{reader.full_name} has no single field {path}{column.name} ({named})")
        else:
            written = message.fields_by_number.get(named.number, named)
            fields.append(_plan_field(written, named, column.type, path, problems, oneofs))
    taken = {field.number for field in fields}
    clearing = {field.oneof for field in fields if field.oneof >= 0}
    siblings = [
        _field(field, oneofs=oneofs)
        for field in message.fields
        if field.number not in taken and _oneof_of(field, oneofs) in clearing
    ]
    return MessagePlan((*fields, *siblings), len(fields), message.full_name)


def find_field(message: Descriptor, name: str) -> FieldDescriptor | str:
    """Return the field of a column: of the same name, or the only one that differs in case; or the known names."""
    names = [field.name for field in message.fields]
    found = [one for one in names if one == name] or [one for one in names if one.lower() == name.lower()]
    if len(found) == 1:
        return message.fields_by_name[found[0]]
    return f"it has {' and '.join(found) or ', '.join(names) or 'none'}"


def _plan_field(
    field: FieldDescriptor,
    reader: FieldDescriptor,
    type_: pa.DataType,
    path: str,
    problems: list[str],
    oneofs: Mapping[str, int],
) -> FieldPlan:
    path = f"{path}{field.name}"
    inner = field.message_type
    message = None
    expected = None
    if is_map(field):
        if pa.types.is_map(type_):
            message = _plan_entry(inner, reader.message_type, type_, path, problems)
        else:
            expected = "a map"
    elif is_repeated(field) and not pa.types.is_list(type_):
        expected = "an array"
    else:
        type_ = type_.value_type if is_repeated(field) else type_
        if inner is None:
            if type_ not in KINDS[field.type].puts:
                expected = KINDS[field.type].type
        elif pa.types.is_struct(type_):
            # The reader's field was planned with this type.
            message = _plan(inner, reader.message_type, type_, f"{path}.", problems)  # type: ignore[arg-type]
        elif (time := time_type_of(inner)) is None:
            expected = f"a struct of {', '.join(one.name for one in inner.fields) or 'nothing'}"
        else:
            if not is_time(type_, time):
                expected = time
            parts = [_field(part, KINDS[part.type].type) for part in inner.fields]
            message = MessagePlan(tuple(parts), len(parts), inner.full_name)
    if expected is not None:
        problems.append(f"{path} is {expected}, not {type_}")
    return _field(field, type_, oneofs, message)


def _plan_entry(entry: Any, reader: Any, type_: pa.MapType, path: str, problems: list[str]) -> MessagePlan:  # noqa: ANN401
    """Plan the entries of a map, messages with a key and a value."""
    types = (type_.key_type, type_.item_type)
    parts = [
        _plan_field(part, named, wanted, f"{path}.", problems, {})
        for part, named, wanted in zip(entry.fields, reader.fields, types, strict=True)
    ]
    return MessagePlan(tuple(parts), len(parts), entry.full_name)


def _field(
    field: FieldDescriptor,
    type_: pa.DataType | None = None,
    oneofs: Mapping[str, int] | None = None,
    message: MessagePlan | None = None,
) -> FieldPlan:
    repeated = is_repeated(field)
    enum = field.enum_type
    # A missing key or value of a map's entry has its default.
    in_map = field.containing_type is not None and field.containing_type.GetOptions().map_entry
    default = field.default_value if (field.has_default_value or in_map) and not repeated else None
    return FieldPlan(
        number=field.number,
        name=field.name,
        wire_type=KINDS[field.type].wire_type,
        read=KINDS[field.type].read,
        put=_put_of(field, type_, message),
        type=type_,
        is_repeated=repeated,
        is_map=is_map(field),
        is_required=is_required(field),
        is_implicit=not (repeated or in_map or field.has_presence),
        default=b"" if in_map and message is not None else default,
        oneof=_oneof_of(field, oneofs or {}),
        # If a number has two names, the first one counts, as in Java.
        names={one.number: one.name for one in reversed(enum.values)} if enum else None,
        unknown=None if enum is None or enum.is_closed else ENUM_WITHOUT_NAME.format(enum.name),
        message=message,
    )


def _put_of(field: FieldDescriptor, type_: pa.DataType | None, message: MessagePlan | None) -> str:
    if type_ is None:
        return "NOWHERE"
    if message is not None:
        return "STRUCT" if is_map(field) or pa.types.is_struct(type_) else "MICROS"
    # A type that does not fit was reported already, so this plan is not used.
    return KINDS[field.type].puts.get(type_, "NOWHERE")


def _oneof_of(field: FieldDescriptor, oneofs: Mapping[str, int]) -> int:
    return -1 if field.containing_oneof is None else oneofs.get(field.containing_oneof.name, -1)
