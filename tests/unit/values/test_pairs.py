"""Both implementations split pairs of key and value alike."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.values.pairs import pair_decoder

pytest.importorskip("spark_mq_source.values._pairs_native", exc_type=ImportError)

PART = st.none() | st.binary(max_size=40)


def pair(*parts: bytes | None) -> bytes:
    return b"".join(struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in parts)


@pytest.mark.parametrize("implementation", ["native", "python"])
@given(st.lists(st.none() | st.tuples(PART, PART), max_size=10), st.binary(max_size=5))
def test_what_was_written_is_read(
    implementation: str, rows: list[tuple[bytes | None, bytes | None] | None], behind: bytes
) -> None:
    payloads = [None if row is None else pair(*row) + behind for row in rows]
    decoded = pair_decoder(implementation).decode(pa.array(payloads, pa.binary()))
    decoded.values.validate(full=True)
    expected = [None if row is None else {"key": row[0], "value": row[1]} for row in rows]
    assert decoded.values.to_pylist() == expected
    assert decoded.reasons == {}
    keys, values = decoded.values.flatten()
    assert keys.to_pylist() == [row and row["key"] for row in expected]
    assert values.to_pylist() == [row and row["value"] for row in expected]


@given(st.lists(st.binary(max_size=12), max_size=6))
def test_any_bytes_give_the_same(payloads: list[bytes]) -> None:
    array = pa.array([pair(b"k", b"v"), *payloads, pair(None, b"")], pa.binary())
    native, python = (pair_decoder(implementation).decode(array) for implementation in ("native", "python"))
    native.values.validate(full=True)
    assert (native.values.to_pylist(), native.reasons) == (python.values.to_pylist(), python.reasons)


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_a_pair_that_is_cut_leaves_no_trace_in_others(implementation: str) -> None:
    whole = pair(b"key", b"value")
    payloads = [whole, *(whole[:size] for size in range(len(whole))), b"\x7f\xff\xff\xff" + whole, whole]
    decoded = pair_decoder(implementation).decode(pa.array(payloads, pa.binary()))
    good = {"key": b"key", "value": b"value"}
    assert decoded.values.to_pylist() == [good, *[None] * (len(whole) + 1), good]
    assert decoded.reasons == dict.fromkeys(range(1, len(whole) + 2), "a pair of key and value that ends too early")
