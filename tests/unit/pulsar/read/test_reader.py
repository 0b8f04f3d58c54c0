"""Reads of a range from scripted brokers and topics in memory: rows, data loss, and the end of the read."""

import contextlib
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import DataLossError, RequestTimeoutError, ServiceNotReadyError
from spark_mq_source.core.options import READ
from spark_mq_source.net.resume import ReopenError
from spark_mq_source.net.retry import Deadline
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.chunks import OrphanChunk
from spark_mq_source.pulsar.payload.messages import MAX_IN_ENTRY
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.read.reader import PulsarRange, _RangeReader, read_range
from tests.unit.pulsar.client.test_client import TP, Broker
from tests.unit.pulsar.payload.test_messages import batch, single
from tests.unit.pulsar.read.topic import Consumer, Topic

SCHEMA = pa.schema([("value", pa.binary())])


class Cursors(Broker):
    """A broker that places cursors at `place(start)`."""

    def __init__(self, version, place, *, last, first_kept):
        super().__init__()
        self.starts = {}
        self.place, self.last, self.first_kept = place, last, first_kept
        self.answers = {
            c.Connect: lambda *_: c.Connected(version, 19, 5 << 20),
            c.Subscribe: self.subscribe,
            c.GetLastMessageId: self.bounds,
        }

    def subscribe(self, link, command):
        start = command.start_message_id
        self.starts[link, command.consumer_id] = (start.ledger_id, start.entry_id)
        return c.Success(command.request_id)

    def bounds(self, link, command):
        ledger, entry = self.starts[link, command.consumer_id]
        mark = self.first_kept if entry >= 2**63 or entry == -1 else self.place(ledger, entry)
        return c.GetLastMessageIdResponse(c.MessageId(*self.last), command.request_id, c.MessageId(*mark))


def read(broker, start, end, **options):
    given = {"serviceUrl": broker.url, "topic": "t", "operationTimeout": "1s"} | options
    made = PulsarOptions.from_spark({name.lower(): value for name, value in given.items()}, READ)
    task = PulsarRange(TopicPartition(TP.topic, -1), Position(*start), Position(*end))
    return [row for batch in read_range(made, task, SCHEMA) for row in batch.to_pylist()]


@pytest.mark.parametrize("version", ["Pulsar Server2.10.1", "Pulsar-Broker-v3.0.0", "unknown", ""])
def test_with_cursors_in_deleted_ledgers_the_first_ledger_is_requested(version):
    # As 2.10.1 answers: the cursor is before the requested entry, which is gone.
    broker = Cursors(version, lambda ledger, entry: (ledger, entry - 1), last=(9, 5), first_kept=(8, -1))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        with pytest.raises(DataLossError, match=r"the broker has deleted the messages from 5:3 to 8:-1"):
            read(broker, (5, 3), (9, 5))


def test_with_placed_cursors_only_the_start_is_requested():
    broker = Cursors("Pulsar Server4.0.8", lambda *_: (8, -1), last=(9, 5), first_kept=(8, -1))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        with pytest.raises(DataLossError, match=r"the broker has deleted the messages from 5:3 to 8:-1"):
            read(broker, (5, 3), (9, 5))
        starts = [(x.start_message_id.ledger_id, x.start_message_id.entry_id) for x in broker.of(c.Subscribe)]
        assert starts == [(5, 3), (5, 3)]  # the second one shows whether the first was moved before it was requested


@pytest.mark.parametrize("cursor", [(5, 4), (5, 9), (6, -1)])
def test_missing_entries_right_behind_the_start_are_loss(cursor):
    """A cursor past the start is data loss, within its ledger too."""
    broker = Cursors("Pulsar Server4.0.8", lambda *_: cursor, last=(9, 5), first_kept=(5, -1))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        upto = f"{cursor[0]}:{cursor[1]}"
        with pytest.raises(DataLossError, match=f"the broker has deleted the messages from 5:3 to {upto}"):
            read(broker, (5, 3), (9, 5))


def test_a_cursor_moved_before_its_request_is_no_loss():
    """Truncation and TTL move cursors so, within the current ledger."""
    marks = iter([(5, 9)])
    broker = Cursors(
        "Pulsar Server4.0.8", lambda ledger, entry: next(marks, (ledger, entry - 1)), last=(5, 9), first_kept=(5, -1)
    )
    empty = memoryview(bytes.fromhex("00000006") + b"\x0a\x00\x10\x00\x18\x00")
    broker.answers[c.Flow] = lambda _, x: [c.Message(x.consumer_id, 5, n, 0, (), empty) for n in range(3, 10)]
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        assert len(read(broker, (5, 3), (5, 9))) == 6


# -- on a topic in memory

LEDGERS = {5: (1, 3, 1), 7: (2,), 9: (1, 1, 4)}


def reader(topic, start, end, **options):
    given = {"serviceurl": "pulsar://h:1", "topic": "t", "operationtimeout": "200ms"}
    given |= {name.lower(): value for name, value in options.items()}
    task = PulsarRange(TopicPartition(TP.topic, -1), start, end, query_start=start)
    return _RangeReader(topic, PulsarOptions.from_spark(given, READ), task, SCHEMA, Counters())


def values(made):
    return [value for one in made.batches() for value in one.column("value").to_pylist()]


def places(ledgers):
    for ledger, number in Topic(ledgers).entries:
        yield Position(ledger, number)
        size = ledgers[ledger][number]
        yield from (Position(ledger, number, n) for n in range(size if size > 1 else 0))


@pytest.mark.parametrize("burst", [1, 2, 9])
@pytest.mark.parametrize("most", ["1", "2", "100"])
def test_every_range_of_a_topic_has_its_rows(burst, most):
    topic, tried = Topic(LEDGERS, burst=burst), 0
    ends = [Position(5, -1), *places(LEDGERS)]
    for start, end in itertools.product([EARLIEST, *ends], ends):
        topic.opened.clear()
        made = reader(topic, start, end, maxBatchRows=most)
        assert values(made) == topic.rows(start, end), (start, end)
        # The position from which it would resume after a lost connection.
        entries = topic.between(start, end) if start < end else []
        assert made._done == (Position(*entries[-1]) if entries else start), (start, end)
        assert len(topic.opened) == (start < end)
        tried += 1
    assert tried == 18 * 17


@pytest.mark.parametrize(("more", "sizes"), [(-1, [1, 1, 1]), (0, [1, 1, 1]), (1, [2, 1]), (99, [3])])
def test_batches_are_yielded_when_they_are_full(more, sizes):
    topic = Topic({5: (1, 1, 1)})
    made = reader(topic, Position(5, -1), Position(5, 2))
    made._decoder.decode(5, 0, topic.message(5, 0).body)
    for given in ({"maxBatchRows": str(sizes[0])}, {"maxBatchBytes": str(made._decoder.nbytes + more)}):
        found = reader(topic, Position(5, -1), Position(5, 2), **given).batches()
        assert [one.num_rows for one in found] == sizes


@pytest.mark.parametrize(
    ("end", "is_loss"),
    [
        (Position(9, 2), False),
        (Position(9, 3), True),
        (Position(11, 0), True),
        # The position before a ledger's first entry is no entry, and is after the last entry of the previous ledger.
        (Position(11, -1), False),
    ],
)
def test_an_end_past_the_last_entry(end, is_loss):
    topic = Topic(LEDGERS)
    expected = topic.rows(EARLIEST, end)
    if is_loss:
        with pytest.raises(DataLossError, match="does not exist: the last entry before it is 9:2"):
            values(reader(topic, EARLIEST, end))
    assert values(reader(topic, EARLIEST, end, failOnDataLoss="false")) == expected


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (Position(9, 3), None),  # right behind the last entry
        (Position(9, 4), "9:4 does not exist: the last entry before it is 9:2"),
        (Position(4, 0), "the broker has deleted the messages from 4:0 to 5:-1"),
        (Position(6, 0), "the broker has deleted the messages from 6:0 to 7:-1"),
        (Position(5, 0), None),
        (Position(5, -1), None),
        (EARLIEST, None),
    ],
)
def test_a_start_that_does_not_exist(start, message):
    end = Position(9, 8)
    for fails in ("true", "false"):
        made = reader(Topic(LEDGERS), start, end, failOnDataLoss=fails)
        if message is not None and fails == "true":
            with pytest.raises(DataLossError, match=message):
                made._open()
        else:
            assert made._open().opened.last == Position(9, 2)


def test_a_read_continues_behind_entries_that_the_topic_does_not_count():
    made = reader(Topic(LEDGERS), Position(9, 0), Position(9, 8))
    made._done = Position(9, 5)
    assert made._open().opened.last == Position(9, 2)


@pytest.mark.parametrize(
    ("cursors", "error"),
    [
        ([Position(5, 1)], None),
        ([Position(5, 2)], None),
        ([Position(5, 3)], ReopenError),
        # The same position again: entries that the broker does not deliver if nothing was received; farther may be TTL.
        ([Position(5, 3), Position(5, 3)], None),
        ([Position(5, 3), Position(5, 4)], ServiceNotReadyError),
        ([Position(5, 4), Position(5, 3)], None),
        ([Position(5, 3), Position(5, 4), Position(5, 4)], None),
    ],
)
def test_a_cursor_past_the_received_entries(cursors, error):
    topic = Topic({5: (1,) * 9})
    made = reader(topic, Position(5, 2), Position(5, 8))
    consumer = Consumer(topic, Position(5, 3), 2)
    for cursor in cursors[:-1]:
        with contextlib.suppress(ServiceNotReadyError):
            made._check_cursor(consumer, Position(5, 2), cursor)
    if error is None:
        made._check_cursor(consumer, Position(5, 2), cursors[-1])
    else:
        with pytest.raises(error, match=f"moved the cursor to {cursors[-1]}, past 5:2"):
            made._check_cursor(consumer, Position(5, 2), cursors[-1])


def test_a_cursor_that_moves_again_after_entries_were_received():
    topic = Topic({5: (1,) * 9})
    made = reader(topic, Position(5, 2), Position(5, 8))
    consumer = Consumer(topic, Position(5, 2), 2)
    with pytest.raises(ReopenError):
        made._check_cursor(consumer, Position(5, 2), Position(5, 3))
    with pytest.raises(ServiceNotReadyError, match="moved the cursor to 5:3"):
        made._check_cursor(consumer, Position(5, 2), Position(5, 3))
    made._done = Position(5, 3)
    with pytest.raises(ReopenError):
        made._check_cursor(consumer, Position(5, 3), Position(5, 4))


@pytest.mark.parametrize(("received", "left"), [(Position(9, 1), True), (Position(9, 2), False)])
def test_the_check_for_remaining_entries_after_silence(received, left):
    topic = Topic(LEDGERS)
    made = reader(topic, EARLIEST, Position(9, 2))
    consumer = Consumer(topic, EARLIEST, 2)
    assert made._is_at_end(consumer, received, Deadline.after_ms(60_000)) != left
    if left:
        with pytest.raises(RequestTimeoutError, match="no message for 100 ms after 9:1, though the last one is 9:2"):
            made._is_at_end(consumer, received, Deadline.after_ms(0))


def test_an_unknown_last_message_is_no_end():
    topic = Topic(LEDGERS)
    topic.last = EARLIEST
    consumer = Consumer(topic, EARLIEST, 2)
    made = reader(topic, EARLIEST, Position(9, 2))
    assert not made._is_at_end(consumer, Position(9, 1), Deadline.after_ms(60_000))
    with pytest.raises(RequestTimeoutError, match="no message for 100 ms after 9:1, though the last one is"):
        made._is_at_end(consumer, Position(9, 1), Deadline.after_ms(0))
    # A terminated topic can end with a ledger without entries.
    assert reader(topic, EARLIEST, Position(9, -1))._is_at_end(consumer, Position(9, 1), Deadline.after_ms(60_000))


@pytest.mark.parametrize("silences", [0, 1])
def test_the_messages_of_a_compacted_ledger_are_before_the_first_cursor(silences):
    topic = Topic({5: (1, 1, 1, 1), 9: (1,)})
    consumer = Consumer(topic, EARLIEST, 2)
    # Ledger 5 is the compacted one; its original, and 5:1, are deleted.
    consumer.opened, consumer.cursor = Bounds(Position(9, -1), Position(5, 3)), Position(9, -1)
    consumer.waiting = [topic.message(5, n) for n in (0, 2, 3)]
    topic.last = Position(5, 3)
    topic.open_consumer = lambda *_: consumer
    silent, receive = [[]] * silences, consumer.receive
    consumer.receive = lambda **how: silent.pop() if silent else receive(**how)
    made = reader(topic, EARLIEST, Position(5, 3), readCompacted="true")
    assert values(made) == [b"5:0:0", b"5:2:0", b"5:3:0"]


def returned(generator):
    """Return the return value of a generator."""
    while True:
        try:
            next(generator)
        except StopIteration as ended:
            return ended.value


@pytest.mark.parametrize(("held", "counted"), [(1, 1), (3, 3), (MAX_IN_ENTRY - 1, MAX_IN_ENTRY - 1)])
def test_messages_of_an_entry_are_counted_as_by_the_broker(held, counted):
    topic = Topic({5: (1,)})
    body = memoryview(batch(*[single(b"v")] * min(held, 3), num_messages_in_batch=held))
    topic.message = lambda *_: c.Message(1, 5, 0, 0, (), body)
    made = reader(topic, EARLIEST, Position(5, 0), onCorrupt="skip")
    made._received, made._distrusted = (5, -1), made._done
    found = made._decoded(Consumer(topic, EARLIEST, 1), [topic.message(5, 0)])
    assert returned(found) == counted


CHUNKS = 4


@pytest.mark.parametrize(
    ("opened", "orphan", "wanted", "look_back"),
    [
        # (ledger, entry) of its last chunk, its number, and the position where its first chunk was dropped.
        (Position(9, 5), ((9, 20), CHUNKS - 1, None), True, Position(9, 20 - 60)),
        (Position(9, 19), ((9, 20), CHUNKS - 1, None), True, Position(9, 16)),
        (Position(9, 0), ((9, 60), CHUNKS - 1, None), True, Position(3, -1)),
        (Position(9, 1), ((9, 60), CHUNKS - 1, None), True, Position(9, -1)),
        (Position(9, -1), ((9, 4), CHUNKS - 1, None), True, Position(3, -1)),
        (Position(9, 15), ((9, 20), CHUNKS - 1, None), True, Position(9, 0)),
        (Position(7, 3), ((9, 20), CHUNKS - 1, None), True, Position(3, -1)),
        (Position(9, 5), ((9, 20), CHUNKS - 1, (9, 12)), True, Position(9, 12)),
        (Position(3, -1), ((9, 20), CHUNKS - 1, None), True, None),
        (Position(9, 5), ((9, 20), CHUNKS - 2, None), True, None),
        (Position(9, 5), ((9, 20), CHUNKS - 1, None), False, None),
    ],
)
def test_the_search_for_the_first_chunk_of_a_message(opened, orphan, wanted, look_back):
    (ledger, entry), chunk_id, first = orphan
    topic = Topic({3: (1,), 7: (1,) * 9, 9: (1,) * 70})
    made = reader(topic, EARLIEST, Position(9, 69))
    consumer = Consumer(topic, Position(opened.ledger, opened.entry + 1), 2)
    made._decoder = SimpleNamespace(orphan=OrphanChunk(b"u", ledger, entry, chunk_id, CHUNKS, first))
    if look_back is None:
        made._find_first_chunk(consumer, wanted)
    else:
        with pytest.raises(ReopenError):
            made._find_first_chunk(consumer, wanted)
        expected = Position(look_back.ledger, max(-1, look_back.entry))
        assert made._look_back == expected


def test_a_range_of_a_topic_from_which_everything_is_deleted_ends(caplog):
    assert values(reader(Topic({8: ()}), Position(7, 0), Position(7, 2), failOnDataLoss="false")) == []
    assert "the broker has deleted the messages from 7:0 to 8:-1" in caplog.text


@pytest.mark.parametrize(
    ("start", "query_start", "options", "is_loss"),
    [
        (Position(7, 1), Position(7, 1), {}, True),
        (Position(7, 1), Position(7, 1), {"failOnDataLoss": "false"}, False),
        # What is read from the first message on may begin inside a chunked message.
        (Position(7, -1), Position(7, -1), {}, False),
        (Position(7, 1), Position(7, -1), {}, False),
        (Position(7, 1), EARLIEST, {}, False),
        # The topic began with another ledger when the query was planned.
        (Position(7, 1), Position(6, -1), {}, True),
        # An earlier trigger has read the ledger before, which had the first chunk.
        (Position(7, -1), None, {}, True),
        (Position(7, 1), None, {"readCompacted": "true"}, False),
    ],
)
def test_a_chunked_message_whose_first_chunk_was_deleted(start, query_start, options, is_loss, caplog):
    topic = Topic({7: (1,) * 4})
    made = reader(topic, start, Position(7, 2), **options)
    made._task = replace(made._task, query_start=query_start)
    made._decoder = SimpleNamespace(orphan=OrphanChunk(b"u", 7, 2, CHUNKS - 1, CHUNKS, None))
    with pytest.raises(DataLossError) if is_loss else contextlib.nullcontext() as failure:
        made._find_first_chunk(Consumer(topic, Position(7, 0), 2), True)
    told = str(failure.value) if is_loss else caplog.text
    assert "the chunked message that ends at 7:2 has no first chunk" in told
