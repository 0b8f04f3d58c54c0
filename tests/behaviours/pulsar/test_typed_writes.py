"""Rows written with typed columns, read by the official clients and by our own reads."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pulsar import schema as official_schema

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.core.sql_types import ddl_of
from spark_mq_source.values.encodings import PRIMITIVES
from spark_mq_source.values.primitives import primitive_type_of
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.test_schema import receive, schema_of
from tests.behaviours.pulsar.test_typed import columns
from tests.behaviours.pulsar.test_writer import options, write
from tests.fix_brokers import PulsarUnderTest
from tests.formats import write_batches
from tests.formats.pulsar import PulsarFormat
from tests.oracles.protobuf import schema as protobuf_schema

UTC = datetime.timezone.utc
STRUCTS = ["avro", "json"]
FLIGHT = pa.struct(
    [("carrier", pa.string()), ("number", pa.int32()), ("distance", pa.float64()), ("stops", pa.list_(pa.string()))]
)
FLIGHTS: list[dict[str, Any] | None] = [
    {"carrier": "é", "number": 7, "distance": 1.5, "stops": ["x", ""]},
    {"carrier": None, "number": -(2**31), "distance": None, "stops": []},
    {"carrier": "", "number": None, "distance": -0.5, "stops": None},
]
SHOWN = ["é/7/1.5/[x, ]", "null/-2147483648/null/[]", "/null/-0.5/null"]


class Flight(official_schema.Record):
    carrier = official_schema.String()
    number = official_schema.Integer()
    distance = official_schema.Double()
    stops = official_schema.Array(official_schema.String())


FULL = pa.struct(
    [
        *FLIGHT,
        ("price", pa.decimal128(20, 4)),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local_at", pa.timestamp("us")),
        ("legs", pa.list_(pa.struct([("city", pa.string()), ("tags", pa.map_(pa.string(), pa.int64()))]))),
    ]
)
FULL_ROW: dict[str, Any] = {
    "carrier": "AA",
    "number": 1,
    "distance": 0.1,
    "stops": ["a"],
    "price": Decimal("-12345.6789"),
    "data": b"\xff\0",
    "day": datetime.date(1969, 1, 1),
    "at": datetime.datetime(2013, 1, 1, 0, 0, 0, 1, UTC),
    "local_at": datetime.datetime(2013, 1, 1, 0, 0, 0, 1),
    "legs": [{"city": "JFK", "tags": [("gate", 5)]}, {"city": None, "tags": []}],
}


@pytest.mark.parametrize("name", STRUCTS)
def test_classes_of_the_python_and_java_clients_read_structs(
    pulsar: PulsarUnderTest, java: JavaClient, name: str
) -> None:
    topic = pulsar.topic()
    write(pulsar, topic, {"value": pa.array(FLIGHTS, FLIGHT)}, valueFormat=name)
    found = schema_of(pulsar, topic)
    assert (found["type"], found["version"]) == (name.upper(), 0)
    kind = official_schema.AvroSchema if name == "avro" else official_schema.JsonSchema
    records = [message.value() for message in receive(pulsar, topic, 3, kind(Flight))]
    assert [{field: getattr(record, field) for field in FLIGHT.names} for record in records] == FLIGHTS
    assert java.values(pulsar, topic, 3, name) == SHOWN


@pytest.mark.parametrize("name", STRUCTS)
def test_every_type_is_read_unchanged_by_the_registry(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, name: str
) -> None:
    topic = pulsar.topic()
    values = pa.array([FULL_ROW, None, dict.fromkeys(FULL.names)], FULL)
    write(pulsar, topic, {"value": values}, valueFormat=name)
    assert columns(pulsar, topic).startswith(f"key binary, value {ddl_of(FULL)}, topic string")
    read = pulsar_format.read(topic, f"value {ddl_of(FULL)}", valueFormat="auto").column("value")
    assert read.to_pylist() == values.to_pylist()


def test_a_decimal_of_json_is_text_to_the_official_clients(pulsar: PulsarUnderTest, java: JavaClient) -> None:
    topic = pulsar.topic()
    write(pulsar, topic, {"value": pa.array([FULL_ROW], FULL)}, valueFormat="json")
    assert json.loads(java.values(pulsar, topic, 1)[0])["price"] == "-12345.6789"
    price = type("Price", (official_schema.Record,), {"price": official_schema.String()})
    (message,) = receive(pulsar, topic, 1, official_schema.JsonSchema(price))
    assert json.loads(message.data())["price"] == message.value().price == "-12345.6789"


def test_protobuf_messages_are_read_unchanged_by_the_registry(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, java: JavaClient
) -> None:
    topic = pulsar.topic()
    flight = protobuf_schema("M: optional carrier string 1, optional number int32 2, repeated stops string 3")
    values = pa.array(
        [{"carrier": "AA", "number": 7, "stops": ["x", ""]}, None, {"carrier": None, "number": 0, "stops": []}],
        pa.struct([("carrier", pa.string()), ("number", pa.int32()), ("stops", pa.list_(pa.string()))]),
    )
    encoding = {"valueFormat": "protobuf", "valueMessage": flight.message}
    definition = base64.b64encode(flight.descriptors).decode()
    write(pulsar, topic, {"value": values}, **encoding, valueSchema=definition)
    assert schema_of(pulsar, topic)["type"] == "PROTOBUF_NATIVE"
    read = pulsar_format.read(topic, f"value {ddl_of(values.type)}", valueFormat="auto").column("value")
    assert read.to_pylist() == values.to_pylist()
    assert java.values(pulsar, topic, 1) == ['carrier: "AA"\nnumber: 7\nstops: "x"\nstops: ""\n']


AUTO = {"valueFormat": "auto"}


def write_auto(mq: PulsarFormat, topic: str, table: pa.Table, **more: str) -> None:
    given = {"serviceUrl": mq.broker.service_url, "topic": topic, **AUTO, **more}
    write_batches(mq, given, table.schema, [table.to_batches()])


def test_rows_are_encoded_by_the_newest_schema_which_stays_the_newest(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat
) -> None:
    made = pa.table({"value": pa.array(FLIGHTS, FLIGHT)})
    pairs = made.append_column("key", pa.array([1, 2, 3], pa.int32()))
    foreign = pulsar.topic()
    pulsar.client().create_producer(foreign, schema=official_schema.AvroSchema(Flight)).close()
    registered = {foreign: made}
    single = pa.table({"value": pa.array([1, 2, 3], pa.int32())})
    cases = (("json", made, {}), ("avro", pairs, {"keyFormat": "int32"}), ("int32", single, {}))
    for value_format, rows, more in cases:
        topic = pulsar.topic()
        write(
            pulsar,
            topic,
            {name: rows[name].combine_chunks() for name in rows.column_names},
            valueFormat=value_format,
            **more,
        )
        registered[topic] = rows
    for topic, rows in registered.items():
        write_auto(pulsar_format, topic, rows)
        assert schema_of(pulsar, topic)["version"] == 0
        ddl = ", ".join(f"{field.name} {ddl_of(field.type)}" for field in rows.schema)
        assert pulsar_format.read(topic, ddl, **AUTO).to_pylist()[-len(FLIGHTS) :] == rows.to_pylist()


def test_rows_incompatible_with_the_newest_schema_are_refused_before_a_task(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat
) -> None:
    topic, bare = pulsar.topic(), pulsar.topic()
    pulsar.client().create_producer(topic, schema=official_schema.AvroSchema(Flight)).close()
    wrong = pa.table({"value": pa.array([{"carrier": "AA", "number": "seven"}])})
    with pytest.raises(OptionError, match=rf"value.number.*string.*int.*by the newest schema of {topic}"):
        write_auto(pulsar_format, topic, wrong)
    with pytest.raises(OptionError, match=r"value is struct.*has no schema for valueFormat=auto: set valueFormat"):
        write_auto(pulsar_format, bare, wrong)
    with pytest.raises(OptionError, match="the schema of one topic: set the option topic"):
        write_auto(pulsar_format, topic, pa.table({"value": [b"v"], "topic": [bare]}))
    write_auto(pulsar_format, bare, pa.table({"value": [b"v"]}))
    assert pulsar_format.read(bare).to_pylist() == [{"value": b"v"}]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_read_by_the_java_client_and_by_the_registry(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, java: JavaClient, encoding: str
) -> None:
    topic = pulsar.topic()
    keys = pa.array(FLIGHTS, FLIGHT)
    values = pa.array(list(reversed(FLIGHTS)), FLIGHT)
    how = {"keyFormat": "avro", "valueFormat": "json", "keyValueEncoding": encoding}
    write(pulsar, topic, {"key": keys, "value": values}, **how)
    assert schema_of(pulsar, topic)["type"] == "KEY_VALUE"
    pairs = [f"{key} -> {value}" for key, value in zip(SHOWN, reversed(SHOWN), strict=True)]
    assert java.values(pulsar, topic, 3, encoding.lower()) == pairs
    ddl = ddl_of(FLIGHT)
    rows = pulsar_format.read(topic, f"key {ddl}, value {ddl}", valueFormat="auto").to_pylist()
    assert rows == [{"key": key, "value": value} for key, value in zip(FLIGHTS, reversed(FLIGHTS), strict=True)]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_keys_as_protobuf_are_read_by_the_registry_and_by_an_option(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, encoding: str
) -> None:
    topic = pulsar.topic()
    flight = protobuf_schema("M: optional carrier string 1, optional number int32 2")
    definition = base64.b64encode(flight.descriptors).decode()
    by_option = {"keyFormat": "protobuf", "keyMessage": flight.message, "keySchema": definition}
    keys, values = pa.array([{"carrier": "é", "number": 7}, {"carrier": "AA", "number": -1}]), pa.array(["a", "b"])
    keys = keys.cast(pa.struct([("carrier", pa.string()), ("number", pa.int32())]))
    write(pulsar, topic, {"key": keys, "value": values}, **by_option, valueFormat="string", keyValueEncoding=encoding)
    assert schema_of(pulsar, topic)["type"] == "KEY_VALUE"
    ddl = f"key {ddl_of(keys.type)}, value string"
    expected = [{"key": keys[n].as_py(), "value": values[n].as_py()} for n in range(2)]
    assert pulsar_format.read(topic, ddl, valueFormat="auto").to_pylist() == expected
    if encoding == "SEPARATED":
        assert pulsar_format.read(topic, ddl, valueFormat="string", **by_option).to_pylist() == expected


SINGLE: dict[str, tuple[Any, str]] = {
    "bool": (True, "true"),
    "int8": (-128, "-128"),
    "int16": (-2, "-2"),
    "int32": (258, "258"),
    "int64": (-(2**63), str(-(2**63))),
    "float": (0.5, "0.5"),
    "double": (-1e300, "-1.0E300"),
    "string": ("é", "é"),
    "instant": (datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "1969-12-31T23:59:59.999999Z"),
    "local_date": (datetime.date(1969, 12, 31), "1969-12-31"),
    "local_time": (1_000, "00:00:00.000001"),
    "local_date_time": (datetime.datetime(2013, 1, 1, 0, 0, 1), "2013-01-01T00:00:01"),
    # The Java client's texts of these depend on the time zone of the process.
    "date": (datetime.datetime(2013, 1, 1, tzinfo=UTC), ""),
    "time": (86_399_999, ""),
    "timestamp": (datetime.datetime(2013, 1, 1, tzinfo=UTC), ""),
}


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_single_values(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, java: JavaClient, kind: str) -> None:
    topic = pulsar.topic()
    value, shown = SINGLE[kind]
    type_ = primitive_type_of(kind)
    write(pulsar, topic, {"value": pa.array([value, None, value], type_)}, valueFormat=kind)
    assert schema_of(pulsar, topic)["type"] == ("BOOLEAN" if kind == "bool" else kind.upper())
    found = java.values(pulsar, topic, 1)
    assert found == [shown or found[0]]
    rows = pulsar_format.read(topic, f"value {ddl_of(type_)}", valueFormat="auto").column("value").to_pylist()
    assert rows == [value, None, value]


def test_a_repeated_task_stores_typed_rows_once(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat) -> None:
    namespace = pulsar.new_namespace()
    pulsar.admin.set_deduplication(namespace, enabled=True)
    topic = pulsar.topic(namespace=namespace)
    batches = [pa.record_batch({"value": pa.array(FLIGHTS * 100, FLIGHT)}) for _ in range(3)]
    given = options(pulsar, topic, valueFormat="avro", deliveryGuarantee="exactly-once", batchingMaxMessages=7)
    fitted = PulsarFormat.door.fit(given, batches[0].schema)
    attempt = TaskAttempt("typed-job")
    PulsarFormat.door.write(fitted, iter(batches), attempt)
    # The same rows in batches of other sizes: the encoding of a row does not depend on them.
    again = pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=113)
    PulsarFormat.door.write(fitted, iter(again), attempt)
    read = pulsar_format.read(topic, f"value {ddl_of(FLIGHT)}", valueFormat="auto").column("value").to_pylist()
    assert read == FLIGHTS * 300
