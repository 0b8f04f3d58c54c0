from __future__ import annotations

import itertools
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.testing.queues import InFlight, MessageIds, Queue, is_valid_name
from spark_mq_source.testing.settings import NsqSettings

NOW_NS = 1_795_229_009_000_000_000


def frame(number: int, body: bytes = b"") -> bytes:
    return struct.pack(">iiqH", 30 + len(body), 2, NOW_NS, 1) + b"%016x" % number + body


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(-2_000_000, 5_000_000)), max_size=20))
def test_ids_increase_at_any_clock_and_rate(steps: list[tuple[int, int]]):
    ids = MessageIds(5)
    now_ns = NOW_NS
    taken: list[bytes] = []
    for number, later_ns in steps:
        now_ns += later_ns
        taken += ids.take(number, now_ns)
    assert len(taken) == sum(number for number, _ in steps)
    assert all(one < next_one for one, next_one in itertools.pairwise(taken))
    assert {len(ident) for ident in taken} <= {16}
    assert {int(ident, 16) >> 12 & 1023 for ident in taken} <= {5}


@given(st.lists(st.one_of(st.integers(1, 50).map(lambda n: ("put", n)), st.integers(0, 60).map(lambda n: ("take", n)))))
def test_a_queue_returns_its_messages_in_order(steps: list[tuple[str, int]]):
    queue = Queue(NsqSettings(mem_queue_size=20))
    put: list[bytes] = []
    taken: list[bytes] = []
    for step, number in steps:
        if step == "put":
            frames = [frame(len(put) + n) for n in range(number)]
            put += frames
            queue.put(frames, 0.0)
        elif number:
            taken += queue.take(number, 0.0)
        assert queue.depth == len(put) - len(taken)
    assert taken + queue.take_all(0.0) == put
    assert queue.depth == 0


def test_a_queue_returns_at_most_one_write():
    queue = Queue(NsqSettings())
    queue.put([frame(number, bytes(1 << 20)) for number in range(5)], 0.0)
    assert len(queue.take(5, 0.0)) == 1


@settings(max_examples=40)
@given(st.data())
def test_messages_in_flight_expire_at_their_deadlines(data: st.DataObject):
    """The model is a deadline by id."""
    in_flight = InFlight()
    deadlines: dict[bytes, float] = {}
    sent_s: dict[bytes, float] = {}
    now_s = 0.0
    for number in range(data.draw(st.integers(0, 60))):
        now_s += data.draw(st.floats(0, 3))
        step = data.draw(st.sampled_from(["send", "finish", "touch", "take", "expire"]))
        known = sorted(deadlines)
        if step == "send":
            frames = [frame(number * 10 + n) for n in range(data.draw(st.integers(1, 5)))]
            in_flight.add(frames, now_s, 5.0)
            for ident in (each[18:34] for each in frames):
                sent_s[ident] = now_s
                deadlines[ident] = now_s + 5.0
        elif step == "finish":
            chosen = data.draw(st.lists(st.sampled_from([*known, b"f" * 16]), unique=True))
            assert in_flight.finish_all(chosen) == [ident for ident in chosen if ident not in deadlines]
            for ident in chosen:
                deadlines.pop(ident, None)
        elif step == "touch" and known:
            ident = data.draw(st.sampled_from(known))
            in_flight.touch(ident, now_s, 5.0, 8.0)
            deadlines[ident] = min(now_s + 5.0, sent_s[ident] + 8.0)
        elif step == "take" and known:
            ident = data.draw(st.sampled_from(known))
            assert in_flight.take(ident)[18:34] == ident
            del deadlines[ident]
        elif step == "expire":
            expired = {ident for ident, deadline_s in deadlines.items() if deadline_s <= now_s}
            assert {each[18:34] for each in in_flight.take_expired(now_s)} == expired
            for ident in expired:
                del deadlines[ident]
        assert len(in_flight) == len(deadlines)
        assert all(ident in in_flight for ident in deadlines)
    assert {each[18:34] for each in in_flight.take_all()} == set(deadlines)


def test_names_have_up_to_64_allowed_characters():
    valid = ["a", "a" * 64, "A.b_c-9", "x#ephemeral", "a" * 54 + "#ephemeral"]
    invalid = ["", "a" * 65, "a b", "ä", "#ephemeral", "x#Ephemeral", "x#ephemeral ", "x\n", "a" * 55 + "#ephemeral"]
    assert [name for name in valid + invalid if is_valid_name(name)] == valid
