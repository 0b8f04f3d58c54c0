"""What a stream decides by itself: shares of a limit, and offsets as a checkpoint holds them."""

import itertools
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import DataLossError, OptionError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.limits import share_out
from spark_mq_source.pulsar.read.stream import PulsarStream, offsets_from_json, offsets_to_json
from spark_mq_source.spark.base import MQStreamReader

TOPIC = "persistent://public/default/t"

partitions = st.builds(TopicPartition, st.sampled_from([TOPIC, "persistent://a/b/c"]), st.integers(0, 40))
waiting = st.dictionaries(partitions, st.integers(1, 2**40), min_size=1, max_size=30)
whole = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1))
positions = st.one_of(whole, st.just(EARLIEST), st.builds(Position, st.integers(0, 2**63 - 1), st.just(-1)))


@given(waiting, st.integers(1, 2**41), st.none() | partitions)
def test_shares_spend_the_budget_and_no_more(backlogs, budget, served):
    shares = share_out(backlogs, budget, served)
    assert shares.keys() == backlogs.keys()
    assert sum(shares.values()) == min(budget, sum(backlogs.values()))
    assert all(0 <= shares[tp] <= backlogs[tp] for tp in backlogs)
    if budget >= len(backlogs):
        assert min(shares.values()) >= 1


@given(waiting, st.integers(1, 100))
def test_a_larger_backlog_never_gets_less(backlogs, budget):
    if budget < len(backlogs):
        return
    shares = share_out(backlogs, budget, None)
    ordered = sorted(sorted(backlogs, reverse=True), key=backlogs.__getitem__)
    for less, more in itertools.pairwise(ordered):
        assert shares[less] <= shares[more]


@given(st.data(), st.sets(partitions, min_size=2, max_size=12), st.integers(1, 4))
def test_turns_reach_everybody_whoever_comes_and_goes(data, names, budget):
    patient = data.draw(st.sampled_from(sorted(names)))
    served, waited = None, 0
    for _ in range(40):
        # The others are behind or not, as they like.
        behind = data.draw(st.sets(st.sampled_from(sorted(names)))) | {patient}
        shares = share_out(dict.fromkeys(sorted(behind), 5), budget, served)
        assert sum(shares.values()) == min(budget, 5 * len(behind))
        if budget < len(behind):
            served = [tp for tp in shares if shares[tp]][-1]
        if shares[patient]:
            waited = 0
        else:
            waited += 1
        assert waited < len(names)


prices = st.integers(1, 5000) | st.floats(1, 5000)


@given(st.data(), waiting, st.integers(1, 2**41), st.none() | partitions)
def test_shares_cost_no_more_than_the_budget_but_for_one_entry(data, backlogs, budget, served):
    costs = {tp: data.draw(prices) for tp in backlogs}
    shares = share_out(backlogs, budget, served, costs)
    assert shares.keys() == backlogs.keys()
    assert all(0 <= shares[tp] <= backlogs[tp] for tp in backlogs)
    spent = sum(costs[tp] * n for tp, n in shares.items())
    assert sum(shares.values()) >= 1
    assert spent <= budget * (1 + 1e-9) or sum(shares.values()) == 1
    # Nothing is left over that would pay for another entry of whoever takes part.
    left = budget * (1 - 1e-9) - spent
    assert all(costs[tp] > left for tp in backlogs if 0 < shares[tp] < backlogs[tp])
    if sum(costs.values()) <= budget * (1 - 1e-9):
        assert min(shares.values()) >= 1


@given(st.data(), st.sets(partitions, min_size=2, max_size=12), st.integers(1, 400))
def test_turns_reach_everybody_whatever_entries_cost(data, names, budget):
    costs = {tp: data.draw(st.integers(1, 500)) for tp in sorted(names)}
    served, waited = None, dict.fromkeys(names, 0)
    for _ in range(3 * len(names)):
        shares = share_out(dict.fromkeys(names, 5), budget, served, costs)
        if not all(shares.values()):
            served = [tp for tp in shares if shares[tp]][-1]
        for tp in names:
            waited[tp] = 0 if shares[tp] else waited[tp] + 1
        assert max(waited.values()) < len(names)


@given(st.dictionaries(partitions, positions, max_size=10))
def test_offsets_survive_json(offsets):
    text = json.dumps(offsets_to_json(offsets))
    assert offsets_from_json(json.loads(text)) == offsets
    assert json.dumps(offsets_to_json(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"positions": {}},
        {"version": 2, "positions": {}},
        {"version": "1", "positions": {}},
        {"version": 1, "positions": {}, "more": 1},
        {"version": 1, "positions": {TOPIC: {"ledger": 1}}},
        {"version": 1, "positions": {TOPIC: {"ledger": -1, "entry": 3}}},
    ],
)
def test_what_is_no_checkpoint_of_ours_is_refused(document):
    with pytest.raises(OptionError, match="pulsar-native: the checkpoint cannot be used: "):
        offsets_from_json(document)


def test_a_reader_goes_to_executors_without_its_connections():
    options = PulsarOptions.from_spark({"serviceurl": "pulsar://127.0.0.1:1", "topic": "t"}, STREAM)
    reader = MQStreamReader(PulsarFormat(), options, None)
    assert isinstance(reader.stream, PulsarStream)
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
    assert copy._stream is None
    assert copy._options == options
    assert reader._stream is reader.stream
    copy.stop()
    reader.stop()


def test_a_trigger_that_ends_before_its_start_is_loss():
    # What Spark before 4.2 makes of a topic that was restored: it asks `latest` without a start.
    options = {"serviceUrl": "pulsar://localhost:1", "topic": "t"}
    at = TopicPartition(TOPIC, -1)
    start, end = (offsets_to_json({at: position}) for position in (Position(40, 7), Position(35, 2)))
    with pytest.raises(DataLossError, match=f"{TOPIC}: position 40:7 does not exist"):
        PulsarStream(PulsarOptions.from_spark(options, STREAM)).ranges(start, end)
    tolerant = PulsarStream(PulsarOptions.from_spark(options | {"failOnDataLoss": "false"}, STREAM))
    assert [str(task) for task in tolerant.ranges(start, end)] == [f"{TOPIC} (earliest, 35:2]"]
