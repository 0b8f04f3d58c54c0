"""The guard against limits that end triggers at positions without entries, with a scripted client."""

import itertools
import logging

import pytest

from spark_mq_source.core.errors import RequestTimeoutError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read import limits as limits_module
from spark_mq_source.pulsar.read.limits import CHECKED_TRIGGERS, Limiter, ProgressGuard
from tests.unit.pulsar.read.topic import TP, Topic

A, B = TopicPartition("persistent://public/default/t", 0), TopicPartition("persistent://public/default/t", 1)
OPTIONS = PulsarOptions.from_spark(
    {"serviceurl": "pulsar://127.0.0.1:1", "topic": "t", "operationtimeout": "7s", "maxentriespertrigger": "7"}, STREAM
)
START, END = Position(5, 0), Position(9, 3)


class Entries:
    """A client of a broker that delivers these entries; `asked` has the requests in order.

    Ledger 5 ends with entry 9, which the broker reports if `tells_ends`.
    """

    def __init__(self, *, tells_ends=True, **entries):
        self.entries = {A: entries.get("a", ()), B: entries.get("b", ())}
        self.tells_ends = tells_ends
        self.asked = []

    def fetch_stored(self, positions):
        return {tp: min(at, Position(5, 9)) if self.tells_ends else at for tp, at in positions.items()}

    def fetch_first_entries(self, starts):
        self.asked.append(dict(starts))
        found = {}
        for tp, start in starts.items():
            after = [(ledger, entry) for ledger, entry in self.entries[tp] if Position(ledger, entry) >= start]
            if after:
                found[tp] = Position(*min(after))
        return found


def run(guard, *cuts, start=START, end=END):
    """Run consecutive triggers; return the end of each."""
    ends = []
    for cut in cuts:
        start = guard.check({A: start}, {A: end}, {A: cut})[A]
        ends.append(start)
    return ends


def test_a_few_triggers_within_a_closed_ledger_are_checked():
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


@pytest.mark.parametrize(
    ("delivered", "cuts", "tells_ends", "moved"),
    [
        pytest.param([(5, 9), (8, 0)], [(5, 7), (5, 8)], False, (5, 8), id="more of the ledger comes"),
        pytest.param([(8, 0)], [(5, 7), (5, 8)], True, (5, 8), id="before its end"),
        pytest.param([(8, 0)], [(5, 8), (5, 9)], True, (5, 9), id="at its end"),
        pytest.param([(8, 0)], [(5, 8), (5, 9)], False, (8, 0), id="an end that the broker does not tell"),
    ],
)
def test_a_trigger_can_end_with_entries_that_are_not_delivered(delivered, cuts, tells_ends, moved, caplog):
    client = Entries(a=delivered, tells_ends=tells_ends)
    first, last = (Position(*cut) for cut in cuts)
    assert run(ProgressGuard(client, OPTIONS), first, last, start=Position(5, 6)) == [first, Position(*moved)]
    assert len(caplog.records) == (moved == (8, 0))


@pytest.mark.parametrize("tells_ends", [True, False])
def test_a_trigger_past_the_end_of_a_closed_ledger_ends_at_the_next_entry(tells_ends, caplog):
    client = Entries(a=[(5, n) for n in range(10)] + [(8, 0), (9, 3)], tells_ends=tells_ends)
    guard = ProgressGuard(client, OPTIONS)
    with caplog.at_level(logging.WARNING):
        ends = run(guard, Position(5, 16), Position(5, 23), start=Position(5, 9))
        assert ends == [Position(5, 16), Position(8, 0)]
        # Ledger after ledger: it is logged once.
        assert run(guard, Position(8, 7), Position(8, 14), start=Position(8, 0)) == [Position(8, 7), Position(9, 3)]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"pulsar-native: {A}: the limits end a trigger at 5:23, but the next message")
    assert "after 5:16 is 8:0" in record.getMessage()


def test_the_end_is_not_passed():
    client = Entries(a=[(12, 0)])
    cuts = Position(5, 16), Position(5, 23)
    assert run(ProgressGuard(client, OPTIONS), *cuts, start=Position(5, 9)) == [Position(5, 16), END]


def test_an_end_without_later_entries_is_kept_for_the_task():
    client = Entries()
    cuts = [Position(5, 16), Position(5, 23)]
    assert run(ProgressGuard(client, OPTIONS), *cuts, start=Position(5, 9)) == cuts
    assert len(client.asked) == 1


def test_a_partition_without_a_turn_is_neither_counted_nor_requested():
    client = Entries(a=[(5, n) for n in range(10)], b=[(5, n) for n in range(10)])
    guard = ProgressGuard(client, OPTIONS)
    at = {A: START, B: START}
    for turn in (A, B, A, B):
        at = guard.check(at, {A: END, B: END}, {**at, turn: Position(5, at[turn].entry + 1)})
    assert at == {A: Position(5, 2), B: Position(5, 2)}
    assert client.asked == [{A: Position(5, 2)}, {B: Position(5, 2)}]


def test_limits_that_allow_no_entry_are_extended_by_one(caplog):
    client = Entries(a=[(5, 4), (8, 0)], b=[])
    start = Position(5, 4)
    starts = {A: start, B: start, TopicPartition("read", -1): END}
    ends = dict.fromkeys(starts, END)
    with caplog.at_level(logging.WARNING):
        assert ProgressGuard(client, OPTIONS).check(starts, ends, starts) == {**starts, A: Position(8, 0)}
    assert client.asked == [{A: Position(5, 5), B: Position(5, 5)}]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("start", [EARLIEST, Position(8, 0, batch=1)])
def test_a_start_within_a_batch_or_at_the_beginning_is_requested_unchanged(start):
    client = Entries(a=[(8, 0)])
    assert ProgressGuard(client, OPTIONS).check({A: start}, {A: END}, {A: start}) == {A: Position(8, 0)}
    assert client.asked == [{A: start}]


def test_limits_that_allow_no_entry_and_a_silent_broker_are_an_error():
    start = Position(5, 4)
    with pytest.raises(RequestTimeoutError) as caught:
        ProgressGuard(Entries(), OPTIONS).check({A: start}, {A: END}, {A: start})
    assert str(caught.value) == (
        f"pulsar-native: {A}: no message came within 7000 ms after 5:4, though the last one is 9:3, so the query makes "
        f"no progress: check the broker's log and whether a transaction is left open, then restart the query, or raise "
        f"operationTimeout"
    )


def test_a_query_without_a_backlog_sends_no_request():
    client = Entries()
    assert ProgressGuard(client, OPTIONS).check({A: END}, {A: END}, {A: END}) == {A: END}
    assert client.asked == []


# -- limits, on a topic in memory

LEDGERS = {5: (1, 1, 1), 7: (1,), 9: (1, 1, 1, 1), 12: (1, 1)}
PLACES = [Position(*at) for at in Topic(LEDGERS).entries]
STARTS = [EARLIEST, Position(5, -1), *PLACES, Position(5, 1, batch=0), Position(9, 0, batch=0)]


def limiter(topic: Topic, **given: str) -> Limiter:
    options = PulsarOptions.from_spark({"serviceUrl": "pulsar://127.0.0.1:1", "topic": "t"} | given, STREAM)
    made = Limiter(topic, options)
    made._statistics = topic
    return made


@pytest.mark.parametrize("most", range(1, 12))
def test_a_trigger_ends_at_its_entry_limit(most):
    topic, tried = Topic(LEDGERS), 0
    limits = limiter(topic, maxEntriesPerTrigger=str(most))
    for start, end in itertools.product(STARTS, PLACES):
        entries = topic.between(start, end)
        # A query whose start is no position starts right before its first entry.
        if start == EARLIEST or not entries:
            continue
        tried += 1
        expected = Position(*entries[most - 1]) if most <= len(entries) else end
        assert limits.limit({TP: start}, {TP: end}) == {TP: expected}, (start, end)
    assert tried == 70


@pytest.mark.parametrize("most", range(1, 12))
def test_unknown_ends_of_ledgers_make_triggers_shorter_and_never_empty(most):
    topic = Topic(LEDGERS, tells_ends=False)
    limits = limiter(topic, maxEntriesPerTrigger=str(most))
    for start in STARTS[1:-1]:
        end, ends, at = PLACES[-1], [], start
        while at < end:
            cut = limits.limit({TP: at}, {TP: end})[TP]
            assert at < cut <= end
            assert 0 <= len(topic.between(at, cut)) <= most
            ends.append(cut)
            at = cut
        # A position right before a ledger's first entry is an end too.
        assert len(ends) <= len(topic.between(start, end)) + 4


def test_the_successor_of_a_ledger_is_remembered_until_the_query_is_past_it():
    limits = limiter(Topic(LEDGERS), maxEntriesPerTrigger="3")
    assert limits.limit({TP: Position(5, -1)}, {TP: PLACES[-1]}) == {TP: Position(5, 2)}
    assert limits.following(TP, Position(5, 2)) == Position(7, 0)
    limits.forget_before({TP: Position(5, 2)})
    assert (limits.following(TP, Position(5, 2)), sorted(limits._ledger_ends)) == (Position(7, 0), [(TP, 5)])
    limits.forget_before({TP: Position(5, 2), A: START})
    assert limits.following(TP, Position(5, 2)) == Position(7, 0)
    limits.forget_before({TP: Position(7, 0)})
    assert (limits.following(TP, Position(5, 2)), limits._ledger_ends) == (None, {})


def test_the_state_of_other_topics_is_dropped():
    limits = limiter(Topic(LEDGERS), maxEntriesPerTrigger="3")
    limits.limit({TP: Position(5, -1)}, {TP: PLACES[-1]})
    limits.forget_before({A: EARLIEST})
    assert (limits.following(TP, Position(5, 2)), limits._ledger_ends, limits._seen) == (None, {}, {})


@pytest.mark.parametrize("messages", [1, 2, 5])
@pytest.mark.parametrize("most", [1, 4, 5, 6, 10, 24, 25, 26])
def test_a_trigger_ends_at_its_row_limit(messages, most):
    topic = Topic({5: (messages,) * 5, 7: (messages,) * 5})
    cut = limiter(topic, maxRowsPerTrigger=str(most)).limit({TP: Position(5, -1)}, {TP: Position(7, 4)})[TP]
    # One entry is read, whatever its size.
    entries = max(1, min(10, most // messages))
    assert cut == Position(*topic.entries[entries - 1])


@pytest.mark.parametrize("entries", [1, 2, 5, 9, 10])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("admin", [True, False])
def test_a_trigger_ends_at_its_byte_limit(entries, more, admin):
    topic = Topic({5: (1,) * 5, 7: (1,) * 5})
    most = entries * len(topic.message(5, 0).body) + more
    given = {"adminUrl": "http://127.0.0.1:1"} if admin else {}
    limits = limiter(topic, maxBytesPerTrigger=str(most), **given)
    expected = max(1, entries - (more < 0))
    assert limits.limit({TP: Position(5, -1)}, {TP: Position(7, 4)}) == {TP: Position(*topic.entries[expected - 1])}


@pytest.mark.parametrize(
    ("start", "cut", "size"),
    [
        (Position(4, -1), Position(5, 3), 100),
        (Position(5, -1), Position(5, 3), 100),
        (Position(5, 1), Position(7, 1), 60),  # 2 of 100 bytes and 2 of 20
        (Position(5, 2), Position(7, 2), 40),
        (Position(5, 3), Position(7, 9), 20),
        (Position(5, 0, batch=0), Position(7, 0), 84),
        (Position(5, 2), Position(9, 0), (100 + 200 + 7) / 12),
        (Position(9, 0), Position(9, 0), 1),
    ],
)
def test_the_size_of_entries_is_the_average_of_their_ledgers(start, cut, size):
    ledgers = [Ledger(3, 9, 9_000), Ledger(5, 4, 400), Ledger(7, 10, 200), Ledger(9, 1, 7), Ledger(11, 9, 9_000)]
    waiting = limits_module._Waiting(start, Position(11, 8), 20, cut=cut, ledgers=ledgers)
    assert limiter(Topic(LEDGERS))._bytes_per_entry(TP, waiting) == size


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        (Position(5, -1), Position(7, 4), 30),
        (Position(5, 1), Position(7, 4), 24),
        (Position(5, 1, batch=0), Position(7, 4), 27),
        (Position(7, 4), Position(7, 4), 0),
        (Position(7, 3), Position(7, 4), 3),
    ],
)
def test_the_estimated_backlog_in_rows(start, end, rows):
    topic = Topic({5: (3,) * 5, 7: (3,) * 5})
    limits = limiter(topic)
    assert [limits.count_rows({TP: start}, {TP: end}) for _ in range(2)] == [rows, rows]
    # The entry of a start is fetched only once.
    assert len(topic.looked_at) == (rows > 0)


@pytest.mark.parametrize("given", [{}, {"maxEntriesPerTrigger": "1"}, {"maxRowsPerTrigger": "1"}])
def test_without_a_limit_or_new_entries_no_request_is_sent(given):
    topic = Topic(LEDGERS)
    start = PLACES[-1] if given else EARLIEST
    assert limiter(topic, **given).limit({TP: start}, {TP: PLACES[-1]}) == {TP: PLACES[-1]}
    assert (topic.looked_at, topic.opened) == ([], [])
