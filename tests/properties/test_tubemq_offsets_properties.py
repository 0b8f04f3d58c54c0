"""TubeMQ's offsets survive JSON, and parsers raise no other error than ValueError."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.tubemq.offsets import (
    INDEX_BYTES,
    TopicPartition,
    Trigger,
    decode_offsets,
    encode_offsets,
    parse_offsets,
)

numbers = st.integers(0, 2) | st.integers(0, 2**31 - 1)
partitions = st.builds(TopicPartition, st.from_regex(r"[A-Za-z][-A-Za-z0-9_]{0,63}", fullmatch=True), numbers, numbers)
offsets = (st.integers(0, 3) | st.integers(2**53 // 28, 2**53 // 28 + 2) | st.integers(0, 2**63 // 28 - 1)).map(
    lambda n: n * INDEX_BYTES
)
positions = st.dictionaries(partitions, offsets, max_size=5)


@settings(deadline=None)  # a slow machine must not fail it
@given(positions, positions)
def test_a_checkpoint_survives_json(at: dict[TopicPartition, int], begins: dict[TopicPartition, int]) -> None:
    trigger = Trigger(at, begins)
    text = json.dumps(encode_offsets(trigger))
    assert decode_offsets(json.loads(text)) == trigger
    assert parse_offsets(text).partitions == at


@settings(deadline=None)
@given(partitions)
def test_a_partition_survives_its_text(tp: TopicPartition) -> None:
    assert TopicPartition.parse(str(tp)) == tp


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.text(max_size=60) | values.map(json.dumps))
@example('{"version": 1, "positions": {"1:t:0": 28}, "from": {"1:t:0": "earliest"}}')
@example('{"1:t:0": 1e400}')
def test_any_text_is_offsets_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_offsets(text)


@settings(deadline=None)
@given(values | st.fixed_dictionaries({"version": st.just(1), "positions": values, "from": values}))
def test_any_document_is_a_checkpoint_or_a_value_error(document: Any) -> None:
    with contextlib.suppress(ValueError):
        decode_offsets(document)
