"""Writes of every format: each row is stored once the write has succeeded."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.encodings import Encoding, decoder_for
from spark_mq_source.values.struct_schema import derive_definition
from tests.formats import Format, numbers, write, write_batches

FITTING = pa.struct([("n", pa.int32())])


def test_every_row_of_every_task_is_stored_once(mq: Format):
    topic = mq.feed(3)
    values = numbers(2000)
    write(mq, topic.target, [values[n::4] for n in range(4)])
    assert sorted(mq.consume(topic.topic, 2000)) == sorted(values)


def test_a_task_without_rows_writes_nothing(mq: Format):
    topic = mq.feed(1)
    write(mq, topic.target, [[], numbers(3), []])
    assert sorted(mq.consume(topic.topic, 3)) == numbers(3)


def test_large_and_small_values_are_written_unchanged(mq: Format):
    topic = mq.feed(1)
    values = [b"x", b"\x00" * 1000, bytes(range(256)) * 2000, b"y" * (900 << 10)]
    write(mq, topic.target, [values])
    assert sorted(mq.consume(topic.topic, len(values))) == sorted(values)


def test_a_missing_topic_option_and_an_unknown_option_are_refused(mq: Format):
    given = {name: value for name, value in mq.feed(1).target.items() if name != "topic"}
    with pytest.raises(OptionError, match="set the option topic, or write a column topic"):
        write(mq, given, [numbers(1)])
    with pytest.raises(OptionError, match="topick: unknown option"):
        write(mq, given | {"topick": "t"}, [numbers(1)])


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_structs_are_read_back_by_their_schema(mq: Format, encoding: str):
    topic = mq.feed(1)
    type_ = pa.struct([("n", pa.int32()), ("tags", pa.list_(pa.string())), ("price", pa.decimal128(9, 2))])
    rows = [{"n": n, "tags": ["x"] * n, "price": Decimal(n).scaleb(-2)} for n in range(50)]
    rows += [{"n": None, "tags": None, "price": None}]
    given = topic.target | {"valueFormat": encoding}
    batch = pa.record_batch({"value": pa.array(rows, type_)})
    write_batches(mq, given, batch.schema, [[batch]])
    schema = {"valueFormat": encoding, "valueSchema": derive_definition(type_, encoding)}
    payloads = pa.array(mq.consume(topic.topic, len(rows)), pa.binary())
    decoder = decoder_for(Encoding(encoding, schema["valueSchema"]), type_, None)
    found = decoder.decode(payloads)
    assert not found.reasons
    assert sorted(found.values.to_pylist(), key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_a_struct_incompatible_with_the_schema_is_refused(mq: Format, encoding: str):
    given = mq.feed(1).target | {"valueFormat": encoding, "valueSchema": derive_definition(FITTING, encoding)}
    schema = pa.schema([("value", pa.struct([("n", pa.string())]))])
    with pytest.raises(OptionError, match=rf"format '{mq.name}': .*value\.n is string"):
        write_batches(mq, given, schema, [])
    with pytest.raises(OptionError, match=f"column value is string, expected a struct with valueFormat={encoding}"):
        write_batches(mq, given, pa.schema([("value", pa.string())]), [])
    with pytest.raises(OptionError, match="valueSchema has no meaning with valueFormat=raw"):
        write(mq, given | {"valueFormat": "raw"}, [])
