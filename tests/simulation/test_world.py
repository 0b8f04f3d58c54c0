"""The simulated world: stand-ins behave as the originals do, and a seed determines everything."""

from __future__ import annotations

import selectors

import pytest

from spark_mq_source.core.errors import ConnectionLostError, TransportError
from tests.simulation import standins
from tests.simulation.network import Fate, Selector, Stream, network
from tests.simulation.world import FIRST_NOW, DeadlockError, HangError, World

SEEDS = range(25)


def play(seed, main, **arguments):
    world = World(seed, **arguments)
    with world.running():
        return world.run(lambda: main(world))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lock_is_held_by_one_fiber_at_a_time(seed):
    def main(world):
        lock, inside, seen = standins.Lock(), [], []

        def work(name):
            for _ in range(5):
                with lock:
                    assert not inside
                    inside.append(name)
                    world.sleep(0.01)
                    seen.append(name)
                    inside.remove(name)

        threads = [standins.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(list(range(3)) * 5)

    play(seed, main)


def test_rest_waits_for_processes_that_are_stopped_meanwhile():
    def main(world):
        other = world.process("other")
        world.after(50.0, lambda: world.stop(other, 30.0))
        world.rest(60.0)
        return world.now - FIRST_NOW

    assert 140.0 <= play(1, main) < 141.0


def test_orders_differ_between_seeds_and_not_between_runs():
    def main(world):
        order = []

        def work(name):
            for _ in range(4):
                world.sleep(0)
                order.append(name)

        threads = [standins.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return tuple(order)

    orders = [play(seed, main) for seed in SEEDS]
    assert orders == [play(seed, main) for seed in SEEDS]
    assert len(set(orders)) > 12


@pytest.mark.parametrize("seed", SEEDS)
def test_a_condition_wakes_waiters_and_times_out_by_the_worlds_clock(seed):
    def main(world):
        condition, state = standins.Condition(), []

        def change():
            world.sleep(5)
            with condition:
                state.append(True)
                condition.notify()

        standins.Thread(target=change).start()
        with condition:
            assert condition.wait_for(lambda: state, 60)
            assert 5 <= world.now - FIRST_NOW < 6
            assert not condition.wait(10)
        assert 15 <= world.now - FIRST_NOW < 16

    play(seed, main)


def test_a_future_waits_by_the_worlds_clock():
    def main(world):
        late, never = standins.Future(), standins.Future()
        standins.Thread(target=lambda: (world.sleep(3), late.set_result(7))).start()
        assert late.result(10) == 7
        with pytest.raises(TimeoutError):
            never.result(1000)
        assert world.now - FIRST_NOW > 1000

    play(1, main)


def test_a_deadlock_is_found():
    with pytest.raises(DeadlockError, match="main"):
        play(1, lambda world: standins.Event().wait())


def test_a_hang_is_found():
    def main(world):
        while True:
            world.sleep(10)

    with pytest.raises(HangError, match="100 s"):
        play(1, main, limit_seconds=100)


def test_a_killed_process_stops_running_and_its_streams_close():
    said, lost = [], []

    class Peer:
        def received(self, data):
            pass

        def lost(self):
            lost.append(True)

    def main(world):
        network().listen("broker:1", lambda stream: Peer())
        process = world.process("victim")

        def work():
            network().connect("broker:1", 1)
            try:
                said.append("begun")
                world.sleep(100)
            finally:
                said.append("cleaned up")

        fiber = world.spawn(work, "work", process)
        world.sleep(10)
        world.kill(process)
        assert not world.join(fiber)
        world.sleep(10)
        # A killed process runs no `finally`.
        assert said == ["begun"]
        assert lost == [True]

    play(3, main)


class Echo:
    """A peer that sends back the bytes that it receives."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def received(self, data):
        self.stream.send(data)

    def lost(self):
        pass


def talk(transport, data, patience=1000.0):
    """Send bytes and wait for as many; return the received bytes and how the stream ended."""
    selector, got = Selector(), b""
    selector.register(transport, selectors.EVENT_READ)
    rest = memoryview(data)
    while len(got) < len(data):
        if rest:
            rest = rest[transport.send(rest) :]
        elif not selector.select(patience):
            return got, "silence"
        buffer = bytearray(1000)
        n = transport.recv_into(memoryview(buffer))
        if n == 0:
            return got, "end"
        got += buffer[: n or 0]
    return got, "all"


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_arrive_in_order_however_they_are_cut(seed):
    def main(world):
        network().listen("broker:1", Echo)
        data = bytes(range(256)) * 20
        assert talk(network().connect("broker:1", 1), data) == (data, "all")

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_breaks_after_the_bytes_that_its_fate_allows(seed):
    def main(world):
        network().listen("broker:1", Echo)
        network().fates |= {0: Fate(cut_after_received=100), 1: Fate(cut_after_sent=100)}
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                talk(network().connect("broker:1", 1), bytes(1000))
        assert talk(network().connect("broker:1", 1), bytes(1000)) == (bytes(1000), "all")

    play(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_half_open_stream_is_silent(seed):
    def main(world):
        network().listen("broker:1", Echo)
        network().fates[0] = Fate(mute_after_received=100)
        got, ending = talk(network().connect("broker:1", 1), bytes(1000))
        assert (len(got) <= 100, ending) == (True, "silence")

    play(seed, main)


def test_connections_are_refused_or_time_out():
    def main(world):
        with pytest.raises(TransportError, match="refused"):
            network().connect("broker:1", 5)
        network().silence("broker:1")
        began = world.now
        with pytest.raises(TransportError, match="no TCP connection in time"):
            network().connect("broker:1", 5)
        assert world.now - began >= 5

    play(1, main)
