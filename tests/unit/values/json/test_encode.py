"""JSON encoded from Arrow columns: Python's json module reads the same values."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import UnwritableRowError
from spark_mq_source.values.json.encode import json_texts


@pytest.mark.parametrize(
    ("values", "type_", "text"),
    [
        (["".join(map(chr, range(0x20))) + '"\\/'], pa.string(), json.dumps("".join(map(chr, range(0x20))) + '"\\/')),
        ([{}], pa.struct([]), "{}"),
    ],
)
def test_other_types(values, type_, text):
    column = pa.array([None, *values], type_)
    found = json_texts(column).to_pylist()
    assert found[0] is None
    assert json.loads(found[1]) == json.loads(text)


def test_times_can_be_written_as_texts():
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 5, datetime.timezone.utc)
    inner = pa.struct([("local", pa.timestamp("us")), ("day", pa.date32())])
    type_ = pa.struct([("at", pa.timestamp("us", "Europe/Paris")), ("in", pa.map_(pa.string(), pa.list_(inner)))])
    rows = [{"at": moment, "in": [("k", [{"local": moment.replace(tzinfo=None), "day": moment.date()}])]}, None]
    assert json_texts(pa.array(rows, type_), text_times=True).to_pylist() == [
        '{"at":"1969-12-31T23:59:59.000005Z","in":{"k":[{"local":"1969-12-31T23:59:59.000005","day":"1969-12-31"}]}}',
        None,
    ]


YEAR_1, YEAR_10000 = -62_135_596_800 * 10**6, 253_402_300_800 * 10**6
LOCAL, DAYS = pa.timestamp("us"), pa.date32()


@pytest.mark.parametrize("nest", [pa.list_, lambda t: pa.struct([("f", t)]), lambda t: pa.map_(pa.string(), t)])
@pytest.mark.parametrize(
    ("type_", "numbers", "texts"),
    [
        (LOCAL, (YEAR_1, YEAR_10000 - 1), ["0001-01-01T00:00:00.000000", "9999-12-31T23:59:59.999999"]),
        (DAYS, (YEAR_1 // 86_400_000_000, YEAR_10000 // 86_400_000_000 - 1), ["0001-01-01", "9999-12-31"]),
    ],
)
def test_years_that_iso_8601_lacks_are_refused_at_any_depth(nest, type_, numbers, texts):
    base = pa.int64() if type_ == LOCAL else pa.int32()
    first, last = numbers

    def nested(cells):
        column = pa.array([*cells, None], base).view(type_)
        for shape in (nest, nest):
            rows = len(column)
            if pa.types.is_map(shape(type_)):
                column = pa.MapArray.from_arrays(pa.array([0, rows], pa.int32()), ["k"] * rows, column)
            elif pa.types.is_struct(shape(type_)):
                column = pa.StructArray.from_arrays([column], names=["f"])
            else:
                column = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), column)
        return column

    found = "".join(json_texts(nested([first, last]), text_times=True).to_pylist())
    assert [found.count(text) for text in texts] == [1, 1]
    most = 1 << base.bit_width - 1
    kind, unit = ("timestamp", "microseconds") if type_ == LOCAL else ("date", "days")
    for beyond in (first - 1, last + 1, -most, most - 1):
        with pytest.raises(UnwritableRowError) as caught:
            json_texts(nested([first, beyond]), text_times=True)
        assert str(caught.value) == (
            f"a {kind} ({beyond} {unit} since 1970) is outside the years 1 to 9999, which a text of ISO 8601 is "
            f"limited to; keep such values out, or cast them to numbers"
        )
        assert f"{beyond}" in "".join(json_texts(nested([beyond])).to_pylist())


def test_elements_beneath_a_null_are_not_written():
    texts = pa.array([b"good", b"\xff", b"end"], pa.binary()).view(pa.string())
    offsets, valid = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"\x05")
    lists = pa.Array.from_buffers(pa.list_(pa.string()), 3, [valid, offsets], children=[texts])
    assert json_texts(lists).to_pylist() == ['["good"]', None, '["end"]']
    assert json_texts(lists.slice(1)).to_pylist() == [None, '["end"]']
    entries = pa.StructArray.from_arrays([texts, texts], names=["key", "value"])
    maps = pa.Array.from_buffers(pa.map_(pa.string(), pa.string()), 3, [valid, offsets], children=[entries])
    assert json_texts(maps).to_pylist() == ['{"good":"good"}', None, '{"end":"end"}']


def test_invalid_utf8_is_refused():
    column = pa.array([b"good", b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(UnwritableRowError, match="not UTF-8"):
        json_texts(pa.StructArray.from_arrays([column], names=["a"]))


@pytest.mark.parametrize("type_", [pa.duration("us"), pa.map_(pa.int32(), pa.string()), pa.list_(pa.duration("us"))])
def test_types_without_json_are_refused_without_a_row(type_):
    with pytest.raises(TypeError, match="there is no JSON for"):
        json_texts(pa.array([], type_))
