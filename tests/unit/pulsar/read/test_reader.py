"""A range against scripted brokers: what an old one does not tell, and what never ends."""

import contextlib
import time

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import DataLossError, ServiceNotReadyError
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from tests.unit.pulsar.client.test_client import TP, Broker

SCHEMA = pa.schema([("value", pa.binary())])


class Cursors(Broker):
    """A broker that places cursors as `place(start)` says."""

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
def test_a_broker_that_leaves_cursors_in_deleted_ledgers_is_asked_for_the_first_one(version):
    # As 2.10.1 answers: the cursor is before the entry that was asked for, which is gone.
    broker = Cursors(version, lambda ledger, entry: (ledger, entry - 1), last=(9, 5), first_kept=(8, -1))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        with pytest.raises(DataLossError, match=r"the ledger of 5:3, and whatever followed it up to 8:-1, is gone"):
            read(broker, (5, 3), (9, 5))


def test_a_broker_that_places_cursors_is_asked_with_the_start_alone():
    broker = Cursors("Pulsar Server4.0.8", lambda *_: (8, -1), last=(9, 5), first_kept=(8, -1))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        with pytest.raises(DataLossError, match=r"the ledger of 5:3, and whatever followed it up to 8:-1, is gone"):
            read(broker, (5, 3), (9, 5))
        starts = [(x.start_message_id.ledger_id, x.start_message_id.entry_id) for x in broker.of(c.Subscribe)]
        assert starts == [(5, 3), (5, 3)]  # the second one tells whether the first was moved before it was asked for


@pytest.mark.parametrize("cursor", [(5, 4), (5, 9), (6, -1)])
def test_what_is_gone_right_behind_the_start_is_loss(cursor):
    """A cursor past the start is: within its ledger too."""
    broker = Cursors("Pulsar Server4.0.8", lambda *_: cursor, last=(9, 5), first_kept=(5, -1))
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        upto = f"{cursor[0]}:{cursor[1]}"
        with pytest.raises(DataLossError, match=f"the ledger of 5:3, and whatever followed it up to {upto}, is gone"):
            read(broker, (5, 3), (9, 5))


def test_a_cursor_that_was_moved_before_it_was_asked_for_is_no_loss():
    """As truncation and TTL move it, which leave the current ledger."""
    marks = iter([(5, 9)])
    broker = Cursors(
        "Pulsar Server4.0.8", lambda ledger, entry: next(marks, (ledger, entry - 1)), last=(5, 9), first_kept=(5, -1)
    )
    empty = memoryview(bytes.fromhex("00000006") + b"\x0a\x00\x10\x00\x18\x00")
    broker.answers[c.Flow] = lambda _, x: [c.Message(x.consumer_id, 5, n, 0, (), empty) for n in range(3, 10)]
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        assert len(read(broker, (5, 3), (5, 9))) == 6


def test_a_cursor_that_moves_for_ever_ends_the_task():
    """Whatever moves it: a reader that gets no farther does not go on for ever."""
    marks = iter(range(10**9))
    broker = Cursors("Pulsar Server4.0.8", lambda ledger, entry: (ledger, entry - 1), last=(5, 900), first_kept=(5, -1))
    place = broker.bounds

    def bounds(link, command):
        asked = [x for x in link.commands if isinstance(x, c.Flow) and x.consumer_id == command.consumer_id]
        answer = place(link, command)
        moved = c.MessageId(5, 100 + next(marks))
        return c.GetLastMessageIdResponse(answer.last_message_id, command.request_id, moved) if asked else answer

    broker.answers[c.GetLastMessageId] = bounds
    empty = memoryview(bytes.fromhex("00000006") + b"\x0a\x00\x10\x00\x18\x00")
    broker.answers[c.Flow] = lambda _, x: [c.Message(x.consumer_id, 5, n, 0, (), empty) for n in (3, 50)]
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(broker.stop)
        begin = time.monotonic()
        with pytest.raises(ServiceNotReadyError, match=r"the broker moved the cursor to 5:\d+, past 5:3"):
            read(broker, (5, 3), (5, 900))
        assert time.monotonic() - begin < 30
