"""Subscriptions that consumers share, on the model and on the real broker: see `test_likeness`.

Consumers are numbered as a trace opens them; `deliveries` are (consumer, (ledger, entry), redelivery_count).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.commands import IntRange, KeySharedMeta, KeySharedMode, SubType
from tests.simulation.pulsar.dispatch import Limits, active_name
from tests.simulation.pulsar.entries import make_chunks, make_entry
from tests.simulation.pulsar.likeness import Client, Model, done_by
from tests.simulation.world import World

SHARED, FAILOVER, EXCLUSIVE, KEY_SHARED = SubType.Shared, SubType.Failover, SubType.Exclusive, SubType.Key_Shared
AUTO = KeySharedMeta(KeySharedMode.AUTO_SPLIT)


def sticky(*ranges: tuple[int, int]) -> KeySharedMeta:
    """For a consumer of these hashes."""
    return KeySharedMeta(KeySharedMode.STICKY, tuple(IntRange(*one) for one in ranges))


def keyed(c: Client, *keys: str) -> list[tuple[int, int]]:
    """Publishes a message of each key."""
    return [
        c.store(make_entry([b"m"], 1_000, producer="p", sequence_id=100 + n, key=key)) for n, key in enumerate(keys)
    ]


# -- Shared


def shared_takes_turns(c: Client) -> Any:
    a, b = c.join(SHARED, "a"), c.join(SHARED, "b")
    c.flow(a), c.flow(b)
    found = []
    for _ in range(4):
        c.publish(1)
        found += [to for to, _, _ in c.deliveries(0.3)]
    return found


def a_higher_priority_comes_first(c: Client) -> Any:
    low, high = c.join(SHARED, "a", priority=2), c.join(SHARED, "b", priority=1)
    c.flow(low), c.flow(high, 2)
    found = []
    for _ in range(4):
        c.publish(1)
        found += [to for to, _, _ in c.deliveries(0.3)]
    return found


def permits_are_messages_and_entries_are_whole(c: Client) -> Any:
    c.publish(5, 5)
    a = c.join(SHARED)
    seen = []
    for permits in (1, 4, 1):
        c.flow(a, permits)
        seen.append(len(c.deliveries()))
    return seen


def redelivery_is_counted(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.join(SHARED)
    c.flow(a)
    seen = [c.deliveries()]
    c.redeliver(a, ids[1])
    seen.append(c.deliveries())
    c.redeliver(a)
    seen.append(sorted(c.deliveries()))
    c.redeliver(a, (ids[0][0], 77))
    seen.append(c.deliveries())
    return seen


def what_a_closed_consumer_had_goes_to_others_uncounted(c: Client) -> Any:
    a = c.join(SHARED)
    ids = c.publish(1, 1)
    c.meet(*ids)
    c.flow(a)
    first = c.deliveries()
    b = c.join(SHARED)
    c.flow(b)
    c.close_consumer(a)
    return first, c.deliveries()


def what_a_lost_connection_had_goes_to_others_uncounted(c: Client) -> Any:
    other = c.another()
    a = other.join(SHARED)
    ids = c.publish(1, 1)
    c.meet(*ids)
    other.flow(a)
    first = other.deliveries()
    b = c.join(SHARED)
    c.flow(b)
    other.side.close()
    return first, c.deliveries()


def counts_stay_with_others_only(c: Client) -> Any:
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
    last = c.join(SHARED)
    c.flow(last)
    seen.append(c.deliveries())
    return seen


def acknowledged_one_by_one(c: Client) -> Any:
    ids = c.publish(1, 1, 1, 1)
    c.meet(*ids)
    a = c.join(SHARED)
    c.flow(a)
    c.deliveries()
    steps = ([ids[2]], [ids[0]], [ids[0], ids[1]], [(ids[0][0], 50)], [(ids[0][0] + 1000, 0)])
    seen = [(c.ack(a, *some), c.bounds(a)[0], c.stats(a).unacked_messages, c.backlog(a)) for some in steps]
    c.close_consumer(a)
    b = c.join(SHARED)
    c.flow(b)
    return seen, c.deliveries()


def one_past_the_end_takes_the_command_with_it(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    a = c.join(SHARED)
    c.flow(a)
    c.deliveries()
    code = c.ack(a, ids[0], (ids[0][0], 50), ids[2])
    found = c.bounds(a)[0], c.backlog(a)
    c.close_consumer(a)
    b = c.join(SHARED)
    c.flow(b)
    return code, found, c.deliveries()


def cumulative_is_ignored_and_answered(c: Client) -> Any:
    ids = c.publish(1, 1)
    a = c.join(SHARED)
    c.flow(a)
    c.deliveries()
    return c.ack(a, ids[1], cumulative=True), c.bounds(a)[0], c.backlog(a)


def what_was_never_delivered_can_be_acknowledged(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    a = c.join(SHARED)
    code = c.ack(a, ids[1])
    c.flow(a)
    return code, c.deliveries()


def what_another_has_can_be_acknowledged(c: Client) -> Any:
    ids = c.publish(1, 1)
    a, b = c.join(SHARED), c.join(SHARED)
    c.flow(a)
    first = c.deliveries()
    code = c.ack(b, ids[0])
    unacked = c.stats(a).unacked_messages
    c.flow(b)
    c.close_consumer(a)
    return first, code, unacked, c.deliveries()


def what_comes_back_can_be_acknowledged_before_it_comes(c: Client) -> Any:
    ids = c.publish(1, 1)
    a, b = c.join(SHARED), c.join(SHARED)
    c.flow(a)
    first = c.deliveries()
    c.close_consumer(a)
    code = c.ack(b, ids[0])
    c.flow(b)
    return first, code, c.deliveries()


def a_consumer_with_too_much_unacknowledged_waits(c: Client) -> Any:
    ids = c.publish(*[1] * 12)
    a = c.join(SHARED)
    c.flow(a)
    seen: list[Any] = [len(c.deliveries()), c.stats(a).blocked_consumer_on_unacked_msgs]
    c.ack(a, ids[0])
    seen.append(len(c.deliveries()))
    c.flow(a, 1)
    c.ack(a, ids[1])
    seen += [len(c.deliveries()), c.stats(a).unacked_messages]
    c.redeliver(a, ids[2])
    seen.append(len(c.deliveries()))
    return seen


def a_subscription_with_too_much_unacknowledged_waits(c: Client) -> Any:
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


def half_a_batch_cannot_be_acknowledged(c: Client) -> Any:
    ids = c.publish(3, 3)
    c.meet(*ids)
    a = c.join(SHARED)
    c.flow(a)
    c.deliveries()
    seen: list[Any] = [c.ack(a, ids[0], ack_set=[0b110]), c.ack(a, ids[1], ack_set=[0]), c.stats(a).unacked_messages]
    c.redeliver(a)
    return seen, c.deliveries(), [c.bodies[one].ack_set for one in ids]


def half_a_batch_can_be_acknowledged(c: Client) -> Any:
    ids = c.publish(3, 3)
    c.meet(*ids)
    a = c.join(SHARED)
    c.flow(a, 20)
    c.deliveries()
    seen: list[Any] = [c.ack(a, ids[0], ack_set=[0b110]), c.stats(a).unacked_messages]
    seen += [c.ack(a, ids[1], ack_set=[0b011]), c.ack(a, ids[1], ack_set=[0b100]), c.stats(a).unacked_messages]
    c.redeliver(a)
    again, sets = c.deliveries(), [c.bodies[one].ack_set for one in ids]
    rest = c.stats(a).available_permits, c.stats(a).unacked_messages
    c.ack(a, ids[0])
    return seen, again, sets, rest, c.bounds(a)[0], c.backlog(a)


def chunks_go_to_one_consumer(c: Client) -> Any:
    a, b = c.join(SHARED, "a"), c.join(SHARED, "b")
    c.flow(a), c.flow(b)
    for one in (*make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50),):
        c.store(one)
    return [to for to, _, _ in c.deliveries()]


def chunks_of_a_consumer_that_is_gone(c: Client) -> Any:
    chunks = make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)
    a = c.join(SHARED, "a")
    c.flow(a)
    c.store(chunks[0])
    first = c.deliveries()
    b = c.join(SHARED, "b")
    c.flow(b)
    c.close_consumer(a)
    again = c.deliveries()
    c.store(chunks[1]), c.store(chunks[2])
    rest = c.deliveries()
    c.close_consumer(b)
    last = c.join(SHARED, "c")
    c.flow(last)
    return first, again, rest, c.deliveries()


def chunks_of_the_only_consumer_that_is_gone(c: Client) -> Any:
    chunks = make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)
    a = c.join(SHARED, "a")
    c.flow(a, 2)
    c.store(chunks[0]), c.store(chunks[1])
    seen = [c.deliveries()]
    c.close_consumer(a)
    for _ in range(2):
        b = c.join(SHARED, "b")
        c.flow(b)
        seen.append(c.deliveries())
        c.close_consumer(b)
    c.store(chunks[2])
    for _ in range(2):
        b = c.join(SHARED, "b")
        c.flow(b)
        seen.append(c.deliveries())
        c.close_consumer(b)
    return seen


def chunks_of_a_consumer_that_left_with_permits(c: Client) -> Any:
    seen = []
    for number, (permits, late) in enumerate(((1, 0), (3, 2), (5, 2))):
        chunks = make_chunks(b"x" * 24, 4, 1_000, producer="p", sequence_id=50 + number)
        a = c.join(SHARED, "a")
        c.flow(a, 2)
        ids = [c.store(chunks[0]), c.store(chunks[1])]
        c.deliveries()
        c.flow(a, permits)
        c.close_consumer(a)
        for joins in range(4):
            if joins == late:
                ids += [c.store(chunks[2]), c.store(chunks[3])]
            b = c.join(SHARED, "b")
            c.flow(b)
            seen.append([(to == b, position[1] - ids[0][1]) for to, position, _ in c.deliveries()])
            c.close_consumer(b)
        c.ack(c.join(SHARED), *ids)
        c.close_consumer(c._consumer_id)
    return seen


def a_chunk_without_the_first(c: Client) -> Any:
    a = c.join(SHARED, "a")
    c.flow(a)
    ids = [c.store(one) for one in make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)]
    first = c.deliveries()
    c.redeliver(a, ids[1])
    alone = c.deliveries()
    c.redeliver(a)
    return first, alone, c.deliveries()


def stranded_chunks_come_when_the_topic_is_loaded_anew(c: Client) -> Any:
    chunks = make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)
    a = c.join(SHARED, "a")
    c.flow(a, 1)
    ids = [c.store(one) for one in chunks]
    c.meet(*ids)
    seen = [c.deliveries()]
    b = c.join(SHARED, "b")
    c.flow(b)
    c.close_consumer(a)
    seen.append(c.deliveries())
    c.publish(1)
    seen.append(c.deliveries())
    c.roll_over()
    last = c.join(SHARED, "c")
    c.flow(last)
    seen.append(c.deliveries())
    return seen


def one_chunk_can_be_acknowledged_by_itself(c: Client) -> Any:
    ids = [c.store(one) for one in make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)]
    c.meet(*ids)
    a = c.join(SHARED, "a")
    c.flow(a)
    seen: list[Any] = [c.deliveries(), c.ack(a, ids[1])]
    c.close_consumer(a)
    b = c.join(SHARED, "b")
    c.flow(b)
    seen.append(c.deliveries())
    return seen


def chunks_without_the_first_hold_others_back(c: Client) -> Any:
    ids = [c.store(one) for one in make_chunks(b"x" * 9, 3, 1_000, producer="p", sequence_id=50)]
    c.meet(*ids)
    c.publish(1)
    a = c.join(SHARED, "a")
    c.flow(a, 1)
    seen: list[Any] = [c.deliveries(), c.ack(a, ids[0])]
    c.close_consumer(a)
    b = c.join(SHARED, "b")
    c.flow(b)
    seen.append(c.deliveries())
    c.publish(1)
    seen.append(c.deliveries())
    c.close_consumer(b)
    last = c.join(SHARED, "c")
    c.flow(last, 1)
    seen.append(c.deliveries())
    return seen


# -- delayed delivery


def a_delayed_message_waits(c: Client) -> Any:
    late, _ = c.delayed(600)
    c.meet(late)
    c.publish(1, 1)
    a = c.join(SHARED)
    c.flow(a, 2)
    seen = [c.deliveries(), c.backlog(a), c.stats(a).unacked_messages, c.stats(a).available_permits]
    c.redeliver(a)
    seen.append(c.deliveries())
    c.close_consumer(a)
    b = c.join(SHARED)
    c.flow(b)
    return seen, c.deliveries()


def a_delay_within_a_tick_is_none(c: Client) -> Any:
    first, _ = c.delayed(600)
    c.meet(first)
    c.delayed(30)
    a = c.join(SHARED)
    c.flow(a)
    return c.deliveries()


def a_delayed_message_comes_when_it_is_due(c: Client) -> Any:
    a = c.join(SHARED)
    c.flow(a)
    late, at = c.delayed(6)
    c.meet(late)
    c.publish(1)
    first = c.deliveries()
    then = c.deliveries(30.0, most=1)
    is_early = c.side.wall() < at - 1.0
    return first, then, is_early


def a_delayed_message_can_be_acknowledged_before_it_is_due(c: Client) -> Any:
    late, _ = c.delayed(600)
    c.meet(late)
    a = c.join(SHARED)
    c.flow(a)
    return c.deliveries(), c.ack(a, late), c.backlog(a), c.bounds(a)[0]


def a_delay_outlives_an_unload(c: Client) -> Any:
    late, _ = c.delayed(600)
    c.meet(late)
    c.publish(1)
    a = c.join(SHARED)
    c.flow(a)
    first = c.deliveries()
    c.roll_over()
    b = c.join(SHARED)
    c.flow(b)
    return first, c.deliveries()


def a_delay_outlives_a_kill(c: Client) -> Any:
    late, _ = c.delayed(600)
    c.meet(late)
    c.publish(1)
    a = c.join(SHARED)
    c.flow(a)
    first = c.deliveries()
    c.side.kill()
    c.reconnect()
    b = c.join(SHARED)
    c.flow(b)
    return first, c.deliveries()


def a_delay_is_nothing_to_exclusive(c: Client) -> Any:
    late, _ = c.delayed(600)
    c.meet(late)
    c.publish(1)
    a = c.join(EXCLUSIVE)
    c.flow(a)
    return c.deliveries()


def a_delay_is_nothing_to_failover(c: Client) -> Any:
    late, _ = c.delayed(600)
    c.meet(late)
    c.publish(1)
    a = c.join(FAILOVER)
    c.flow(a)
    return c.changes(2.0), c.deliveries()


def a_delayed_message_does_not_hold_its_key_back(c: Client) -> Any:
    late, _ = c.delayed(600, key="k1")
    c.meet(late)
    keyed(c, "k1", "k2")
    a = c.join(KEY_SHARED, "alpha", meta=AUTO)
    c.flow(a)
    return c.deliveries()


# -- who may join


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


def only_the_last_one_unsubscribes(c: Client) -> Any:
    c.publish(1)
    a, b = c.join(SHARED), c.join(SHARED)
    refused = c.ask(lambda n: commands.Unsubscribe(a, n))
    c.close_consumer(b)
    done = c.ask(lambda n: commands.Unsubscribe(a, n))
    again = c.join(SHARED)
    c.flow(again)
    return refused.error, type(done).__name__, len(c.deliveries())


def unloading_puts_everything_back_uncounted(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    a = c.join(SHARED)
    c.flow(a)
    c.deliveries()
    c.ack(a, ids[1])
    c.redeliver(a, ids[2])
    c.deliveries()
    c.roll_over()
    b = c.join(SHARED)
    c.flow(b)
    return c.deliveries()


def a_killed_broker_forgets_acknowledgements(c: Client) -> Any:
    ids = c.publish(*[1] * 8)
    c.meet(*ids)
    a = c.join(SHARED)
    c.flow(a)
    c.deliveries()
    seen = [c.ack(a, ids[1], ids[3])]
    c.deliveries()  # until it is on disk
    seen += [c.ack(a, ids[0]), c.ack(a, *ids[4:])]
    c.side.kill()
    c.reconnect()
    b = c.join(SHARED)
    c.flow(b)
    return seen, c.deliveries(), c.bounds(b)[0]


# -- Failover and Exclusive


def one_of_failover_is_active(c: Client) -> Any:
    first, second = names_in_order(c)
    ids = c.publish(1, 1)
    c.meet(*ids)
    a = c.join(FAILOVER, first)
    c.flow(a)
    seen: list[Any] = [c.changes(2.0), c.deliveries()]
    b = c.join(FAILOVER, second)
    c.flow(b)
    seen += [c.changes(2.0), c.deliveries()]
    c.ack(a, ids[0])
    c.close_consumer(a)
    seen += [c.changes(2.0), c.deliveries()]
    return seen


def who_comes_before_takes_over(c: Client) -> Any:
    first, second = names_in_order(c)
    ids = c.publish(1, 1)
    c.meet(*ids)
    a = c.join(FAILOVER, second)
    c.flow(a)
    seen: list[Any] = [c.changes(2.0), c.deliveries()]
    b = c.join(FAILOVER, first)
    c.flow(b)
    c.publish(1)
    # It has a second to acknowledge what it has, however patient one is.
    c.ack(a, ids[0])
    seen += [c.deliveries(0.5 / c.side.patience), sorted(c.changes(2.0)), c.deliveries()]
    c.ack(a, ids[1])
    seen += [c.bounds(b)[0]]
    return seen


def names_in_order(c: Client) -> tuple[str, str]:
    """Names of which the first is active where both are there: a ring of hashes, with the topic's, says which."""
    first = active_name(c.side.topic, ["a", "b"])
    return first, "b" if first == "a" else "a"


def partitions_are_shared_out_by_name(c: Client) -> Any:
    z, a, b = c.join(FAILOVER, "z"), c.join(FAILOVER, "a"), c.join(FAILOVER, "b")
    changes = c.changes(2.5)
    for one in (z, a, b):
        c.flow(one)
    c.publish(1)
    return changes, c.deliveries()


def priority_decides_who_is_active(c: Client) -> Any:
    a = c.join(FAILOVER, "a", priority=1)
    c.changes(2.0)
    b = c.join(FAILOVER, "b", priority=0)
    return a, b, c.changes(2.5)


def redelivery_of_failover_is_everything_again(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    a = c.join(FAILOVER, "a")
    c.flow(a)
    c.changes(2.0)
    c.deliveries()
    c.ack(a, ids[1])
    c.redeliver(a, ids[2])
    return c.deliveries()


def exclusive_acknowledges_one_by_one_too(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    a = c.join(EXCLUSIVE)
    c.flow(a)
    c.deliveries()
    seen = [c.ack(a, ids[1]), c.bounds(a)[0], c.ack(a, ids[0]), c.bounds(a)[0]]
    c.redeliver(a)
    return seen, c.deliveries()


def cumulative_is_of_everything_before(c: Client) -> Any:
    ids = c.publish(1, 1, 1, 1, 1)
    c.meet(*ids)
    a = c.join(EXCLUSIVE)
    c.flow(a, 4)
    c.deliveries()
    steps = ((ids[3], False), (ids[2], True), (ids[0], True))
    seen = [(c.ack(a, one, cumulative=is_all), c.bounds(a)[0], c.backlog(a)) for one, is_all in steps]
    c.close_consumer(a)
    b = c.join(EXCLUSIVE)
    c.flow(b)
    return seen, c.deliveries()


def cumulative_of_who_is_not_active_any_more(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    a = c.join(FAILOVER, "a", priority=1)
    c.flow(a)
    seen: list[Any] = [c.changes(2.0), c.deliveries()]
    b = c.join(FAILOVER, "b", priority=0)
    c.flow(b)
    # What nobody has acknowledged comes to the one that is active now, all of it.
    seen += [sorted(c.changes(2.5)), c.deliveries()]
    c.ack(a, ids[1], cumulative=True)
    return [*seen, c.bounds(b)[0], c.backlog(b)]


# -- Key_Shared

KEYS = [f"k{n}" for n in range(12)]


def keys_are_split_by_a_ring_of_names(c: Client) -> Any:
    a, b, b2 = (c.join(KEY_SHARED, name, meta=AUTO) for name in ("alpha", "beta", "beta"))
    for one in (a, b, b2):
        c.flow(one)
    keyed(c, *KEYS)
    to = {position[1]: consumer for consumer, position, _ in c.deliveries()}
    return [to[n] for n in range(len(KEYS))]


def a_message_without_a_key_has_its_producer_and_number(c: Client) -> Any:
    a, b = c.join(KEY_SHARED, "alpha", meta=AUTO), c.join(KEY_SHARED, "beta", meta=AUTO)
    c.flow(a), c.flow(b)
    c.publish(*[1] * 8, 3)
    to = {position[1]: consumer for consumer, position, _ in c.deliveries()}
    return [to[n] for n in range(9)]


def a_key_stays_until_it_is_acknowledged(c: Client) -> Any:
    a = c.join(KEY_SHARED, "alpha", meta=AUTO)
    c.flow(a)
    ids = keyed(c, *KEYS)
    first = c.of(a)
    b = c.join(KEY_SHARED, "beta", meta=AUTO)
    c.flow(b)
    keyed(c, *KEYS)
    second = sorted((to, position[1]) for to, position, _ in c.deliveries())
    c.ack(a, *ids)
    return first, second, sorted((to, position[1]) for to, position, _ in c.deliveries())


def a_key_comes_again_in_order(c: Client) -> Any:
    a = c.join(KEY_SHARED, "alpha", meta=AUTO)
    c.flow(a, 4)
    ids = keyed(c, "k1", "k1", "k2", "k1", "k1", "k2")
    first = c.deliveries()
    c.redeliver(a, ids[0])
    c.flow(a, 1)
    second = c.deliveries()
    c.flow(a, 100)
    return first, second, c.deliveries()


def a_closed_consumers_keys_come_in_order(c: Client) -> Any:
    a = c.join(KEY_SHARED, "alpha", meta=AUTO)
    c.flow(a, 3)
    keyed(c, "k1", "k2", "k1", "k1", "k2")
    first = c.deliveries()
    b = c.join(KEY_SHARED, "beta", meta=AUTO)
    c.flow(b)
    second = c.deliveries()
    c.close_consumer(a)
    return first, second, c.deliveries()


def sticky_consumers_say_their_ranges(c: Client) -> Any:
    low = c.join(KEY_SHARED, meta=sticky((0, 30000)))
    c.flow(low)
    refused = [
        c.join(KEY_SHARED, meta=meta) for meta in (sticky((20000, 40000)), sticky(), AUTO, sticky((40000, 30001)))
    ]
    keyed(c, *KEYS)
    first = c.of(low)
    high = c.join(KEY_SHARED, meta=sticky((30001, 65535)))
    c.flow(high)
    second = c.of(high)
    c.close_consumer(low)
    return refused, first, second, c.deliveries()


ACTIVE, PASSIVE = True, False

TRACES: dict[str, tuple[Callable[[Client], Any], Any]] = {
    trace.__name__: (trace, expected)
    for trace, expected in (
        (shared_takes_turns, [1, 2, 1, 2]),
        (a_higher_priority_comes_first, [2, 2, 1, 1]),
        (permits_are_messages_and_entries_are_whole, [1, 0, 1]),
        (
            redelivery_is_counted,
            [
                [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
                [(1, (0, 1), 1)],
                [(1, (0, 0), 1), (1, (0, 1), 2), (1, (0, 2), 1)],
                [],
            ],
        ),
        (
            what_a_closed_consumer_had_goes_to_others_uncounted,
            ([(1, (0, 0), 0), (1, (0, 1), 0)], [(2, (0, 0), 0), (2, (0, 1), 0)]),
        ),
        (
            what_a_lost_connection_had_goes_to_others_uncounted,
            ([(101, (0, 0), 0), (101, (0, 1), 0)], [(1, (0, 0), 0), (1, (0, 1), 0)]),
        ),
        (counts_stay_with_others_only, [[(1, (0, 0), 0)], [(1, (0, 0), 1)], [(2, (0, 0), 1)], [(3, (0, 0), 0)]]),
        (
            acknowledged_one_by_one,
            (
                [
                    (None, (0, -1), 3, 3),
                    (None, (0, 0), 2, 2),
                    (None, (0, 2), 1, 1),
                    (None, (0, 2), 1, 1),
                    (None, (0, 2), 1, 1),
                ],
                [(2, (0, 3), 0)],
            ),
        ),
        (
            one_past_the_end_takes_the_command_with_it,
            (None, ((0, -1), 2), [(2, (0, 1), 0), (2, (0, 2), 0)]),
        ),
        (cumulative_is_ignored_and_answered, (None, (0, -1), 2)),
        (what_was_never_delivered_can_be_acknowledged, (None, [(1, (0, 0), 0), (1, (0, 2), 0)])),
        (
            what_another_has_can_be_acknowledged,
            ([(1, (0, 0), 0), (1, (0, 1), 0)], None, 1, [(2, (0, 1), 0)]),
        ),
        (
            what_comes_back_can_be_acknowledged_before_it_comes,
            ([(1, (0, 0), 0), (1, (0, 1), 0)], None, [(2, (0, 1), 0)]),
        ),
        (a_consumer_with_too_much_unacknowledged_waits, [4, True, 0, 2, 4, 1]),
        (a_subscription_with_too_much_unacknowledged_waits, [4, 0, 1, 0]),
        (half_a_batch_cannot_be_acknowledged, ([None, None, 6], [(1, (0, 0), 1), (1, (0, 1), 1)], [(), ()])),
        (
            half_a_batch_can_be_acknowledged,
            ([None, 5, None, None, 2], [(1, (0, 0), 1)], [(6,), ()], (12, 2), (0, 1), 0),
        ),
        (chunks_go_to_one_consumer, [1, 1, 1]),
        (
            chunks_of_a_consumer_that_is_gone,
            ([(1, (0, 0), 0)], [], [], [(3, (0, 0), 0), (3, (0, 1), 0), (3, (0, 2), 0)]),
        ),
        (
            # It stays so until the topic is loaded anew.
            chunks_of_the_only_consumer_that_is_gone,
            [[(1, (0, 0), 0), (1, (0, 1), 0)], [], [], [], []],
        ),
        (
            # They are sent to it, though it is gone, for each of its permits; the message's last one ends that.
            chunks_of_a_consumer_that_left_with_permits,
            [
                *([(False, 0)], *[[(True, n) for n in range(4)]] * 3),
                *([(False, 0), (False, 1)], [(False, 0)], [], []),
                *([(False, 0), (False, 1)], [(False, 0), (False, 1)], [(False, 0)], [(True, n) for n in range(4)]),
            ],
        ),
        (
            a_chunk_without_the_first,
            (
                [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
                [],
                [(1, (0, 0), 1), (1, (0, 1), 1), (1, (0, 2), 1)],
            ),
        ),
        (
            stranded_chunks_come_when_the_topic_is_loaded_anew,
            # What is behind them does not come to those who are there, either.
            [[(1, (0, 0), 0)], [], [], [(3, (0, n), 0) for n in range(4)]],
        ),
        (
            one_chunk_can_be_acknowledged_by_itself,
            [[(1, (0, n), 0) for n in range(3)], None, [(2, (0, 0), 0), (2, (0, 2), 0)]],
        ),
        (
            # What is read at once with them comes, and what is behind that does not.
            chunks_without_the_first_hold_others_back,
            [[(1, (0, 0), 0)], None, [(2, (0, 3), 0)], [], []],
        ),
        (
            a_delayed_message_waits,
            (
                [[(1, (0, 1), 0), (1, (0, 2), 0)], 3, 2, 0, []],
                [(2, (0, 1), 0), (2, (0, 2), 0)],
            ),
        ),
        (a_delay_within_a_tick_is_none, [(1, (0, 1), 0)]),
        (a_delayed_message_comes_when_it_is_due, ([(1, (0, 1), 0)], [(1, (0, 0), 0)], False)),
        (a_delayed_message_can_be_acknowledged_before_it_is_due, ([], None, 0, (0, 0))),
        (a_delay_outlives_an_unload, ([(1, (0, 1), 0)], [(2, (0, 1), 0)])),
        (a_delay_outlives_a_kill, ([(1, (0, 1), 0)], [(2, (0, 1), 0)])),
        (a_delay_is_nothing_to_exclusive, [(1, (0, 0), 0), (1, (0, 1), 0)]),
        (a_delay_is_nothing_to_failover, ([(1, ACTIVE)], [(1, (0, 0), 0), (1, (0, 1), 0)])),
        (a_delayed_message_does_not_hold_its_key_back, [(1, (0, 1), 0), (1, (0, 2), 0)]),
        (types_do_not_mix, [-5, -5, -5, -5, -5, 0, -5, -5, -5, -5, 0, -5, -5, -5, -5, 0]),
        (only_the_last_one_unsubscribes, (1, "Success", 1)),
        (unloading_puts_everything_back_uncounted, [(2, (0, 0), 0), (2, (0, 2), 0)]),
        (
            # What is acknowledged first in ten seconds is on disk, behind a gap too; the rest is not.
            a_killed_broker_forgets_acknowledgements,
            ([None, None, None], [(2, (0, n), 0) for n in (0, 2, 4, 5, 6, 7)], (0, -1)),
        ),
        (
            one_of_failover_is_active,
            [
                [(1, ACTIVE)],
                [(1, (0, 0), 0), (1, (0, 1), 0)],
                [(2, PASSIVE)],
                [],
                [(2, ACTIVE)],
                [(2, (0, 1), 0)],
            ],
        ),
        (
            who_comes_before_takes_over,
            [
                [(1, ACTIVE)],
                [(1, (0, 0), 0), (1, (0, 1), 0)],
                [],
                [(1, PASSIVE), (2, ACTIVE)],
                [(2, (0, 1), 0), (2, (0, 2), 0)],
                (0, 1),
            ],
        ),
        (partitions_are_shared_out_by_name, ([(2, PASSIVE), (3, PASSIVE), (1, ACTIVE)], [(1, (0, 0), 0)])),
        (priority_decides_who_is_active, (1, 2, [(2, ACTIVE), (1, PASSIVE)])),
        (redelivery_of_failover_is_everything_again, [(1, (0, 0), 0), (1, (0, 2), 0)]),
        (exclusive_acknowledges_one_by_one_too, ([None, (0, -1), None, (0, 1)], [(1, (0, 2), 0)])),
        (
            cumulative_is_of_everything_before,
            ([(None, (0, -1), 4), (None, (0, 3), 1), (None, (0, 3), 1)], [(2, (0, 4), 0)]),
        ),
        (
            cumulative_of_who_is_not_active_any_more,
            [
                [(1, ACTIVE)],
                [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
                [(1, PASSIVE), (2, ACTIVE)],
                [(2, (0, 0), 0), (2, (0, 1), 0), (2, (0, 2), 0)],
                (0, 1),
                1,
            ],
        ),
        (keys_are_split_by_a_ring_of_names, [2, 2, 1, 1, 1, 3, 2, 1, 2, 2, 2, 2]),
        (a_message_without_a_key_has_its_producer_and_number, [2, 2, 1, 1, 2, 2, 1, 1, 2]),
        (
            a_key_stays_until_it_is_acknowledged,
            (
                list(range(12)),
                [(1, 14), (1, 15), (1, 16), (1, 19)],
                [(2, 12), (2, 13), (2, 17), (2, 18), (2, 20), (2, 21), (2, 22), (2, 23)],
            ),
        ),
        (
            a_key_comes_again_in_order,
            (
                [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0), (1, (0, 3), 0)],
                [(1, (0, 0), 1)],
                [(1, (0, 4), 0), (1, (0, 5), 0)],
            ),
        ),
        (
            a_closed_consumers_keys_come_in_order,
            (
                [(1, (0, 0), 0), (1, (0, 1), 0), (1, (0, 2), 0)],
                [],
                [(2, (0, 0), 0), (2, (0, 1), 0), (2, (0, 2), 0), (2, (0, 3), 0), (2, (0, 4), 0)],
            ),
        ),
        (sticky_consumers_say_their_ranges, ([-19, -19, -5, -19], [0, 1, 4, 6, 8, 10, 11], [2, 3, 5, 7, 9], [])),
    )
}
OPTIONS: dict[str, dict[str, Any]] = {
    "a_consumer_with_too_much_unacknowledged_waits": {"limits": Limits(4, 0)},
    "a_subscription_with_too_much_unacknowledged_waits": {"limits": Limits(0, 4)},
    "partitions_are_shared_out_by_name": {"partition": 2},
    "a_delay_within_a_tick_is_none": {"limits": Limits(tick_seconds=60.0)},
}
FEATURED = {"half_a_batch_can_be_acknowledged"}
PRIVATE = {"a_killed_broker_forgets_acknowledgements", "a_delay_outlives_a_kill"}
LONG = {
    "chunks_of_a_consumer_that_left_with_permits",
    "one_of_failover_is_active",
    "who_comes_before_takes_over",
    "priority_decides_who_is_active",
    "redelivery_of_failover_is_everything_again",
    "a_delayed_message_comes_when_it_is_due",
    "a_delay_is_nothing_to_failover",
}
"""These wait for seconds for what the real broker does by the clock."""


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("name", TRACES)
def test_the_model_does(name: str) -> None:
    trace, expected = TRACES[name]
    world = World(7)
    with world.running():
        options = {**OPTIONS.get(name, {}), "batch_indexes": name in FEATURED}
        found = world.run(lambda: trace(Client(Model(world, **options))))
    assert found == expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in TRACES
        if name not in FEATURED | PRIVATE
    ],
)
def test_the_real_broker_does(name: str, pulsar: Any) -> None:
    trace, expected = TRACES[name]
    assert done_by(pulsar, trace, expected, **OPTIONS.get(name, {})) == expected


@pytest.mark.parametrize("name", sorted(FEATURED))
def test_the_featured_broker_does(name: str, pulsar_featured: Any) -> None:
    trace, expected = TRACES[name]
    assert done_by(pulsar_featured, trace, expected) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_a_broker_of_the_tests_own_does(name: str, pulsar_private: Any) -> None:
    trace, expected = TRACES[name]
    assert done_by(pulsar_private, trace, expected) == expected
