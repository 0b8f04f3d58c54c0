"""Values with a schema: the official clients read them by it, the broker shows it and refuses incompatible ones."""

from __future__ import annotations

import datetime
import io
import json
from typing import Any

import fastavro
import pulsar as official
import pyarrow as pa
import pytest
from pulsar import schema as official_schema

from spark_mq_source.core.errors import BrokerError
from tests.behaviours.pulsar.test_writer import write
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import PulsarFormat


class Place(official_schema.Record):
    city = official_schema.String()


class Flight(official_schema.Record):
    carrier = official_schema.String()
    number = official_schema.Integer()
    distance = official_schema.Double()
    at = official_schema.Long()
    stops = official_schema.Array(official_schema.String())
    to = Place()


ROWS = [
    {"carrier": 'A"A\n', "number": 7, "distance": 1.5, "at": datetime.datetime(2013, 1, 1), "stops": ["é", "x"]},
    {"carrier": None, "number": -1, "distance": 2.0, "at": None, "stops": []},
]
STRUCT = pa.struct(
    [
        ("carrier", pa.string()),
        ("number", pa.int32()),
        ("distance", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("stops", pa.list_(pa.string())),
        ("to", pa.struct([("city", pa.string())])),
    ]
)
VALUES = pa.array([{**ROWS[0], "to": {"city": "JFK"}}, None, {**ROWS[1], "to": None}], STRUCT)
AVRO = json.dumps(Flight.schema())


def schema_of(broker: PulsarUnderTest, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.admin.request("GET", f"schemas/{topic.partition('://')[2]}/schema")
    return found


def receive(broker: PulsarUnderTest, topic: str, count: int, schema: Any) -> list[Any]:
    consumer = broker.client().subscribe(topic, "s", schema=schema, initial_position=official.InitialPosition.Earliest)
    return [consumer.receive(20_000) for _ in range(count)]


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("batching", [True, False])
def test_a_struct_is_read_by_the_schema_derived_from_it(pulsar: PulsarUnderTest, batching: bool, partitions: int):
    topic = pulsar.topic(partitions)
    write(pulsar, topic, {"value": VALUES, "key": ["a", "b", "c"]}, valueFormat="json", batching=batching)
    found = schema_of(pulsar, topic)
    assert (found["type"], found["version"]) == ("JSON", 0)
    assert [field["name"] for field in json.loads(found["data"])["fields"]] == STRUCT.names
    messages = {m.partition_key(): m for m in receive(pulsar, topic, 3, official_schema.JsonSchema(Flight))}
    first, last = messages["a"].value(), messages["c"].value()
    assert (first.carrier, first.number, first.distance, first.stops) == ('A"A\n', 7, 1.5, ["é", "x"])
    assert first.at == 1_356_998_400_000_000
    assert first.to.city == "JFK"
    assert (last.carrier, last.number, last.distance, last.at, last.stops) == (None, -1, 2.0, None, [])
    assert messages["b"].data() == b""
    assert {m.schema_version() for m in messages.values()} == {"\0" * 8}


def test_a_struct_is_written_by_the_schema_of_the_topic(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    topic = pulsar.topic()
    pulsar.client().create_producer(topic, schema=official_schema.JsonSchema(Flight))
    write(pulsar, topic, {"value": VALUES}, valueFormat="json", schema=AVRO)
    assert schema_of(pulsar, topic)["version"] == 0
    with pytest.raises(BrokerError, match=r"IncompatibleSchema \(18\).*Unable to read schema"):
        write(pulsar, topic, {"value": pa.array([{"number": "7"}])}, valueFormat="json")
    rows = pulsar_format.read(topic, "value binary, schema_version binary").to_pylist()
    assert {row["schema_version"] for row in rows} == {bytes(8)}
    assert [row["value"] is None for row in rows] == [False, True, False]


def test_an_additional_field_is_a_new_version(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    topic = pulsar.topic()
    write(pulsar, topic, {"value": pa.array([{"a": 1}])}, valueFormat="json")
    write(pulsar, topic, {"value": pa.array([{"a": 1, "b": "x"}])}, valueFormat="json")
    write(pulsar, topic, {"value": pa.array([{"a": 1}])}, valueFormat="json")
    versions = pulsar_format.read(topic, "schema_version binary").column(0).to_pylist()
    assert [int.from_bytes(version, "big") for version in versions] == [0, 1, 0]


def test_values_already_encoded_as_avro(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    encoded = io.BytesIO()
    value = {"carrier": "AA", "number": 1, "distance": 0.5, "at": None, "stops": None, "to": {"city": "JFK"}}
    fastavro.schemaless_writer(encoded, Flight.schema(), value)
    schema = json.dumps({"type": "AVRO", "schema": Flight.schema(), "properties": {"owner": "flights"}})
    write(pulsar, topic, {"value": [encoded.getvalue()]}, schema=schema)
    found = schema_of(pulsar, topic)
    assert (found["type"], found["properties"], json.loads(found["data"])) == (
        "AVRO",
        {"owner": "flights"},
        Flight.schema(),
    )
    (message,) = receive(pulsar, topic, 1, official_schema.AvroSchema(Flight))
    assert (message.value().carrier, message.value().to.city) == ("AA", "JFK")


def test_json_without_a_schema(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    topic = pulsar.topic()
    write(pulsar, topic, {"value": pa.array([{"a b": 1}])}, valueFormat="json", schema="BYTES")
    rows = pulsar_format.read(topic, "value string, schema_version binary").to_pylist()
    assert rows == [{"value": '{"a b":1}', "schema_version": None}]


def test_a_type_other_than_the_topics_is_refused_with_the_brokers_reason(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    write(pulsar, topic, {"value": ["x"]}, schema="STRING")
    with pytest.raises(BrokerError) as caught:
        write(pulsar, topic, {"value": VALUES}, valueFormat="json")
    for words in (f"writing to {topic}", "exists schema type STRING, new schema type JSON", "pulsar-admin schemas get"):
        assert words in str(caught.value)
    assert pulsar.admin.stats(topic)["msgInCounter"] == 1


def test_a_namespace_that_requires_a_schema(pulsar: PulsarUnderTest):
    namespace = pulsar.new_namespace()
    pulsar.admin.request("POST", f"namespaces/{namespace}/schemaValidationEnforced", True)
    topic = pulsar.topic(namespace=namespace)
    write(pulsar, topic, {"value": ["x"]}, schema="STRING")
    with pytest.raises(BrokerError, match=r"IncompatibleSchema.*without a schema"):
        write(pulsar, topic, {"value": ["x"]})
