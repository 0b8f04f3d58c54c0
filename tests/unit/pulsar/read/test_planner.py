"""The split of ranges into tasks: the pieces are in order, nearly equal, and together the whole range."""

import datetime
import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.core.errors import (
    AuthorizationError,
    BrokerError,
    DataLossError,
    OptionError,
    UnsupportedFeatureError,
)
from spark_mq_source.core.options import READ, STREAM
from spark_mq_source.core.ports import Predicate
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.planner import TaskSplitter, _cut, _ranges_of, split_ranges
from spark_mq_source.pulsar.read.reader import PulsarRange

TOPIC = "persistent://public/default/t"


class Cluster:
    """A planner's client that answers from memory."""

    def __init__(self, *, bounds=None, ledgers=None, times=None, stored=None, driver=""):
        self.driver = driver
        self.bounds = bounds or {}
        self.stored = stored or {}
        self.ledgers = ledgers or []
        self.times = times or {}
        self.asked_times: list[int] = []
        self.asked_ledgers = 0

    def fetch_partitions(self, topics):
        return sorted(self.bounds)

    def fetch_bounds(self, partitions):
        return {tp: self.bounds[tp] for tp in partitions}

    def confirmed(self, look):
        return look()

    def fetch_positions_at(self, timestamps_ms):
        self.asked_times += timestamps_ms.values()
        return {tp: self.times[ms] for tp, ms in timestamps_ms.items()}

    def fetch_stored(self, positions):
        return {tp: min(at, self.stored.get(tp, self.bounds[tp].last)) for tp, at in positions.items()}

    def fetch_offload_driver(self, topic_partition):
        return self.driver

    def fetch_ledgers(self, topic_partition, *, with_objects=False):
        self.asked_ledgers += 1
        return [ledger if with_objects else replace(ledger, uuid="") for ledger in self.ledgers]


def planned(cluster, predicates=(), **options):
    given = {"serviceUrl": "pulsar://x", "topic": "t", "publishTimeSlack": "0"} | options
    return _ranges_of(cluster, PulsarOptions.from_spark(given, READ), predicates)


def split(ranges, wanted, cluster=None, **options):
    given = {"serviceUrl": "pulsar://x", "topic": "t", "minPartitions": str(wanted)} | options
    return split_ranges(cluster or Cluster(), PulsarOptions.from_spark(given, READ), list(ranges))


@st.composite
def stretches(draw):
    ledgers = sorted(draw(st.sets(st.integers(0, 2**62), min_size=1, max_size=6)))
    return [
        (ledger, draw(st.integers(-1, 2**40)), draw(st.integers(1, 9) | st.integers(1, 2**40))) for ledger in ledgers
    ]


@given(stretches(), st.integers(1, 200))
def test_cuts_ascend_within_the_range_and_are_nearly_equal(parts, pieces):
    cuts = _cut(parts, pieces)
    total = sum(entries for _, _, entries in parts)
    assert len(cuts) == min(pieces, total) - 1
    assert cuts == sorted(set(cuts))
    # The number of entries of the stretches at or before each cut.
    begins = {}
    passed = 0
    for ledger, before, entries in parts:
        begins[ledger] = (passed, before, entries)
        passed += entries
    counts = [0]
    for cut in cuts:
        passed, before, entries = begins[cut.ledger]
        assert before < cut.entry <= before + entries
        assert cut.batch == -1
        counts.append(passed + cut.entry - before)
    counts.append(total)
    sizes = [b - a for a, b in itertools.pairwise(counts)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("parts", "pieces"), [([], 1), ([], 5), ([(7, 3, 1)], 9), ([(7, 3, 100)], 1)])
def test_ranges_that_cannot_be_cut_are_unchanged(parts, pieces):
    assert _cut(parts, pieces) == []


positions = st.builds(Position, st.integers(0, 5), st.integers(0, 50), st.sampled_from([-1, 0, 1, 7]))


@st.composite
def ranges(draw):
    found = []
    for n in range(draw(st.integers(1, 5))):
        start, end = draw(positions | st.just(EARLIEST)), draw(positions)
        if start < end:
            found.append(PulsarRange(TopicPartition(TOPIC, n), start, end))
    return found


@given(ranges(), st.integers(1, 40), st.none() | st.lists(st.integers(0, 60), min_size=6, max_size=6))
def test_pieces_are_exactly_the_ranges(whole, wanted, sizes):
    cluster = Cluster(ledgers=[Ledger(n, entries, 0) for n, entries in enumerate(sizes or [])])
    options = {} if sizes is None else {"adminUrl": "http://x:8080"}
    pieces = split(whole, wanted, cluster, **options)
    for r in whole:
        mine = [p for p in pieces if p.topic_partition == r.topic_partition]
        assert mine[0].start == r.start
        assert mine[-1].end == r.end
        assert all(p.start < p.end for p in mine)
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
    assert {p.topic_partition for p in pieces} == {r.topic_partition for r in whole}
    if wanted <= len(whole):
        assert pieces == whole


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(60, 500))
def test_the_wanted_number_of_pieces_is_made_if_possible(wanted, entries):
    r = PulsarRange(TopicPartition(TOPIC, 0), Position(7, -1), Position(7, entries - 1))
    pieces = split([r], wanted)
    assert len(pieces) == wanted
    assert {p.end.entry - p.start.entry for p in pieces} <= {entries // wanted, entries // wanted + 1}


def test_larger_ranges_are_cut_into_more_pieces():
    small = PulsarRange(TopicPartition(TOPIC, 0), Position(7, 0), Position(7, 10))
    large = PulsarRange(TopicPartition(TOPIC, 1), Position(8, 0), Position(8, 90))
    pieces = split([small, large], 10)
    assert [sum(p.topic_partition.partition == n for p in pieces) for n in (0, 1)] == [1, 9]


def test_the_entry_in_which_a_range_begins_counts_for_its_division():
    r = PulsarRange(TopicPartition(TOPIC, 0), Position(7, 3, 0), Position(7, 4))
    pieces = split([r], 2)
    assert [(p.start, p.end) for p in pieces] == [(r.start, Position(7, 3)), (Position(7, 3), r.end)]


# -- starts and ends

TP = TopicPartition(TOPIC, -1)
HELD = {TP: Bounds(Position(7, 3), Position(9, 5))}


def test_everything_by_default():
    assert planned(Cluster(bounds=HELD)) == [PulsarRange(TP, Position(7, 3), Position(9, 5))]


def test_an_empty_topic_has_no_range():
    assert planned(Cluster(bounds={TP: Bounds(EARLIEST, EARLIEST)})) == []


def test_a_start_that_is_gone_is_loss_unless_failondataloss_is_false(caplog):
    start = '{"t": {"ledger": 7, "entry": 1}}'
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        planned(Cluster(bounds=HELD), startingOffsets=start)
    (found,) = planned(Cluster(bounds=HELD), startingOffsets=start, failOnDataLoss="false")
    assert found.start == Position(7, 3)
    assert "has deleted the messages from 7:1 to 7:3" in caplog.text


def test_a_start_passed_by_ttl_during_planning_is_looked_up_again():
    cluster = Cluster(bounds=HELD)
    begins = iter([Position(8, 0), Position(7, -1)])
    cluster.fetch_bounds = lambda _: {TP: Bounds(next(begins), HELD[TP].last)}
    (found,) = planned(cluster, startingOffsets='{"t": {"ledger": 7, "entry": 1}}')
    assert found.start == Position(7, 1)


@pytest.mark.parametrize("batch", [-1, 0])
def test_a_start_at_the_beginning_of_the_topic_is_not_gone(batch):
    first = Position(7, 3)
    start = Position(7, 3 + (batch >= 0), batch)
    given = f'{{"t": {{"ledger": {start.ledger}, "entry": {start.entry}, "batch": {batch}}}}}'
    assert HELD[TP].first == first
    assert planned(Cluster(bounds=HELD), startingOffsets=given) == [PulsarRange(TP, start, Position(9, 5))]


def test_an_end_past_the_last_message_is_the_last_message():
    end = '{"t": {"ledger": 99, "entry": 1}}'
    assert planned(Cluster(bounds=HELD), endingOffsets=end)[0].end == Position(9, 5)


def test_offsets_of_partitions_that_are_not_read_are_an_error():
    with pytest.raises(OptionError, match=r"startingOffsets names .*other.*, which this query does not read"):
        planned(Cluster(bounds=HELD), startingOffsets='{"t": "earliest", "other": "earliest"}')


def test_offsets_that_lack_a_partition_are_an_error():
    held = {TopicPartition(TOPIC, n): Bounds(EARLIEST, Position(7, 9)) for n in range(3)}
    with pytest.raises(OptionError, match=r"missing.*t-partition-1, .*t-partition-2$"):
        planned(Cluster(bounds=held), startingOffsets='{"t": {"0": "earliest"}}')


# -- predicates


def at(ms, us=0):
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(
        milliseconds=ms, microseconds=us
    )


@pytest.mark.parametrize(
    ("operator", "value", "asked"),
    [
        (">=", at(5), [5]),
        (">", at(5), [5]),
        (">", at(5, 7), [5]),
        ("<", at(5), [5]),
        ("<", at(5, 7), [6]),
        ("<=", at(5), [6]),
        ("<=", at(5, 7), [6]),
        ("=", at(5), [5, 6]),
        ("=", at(-5), [-5, -4]),
        ("in", (at(5),), []),
    ],
)
def test_publish_times_become_positions_without_loss(operator, value, asked):
    cluster = Cluster(bounds=HELD, times={ms: Position(8, ms) for ms in range(-10, 10)})
    planned(cluster, [Predicate("publish_time", operator, value)])
    assert cluster.asked_times == asked


def test_a_compacted_read_begins_before_the_position_of_a_time():
    cluster = Cluster(bounds={TP: Bounds(EARLIEST, Position(9, 5))}, times={ms: Position(8, ms) for ms in range(100)})
    predicates = [Predicate("publish_time", ">", at(10)), Predicate("publish_time", "<", at(60))]
    assert planned(cluster, predicates, readCompacted="true") == [PulsarRange(TP, EARLIEST, Position(8, 60))]


def test_the_narrowest_publish_times_are_used():
    cluster = Cluster(bounds=HELD, times={ms: Position(8, ms) for ms in range(100)})
    predicates = [Predicate("publish_time", *x) for x in ((">", at(10)), (">=", at(30)), ("<", at(60)), ("<", at(50)))]
    assert planned(cluster, predicates) == [PulsarRange(TP, Position(8, 30), Position(8, 50))]


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (Predicate("partition", "=", 1), [1]),
        (Predicate("partition", ">", 1), [2]),
        (Predicate("partition", ">=", 1), [1, 2]),
        (Predicate("partition", "<", 1), [0]),
        (Predicate("partition", "<=", 1), [0, 1]),
        (Predicate("partition", "in", (0, 2, 9)), [0, 2]),
        (Predicate("topic", "=", "other"), []),
        (Predicate("topic", "=", TOPIC), [0, 1, 2]),
        (Predicate("value", "=", b"x"), [0, 1, 2]),
    ],
)
def test_predicates_drop_whole_partitions(predicate, kept):
    held = {TopicPartition(TOPIC, n): Bounds(EARLIEST, Position(7, 9)) for n in range(3)}
    found = planned(Cluster(bounds=held), [predicate])
    assert [r.topic_partition.partition for r in found] == kept


@pytest.mark.parametrize(
    ("start", "is_there"), [((7, 9), True), ((7, 12), True), ((7, 13), True), ((7, 14), False), ((2**40, 0), False)]
)
def test_a_start_past_the_last_stored_entry_is_refused(start, is_there):
    # 7:10 to 7:12 are stored and are not delivered; a user may want to start at 7:13.
    tp = TopicPartition(TOPIC, -1)
    cluster = Cluster(bounds={tp: Bounds(Position(7, -1), Position(7, 9))}, stored={tp: Position(7, 12)})
    named = f'{{"t": {{"ledger": {start[0]}, "entry": {start[1]}}}}}'
    if is_there:
        assert planned(cluster, startingOffsets=named) == []
    else:
        with pytest.raises(DataLossError, match=r"does not exist: the last entry before it is 7:12;"):
            planned(cluster, startingOffsets=named)
    assert planned(cluster, startingOffsets=named, failOnDataLoss="false") == []


def test_a_time_range_excludes_ledgers_of_the_store():
    tp = TopicPartition(TOPIC, 0)
    ledgers = [Ledger(number, 10, 99, uuid="u") for number in (3, 4, 5)]
    cluster = Cluster(
        bounds={tp: Bounds(Position(3, -1), Position(5, 9))},
        ledgers=ledgers,
        times={7: Position(3, 9), 8: Position(4, 9)},
    )
    stored = {"adminUrl": "http://x:8080", "offloadStorage": "/x", "readOffloaded": "auto"}
    (found,) = planned(
        cluster, [Predicate("publish_time", ">=", at(7)), Predicate("publish_time", "<", at(8))], **stored
    )
    assert found.ledgers == (ledgers[1],)


@pytest.mark.parametrize("driver", ["", "S3", "aws-s3", "filesystem"])
def test_brokers_read_the_ranges_that_only_they_can_read(driver):
    tp = TopicPartition(TOPIC, 0)
    cluster = Cluster(
        bounds={tp: Bounds(Position(3, -1), Position(3, 9))}, ledgers=[Ledger(3, 10, 99, uuid="u")], driver=driver
    )
    stored = {"adminUrl": "http://x:8080", "offloadStorage": "/x", "readOffloaded": "auto"}
    assert [bool(r.ledgers) for r in planned(cluster, **stored)] == [driver != "filesystem"]
    if driver == "filesystem":
        with pytest.raises(UnsupportedFeatureError, match="managedLedgerOffloadDriver=filesystem"):
            planned(cluster, **stored | {"readOffloaded": "always"})


@pytest.mark.parametrize(
    ("error", "how", "is_error"),
    [
        (BrokerError("412: the bundle is being unloaded"), "auto", False),
        (BrokerError("412: the bundle is being unloaded"), "always", True),
        (AuthorizationError("not allowed"), "auto", True),
    ],
)
def test_brokers_read_a_range_whose_ledgers_cannot_be_listed(error, how, is_error, caplog):
    tp = TopicPartition(TOPIC, 0)
    cluster = Cluster(bounds={tp: Bounds(Position(3, -1), Position(3, 9))})

    def fail(*_, **__):
        raise error

    cluster.fetch_ledgers = fail
    stored = {"adminUrl": "http://x:8080", "offloadStorage": "/x", "readOffloaded": how}
    if is_error:
        with pytest.raises(type(error), match=str(error)):
            planned(cluster, **stored)
    else:
        assert [r.ledgers for r in planned(cluster, **stored)] == [()]
        assert "ranges whose ledgers are unknown are read from brokers: 412" in caplog.text


def test_a_stream_lists_ledgers_again_only_if_one_may_be_newly_offloaded():
    tp = TopicPartition(TOPIC, 0)
    offloaded = [Ledger(3, 10, 99, uuid="u"), Ledger(4, 10, 99, uuid="v")]
    cluster = Cluster(ledgers=[*offloaded, Ledger(5, 10, 99)])
    given = {"serviceurl": "pulsar://x", "topic": "t", "readoffloaded": "auto", "adminurl": "http://x"}
    options = PulsarOptions.from_spark({**given, "offloadstorage": "/x"}, STREAM)
    splitter = TaskSplitter(cluster, options, None)
    for start, end in [((3, -1), (3, 4)), ((3, 4), (4, 9)), ((4, 9), (5, 9)), ((5, 9), (6, 2))]:
        stored = [bool(r.ledgers) for r in splitter.split([PulsarRange(tp, Position(*start), Position(*end))])]
        assert stored == [end[0] < 5]
    assert cluster.asked_ledgers == 1
    splitter._options = replace(options, read_offloaded="always")
    with pytest.raises(UnsupportedFeatureError, match="ledger 5 is not in offloadStorage"):
        splitter.split([PulsarRange(tp, Position(4, 9), Position(5, 9))])
    assert cluster.asked_ledgers == 2
