"""The stage between messages and typed rows, with a decoder for tests: of numbers written as text."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.columns import CORRUPT_COLUMNS, Column, ColumnTable
from spark_mq_source.core.errors import CorruptMessageError, OptionError, TransportError
from spark_mq_source.values import rows
from spark_mq_source.values.decoder import Decoded, ValueDecoder
from spark_mq_source.values.encodings import Encoding, KeyValueEncoding, TypedRead, type_of
from spark_mq_source.values.inlong import decode
from spark_mq_source.values.rows import TypedRows, columns_of, typed_batches
from tests.oracles.inlong import inlong_msg
from tests.oracles.protobuf import schema as protobuf_schema

NUMBERS = pa.struct([("n", pa.int64()), ("text", pa.string())])
TABLE = ColumnTable(
    Column("key", ("binary",)),
    Column("value", ("binary", "string")),
    Column("topic", ("string",)),
    Column("id", ("struct<at:bigint,batch:int>",)),
    Column("schema_version", ("binary",), by_default=False),
    *CORRUPT_COLUMNS,
    position=("id",),
)
V = {n: n.to_bytes(8, "big") for n in range(5)}


class Digits:
    """A decoder of `17` as 17, plus the number in the definition, if any."""

    def __init__(self, definition: str, type_: pa.DataType) -> None:
        if not pa.types.is_struct(type_) or any(field.name not in ("n", "text") for field in type_):
            raise OptionError(f"the value is {NUMBERS}, not {type_}")
        self.type = type_
        self._more = int(definition or "0")

    def decode(self, payloads: pa.Array) -> Decoded:
        cells: list[dict[str, Any] | None] = []
        reasons = {}
        for row, payload in enumerate(payloads.to_pylist()):
            cells.append(None)
            if payload is not None and payload.isdigit():
                full = {"n": int(payload) + self._more, "text": payload.decode()}
                cells[-1] = {field.name: full[field.name] for field in self.type}
            elif payload is not None:
                reasons[row] = "field n: no number"
        return Decoded(pa.array(cells, self.type), reasons)


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    type_of, decoder_for = rows.type_of, rows.decoder_for

    def digits_type(encoding: Encoding | None) -> pa.DataType:
        return NUMBERS if encoding is not None and encoding.name == "digits" else type_of(encoding)

    def digits_decoder(writer: Encoding, wanted: pa.DataType, reader: Encoding | None) -> ValueDecoder:
        is_digits = writer.name == "digits"
        return Digits(writer.definition, wanted) if is_digits else decoder_for(writer, wanted, reader)

    monkeypatch.setattr(rows, "type_of", digits_type)
    monkeypatch.setattr(rows, "decoder_for", digits_decoder)


DIGITS = Encoding("digits")


def batch_of(stage: TypedRows, *messages: dict[str, Any]) -> pa.RecordBatch:
    """Return a batch as a format reads it: each message is at the position of its number."""
    rows = [{"topic": "t", "id": {"at": n, "batch": -1}} | message for n, message in enumerate(messages)]
    return pa.RecordBatch.from_pylist(rows, schema=stage.raw_schema)


def read(schema: pa.Schema, typed: TypedRead, *messages: dict[str, Any], **how: Any) -> list[dict[str, Any]]:
    stage = TypedRows(schema, typed, TABLE, **how)
    batch = stage.take(batch_of(stage, *messages))
    assert batch.schema.equals(schema)
    batch.validate(full=True)
    return batch.to_pylist()


def values(*texts: bytes | None, versions: tuple[int | None, ...] = ()) -> list[dict[str, Any]]:
    cells = [{"value": text} for text in texts]
    for cell, version in zip(cells, versions, strict=False):
        cell["schema_version"] = None if version is None else V[version]  # type: ignore[assignment]
    return cells


VALUE = pa.schema([("topic", pa.string()), ("value", NUMBERS)])


def test_values_are_decoded_beside_the_columns_of_the_message() -> None:
    assert read(VALUE, TypedRead(DIGITS), *values(b"7", None)) == [
        {"topic": "t", "value": {"n": 7, "text": "7"}},
        {"topic": "t", "value": None},
    ]


def test_only_the_needed_columns_are_read_from_the_format() -> None:
    assert TypedRows(VALUE, TypedRead(DIGITS), TABLE).raw_schema.names == ["topic", "value", "id"]
    by_version = TypedRead(DIGITS, by_version=True)
    assert TypedRows(VALUE, by_version, TABLE).raw_schema.names == ["topic", "value", "schema_version", "id"]
    assert TypedRows(pa.schema([("topic", pa.string())]), by_version, TABLE).raw_schema.names == ["topic"]


def test_the_decoder_gets_only_the_wanted_fields() -> None:
    schema = pa.schema([("value", pa.struct([("text", pa.string())]))])
    assert read(schema, TypedRead(DIGITS), *values(b"7")) == [{"value": {"text": "7"}}]


def test_fields_as_columns() -> None:
    typed = TypedRead(DIGITS, flatten=True)
    assert columns_of(TABLE, typed).names == ["n", "text", "key", "topic", "id"]
    schema = pa.schema([("text", pa.string()), ("topic", pa.string()), ("n", pa.int64())])
    assert read(schema, typed, *values(b"7", None)) == [
        {"text": "7", "topic": "t", "n": 7},
        {"text": None, "topic": "t", "n": None},
    ]
    # The column `value` is not read, so a field may have its name.
    with pytest.raises(OptionError, match="not struct<value"):
        TypedRows(pa.schema([("value", pa.int64())]), typed, TABLE)


def test_fields_with_names_of_other_columns_are_an_error() -> None:
    table = ColumnTable(Column("value", ("binary",)), Column("N", ("int",)), Column("text", ("string",)))
    with pytest.raises(OptionError, match="flatten: n, text would be a field of the value and a column"):
        columns_of(table, TypedRead(DIGITS, flatten=True))
    with pytest.raises(OptionError, match="flatten: the value is string, which has no fields"):
        columns_of(TABLE, TypedRead(Encoding("string"), flatten=True))


def test_default_columns_have_the_decoded_types() -> None:
    columns = columns_of(TABLE, TypedRead(DIGITS, Encoding("int32")))
    assert {field.name: field.type for field in columns if field.name in ("key", "value")} == {
        "key": pa.int32(),
        "value": NUMBERS,
    }
    assert columns_of(TABLE, None).field("value").type == pa.binary()


def test_a_column_that_does_not_fit_is_refused_when_the_read_is_planned() -> None:
    with pytest.raises(OptionError, match=r"column value: the value is .*, not int32"):
        TypedRows(pa.schema([("value", pa.int32())]), TypedRead(DIGITS), TABLE)


def json_of(*names: str) -> Encoding:
    """Return the encoding of a JSON schema with these integers."""
    fields = [{"name": name, "type": "int"} for name in names]
    return Encoding("json", json.dumps({"type": "record", "name": "R", "fields": fields}))


@pytest.mark.parametrize(
    ("columns", "flatten", "reason"),
    [
        (
            [("value", pa.struct([("count", pa.int32())]))],
            False,
            r"value\.count is not in the schema \(it has number, ",
        ),
        ([("value", pa.struct([("AB", pa.int32())]))], False, r"value\.AB is in the schema in several cases"),
        ([("number", pa.int32()), ("publish_tme", pa.int32())], True, r"value\.publish_tme is not in the schema"),
    ],
)
def test_a_field_that_a_json_schema_lacks_is_refused_when_the_read_is_planned(
    columns: list[tuple[str, pa.DataType]], flatten: bool, reason: str
) -> None:
    typed = TypedRead(json_of("number", "aB", "Ab"), flatten=flatten)
    with pytest.raises(OptionError, match=reason):
        TypedRows(pa.schema(columns), typed, TABLE)


# -- versions


def test_a_field_that_an_older_json_schema_lacks_is_null() -> None:
    schema = pa.schema([("value", pa.struct([("NUMBER", pa.int32()), ("added", pa.int32())]))])
    typed = TypedRead(json_of("number", "added"), by_version=True)
    rows = read(schema, typed, *values(b'{"number": 1}', versions=(1,)), lookup=lambda _: json_of("number"))
    assert rows == [{"value": {"NUMBER": 1, "added": None}}]


def test_a_field_that_an_older_protobuf_schema_lacks_is_null() -> None:
    older, newer = (protobuf_schema(f"M: {fields}") for fields in ("a int32 1", "a int32 1, b int32 2"))
    encodings = [
        Encoding("protobuf", base64.b64encode(one.descriptors).decode(), one.message) for one in (older, newer)
    ]
    typed = TypedRead(encodings[1], by_version=True)
    payload = older.make(a=1).SerializeToString()
    schema = pa.schema([("value", type_of(encodings[1]))])
    rows = read(schema, typed, *values(payload, versions=(0,)), lookup=lambda _: encodings[0])
    assert rows == [{"value": {"a": 1, "b": None}}]


def definitions(version: bytes) -> Encoding | None:
    """Return definitions by version; version 3 does not exist, and version 4 cannot be decoded."""
    number = int.from_bytes(version, "big")
    if number == 4:
        raise ValueError("the schema has the type 99, which is not known here")
    return None if number == 3 else Encoding("digits", str(100 * number))


BY_VERSION = TypedRead(DIGITS, by_version=True)


def test_each_message_is_decoded_with_its_version() -> None:
    asked = []

    def lookup(version: bytes) -> Encoding | None:
        asked.append(version)
        return definitions(version)

    rows = read(VALUE, BY_VERSION, *values(b"1", b"2", b"3", b"4", versions=(2, 1, None, 2)), lookup=lookup)
    assert [row["value"]["n"] for row in rows] == [201, 102, 3, 204]
    assert asked == [V[2], V[1]]


def test_similar_versions_are_distinguished() -> None:
    stage = TypedRows(VALUE, BY_VERSION, TABLE, lookup=lambda version: Encoding("digits", str(len(version))))
    messages = [{"value": b"1", "schema_version": version} for version in (b"aa", b"a", b"aaa")]
    assert [row["value"]["n"] for row in stage.take(batch_of(stage, *messages)).to_pylist()] == [3, 2, 4]
    assert stage.take(batch_of(stage, *messages).slice(1, 2)).column("value").field("n").to_pylist() == [2, 4]


@pytest.mark.parametrize(
    ("version", "reason"),
    [(3, "value: schema version 3 is not in the registry"), (4, "value: schema version 4: the schema has the type 99")],
)
def test_messages_of_an_unavailable_version_are_bad(version: int, reason: str) -> None:
    messages = values(b"1", b"2", None, versions=(1, version, version))
    with pytest.raises(CorruptMessageError, match=rf"^message 1, schema version {version}: {reason}.*set onCorrupt="):
        read(VALUE, BY_VERSION, *messages, lookup=definitions)
    rows = read(VALUE, BY_VERSION, *messages, lookup=definitions, on_corrupt="null")
    assert [row["value"] and row["value"]["n"] for row in rows] == [101, None, None]


def test_an_error_of_the_registry_is_not_a_bad_message() -> None:
    def lookup(version: bytes) -> Encoding | None:
        raise TransportError("no answer")

    with pytest.raises(TransportError):
        read(VALUE, BY_VERSION, *values(b"1", versions=(1,)), lookup=lookup, on_corrupt="skip")


# -- messages that cannot be decoded

REPORT = pa.schema([("value", NUMBERS), ("_error", pa.string()), ("_corrupt", pa.binary())])


def test_a_bad_message_fails_the_read_with_its_position_and_field() -> None:
    with pytest.raises(
        CorruptMessageError, match=r"^message 1: value: field n: no number; correct the producer, or set"
    ):
        read(VALUE, TypedRead(DIGITS), *values(b"1", b"x", b"y"))


def test_bad_messages_are_null_with_their_bytes_and_reasons() -> None:
    assert read(REPORT, TypedRead(DIGITS), *values(b"1", b"x", None), on_corrupt="null") == [
        {"value": {"n": 1, "text": "1"}, "_error": None, "_corrupt": None},
        {"value": None, "_error": "value: field n: no number", "_corrupt": b"x"},
        {"value": None, "_error": None, "_corrupt": None},
    ]


def test_reasons_without_the_value() -> None:
    schema = pa.schema([("_error", pa.string())])
    rows = read(schema, TypedRead(DIGITS), *values(b"1", b"x"), on_corrupt="null")
    assert [row["_error"] for row in rows] == [None, "value: field n: no number"]


def test_messages_that_the_format_cannot_read_keep_their_reason() -> None:
    how = {"on_corrupt": "null", "raw_errors": ("_corrupt", "_error")}
    messages = [{"value": None, "_error": "wrong checksum", "_corrupt": b"entry"}, *values(b"x")]
    rows = read(REPORT, TypedRead(DIGITS), *messages, **how)
    assert [(row["_error"], row["_corrupt"]) for row in rows] == [
        ("wrong checksum", b"entry"),
        ("value: field n: no number", b"x"),
    ]


def test_without_decoded_columns_no_message_is_bad() -> None:
    schema = pa.schema([("value", pa.binary()), ("_error", pa.string())])
    assert read(schema, TypedRead(), *values(b"x")) == [{"value": b"x", "_error": None}]


def test_a_task_counts_bad_messages(caplog: pytest.LogCaptureFixture) -> None:
    stage = TypedRows(VALUE, TypedRead(DIGITS), TABLE, on_corrupt="skip")
    batches = typed_batches(stage, lambda _: iter([batch_of(stage, *values(b"x", b"1", b"y"))] * 2), "task 7")
    with caplog.at_level(logging.WARNING):
        assert sum(batch.num_rows for batch in batches) == 2
    assert "task 7: 4 messages could not be decoded; the first: message 0: value: field n: no number" in caplog.text


def test_closing_the_rows_closes_the_read() -> None:
    stage = TypedRows(VALUE, TypedRead(DIGITS), TABLE)
    ended = []

    def raw(_: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            yield batch_of(stage, *values(b"1"))
            yield batch_of(stage, *values(b"2"))
        finally:
            ended.append(True)

    rows = typed_batches(stage, raw, "task")
    next(rows)
    rows.close()  # type: ignore[attr-defined] # a generator
    assert ended == [True]


# -- pairs of a key and a value


def pair(key: bytes | None, value: bytes | None) -> bytes:
    parts = [b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "big") + part for part in (key, value)]
    return b"".join(parts)


PAIR = pa.schema([("key", pa.struct([("n", pa.int64())])), ("value", NUMBERS), ("_error", pa.string())])


def test_a_side_that_is_bytes_is_unchanged() -> None:
    schema = pa.schema([("key", pa.binary()), ("value", NUMBERS)])
    typed = TypedRead(DIGITS, None, is_inline=True)
    assert read(schema, typed, {"value": pair(b"k", b"2")}) == [{"key": b"k", "value": {"n": 2, "text": "2"}}]


def pairs(version: bytes) -> Encoding | KeyValueEncoding | None:
    """Return pairs in the payload (version 1) and beside it (2), a schema without keys (3), and no schema (4)."""
    kinds = {
        V[1]: KeyValueEncoding(DIGITS, DIGITS, is_inline=True),
        V[2]: KeyValueEncoding(DIGITS, DIGITS, is_inline=False),
        V[3]: Encoding("digits"),
    }
    return kinds.get(version)


PAIR_MESSAGES = [
    {"value": pair(b"1", b"2"), "schema_version": V[1]},
    {"key": b"3", "value": b"4", "schema_version": V[2]},
    {"key": b"5", "value": b"6", "schema_version": V[3]},
    {"value": pair(b"7", b"8"), "schema_version": V[4]},
    {"value": pair(b"x", b"9"), "schema_version": V[1]},
]


def test_pairs_can_be_in_payloads_and_beside_them_in_one_batch() -> None:
    schema = pa.schema([*PAIR, ("_corrupt", pa.binary())])
    typed = TypedRead(DIGITS, DIGITS, is_inline=True, by_version=True)
    rows = read(schema, typed, *PAIR_MESSAGES, lookup=pairs, on_corrupt="null")
    assert [(row["key"] and row["key"]["n"], row["value"] and row["value"]["n"]) for row in rows] == [
        (1, 2), (3, 4), (5, 6), (None, None), (None, 9),
    ]  # fmt: skip
    assert [row["_error"] for row in rows[3:]] == [
        "key: schema version 4 is not in the registry",
        "key: field n: no number",
    ]
    assert [row["_corrupt"] for row in rows] == [None, None, None, pair(b"7", b"8"), pair(b"x", b"9")]


@pytest.mark.parametrize("is_inline", [True, False])
def test_keys_without_values_can_be_in_payloads_and_beside_them(is_inline: bool) -> None:
    schema = pa.schema([PAIR.field("key")])
    typed = TypedRead(DIGITS, DIGITS, is_inline=is_inline, by_version=True)
    rows = read(schema, typed, *PAIR_MESSAGES[:3], lookup=pairs)
    assert [row["key"] for row in rows] == [{"n": 1}, {"n": 3}, {"n": 5}]


# -- messages with several rows


@pytest.mark.parametrize("on_corrupt", ["skip", "null"])
def test_each_row_has_the_columns_of_its_message(on_corrupt: str) -> None:
    table = ColumnTable(
        Column("value", ("binary",)), Column("id", ("bigint",)), Column("attributes", ("map<string,string>",)),
        *CORRUPT_COLUMNS, position=("id",), properties="attributes",
    )  # fmt: skip
    typed = TypedRead(Encoding("inlong"), flatten=True)
    assert columns_of(table, typed).names == ["groupId", "streamId", "dt", "attributes", "data", "id"]
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary()), ("_error", pa.string())])
    stage = TypedRows(schema, typed, table, on_corrupt=on_corrupt, max_rows=2)
    made = inlong_msg(1, [("streamId=s", [b"a", b"b", b"c"])])
    cells = [(made, {"x": "y"}), (b"bare", {"version": "0"}), (b"bad", {}), (None, {})]
    batch = pa.RecordBatch.from_pylist(
        [{"value": value, "attributes": [*map_.items()], "id": at} for at, (value, map_) in enumerate(cells)],
        schema=stage.raw_schema,
    )
    batches = [*stage.rows(batch)]
    assert [one.num_rows for one in batches] == [2, 2, 1 + (on_corrupt == "null")]
    rows = [(row["id"], row["data"], row["_error"] is None) for one in batches for row in one.to_pylist()]
    bad = [(2, None, False)] * (on_corrupt == "null")
    assert rows == [(0, b"a", True), (0, b"b", True), (0, b"c", True), (1, b"bare", True), *bad, (3, None, True)]
    assert [one.num_rows for one in stage.rows(batch.slice(0, 0))] == [0]
    assert [
        row for one in TypedRows(pa.schema([]), typed, table).rows(batch.slice(0, 2)) for row in one.to_pylist()
    ] == [{}] * 4


def test_a_bad_key_behind_the_first_piece_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_PIECE_BYTES", 1)
    columns = [Column(name, ("binary",)) for name in ("key", "value")]
    table = ColumnTable(
        *columns, Column("attributes", ("map<string,string>",)), *CORRUPT_COLUMNS,
        position=("key",), properties="attributes",
    )  # fmt: skip
    schema = pa.schema([("key", NUMBERS), ("data", pa.binary()), ("_corrupt", pa.binary())])
    stage = TypedRows(schema, TypedRead(Encoding("inlong"), DIGITS, flatten=True), table, on_corrupt="null")
    value = inlong_msg(1, [("streamId=s", [b"a", b"b"])])
    batch = pa.RecordBatch.from_pylist(
        [{"key": key, "value": value} for key in (b"1", b"x", b"3", b"y")], schema=stage.raw_schema
    )
    rows = [row for one in stage.rows(batch) for row in one.to_pylist()]
    assert [(row["key"] and row["key"]["n"], row["data"], row["_corrupt"]) for row in rows] == [
        (number, data, bad)
        for number, bad in ((1, None), (None, b"x"), (3, None), (None, b"y"))
        for data in (b"a", b"b")
    ]
    assert stage.undecodable == 2
