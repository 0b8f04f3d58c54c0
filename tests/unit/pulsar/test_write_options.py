from __future__ import annotations

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.pulsar._encode_python import JAVA_STRING_HASH, MURMUR3_32_HASH
from spark_mq_source.pulsar.options import PulsarOptions


def parse(**options: str) -> PulsarOptions:
    given = {"serviceUrl": "pulsar://b", "topic": "t"} | options
    return PulsarOptions.from_spark({name.lower(): value for name, value in given.items()}, WRITE)


def test_what_is_not_said_has_its_default() -> None:
    options = parse()
    assert (options.topic, options.compression_type, options.hashing) == (
        "persistent://public/default/t",
        "NONE",
        JAVA_STRING_HASH,
    )
    assert (options.batching, options.batching_max_bytes, options.batching_by_key, options.chunking) == (
        True,
        100_000,
        False,
        False,
    )
    assert (options.max_pending_bytes, options.send_timeout_ms, options.create_topic) == (16 << 20, 60_000, False)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("JavaStringHash", JAVA_STRING_HASH),
        ("javastringhash", JAVA_STRING_HASH),
        ("Murmur3_32", MURMUR3_32_HASH),
        ("Murmur3_32Hash", MURMUR3_32_HASH),
    ],
)
def test_the_names_of_hashes(text: str, number: int) -> None:
    assert parse(hashingScheme=text).hashing == number


def test_names_of_the_java_client_are_known() -> None:
    options = parse(
        **{
            "pulsar.producer.compressionType": "zstd",
            "pulsar.producer.batchingMaxMessages": "7",
            "pulsar.producer.sendTimeoutMs": "5000",
            "pulsar.producer.chunkingEnabled": "true",
        }
    )
    assert (options.compression_type, options.batching_max_messages, options.send_timeout_ms, options.chunking) == (
        "ZSTD",
        7,
        5000,
        True,
    )


def test_what_cannot_be_is_refused_all_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        parse(compressionType="BROTLI", hashingScheme="md5", batchingMaxBytes="0", maxPendingBytes="3g", chunking="yes")
    for words in (
        "compressionType='BROTLI': expected NONE or LZ4 or ZLIB or ZSTD or SNAPPY",
        "hashingScheme='md5': expected JavaStringHash or Murmur3_32",
        "batchingMaxBytes='0': must be from 1 to 1g",
        "maxPendingBytes='3g': must be from 1 to 2g",
        "chunking='yes': expected true or false",
    ):
        assert words in str(caught.value)


def test_what_is_for_writing_has_no_meaning_in_a_read() -> None:
    given = {"serviceurl": "pulsar://b", "topic": "t", "compressiontype": "LZ4"}
    with pytest.raises(OptionError, match="compressionType"):
        PulsarOptions.from_spark(given, READ)


def test_a_topic_is_not_needed_where_rows_say_theirs() -> None:
    assert PulsarOptions.from_spark({"serviceurl": "pulsar://b"}, WRITE).topic is None
