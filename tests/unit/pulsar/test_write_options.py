from __future__ import annotations

import json

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import WRITE
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.layout import JAVA_STRING_HASH, MURMUR3_32_HASH
from spark_mq_source.pulsar.payload.schema import ValueSchema
from spark_mq_source.pulsar.protocol import commands


def parse(**options: str) -> PulsarOptions:
    return PulsarOptions.from_spark({"serviceUrl": "pulsar://b", "topic": "t"} | options, WRITE)


def test_names_in_any_spelling() -> None:
    for mode in commands.ProducerAccessMode:
        assert parse(accessMode=mode.name).access_mode == parse(accessMode=mode.name.lower()).access_mode == mode
    assert [parse(hashingScheme=name).hashing for name in ("JavaStringHash", "javastringhash")] == [
        JAVA_STRING_HASH
    ] * 2
    assert [parse(hashingScheme=name).hashing for name in ("Murmur3_32", "Murmur3_32Hash")] == [MURMUR3_32_HASH] * 2
    assert parse().hashing == JAVA_STRING_HASH
    assert PulsarOptions.from_spark({"serviceurl": "pulsar://b"}, WRITE).topic is None


def test_clusters_and_properties() -> None:
    assert (parse().replication_clusters, parse().producer_properties) == ((), ())
    assert parse(replicationClusters="us-east, us-west").replication_clusters == ("us-east", "us-west")
    assert parse(replicationClusters="None").replication_clusters == ("__local__",)
    assert parse(producerProperties='{"team": "delays"}').producer_properties == (("team", "delays"),)


def test_names_of_the_java_client_are_known() -> None:
    options = parse(
        **{
            "pulsar.producer.compressionType": "zstd",
            "pulsar.producer.batchingMaxMessages": "7",
            "pulsar.producer.sendTimeoutMs": "5000",
            "pulsar.producer.chunkingEnabled": "true",
            "pulsar.producer.accessMode": "WaitForExclusive",
            "pulsar.producer.batchingMaxPublishDelayMicros": "7000",
        }
    )
    assert (options.access_mode, options.batching_max_publish_delay_ms) == (2, 7)
    assert (options.compression_type, options.batching_max_messages, options.send_timeout_ms, options.chunking) == (
        "ZSTD",
        7,
        5000,
        True,
    )


RECORD = '{"type": "record", "name": "F", "fields": []}'


@pytest.mark.parametrize(
    ("schema", "value_format", "type_", "definition"),
    [
        ("string", "raw", "STRING", ""),
        ("BYTES", "json", "BYTES", ""),
        (f'{{"type": "avro", "schema": {RECORD}}}', "raw", "AVRO", RECORD.replace(" ", "")),
        (f'{{"type": "JSON", "schema": {json.dumps(RECORD)}, "properties": {{}}}}', "json", "JSON", RECORD),
        (RECORD, "json", "", RECORD),
    ],
)
def test_schemas(schema: str, value_format: str, type_: str, definition: str) -> None:
    assert parse(schema=schema, valueFormat=value_format).schema == ValueSchema(type_, definition)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"schema": "INT32"}, "expected BYTES, STRING, or"),
        ({"schema": "[]"}, "expected BYTES, STRING, or"),
        ({"schema": f'{{"type": "PROTOBUF", "schema": {RECORD}}}'}, "expected BYTES, STRING, or"),
        ({"schema": '{"type": "JSON", "schema": "int"}'}, "the definition is no Avro schema"),
        ({"schema": '{"name": "F"}', "valueFormat": "json"}, "the definition is no Avro schema"),
        ({"schema": f'{{"type": "JSON", "schema": {RECORD}, "version": 1}}'}, "version has no meaning beside type"),
        ({"schema": f'{{"type": "JSON", "schema": {RECORD}, "properties": [1]}}'}, "expected texts as the properties"),
        ({"schema": RECORD}, "schema: name the encoding of the values"),
        ({"schema": "STRING", "valueFormat": "json"}, "schema: STRING and valueFormat=json contradict each other"),
        ({"valueFormat": "auto", "keyFormat": "int32"}, "keyFormat has no meaning with valueFormat=auto"),
        ({"valueFormat": "auto", "schema": RECORD}, "schema has no meaning with valueFormat=auto"),
        ({"valueFormat": "auto", "valueSchema": RECORD}, "valueSchema has no meaning with valueFormat=auto"),
        ({"valueFormat": "protobuf"}, "valueFormat=protobuf needs valueSchema"),
        ({"valueFormat": "protobuf", "valueSchema": "CggKAWEiAwoBRg=="}, "valueMessage go together"),
        ({"keyFormat": "int32", "keySchema": "{}"}, "keySchema has no meaning with keyFormat=int32"),
        ({"valueFormat": "avro", "schema": f'{{"type": "JSON", "schema": {RECORD}}}'}, "valueFormat=avro contradict"),
        ({"valueFormat": "int32", "schema": "BYTES"}, "schema has no meaning with valueFormat=int32"),
        ({"valueFormat": "avro", "schema": RECORD, "valueSchema": RECORD}, "set only one"),
        ({"keyFormat": "int32", "schema": "STRING"}, "valueFormat says how values are encoded"),
        ({"keyValueEncoding": "INLINE"}, "keyValueEncoding needs keyFormat"),
        ({"accessMode": "Fenced"}, "expected Shared, Exclusive, WaitForExclusive or ExclusiveWithFencing"),
        ({"batchingMaxPublishDelay": "0"}, "must be from 1ms"),
        (
            {"batchingMaxPublishDelay": "1", "pulsar.producer.batchingMaxPublishDelayMicros": "1"},
            "are the same option: set only one",
        ),
        ({"topicPartitions": "8", "createTopic": "true"}, "topicPartitions needs createTopic=true and adminUrl"),
        ({"topicPartitions": "8", "topic": "t-partition-0"}, "t-partition-0, which is one partition: name the topic"),
        ({"pulsar.producer.batchingMaxPublishDelayMicros": "x"}, "batchingMaxPublishDelay='x': expected a duration"),
    ],
)
def test_invalid_options_of_values_and_producers(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"authTokenSupplier": "function"}, "expected module:function"),
        ({"authTokenSupplier": "a b:c"}, "expected module:function"),
        ({"authTokenSupplier": "m:f", "authToken": "x"}, "authToken and authTokenSupplier contradict each other"),
        ({"authIssuerUrl": "https://i"}, "needs authCredentialsFile, or authClientId and authClientSecret"),
        ({"authIssuerUrl": "https://i", "authClientId": "c"}, "needs authCredentialsFile, or authClientId"),
        (
            {
                "authIssuerUrl": "https://i",
                "authClientId": "c",
                "authClientSecret": "hush",
                "authCredentialsFile": "/f",
            },
            "authCredentialsFile and authClientId with authClientSecret contradict each other",
        ),
        ({"authClientId": "c", "authClientSecret": "hush"}, "need authIssuerUrl"),
        ({"issuerUrl": "http://example.com", "authCredentialsFile": "/f"}, "it must begin with https://"),
        ({"issuerUrl": "example.com", "authCredentialsFile": "/f"}, "expected https://issuer"),
        (
            {"issuerUrl": "https://a:hush@i", "authCredentialsFile": "/f"},
            "the address cannot contain a user or password",
        ),
        ({"issuerUrl": "https://i?a", "authCredentialsFile": "/f"}, "expected an address without ? and #"),
    ],
)
def test_invalid_options_of_authentication(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(**given)
    assert sentence in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_issuer_on_this_machine_needs_no_tls() -> None:
    for host in ("localhost:8", "127.0.0.1", "[::1]:8"):
        assert parse(issuerUrl=f"http://{host}", authCredentialsFile="/f").auth_issuer_url == f"http://{host}"


def test_all_invalid_options_are_in_one_error() -> None:
    with pytest.raises(OptionError) as caught:
        parse(compressionType="BROTLI", hashingScheme="md5", batchingMaxBytes="0", maxPendingBytes="3g", chunking="yes")
    for words in (
        "compressionType='BROTLI': expected NONE, LZ4, ZLIB, ZSTD or SNAPPY",
        "hashingScheme='md5': expected JavaStringHash or Murmur3_32",
        "batchingMaxBytes='0': must be from 1 to 1g",
        "maxPendingBytes='3g': must be from 1 to 2g",
        "chunking='yes': expected true or false",
    ):
        assert words in str(caught.value)
