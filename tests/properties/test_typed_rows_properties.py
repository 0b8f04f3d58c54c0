"""Typed rows of valid, damaged and hostile messages, with many schema versions, in any order."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.columns import CORRUPT_COLUMNS, Column, ColumnTable
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.values.encodings import Encoding, KeyValueEncoding, TypedRead
from spark_mq_source.values.rows import TypedRows

TABLE = ColumnTable(
    Column("key", ("binary",)),
    Column("value", ("binary",)),
    Column("id", ("bigint",)),
    Column("schema_version", ("binary",), by_default=False),
    *CORRUPT_COLUMNS,
    position=("id",),
)


def avro(**fields: Any) -> Mapping[str, Any]:
    """Return a record with these types; a field with a default is a mapping."""
    listed = [
        {"name": name, "type": type_} if isinstance(type_, str) else {"name": name, **type_}
        for name, type_ in fields.items()
    ]
    return fastavro.parse_schema({"type": "record", "name": "R", "fields": listed})  # type: ignore[return-value]


def encoding(definition: Mapping[str, Any]) -> Encoding:
    return Encoding("avro", json.dumps({name: one for name, one in definition.items() if not name.startswith("__")}))


def avro_bytes(definition: Mapping[str, Any], row: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, dict(definition), dict(row))
    return out.getvalue()


def json_bytes(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode()


NEWEST = avro(a="long", b="string", c={"type": ["null", "string"], "default": None})
OLDER = avro(b="string", a="int")
KEYS = avro(k="int")
READER = TypedRead(encoding(NEWEST), encoding(KEYS), by_version=True)
VALUE = pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())])
KEY = pa.struct([("k", pa.int32())])
REPORT = pa.schema(
    [("key", KEY), ("id", pa.int64()), ("value", VALUE), ("_corrupt", pa.binary()), ("_error", pa.string())]
)
JSON = Encoding("json", "a bigint, b string, c string")
REGISTRY = {
    b"\x01": KeyValueEncoding(encoding(KEYS), encoding(NEWEST), is_inline=False),
    b"\x02": KeyValueEncoding(encoding(KEYS), encoding(OLDER), is_inline=False),
    b"\x03\x03": KeyValueEncoding(encoding(KEYS), JSON, is_inline=False),
    b"\x04": KeyValueEncoding(encoding(KEYS), encoding(OLDER), is_inline=True),
    # Unusable versions: one of another kind, and one that does not exist.
    b"\x05": KeyValueEncoding(Encoding("string"), Encoding("int32"), is_inline=False),
}
ABSENT = b"\x06"

NUMBERS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(max_size=4)


def look_up(version: bytes) -> KeyValueEncoding | None:
    if version == b"\x07":
        raise ValueError("of a type that is not known here")
    return REGISTRY.get(version)


def pair(key: bytes | None, value: bytes | None) -> bytes:
    return b"".join(
        (-1 if part is None else len(part)).to_bytes(4, "big", signed=True) + (part or b"") for part in (key, value)
    )


@st.composite
def good_messages(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a message and its row."""
    row: dict[str, Any] = {"a": draw(NUMBERS), "b": draw(TEXTS), "c": None}
    key_row = draw(st.none() | st.fixed_dictionaries({"k": NUMBERS}))
    version = draw(st.sampled_from([None, b"\x01", b"\x02", b"\x03\x03", b"\x04"]))
    key = None if key_row is None else avro_bytes(KEYS, key_row)
    if version in (None, b"\x01"):
        row["c"] = draw(st.none() | TEXTS)
        value = avro_bytes(NEWEST, row)
    elif version == b"\x03\x03":
        row["c"] = draw(st.none() | TEXTS)
        value = json_bytes(row)
    else:
        value = avro_bytes(OLDER, row)
    if version == b"\x04":
        key, value = None, pair(key, value)
    return {"key": key, "value": value, "schema_version": version}, {"key": key_row, "value": row}


@st.composite
def damaged(draw: st.DrawFn, payload: bytes | None) -> bytes | None:
    """Draw a payload that was cut, changed or replaced."""
    if payload is None:
        return draw(st.none() | st.binary(max_size=6))
    at = draw(st.integers(0, len(payload)))
    return draw(
        st.sampled_from(
            [payload[:at], payload[:at] + b"\xff" + payload[at + 1 :], payload + b"\x00", b"\xff" * 11, b""]
        )
        | st.binary(max_size=12)
        | st.none()
    )


@st.composite
def messages(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Draw a message, and its row if the message is valid."""
    message, row = draw(good_messages())
    if draw(st.booleans()):
        return message, row
    sides = draw(st.sampled_from([("key",), ("value",), ("key", "value")]))
    message = message | {side: draw(damaged(message[side])) for side in sides}
    if draw(st.booleans()):
        message["schema_version"] = draw(st.sampled_from([*REGISTRY, ABSENT, b"\x07", b"\x00" * 8, None]))
    return message, None


BATCHES = st.lists(messages(), max_size=12)


def batch_of(stage: TypedRows, found: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    rows = [{"id": number, **message} for number, message in enumerate(found)]
    return pa.RecordBatch.from_pylist(rows, schema=stage.raw_schema)


def rows_of(stage: TypedRows, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    made = stage.take(batch)
    made.validate(full=True)
    return made.to_pylist()


@given(BATCHES)
def test_a_row_depends_only_on_its_message(found: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    stage = TypedRows(REPORT, READER, TABLE, on_corrupt="null", lookup=look_up)
    batch = batch_of(stage, [message for message, _ in found])
    rows = rows_of(stage, batch)
    assert [row["id"] for row in rows] == list(range(len(found)))
    for (_, expected), row in zip(found, rows, strict=True):
        if expected is not None:
            assert row == {"id": row["id"], "_corrupt": None, "_error": None} | expected
    alone = [row for number in range(len(found)) for row in rows_of(stage, batch.slice(number, 1))]
    assert rows == alone
    is_bad = [row["_error"] is not None for row in rows]
    assert stage.undecodable == 2 * sum(is_bad)


@given(BATCHES)
def test_skip_drops_the_messages_for_which_null_reports_a_reason(
    found: list[tuple[dict[str, Any], dict[str, Any] | None]],
) -> None:
    stages = {how: TypedRows(REPORT, READER, TABLE, on_corrupt=how, lookup=look_up) for how in ("null", "skip")}
    batch = batch_of(stages["null"], [message for message, _ in found])
    kept = [row for row in rows_of(stages["null"], batch) if row["_error"] is None]
    assert rows_of(stages["skip"], batch) == kept


@given(BATCHES)
def test_fail_names_the_first_message_for_which_null_reports_a_reason(
    found: list[tuple[dict[str, Any], dict[str, Any] | None]],
) -> None:
    stages = {how: TypedRows(REPORT, READER, TABLE, on_corrupt=how, lookup=look_up) for how in ("null", "fail")}
    batch = batch_of(stages["null"], [message for message, _ in found])
    rows = rows_of(stages["null"], batch)
    first = next((row for row in rows if row["_error"] is not None), None)
    if first is None:
        assert rows_of(stages["fail"], batch) == rows
        return
    with pytest.raises(CorruptMessageError) as caught:
        stages["fail"].take(batch)
    assert str(caught.value).startswith(f"message {first['id']}")
    assert first["_error"] in str(caught.value)
