"""Sharing out what a trigger may read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.tubemq.offsets import TopicPartition
from spark_mq_source.tubemq.read.stream import share_out

PARTITIONS = [TopicPartition("t", 1, n) for n in range(6)]
backlogs = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(1, 10**6), min_size=1)


@settings(deadline=None)  # a busy machine is no failure
@given(backlogs, st.integers(1, 10**6), st.none() | st.sampled_from(PARTITIONS))
def test_the_budget_is_used_up_and_never_passed(waiting, budget, served):
    shares = share_out(waiting, budget, served)
    assert sum(shares.values()) == min(budget, sum(waiting.values()))
    assert all(1 <= share <= waiting[tp] for tp, share in shares.items())
    assert len(shares) == min(budget, len(waiting))


@settings(deadline=None)
@given(backlogs, st.integers(1, 5))
def test_nobody_waits_longer_than_a_round(waiting, budget):
    served, had = None, set()
    for _ in range(-(-len(waiting) // budget)):
        shares = share_out(waiting, budget, served)
        had |= shares.keys()
        served = list(shares)[-1]
    assert had == waiting.keys()


def test_shares_go_by_backlog():
    a, b = PARTITIONS[:2]
    assert share_out({a: 900, b: 100}, 100, None) == {a: 90, b: 10}
