"""The guard against limits that end triggers where nothing is, on a scripted client."""

import logging

import pytest

from spark_mq_source.core.errors import RequestTimeoutError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.read.limits import CHECKED_TRIGGERS, ProgressGuard

A, B = TopicPartition("persistent://public/default/t", 0), TopicPartition("persistent://public/default/t", 1)
OPTIONS = PulsarOptions.from_spark(
    {"serviceurl": "pulsar://127.0.0.1:1", "topic": "t", "operationtimeout": "7s", "maxentriespertrigger": "7"}, STREAM
)
START, END = Position(5, 0), Position(9, 3)


class Entries:
    """A client of a broker that has these entries; `asked` is what was asked for, in order."""

    def __init__(self, **entries):
        self.entries = {A: entries.get("a", ()), B: entries.get("b", ())}
        self.asked = []

    def fetch_first_entries(self, starts):
        self.asked.append(dict(starts))
        found = {}
        for tp, start in starts.items():
            after = [(ledger, entry) for ledger, entry in self.entries[tp] if Position(ledger, entry) >= start]
            if after:
                found[tp] = c.Message(0, *min(after), 0, (), memoryview(b""))
        return found


def run(guard, *cuts, start=START, end=END):
    """Triggers that follow on one another; where each of them ends."""
    ends = []
    for cut in cuts:
        start = guard.check({A: start}, {A: end}, {A: cut})[A]
        ends.append(start)
    return ends


def test_of_triggers_within_a_closed_ledger_a_few_are_checked():
    client = Entries(a=[(5, n) for n in range(200)])
    cuts = [Position(5, n) for n in range(1, 101)]
    assert run(ProgressGuard(client, OPTIONS), *cuts) == cuts
    numbers = [asked[A].entry for asked in client.asked]
    assert numbers == [2, 4, 8, *range(CHECKED_TRIGGERS, 101, CHECKED_TRIGGERS)]


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param([Position(5, 7), Position(6, 2), Position(6, 5), Position(7, 1)], id="ledgers change"),
        pytest.param([Position(9, 0), Position(9, 1), Position(9, 2), END], id="in the ledger of the last message"),
    ],
)
def test_triggers_that_change_ledgers_or_are_in_the_last_one_are_not_checked(cuts):
    client = Entries()
    assert run(ProgressGuard(client, OPTIONS), *cuts[:2]) == cuts[:2]
    assert run(ProgressGuard(client, OPTIONS), *cuts[2:]) == cuts[2:]
    assert client.asked == []


def test_a_trigger_past_the_end_of_a_closed_ledger_ends_at_the_next_entry(caplog):
    client = Entries(a=[(5, n) for n in range(10)] + [(8, 0), (9, 3)])
    guard = ProgressGuard(client, OPTIONS)
    with caplog.at_level(logging.WARNING):
        ends = run(guard, Position(5, 16), Position(5, 23), start=Position(5, 9))
        assert ends == [Position(5, 16), Position(8, 0)]
        # Ledger after ledger: it is said once.
        assert run(guard, Position(8, 7), Position(8, 14), start=Position(8, 0)) == [Position(8, 7), Position(9, 3)]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"pulsar-native: {A}: the limits end a trigger at 5:23, but the next message")
    assert "after 5:16 is 8:0" in record.getMessage()


def test_the_end_is_not_passed():
    client = Entries(a=[(12, 0)])
    cuts = Position(5, 16), Position(5, 23)
    assert run(ProgressGuard(client, OPTIONS), *cuts, start=Position(5, 9)) == [Position(5, 16), END]


def test_a_cut_after_which_nothing_comes_is_left_to_the_task():
    client = Entries()
    cuts = [Position(5, 16), Position(5, 23)]
    assert run(ProgressGuard(client, OPTIONS), *cuts, start=Position(5, 9)) == cuts
    assert len(client.asked) == 1


def test_who_has_no_turn_is_neither_counted_nor_asked():
    client = Entries(a=[(5, n) for n in range(10)], b=[(5, n) for n in range(10)])
    guard = ProgressGuard(client, OPTIONS)
    at = {A: START, B: START}
    for turn in (A, B, A, B):
        at = guard.check(at, {A: END, B: END}, {**at, turn: Position(5, at[turn].entry + 1)})
    assert at == {A: Position(5, 2), B: Position(5, 2)}
    assert client.asked == [{A: Position(5, 2)}, {B: Position(5, 2)}]


def test_limits_that_let_nothing_through_are_passed_by_an_entry(caplog):
    client = Entries(a=[(5, 4), (8, 0)], b=[])
    start = Position(5, 4)
    starts = {A: start, B: start, TopicPartition("read", -1): END}
    ends = dict.fromkeys(starts, END)
    with caplog.at_level(logging.WARNING):
        assert ProgressGuard(client, OPTIONS).check(starts, ends, starts) == {**starts, A: Position(8, 0)}
    assert client.asked == [{A: Position(5, 5), B: Position(5, 5)}]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("start", [EARLIEST, Position(8, 0, batch=1)])
def test_a_start_within_a_batch_or_before_everything_is_asked_for_itself(start):
    client = Entries(a=[(8, 0)])
    assert ProgressGuard(client, OPTIONS).check({A: start}, {A: END}, {A: start}) == {A: Position(8, 0)}
    assert client.asked == [{A: start}]


def test_limits_that_let_nothing_through_and_a_broker_that_sends_nothing_are_an_error():
    start = Position(5, 4)
    with pytest.raises(RequestTimeoutError) as caught:
        ProgressGuard(Entries(), OPTIONS).check({A: start}, {A: END}, {A: start})
    assert str(caught.value) == (
        f"pulsar-native: {A}: no message came within 7000 ms after 5:4, though the last one is 9:3, so the query makes "
        f"no progress: check the broker's log and whether a transaction is left open, then restart the query, or raise "
        f"operationTimeout"
    )


def test_a_query_that_has_everything_asks_nothing():
    client = Entries()
    assert ProgressGuard(client, OPTIONS).check({A: END}, {A: END}, {A: END}) == {A: END}
    assert client.asked == []
