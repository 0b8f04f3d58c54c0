from __future__ import annotations

import array
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core import columns as c
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.sql_types import matches

# Spark's Arrow type of map<string,string>, and a map with other inner names and nullability.
MAPS = [
    pa.map_(pa.string(), pa.string()),
    pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
    pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.string())),
]


def buffer_of(typecode: str, *values: int) -> pa.Buffer:
    return pa.py_buffer(array.array(typecode, values).tobytes())


@pytest.mark.parametrize("type_", MAPS, ids=str)
def test_maps_have_exactly_the_requested_type(type_: pa.MapType) -> None:
    rows = [{b"a": b"1", b"b": b"2"}, {}, {"é".encode(): b""}]
    expected = [[("a", "1"), ("b", "2")], [], [("é", "")]]
    from_lists = c.map_array_of(rows, type_)
    keys, items = pa.array([b"a", b"b", "é".encode()], type_.key_type), pa.array([b"1", b"2", b""], type_.item_type)
    from_buffers = c.map_array(type_, 3, buffer_of("i", 0, 2, 2, 3), keys, items)
    for built in (from_lists, from_buffers):
        built.validate(full=True)
        assert built.to_pylist() == expected
        schema = pa.schema([pa.field("m", type_, nullable=False)])
        assert c.record_batch(schema, [built], 3).schema.equals(schema, check_metadata=True)


def test_a_struct_of_its_parts() -> None:
    type_ = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int32(), nullable=False)])
    built = c.struct_array(type_, [pa.array([1, 2]), pa.array([3, 4], pa.int32())])
    built.validate(full=True)
    assert built.type == type_
    assert built.to_pylist() == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]


@pytest.mark.parametrize(("value", "type_"), [("topic", pa.string()), (-1, pa.int32())])
def test_a_constant_column_is_built_once(value: Any, type_: pa.DataType) -> None:
    column = c.ConstantColumn(value, type_)
    assert column.take(0).to_pylist() == []
    first = column.take(100)
    assert first.to_pylist() == [value] * 100
    assert first.type == type_
    again = column.take(60)
    assert again.to_pylist() == [value] * 60
    assert [b.address for b in again.buffers() if b] == [b.address for b in first.buffers() if b]
    assert column.take(101).to_pylist() == [value] * 101
    assert column.take(190).buffers()[-1].address == column.take(200).buffers()[-1].address


def test_a_batch_without_columns_still_has_rows() -> None:
    batch = c.record_batch(pa.schema([]), [], 7)
    assert batch.num_rows == 7
    assert batch.schema.equals(pa.schema([]))


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (pa.binary(), 4),
        (pa.string(), 4),
        (pa.int32(), 4),
        (pa.timestamp("us", "UTC"), 8),
        (MAPS[0], 4),
        (pa.struct([("a", pa.int64()), ("b", pa.int32())]), 12),
    ],
    ids=str,
)
def test_fixed_row_bytes(type_: pa.DataType, expected: int) -> None:
    assert c.fixed_row_bytes(type_) == expected


def test_the_arrow_types_of_each_sql_type() -> None:
    inner = pa.struct([("a", pa.int64()), ("b", pa.int32())])
    accepted = {
        "int": [pa.int32()],
        "bigint": [pa.int64()],
        "string": [pa.string()],
        "binary": [pa.binary()],
        "timestamp": [pa.timestamp("us"), pa.timestamp("us", "UTC")],
        "timestamp_ntz": [pa.timestamp("us"), pa.timestamp("us", "UTC")],
        "map<string,string>": MAPS,
        "struct<a:bigint,b:int>": [inner],
        "struct": [inner, pa.struct([("b", pa.int32())])],
        "array<struct<a:bigint,b:int>>": [pa.list_(inner)],
    }
    types = [pa.timestamp("ms"), pa.large_string(), pa.map_(pa.string(), pa.binary()), pa.list_(pa.string())]
    types += [type_ for types_ in accepted.values() for type_ in types_]
    for text, expected in accepted.items():
        assert {type_ for type_ in types if matches(type_, text)} == set(expected)


def test_every_problem_of_a_schema_is_reported() -> None:
    table = c.ColumnTable(
        c.Column("a", ("bigint",), ("bigint",), required=True),
        c.Column("b", ("string",), ("string",), by_default=False),
    )
    assert (table.default, table.required) == (("a",), ("a",))
    table.check(pa.schema([("b", pa.string()), ("a", pa.int64())]))
    schema = pa.schema([("a", pa.int32()), ("z", pa.int64()), ("b", pa.string()), ("b", pa.string())])
    with pytest.raises(OptionError) as caught:
        table.check(schema)
    assert str(caught.value) == (
        "column a is int32, expected bigint; column z is unknown (known: a, b); column b is named twice"
    )
    with pytest.raises(OptionError, match=r"^there is no column a to write$"):
        table.check(pa.schema([("b", pa.string())]), written=True)


WITHOUT_PANDAS = """
import sys
import pyarrow as pa
from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.dead_letters import DeadLetters
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.values.encodings import Encoding, TypedRead
from spark_mq_source.values.rows import TypedRows
from spark_mq_source.pulsar.payload import columns, messages
from spark_mq_source.tubemq.payload import columns as tubemq_columns, messages as tubemq_messages

ENTRY = bytes.fromhex("000000070a017010001801") + b"no JSON"


class Writer:
    def __init__(self, counters):
        self.letters = []

    def write(self, batch):
        self.letters += batch.to_pylist()

    def flush(self):
        pass


def schema_of(table, *names):
    return arrow_schema_of({name: table.readable[name][0] for name in names})


def entries(schema, on_corrupt):
    decoder = messages.EntryDecoder(
        schema, topic="t", partition=0, on_corrupt=on_corrupt, max_message_bytes=1000, max_pending_chunk_bytes=1000
    )
    decoder.decode(1, 1, ENTRY)
    decoder.decode(1, 2, b"corrupt")
    return decoder.take_batch()


names = ("value", "topic", "message_id", "properties", "_corrupt", "_error")
batch = entries(schema_of(columns.COLUMNS, *names), "null")
assert batch.column("_corrupt").to_pylist() == [None, b"corrupt"]
assert batch.column("_error").null_count == 1
decoder = tubemq_messages.MessageDecoder(
    schema_of(tubemq_columns.COLUMNS, "_corrupt", "_error"), topic="t", broker_id=1, partition=0, on_corrupt="null"
)
decoder.decode(b"\\x22\\x01\\x08", 1, None)
assert decoder.take_batch().column("_corrupt").to_pylist() == [b"\\x08"]
wanted = pa.schema([("value", pa.struct([("a", pa.int32())])), ("_error", pa.string()), ("_corrupt", pa.binary())])
for on_corrupt, rows in (("null", 2), ("deadLetter", 0)):
    writer = Writer(None)
    dead = DeadLetters("pulsar", "dead", lambda counters: writer, columns.COLUMNS)
    stage = TypedRows(
        wanted,
        TypedRead(Encoding("json", "a int")),
        columns.COLUMNS,
        on_corrupt=on_corrupt,
        raw_errors=("_corrupt", "_error"),
        dead_letters=dead if on_corrupt == "deadLetter" else None,
    )
    assert stage.take(entries(stage.raw_schema, "null")).num_rows == rows
    letters = [b"no JSON", b"corrupt"] if on_corrupt == "deadLetter" else []
    assert [letter["value"] for letter in writer.letters] == letters
assert "pandas" not in sys.modules
"""


def test_corrupt_messages_are_reported_without_the_slow_import_of_pandas() -> None:
    # The twins build columns of Python's lists, for which pyarrow imports pandas.
    pytest.importorskip("spark_mq_source.core._columns_native", exc_type=ImportError)
    assert find_spec("pandas") is not None
    done = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
