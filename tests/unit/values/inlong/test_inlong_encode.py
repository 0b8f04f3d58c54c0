"""Rows written as InLong's messages, and read again."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.tubemq.payload.columns import COLUMNS
from spark_mq_source.values.encoders import BatchEncoder, encoder_for
from spark_mq_source.values.encodings import Encoding, TypedWrite, decoder_for, type_of
from spark_mq_source.values.inlong.encode import message_columns
from spark_mq_source.values.inlong.fields import StreamLayout
from spark_mq_source.values.inlong.texts import Delimiters
from tests.java_arrow import as_java_writes
from tests.oracles.inlong import inlong_msg

UTC = datetime.timezone.utc
MOMENT = datetime.datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)
HEAD = "groupId string, streamId string, dt timestamp, attributes map<string,string>"
FULL = Delimiters("|", line="\n", escape="\\", quote="'")
LAYOUTS = [
    StreamLayout("csv", FULL, "NULL"),
    StreamLayout("csv", Delimiters(";", quote="'"), "NULL"),
    StreamLayout("kv", Delimiters("&", "=", "\n", "\\")),
    StreamLayout("json"),
]


def structs(rows: list[dict[str, Any] | None], data: str = "binary") -> pa.Array:
    return pa.array(rows, arrow_type_of_ddl(f"{HEAD}, data {data}"))


def row(data: object = b"a", **changes: Any) -> dict[str, Any]:
    return {
        "groupId": "g",
        "streamId": "s",
        "dt": MOMENT,
        "attributes": [("NodeIP", "ü\0😀=")],
        "data": data,
        **changes,
    }


def test_a_row_is_a_message_of_version_1() -> None:
    rows = structs([row(), None, row(b"", dt=None, attributes=None), row(attributes=[("dt", "7"), ("groupId", "x")])])
    attributes = "groupId=g&streamId=s&dt=1700000000001"
    for values in (rows, as_java_writes(rows), pa.concat_arrays([rows, rows]).slice(4)):
        first, null, empty, last = encoder_for(Encoding("inlong"), rows.type)(values).to_pylist()
        stamp = (1700000000001).to_bytes(8, "big")
        assert first == inlong_msg(1, [(f"{attributes}&NodeIP=ü\0😀=", [b"a"])])[:2] + stamp + first[10:]
        assert first[10:] == inlong_msg(1, [(f"{attributes}&NodeIP=ü\0😀=", [b"a"])])[10:]
        assert null is None
        assert empty[10:] == inlong_msg(1, [("groupId=g&streamId=s", [b""])])[10:]
        assert last[10:] == inlong_msg(1, [(attributes, [b"a"])])[10:]
    assert encoder_for(Encoding("inlong"), rows.type)(rows.slice(0, 0)).to_pylist() == []


FIELDS = (
    "a tinyint, b bigint, c float, d double, e decimal(4,2), f boolean, g date, h timestamp, i timestamp_ntz, j string"
)
CELLS = {
    "a": -128, "b": 2**63 - 1, "c": 0.5, "d": 1e300, "e": Decimal("-1.50"), "f": True, "g": datetime.date(2024, 2, 29),
    "h": MOMENT, "i": datetime.datetime(2024, 2, 29, 1, 2, 3), "j": "a|b;c'",
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_written_fields_are_read_back(layout: StreamLayout) -> None:
    texts = ["", "x", "a&b=c", "\\ \n"] if layout.delimiters.escape or layout.kind == "json" else ["", "x"]
    cells = CELLS if texts[2:] else {**CELLS, "j": "a;b"}
    nulls = [dict.fromkeys(CELLS)] if layout.kind != "kv" else [dict.fromkeys(CELLS) | {"a": 1}]
    data = [cells, *nulls, *({**cells, "j": text} for text in texts), {**cells, "d": float("-inf")}]
    encoding = Encoding("inlong", FIELDS, layout=layout)
    values = structs([row(one) for one in data], f"struct<{FIELDS}>".replace(" ", ":").replace(",:", ","))
    messages = encoder_for(encoding, values.type)(values)
    found = decoder_for(encoding, type_of(encoding), encoding).decode(messages)
    assert found.reasons == {}
    assert [one["data"] for one in found.values.to_pylist()] == data


@pytest.mark.parametrize(
    ("changes", "layout", "why"),
    [
        ({"streamId": None}, None, "streamId is NULL"),
        ({"data": None}, None, "data is NULL"),
        ({"groupId": "a&b"}, None, "the attribute 'groupId' is NULL, or has a character that separates"),
        ({"attributes": [("a=b", "")]}, None, "the attribute 'a=b' is NULL, or has a character"),
        ({"attributes": [("a", None)]}, None, "the attribute 'a' is NULL, or has a character"),
        ({"attributes": [("a", "x" * 65536)]}, None, "the attributes have 65576 bytes, but at most 65535"),
        ({"data": {"a": "x|"}}, StreamLayout(), "data: 'x|' contains one of '|', which needs inlongEscape"),
        ({"data": {"a": ""}}, StreamLayout(), "data: all fields are empty or NULL, and InLong's Sort leaves out"),
        ({"data": {"a": None}}, StreamLayout("kv", Delimiters("&", "=")), "data: all fields are empty or NULL"),
        ({"data": {"a": None}}, StreamLayout(), "data: a is NULL, which csv cannot tell from an empty text"),
        ({"data": {"a": "-"}}, StreamLayout(null_text="-"), "data: a has the text that inlongNullText makes NULL"),
    ],
)
def test_rows_that_cannot_be_written(changes: dict[str, Any], layout: StreamLayout | None, why: str) -> None:
    values = structs([row(**changes)], "binary" if layout is None else "struct<a:string>")
    write = TypedWrite(Encoding("inlong", layout=layout))
    batch = pa.record_batch([values], names=["value"])
    with pytest.raises(UnwritableRowError) as caught:
        BatchEncoder(write, batch.schema).encode(batch)
    assert why in str(caught.value)
    assert "writing column value as inlong" in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "definition", "why"),
    [
        ("struct<groupId:string>", "", "it lacks streamId; it lacks data"),
        ("struct<groupId:int,streamId:string,data:int>", "", "groupId is int32, expected string; data is int32, exp"),
        ("struct<groupId:string,streamId:string,data:binary,x:int>", "", "x is no part of a record of InLong"),
        ("struct<groupId:string,streamId:string,data:binary>", "a int", "data is binary, expected a struct"),
        ("struct<groupId:string,streamId:string,data:struct<b:int>>", "a int", "data has other fields than inlong"),
        ("struct<groupId:string,streamId:string,data:struct<b:binary>>", "", "data.b is binary, for which csv has no"),
        ("string", "", "it lacks groupId"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_written(ddl: str, definition: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        encoder_for(Encoding("inlong", definition), arrow_type_of_ddl(ddl))


def test_the_columns_by_which_inlong_identifies_a_message() -> None:
    found = message_columns(structs([row()]), COLUMNS)
    properties = {"version": "2", "msgEnType": "2", "inlongGroupId": "g", "inlongStreamId": "s"}
    assert {name: array.to_pylist() for name, array in found.items()} == {
        "attributes": [[*properties.items()]],
        "message_type": ["s"],
        "message_time": [MOMENT],
    }
    batch = pa.record_batch([structs([row()]), pa.array(["mine"])], names=["value", "message_type"])
    written = BatchEncoder(TypedWrite(Encoding("inlong")), batch.schema, COLUMNS).encode(batch)
    assert written.column("message_type").to_pylist() == ["mine"]
    assert written.schema.names == ["attributes", "message_type", "message_time", "value"]
