from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import directed_pairs, directed_protobuf

SETTINGS = settings(max_examples=60, deadline=None)


@SETTINGS
@given(st.integers(0, 2**32))
def test_what_is_read_and_written_is_what_the_oracle_says(seed):
    assert directed_protobuf.run(seed) > 400


@SETTINGS
@given(st.integers(0, 2**32))
def test_pairs_are_what_was_written(seed):
    assert directed_pairs.run(seed) >= 200
