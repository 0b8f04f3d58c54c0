"""Random protobuf schemas and bytes, and protobuf's runtime as the oracle of their values.

The reference is the runtime in C (upb), with classes made for the wanted columns (see `Oracle`). Two things differ with
the schema's own classes, on purpose: texts are checked only if a column has them, and as in Java an entry of a map may
have unknown fields, for which upb drops it. The runtime in pure Python also takes tags of more than five bytes.
"""

import math
import re
import struct
from decimal import Decimal
from random import Random

import pyarrow as pa
from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_mq_source.core.varint import encode_varint
from spark_mq_source.values.protobuf.schema import is_map, is_packed, is_repeated, is_required

OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
KINDS = {name.removeprefix("TYPE_").lower(): number for name, number in FieldDescriptorProto.Type.items()}
SCALARS = [kind for name, kind in KINDS.items() if name not in ("group", "message", "enum")]
KEYS = [kind for name, kind in KINDS.items() if name not in ("group", "message", "enum", "float", "double", "bytes")]
WIRE_TYPES = dict.fromkeys([KINDS[name] for name in ("fixed64", "sfixed64", "double")], 1) | dict.fromkeys(
    [KINDS[name] for name in ("fixed32", "sfixed32", "float")], 5
)
FORMATS = {"fixed64": "<Q", "sfixed64": "<q", "double": "<d", "fixed32": "<I", "sfixed32": "<i", "float": "<f"}
FORMATS = {KINDS[name]: code for name, code in FORMATS.items()}
HOSTILE = [b"\0", b"\x7f", b"\x80", b"\xff", b"\xff" * 9, b"\x80\x80\x01", b"\x0b\x13\x0b", b"\xf8\xff\xff\xff\x0f\x00"]
"""Wrong tags, lengths and groups."""
TEXTS = ["", "a", "Zürich", "日本", "x" * 200, "\U0001f600"]


class Schema:
    """A descriptor set and a message of it, with the class of protobuf's runtime."""

    def __init__(self, file, name="M", imports=()):
        self.message = f"{file.package}.{name}" if file.package else name
        files = [*imports, file]
        self.descriptors = FileDescriptorSet(file=files).SerializeToString()
        pool = DescriptorPool()
        for one in files:
            pool.AddSerializedFile(one.SerializeToString())
        self.descriptor = pool.FindMessageTypeByName(self.message)
        self.make = GetMessageClass(self.descriptor)


def new_file(syntax="proto3"):
    return FileDescriptorProto(name="m.proto", package="p", syntax=syntax)


def add(message, name, number, kind, label=OPTIONAL, **more):
    kind = KINDS[kind] if isinstance(kind, str) else kind
    return message.field.add(name=name, number=number, type=kind, label=label, **more)


def add_map(message, name, number, key, value, scope, **more):
    entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    add(entry, "key", 1, key)
    add(entry, "value", 2, value, **more)
    return add(message, name, number, "message", REPEATED, type_name=f"{scope}.{entry.name}")


def schema(text: str, *, syntax: str = "proto3", enums: str = "") -> Schema:
    """Return a schema of messages in short form: a line has `name: field type number[, ...]`, and `optional`,
    `required`, `repeated`, or for a repeated field `packed` or `unpacked`, may precede a field.

    The types are scalars, `map<key, value>`, the messages of other lines, groups (`group:NAME`), enums, and Timestamp,
    Duration and Int64Value. `= default` and `/ oneof` may end a field. `enums` has lines of `name: VALUE number, ...`.
    """
    file = new_file(syntax)
    imports = well_known()
    file.dependency.extend(one.name for one in imports)
    known = {name: f".google.protobuf.{name}" for name in ("Timestamp", "Duration", "Int64Value", "StringValue")}
    names = {}
    for line in filter(None, map(str.strip, enums.splitlines())):
        name, _, values = line.partition(":")
        enum = file.enum_type.add(name=name)
        names[name] = "enum"
        known[name] = f".p.{name}"
        for value in values.split(","):
            word, number = value.split()
            enum.value.add(name=word, number=int(number))
        if len({value.number for value in enum.value}) < len(enum.value):
            enum.options.allow_alias = True
    lines = [line.partition(":") for line in filter(None, map(str.strip, text.splitlines()))]
    for name, _, _ in lines:
        known[name] = f".p.{name}"
    for name, _, fields in lines:
        message = file.message_type.add(name=name)
        optional = []
        for field in filter(None, map(str.strip, re.split(r",(?![^<]*>)", fields))):
            _add_in_short(message, field, known, names, optional)
        for field in optional:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
    return Schema(file, lines[0][0], imports)


def _add_in_short(message, text, known, names, optional):
    match = re.fullmatch(
        r"(?:(optional|required|(?:un)?packed|repeated) )?(\w+) ([\w:<>, ]+?) (\d+)(?: = (.*?))?(?: / (\w+))?", text
    )
    label, name, kind, number, default, oneof = match.groups()

    def typed(kind):
        word = kind.removeprefix("group:")
        if word not in known:
            return kind, {}
        return "group" if word != kind else names.get(word, "message"), {"type_name": known[word]}

    if kind.startswith("map<"):
        key, value = map(str.strip, kind[4:-1].split(","))
        value, more = typed(value)
        add_map(message, name, int(number), key, value, f".p.{message.name}", **more)
        return
    kind, more = typed(kind)
    labels = {"required": REQUIRED, "repeated": REPEATED, "packed": REPEATED, "unpacked": REPEATED}
    field = add(message, name, int(number), kind, labels.get(label, OPTIONAL), **more)
    if label in ("packed", "unpacked"):
        field.options.packed = label == "packed"
    if default is not None:
        field.default_value = default
    if oneof is not None:
        found = [one.name for one in message.oneof_decl]
        if oneof not in found:
            message.oneof_decl.add(name=oneof)
            found.append(oneof)
        field.oneof_index = found.index(oneof)
    elif label == "optional":
        optional.append(field)


def well_known():
    files = []
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
        files.append(FileDescriptorProto())
        module.DESCRIPTOR.CopyToProto(files[-1])
    return files


def random_schema(rng: Random) -> Schema:
    syntax = rng.choice(["proto2", "proto3"])
    file = new_file(syntax)
    imports = well_known()
    file.dependency.extend(one.name for one in imports)
    numbers = [0, *rng.sample([-(2**31), -5, 1, 2, 3, 7, 100, 2**31 - 1], rng.randint(0, 5))]
    color = file.enum_type.add(name="Color")
    for number in numbers:
        color.value.add(name=f"C{number % 2**32}", number=number)
    names = [f"M{at}" for at in range(rng.randint(0, 3))]
    file.message_type.add(name="M")
    for name in names:
        file.message_type.add(name=name)
    for at, message in enumerate(file.message_type):
        # All messages except the first may contain themselves.
        _fill(rng, message, syntax, names[max(at - 1, 0) :])
    return Schema(file, imports=imports)


def _fill(rng, message, syntax, below):
    scope = f".p.{message.name}"
    oneofs = []
    for at in range(rng.randint(0, 9)):
        number = rng.choice([at + 1, at + 1, at + 16, at * 1000 + 1000, at + 2**29 - 10])
        if any(field.number == number for field in message.field):
            continue
        name = rng.choice(["f{}", "F_{}"]).format(at)
        label = rng.choice([OPTIONAL, OPTIONAL, REPEATED])
        kind = rng.choice([*SCALARS, *[KINDS["enum"]] * 4, *[KINDS["message"]] * 6])
        if syntax == "proto2" and rng.random() < 0.1:
            label = REQUIRED
        more = {}
        if kind == KINDS["enum"]:
            more["type_name"] = ".p.Color"
        elif kind == KINDS["message"]:
            known = [f".google.protobuf.{one}" for one in ("Timestamp", "Duration", "Int64Value", "StringValue")]
            more["type_name"] = rng.choice([*known, *[f".p.{one}" for one in below] * 3])
            if syntax == "proto2" and rng.random() < 0.2:
                kind = KINDS["group"]
                group = message.nested_type.add(name=f"G{at}")
                add(group, "x", 1, "int32")
                add(group, "y", 2, "string", REPEATED)
                add(group, "z", 3, "group", type_name=f"{scope}.G{at}")
                more["type_name"] = f"{scope}.G{at}"
                name = f"g{at}"
        if label == REPEATED and rng.random() < 0.6 and kind != KINDS["group"]:
            add_map(message, f"m{at}", number, rng.choice([*KEYS, *[KINDS["string"]] * 6]), kind, scope, **more)
            continue
        field = add(message, name, number, kind, label, **more)
        if label == OPTIONAL and rng.random() < 0.3:
            if not message.oneof_decl or rng.random() < 0.3:
                message.oneof_decl.add(name=f"o{at}")
            field.oneof_index = len(message.oneof_decl) - 1
        elif label == OPTIONAL and syntax == "proto3" and kind != KINDS["message"] and rng.random() < 0.3:
            oneofs.append(field)
        elif label == OPTIONAL and syntax == "proto2" and rng.random() < 0.3:
            if kind == KINDS["enum"]:
                field.default_value = "C0"
            elif kind in (KINDS["string"], KINDS["bytes"]):
                field.default_value = "ab"
            elif kind == KINDS["bool"]:
                field.default_value = "true"
            elif kind in SCALARS:
                field.default_value = "7"
        if label == REPEATED and kind in (*WIRE_TYPES, KINDS["int32"], KINDS["enum"]):
            field.options.packed = rng.random() < 0.5
    # The oneofs of proto3's `optional` follow all others.
    for field in oneofs:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


# -- bytes


def varint(value):
    return encode_varint(value % 2**64)


def tag(number, wire_type):
    return varint(number << 3 | wire_type)


def sized(data):
    return varint(len(data)) + data


def number(rng, value):
    """Return a number as a varint, sometimes in more bytes than it needs."""
    data = varint(value)
    if rng.random() < 0.95:
        return data
    room = rng.randint(0, 10 - len(data))
    return data[:-1] + bytes([data[-1] | 0x80]) + b"\x80" * (room - 1) + b"\x00" if room else data


def random_bytes_of(rng: Random, message, depth: int = 0) -> bytes:
    """Return fields of the message in any order, any number of times, and some unknown ones."""
    parts = []
    if depth > 5:
        return b""
    for _ in range(rng.choice([0, 1, 3, 6, 12]) if depth < 4 else 1):
        if not message.fields or rng.random() < 0.07:
            parts.append(unknown_field(rng))
        else:
            parts.append(random_field(rng, rng.choice(message.fields), depth))
    needed = [field for field in message.fields if is_required(field) and rng.random() < 0.97]
    parts += [random_field(rng, field, depth) for field in needed]
    return b"".join(parts)


def unknown_field(rng, depth=0):
    number = rng.randint(19_000, 19_100)
    wire_type = rng.choice([0, 1, 2, 5, 3])
    if wire_type == 3:
        inner = unknown_field(rng, depth + 1) if depth < 3 else b""
        return tag(number, 3) + inner + tag(number, 4)
    return tag(number, wire_type) + {
        0: varint(rng.getrandbits(64)), 1: b"x" * 8, 2: sized(b"\xff" * rng.randint(0, 9)), 5: b"y" * 4
    }[wire_type]  # fmt: skip


def random_field(rng, field, depth):
    kind = field.type
    if kind == KINDS["group"]:
        inner = random_bytes_of(rng, field.message_type, depth + 1)
        return tag(field.number, 3) + inner + tag(field.number, 4)
    if kind == KINDS["message"]:
        return tag(field.number, 2) + sized(random_bytes_of(rng, field.message_type, depth + 1))
    if rng.random() < 0.03:
        # A wire type other than its type's: an unknown field.
        return tag(field.number, 1) + b"z" * 8 if WIRE_TYPES.get(kind) != 1 else tag(field.number, 5) + b"z" * 4
    if is_repeated(field) and kind not in (KINDS["string"], KINDS["bytes"]) and rng.random() < 0.5:
        values = b"".join(random_value(rng, field) for _ in range(rng.randint(0, 4)))
        return tag(field.number, 2) + sized(values)
    wire_type = WIRE_TYPES.get(kind, 2 if kind in (KINDS["string"], KINDS["bytes"]) else 0)
    return tag(field.number, wire_type) + random_value(rng, field)


def random_value(rng, field):
    kind = field.type
    if kind in FORMATS:
        code = FORMATS[kind]
        if code[1] in "df":
            return struct.pack(code, rng.choice([0.0, -0.0, 1.5, -2.25, math.inf, math.nan, rng.uniform(-9, 9)]))
        most = -1 if kind in (KINDS["sfixed32"], KINDS["sfixed64"]) else 2 ** (8 * struct.calcsize(code)) - 1
        return struct.pack(code, rng.choice([0, 1, most]))
    if kind in (KINDS["string"], KINDS["bytes"]):
        is_text = kind == KINDS["string"] and rng.random() < 0.95
        return sized(rng.choice(TEXTS).encode() if is_text else rng.choice([b"", b"\xff\x00", b"abc"]))
    if kind == KINDS["enum"]:
        return number(rng, rng.choice([value.number for value in field.enum_type.values] + [4, -77]))
    if kind == KINDS["int64"] and field.containing_type.name in ("Timestamp", "Duration"):
        return number(rng, rng.choice([0, 1, -1, 1_795_232_364, -62_135_596_800, 2**63 // 1_000_000 - 10, 2**62]))
    return number(
        rng, rng.choice([0, 1, 2, 127, 128, 300, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32, 2**32 + 5])
    )


# -- types to read and write


NAMES = {value: key for key, value in KINDS.items()}
INT, LONG, NUMBERS = pa.int32(), pa.int64(), [pa.int32(), pa.int64(), pa.float64()]
READABLE = {
    "int32": NUMBERS, "sint32": NUMBERS, "sfixed32": NUMBERS, "uint32": NUMBERS, "fixed32": NUMBERS,
    "int64": [LONG], "sint64": [LONG], "sfixed64": [LONG],
    "uint64": [LONG, pa.decimal128(20, 0)], "fixed64": [LONG, pa.decimal128(20, 0)],
    "float": [pa.float32(), pa.float64()], "double": [pa.float64()], "bool": [pa.bool_()],
    "string": [pa.string()], "bytes": [pa.binary()], "enum": [pa.string(), INT, LONG],
}  # fmt: skip
SHORT = [pa.int8(), pa.int16(), INT]
WRITABLE = READABLE | {
    "int32": SHORT, "sint32": SHORT, "sfixed32": SHORT, "uint32": [INT, LONG], "fixed32": [INT, LONG],
    "int64": [*SHORT, LONG], "sint64": [*SHORT, LONG], "sfixed64": [*SHORT, LONG],
    "float": [pa.float32()], "double": [pa.float64(), pa.float32()], "enum": [pa.string(), INT],
}  # fmt: skip


def is_time(message):
    return message.name in ("Timestamp", "Duration")


def random_columns(rng: Random, message, types=READABLE, depth: int = 0) -> pa.StructType:
    """Return some columns of a message in any order, each of a type that it can have."""
    fields = [one for one in message.fields if rng.random() < 0.7 or (types is WRITABLE and is_required(one))]
    rng.shuffle(fields)
    return pa.struct([(one.name, random_type(rng, one, types, depth)) for one in fields if depth < 5])


def random_type(rng, field, types, depth):
    inner = field.message_type
    if is_map(field):
        return pa.map_(*(random_type(rng, part, types, depth + 1) for part in inner.fields))
    if inner is None:
        type_ = rng.choice(types[NAMES[field.type]])
    elif is_time(inner) and rng.random() < 0.6:
        type_ = pa.timestamp("us", "UTC") if inner.name == "Timestamp" else pa.duration("us")
    else:
        type_ = random_columns(rng, inner, types, depth + 1)
    return pa.list_(type_) if is_repeated(field) else type_


# -- the oracle


class RefusedError(Exception):
    """A payload or a value is invalid."""


class Oracle:
    """A reader of payloads to structs of wanted columns, and a writer of such structs.

    The runtime has a class made for the columns: texts are bytes in it, maps are repeated entries, open enums are
    int32, and each field distinguishes absent from zero.
    """

    def __init__(self, message, wanted: pa.StructType) -> None:
        file = FileDescriptorProto(name="oracle.proto", package="o", syntax="proto2")
        name, self._read, self._write = _message(file, message, wanted)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        self._make = GetMessageClass(pool.FindMessageTypeByName(f"o.{name}"))

    def value_of(self, payload: bytes):
        """Return the value, with microseconds for times, or `RefusedError`."""
        message = self._make()
        try:
            message.MergeFromString(payload)
        except DecodeError as error:
            raise RefusedError from error
        return self._read(message)

    def payload_of(self, value) -> bytes:
        """Return the payload, or `RefusedError`."""
        message = self._make()
        self._write(message, value)
        return message.SerializeToString()


def _message(file, message, wanted):
    declared = file.message_type.add(name=f"M{len(file.message_type)}")
    name = declared.name
    # A field 0 must be refused in a message without columns as well.
    taken = [one.number for one in message.fields]
    add(declared, "unused", next(n for n in range(2**29 - 1, 0, -1) if n not in taken), "bool")
    fields = [message.fields_by_name[column.name] for column in wanted]
    oneofs = {one.containing_oneof.name for one in fields if one.containing_oneof is not None}
    for oneof in sorted(oneofs):
        declared.oneof_decl.add(name=oneof)
    places = {one.name: at for at, one in enumerate(declared.oneof_decl)}
    parts = []
    for field in message.fields:
        at = fields.index(field) if field in fields else None
        oneof = field.containing_oneof.name if field.containing_oneof is not None else None
        if at is None and oneof not in places:
            continue
        one = add(declared, field.name, field.number, field.type, REPEATED if is_repeated(field) else OPTIONAL)
        if oneof is not None:
            one.oneof_index = places[oneof]
        if is_repeated(field):
            one.options.packed = is_packed(field)
        part = _field(file, one, field, None if at is None else wanted[at].type)
        if part is not None:
            parts.append((at, field, *part))

    def read(found):
        return {field.name: read_one(found) for _, field, read_one, _ in sorted(parts, key=lambda part: part[0])}

    def write(made, value):
        chosen = set()
        for _, field, _, write_one in sorted(parts, key=lambda part: part[1].number):
            one = value[field.name]
            if one is None:
                if is_required(field):
                    raise RefusedError
                continue
            oneof = field.containing_oneof
            if oneof is not None and oneof.name in chosen:
                raise RefusedError
            chosen.add(oneof and oneof.name)
            write_one(made, one)

    return name, read, write


def _field(file, declared, field, type_):
    """Complete a field of the class; return its reader and writer if it is wanted."""
    kind, inner, name = field.type, field.message_type, field.name
    if type_ is None and kind == KINDS["group"]:
        # Without fields, like a skipped group: upb accepts a field 0 in it as an unknown one.
        declared.type_name = f".o.{file.message_type.add(name=f'M{len(file.message_type)}').name}"
        return None
    if type_ is None and inner is not None:
        declared.type = KINDS["bytes"]
        return None
    if is_map(field):
        return _map(file, declared, field, type_)
    if inner is not None:
        element = type_.value_type if is_repeated(field) else type_
        columns = (
            element
            if pa.types.is_struct(element)
            else [pa.field(one.name, one_type) for one, one_type in zip(inner.fields, (LONG, INT), strict=True)]
        )
        part, read, write = _message(file, inner, columns)
        declared.type_name = f".o.{part}"
        if not pa.types.is_struct(element):
            read, write = _time(inner, read, write)
    else:
        _declare_scalar(file, declared, field)
        if type_ is None:
            return None
        read, to_wire = _scalar(field, type_.value_type if is_repeated(field) else type_)
    if is_repeated(field):

        def read_all(found):
            return [read(one) for one in getattr(found, name)]

        def write_all(made, values):
            for one in values:
                if one is None:
                    raise RefusedError
                if inner is None:
                    getattr(made, name).append(to_wire(one))
                else:
                    write(getattr(made, name).add(), one)

        return read_all, write_all
    in_map = field.containing_type.GetOptions().map_entry
    is_implicit = not (field.has_presence or in_map)

    def read_one(found):
        if found.HasField(name):
            value = getattr(found, name)
            return None if is_implicit and is_zero(value) else read(value)
        if is_required(field):
            raise RefusedError
        if inner is not None:
            return read(getattr(found, name)) if in_map else None
        default = field.default_value
        return (
            read(default.encode() if isinstance(default, str) else default)
            if field.has_default_value or in_map
            else None
        )

    def write_one(made, value):
        if inner is not None:
            getattr(made, name).SetInParent()
            write(getattr(made, name), value)
        elif not (is_implicit and is_zero(to_wire(value))):
            setattr(made, name, to_wire(value))

    return read_one, write_one


def is_zero(value):
    return not value and str(value) != "-0.0"


def _map(file, declared, field, type_):
    key, item = field.message_type.fields
    entry, read, write = _message(
        file, field.message_type, [pa.field(key.name, type_.key_type), pa.field(item.name, type_.item_type)]
    )
    declared.type_name = f".o.{entry}"

    def read_all(found):
        # A number that is not in its closed enum is an unknown field of the entry.
        entries = [
            read(one)
            for one in getattr(found, field.name)
            if not any((other.field_number, other.wire_type) == (2, 0) for other in UnknownFieldSet(one))
            or item.enum_type is None
        ]
        last = {one[key.name]: at for at, one in enumerate(entries)}
        return [(one[key.name], one[item.name]) for at, one in enumerate(entries) if last[one[key.name]] == at]

    def write_all(made, entries):
        for one in entries:
            if None in one:
                raise RefusedError
            write(getattr(made, field.name).add(), dict(zip((key.name, item.name), one, strict=True)))

    return read_all, write_all


def _time(message, read, write):
    seconds, nanos = (one.name for one in message.fields)

    def to_micros(found):
        parts = read(found)
        whole = parts[seconds] or 0
        if abs(whole) > 2**63 // 1_000_000 - 3:
            raise RefusedError
        return whole * 1_000_000 + int((parts[nanos] or 0) / 1000)

    def from_micros(made, value):
        whole, rest = divmod(value, 1_000_000)
        if message.name == "Duration" and value < 0 and rest:
            whole, rest = whole + 1, rest - 1_000_000
        write(made, {seconds: whole, nanos: rest * 1000})

    return to_micros, from_micros


def _declare_scalar(file, declared, field):
    enum = field.enum_type
    if field.type == KINDS["string"]:
        declared.type = KINDS["bytes"]
    elif enum is not None:
        declared.type = KINDS["enum"] if enum.is_closed else KINDS["int32"]
        if enum.is_closed:
            made = file.enum_type.add(name=f"E{len(file.enum_type)}")
            declared.type_name = f".o.{made.name}"
            for number_ in sorted({one.number for one in enum.values}, key=abs):
                made.value.add(name=f"{made.name}_{number_ % 2**32}", number=number_)


def _scalar(field, type_):  # noqa: PLR0911 - a case a type
    """Return the conversions of a scalar: from a value to a cell of a type, and from a cell to a value."""
    kind, enum = NAMES[field.type], field.enum_type
    if kind == "string":
        return _text, str.encode
    if enum is not None:
        names = {one.number: one.name for one in reversed(enum.values)}
        prefix = f"UNKNOWN_ENUM_VALUE_{enum.name}_"

        def number_of(cell):
            if isinstance(cell, str):
                known = enum.values_by_name.get(cell)
                if known is not None:
                    return known.number
                if enum.is_closed or re.fullmatch(re.escape(prefix) + r"-?\d+", cell) is None:
                    raise RefusedError
                cell = int(cell.removeprefix(prefix))
            if enum.is_closed and cell not in names:
                raise RefusedError
            return cell

        if pa.types.is_string(type_):
            return lambda value: names.get(value, f"{prefix}{value}"), number_of
        return int, number_of
    if pa.types.is_decimal(type_):
        return Decimal, lambda cell: _in_range(cell, 64)
    if type_ in (pa.float32(), pa.float64()):
        return float, float
    if kind in ("uint32", "fixed32", "uint64", "fixed64"):
        bits = 32 if kind.endswith("32") else 64
        if bits == 32 and type_ == LONG:
            return int, lambda cell: _in_range(cell, 32)
        return lambda value: value - 2**bits if value >> bits - 1 else value, lambda cell: cell % 2**bits
    return lambda value: value, lambda cell: cell


def _text(value):
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RefusedError from error


def _in_range(cell, bits):
    if not 0 <= cell < 2**bits:
        raise RefusedError
    return int(cell)


# -- cells to write


def random_row(rng: Random, message, columns: pa.StructType):
    """Return a struct of columns; a few of its cells do not fit the message."""
    return {one.name: random_cell(rng, message.fields_by_name[one.name], one.type) for one in columns}


def random_cell(rng, field, type_):
    null = rng.random()
    if (null < (0.3 if field.containing_oneof is None else 0.8) and not is_required(field)) or null < 0.01:
        return None
    if is_map(field):
        key, item = field.message_type.fields
        pairs = [
            (random_value_of(rng, key, type_.key_type), random_value_of(rng, item, type_.item_type))
            for _ in range(rng.choice([0, 1, 1, 2, 5]))
        ]
        return [(key, None if rng.random() < 0.01 else item) for key, item in pairs]
    if is_repeated(field):
        count = rng.choice([0, 1, 1, 2, 5, 50] if field.message_type is None else [0, 1, 1, 2])
        return [None if rng.random() < 0.003 else random_value_of(rng, field, type_.value_type) for _ in range(count)]
    return random_value_of(rng, field, type_)


def random_value_of(rng, field, type_):  # noqa: PLR0911 - a case a type
    if pa.types.is_struct(type_):
        return random_row(rng, field.message_type, type_)
    if field.message_type is not None:
        return rng.choice([0, 1, -1, 1_500_000, -1_500_000, 2**63 - 1, -(2**63), rng.randrange(-(2**50), 2**50)])
    if pa.types.is_string(type_) and field.enum_type is not None:
        names = [one.name for one in field.enum_type.values]
        return rng.choice([*names] * 4 + [f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{n}" for n in (7, -7)])
    if field.enum_type is not None:
        return rng.choice([one.number for one in field.enum_type.values] * 4 + [4])
    if pa.types.is_string(type_):
        return rng.choice([*TEXTS, "x" * rng.choice([127, 128, 16_400])])
    if pa.types.is_binary(type_):
        return rng.choice([b"", b"\xff\x00", bytes(200)])
    if pa.types.is_boolean(type_):
        return rng.random() < 0.5
    if pa.types.is_floating(type_):
        return rng.choice([0.0, -0.0, 1.5, math.inf, math.nan])
    if pa.types.is_decimal(type_):
        return Decimal(rng.choice([0, 1, 2**63, 2**64 - 1] * 5 + [-1, 2**64]))
    most = 2 ** (type_.bit_width - 1)
    if type_ == LONG and NAMES[field.type] in ("uint32", "fixed32"):
        return rng.choice([0, 1, 127, 2**31, 2**32 - 1] * 5 + [-1, 2**32])
    return rng.choice([0, 1, -1, 127, -128, most - 1, -most])


# -- Arrow


def in_micros(type_: pa.DataType) -> pa.DataType:
    """Return the type with int64 for times."""
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return LONG
    if pa.types.is_struct(type_):
        return pa.struct([(one.name, in_micros(one.type)) for one in type_])
    if pa.types.is_map(type_):
        return pa.map_(in_micros(type_.key_type), in_micros(type_.item_type))
    return pa.list_(in_micros(type_.value_type)) if pa.types.is_list(type_) else type_
