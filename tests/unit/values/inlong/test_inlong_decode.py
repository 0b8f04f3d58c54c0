"""InLong's messages as rows: several rows for each message, with the fields of a stream as columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.values.encodings import Encoding, decoder_for, type_of
from spark_mq_source.values.inlong import decode
from spark_mq_source.values.inlong.fields import StreamLayout
from spark_mq_source.values.inlong.texts import Delimiters
from tests.oracles.inlong import binary_msg, inlong_msg, of_version_4, sized

FIELDS = "a int, b string, c double"
FULL = Delimiters("|", "=", "\n", "\\", "'")


def message(*records: bytes, attributes: str = "groupId=g&streamId=s&dt=1") -> bytes:
    return inlong_msg(1, [(attributes, records)])


def decoded(encoding: Encoding, *payloads: bytes | None, columns: pa.DataType | None = None) -> Any:
    found = decoder_for(encoding, type_of(encoding) if columns is None else columns, encoding).decode(
        pa.array(payloads, pa.binary())
    )
    found.values.validate(full=True)
    return found


def fields(layout: StreamLayout, *records: bytes, ddl: str = FIELDS, attributes: str = "streamId=s") -> Any:
    """Return the fields of the rows of one message, or the reason why it cannot be decoded."""
    encoding = Encoding("inlong", ddl, layout=layout)
    found = decoded(encoding, message(*records, attributes=attributes))
    return found.reasons.get(0) or [tuple(row["data"].values()) for row in found.values.to_pylist()]


def test_each_record_is_a_row_of_its_message() -> None:
    found = decoded(Encoding("inlong"), message(b"x", b"y"), None, b"damaged", message(), message(b"z"))
    rows = found.values.to_pylist()
    assert [row and row["data"] for row in rows] == [b"x", b"y", None, None, b"z"]
    assert found.parents.to_pylist() == [0, 0, 1, 2, 4]
    assert found.payloads == 5
    assert list(found.reasons) == [2]
    assert [row and (row["groupId"], row["streamId"], dict(row["attributes"])["dt"]) for row in rows] == [
        ("g", "s", "1"), ("g", "s", "1"), None, None, ("g", "s", "1"),
    ]  # fmt: skip


def test_a_part_of_the_columns() -> None:
    for columns, row in ((pa.struct([("data", pa.binary())]), {"data": b"x"}), (pa.struct([]), None)):
        assert decoded(Encoding("inlong"), message(b"x", b"x"), columns=columns).values.to_pylist() == [row, row]
    with pytest.raises(ValueError, match="topic is no part of a record of InLong, not string"):
        decoded(Encoding("inlong"), columns=pa.struct([("topic", pa.string())]))
    with pytest.raises(ValueError, match="d is not in inlongFields"):
        decoded(Encoding("inlong", FIELDS), columns=pa.struct([("data", pa.struct([("d", pa.int32())]))]))
    with pytest.raises(ValueError, match="a has a type with parts, which csv does not have"):
        decoded(Encoding("inlong", "a array<int>"))


def test_the_streams_that_are_read() -> None:
    other = message(b"{", attributes="streamId=other")
    encoding = Encoding("inlong", "a int", layout=StreamLayout("json", streams=("s",)))
    found = decoded(encoding, message(b'{"a": 1}'), other, message(b'{"a": 2}'))
    assert [row["data"]["a"] for row in found.values.to_pylist()] == [1, 2]
    assert (found.parents.to_pylist(), found.reasons) == ([0, 2], {})


def test_a_stream_that_is_only_a_number_is_not_left_out_silently() -> None:
    numbered = of_version_4(binary_msg(sized(b'{"a": 1}'), flags=0))

    def read(*streams: str) -> tuple[list[object], dict[int, str]]:
        encoding = Encoding("inlong", "a int", layout=StreamLayout("json", streams=streams))
        found = decoder_for(encoding, type_of(encoding), encoding).decode(pa.array([numbered], pa.binary()))
        return [row and row["data"]["a"] for row in found.values.to_pylist()], found.reasons

    assert read() == read("4") == ([1], {})
    why = "record 1: its stream is the number 4, and inlongStreams may mean its name: add the number to read it"
    assert read("name") == ([None], {0: why})


@pytest.mark.parametrize(
    ("layout", "record", "rows"),
    [
        (StreamLayout(), b"", []),
        (StreamLayout("json"), b"", []),
        (StreamLayout("csv", FULL), b"1|x\n2\n", [(1, "x", None), (2, None, None)]),
        (StreamLayout("csv", FULL), b"1\n\n2", [(1, None, None), (None, None, None), (2, None, None)]),
        (StreamLayout(), b"1|x|0.5", [(1, "x", 0.5)]),
        (StreamLayout(), b" +7 | x |5.", [(7, " x ", 5.0)]),
        (StreamLayout(), b"||", [(None, "", None)]),
        (StreamLayout(null_text="NULL"), b"NULL|NULL|-.5e-1", [(None, None, -0.05)]),
        (StreamLayout(), b"-0", [(0, None, None)]),
        (StreamLayout("csv", FULL), b"1|'a|b'|NaN\n2|a\\'|-Infinity", [(1, "a|b", "nan"), (2, "a'", float("-inf"))]),
        (StreamLayout("csv", FULL), b"1\n", [(1, None, None)]),
        (StreamLayout("kv", FULL), b"b=x=y|a=1|z=9\na=2", [(1, "x=y", None), (2, None, None)]),
        (StreamLayout("json"), b'{"c": 1.5, "a": 1, "z": {}}', [(1, None, 1.5)]),
    ],
)
def test_fields(layout: StreamLayout, record: bytes, rows: list[tuple[object, ...]]) -> None:
    found = fields(layout, record)
    assert [tuple("nan" if str(cell) == "nan" else cell for cell in row) for row in found] == rows


def test_fields_in_the_attributes_precede_others() -> None:
    attributes = "streamId=s&__addcol2__y=two&__addcol1__x=1"
    assert fields(StreamLayout(), b"0.5", attributes=attributes) == [(1, "two", 0.5)]
    kv = StreamLayout("kv", Delimiters("&", "="))
    assert fields(kv, b"a=9&c=0.5", attributes=attributes) == [(1, "two", 0.5)]


def test_fields_of_all_types() -> None:
    ddl = "a tinyint, b bigint, c float, d decimal(4,2), e boolean, f date, g timestamp, h timestamp_ntz"
    record = b"-128|9223372036854775807|0.1|+1.5| TRUE |2024-02-29|2024-02-29T01:02:03Z|2024-02-29 01:02:03.5"
    ((*cells, moment, local),) = fields(StreamLayout(), record, ddl=ddl)
    assert [*map(str, cells)] == ["-128", str(2**63 - 1), "0.10000000149011612", "1.50", "True", "2024-02-29"]
    assert (str(moment), str(local)) == ("2024-02-29 01:02:03+00:00", "2024-02-29 01:02:03.500000")


@pytest.mark.parametrize(
    ("layout", "record", "why"),
    [
        (StreamLayout(), b"x", 'row 2: field a: "x" is not a valid int'),
        (StreamLayout(), b"0x10", 'row 2: field a: "0x10" is not a valid int'),
        (StreamLayout(), b"2147483648", "row 2: field a: 2147483648 is not a valid int"),
        (StreamLayout(), b"1|x|inf", 'row 2: field c: "inf" is not a valid double'),
        (StreamLayout(), b"1|2|3|4", "record 2: there are more fields than the 3 of inlongFields"),
        (StreamLayout(), b"1|\xff", "record 2: the text is not UTF-8"),
        (StreamLayout("csv", FULL), b"1|'x", "record 2: the text ends within quotes"),
        (StreamLayout("csv", FULL), b"1|x\\", "record 2: the text ends after an escape"),
        (StreamLayout("kv", FULL), b"a=1|b", "record 2: 'b' is an entry without '='"),
        (
            StreamLayout("json"),
            b'{"a": true}',
            "row 2: field a: true is not a valid int",
        ),
    ],
)
def test_a_message_with_a_record_that_does_not_fit_is_one_null_row(
    layout: StreamLayout, record: bytes, why: str
) -> None:
    good = b'{"a": 1}' if layout.kind == "json" else b"a=1" if layout.kind == "kv" else b"1"
    encoding = Encoding("inlong", FIELDS, layout=layout)
    found = decoded(encoding, message(good), message(good, record, good), message(good))
    assert found.reasons == {1: why}
    assert [row and row["data"]["a"] for row in found.values.to_pylist()] == [1, None, 1]


def test_rows_that_are_too_large_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_PIECE_BYTES", 1500)
    found = decoded(Encoding("inlong"), message(b"a"), message(b"b", b"c"), message(b"d"))
    assert (found.values.field("data").to_pylist(), found.payloads) == ([b"a", b"b", b"c"], 2)
    monkeypatch.setattr(decode, "MAX_MESSAGE_BYTES", 1000)
    assert decoded(Encoding("inlong"), message(b"x", b"0")).reasons == {
        0: "record 2: the rows of the message need more than 0 MiB"
    }
