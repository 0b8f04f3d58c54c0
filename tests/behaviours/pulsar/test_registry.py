"""Schemas of a topic in the registry."""

from __future__ import annotations

import json

import pytest
from pulsar import schema as official_schema

from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.protocol.commands import SchemaType
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import pulsar_options


def record(**fields: official_schema.Field) -> type[official_schema.Record]:
    """Return a version of the record; a broker accepts another one whose fields have defaults."""
    return type("Flight", (official_schema.Record,), fields)


One = record(a=official_schema.String())
Two = record(a=official_schema.String(), b=official_schema.Integer(required_default=True))
VERSIONS = [n.to_bytes(8, "big") for n in range(3)]


@pytest.mark.parametrize("partitions", [0, 2])
def test_versions_of_a_topic(pulsar: PulsarUnderTest, partitions: int) -> None:
    topic = pulsar.topic(partitions)
    for record in (One, Two):
        pulsar.client().create_producer(topic, schema=official_schema.AvroSchema(record)).close()
    names = [topic] + ([f"{topic}-partition-1"] if partitions else [])
    with PulsarClient(pulsar_options(pulsar.service_url, "t")) as client:
        for name in names:
            latest, first, second, none = (client.schema_of(name, version) for version in (None, *VERSIONS))
            assert latest is not None
            assert first is not None
            assert latest == second
            assert none is None
            assert (first.type, latest.type) == (SchemaType.AVRO, SchemaType.AVRO)
            assert [json.loads(schema.schema_data) for schema in (first, latest)] == [One.schema(), Two.schema()]


def test_topics_without_a_schema_and_a_missing_topic(pulsar: PulsarUnderTest) -> None:
    with PulsarClient(pulsar_options(pulsar.service_url, "t")) as client:
        for name in (pulsar.topic(), pulsar.topic(2), pulsar.unused_topic()):
            assert client.schema_of(name) is None
            assert client.schema_of(name, VERSIONS[0]) is None
            assert client.schema_of(name, b"no version") is None
