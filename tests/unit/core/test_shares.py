"""Division of a trigger's limit between partitions."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.shares import in_turn, served_last, share_out

names = st.text("abcdefgh", min_size=1, max_size=2)
waiting = st.dictionaries(names, st.integers(1, 2**40), min_size=1, max_size=30)
prices = st.integers(1, 5000) | st.floats(1, 5000)


@given(waiting, st.integers(1, 2**41), st.none() | names)
def test_shares_spend_the_budget_and_no_more(backlogs, budget, served):
    shares = share_out(in_turn(backlogs, served), budget)
    assert shares.keys() == backlogs.keys()
    assert sum(shares.values()) == min(budget, sum(backlogs.values()))
    assert all(0 <= shares[name] <= backlogs[name] for name in backlogs)
    assert sum(map(bool, shares.values())) == min(budget, len(backlogs))


@given(waiting, st.sets(names, min_size=1), st.integers(1, 2**41))
def test_partitions_without_a_backlog_change_no_share(backlogs, idle, budget):
    shares = share_out(in_turn(dict.fromkeys(idle, 0) | backlogs, None), budget)
    assert {name: shares[name] for name in backlogs} == share_out(in_turn(backlogs, None), budget)
    assert not any(shares[name] for name in idle - backlogs.keys())


def test_shares_are_proportional_to_backlogs():
    assert share_out({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}


@given(waiting, st.integers(1, 100))
def test_a_larger_backlog_never_gets_a_smaller_share(backlogs, budget):
    if budget < len(backlogs):
        return
    shares = share_out(in_turn(backlogs, None), budget)
    ordered = sorted(sorted(backlogs, reverse=True), key=backlogs.__getitem__)
    for less, more in itertools.pairwise(ordered):
        assert shares[less] <= shares[more]


@given(st.data(), st.sets(names, min_size=2, max_size=12), st.integers(1, 4))
def test_every_partition_gets_a_turn_while_others_change(data, those, budget):
    patient = data.draw(st.sampled_from(sorted(those)))
    served, waited = None, 0
    for _ in range(40):
        # Any of the others may have a backlog.
        behind = data.draw(st.sets(st.sampled_from(sorted(those)))) | {patient}
        shares = share_out(in_turn(dict.fromkeys(behind, 5), served), budget)
        assert sum(shares.values()) == min(budget, 5 * len(behind))
        served = served_last(shares, served)
        waited = 0 if shares[patient] else waited + 1
        assert waited < len(those)


@given(st.data(), waiting, st.integers(1, 2**41), st.none() | names)
def test_shares_stay_within_the_budget_except_for_one_entry(data, backlogs, budget, served):
    costs = {name: data.draw(prices) for name in backlogs}
    shares = share_out(in_turn(backlogs, served), budget, costs)
    assert shares.keys() == backlogs.keys()
    assert all(0 <= shares[name] <= backlogs[name] for name in backlogs)
    spent = sum(costs[name] * n for name, n in shares.items())
    assert sum(shares.values()) >= 1
    assert spent <= budget * (1 + 1e-9) or sum(shares.values()) == 1
    # The remainder is not enough for another entry of any partition that has a share.
    left = budget * (1 - 1e-9) - spent
    assert all(costs[name] > left for name in backlogs if 0 < shares[name] < backlogs[name])
    if sum(costs.values()) <= budget * (1 - 1e-9):
        assert min(shares.values()) >= 1


@given(st.data(), st.sets(names, min_size=2, max_size=12), st.integers(1, 400))
def test_every_partition_gets_a_turn_at_any_entry_cost(data, those, budget):
    costs = {name: data.draw(st.integers(1, 500)) for name in sorted(those)}
    served, waited = None, dict.fromkeys(those, 0)
    for _ in range(3 * len(those)):
        shares = share_out(in_turn(dict.fromkeys(those, 5), served), budget, costs)
        served = served_last(shares, served)
        for name in those:
            waited[name] = 0 if shares[name] else waited[name] + 1
        assert max(waited.values()) < len(those)
