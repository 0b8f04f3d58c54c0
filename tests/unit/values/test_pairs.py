"""Both implementations split pairs of key and value alike."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from spark_mq_source.values.pairs import pair_decoder

pytest.importorskip("spark_mq_source.values._pairs_native", exc_type=ImportError)

PART = st.none() | st.binary(max_size=40)


def pair(*parts: bytes | None) -> bytes:
    return b"".join(struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in parts)


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_a_pair_that_is_cut_leaves_no_trace_in_others(implementation: str) -> None:
    whole = pair(b"key", b"value")
    payloads = [whole, *(whole[:size] for size in range(len(whole))), b"\x7f\xff\xff\xff" + whole, whole]
    decoded = pair_decoder(implementation).decode(pa.array(payloads, pa.binary()))
    good = {"key": b"key", "value": b"value"}
    assert decoded.values.to_pylist() == [good, *[None] * (len(whole) + 1), good]
    assert decoded.reasons == dict.fromkeys(range(1, len(whole) + 2), "a pair of key and value that ends too early")
