"""Typed columns by the schemas of the registry, written by the official client."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pulsar import schema as official_schema

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.sql_types import ddl_of_schema
from tests.behaviours.pulsar.java_client import JavaClient
from tests.fix_brokers import PulsarUnderTest
from tests.formats import start_query
from tests.formats.pulsar import PulsarFormat

Schema = type[official_schema.AvroSchema] | type[official_schema.JsonSchema]
SCHEMAS = [official_schema.AvroSchema, official_schema.JsonSchema]
FIELDS = [
    "carrier:string",
    "number:int",
    "distance:double",
    "legs:array<struct<city:string>>",
    "tags:map<string,string>",
]
FLIGHT = f"struct<{','.join(FIELDS)}>"


def record(name: str, **fields: official_schema.Field) -> type[official_schema.Record]:
    return type(name, (official_schema.Record,), fields)


def optional(kind: type[official_schema.Field], *arguments: Any) -> official_schema.Field:
    """Return a field that may be missing: a broker accepts a version with it, and one without it."""
    return kind(*arguments, required_default=True)


LEG = record("Leg", city=official_schema.String())
VERSIONS = [
    {"carrier": optional(official_schema.String), "number": optional(official_schema.Integer)},
    {
        "carrier": optional(official_schema.String),
        "number": optional(official_schema.Integer),
        "distance": optional(official_schema.Double),
    },
    {
        "carrier": optional(official_schema.String),
        "number": optional(official_schema.Integer),
        "distance": optional(official_schema.Double),
        "legs": optional(official_schema.Array, LEG()),
        "tags": optional(official_schema.Map, official_schema.String()),
    },
]
RECORDS = [record("Flight", **fields) for fields in VERSIONS]


def publish(
    broker: PulsarUnderTest, topic: str, kind: Schema, version: int, rows: Sequence[Mapping[str, Any]], **how: Any
) -> None:
    made = RECORDS[version]
    producer = broker.client().create_producer(topic, schema=kind(made), **how)
    for row in rows:
        producer.send(made(**row))
    producer.close()


def publish_bytes(broker: PulsarUnderTest, topic: str, *values: bytes) -> None:
    """Publish without a schema."""
    producer = broker.client().create_producer(topic)
    for value in values:
        producer.send(value)
    producer.close()


def publish_all_versions(broker: PulsarUnderTest, topic: str, kind: Schema) -> list[dict[str, Any]]:
    """Publish rows of three versions, and again of the first; return them as read by the last version."""
    full = {"carrier": "UA", "number": 2, "distance": 1.5, "tags": {"gate": "B1"}}
    publish(broker, topic, kind, 0, [{"carrier": "AA", "number": 1}])
    publish(broker, topic, kind, 1, [{"carrier": "DL", "number": 3, "distance": 2.5}])
    publish(broker, topic, kind, 2, [full | {"legs": [LEG(city="JFK")]}])
    publish(broker, topic, kind, 0, [{"carrier": "B6", "number": None}])
    nothing = dict.fromkeys(VERSIONS[2])
    return [
        nothing | {"carrier": "AA", "number": 1},
        nothing | {"carrier": "DL", "number": 3, "distance": 2.5},
        full | {"legs": [{"city": "JFK"}], "tags": [("gate", "B1")]},
        nothing | {"carrier": "B6"},
    ]


def columns(broker: PulsarUnderTest, topic: str, **options: Any) -> str:
    given = {"serviceUrl": broker.service_url, "topic": topic, "valueFormat": "auto"} | options
    made, _ = PulsarFormat.door.columns_by_default({name.lower(): str(value) for name, value in given.items()})
    return ddl_of_schema(made)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_three_versions_are_read_by_the_latest(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, kind: Schema
) -> None:
    topic = pulsar.topic()
    expected = publish_all_versions(pulsar, topic, kind)
    rows = pulsar_format.read(topic, f"value {FLIGHT}", valueFormat="auto").to_pylist()
    assert [row["value"] for row in rows] == expected
    part = pulsar_format.read(topic, "value struct<legs:array<struct<city:string>>,number:int>", valueFormat="auto")
    names = ("legs", "number")
    assert [row["value"] for row in part.to_pylist()] == [{name: row[name] for name in names} for row in expected]


class Gate(enum.Enum):
    A = 1
    B = 2


Everything = record(
    "Everything",
    flag=official_schema.Boolean(),
    number=official_schema.Integer(required=True),
    big=official_schema.Long(),
    part=official_schema.Float(),
    ratio=official_schema.Double(),
    text=official_schema.String(),
    gate=official_schema.CustomEnum(Gate),
    leg=LEG(),
    legs=official_schema.Array(LEG()),
    counts=official_schema.Map(official_schema.Integer()),
)
EVERYTHING = (
    "value struct<flag:boolean,number:int,big:bigint,part:float,ratio:double,text:string,gate:string,"
    "leg:struct<city:string>,legs:array<struct<city:string>>,counts:map<string,int>%s>"
)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_types_of_the_python_client(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, kind: Schema) -> None:
    topic = pulsar.topic()
    full = {
        "flag": True,
        "number": -(2**31),
        "big": 2**62,
        "part": 0.5,
        "ratio": -1e300,
        "text": "ü",
        "counts": {"a": 1},
    }
    legs = {"leg": LEG(city="x"), "legs": [LEG(city=None), LEG(city="")]}
    is_avro = kind is official_schema.AvroSchema
    # The client encodes bytes in Avro only, not in JSON.
    made = Everything if not is_avro else record("Everything", **Everything._fields, data=official_schema.Bytes())
    data = {"data": b"\x00\xff"} if is_avro else {}
    producer = pulsar.client().create_producer(topic, schema=kind(made))
    producer.send(made(**full, **legs, **data, gate=Gate.B))
    producer.send(made(number=0))
    producer.close()
    ddl = EVERYTHING % (",data:binary" if is_avro else "")
    assert columns(pulsar, topic).startswith(f"key binary, {ddl}, topic string")
    rows = pulsar_format.read(topic, ddl, valueFormat="auto").to_pylist()
    # In JSON the client writes the value of an enum, and in Avro its name.
    read = {"gate": "B" if is_avro else "2", "leg": {"city": "x"}, "legs": [{"city": None}, {"city": ""}]}
    assert [row["value"] for row in rows] == [
        full | data | read | {"counts": [("a", 1)]},
        # A missing value is false in the client, and a record without fields.
        dict.fromkeys((*full, *data, *read)) | {"number": 0, "flag": False, "leg": {"city": None}},
    ]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_default_columns_are_those_of_the_latest_schema(pulsar: PulsarUnderTest, kind: Schema) -> None:
    topic = pulsar.topic(2)
    assert columns(pulsar, topic).startswith("key binary, value binary, topic string")
    pulsar.client().create_producer(topic, schema=kind(RECORDS[2])).close()
    assert columns(pulsar, topic).startswith(f"key binary, value {FLIGHT}, topic string")
    flat = ", ".join(field.replace(":", " ", 1) for field in FIELDS)
    assert columns(pulsar, topic, flatten=True).startswith(f"{flat}, key binary, topic string")


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_stream_continues_with_its_schema(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, kind: Schema) -> None:
    topic = pulsar.topic(1)
    publish(pulsar, topic, kind, 0, [{"carrier": "AA", "number": 1}])
    given = {"serviceUrl": pulsar.service_url, "topic": topic, "startingOffsets": "earliest", "valueFormat": "auto"}
    query = start_query(pulsar_format, given, "value struct<carrier:string,number:int>")
    query.until(1)
    publish(pulsar, topic, kind, 1, [{"carrier": "UA", "number": 2, "distance": 1.5}])
    query.until(2)
    query.close()
    assert query.values == [{"carrier": "AA", "number": 1}, {"carrier": "UA", "number": 2}]
    # Planned again, with the new field.
    query = start_query(pulsar_format, given, "value struct<carrier:string,number:int,distance:double>")
    query.until(2)
    query.close()
    assert [row["distance"] for row in query.values] == [None, 1.5]


def test_topics_with_different_schemas_are_read_separately(pulsar: PulsarUnderTest) -> None:
    first, second = pulsar.topic(), pulsar.topic()
    pulsar.client().create_producer(first, schema=official_schema.AvroSchema(RECORDS[0])).close()
    pulsar.client().create_producer(second, schema=official_schema.StringSchema()).close()
    given = {"serviceurl": pulsar.service_url, "topics": f"{first},{second}", "valueformat": "auto"}
    with pytest.raises(OptionError, match=f"the schemas of {first} and {second} differ"):
        PulsarFormat.door.columns_by_default(given)


# -- pairs of a key and a value


PAIR_DDL = (
    "key struct<id:bigint>, value struct<before:struct<id:bigint,name:string>,after:struct<id:bigint,name:string>,"
    "op:string>"
)
CHANGES: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"id": 1}, {"before": None, "after": {"id": 1, "name": "a"}, "op": "c"}),
    ({"id": 1}, {"before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}, "op": "u"}),
    ({"id": 1}, {"before": {"id": 1, "name": "b"}, "after": None, "op": "d"}),
    ({"id": 1}, None),
]


@pytest.mark.parametrize("pair", ["INLINE", "SEPARATED"])
@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_pairs_of_the_java_client(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, java: JavaClient, kind: str, pair: str
) -> None:
    topic = pulsar.topic(2)
    java.produce_typed(pulsar, topic, CHANGES, kind=kind, pair=pair)
    # Java's schemas have the fields in alphabetical order.
    assert columns(pulsar, topic).startswith(
        "key struct<id:bigint>, value struct<after:struct<id:bigint,name:string>,bef"
    )
    rows = pulsar_format.read(topic, PAIR_DDL, valueFormat="auto").to_pylist()
    expected = [{"key": key, "value": value} for key, value in CHANGES]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    with pytest.raises(OptionError, match="keyFormat: the topic's KEY_VALUE schema says how keys are encoded"):
        columns(pulsar, topic, keyFormat="string")


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_the_types_of_the_java_client(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, java: JavaClient, kind: str
) -> None:
    topic = pulsar.topic()
    full = {
        "flag": True, "number": -7, "big": 2**62, "part": 0.5, "ratio": 1e300, "text": "schön", "bytes": "AP8=",
        "color": "GREEN", "tags": ["a", ""], "counts": {"x": 1}, "row": {"id": 1, "name": None},
    }  # fmt: skip
    plain = {"flag": False, "number": 0, "part": 0.0, "ratio": 0.0}
    java.produce_typed(pulsar, topic, [full, plain], kind=kind)
    ddl = re.match(r"key binary, (value struct<.*>), topic string", columns(pulsar, topic))
    assert ddl is not None
    for field in (
        "flag:boolean", "number:int", "big:bigint", "part:float", "ratio:double", "text:string", "bytes:binary",
        "color:string", "tags:array<string>", "counts:map<string,int>", "row:struct<id:bigint,name:string>",
    ):  # fmt: skip
        assert field in ddl[1]
    rows = pulsar_format.read(topic, ddl[1], valueFormat="auto").to_pylist()
    assert [row["value"] for row in rows] == [
        full | {"bytes": b"\0\xff", "counts": [("x", 1)]},
        dict.fromkeys(full) | plain,
    ]
