"""Random protobuf schemas and bytes, and protobuf's runtime as the oracle of what they mean."""

import re
import struct
from random import Random

from google.protobuf import duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from spark_mq_source.core.values.protobuf_schema import is_map, is_repeated, is_required
from spark_mq_source.core.varint import encode_varint

OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
KINDS = {name.removeprefix("TYPE_").lower(): number for name, number in FieldDescriptorProto.Type.items()}
SCALARS = [kind for name, kind in KINDS.items() if name not in ("group", "message", "enum")]
KEYS = [kind for name, kind in KINDS.items() if name not in ("group", "message", "enum", "float", "double", "bytes")]
WIRE_TYPES = dict.fromkeys([KINDS[name] for name in ("fixed64", "sfixed64", "double")], 1) | dict.fromkeys(
    [KINDS[name] for name in ("fixed32", "sfixed32", "float")], 5
)
FORMATS = {"fixed64": "<Q", "sfixed64": "<q", "double": "<d", "fixed32": "<I", "sfixed32": "<i", "float": "<f"}
FORMATS = {KINDS[name]: code for name, code in FORMATS.items()}
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
    """Messages in short: `name: field type number[, ...]` a line, `optional`, `required`, `repeated` before a field.

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
    match = re.fullmatch(r"(?:(optional|required|repeated) )?(\w+) ([\w:<>, ]+?) (\d+)(?: = (.*?))?(?: / (\w+))?", text)
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
    field = add(
        message, name, int(number), kind, {"required": REQUIRED, "repeated": REPEATED}.get(label, OPTIONAL), **more
    )
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


def random_schema(rng: Random, *, required: bool = True) -> Schema:
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
        # The runtime does not look into an entry of a map that another one replaces, so none has required fields.
        _fill(rng, file, message, syntax, names[at:], required and not at)
    return Schema(file, imports=imports)


def _fill(rng, file, message, syntax, below, required):
    scope = f".p.{message.name}"
    oneofs = []
    for at in range(rng.randint(0, 7)):
        number = rng.choice([at + 1, at + 1, at + 16, at * 1000 + 1000, at + 2**29 - 10])
        if any(field.number == number for field in message.field):
            continue
        name = rng.choice(["f{}", "F_{}"]).format(at)
        label = rng.choice([OPTIONAL, OPTIONAL, REPEATED])
        kind = rng.choice([*SCALARS, KINDS["enum"], KINDS["enum"], *[KINDS["message"]] * 5])
        if syntax == "proto2" and required and kind != KINDS["message"] and rng.random() < 0.1:
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
                more["type_name"] = f"{scope}.G{at}"
                name = f"g{at}"
        if label == REPEATED and rng.random() < 0.4 and kind != KINDS["group"]:
            add_map(message, f"m{at}", number, rng.choice(KEYS), kind, scope, **more)
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
    # Those of proto3's `optional` come after all others.
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


def random_bytes_of(rng: Random, message, depth: int = 0) -> bytes:
    """Fields of the message in any order, any number of times, and some that it has not."""
    parts = []
    # The runtime takes an entry of a map with unknown fields for none, other than Java.
    in_map = message.GetOptions().map_entry
    for _ in range(rng.choice([0, 1, 3, 6, 12]) if depth < 4 else 1):
        if not message.fields or (rng.random() < 0.07 and not in_map):
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
    if rng.random() < 0.03 and not field.containing_type.GetOptions().map_entry:
        # Not as its type has it: an unknown field.
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
            return struct.pack(code, rng.choice([0.0, -0.0, 1.5, -2.25, float("inf"), rng.uniform(-9, 9)]))
        most = -1 if kind in (KINDS["sfixed32"], KINDS["sfixed64"]) else 2 ** (8 * struct.calcsize(code)) - 1
        return struct.pack(code, rng.choice([0, 1, most]))
    if kind in (KINDS["string"], KINDS["bytes"]):
        return sized(rng.choice(TEXTS).encode() if kind == KINDS["string"] else rng.choice([b"", b"\xff\x00", b"abc"]))
    if kind == KINDS["enum"]:
        return varint(rng.choice([value.number for value in field.enum_type.values] + [4, -77]))
    if kind == KINDS["int64"] and field.containing_type.name in ("Timestamp", "Duration"):
        return varint(rng.choice([0, 1, -1, 1_795_232_364, -62_135_596_800, 2**63 // 1_000_000 - 10]))
    return varint(rng.choice([0, 1, 2, 127, 128, 300, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32, 2**32 + 5]))


# -- what they mean


def meaning(message, field, value):
    """What Spark has of one value of a field."""
    kind = field.type
    if field.message_type is not None:
        if field.message_type.name in ("Timestamp", "Duration"):
            return value.seconds * 1_000_000 + int(value.nanos / 1000)
        return meanings(value)
    if kind == KINDS["enum"]:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else f"UNKNOWN_ENUM_VALUE_{field.enum_type.name}_{value}"
    if kind in (KINDS["uint32"], KINDS["fixed32"]):
        return value - 2**32 if value >= 2**31 else value
    if kind in (KINDS["uint64"], KINDS["fixed64"]):
        return value - 2**64 if value >= 2**63 else value
    return value


def is_empty(message, above=()):
    """Whether Spark has no column for it."""
    return all(
        field.message_type is not None
        and field.message_type.name not in ("Timestamp", "Duration")
        and is_empty(field.message_type.fields[1].message_type if _is_map_of_messages(field) else field.message_type)
        if not is_map(field) or _is_map_of_messages(field)
        else False
        for field in message.fields
    )


def _is_map_of_messages(field):
    return is_map(field) and field.message_type.fields_by_name["value"].message_type is not None


def in_any_order(entries):
    return sorted(entries, key=lambda entry: repr(entry[0]))


def meanings(message):
    """What Spark has of a message."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        inner = field.message_type
        if _is_map_of_messages(field):
            inner = inner.fields_by_name["value"].message_type
        if (
            inner is not None
            and not (is_map(field) and not _is_map_of_messages(field))
            and inner.name not in ("Timestamp", "Duration")
            and is_empty(inner)
        ):
            continue
        value = getattr(message, field.name)
        if is_map(field):
            key, item = field.message_type.fields
            found[field.name] = in_any_order(
                (meaning(value, key, one), meaning(value, item, value[one])) for one in value
            )
        elif is_repeated(field):
            found[field.name] = [meaning(message, field, one) for one in value]
        elif field.has_presence:
            present = message.HasField(field.name) or (field.has_default_value and inner is None)
            found[field.name] = meaning(message, field, value) if present else None
        else:
            is_zero = not value and str(value) != "-0.0"
            found[field.name] = None if is_zero else meaning(message, field, value)
    return found
