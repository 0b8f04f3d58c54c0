"""Traces of shared subscriptions, for `test_likeness`.

Consumers are numbered as a trace opens them; `deliveries` are (consumer, (ledger, entry), redelivery_count).
"""

from __future__ import annotations

from typing import Any

from spark_mq_source.pulsar.protocol.commands import IntRange, KeySharedMeta, KeySharedMode, SubType
from tests.simulation.pulsar.dispatch import Limits, active_name
from tests.simulation.pulsar.entries import make_chunks, make_entry
from tests.simulation.pulsar.likeness import Client, trace

ACTIVE, PASSIVE = True, False
SHARED, FAILOVER, EXCLUSIVE, KEY_SHARED = SubType.Shared, SubType.Failover, SubType.Exclusive, SubType.Key_Shared
AUTO = KeySharedMeta(KeySharedMode.AUTO_SPLIT)
CHUNKS = make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)


def sticky(*ranges: tuple[int, int]) -> KeySharedMeta:
    """Return the metadata of a sticky consumer of these hash ranges."""
    return KeySharedMeta(KeySharedMode.STICKY, tuple(IntRange(*one) for one in ranges))


def keyed(c: Client, *keys: str) -> list[tuple[int, int]]:
    """Publish a message with each key; return the positions."""
    return [
        c.store(make_entry([b"m"], 1_000, producer="p", sequence_id=100 + n, key=key)) for n, key in enumerate(keys)
    ]


# -- Shared


@trace([1, 2, 1, 2])
def shared_takes_turns(c: Client) -> Any:
    c.consume(SHARED, "a"), c.consume(SHARED, "b")
    found = []
    for _ in range(4):
        c.publish(1)
        found += [to for to, _, _ in c.deliveries(0.3)]
    return found


@trace([2, 2, 1, 1])
def a_higher_priority_comes_first(c: Client) -> Any:
    low, high = c.join(SHARED, "a", priority=2), c.join(SHARED, "b", priority=1)
    c.flow(low), c.flow(high, 2)
    found = []
    for _ in range(4):
        c.publish(1)
        found += [to for to, _, _ in c.deliveries(0.3)]
    return found


@trace([1, 0, 1])
def permits_are_messages_and_entries_are_whole(c: Client) -> Any:
    c.publish(5, 5)
    a = c.join(SHARED)
    seen = []
    for permits in (1, 4, 1):
        c.flow(a, permits)
        seen.append(len(c.deliveries()))
    return seen


@trace(
    [
        [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
        [(1, (0, 1), 1)],
        [(1, (0, 0), 1), (1, (0, 1), 2), (1, (0, 2), 1)],
        [],
    ]
)
def redelivery_is_counted(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.consume(SHARED)
    seen = [c.deliveries()]
    c.redeliver(a, ids[1])
    seen.append(c.deliveries())
    c.redeliver(a)
    seen.append(sorted(c.deliveries()))
    c.redeliver(a, (ids[0][0], 77))
    seen.append(c.deliveries())
    return seen


@trace(([(1, (0, 0), 0), (1, (0, 1), 0)], [(2, (0, 0), 0), (2, (0, 1), 0)]))
def entries_of_a_closed_consumer_go_to_others_without_a_count(c: Client) -> Any:
    a = c.join(SHARED)
    c.publish(1, 1)
    c.flow(a)
    first = c.deliveries()
    c.consume(SHARED)
    c.close_consumer(a)
    return first, c.deliveries()


@trace(([(101, (0, 0), 0), (101, (0, 1), 0)], [(1, (0, 0), 0), (1, (0, 1), 0)]))
def entries_of_a_lost_connection_go_to_others_without_a_count(c: Client) -> Any:
    other = c.another()
    a = other.join(SHARED)
    c.publish(1, 1)
    other.flow(a)
    first = other.deliveries()
    c.consume(SHARED)
    other.side.close()
    return first, c.deliveries()


@trace([[(1, (0, 0), 0)], [(1, (0, 0), 1)], [(2, (0, 0), 1)], [(3, (0, 0), 0)]])
def redelivery_counts_last_while_there_are_consumers(c: Client) -> Any:
    ids = c.publish(1)
    a, b = c.join(SHARED), c.join(SHARED)
    c.flow(a)
    seen = [c.deliveries()]
    c.redeliver(a, ids[0])
    seen.append(c.deliveries())
    c.flow(b)
    c.close_consumer(a)
    seen.append(c.deliveries())
    c.close_consumer(b)
    c.consume(SHARED)
    seen.append(c.deliveries())
    return seen


@trace(
    (
        [
            (None, (0, -1), 3, 3),
            (None, (0, 0), 2, 2),
            (None, (0, 2), 1, 1),
            (None, (0, 2), 1, 1),
            (None, (0, 2), 1, 1),
        ],
        [(2, (0, 3), 0)],
    )
)
def entries_are_acknowledged_one_by_one(c: Client) -> Any:
    ids = c.publish(1, 1, 1, 1)
    a = c.consume(SHARED)
    c.deliveries()
    steps = ([ids[2]], [ids[0]], [ids[0], ids[1]], [(ids[0][0], 50)], [(ids[0][0] + 1000, 0)])
    seen = [(c.ack(a, *some), c.bounds(a)[0], c.stats(a).unacked_messages, c.backlog(a)) for some in steps]
    c.close_consumer(a)
    c.consume(SHARED)
    return seen, c.deliveries()


@trace((None, ((0, -1), 2), [(2, (0, 1), 0), (2, (0, 2), 0)]))
def an_ack_stops_at_an_entry_past_the_end(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.consume(SHARED)
    c.deliveries()
    code = c.ack(a, ids[0], (ids[0][0], 50), ids[2])
    found = c.bounds(a)[0], c.backlog(a)
    c.close_consumer(a)
    c.consume(SHARED)
    return code, found, c.deliveries()


@trace((None, (0, -1), 2))
def a_cumulative_ack_is_ignored_and_answered(c: Client) -> Any:
    ids = c.publish(1, 1)
    a = c.consume(SHARED)
    c.deliveries()
    return c.ack(a, ids[1], cumulative=True), c.bounds(a)[0], c.backlog(a)


@trace((None, [(1, (0, 0), 0), (1, (0, 2), 0)]))
def entries_can_be_acknowledged_before_their_delivery(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.join(SHARED)
    code = c.ack(a, ids[1])
    c.flow(a)
    return code, c.deliveries()


@trace(([(1, (0, 0), 0), (1, (0, 1), 0)], None, 1, [(2, (0, 1), 0)]))
def entries_of_another_consumer_can_be_acknowledged(c: Client) -> Any:
    ids = c.publish(1, 1)
    a, b = c.join(SHARED), c.join(SHARED)
    c.flow(a)
    first = c.deliveries()
    code = c.ack(b, ids[0])
    unacked = c.stats(a).unacked_messages
    c.flow(b)
    c.close_consumer(a)
    return first, code, unacked, c.deliveries()


@trace(([(1, (0, 0), 0), (1, (0, 1), 0)], None, [(2, (0, 1), 0)]))
def entries_can_be_acknowledged_before_their_redelivery(c: Client) -> Any:
    ids = c.publish(1, 1)
    a, b = c.join(SHARED), c.join(SHARED)
    c.flow(a)
    first = c.deliveries()
    c.close_consumer(a)
    code = c.ack(b, ids[0])
    c.flow(b)
    return first, code, c.deliveries()


@trace([4, True, 0, 2, 4, 1], limits=Limits(4, 0))
def a_consumer_with_too_many_unacknowledged_messages_waits(c: Client) -> Any:
    ids = c.publish(*[1] * 12)
    a = c.consume(SHARED)
    seen: list[Any] = [len(c.deliveries()), c.stats(a).blocked_consumer_on_unacked_msgs]
    c.ack(a, ids[0])
    seen.append(len(c.deliveries()))
    c.flow(a, 1)
    c.ack(a, ids[1])
    seen += [len(c.deliveries()), c.stats(a).unacked_messages]
    c.redeliver(a, ids[2])
    seen.append(len(c.deliveries()))
    return seen


@trace([4, 0, 1, 0], limits=Limits(0, 4))
def a_subscription_with_too_many_unacknowledged_messages_waits(c: Client) -> Any:
    ids = c.publish(*[1] * 12)
    a, b = c.join(SHARED), c.join(SHARED)
    c.flow(a, 4)
    seen: list[Any] = [len(c.deliveries())]
    c.flow(b, 1)
    seen.append(len(c.deliveries()))
    c.redeliver(a, ids[0])
    seen.append(len(c.deliveries()))
    c.ack(a, *ids[:3])
    seen.append(len(c.deliveries()))
    return seen


@trace(([None, None, 6], [(1, (0, 0), 1), (1, (0, 1), 1)], [(), ()]))
def half_a_batch_cannot_be_acknowledged(c: Client) -> Any:
    ids = c.publish(3, 3)
    a = c.consume(SHARED)
    c.deliveries()
    seen: list[Any] = [c.ack(a, ids[0], ack_set=[0b110]), c.ack(a, ids[1], ack_set=[0]), c.stats(a).unacked_messages]
    c.redeliver(a)
    return seen, c.deliveries(), [c.bodies[one].ack_set for one in ids]


@trace(([None, 5, None, None, 2], [(1, (0, 0), 1)], [(6,), ()], (12, 2), (0, 1), 0), broker="featured")
def half_a_batch_can_be_acknowledged(c: Client) -> Any:
    ids = c.publish(3, 3)
    a = c.consume(SHARED, permits=20)
    c.deliveries()
    seen: list[Any] = [c.ack(a, ids[0], ack_set=[0b110]), c.stats(a).unacked_messages]
    seen += [c.ack(a, ids[1], ack_set=[0b011]), c.ack(a, ids[1], ack_set=[0b100]), c.stats(a).unacked_messages]
    c.redeliver(a)
    again, sets = c.deliveries(), [c.bodies[one].ack_set for one in ids]
    rest = c.stats(a).available_permits, c.stats(a).unacked_messages
    c.ack(a, ids[0])
    return seen, again, sets, rest, c.bounds(a)[0], c.backlog(a)


@trace([1, 1, 1])
def chunks_go_to_one_consumer(c: Client) -> Any:
    c.consume(SHARED, "a"), c.consume(SHARED, "b")
    for one in CHUNKS:
        c.store(one)
    return [to for to, _, _ in c.deliveries()]


@trace(([(1, (0, 0), 0)], [], [], [(3, (0, 0), 0), (3, (0, 1), 0), (3, (0, 2), 0)]))
def chunks_of_a_consumer_that_is_gone(c: Client) -> Any:
    a = c.consume(SHARED, "a")
    c.store(CHUNKS[0])
    first = c.deliveries()
    b = c.consume(SHARED, "b")
    c.close_consumer(a)
    again = c.deliveries()
    c.store(CHUNKS[1]), c.store(CHUNKS[2])
    rest = c.deliveries()
    c.close_consumer(b)
    c.consume(SHARED, "c")
    return first, again, rest, c.deliveries()


# This lasts until the topic is loaded again.
@trace([[(1, (0, 0), 0), (1, (0, 1), 0)], [], [], [], []])
def chunks_of_the_only_consumer_that_is_gone(c: Client) -> Any:
    a = c.consume(SHARED, "a", permits=2)
    c.store(CHUNKS[0]), c.store(CHUNKS[1])
    seen = [c.deliveries()]
    c.close_consumer(a)
    for _ in range(2):
        b = c.consume(SHARED, "b")
        seen.append(c.deliveries())
        c.close_consumer(b)
    c.store(CHUNKS[2])
    for _ in range(2):
        b = c.consume(SHARED, "b")
        seen.append(c.deliveries())
        c.close_consumer(b)
    return seen


# They are sent to the consumer that left, for each of its permits, until the message's last chunk.
@trace(
    [
        *([(False, 0)], *[[(True, n) for n in range(4)]] * 3),
        *([(False, 0), (False, 1)], [(False, 0)], [], []),
        *([(False, 0), (False, 1)], [(False, 0), (False, 1)], [(False, 0)], [(True, n) for n in range(4)]),
    ],
    is_slow=True,
)
def chunks_of_a_consumer_that_left_with_permits(c: Client) -> Any:
    seen = []
    for number, (permits, late) in enumerate(((1, 0), (3, 2), (5, 2))):
        chunks = make_chunks(b"x" * 24, 4, 1_000, producer="p", sequence_id=50 + number)
        a = c.consume(SHARED, "a", permits=2)
        ids = [c.store(chunks[0]), c.store(chunks[1])]
        c.deliveries()
        c.flow(a, permits)
        c.close_consumer(a)
        for joins in range(4):
            if joins == late:
                ids += [c.store(chunks[2]), c.store(chunks[3])]
            b = c.consume(SHARED, "b")
            seen.append([(to == b, position[1] - ids[0][1]) for to, position, _ in c.deliveries()])
            c.close_consumer(b)
        c.ack(c.join(SHARED), *ids)
        c.close_consumer(c._consumer_id)
    return seen


@trace(
    (
        [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
        [],
        [(1, (0, 0), 1), (1, (0, 1), 1), (1, (0, 2), 1)],
    )
)
def a_chunk_without_the_first(c: Client) -> Any:
    a = c.consume(SHARED, "a")
    ids = [c.store(one) for one in CHUNKS]
    first = c.deliveries()
    c.redeliver(a, ids[1])
    alone = c.deliveries()
    c.redeliver(a)
    return first, alone, c.deliveries()


# Entries after them are not delivered to the connected consumers, either.
@trace([[(1, (0, 0), 0)], [], [], [(3, (0, n), 0) for n in range(4)]])
def stranded_chunks_are_delivered_after_the_topic_is_loaded_again(c: Client) -> Any:
    a = c.consume(SHARED, "a", permits=1)
    for one in CHUNKS:
        c.store(one)
    seen = [c.deliveries()]
    c.consume(SHARED, "b")
    c.close_consumer(a)
    seen.append(c.deliveries())
    c.publish(1)
    seen.append(c.deliveries())
    c.roll_over()
    c.consume(SHARED, "c")
    seen.append(c.deliveries())
    return seen


@trace([[(1, (0, n), 0) for n in range(3)], None, [(2, (0, 0), 0), (2, (0, 2), 0)]])
def one_chunk_can_be_acknowledged_by_itself(c: Client) -> Any:
    ids = [c.store(one) for one in CHUNKS]
    a = c.consume(SHARED, "a")
    seen: list[Any] = [c.deliveries(), c.ack(a, ids[1])]
    c.close_consumer(a)
    c.consume(SHARED, "b")
    seen.append(c.deliveries())
    return seen


# Entries that are read together with them are delivered, and later ones are not.
@trace([[(1, (0, 0), 0)], None, [(2, (0, 3), 0)], [], []])
def chunks_without_the_first_block_other_entries(c: Client) -> Any:
    ids = [c.store(one) for one in CHUNKS]
    c.publish(1)
    a = c.consume(SHARED, "a", permits=1)
    seen: list[Any] = [c.deliveries(), c.ack(a, ids[0])]
    c.close_consumer(a)
    b = c.consume(SHARED, "b")
    seen.append(c.deliveries())
    c.publish(1)
    seen.append(c.deliveries())
    c.close_consumer(b)
    c.consume(SHARED, "c", permits=1)
    seen.append(c.deliveries())
    return seen


# -- delayed delivery


@trace(
    (
        [[(1, (0, 1), 0), (1, (0, 2), 0)], 3, 2, 0, []],
        [(2, (0, 1), 0), (2, (0, 2), 0)],
    )
)
def a_delayed_message_waits(c: Client) -> Any:
    c.delayed(600)
    c.publish(1, 1)
    a = c.consume(SHARED, permits=2)
    seen = [c.deliveries(), c.backlog(a), c.stats(a).unacked_messages, c.stats(a).available_permits]
    c.redeliver(a)
    seen.append(c.deliveries())
    c.close_consumer(a)
    c.consume(SHARED)
    return seen, c.deliveries()


@trace([(1, (0, 1), 0)], limits=Limits(tick_seconds=60.0))
def a_delay_within_a_tick_is_ignored(c: Client) -> Any:
    c.delayed(600)
    c.delayed(30)
    c.consume(SHARED)
    return c.deliveries()


@trace(([(1, (0, 1), 0)], [(1, (0, 0), 0)], False), is_slow=True)
def a_delayed_message_is_delivered_when_it_is_due(c: Client) -> Any:
    c.consume(SHARED)
    _late, at = c.delayed(6)
    c.publish(1)
    first = c.deliveries()
    then = c.deliveries(30.0, most=1)
    is_early = c.side.wall() < at - 1.0
    return first, then, is_early


@trace(([], None, 0, (0, 0)))
def a_delayed_message_can_be_acknowledged_before_it_is_due(c: Client) -> Any:
    late, _ = c.delayed(600)
    a = c.consume(SHARED)
    return c.deliveries(), c.ack(a, late), c.backlog(a), c.bounds(a)[0]


@trace(([(1, (0, 1), 0)], [(2, (0, 1), 0)]))
def a_delay_outlives_an_unload(c: Client) -> Any:
    c.delayed(600)
    c.publish(1)
    c.consume(SHARED)
    first = c.deliveries()
    c.roll_over()
    c.consume(SHARED)
    return first, c.deliveries()


@trace(([(1, (0, 1), 0)], [(2, (0, 1), 0)]), broker="private")
def a_delay_outlives_a_kill(c: Client) -> Any:
    c.delayed(600)
    c.publish(1)
    c.consume(SHARED)
    first = c.deliveries()
    c.side.kill()
    c.reconnect()
    c.consume(SHARED)
    return first, c.deliveries()


@trace([(1, (0, 0), 0), (1, (0, 1), 0)])
def exclusive_ignores_delays(c: Client) -> Any:
    c.delayed(600)
    c.publish(1)
    c.consume(EXCLUSIVE)
    return c.deliveries()


@trace(([(1, ACTIVE)], [(1, (0, 0), 0), (1, (0, 1), 0)]), is_slow=True)
def failover_ignores_delays(c: Client) -> Any:
    c.delayed(600)
    c.publish(1)
    c.consume(FAILOVER)
    return c.changes(2.0), c.deliveries()


@trace([(1, (0, 1), 0), (1, (0, 2), 0)])
def a_delayed_message_does_not_block_its_key(c: Client) -> Any:
    c.delayed(600, key="k1")
    keyed(c, "k1", "k2")
    c.consume(KEY_SHARED, "alpha", meta=AUTO)
    return c.deliveries()


# -- types of subscriptions and restarts


@trace([-5, -5, -5, -5, -5, 0, -5, -5, -5, -5, 0, -5, -5, -5, -5, 0])
def types_do_not_mix(c: Client) -> Any:
    seen = []
    for held in (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED):
        mine = c.join(held, meta=AUTO if held is KEY_SHARED else None)
        for kind in SubType:
            got = c.join(kind, meta=AUTO if kind is KEY_SHARED else None)
            seen.append(min(got, 0))
            if got > 0:
                c.close_consumer(got)
        c.close_consumer(mine)
    return seen


@trace([(2, (0, 0), 0), (2, (0, 2), 0)])
def an_unload_resets_redelivery_counts(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.consume(SHARED)
    c.deliveries()
    c.ack(a, ids[1])
    c.redeliver(a, ids[2])
    c.deliveries()
    c.roll_over()
    c.consume(SHARED)
    return c.deliveries()


# The first acknowledgements in ten seconds are on disk, after a gap too; the rest is not.
@trace(([None, None, None], [(2, (0, n), 0) for n in (0, 2, 4, 5, 6, 7)], (0, -1)), broker="private")
def a_killed_broker_forgets_acknowledgements(c: Client) -> Any:
    ids = c.publish(*[1] * 8)
    a = c.consume(SHARED)
    c.deliveries()
    seen = [c.ack(a, ids[1], ids[3])]
    c.deliveries()  # until it is on disk
    seen += [c.ack(a, ids[0]), c.ack(a, *ids[4:])]
    c.side.kill()
    c.reconnect()
    b = c.consume(SHARED)
    return seen, c.deliveries(), c.bounds(b)[0]


# -- Failover and Exclusive


@trace(
    [
        [(1, ACTIVE)],
        [(1, (0, 0), 0), (1, (0, 1), 0)],
        [(2, PASSIVE)],
        [],
        [(2, ACTIVE)],
        [(2, (0, 1), 0)],
    ],
    is_slow=True,
)
def one_failover_consumer_is_active(c: Client) -> Any:
    first, second = names_in_order(c)
    ids = c.publish(1, 1)
    a = c.consume(FAILOVER, first)
    seen: list[Any] = [c.changes(2.0), c.deliveries()]
    c.consume(FAILOVER, second)
    seen += [c.changes(2.0), c.deliveries()]
    c.ack(a, ids[0])
    c.close_consumer(a)
    seen += [c.changes(2.0), c.deliveries()]
    return seen


@trace(
    [
        [(1, ACTIVE)],
        [(1, (0, 0), 0), (1, (0, 1), 0)],
        [],
        [(1, PASSIVE), (2, ACTIVE)],
        [(2, (0, 1), 0), (2, (0, 2), 0)],
        (0, 1),
    ],
    is_slow=True,
)
def a_consumer_before_the_active_one_takes_over(c: Client) -> Any:
    first, second = names_in_order(c)
    ids = c.publish(1, 1)
    a = c.consume(FAILOVER, second)
    seen: list[Any] = [c.changes(2.0), c.deliveries()]
    b = c.consume(FAILOVER, first)
    c.publish(1)
    # It has a second to acknowledge its entries, regardless of `PATIENCE`.
    c.ack(a, ids[0])
    seen += [c.deliveries(0.5 / c.side.patience), sorted(c.changes(2.0)), c.deliveries()]
    c.ack(a, ids[1])
    seen += [c.bounds(b)[0]]
    return seen


def names_in_order(c: Client) -> tuple[str, str]:
    """Return two names, of which the first is active if both are connected: the topic's ring of hashes decides."""
    first = active_name(c.side.topic, ["a", "b"])
    return first, "b" if first == "a" else "a"


@trace(([(2, PASSIVE), (3, PASSIVE), (1, ACTIVE)], [(1, (0, 0), 0)]), partition=2)
def partitions_are_distributed_by_name(c: Client) -> Any:
    z, a, b = c.join(FAILOVER, "z"), c.join(FAILOVER, "a"), c.join(FAILOVER, "b")
    changes = c.changes(2.5)
    for one in (z, a, b):
        c.flow(one)
    c.publish(1)
    return changes, c.deliveries()


@trace((1, 2, [(2, ACTIVE), (1, PASSIVE)]), is_slow=True)
def priority_decides_who_is_active(c: Client) -> Any:
    a = c.join(FAILOVER, "a", priority=1)
    c.changes(2.0)
    b = c.join(FAILOVER, "b", priority=0)
    return a, b, c.changes(2.5)


@trace([(1, (0, 0), 0), (1, (0, 2), 0)], is_slow=True)
def failover_redelivers_all_unacknowledged_entries(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.consume(FAILOVER, "a")
    c.changes(2.0)
    c.deliveries()
    c.ack(a, ids[1])
    c.redeliver(a, ids[2])
    return c.deliveries()


@trace(([None, (0, -1), None, (0, 1)], [(1, (0, 2), 0)]))
def exclusive_acknowledges_one_by_one_too(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.consume(EXCLUSIVE)
    c.deliveries()
    seen = [c.ack(a, ids[1]), c.bounds(a)[0], c.ack(a, ids[0]), c.bounds(a)[0]]
    c.redeliver(a)
    return seen, c.deliveries()


@trace(([(None, (0, -1), 4), (None, (0, 3), 1), (None, (0, 3), 1)], [(2, (0, 4), 0)]))
def a_cumulative_ack_covers_all_entries_before(c: Client) -> Any:
    ids = c.publish(1, 1, 1, 1, 1)
    a = c.consume(EXCLUSIVE, permits=4)
    c.deliveries()
    steps = ((ids[3], False), (ids[2], True), (ids[0], True))
    seen = [(c.ack(a, one, cumulative=is_all), c.bounds(a)[0], c.backlog(a)) for one, is_all in steps]
    c.close_consumer(a)
    c.consume(EXCLUSIVE)
    return seen, c.deliveries()


@trace(
    [
        [(1, ACTIVE)],
        [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
        [(1, PASSIVE), (2, ACTIVE)],
        [(2, (0, 0), 0), (2, (0, 1), 0), (2, (0, 2), 0)],
        (0, 1),
        1,
    ]
)
def a_cumulative_ack_of_a_consumer_that_is_no_longer_active(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.consume(FAILOVER, "a", priority=1)
    seen: list[Any] = [c.changes(2.0), c.deliveries()]
    b = c.consume(FAILOVER, "b", priority=0)
    # All unacknowledged entries are delivered to the consumer that is active now.
    seen += [sorted(c.changes(2.5)), c.deliveries()]
    c.ack(a, ids[1], cumulative=True)
    return [*seen, c.bounds(b)[0], c.backlog(b)]


# -- Key_Shared

KEYS = [f"k{n}" for n in range(12)]


@trace([2, 2, 1, 1, 1, 3, 2, 1, 2, 2, 2, 2])
def keys_are_split_by_a_ring_of_names(c: Client) -> Any:
    a, b, b2 = (c.join(KEY_SHARED, name, meta=AUTO) for name in ("alpha", "beta", "beta"))
    for one in (a, b, b2):
        c.flow(one)
    keyed(c, *KEYS)
    to = {position[1]: consumer for consumer, position, _ in c.deliveries()}
    return [to[n] for n in range(len(KEYS))]


@trace([2, 2, 1, 1, 2, 2, 1, 1, 2])
def a_message_without_a_key_is_hashed_by_producer_and_sequence_id(c: Client) -> Any:
    c.consume(KEY_SHARED, "alpha", meta=AUTO), c.consume(KEY_SHARED, "beta", meta=AUTO)
    c.publish(*[1] * 8, 3)
    to = {position[1]: consumer for consumer, position, _ in c.deliveries()}
    return [to[n] for n in range(9)]


@trace(
    (
        list(range(12)),
        [(1, 14), (1, 15), (1, 16), (1, 19)],
        [(2, 12), (2, 13), (2, 17), (2, 18), (2, 20), (2, 21), (2, 22), (2, 23)],
    )
)
def a_key_stays_with_its_consumer_until_it_is_acknowledged(c: Client) -> Any:
    a = c.consume(KEY_SHARED, "alpha", meta=AUTO)
    ids = keyed(c, *KEYS)
    first = c.of(a)
    c.consume(KEY_SHARED, "beta", meta=AUTO)
    keyed(c, *KEYS)
    second = sorted((to, position[1]) for to, position, _ in c.deliveries())
    c.ack(a, *ids)
    return first, second, sorted((to, position[1]) for to, position, _ in c.deliveries())


@trace(
    (
        [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0), (1, (0, 3), 0)],
        [(1, (0, 0), 1)],
        [(1, (0, 4), 0), (1, (0, 5), 0)],
    )
)
def a_key_is_redelivered_in_order(c: Client) -> Any:
    a = c.consume(KEY_SHARED, "alpha", meta=AUTO, permits=4)
    ids = keyed(c, "k1", "k1", "k2", "k1", "k1", "k2")
    first = c.deliveries()
    c.redeliver(a, ids[0])
    c.flow(a, 1)
    second = c.deliveries()
    c.flow(a, 100)
    return first, second, c.deliveries()


@trace(
    (
        [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
        [],
        [(2, (0, 0), 0), (2, (0, 1), 0), (2, (0, 2), 0), (2, (0, 3), 0), (2, (0, 4), 0)],
    )
)
def keys_of_a_closed_consumer_are_redelivered_in_order(c: Client) -> Any:
    a = c.consume(KEY_SHARED, "alpha", meta=AUTO, permits=3)
    keyed(c, "k1", "k2", "k1", "k1", "k2")
    first = c.deliveries()
    c.consume(KEY_SHARED, "beta", meta=AUTO)
    second = c.deliveries()
    c.close_consumer(a)
    return first, second, c.deliveries()


@trace(([-19, -19, -5, -19], [0, 1, 4, 6, 8, 10, 11], [2, 3, 5, 7, 9], []))
def sticky_consumers_declare_their_ranges(c: Client) -> Any:
    low = c.consume(KEY_SHARED, meta=sticky((0, 30000)))
    refused = [
        c.join(KEY_SHARED, meta=meta) for meta in (sticky((20000, 40000)), sticky(), AUTO, sticky((40000, 30001)))
    ]
    keyed(c, *KEYS)
    first = c.of(low)
    high = c.consume(KEY_SHARED, meta=sticky((30001, 65535)))
    second = c.of(high)
    c.close_consumer(low)
    return refused, first, second, c.deliveries()
