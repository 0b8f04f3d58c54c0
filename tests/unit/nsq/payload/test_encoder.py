from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.nsq.payload.messages import open_rows
from tests.unit.nsq.vectors import sent
from tests.unit.standins import both_loops

impl = both_loops("spark_mq_source.nsq.payload._encode_native")

LIMIT = 1 << 20


def batch(values: list[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, kind or pa.binary())})


def body_of(*values: bytes) -> bytes:
    return len(values).to_bytes(4, "big") + b"".join(len(value).to_bytes(4, "big") + value for value in values)


def bodies(impl: str, rows: pa.RecordBatch, order: array[int] | None = None, **limits: int) -> list[bytes]:
    source = open_rows(rows, impl)
    at, end = 0, rows.num_rows if order is None else len(order)
    found = []
    while at < end:
        body, following = source.build_body(order, at, end, **{"max_bytes": LIMIT, "max_rows": 1 << 30, **limits})
        assert following > at
        at = following
        found.append(body)
    return found


def test_a_body_is_the_recorded_one(impl: str) -> None:
    recorded = sent("mpub ok", 1).removeprefix(b"MPUB vec_mpub\n")[4:]
    assert bodies(impl, batch([b"a", b"bb", b"ccc"])) == [recorded]


def test_bodies_end_when_they_are_full(impl: str) -> None:
    values = [b"12345678"] * 10
    # 4 for the count, 4 + 8 for each message
    assert [body.count(b"12345678") for body in bodies(impl, batch(values), max_bytes=4 + 3 * 12)] == [3, 3, 3, 1]
    assert [body.count(b"12345678") for body in bodies(impl, batch(values), max_bytes=4 + 3 * 12 - 1)] == [2] * 5
    assert [body.count(b"12345678") for body in bodies(impl, batch(values), max_rows=4)] == [4, 4, 2]
    assert max(map(len, bodies(impl, batch(values), max_bytes=40))) == 40


def test_a_first_row_that_does_not_fit_makes_no_body(impl: str) -> None:
    source = open_rows(batch([b"12345678", b"1"]), impl)
    assert source.build_body(None, 0, 2, max_bytes=15, max_rows=9) == (b"", 0)
    assert source.build_body(None, 1, 2, max_bytes=15, max_rows=9) == (body_of(b"1"), 2)
    assert source.build_body(None, 2, 2, max_bytes=15, max_rows=9) == (b"", 2)


def test_columns_that_cannot_be_written_are_refused(impl: str) -> None:
    with pytest.raises(OptionError, match="column key is unknown"):
        open_rows(pa.record_batch({"value": pa.array([b"x"]), "key": pa.array([b"k"])}), impl)
    with pytest.raises(OptionError, match="no column value"):
        open_rows(pa.record_batch({"topic": pa.array(["t"])}), impl)
    with pytest.raises(OptionError, match="column value is int64"):
        open_rows(batch([1], pa.int64()), impl)
