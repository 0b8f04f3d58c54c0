"""A stream's decisions, and streams of topics in memory: begins and ends of triggers, and subscriptions."""

import json
import pickle
from types import SimpleNamespace

import pytest

from spark_mq_source.core.errors import DataLossError, EndOfStreamError, OptionError, TopicNotFoundError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition, encode_offsets
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.limits import Limiter, ProgressGuard
from spark_mq_source.pulsar.read.stream import PulsarStream, _pin_positions, offsets_from_json
from spark_mq_source.spark.base import MQStreamReader
from tests.unit.pulsar.read.topic import Topic

TOPIC = "persistent://public/default/t"


def test_a_checkpoint_of_another_version_is_refused():
    with pytest.raises(OptionError, match="pulsar-native: the checkpoint cannot be used: offsets of version 2"):
        offsets_from_json({"version": 2, "positions": {}})


def test_a_pickled_reader_has_no_connections():
    options = PulsarOptions.from_spark({"serviceurl": "pulsar://127.0.0.1:1", "topic": "t"}, STREAM)
    reader = MQStreamReader(PulsarFormat(), options, None)
    assert isinstance(reader.stream, PulsarStream)
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
    assert copy._stream is None
    assert copy._options == options
    assert reader._stream is reader.stream
    copy.stop()
    reader.stop()


class FakeStream(PulsarStream):
    """A stream of one topic whose last entry is `stored`."""

    def __init__(self, stored: Position, **options: str) -> None:
        given = (
            {"serviceUrl": "pulsar://localhost:1"} | ({} if "topicsPattern" in options else {"topic": "t"}) | options
        )
        super().__init__(PulsarOptions.from_spark(given, STREAM))
        self._present = lambda: ([TopicPartition(TOPIC, -1)], {})
        self._client.fetch_stored = lambda asked: {at: min(position, stored) for at, position in asked.items()}

    def planned(self, start: Position, end: Position) -> list[str]:
        at = TopicPartition(TOPIC, -1)
        return [str(task) for task in self.ranges(encode_offsets({at: start}), encode_offsets({at: end}))]


def test_a_trigger_that_ends_before_its_start_is_loss():
    start, end = Position(40, 7), Position(35, 2)
    with pytest.raises(DataLossError, match=f"{TOPIC}: position 40:7 does not exist"):
        FakeStream(end).planned(start, end)
    assert FakeStream(end, failOnDataLoss="false").planned(start, end) == [f"{TOPIC} (earliest, 35:2]"]


AT = TopicPartition(TOPIC, -1)
READ, FIRST = Position(12, 9), Position(14, -1)
"""The position read last, whose ledger is gone, and the position before the first ledger that remains."""


@pytest.mark.parametrize("watched", [Position(12, 8), READ, Position(12, 10), Position(13, 9), FIRST])
@pytest.mark.parametrize("following", [None, Position(13, 0), FIRST, Position(14, 0)])
def test_a_deleted_ledger_is_loss_if_a_cursor_has_passed_it_and_its_successor_is_unknown(watched, following):
    stream = FakeStream(READ)
    stream._client.fetch_bounds = lambda asked: dict.fromkeys(asked, Bounds(FIRST, Position(14, 5)))
    stream._watch = lambda _: {AT: Bounds(watched, Position(14, 5))}
    stream._watchers = {AT: None}
    stream._limiter.following = lambda *_: following
    if watched > READ and (following is None or following <= FIRST):
        with pytest.raises(
            DataLossError, match=f"{TOPIC}: the broker may have deleted the messages from 12:9 to 14:-1"
        ):
            stream._check_trimmed(AT, READ)
        assert stream._successors == {}
    else:
        stream._check_trimmed(AT, READ)
        assert stream._successors == {(AT, READ): FIRST}


def test_a_new_watcher_does_not_prove_loss():
    """TTL moved the cursors of two new consumers, and the watcher was lost: a new watcher does not prove loss."""
    stream = FakeStream(READ)
    stream._client.fetch_bounds = lambda asked: dict.fromkeys(asked, Bounds(FIRST, Position(14, 5)))

    def watch(_):
        stream._watchers[AT] = object()
        return {AT: Bounds(Position(12, -1), Position(14, 5))}

    stream._watch = watch
    stream._check_trimmed(AT, READ)
    assert stream._successors == {}


@pytest.mark.parametrize(
    ("position", "is_looked_at"), [(Position(14, -1), False), (Position(14, 0), True), (Position(14, 1), False)]
)
def test_a_watcher_at_the_position_read_last_is_checked_for_a_deleted_ledger(position, is_looked_at):
    stream = FakeStream(Position(14, 9))
    looked_at = []
    stream._check_trimmed = lambda _, at: looked_at.append(at)
    first = position if is_looked_at else FIRST
    assert stream._checked({AT: position}, {AT: Bounds(first, Position(14, 9))}) == {AT: position}
    assert looked_at == [position] * is_looked_at


@pytest.mark.parametrize("last", [EARLIEST, Position(14, -1), Position(14, 4), Position(14, 5), Position(14, 6)])
def test_a_trigger_never_ends_before_it_begins(last):
    """The last message can be before the position read last: later ones were aborted or removed."""
    stream, begin = FakeStream(Position(14, 5)), Position(14, 5)
    stream._partitions = lambda _: [AT]
    stream._watch = lambda _: {AT: Bounds(FIRST, last)}
    start = encode_offsets({AT: begin})
    assert offsets_from_json(stream.latest(start)) == {AT: max(begin, last)}
    assert offsets_from_json(stream.newest) == {AT: max(begin, last)}


def test_a_subscription_keeps_the_entry_of_each_position():
    """Without it the next trigger could not find out whether the ledger had more entries."""
    kept = {(7, 3): (7, 2), (7, 1): (7, 0), (7, 0): (7, -1), (7, -1): (7, -1)}
    parts = {at: TopicPartition(TOPIC, n) for n, at in enumerate(kept)}
    positions = {tp: Position(*at) for at, tp in parts.items()} | {AT: EARLIEST}
    assert _pin_positions(positions) == {parts[at]: Position(*before) for at, before in kept.items()}


# -- on topics in memory

LEDGERS = {5: (1, 1), 7: (1, 1, 1)}
OTHER = TopicPartition("persistent://public/default/u", -1)


class OnTopic(FakeStream):
    """A stream of a topic in memory; `bounds` are the bounds that its watchers report, of other topics too."""

    def __init__(self, ledgers=LEDGERS, *, watched=None, **options):
        self.topic = Topic(ledgers)
        super().__init__(self.topic.last, **options)
        self._client = self._ends._client = self.topic
        self._limiter = Limiter(self.topic, self._options)
        self._limiter._statistics = self.topic
        self._guard = ProgressGuard(self.topic, self._options)
        first = Position(min(ledgers), -1) if watched is None else watched
        self.bounds = {AT: Bounds(first, self.topic.last)}
        self._watch = lambda partitions: {tp: self.bounds[tp] for tp in partitions}
        self._present = lambda: (list(self.bounds), {})
        self.topic.fetch_partitions = lambda _: list(self.bounds)
        self.topic.fetch_positions_at = lambda times: {}
        self.topic.open_consumers = self._opened
        self.ended = []

    def _opened(self, starts):
        self.ended += [dict(starts)] if starts else []
        how = {"grant": lambda _: None, "leave": lambda: None}
        return {tp: SimpleNamespace(is_closed=False, has_ended=True, **how) for tp in starts}

    def after(self, start, **more):
        return offsets_from_json(self.latest(encode_offsets(start), **more))

    def spans(self, start, end):
        return [str(task) for task in self.ranges(encode_offsets(start), encode_offsets(end))]


@pytest.mark.parametrize(
    ("starting", "ledgers", "watched", "expected"),
    [
        ("earliest", LEDGERS, None, Position(5, -1)),
        ("latest", LEDGERS, None, Position(7, 2)),
        ('{"t": {"ledger": 5, "entry": 1}}', LEDGERS, None, Position(5, 1)),
        ('{"t": {"ledger": 5, "entry": 0}}', LEDGERS, Position(5, 0), Position(5, 0)),
        ('{"t": {"ledger": 7, "entry": 3}}', LEDGERS, None, Position(7, 2)),
        # TTL has moved the watcher, and 5:0 still exists.
        ('{"t": {"ledger": 5, "entry": 0}}', LEDGERS, Position(5, 1), Position(5, 0)),
        ('{"t": {"ledger": 4, "entry": 0}}', LEDGERS, None, "the broker has deleted the messages from 4:0 to 5:-1"),
        ('{"t": {"ledger": 7, "entry": 4}}', LEDGERS, None, "position 7:4 does not exist"),
        # Of an empty topic, all future messages are wanted.
        ("latest", {5: ()}, None, EARLIEST),
        ("earliest", {5: ()}, None, EARLIEST),
        # TTL has moved the watcher to the end.
        ("latest", LEDGERS, Position(7, 2), Position(7, 2)),
    ],
)
def test_where_a_query_without_a_checkpoint_begins(starting, ledgers, watched, expected):
    given = {"startingOffsets": starting.replace('"t"', f'"{TOPIC}"')}
    stream = OnTopic(ledgers, watched=watched, **given)
    if isinstance(expected, str):
        with pytest.raises(DataLossError, match=expected):
            stream.initial()
    else:
        assert offsets_from_json(stream.initial()) == {AT: expected}


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({AT: Position(5, 1)}, {AT: Position(7, 2)}),
        ({AT: Position(7, 2)}, {AT: Position(7, 2)}),
        ({AT: EARLIEST}, {AT: Position(7, 2)}),
        ({}, {AT: Position(7, 2)}),
        ({AT: Position(7, 3)}, "position 7:3 does not exist: the last entry before it is 7:2"),
        ({AT: Position(5, 1), OTHER: Position(1, 1)}, "u: no longer exists, so its unread messages are lost"),
    ],
)
def test_a_trigger_ends_at_the_last_message(start, end):
    if isinstance(end, str):
        with pytest.raises(DataLossError, match=end):
            OnTopic().after(start)
        assert OnTopic(failOnDataLoss="false").after(start) == {AT: Position(7, 2)}
    else:
        assert OnTopic().after(start) == end


@pytest.mark.parametrize("options", [{}, {"minRowsPerTrigger": "1000", "maxTriggerDelay": "10m"}])
def test_an_empty_first_trigger_has_its_start_and_is_empty_when_it_is_repeated(options):
    """Spark runs it all the same, and gets a new start for it, behind what came in between, if it has to repeat it."""
    stream = OnTopic(startingOffsets="latest", **options)
    first = stream.latest(stream.initial())
    assert stream.ranges(encode_offsets({AT: Position(7, 9)}), first) == []
    assert stream.latest(first) == first


def test_an_empty_unread_topic_is_not_in_the_offsets():
    stream = OnTopic({5: ()})
    assert (stream.after({}), stream.after({AT: EARLIEST})) == ({}, {AT: EARLIEST})


def test_a_stored_position_past_the_last_delivered_message_is_no_loss():
    # The watchers report the last message that is delivered; 7:2 is a marker.
    stream = OnTopic()
    stream.bounds[AT] = Bounds(Position(5, -1), Position(7, 1))
    assert stream.after({AT: Position(7, 2)}) == {AT: Position(7, 2)}


@pytest.mark.parametrize(
    ("target", "start", "end"),
    [
        (Position(7, 1), {AT: Position(5, 1)}, {AT: Position(7, 1)}),
        (Position(7, 1), {AT: Position(7, 2)}, {AT: Position(7, 2)}),
        (Position(7, 1), {}, {AT: Position(7, 1)}),
        (EARLIEST, {}, {}),
        (EARLIEST, {AT: EARLIEST}, {AT: EARLIEST}),
    ],
)
def test_an_availablenow_query_ends_at_its_target_and_not_before_its_begin(target, start, end):
    stream = OnTopic()
    newest = stream.bounds[AT]
    stream.bounds[AT] = Bounds(newest.first, target)
    stream.cap_at_current_end()
    stream.bounds[AT] = newest
    assert stream.after(start) == end


@pytest.mark.parametrize(("given", "end"), [({}, Position(5, -1)), ({"waitForTopic": "1m"}, Position(7, 2))])
def test_an_availablenow_query_reads_late_topics_only_if_it_waited_for_them(given, end):
    stream = OnTopic(startingOffsets="earliest", **given)
    newest = stream.bounds[AT]
    stream.bounds[AT] = Bounds(newest.first, Position(5, 1))
    stream.cap_at_current_end()
    stream.bounds = {AT: newest, OTHER: newest}
    stream._present = lambda: ([AT], {})
    stream._all_present = lambda: [AT, OTHER]
    start = offsets_from_json(stream.initial())
    stream._present = lambda: ([AT, OTHER], {})
    assert stream.after(start) == {AT: Position(5, 1), OTHER: end}


@pytest.mark.parametrize(
    ("given", "start", "limited", "end"),
    [
        ({"maxEntriesPerTrigger": "2"}, {AT: Position(5, 0)}, True, Position(7, 0)),
        ({"maxEntriesPerTrigger": "2"}, {AT: Position(5, 0)}, False, Position(7, 2)),
        ({"maxEntriesPerTrigger": "2"}, {AT: EARLIEST}, True, Position(5, 1)),
    ],
)
def test_limits_count_from_the_start(given, start, limited, end):
    assert OnTopic(**given).after(start, limited=limited) == {AT: end}


@pytest.mark.parametrize(
    ("least", "start", "is_delayed"),
    [
        ("4", {AT: Position(5, 0)}, False),
        ("5", {AT: Position(5, 0)}, True),
        # A corrected start is planned at once.
        ("5", {AT: Position(5, 0), OTHER: Position(1, 1)}, False),
    ],
)
def test_a_trigger_waits_for_its_rows(least, start, is_delayed):
    stream = OnTopic(minRowsPerTrigger=least, failOnDataLoss="false")
    stream.after(start)  # the first one does not wait
    found = stream.after(start)
    assert (found == start) == is_delayed
    stream.cap_at_current_end()
    assert stream.after(start) == {AT: Position(7, 2)}


@pytest.mark.parametrize(
    ("start", "end", "spans"),
    [
        ({AT: Position(5, 0)}, {AT: Position(7, 2)}, ["(5:0, 7:2]"]),
        ({AT: Position(7, 2)}, {AT: Position(7, 2)}, []),
        ({AT: EARLIEST}, {AT: Position(7, 2)}, ["(earliest, 7:2]"]),
        ({}, {AT: Position(7, 2)}, ["(earliest, 7:2]"]),
        ({AT: EARLIEST, OTHER: EARLIEST}, {AT: Position(7, 2)}, ["(earliest, 7:2]"]),
    ],
)
def test_the_tasks_of_a_trigger(start, end, spans):
    assert OnTopic().spans(start, end) == [f"{TOPIC} {span}" for span in spans]


def test_a_range_from_the_beginning_has_a_position_if_latest_found_one():
    # With `earliest` the reader would not notice a ledger that is deleted meanwhile, also after a restart.
    stream, restarted = (OnTopic({5: (), 6: (1, 1)}) for _ in range(2))
    start = encode_offsets({AT: EARLIEST})
    end = stream.latest(start)
    for one in (stream, restarted):
        (task,) = one.ranges(start, end)
        assert (str(task), task.query_start) == (f"{TOPIC} (6:-1, 6:1]", Position(6, -1))
    following = stream.latest(encode_offsets({AT: Position(6, 0)}))
    assert following == encode_offsets({AT: Position(6, 1)})
    assert [str(task) for task in stream.ranges(start, following)] == [f"{TOPIC} (earliest, 6:1]"]


def test_a_start_in_a_deleted_ledger_moves_to_the_next_ledger():
    stream = OnTopic({7: (1, 1, 1)})
    start, gone = {AT: Position(5, 1)}, Position(7, -1)
    stream._successors = {(AT, Position(5, 1)): gone, (OTHER, Position(5, 1)): gone, (AT, Position(5, 0)): gone}
    end = stream.after(start)
    assert list(stream._successors) == [(AT, Position(5, 1))]
    assert stream.spans(start, end) == [f"{TOPIC} (7:-1, 7:2]"]


def test_a_query_ends_if_all_topics_are_terminated_and_read():
    stream = OnTopic(endAtTermination="true")
    end = {AT: Position(7, 2)}
    assert [stream.after(end) for _ in range(2)] == [end, end]
    assert stream.ended == [{AT: Position(7, 3)}]
    # A trigger without data may follow, with which Spark completes aggregations that wait for a watermark.
    with pytest.raises(EndOfStreamError, match=r"read to their end \(1 topic-partitions\)"):
        stream.after(end)


@pytest.mark.parametrize("change", ["not ended", "limited", "now"])
def test_a_query_with_an_open_topic_does_not_end(change):
    stream = OnTopic(endAtTermination="true", maxEntriesPerTrigger="1")
    end = {AT: Position(7, 2)}
    if change == "now":
        stream.cap_at_current_end()
    for _ in range(4):
        if change == "limited":
            end = {AT: Position(5, 1)}
        stream.after(end)
        for _, one in stream._ends._waiting.values():
            one.has_ended = False
    assert len(stream.ended) == (change == "not ended")


@pytest.mark.parametrize(
    ("is_closed", "has_ended", "asked"), [(False, True, 1), (True, True, 1), (False, False, 1), (True, False, 2)]
)
def test_a_consumer_at_the_end_is_reopened_if_it_was_closed_before_the_notice(is_closed, has_ended, asked):
    stream = OnTopic()
    for _ in range(2):
        stream._ends.are_ended({AT: Position(7, 2)})
        stream._ends._waiting[AT][1].is_closed, stream._ends._waiting[AT][1].has_ended = is_closed, has_ended
    assert len(stream.ended) == asked
    stream._ends.are_ended({AT: Position(7, 3)})
    assert stream.ended[-1] == {AT: Position(7, 4)}


def test_before_any_message_the_end_is_the_beginning():
    stream = OnTopic()
    stream._ends.are_ended({AT: EARLIEST})
    assert stream.ended == [{AT: EARLIEST}]


# -- a durable subscription


class Pinned(OnTopic):
    """A stream whose durable subscription is at `cursor`; `moves` records the requests that move it."""

    def __init__(self, cursor, *, sticks=False, **options):
        super().__init__(subscription="s", **options)
        self.cursor, self.sticks, self.moves = cursor, sticks, []
        pin = SimpleNamespace(
            request_seek=lambda at: self._moved("seek", at),
            request_ack=lambda at: self._moved("ack", at),
            is_active=True,
        )
        self._pinning = SimpleNamespace(wait_for=lambda asked, _: dict(asked), close=lambda: None)
        self._open_pins = lambda partitions, **_: self._pins.update(dict.fromkeys(partitions, pin))
        self._request_pins = lambda asked: dict.fromkeys(asked, self.cursor)

    def _moved(self, how, at):
        self.moves.append((how, at))
        if not self.sticks:
            self.cursor = Position(at.ledger, at.entry - 1) if how == "seek" else at


@pytest.mark.parametrize(
    ("cursor", "start", "moves"),
    [
        (Position(5, 0), Position(5, 1), []),
        (Position(5, 1), Position(5, 1), [("seek", Position(5, 1))]),
        (Position(5, -1), Position(5, 1), [("seek", Position(5, 1))]),
        (Position(7, 0), Position(5, 1), [("seek", Position(5, 1))]),
        # All present and future messages are wanted; an older subscription can be ahead of the first.
        (Position(5, -1), EARLIEST, []),
        (Position(3, 9), EARLIEST, []),
        (Position(5, 0), EARLIEST, [("seek", Position(5, 0))]),
        (Position(7, 0), EARLIEST, [("seek", Position(5, 0))]),
        (Position(5, 1), Position(7, 0), [("seek", Position(7, 0))]),
    ],
)
def test_a_durable_subscription_is_moved_to_the_entry_of_the_start(cursor, start, moves):
    stream = Pinned(cursor)
    stream._place_pins({AT: start})
    assert stream.moves == moves


@pytest.mark.parametrize(
    ("cursor", "end", "moves"),
    [
        (Position(5, 0), Position(5, 1), []),
        (Position(5, 1), Position(5, 1), []),
        (Position(5, -1), Position(5, 1), [("ack", Position(5, 0))]),
        (Position(5, 1), Position(7, 0), [("ack", Position(7, -1))]),
        (Position(7, 0), EARLIEST, []),
    ],
)
def test_a_durable_subscription_acknowledges_entries_before_that_of_the_end(cursor, end, moves):
    stream = Pinned(cursor)
    stream.commit(encode_offsets({AT: end}))
    assert stream.moves == moves


@pytest.mark.parametrize(
    ("place", "target", "cursor", "warns"),
    [
        ("_place_pins", Position(5, 1), Position(5, -1), True),
        ("_place_pins", Position(7, 0), Position(5, 1), False),  # right before a ledger's first entry
        ("_place_pins", Position(5, 0), Position(7, 0), True),
        ("_move_pins", Position(5, 1), Position(5, -1), True),
        ("_move_pins", Position(5, 1), Position(5, 0), False),
        ("_move_pins", Position(5, 1), Position(7, 0), False),
    ],
)
def test_a_durable_subscription_that_does_not_move_is_a_warning(place, target, cursor, warns, caplog):
    getattr(Pinned(cursor, sticks=True), place)({AT: target})
    assert [record.getMessage().partition(" stays at ")[1] for record in caplog.records] == [" stays at "] * warns


def test_the_first_trigger_of_a_new_query_places_the_subscription():
    stream = Pinned(Position(5, 1), startingOffsets="latest")
    start = stream.initial()
    stream.latest(start)
    assert stream.moves == [("seek", Position(7, 2))]
    other = Pinned(Position(5, 1), startingOffsets="latest")
    other.initial()
    other.after({AT: Position(5, 1)})
    assert other.moves == []


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_repeated_first_trigger_has_the_same_start(starting):
    stream = OnTopic({5: (1, 1), 7: (1,)}, startingOffsets=starting)
    start = stream.initial()
    stream.bounds[AT] = Bounds(Position(5, -1), Position(7, 1))
    end = stream.latest(start)
    tasks = stream.ranges(start, end)
    assert [str(task) for task in tasks] == [f"{TOPIC} ({'7:0' if starting == 'latest' else '5:-1'}, 7:1]"]
    again = OnTopic(LEDGERS, startingOffsets=starting)
    assert again.ranges(again.initial(), end) == tasks
    # Without new messages, the end is the same document; then a trigger starts at the end of the last one.
    again.bounds[AT] = Bounds(Position(5, -1), Position(7, 1))
    assert again.latest(end) == end
    again.bounds[AT] = Bounds(Position(5, -1), Position(7, 2))
    following = again.latest(end)
    assert following.keys() == {"version", "positions"}
    assert [str(task) for task in again.ranges(end, following)] == [f"{TOPIC} (7:1, 7:2]"]


def test_a_repeated_first_trigger_does_not_check_a_new_start():
    given = {"startingOffsets": "latest", "endingOffsets": json.dumps({TOPIC: {"ledger": 7, "entry": 1}})}
    stream = OnTopic({5: (1, 1), 7: (1,)}, **given)
    stream.bounds[AT] = Bounds(Position(5, -1), Position(7, 0))
    start = stream.initial()
    stream.bounds[AT] = Bounds(Position(5, -1), Position(7, 1))
    end = stream.latest(start)
    # The topic is past the end by now.
    again = OnTopic(LEDGERS, **given)
    assert again.ranges(end, end) == []
    assert again.initial() == start
    assert again.ranges(start, end) == stream.ranges(start, end)
    with pytest.raises(OptionError, match="would end at"):
        OnTopic(LEDGERS, **given).initial()


@pytest.mark.parametrize("commits", [True, False])
def test_the_end_of_a_query_moves_the_subscription_only_to_what_the_checkpoint_surely_has(commits):
    stream = Pinned(Position(5, -1), startingOffsets="earliest", endAtTermination="true")
    ends = [stream.initial()]
    for last in (Position(5, 1), Position(7, 2)):
        stream.bounds[AT] = Bounds(Position(5, -1), last)
        ends.append(stream.latest(ends[-1]))
        if commits and len(ends) > 2:
            stream.commit(ends[-2])
        stream.ranges(ends[-2], ends[-1])
    stream.moves.clear()
    assert stream.latest(ends[-1]) == ends[-1]
    with pytest.raises(EndOfStreamError):
        stream.latest(ends[-1])
    # Asynchronous progress tracking may not have stored the last trigger.
    assert stream.moves == [("ack", Position(7, 1))] * commits


def test_a_first_trigger_without_a_topic_is_repeated_from_the_first_message():
    end = encode_offsets({AT: Position(7, 2)}, {})
    stream = OnTopic(startingOffsets="latest")
    assert [str(task) for task in stream.ranges(stream.initial(), end)] == [f"{TOPIC} (earliest, 7:2]"]


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("known", [False, True])
def test_a_topic_that_does_not_exist(pattern, fails, known):
    given = {"failOnDataLoss": fails} | ({"topicsPattern": "persistent://public/default/.*"} if pattern else {})
    stream = OnTopic(**given)
    stream._present = lambda: ([AT], {OTHER.topic: TopicNotFoundError("u is not there")})
    before = {OTHER: Position(1, 1)} if known else {}
    if fails == "true" and not known and not pattern:
        with pytest.raises(TopicNotFoundError):
            stream._partitions(before)
    else:
        assert stream._partitions(before) == [AT]
