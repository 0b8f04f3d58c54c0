"""Likeness of the model of nsqd to nsqd: each fact is a scripted trace with its expected observations.

Every trace runs on the model in a simulated world, on the embedded broker over sockets, and on nsqd 1.3.0 if it is on
PATH. Message ids differ from run to run, so they are numbered in the order in which a trace receives them: `#0`, `#1`.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from spark_mq_source.core.errors import TransportError
from tests.behaviours.nsq.conftest import RawClient
from tests.fix_brokers import NsqUnderTest
from tests.simulation.network import SimulatedTransport, network
from tests.simulation.nsq.broker import Cluster
from tests.simulation.world import World

PATIENCE_S = 60.0
QUIET_S = 0.3
"""Seconds of silence after which a trace assumes that nothing more arrives."""

UNKNOWN = b"0123456789abcdef"
END = "(closed)"


class Lab:
    """One nsqd for a trace: `SimulatedLab` or `RunningLab`.

    Attributes:
        ids: the numbers of the message ids received so far.
    """

    def __init__(self) -> None:
        self.ids: dict[bytes, int] = {}

    def client(self, topic: str, channel: str = "c", *, ready: int = 0, **fields: Any) -> Client:
        """Return a subscriber."""
        client = Client(self, **fields)
        assert client.ask(f"SUB {topic} {channel}") == "OK"
        client.command(f"RDY {ready}")
        return client

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish with one MPUB."""
        client = Client(self)
        assert client.ask(f"MPUB {topic}", packed(*bodies)) == "OK"
        client.close()

    def post(self, path: str, topic: str, channel: str = "c") -> int:
        """Return the status of a request that changes something."""
        return self.http("POST", path, topic=topic, channel=channel)[0]

    def stats(self, topic: str, *names: str, channel: str = "c") -> dict[str, Any]:
        """Return statistics of a channel from the HTTP interface."""
        topics = self.http("GET", "/stats", format="json", topic=topic, channel=channel)[1]["topics"]
        found = topics[0]["channels"][0] if topics else {}
        return {name: found.get(name) for name in names}

    def topic_stats(self, topic: str, *names: str) -> dict[str, Any]:
        """Return statistics of a topic from the HTTP interface."""
        found = (self.http("GET", "/stats", format="json", topic=topic)[1]["topics"] or [{}])[0]
        return {name: found.get(name) for name in names}

    def until(self, topic: str, *, channel: str = "c", **wanted: Any) -> None:
        """Wait until the HTTP interface reports these statistics of a channel."""
        deadline = self.now + PATIENCE_S
        while (found := self.stats(topic, *wanted, channel=channel)) != wanted:
            assert self.now < deadline, f"{topic}/{channel}: {found}, expected {wanted}"
            self.pause(0.02)


class Client:
    """A client that sends single commands; it answers heartbeats while it receives, unless it is deaf."""

    def __init__(self, lab: Lab, *, deaf: bool = False, **fields: Any) -> None:
        self._lab, self._deaf = lab, deaf
        self._wire = lab.connect()
        self._unread = b""
        self._wire.send(b"  V2")
        if fields:
            found = self.ask("IDENTIFY", json.dumps({"feature_negotiation": True, **fields}).encode())
            assert found is not None
            assert {name: json.loads(found).get(name, value) for name, value in fields.items()} == fields

    def command(self, line: str, body: bytes | None = None) -> None:
        """Send a command; `#n` stands for the id of message n."""
        for ident, number in self._lab.ids.items():
            line = line.replace(f"#{number} ", f"{ident.decode()} ") if f"#{number} " in line else line
            if line.endswith(f"#{number}"):
                line = line.removesuffix(f"#{number}") + ident.decode()
        self._wire.send(line.encode() + b"\n" + (b"" if body is None else struct.pack(">i", len(body)) + body))

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self._wire.send(data)

    def ask(self, line: str, body: bytes | None = None) -> str | None:
        """Return the answer to a command."""
        self.command(line, body)
        return self.reply()

    def reply(self, seconds: float = PATIENCE_S) -> str | None:
        """Return the next answer, with numbers in place of ids; END at the end, None on a timeout."""
        frame = self._frame(seconds)
        if not isinstance(frame, tuple):
            return frame
        kind, body = frame
        assert kind != 2, f"a message instead of an answer: {body!r}"
        text = body.decode()
        for ident, number in self._lab.ids.items():
            text = text.replace(ident.decode(), f"#{number}")
        return text

    def message(self, seconds: float = PATIENCE_S) -> Any:
        """Return the number, the attempts and the body of the next message; None on a timeout."""
        frame = self._frame(seconds)
        if not isinstance(frame, tuple):
            return frame
        kind, body = frame
        assert kind == 2, body
        number = self._lab.ids.setdefault(bytes(body[10:26]), len(self._lab.ids))
        return number, int.from_bytes(body[8:10], "big"), body[26:].decode()

    def messages(self, count: int) -> list[Any]:
        """Return this number of messages, and one more if it arrives."""
        return [*(self.message() for _ in range(count)), *filter(None, [self.message(QUIET_S)])]

    def finish(self, messages: Sequence[tuple[int, int, str]]) -> None:
        """Send FINs."""
        for number, _, _ in messages:
            self.command(f"FIN #{number}")

    def close(self) -> None:
        """Close the connection without a command."""
        self._wire.close()

    def _frame(self, seconds: float) -> tuple[int, bytes] | str | None:
        deadline = self._lab.now + seconds
        while True:
            if len(self._unread) >= 4 and len(self._unread) >= (end := 4 + int.from_bytes(self._unread[:4], "big")):
                frame, self._unread = self._unread[4:end], self._unread[end:]
                kind, body = int.from_bytes(frame[:4], "big"), frame[4:]
                if self._deaf or body != b"_heartbeat_":
                    return kind, body
                self._wire.send(b"NOP\n")
                continue
            came = self._wire.receive(max(0.001, deadline - self._lab.now))
            if not came:
                return END if came is not None else None
            self._unread += came


def packed(*bodies: bytes, count: int | None = None) -> bytes:
    """Return the body of an MPUB."""
    parts = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    return (len(bodies) if count is None else count).to_bytes(4, "big") + parts


def numbered(start: int, end: int) -> list[bytes]:
    """Return bodies."""
    return [b"%04d" % number for number in range(start, end)]


# -- traces


@dataclass(frozen=True)
class Trace:
    """A fact.

    Attributes:
        run: the script; returns its observations.
        expected: the expected observations.
        settings: of a separate nsqd, which it may restart; None for any nsqd with default settings.
    """

    run: Callable[[Lab], Any]
    expected: Any
    settings: Mapping[str, Any] | None


TRACES: dict[str, Trace] = {}


def trace(expected: Any, settings: Mapping[str, Any] | None = None) -> Callable[[Callable[[Lab], Any]], None]:
    """Register a trace, see `Trace`."""

    def note(run: Callable[[Lab], Any]) -> None:
        TRACES[run.__name__] = Trace(run, expected, settings)

    return note


GONE = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}
COUNTS = tuple(GONE)


@trace(
    [
        None,
        ["E_FIN_FAILED FIN #0 failed ID not in flight", "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"],
        "CLOSE_WAIT",
        None,
        {"depth": 2, "in_flight_count": 0, "deferred_count": 0},
    ]
)
def a_fin_has_no_answer_and_cls_is_a_barrier(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, b"a", b"b", b"c", b"d")
    client = lab.client(topic, ready=3)
    client.messages(3)
    client.command("RDY 0")
    client.command("FIN #0")
    found: list[Any] = [client.reply(QUIET_S)]
    for line in ("FIN #1", "FIN #0", f"FIN {UNKNOWN.decode()}", "CLS"):
        client.command(line)
    found += [[client.reply(), client.reply()], client.reply()]
    # Messages in flight may still be answered, and no more are delivered.
    client.command("REQ #2 0")
    client.command("RDY 5")
    return [*found, client.reply(QUIET_S), lab.stats(topic, *COUNTS)]


@trace([[(0, 1, "lost"), (1, 1, "touched")], (0, 2, "lost"), {"timeout_count": 1, "in_flight_count": 2}])
def touch_extends_the_timeout_of_one_message_only(lab: Lab) -> Any:
    topic = lab.topic("c")
    client = lab.client(topic, ready=2, msg_timeout=2000)
    lab.publish(topic, b"lost", b"touched")
    got = [client.message(), client.message()]
    again = touch_until_a_message_comes(lab, client, 1)
    return [got, again, lab.stats(topic, "timeout_count", "in_flight_count")]


def touch_until_a_message_comes(lab: Lab, client: Client, number: int) -> Any:
    """Send TOUCH more often than the timeout; nsqd may detect only after seconds that another message timed out."""
    deadline = lab.now + PATIENCE_S
    while lab.now < deadline:
        client.command(f"TOUCH #{number}")
        if (came := client.message(0.2)) is not None:
            return came
    return None


@trace([(0, 1, "a"), (0, 2, "a"), "not before"], {"max_msg_timeout_ms": 1500})
def touch_extends_a_timeout_up_to_the_maximum(lab: Lab) -> Any:
    topic = lab.topic("c")
    client = lab.client(topic, ready=2, msg_timeout=1000)
    since = lab.now
    lab.publish(topic, b"a")
    found = [client.message(), touch_until_a_message_comes(lab, client, 0)]
    return [*found, "not before" if lab.now - since >= 1.4 else lab.now - since]


@trace(
    [
        [(0, 1, "a"), (0, 2, "a")],
        {"depth": 0, "in_flight_count": 0, "deferred_count": 1},
        (0, 3, "a"),
        "not before the delay",
        (0, 4, "a"),
        {"requeue_count": 3},
    ],
    {"max_req_timeout_ms": 1000},
)
def a_message_is_requeued_at_once_or_with_a_delay(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, b"a")
    client = lab.client(topic, ready=1)
    found: list[Any] = [client.message()]
    client.command("REQ #0 0")
    found = [[*found, client.message()]]
    since = lab.now
    client.command("REQ #0 1000")
    lab.until(topic, requeue_count=2)
    found += [lab.stats(topic, *COUNTS), client.message()]
    found += ["not before the delay" if lab.now - since >= 1.0 else lab.now - since]
    client.command("REQ #0 99999999")  # capped at the longest delay
    return [*found, client.message(), lab.stats(topic, "requeue_count")]


@trace([[(0, 1, "a")], [(0, 2, "a")], [(0, 1, "a")]])
def each_channel_counts_its_own_attempts_of_a_message(lab: Lab) -> Any:
    topic = lab.topic("c", "d")
    lab.publish(topic, b"a")
    one = lab.client(topic, "c", ready=1)
    first = [one.message()]
    one.command("REQ #0 0")
    return [first, [one.message()], lab.client(topic, "d", ready=1).messages(1)]


@trace(
    [
        {"depth": 2, "message_count": 2},
        {"depth": 3, "message_count": 3},
        {"depth": 1, "message_count": 1},
        ["early", "early too", "late"],
        ["late"],
    ]
)
def only_the_first_channel_gets_messages_published_before_it(lab: Lab) -> Any:
    topic = lab.topic()
    lab.publish(topic, b"early", b"early too")
    found: list[Any] = [lab.topic_stats(topic, "depth", "message_count")]
    lab.post("/channel/create", topic, "first")
    lab.until(topic, channel="first", depth=2)
    lab.post("/channel/create", topic, "second")
    lab.publish(topic, b"late")
    lab.until(topic, channel="first", depth=3)
    lab.until(topic, channel="second", depth=1)
    found += [lab.stats(topic, "depth", "message_count", channel=name) for name in ("first", "second")]
    for name, count in (("first", 3), ("second", 1)):
        found.append([body for _, _, body in lab.client(topic, name, ready=9).messages(count)])
    return found


@trace(
    [
        [0, 1, 2],
        [3],
        [4, 5],
        [],
        {"depth": 4, "in_flight_count": 0, "deferred_count": 0},
        ["E_INVALID RDY count 2501 out of range 0-2500", END],
    ]
)
def messages_in_flight_are_limited_by_rdy(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, *numbered(0, 10))
    client = lab.client(topic, ready=3)
    found: list[Any] = [[number for number, _, _ in client.messages(3)]]
    client.command("FIN #0")
    found.append([number for number, _, _ in client.messages(1)])
    client.command("RDY 5")
    found.append([number for number, _, _ in client.messages(2)])
    client.command("RDY 0")
    for number in range(1, 6):
        client.command(f"FIN #{number}")
    found += [client.messages(0), lab.stats(topic, *COUNTS)]
    return [*found, [client.ask("RDY 2501"), client.reply()]]


@trace([2, 3, {"depth": 5, "in_flight_count": 5, "deferred_count": 0}])
def each_consumer_of_a_channel_gets_messages_up_to_its_rdy(lab: Lab) -> Any:
    topic = lab.topic("c")
    one, other = lab.client(topic, ready=2), lab.client(topic, ready=3)
    lab.until(topic, client_count=2)
    lab.publish(topic, *numbered(0, 10))
    return [len(one.messages(2)), len(other.messages(3)), lab.stats(topic, *COUNTS)]


@trace(
    [
        [(0, 1, "a")],
        (0, 2, "a"),
        "E_FIN_FAILED FIN #0 failed client does not own message",
        {"timeout_count": 1, "in_flight_count": 1, "depth": 0},
        [None, GONE],
    ]
)
def a_message_that_times_out_is_delivered_to_another_client(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, b"a")
    slow = lab.client(topic, ready=1, msg_timeout=1000)
    found: list[Any] = [slow.messages(1)]
    slow.command("RDY 0")
    other = lab.client(topic, ready=1)
    found += [other.message(), slow.ask("FIN #0"), lab.stats(topic, "timeout_count", "in_flight_count", "depth")]
    other.command("FIN #0")
    return [*found, [other.reply(QUIET_S), lab.stats(topic, *COUNTS)]]


@trace(
    [
        {"depth": 1, "in_flight_count": 2, "deferred_count": 2, "message_count": 5, "requeue_count": 1},
        {"depth": 3, "message_count": 3},
        (200, None),
    ]
)  # fmt: skip
def http_reports_the_counts_of_topics_and_channels(lab: Lab) -> Any:
    topic, alone = lab.topic("c"), lab.topic()
    lab.publish(topic, b"a", b"b", b"c")
    client = lab.client(topic, ready=2)
    client.messages(2)
    client.command("RDY 1")
    client.command("REQ #0 60000")
    client.command("RDY 2")
    client.messages(1)
    lab.publish(topic, b"d")
    publisher = Client(lab)
    publisher.ask(f"DPUB {topic} 60000", b"later")
    lab.until(topic, deferred_count=2)
    names = (*COUNTS, "message_count", "requeue_count")
    lab.publish(alone, b"1", b"2", b"3")
    missing = lab.http("GET", "/stats", format="json", topic="no-such-topic")
    return [
        lab.stats(topic, *names),
        lab.topic_stats(alone, "depth", "message_count"),
        (missing[0], missing[1]["topics"]),
    ]


@trace([{"depth": 1, "paused": True}, [], [(0, 1, "a")], [200, 404], {"depth": 1, "paused": True}, [(1, 1, "b")]])
def a_paused_channel_delivers_nothing_and_a_paused_topic_passes_nothing_on(lab: Lab) -> Any:
    topic = lab.topic("c")
    client = lab.client(topic, ready=10)
    lab.post("/channel/pause", topic)
    lab.publish(topic, b"a")
    lab.until(topic, depth=1)
    found: list[Any] = [lab.stats(topic, "depth", "paused"), client.messages(0)]
    lab.post("/channel/unpause", topic)
    found.append(client.messages(1))
    found.append([lab.post("/topic/pause", topic), lab.post("/channel/pause", topic, "none")])
    lab.publish(topic, b"b")
    assert client.messages(0) == []
    found.append(lab.topic_stats(topic, "depth", "paused"))
    lab.post("/topic/unpause", topic)
    return [*found, client.messages(1)]


@trace(
    [
        ["E_BAD_MESSAGE MPUB invalid message(1) body size 0", END],
        ["E_BAD_BODY MPUB invalid message count 2000000", END],
        {"depth": 0, "message_count": 0},
        ["OK"],
        {"depth": 3, "message_count": 3},
        "ids rise",
    ]
)
def mpub_stores_all_messages_or_none(lab: Lab) -> Any:
    topic = lab.topic()
    found: list[Any] = []
    for body in (packed(b"a", b"", b"c"), packed(b"a", count=2_000_000)):
        client = Client(lab)
        found.append([client.ask(f"MPUB {topic}", body), client.reply()])
    # The connection ends in the middle of one.
    client = Client(lab)
    assert client.ask(f"PUB {lab.topic()}", b"x") == "OK"
    whole = packed(b"a", b"b", b"c")
    client.send(f"MPUB {topic}\n".encode() + struct.pack(">i", len(whole)) + whole[:-1])
    client.close()
    lab.pause(QUIET_S)
    found.append(lab.topic_stats(topic, "depth", "message_count"))
    client = Client(lab)
    found += [[client.ask(f"MPUB {topic}", whole)], lab.topic_stats(topic, "depth", "message_count")]
    lab.client(topic, ready=9).messages(3)
    ids = list(lab.ids)
    return [*found, "ids rise" if ids == sorted(ids) else ids]


# -- traces of kills: go-diskqueue saves its read position after a number of steps, or a time

HOUR_MS = 3_600_000


def by_number(**settings: Any) -> dict[str, Any]:
    """Return settings that sync a disk queue by the number of messages only."""
    return {"sync_timeout_ms": HOUR_MS, **settings}


def after_a_kill(lab: Lab, topic: str, most: int) -> list[tuple[int, str]]:
    """Kill nsqd; return the attempts and bodies of all messages, at most this number, received one at a time."""
    lab.restart(crash=True)
    # If two copies are in flight at once, nsqd accepts only one FIN.
    client = lab.client(topic, ready=1)
    found: list[tuple[int, str]] = []
    for _ in range(most):
        number, attempts, body = client.message()
        found.append((attempts, body))
        client.command(f"FIN #{number}")
    assert client.message(QUIET_S) is None
    return sorted(found)


@trace(
    [{"depth": 2, "in_flight_count": 1}, [], {"depth": 0, "client_count": 1, "message_count": 0}],
    {},
)
def a_kill_loses_memory_and_keeps_topics_and_channels(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, b"a", b"b", b"c")
    client = lab.client(topic, ready=1)
    client.messages(1)
    before = lab.stats(topic, "depth", "in_flight_count")
    return [before, after_a_kill(lab, topic, 0), lab.stats(topic, "depth", "client_count", "message_count")]


@trace([(1, f"{n:04d}") for n in range(15, 30)], by_number(mem_queue_size=0, sync_every=1))
def a_kill_keeps_the_disk_and_loses_messages_in_flight(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, *numbered(0, 30))
    client = lab.client(topic, ready=15)
    taken = client.messages(15)
    client.command("RDY 0")
    client.finish(taken[:5])
    lab.until(topic, depth=15, in_flight_count=10)
    return after_a_kill(lab, topic, 15)


@trace(["the same ids", [(1, f"{n:04d}") for n in range(100)]], by_number(mem_queue_size=0, sync_every=100))
def messages_finished_since_the_last_sync_are_redelivered_after_a_kill(lab: Lab) -> Any:
    topic = lab.topic("c")
    # One write and one read each in the topic, one write in the channel: both are synced with the last.
    lab.publish(topic, *numbered(0, 100))
    lab.until(topic, depth=100)
    client = lab.client(topic, ready=1)
    for _ in range(40):
        client.finish([client.message()])
    client.message()
    lab.until(topic, depth=59, in_flight_count=1)
    met = list(lab.ids)
    found = after_a_kill(lab, topic, 100)
    return ["the same ids" if list(lab.ids)[:41] == met and len(lab.ids) == 100 else len(lab.ids), found]


@trace(sorted([(1, f"{n:04d}") for n in (*range(200), *range(150, 200))]), by_number(mem_queue_size=0, sync_every=150))
def after_a_kill_a_topic_repeats_messages_passed_on_since_its_last_sync(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, *numbered(0, 100))
    lab.until(topic, depth=100)
    lab.publish(topic, *numbered(100, 150))
    # Synced: the topic at 150 and 300 writes and reads, the channel at 150 writes.
    lab.until(topic, depth=150)
    lab.publish(topic, *numbered(150, 200))
    lab.until(topic, depth=200)
    return after_a_kill(lab, topic, 250)


@trace([10, -3, 0], by_number(mem_queue_size=0, sync_every=10))
def after_a_kill_only_synced_messages_are_counted_until_the_disk_is_read_to_its_end(lab: Lab) -> Any:
    topic = lab.topic("c")
    for start, end in ((0, 10), (10, 15)):
        lab.publish(topic, *numbered(start, end))
        lab.until(topic, depth=end)
    lab.restart(crash=True)
    found = [lab.stats(topic, "depth")["depth"]]
    client = lab.client(topic, ready=1)
    for _ in range(12):
        client.finish([client.message()])
    client.message()
    found.append(lab.stats(topic, "depth")["depth"])
    client.command("RDY 9")
    client.messages(2)
    return [*found, lab.stats(topic, "depth")["depth"]]


@trace([], by_number(mem_queue_size=0, sync_every=1000))
def a_kill_loses_a_disk_queue_that_was_never_synced(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, *numbered(0, 30))
    lab.until(topic, depth=30)
    return after_a_kill(lab, topic, 0)


@trace([(1, f"{n:04d}") for n in range(10, 30)], by_number(mem_queue_size=10, sync_every=1))
def a_kill_keeps_the_disk_of_a_topic_without_channels(lab: Lab) -> Any:
    topic = lab.topic()
    lab.publish(topic, *numbered(0, 30))
    return after_a_kill(lab, topic, 20)


@trace([], {"mem_queue_size": 0, "sync_every": 1_000_000, "sync_timeout_ms": 100})
def a_disk_queue_is_synced_after_its_timeout(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, *numbered(0, 30))
    client = lab.client(topic, ready=30)
    client.finish([client.message() for _ in range(30)])
    lab.until(topic, **GONE)
    lab.pause(0.3)
    return after_a_kill(lab, topic, 0)


@trace(
    [
        {"depth": 3, "in_flight_count": 0, "deferred_count": 0},
        [(1, "deferred"), (1, "queued"), (2, "flying")],
        [(1, "kept")],
    ],
    {},
)
def an_orderly_stop_keeps_every_message(lab: Lab) -> Any:
    topic = lab.topic("c")
    lab.publish(topic, b"flying", b"queued")
    lab.client(topic, ready=1).messages(1)
    assert Client(lab).ask(f"DPUB {topic} 60000", b"deferred") == "OK"
    lab.until(topic, depth=1, in_flight_count=1, deferred_count=1)
    lab.restart(crash=False)
    found: list[Any] = [lab.stats(topic, *COUNTS)]
    client = lab.client(topic, ready=9)
    came = client.messages(3)
    client.finish(came)
    lab.until(topic, **GONE)
    found.append(sorted((attempts, body) for _, attempts, body in came))
    # Messages kept by an orderly stop are kept by a kill as well.
    lab.publish(topic, b"kept")
    lab.until(topic, depth=0, in_flight_count=1)
    client.close()
    lab.restart(crash=False)
    lab.publish(topic, b"in memory")
    lab.until(topic, depth=2)
    return [*found, [(attempts - 1, body) for attempts, body in after_a_kill(lab, topic, 1)]]


# -- the labs


class SimulatedWire:
    """A stream of the simulated network."""

    def __init__(self, world: World, transport: SimulatedTransport) -> None:
        self._world, self._transport = world, transport

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._transport.send(view) :]

    def receive(self, seconds: float) -> bytes | None:
        until, buffer = self._world.now + seconds, bytearray(65536)
        while True:
            try:
                n = self._transport.recv_into(memoryview(buffer))
            except TransportError:
                return b""
            if n is not None or self._world.now >= until:
                return None if n is None else bytes(buffer[:n])
            self._world.sleep(0.001)

    def close(self) -> None:
        self._transport.close()


class SimulatedLab(Lab):
    """The model."""

    def __init__(self, world: World, **settings: Any) -> None:
        super().__init__()
        self._world = world
        self._cluster = Cluster(world, 1, **settings)
        (self._nsqd,) = self._cluster.nsqds

    def connect(self) -> Any:
        return SimulatedWire(self._world, network().connect(self._nsqd.address, 5.0))

    def topic(self, *channels: str) -> str:
        topic = f"t{self._world.count('topics')}"
        assert self.post("/topic/create", topic) == 200
        for channel in channels:
            assert self.post("/channel/create", topic, channel) == 200
        return topic

    def http(self, method: str, path: str, **parameters: str) -> tuple[int, Any]:
        answer: tuple[int, Any] = network().https[self._nsqd.http_address](method, path, parameters)
        return answer

    def pause(self, seconds: float) -> None:
        self._world.sleep(seconds)

    @property
    def now(self) -> float:
        return self._world.now

    def restart(self, *, crash: bool) -> None:
        self._nsqd.stop(crash=crash)
        self._nsqd.start()


class SocketWire:
    """A connection to a running broker."""

    def __init__(self, address: str) -> None:
        self._client = RawClient(address)

    def send(self, data: bytes) -> None:
        self._client.send(data)

    def receive(self, seconds: float) -> bytes | None:
        self._client.sock.settimeout(seconds)
        try:
            return self._client.sock.recv(1 << 16)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._client.close()


class RunningLab(Lab):
    """The embedded broker, or nsqd."""

    def __init__(self, nsq: NsqUnderTest) -> None:
        super().__init__()
        self._nsq = nsq
        self._wires: list[SocketWire] = []

    def connect(self) -> Any:
        self._wires.append(SocketWire(self._nsq.tcp_address))
        return self._wires[-1]

    def topic(self, *channels: str) -> str:
        return self._nsq.topic(*channels)

    def http(self, method: str, path: str, **parameters: str) -> tuple[int, Any]:
        return self._nsq.ask(method, self._nsq.http_address, path, **parameters)

    def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)  # nsqd has no event for this

    @property
    def now(self) -> float:
        return time.monotonic()

    def restart(self, *, crash: bool) -> None:
        self._nsq.broker.restart(crash=crash)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()


@pytest.mark.parametrize("name", TRACES)
def test_the_model_does(name: str) -> None:
    fact = TRACES[name]
    world = World(1)
    with world.running():
        found = world.run(lambda: fact.run(SimulatedLab(world, **(fact.settings or {}))))
    assert found == fact.expected


@pytest.mark.parametrize("name", TRACES)
def test_a_broker_does(name: str, nsq: NsqUnderTest, nsq_private: Callable[..., NsqUnderTest]) -> None:
    fact = TRACES[name]
    with closing(RunningLab(nsq if fact.settings is None else nsq_private(**fact.settings))) as lab:
        found = fact.run(lab)
    assert found == fact.expected
