"""Each wire type against each protobuf field, and each type that Spark can read or write against each field."""

import itertools
import re
import struct
from random import Random

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.protobuf.decode import protobuf_decoder
from spark_mq_source.values.protobuf.encode import protobuf_encoder
from tests.oracles.arrays import at_the_end
from tests.oracles.protobuf import (
    KEYS,
    NAMES,
    READABLE,
    WRITABLE,
    Oracle,
    RefusedError,
    in_micros,
    random_cell,
    schema,
    sized,
    tag,
    varint,
)

ENUMS = "Color: C0 0, C1 1, C5 5, C_1 -1"
SCALARS = [name for name in READABLE if name != "enum"]
MESSAGES = ["Part", "Timestamp", "Duration", "Int64Value", "StringValue"]
KINDS = [*SCALARS, "Color", *MESSAGES]
FIELDS = {
    "proto2": ["f {} 2", "required f {} 2", "unpacked f {} 2", "packed f {} 2", "f {} 2 / o, g int32 4 / o"],
    "proto3": ["f {} 2", "optional f {} 2", "unpacked f {} 2", "packed f {} 2", "f {} 2 / o, g int32 4 / o"],
}
DEFAULTS = {"string": "ab", "bytes": "ab", "bool": "true", "Color": "C5"} | dict.fromkeys(
    [name for name in SCALARS if name not in ("string", "bytes", "bool")], "7"
)


def declarations():
    """Yield the kind, syntax and text of each field."""
    for syntax, texts in FIELDS.items():
        for kind, text in itertools.product(KINDS, texts):
            if "packed f" not in text or kind not in ("string", "bytes", *MESSAGES):
                yield kind, syntax, text.format(kind)
            elif not text.startswith("packed"):
                yield kind, syntax, text.replace("unpacked", "repeated").format(kind)
        for kind in KINDS:
            yield kind, syntax, f"f map<int32, {kind}> 2"
        for key in KEYS:
            yield NAMES[key], syntax, f"f map<{NAMES[key]}, int32> 2"
    for kind, default in DEFAULTS.items():
        yield kind, "proto2", f"f {kind} 2 = {default}"
    for text in (
        "f group:Part 2",
        "required f group:Part 2",
        "repeated f group:Part 2",
        "f group:Part 2 / o, g int32 4 / o",
    ):
        yield "Part", "proto2", text


DECLARATIONS = [*declarations()]
ALIGNED = 80
"""Number of payloads that are decoded at each alignment: each content alone and twice."""


def schema_of(syntax, text):
    return schema(
        f"M: before int32 1, {text}, after string 3\nPart: x int32 1, repeated y string 2", syntax=syntax, enums=ENUMS
    )


def contents(number):
    """Return a field by wire type, with valid and invalid bytes; the first of each wire type is valid."""
    numbers = [5, 0, 1, 2**31, 2**64 - 1, 2**32 + 5, 2**63]
    bodies = {
        0: [*map(varint, numbers), b"\x85" + b"\x80" * 8 + b"\x00", b"\x85" + b"\x80" * 9 + b"\x00", b"\x85"],
        1: [struct.pack("<d", 1.5), bytes(8), b"\xff" * 8, bytes(7)],
        2: [
            *map(sized, [b"\x08\x05", b"", b"\x05", b"\x08\x05\x12\x02ab", b"abcd", bytes(8), b"\xff" * 8, b"\x80"]),
            *map(sized, [b"a\xff", b"\x12\x01\xff", b"\x0b\x0c", b"\x08" + b"\xff" * 8 + b"\x7f", b"\x0d1234"]),
            b"\x82\x00ab",
            b"\x05ab",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ],
        3: [b"\x08\x05" + tag(number, 4), tag(number, 4), b"\x13\x14" + tag(number, 4), b"", tag(number + 1, 4)],
        4: [b""],
        5: [struct.pack("<f", 1.5), bytes(4), b"\xff" * 4, bytes(3)],
        6: [b""],
        7: [b""],
    }  # fmt: skip
    return {wire_type: [tag(number, wire_type) + one for one in some] for wire_type, some in bodies.items()}


def payloads_of(text):
    """Return payloads of a field: each content alone, twice, and before a valid one of each wire type."""
    one = [content for some in contents(2).values() for content in some]
    good = [some[0] for wire_type, some in contents(2).items() if wire_type not in (4, 6, 7)]
    fields = [*one, *(a + a for a in one), *(a + b for a, b in itertools.product(one, good))]
    if "map<" in text:
        for number in (1, 2):
            inner = [content for some in contents(number).values() for content in some]
            entries = [tag(2, 2) + sized(content) for content in inner]
            other = tag(2, 2) + sized(tag(1, 0) + b"\x05" + tag(1, 2) + sized(b"k") + tag(1, 5) + bytes(4))
            fields += [*entries, *(other + entry for entry in entries), *(entry + entry for entry in entries)]
    if " / o" in text:
        fields += [*(field + tag(4, 0) + b"\x03" for field in one), *(tag(4, 0) + b"\x03" + field for field in one)]
    return [b"", *(b"\x08\x07" + field + b"\x1a\x01z" for field in fields)]


def own_types(kind, text, types):
    """Return the types that a column of the field can have."""
    if kind in MESSAGES:
        message = {"Part": [("x", pa.int32()), ("y", pa.list_(pa.string()))], "Int64Value": [("value", pa.int64())]}
        message["StringValue"] = [("value", pa.string())]
        found = [pa.struct(message.get(kind, [("seconds", pa.int64()), ("nanos", pa.int32())]))]
        found += {"Timestamp": [pa.timestamp("us", "UTC")], "Duration": [pa.duration("us")]}.get(kind, [])
    else:
        found = types["enum" if kind == "Color" else kind]
    if f"map<{kind}," in text:
        return [pa.map_(type_, pa.int32()) for type_ in found]
    if "map<" in text:
        return [pa.map_(pa.int32(), type_) for type_ in found]
    return [pa.list_(type_) for type_ in found] if "repeated" in text or "packed" in text else found


def outcome(oracle, payload):
    try:
        return repr(oracle.value_of(payload))
    except RefusedError:
        return "refused"


def test_each_wire_type_against_each_field():
    columns = compared = refused = 0
    different = []
    for kind, syntax, text in DECLARATIONS:
        message = schema_of(syntax, text)
        for at, type_ in enumerate(own_types(kind, text, READABLE)):
            # Spark's default type with all payloads, and also with all the other columns.
            payloads = payloads_of(text)[: ALIGNED if at else None]
            for rest in [[]] if at else [[], [("before", pa.int32()), ("after", pa.string())]]:
                wanted = pa.struct([("f", type_), *rest])
                oracle = Oracle(message.descriptor, wanted)
                expected = [outcome(oracle, payload) for payload in payloads]
                decoder = protobuf_decoder(message.descriptors, message.message, wanted)
                different += differences(decoder, payloads, expected, text)
                columns += 1
                compared += len(payloads) + 15 * ALIGNED + 1 + 1000 * (len(wanted) == 1)
                refused += expected.count("refused")
    assert different == []
    assert (columns, compared, refused) == (803, 1_711_391, 85_354)


def differences(decoder, payloads, expected, text):
    """Return the differences of a decoder: at 16 alignments, of a thousand rows and of a single one."""

    def decode(rows, offset):
        decoded = decoder.decode(at_the_end(rows, offset))
        decoded.values.validate(full=True)
        return decoded

    def outcomes(decoded):
        found = [*map(repr, decoded.values.cast(in_micros(decoder.type)).to_pylist())]
        for row in decoded.reasons:
            found[row] = "refused" if found[row] == "None" else f"refused and {found[row]}"
        # The last but one row only shifts the others.
        return [*found[:-2], found[-1]]

    def buffers(decoded):
        return [buffer and buffer.to_pybytes() for buffer in decoded.values.buffers()]

    found = outcomes(decode(payloads, 0))
    middle = len(payloads) // 2
    problems = [
        (text, decoder.type, payload.hex(), one, other)
        for payload, one, other in zip(payloads, found, expected, strict=True)
        if one != other
    ]
    few = payloads[:ALIGNED]
    first = decode(few, 0)
    for offset in range(1, 16):
        again = decode(few, offset)
        # The bits behind the last boolean are undefined.
        if buffers(again) != buffers(first) and outcomes(again) != expected[:ALIGNED]:
            problems.append((text, decoder.type, f"at offset {offset}"))
    if outcomes(decode([payloads[middle]], 3)) != [expected[middle]]:
        problems.append((text, decoder.type, payloads[middle].hex(), "alone"))
    if len(decoder.type) == 1 and outcomes(decode((payloads * 1000)[:1000], 5)) != (expected * 1000)[:1000]:
        problems.append((text, decoder.type, "a thousand rows"))
    return problems


# -- wanted types, and writing

SPARK = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(20, 0),
    pa.decimal128(10, 2), pa.decimal128(38, 18), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"),
    pa.timestamp("us"), pa.duration("us"), pa.null(), pa.struct([("x", pa.int32())]),
    pa.struct([("value", pa.int64())]),
    pa.struct([("value", pa.string())]), pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())]),
    pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]),
]  # fmt: skip
WRAPPERS = [
    pa.list_,
    lambda type_: pa.map_(pa.int32(), type_),
    lambda type_: pa.map_(pa.string(), type_),
    lambda type_: pa.struct([("x", type_)]),
]
ONCE = [wrap(type_) for wrap, type_ in itertools.product(WRAPPERS, SPARK)]
TWICE = [wrap(type_) for wrap, type_ in itertools.product(WRAPPERS, ONCE[: len(SPARK)])]


def nested(type_):
    """Return columns in which the field is two messages deep, in an array and in a map."""
    return pa.struct([("many", pa.list_(pa.struct([("by", pa.map_(pa.string(), pa.struct([("f", type_)])))])))])


def fits(kind, text, type_, types):
    """Return whether a field can be a column of the type."""
    if entry := re.search(r"map<(\w+), (\w+)>", text):
        key, item = entry.groups()
        return (
            pa.types.is_map(type_) and fits(key, "", type_.key_type, types) and fits(item, "", type_.item_type, types)
        )
    if re.match("repeated|packed|unpacked", text):
        return pa.types.is_list(type_) and fits(kind, "", type_.value_type, types)
    if kind not in MESSAGES or not pa.types.is_struct(type_):
        return type_ in own_types(kind, text, types)
    fields = {"Part": {"x": ("int32", ""), "y": ("string", "repeated")}, "Int64Value": {"value": ("int64", "")}}
    fields["StringValue"] = {"value": ("string", "")}
    fields = fields.get(kind, {"seconds": ("int64", ""), "nanos": ("int32", "")})
    return all(one.name in fields and fits(*fields[one.name], one.type, types) for one in type_)


def test_each_type_of_spark_is_read_and_written_for_each_field():
    tried = accepted = 0
    different = []
    for number, (kind, syntax, text) in enumerate(DECLARATIONS):
        # Types do not depend on presence, packing or the syntax.
        if re.search("/ o|= |required|optional|^packed", text) or (
            syntax == "proto2" and not re.search("group|Color", text)
        ):
            continue
        message = schema(
            f"M: repeated many Mid 1\nMid: by map<string, In> 1\nIn: {text}\nPart: x int32 1, repeated y string 2",
            syntax=syntax,
            enums=ENUMS,
        )
        # All types wrapped twice are refused, for the same reason: each field tries a part of them.
        for type_ in (*SPARK, *ONCE, *TWICE[number % 7 :: 7]):
            columns = nested(type_)
            for types in (READABLE, WRITABLE):
                try:
                    if types is READABLE:
                        protobuf_decoder(message.descriptors, "M", columns)
                    else:
                        protobuf_encoder(columns, message.descriptors, "M")(pa.array([None], columns))
                except OptionError:
                    is_taken = False
                else:
                    is_taken = True
                tried += 1
                accepted += is_taken
                if is_taken != fits(kind, text, type_, types):
                    different.append((text, syntax, str(type_), types is READABLE, is_taken))
    assert different == []
    assert (tried, accepted) == (19_612, 332)


def test_each_column_that_can_be_written_is_read_by_the_runtime():
    columns = rows = 0
    different = []
    rng = Random(27)
    for kind, syntax, text in DECLARATIONS:
        message = schema_of(syntax, text)
        field = message.descriptor.fields_by_name["f"]
        for type_ in own_types(kind, text, WRITABLE):
            wanted = pa.struct([("f", type_)])
            numbers = in_micros(wanted)
            oracle = Oracle(message.descriptor, wanted)
            cells = [random_cell(rng, field, type_) for _ in range(40)]
            values = pa.array([*({"f": cell} for cell in cells), {"f": None}, None], numbers)
            expected = [written(oracle, value) for value in values.to_pylist()]
            good = pa.array([one != "refused" for one in expected])
            # Sliced at each bit, to the end and to nothing; unwritable values are beneath a NULL, and then alone.
            values = values.cast(wanted)
            masked = pa.StructArray.from_arrays(
                values.flatten(), ["f"], mask=pa.array([one in (None, "refused") for one in expected])
            )
            for start in range(17):
                for some in (masked.slice(start), masked.slice(start, 9), masked.slice(start, 0)):
                    found = protobuf_encoder(some.type, message.descriptors, "M")(some).to_pylist()
                    if found != [one if one != "refused" else None for one in expected[start:][: len(some)]]:
                        different.append((text, str(type_), start))
                    rows += len(some)
            for at in [at for at, is_good in enumerate(good.to_pylist()) if not is_good]:
                with pytest.raises(UnwritableRowError):
                    protobuf_encoder(values.type, message.descriptors, "M")(values.slice(at, 1))
                rows += 1
            columns += 1
    assert different == []
    assert (columns, rows) == (613, 448_633)


def written(oracle, value):
    try:
        return None if value is None else oracle.payload_of(value)
    except RefusedError:
        return "refused"
