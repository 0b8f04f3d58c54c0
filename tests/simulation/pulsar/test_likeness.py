"""Likeness of the model of a broker to the broker: each fact is a trace, run on both, with equal observations.

The traces of shared subscriptions are in `likeness_queues`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from spark_mq_source.pulsar.client.topics import COORDINATORS
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.commands import InitialPosition, MessageId
from tests.simulation.pulsar import likeness_queues
from tests.simulation.pulsar.entries import make_entry, read_entry
from tests.simulation.pulsar.likeness import QUIET_SECONDS, TRACES, Client, Model, Trace, done_by, trace
from tests.simulation.world import World

assert likeness_queues  # for its traces

TRACES_AT_ONCE = 12


@trace((((0, 0), (0, 2), -1), [(0, 1), (0, 2)]))
def start_is_inclusive(c: Client) -> Any:
    ids = c.publish(1, 3, 1)
    reader = c.subscribe(ids[1])
    return c.bounds(reader), c.read(reader, 100)


@trace([[], []])
def a_start_right_after_the_end_waits(c: Client) -> Any:
    ids = c.publish(1, 1)
    behind = ids[1][0], ids[1][1] + 1
    return [c.read(c.subscribe(behind, initial=initial), 100) for initial in InitialPosition]


@trace([((0, 1), []), ((0, -1), [(0, 0), (0, 1)])])
def start_past_the_end(c: Client) -> Any:
    ids = c.publish(1, 1)
    past = ids[1][0], 50
    readers = [c.subscribe(past, initial=initial) for initial in InitialPosition]
    return [(c.bounds(reader)[0], c.read(reader, 100)) for reader in readers]


@trace(((0, 1), [(1, 0)]))
def start_too_large_in_a_closed_ledger(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.roll_over()
    ids += c.publish(1)
    reader = c.subscribe((ids[0][0], 1 << 62))
    return c.bounds(reader)[0], c.read(reader, 1)


@trace((((-1, -1), -1), ((0, -1), (0, 0), -1), ((0, -1), (0, 1), 2), ((0, -1), (0, 1), 2)))
def last_message(c: Client) -> Any:
    empty = c.bounds(c.subscribe((-1, -1)))[1:]
    c.publish(1)
    single = c.bounds(c.subscribe((-1, -1)))
    c.publish(3)
    batch = c.bounds(c.subscribe((-1, -1)))
    c.roll_over()
    return empty, single, batch, c.bounds(c.subscribe((-1, -1)))


@trace((3, 3, 1))
def backlog_falls_with_acknowledgements_only(c: Client) -> Any:
    ids = c.publish(1, 2, 1, 1)
    reader = c.subscribe(ids[1])
    before = c.backlog(reader)
    c.read(reader, 100)
    read = c.backlog(reader)
    c.acknowledge(reader, ids[2])
    return before, read, c.backlog(reader)


@trace(1)
def flow_sends_whole_entries(c: Client) -> Any:
    c.publish(5, 5)
    reader = c.subscribe((-1, -1))
    return len(c.read(reader, 1))


@trace([(0, -1), (0, 1), (0, 1), (0, 1), (0, 1)])
def acks_past_the_end_or_before_the_cursor_are_ignored(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    seen = [c.bounds(pin)[0]]
    for upto in (ids[1], (ids[2][0], 50), (ids[2][0] + 1000, 0), ids[0]):
        c.acknowledge(pin, upto)
        seen.append(c.bounds(pin)[0])
    return seen


@trace((0, -1))
def a_pin_ignores_its_start(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    return c.bounds(c.subscribe(ids[2], name="pin", initial=InitialPosition.Earliest))[0]


@trace(([(0, 0)], (2, 1), [(3, 0), (3, 1)]))
def trimming_moves_a_connected_reader(c: Client) -> Any:
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    ids = c.publish(1, 1)
    for _ in range(3):
        c.roll_over()
        ids += c.publish(1, 1)
    reader = c.subscribe(ids[0])
    first = c.read(reader, 1, most=1)
    pin = c.subscribe(name="pin")
    c.acknowledge(pin, ids[5])
    c.side.trim()
    moved = c.bounds(reader)[0]
    return first, moved, c.read(reader, 100)


@trace(((1, -1), [(1, 0), (1, 1)]))
def start_in_a_trimmed_ledger(c: Client) -> Any:
    c.subscribe(name="pin", initial=InitialPosition.Earliest)
    ids = c.publish(1, 1)
    c.roll_over()
    ids += c.publish(1, 1)
    c.acknowledge(c.subscribe(name="pin"), ids[2])
    c.side.trim()
    reader = c.subscribe(ids[1])
    return c.bounds(reader)[0], c.read(reader, 100)


@trace(([(0, 2), (0, 0), (0, 2)], [(0, 1), (0, 2)]))
def truncating_spares_the_current_ledger(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    reader = c.subscribe(ids[1])
    c.side.truncate()
    again = c.subscribe(ids[1])
    seen = [c.bounds(reader)[0], *c.bounds(again)[:2]]
    return seen, c.read(again, 100)


@trace(([(0, 2), (1, -1), (-1, -1)], []))
def truncating_closed_ledgers_leaves_nothing(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.roll_over()
    reader = c.subscribe(ids[1])
    c.side.truncate()
    again = c.subscribe(ids[1])
    seen = [c.bounds(reader)[0], *c.bounds(again)[:2]]
    return seen, c.read(again, 100)


COMPACTED = (("a", [b"0"]), ("b", [b"1", b"2"]), ("a", [b"3"]), ("c", [b"4"]), ("b", [b"5", b"6"]), ("c", [b""]))


@trace([(((1, -1), (1, 0), -1), [(0, 2), (0, 4), (1, 0)]), (((0, 2), (1, 0), -1), [(0, 4), (1, 0)]), [b"", b"6"]])
def the_compacted_ledger_has_the_last_message_of_each_key(c: Client) -> Any:
    ids = [c.store(make_entry(values, 1_000, key=key)) for key, values in COMPACTED]
    c.side.compact()
    c.roll_over()
    c.publish(1)
    c.side.trim()
    readers = [c.subscribe(start, compacted=True) for start in ((-1, -1), ids[3])]
    found = [(c.bounds(reader), c.read(reader, 100)) for reader in readers]
    c.flow(c.subscribe(ids[4], compacted=True), 1)
    c.deliveries()
    (batch,) = c.bodies.values()
    return [*found, list(read_entry(bytes(batch.body)).values)]


@trace(([(0, 2)], ((0, -1), (0, 4), 1), [(0, 4)]))
def trimming_spares_a_reader_of_the_compacted_ledger(c: Client) -> Any:
    for key, values in COMPACTED:
        c.store(make_entry(values, 1_000, key=key))
    c.side.compact()
    c.roll_over()
    c.lookup()
    reader = c.subscribe((-1, -1), compacted=True)
    first = c.read(reader, 1, most=1)
    c.side.trim()
    return first, c.bounds(reader), c.read(reader, 100)


@trace([((0, -1), (0, 0), -1), ((0, -1), (-1, -1), -1)])
def compaction_may_leave_nothing(c: Client) -> Any:
    found = []
    for value in (b"0", b""):
        c.store(make_entry([value], 1_000, key="a"))
        c.side.compact()
        found.append(c.bounds(c.subscribe((-1, -1), compacted=True)))
    return found


@trace((0, 1))
def seek_by_id(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    c.ask(lambda n: commands.Seek(pin, n, message_id=MessageId(*ids[2])))
    return c.bounds(c.subscribe(name="pin"))[0]


@trace(([(0, 1), (1, -1)], [(1, 0), (1, 1)]))
def seeking_to_the_first_entry_of_a_ledger(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.roll_over()
    ids += c.publish(1, 1)
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    c.ask(lambda n: commands.Seek(pin, n, message_id=MessageId(*ids[2])))
    pin = c.subscribe(name="pin")
    seen = [c.bounds(pin)[0]]
    c.acknowledge(pin, (ids[2][0], -1))
    seen.append(c.bounds(pin)[0])
    return seen, c.read(pin, 100)


@trace([-1, -1])
def unloading_closes_consumers_and_producers(c: Client) -> Any:
    c.publish(1)
    c.subscribe((-1, -1))
    c.side.unload()
    closed = [
        c._next(lambda came, kind=kind: isinstance(came, kind))
        for kind in (commands.CloseConsumer, commands.CloseProducer)
    ]
    return [one.request_id for one in closed]


@trace(16)
def a_name_in_use_is_busy(c: Client) -> Any:
    c.open_producer("p", 1)
    return c.open_producer("p", 2).error


@trace(None)
def statistics_of_an_unknown_consumer_drop_the_connection(c: Client) -> Any:
    c.publish(1)
    answer = c.ask(lambda n: commands.ConsumerStats(n, 77))
    c.side.reconnect()
    return answer


@trace(((-1, -1), (-1, -1), 2), deduplicates=True)
def a_duplicate_has_a_receipt_without_a_position(c: Client) -> Any:
    c.publish(3, 3)
    again = c.send(3, 3)
    overlap = c.send(4, 4)
    return again, overlap, c.at(*c.send(20, 1))[1]


@trace((-1, 4), deduplicates=True)
def the_highest_sequence_id_is_reported(c: Client) -> Any:
    before = c.open_producer().last_sequence_id
    c.send(0, 5)
    c.side.unload()
    c._next(lambda came: False, QUIET_SECONDS)
    return before, c.open_producer().last_sequence_id


@trace(([], True, [], True, True))
def a_terminated_topic_notifies_consumers_that_have_acknowledged_all(c: Client) -> Any:
    ids = c.publish(1, 1)
    reader = c.subscribe((-1, -1))
    c.read(reader, 100)
    behind = ids[1][0], ids[1][1] + 1
    waiting, pin = c.subscribe(behind), c.subscribe(name="pin", initial=InitialPosition.Earliest)
    before = c.ended()
    c.side.terminate()
    at_once = [waiting] == c.ended()
    later = c.subscribe(behind)
    silent = c.ended()
    c.flow(later)
    at_the_flow = [later] == c.ended()
    c.acknowledge(pin, ids[1])
    c.flow(pin)
    return before, at_once, silent, at_the_flow, [pin] == c.ended()


@trace(((((0, -1), (0, 1), -1), ((0, 1), (0, 1), -1)), True))
def a_terminated_topic_notifies_consumers_after_it_is_loaded_again(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.side.terminate()
    c.roll_over()
    reader, behind = c.subscribe((-1, -1)), c.subscribe((ids[1][0], ids[1][1] + 1))
    bounds = c.bounds(reader), c.bounds(behind)
    c.flow(reader)
    c.flow(behind)
    return bounds, [behind] == c.ended()


@trace((-1, 15))
def a_terminated_topic_refuses_producers(c: Client) -> Any:
    c.publish(1)
    c.side.terminate()
    closed = c._next(lambda came: isinstance(came, commands.CloseProducer))
    return closed.request_id, c.open_producer("q", 2).error


@trace([0, 3, 5], broker="featured")
def an_abort_before_the_first_snapshot_writes_no_marker(c: Client) -> Any:
    c.lookup(f"{COORDINATORS}-partition-0")
    c.ask(lambda n: commands.TcClientConnectRequest(n, 0))
    positions = []
    for has_entry in (False, True, False):
        least = c.ask(lambda n: commands.NewTxn(n, 60_000, 0)).txnid_least_bits
        c.ask(lambda n, least=least: commands.AddPartitionToTxn(n, least, 0, (c.side.topic,)))
        if has_entry:
            c.store(make_entry([b"a"], 1_000, producer="p", txn=(0, least)))
        c.ask(lambda n, least=least: commands.EndTxn(n, least, 0, commands.TxnAction.ABORT))
        positions.append(c.store(make_entry([b"b"], 1_000, producer="p"))[1])
    return positions


def named(*names: str) -> list[Any]:
    """Return parameters for the traces on these brokers."""
    return [
        pytest.param(found, id=name, marks=pytest.mark.slow if found.is_slow else ())
        for name, found in TRACES.items()
        if found.broker in names
    ]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("name", TRACES)
def test_the_model_does(name: str) -> None:
    world, found = World(7), TRACES[name]
    options = {**found.options, "batch_indexes": found.broker == "featured"}
    with world.running():
        assert world.run(lambda: found.run(Client(Model(world, **options)))) == found.expected


@pytest.fixture(scope="module")
def at_once(request: pytest.FixtureRequest, _pulsar_session: Any) -> Iterator[Mapping[Any, Future[object]]]:
    """Run the chosen traces on the stock broker in parallel: a trace spends most of its time waiting for silence."""
    chosen = [item.callspec.params["found"] for item in request.session.items if "at_once" in item.fixturenames]
    with ThreadPoolExecutor(TRACES_AT_ONCE) as pool:
        yield {found.run: pool.submit(done_by, _pulsar_session, found) for found in chosen}


@pytest.mark.broker
@pytest.mark.parametrize("found", named("any"))
def test_the_real_broker_does(found: Trace, at_once: Mapping[Any, Future[object]]) -> None:
    assert at_once[found.run].result() == found.expected


@pytest.mark.parametrize("found", named("featured"))
def test_the_featured_broker_does(found: Trace, pulsar_featured: Any) -> None:
    assert done_by(pulsar_featured, found) == found.expected


@pytest.mark.slow
@pytest.mark.parametrize("found", named("private"))
def test_the_private_broker_does(found: Trace, pulsar_private: Any) -> None:
    assert done_by(pulsar_private, found) == found.expected
