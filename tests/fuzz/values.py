"""What is fuzzed of the decoders of values: a session decodes payloads of one schema, whole or in part."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.avro.encode import encode_avro
from spark_mq_source.values.decoder import Decoded, ValueDecoder
from spark_mq_source.values.json.decode import arrow_type_of_json, json_decoder
from spark_mq_source.values.pairs import pair_decoder
from spark_mq_source.values.protobuf.decode import arrow_type_of as protobuf_type_of
from spark_mq_source.values.protobuf.decode import protobuf_decoder
from spark_mq_source.values.protobuf.encode import encode_protobuf
from tests.oracles.protobuf import random_bytes_of
from tests.oracles.protobuf import schema as protobuf_schema

AVRO: list[dict[str, Any]] = [
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "b", "type": ["null", "string"]},
            {"name": "c", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "d", "type": "double"},
            {"name": "e", "type": "boolean"},
            {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}},
        ],
    },
    {
        "type": "record",
        "name": "S",
        "fields": [
            {"name": "a", "type": {"type": "array", "items": {"type": "map", "values": ["null", "float"]}}},
            {"name": "b", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y", "Z"]}},
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30}},
            {
                "name": "c",
                "type": {
                    "type": "array",
                    "items": [
                        "null",
                        "string",
                        "int",
                        {
                            "type": "record",
                            "name": "T",
                            "fields": [
                                {"name": "x", "type": {"type": "fixed", "name": "F", "size": 3}},
                                {"name": "y", "type": {"type": "array", "items": "bytes"}},
                                {"name": "z", "type": {"type": "array", "items": "null"}},
                            ],
                        },
                    ],
                },
            },
        ],
    },
]
AVRO_VALUES: list[list[dict[str, Any]]] = [
    [
        {"a": 1, "b": None, "c": 1_700_000_000_000, "d": 0.5, "e": True, "f": Decimal("-123456789.125")},
        {"a": -(2**31), "b": "text ü" * 3, "c": -1, "d": -1e300, "e": False, "f": Decimal(0)},
    ],
    [
        {"a": [{"k": 1.5, "l": None}, {}], "b": "Z", "d": Decimal(-5), "c": [None, "s", 5]},
        {"a": [], "b": "X", "d": Decimal(7), "c": [("T", {"x": b"abc", "y": [b"", b"1234"], "z": [None] * 3})] * 3},
    ],
]


TIMES = {
    "type": "record",
    "name": "T",
    "fields": [
        {"name": name, "type": {"type": kind, "logicalType": logical}}
        for name, kind, logical in (
            ("a", "long", "timestamp-micros"),
            ("b", "long", "local-timestamp-millis"),
            ("c", "int", "date"),
            ("d", "int", "time-millis"),
            ("e", "long", "time-micros"),
        )
    ],
}
JSON_DEFINITIONS = [None, json.dumps(AVRO[0]), None, json.dumps(TIMES)]
JSON = [
    pa.struct(
        [
            ("a", pa.int8()),
            ("b", pa.string()),
            ("c", pa.timestamp("us", "UTC")),
            ("a long name of a field", pa.float64()),
            ('e"', pa.bool_()),
            ("f", pa.decimal128(20, 3)),
            ("g", pa.binary()),
            ("h", pa.date32()),
            ("i", pa.timestamp("us")),
            ("j", pa.float32()),
            ("k", pa.int16()),
            ("l", pa.int64()),
        ]
    ),
    arrow_type_of(json.dumps(AVRO[0])),
    pa.list_(
        pa.struct(
            [
                ("m", pa.map_(pa.string(), pa.list_(pa.string()))),
                ("n", pa.null()),
                ("s", pa.struct([("x", pa.int32())])),
            ]
        )
    ),
    arrow_type_of_json(json.dumps(TIMES)),
]
JSON_VALUES = [
    (
        r'{"a":-128, "b":"text \ud83d\ude00\n ü","c":"2024-02-29T12:13:14.123456+01:30","e\"":true,"j":"NaN","k":32767,'
        r' "a long name of a field":-1.5e-300,"f":"-12345678901234567.125","g":"AQIDBA==","h":"1969-12-31",'
        r'"i":"2020-1-1 1:2","l":9223372036854775807}',
        '{"a":null,"a":1,"z":[{},[[]],"x",-0.1E+2,NaN,false],"l":-9223372036854775808,"f":12.5,"j":-Infinity,"c":17000}',
    ),
    ('{"a":1,"b":null,"c":1700000000000,"d":0.1,"e":false,"f":12345678.9}', '{"B":"","c":"2020-01-01T00:00Z"}'),
    (
        '[{"m":{"a":["x",{"y":[1,2]}],"b":[],"a":null},"n":[1],"s":{"x":5}},null,{}]',
        '[{"m":{' + ",".join(f'"{n}":[]' for n in [*range(20), 3]) + '},"s":null}]',
    ),
    (
        '{"a":-1.500000000,"b":[2020,2,29,23,59,58,999999999],"c":[2020,12,31],"d":[1,2],"e":[23,59,59,1]}',
        '{"a":1700000000000,"b":"2020-01-01 1:2:3.4","c":19000,"d":5,"e":6}',
    ),
]


PROTOBUF = [
    protobuf_schema(
        """
        M: a int32 1, b string 2, optional c double 3, d bytes 4, e Color 5, f Timestamp 6, g Duration 7, m Part 8,
            repeated n sint64 9, repeated o string 10, repeated p Part 11, q map<string, Part> 12,
            r map<int32, Color> 13
        Part: x fixed32 1 / one, y string 2 / one, z Inner 3 / one, repeated w bool 4
        Inner: u uint64 1, v Int64Value 2
        """.replace(",\n", ","),
        enums="Color: RED 0, BLUE 7",
    ),
    protobuf_schema(
        """
        M: required a sint32 1, b string 2 = text, c Color 3 = BLUE, d group:Part 4, repeated e group:Part 5000,
            repeated f Color 6, g map<bool, Color> 7, h float 8, i sfixed64 9, repeated j float 536870911
        Part: required x int32 1, y Color 2 / one, z string 3 / one
        """.replace(",\n", ","),
        syntax="proto2",
        enums="Color: RED 0, BLUE -3",
    ),
]


def protobuf_values() -> Iterator[bytes]:
    """Messages, after a byte that says of which schema."""
    rng = Random(1)
    for number, one in enumerate(PROTOBUF):
        for _ in range(20):
            yield bytes([number]) + random_bytes_of(rng, one.descriptor)


def json_values() -> Iterator[bytes]:
    """JSON, after a byte that says of which type."""
    for number, values in enumerate(JSON_VALUES):
        for value in values:
            yield bytes([number]) + value.encode()


def pairs() -> Iterator[bytes]:
    """Keys and values, after a byte without a meaning."""
    parts = [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\3key", b"\0\0\1\0" + bytes(256)]
    yield from (b"\0" + key + value for key in parts for value in parts)


def avro_values() -> Iterator[bytes]:
    """What fastavro writes, after a byte that says with which schema."""
    for number, (schema, values) in enumerate(zip(AVRO, AVRO_VALUES, strict=True)):
        for value in values:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
            yield bytes([number]) + out.getvalue()


def part_of(rng: Random, type_: pa.DataType) -> pa.DataType:
    """Some of a type, at any depth."""
    if pa.types.is_struct(type_):
        fields = [field for field in type_ if rng.random() < 0.6]
        rng.shuffle(fields)
        return pa.struct([(field.name, part_of(rng, field.type)) for field in fields])
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, part_of(rng, type_.item_type))
    return pa.list_(part_of(rng, type_.value_type)) if pa.types.is_list(type_) else type_


def cells_of(values: pa.Array) -> list[Any]:
    """The values with numbers as text, in which NaN is NaN, and times as numbers, of which Python has some only."""
    if pa.types.is_struct(values.type):
        fields = [cells_of(values.field(at)) for at in range(values.type.num_fields)]
        cells: Any = zip(*fields, strict=True) if fields else [()] * len(values)
    elif pa.types.is_map(values.type):
        entries = list(zip(cells_of(values.keys), cells_of(values.items), strict=True))
        cells = parts_of(values.offsets, entries)
    elif pa.types.is_list(values.type):
        cells = parts_of(values.offsets, cells_of(values.values))
    elif pa.types.is_temporal(values.type):
        cells = [one.value for one in values]
    else:
        cells = map(repr, values.to_pylist())
    return [cell if is_valid else None for cell, is_valid in zip(cells, values.is_valid().to_pylist(), strict=True)]


def parts_of(offsets: pa.Array, cells: list[Any]) -> list[list[Any]]:
    ends = offsets.to_pylist()
    return [cells[start:end] for start, end in itertools.pairwise(ends)]


class Outcome:
    """What was decoded, which is the same as other values if each cell is; compared only where both are decoded.

    Args:
        decoded: by one implementation.
    """

    def __init__(self, decoded: Decoded) -> None:
        decoded.values.validate(full=True)
        self.decoded = decoded
        self.reasons = dict(decoded.reasons)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome) or self.reasons != other.reasons:
            return False
        ours, theirs = self.decoded.values, other.decoded.values
        return ours.type == theirs.type and (ours == theirs or cells_of(ours) == cells_of(theirs))

    def __hash__(self) -> int:
        return len(self.decoded.values)

    def __repr__(self) -> str:
        return repr(self.decoded)


class ValueDecoding:
    """An input is a byte that says with which schema it is read, and a payload."""

    def __init__(self, decoders: Iterable[ValueDecoder]) -> None:
        self.decoders = list(decoders)

    def feed(self, data: memoryview) -> object:
        return Outcome(self.decode(data))

    def decode(self, data: memoryview) -> Decoded:
        decoder = self.decoders[data[0] % len(self.decoders) if data else 0]
        payload = data[1:]
        # Of the input's own memory, so that reading past it is seen.
        buffers = [None, pa.array([0, len(payload)], pa.int32()).buffers()[1], pa.py_buffer(payload)]
        return decoder.decode(pa.Array.from_buffers(pa.binary(), 1, buffers))

    def finish(self) -> object:
        return None


def whole_or_part(rng: Random, types: Iterable[pa.DataType]) -> list[pa.DataType]:
    is_whole = rng.random() < 0.5
    return [type_ if is_whole else part_of(rng, type_) for type_ in types]


def avro_decoding(seed: int, _implementation: str) -> ValueDecoding:
    definitions = [json.dumps(schema) for schema in AVRO]
    wanted = whole_or_part(Random(seed), map(arrow_type_of, definitions))
    return ValueDecoding(avro_decoder(definition, type_) for definition, type_ in zip(definitions, wanted, strict=True))


class AvroEncoding(ValueDecoding):
    """What is read of an input is written again; the seed is of no use."""

    definition = json.dumps(AVRO[1])

    def __init__(self, _seed: int, _implementation: str) -> None:
        super().__init__([avro_decoder(self.definition, arrow_type_of(self.definition))])

    def feed(self, data: memoryview) -> object:
        decoded = self.decode(data)
        written = encode_avro(decoded.values, self.definition)
        written.validate(full=True)
        again = self.decoders[0].decode(written)
        assert Outcome(again) == Outcome(Decoded(decoded.values, {}))
        return written.to_pylist()


def json_decoding(seed: int, implementation: str) -> ValueDecoding:
    wanted = whole_or_part(Random(seed), JSON)
    return ValueDecoding(
        json_decoder(type_, definition, implementation)
        for type_, definition in zip(wanted, JSON_DEFINITIONS, strict=True)
    )


def pair_decoding(_seed: int, implementation: str) -> ValueDecoding:
    return ValueDecoding([pair_decoder(implementation)])


def protobuf_decoding(seed: int, _implementation: str) -> ValueDecoding:
    wanted = whole_or_part(Random(seed), (protobuf_type_of(one.descriptors, one.message) for one in PROTOBUF))
    return ValueDecoding(
        protobuf_decoder(one.descriptors, one.message, type_) for one, type_ in zip(PROTOBUF, wanted, strict=True)
    )


class ProtobufEncoding(ValueDecoding):
    """What is read of an input is written again, and read; the seed is of no use."""

    def __init__(self, _seed: int, _implementation: str) -> None:
        super().__init__(
            protobuf_decoder(one.descriptors, one.message, protobuf_type_of(one.descriptors, one.message))
            for one in PROTOBUF
        )

    def feed(self, data: memoryview) -> object:
        values = self.decode(data).values
        at = data[0] % len(PROTOBUF) if data else 0
        written = encode_protobuf(values, PROTOBUF[at].descriptors, PROTOBUF[at].message)
        written.validate(full=True)
        assert Outcome(self.decoders[at].decode(written)) == Outcome(Decoded(values, {}))
        return written.to_pylist()
