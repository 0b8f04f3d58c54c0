from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.testing.compression import Codec, Deflate, Snappy

MAKERS = [lambda: Deflate(6), Snappy]
# Some that shrink and some that do not, some longer than a snappy chunk.
WRITES = st.lists(st.one_of(st.binary(max_size=300), st.integers(1, 150_000).map(lambda n: b"abcd" * (n // 4 + 1))))


@pytest.mark.parametrize("make", MAKERS)
@given(writes=WRITES, cuts=st.lists(st.integers(1, 5000), min_size=1))
def test_every_write_is_whole_on_the_other_side_however_it_is_cut(
    make: Callable[[], Codec], writes: list[bytes], cuts: list[int]
):
    sender, receiver = make(), make()
    for number, data in enumerate(writes):
        packed = sender.compress(data)
        cut = cuts[number % len(cuts)]
        parts = [receiver.decompress(packed[start : start + cut]) for start in range(0, len(packed), cut)]
        assert b"".join(parts) == data


@pytest.mark.parametrize(
    ("codec", "data", "complaint"),
    [
        (Snappy(), b"\xff\x06\0\0sNaPpY\x01\x05\0\0\0\0\0\0x", "checksum"),
        (Snappy(), b"\0\x06\0\0\0\0\0\0\xff\xff", "corrupt snappy data"),
        (Snappy(), b"\x02\0\0\0", "unknown snappy chunk type 2"),
        (Deflate(6), b"\xff\xff\xff\xff", "corrupt deflate data"),
    ],
)
def test_corrupt_data_is_an_error(codec: Codec, data: bytes, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        codec.decompress(data)


def test_padding_between_snappy_chunks_is_skipped():
    codec, receiver = Snappy(), Snappy()
    assert receiver.decompress(codec.compress(b"a") + b"\xfe\x02\0\0xx" + codec.compress(b"b")) == b"ab"
