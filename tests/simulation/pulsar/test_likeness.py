"""The model of a broker is like the broker: each fact is a scripted trace, run on both, with equal observations.

What is expected is written down once, beside the trace. Ledger ids differ from broker to broker, so they are counted
here in the order in which a trace meets them: the first is 0.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import pytest

from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command
from spark_mq_source.pulsar.protocol.commands import InitialPosition, MessageId
from spark_mq_source.pulsar.protocol.wire import DEFAULT_MAX_MESSAGE_BYTES, take_frame
from tests.simulation import network, standins
from tests.simulation.pulsar.broker import Cluster
from tests.simulation.pulsar.entries import make_entry
from tests.simulation.world import World

T = TypeVar("T")

QUIET_SECONDS = 1.0
"""How long nothing has to come before nothing is taken to come."""


class Side(Protocol):
    """The model or a real broker."""

    topic: str

    def transfer(self, data: bytes) -> None: ...

    def receive(self, seconds: float) -> bytes: ...

    def reconnect(self) -> None: ...

    def unload(self) -> None: ...

    def trim(self) -> None: ...

    def truncate(self) -> None: ...


class Model:
    """A cluster of one broker in a world; a trace runs in a fiber of it."""

    def __init__(self, world: World, *, deduplicates: bool) -> None:
        self.topic = "persistent://public/default/t"
        self._world = world
        self._cluster = Cluster(world, ledger_entries=50_000, deduplicates=deduplicates)
        self._cluster.create(self.topic)
        self.reconnect()

    def reconnect(self) -> None:
        self._transport = network.network().connect(self._cluster.brokers[0].address, 5.0)

    def transfer(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._transport.send(view) :]

    def receive(self, seconds: float) -> bytes:
        until = self._world.now + seconds
        buffer = bytearray(65536)
        while (n := self._transport.recv_into(memoryview(buffer))) is None and self._world.now < until:
            self._world.sleep(0.001)
        return bytes(buffer[: n or 0])

    def unload(self) -> None:
        self._cluster.unload(self.topic)
        self._world.sleep(0.1)

    def trim(self) -> None:
        self._cluster.trim(self.topic)

    def truncate(self) -> None:
        self._cluster.truncate(self.topic)


class Real:
    """A real broker, 4.0.8."""

    def __init__(self, broker: Any, *, deduplicates: bool) -> None:
        namespace = broker.new_namespace(keep_data=False)
        self._admin = broker.admin
        if deduplicates:
            self._admin.set_deduplication(namespace, enabled=True)
        self.topic = f"persistent://{namespace}/t"
        self._admin.create_topic(self.topic)
        self._address = urlsplit(broker.service_url)
        self._socket: socket.socket | None = None
        self.reconnect()

    def reconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = socket.create_connection((self._address.hostname, self._address.port), 10)

    def transfer(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def receive(self, seconds: float) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(65536)
        except TimeoutError:
            return b""

    def unload(self) -> None:
        self._admin.unload(self.topic)

    def trim(self) -> None:
        self._admin.trim(self.topic)
        time.sleep(1.0)  # the broker answers before it has trimmed

    def truncate(self) -> None:
        self._admin.request("DELETE", f"{self.topic.replace('://', '/')}/truncate")
        time.sleep(1.0)


class Client:
    """Speaks with one side, command by command."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._unread = b""
        self._request_id = 0
        self._consumer_id = 0
        self._sequence_id = -1
        self._came: list[Any] = []
        self._ledgers: dict[int, int] = {-1: -1}
        self._connect()

    def _connect(self) -> None:
        flags = commands.FeatureFlags(supports_broker_entry_metadata=False)
        self._tell(commands.Connect("likeness", protocol_version=20, feature_flags=flags))
        self._next(lambda came: isinstance(came, commands.Connected))
        self._producer_open = False

    def _tell(self, command: commands.Command) -> None:
        self.side.transfer(encode_command(command))

    def _next(self, wanted: Callable[[Any], bool], seconds: float = 15.0) -> Any:
        while True:
            for came in self._came:
                if wanted(came):
                    self._came.remove(came)
                    return came
            data = self.side.receive(seconds)
            if not data:
                return None
            self._unread += data
            while (frame := take_frame(memoryview(self._unread), 0, DEFAULT_MAX_MESSAGE_BYTES)) is not None:
                command = decode_command(frame)
                if isinstance(command, commands.Message):
                    command = command._replace(body=bytes(command.body))
                self._unread = self._unread[frame.size :]
                if isinstance(command, commands.Ping):
                    self._tell(commands.Pong())
                else:
                    self._came.append(command)

    def ask(self, command: Callable[[int], commands.Command]) -> Any:
        """A request's answer."""
        self._request_id += 1
        mine = self._request_id
        self._tell(command(mine))
        return self._next(lambda came: getattr(came, "request_id", None) == mine)

    def lookup(self) -> None:
        """Has the topic served."""
        while True:
            found = self.ask(lambda n: commands.Lookup(self.side.topic, n))
            if found.response is not commands.LookupType.Failed:
                return

    def subscribe(
        self,
        start: tuple[int, int] | None = None,
        *,
        name: str = "",
        initial: InitialPosition = InitialPosition.Latest,
    ) -> int:
        """A consumer; durable where it has a name."""
        self.lookup()
        self._consumer_id += 1
        mine = self._consumer_id
        answer = self.ask(
            lambda n: commands.Subscribe(
                self.side.topic,
                name or f"reader-{mine}",
                commands.SubType.Exclusive,
                mine,
                n,
                durable=bool(name),
                start_message_id=None if start is None else MessageId(*start),
                initial_position=initial,
                force_topic_creation=False,
            )
        )
        assert isinstance(answer, commands.Success), answer
        return mine

    def open_producer(self, name: str = "p", producer_id: int = 1) -> Any:
        """PRODUCER's answer."""
        self.lookup()
        return self.ask(
            lambda n: commands.Producer(
                self.side.topic, producer_id, n, producer_name=name, user_provided_producer_name=False
            )
        )

    def send(self, first: int, count: int, producer_id: int = 1) -> tuple[int, int]:
        """SEND of a batch (or of one message), and where its receipt says that it is."""
        entry = make_entry([f"m{first + i}".encode() for i in range(count)], 1_000, producer="p", sequence_id=first)
        highest = first + count - 1 if count > 1 else None
        self._tell(commands.Send(producer_id, first, entry.body, count, highest))
        receipt = self._next(lambda came: isinstance(came, commands.SendReceipt | commands.SendError))
        assert isinstance(receipt, commands.SendReceipt), receipt
        return receipt.message_id.ledger_id, receipt.message_id.entry_id

    def publish(self, *counts: int) -> list[tuple[int, int]]:
        """Entries of so many messages each."""
        if not self._producer_open:
            self.open_producer()
            self._producer_open = True
        found = []
        for count in counts:
            found.append(self.send(self._sequence_id + 1, count))
            self._sequence_id += count
        return found

    def roll_over(self) -> None:
        """The topic is loaded anew, with a new ledger."""
        self.side.unload()
        self._next(lambda came: False, QUIET_SECONDS)
        self._came.clear()
        self._producer_open = False

    def bounds(self, consumer: int) -> tuple[Any, Any, int]:
        """Where the cursor is, what the last message is, and the index in its batch."""
        answer = self.ask(lambda n: commands.GetLastMessageId(consumer, n))
        mark, last = answer.consumer_mark_delete_position, answer.last_message_id
        return (
            self.at(mark.ledger_id, mark.entry_id),
            self.at(last.ledger_id, last.entry_id),
            last.batch_index,
        )

    def backlog(self, consumer: int) -> int:
        """CONSUMER_STATS."""
        return self.ask(lambda n: commands.ConsumerStats(n, consumer)).msg_backlog

    def acknowledge(self, consumer: int, upto: tuple[int, int]) -> None:
        """Cumulative, answered."""
        ids = (MessageId(*upto),)
        self.ask(lambda n: commands.Ack(consumer, commands.AckType.Cumulative, ids, n))

    def read(self, consumer: int, permits: int, most: int = 100) -> list[Any]:
        """The positions of what comes."""
        self._tell(commands.Flow(consumer, permits))
        found = []
        while len(found) < most:
            message = self._next(
                lambda came: isinstance(came, commands.Message) and came.consumer_id == consumer, QUIET_SECONDS
            )
            if message is None:
                break
            found.append(self.at(message.ledger_id, message.entry_id))
        return found

    def at(self, ledger: int, entry: int) -> tuple[int, int]:
        """A position with its ledger counted from 0."""
        return self._ledgers.setdefault(ledger, len(self._ledgers) - 1), entry

    def meet(self, *positions: tuple[int, int]) -> None:
        """Counts the ledgers of these."""
        for position in positions:
            self.at(*position)


# -- traces: what is done, and what is observed (pulsar_live.md, by section)


def start_is_inclusive(c: Client) -> Any:
    ids = c.publish(1, 3, 1)
    c.meet(*ids)
    reader = c.subscribe(ids[1])
    return c.bounds(reader), c.read(reader, 100)


def start_right_behind_the_end_waits(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.meet(*ids)
    behind = ids[1][0], ids[1][1] + 1
    return [c.read(c.subscribe(behind, initial=initial), 100) for initial in InitialPosition]


def start_past_the_end(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.meet(*ids)
    past = ids[1][0], 50
    readers = [c.subscribe(past, initial=initial) for initial in InitialPosition]
    return [(c.bounds(reader)[0], c.read(reader, 100)) for reader in readers]


def start_too_large_in_a_closed_ledger(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.roll_over()
    ids += c.publish(1)
    c.meet(*ids)
    reader = c.subscribe((ids[0][0], 1 << 62))
    return c.bounds(reader)[0], c.read(reader, 1)


def last_message(c: Client) -> Any:
    empty = c.bounds(c.subscribe((-1, -1)))[1:]
    ids = c.publish(1)
    c.meet(*ids)
    single = c.bounds(c.subscribe((-1, -1)))
    c.publish(3)
    batch = c.bounds(c.subscribe((-1, -1)))
    c.roll_over()
    return empty, single, batch, c.bounds(c.subscribe((-1, -1)))


def backlog_falls_with_acknowledgements_only(c: Client) -> Any:
    ids = c.publish(1, 2, 1, 1)
    reader = c.subscribe(ids[1])
    before = c.backlog(reader)
    c.read(reader, 100)
    read = c.backlog(reader)
    c.acknowledge(reader, ids[2])
    return before, read, c.backlog(reader)


def flow_sends_whole_entries(c: Client) -> Any:
    c.publish(5, 5)
    reader = c.subscribe((-1, -1))
    return len(c.read(reader, 1))


def acknowledging_too_much_or_backwards_changes_nothing(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    seen = [c.bounds(pin)[0]]
    for upto in (ids[1], (ids[2][0], 50), (ids[2][0] + 1000, 0), ids[0]):
        c.acknowledge(pin, upto)
        seen.append(c.bounds(pin)[0])
    return seen


def a_pin_ignores_its_start(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    return c.bounds(c.subscribe(ids[2], name="pin", initial=InitialPosition.Earliest))[0]


def trimming_moves_a_connected_reader(c: Client) -> Any:
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    ids = c.publish(1, 1)
    for _ in range(3):
        c.roll_over()
        ids += c.publish(1, 1)
    c.meet(*ids)
    reader = c.subscribe(ids[0])
    first = c.read(reader, 1, most=1)
    pin = c.subscribe(name="pin")
    c.acknowledge(pin, ids[5])
    c.side.trim()
    moved = c.bounds(reader)[0]
    return first, moved, c.read(reader, 100)


def start_in_a_trimmed_ledger(c: Client) -> Any:
    c.subscribe(name="pin", initial=InitialPosition.Earliest)
    ids = c.publish(1, 1)
    c.roll_over()
    ids += c.publish(1, 1)
    c.meet(*ids)
    c.acknowledge(c.subscribe(name="pin"), ids[2])
    c.side.trim()
    reader = c.subscribe(ids[1])
    return c.bounds(reader)[0], c.read(reader, 100)


def truncating_spares_the_current_ledger(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    reader = c.subscribe(ids[1])
    c.side.truncate()
    again = c.subscribe(ids[1])
    seen = [c.bounds(reader)[0], *c.bounds(again)[:2]]
    return seen, c.read(again, 100)


def truncating_closed_ledgers_leaves_nothing(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.roll_over()
    c.meet(*ids)
    reader = c.subscribe(ids[1])
    c.side.truncate()
    again = c.subscribe(ids[1])
    seen = [c.bounds(reader)[0], *c.bounds(again)[:2]]
    return seen, c.read(again, 100)


def seek_by_id_and_time(c: Client) -> Any:
    ids = c.publish(1, 1, 1)
    c.meet(*ids)
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    c.ask(lambda n: commands.Seek(pin, n, message_id=MessageId(*ids[2])))
    by_id = c.bounds(c.subscribe(name="pin"))[0]
    reader = c.subscribe((-1, -1))
    c.ask(lambda n: commands.Seek(reader, n, message_publish_time=2_000))
    c._consumer_id -= 1  # under the same name
    return by_id, c.bounds(c.subscribe((-1, -1)))[0]


def seeking_to_the_first_entry_of_a_ledger(c: Client) -> Any:
    ids = c.publish(1, 1)
    c.roll_over()
    ids += c.publish(1, 1)
    c.meet(*ids)
    pin = c.subscribe(name="pin", initial=InitialPosition.Earliest)
    c.ask(lambda n: commands.Seek(pin, n, message_id=MessageId(*ids[2])))
    pin = c.subscribe(name="pin")
    seen = [c.bounds(pin)[0]]
    c.acknowledge(pin, (ids[2][0], -1))
    seen.append(c.bounds(pin)[0])
    return seen, c.read(pin, 100)


def unloading_closes_consumers_and_producers(c: Client) -> Any:
    c.publish(1)
    c.subscribe((-1, -1))
    c.side.unload()
    closed = [
        c._next(lambda came, kind=kind: isinstance(came, kind))
        for kind in (commands.CloseConsumer, commands.CloseProducer)
    ]
    return [one.request_id for one in closed]


def a_name_in_use_is_busy(c: Client) -> Any:
    c.open_producer("p", 1)
    return c.open_producer("p", 2).error


def statistics_of_an_unknown_consumer_drop_the_connection(c: Client) -> Any:
    c.publish(1)
    answer = c.ask(lambda n: commands.ConsumerStats(n, 77))
    c.side.reconnect()
    return answer


def a_duplicate_has_a_receipt_without_place(c: Client) -> Any:
    c.publish(3, 3)
    again = c.send(3, 3)
    overlap = c.send(4, 4)
    return again, overlap, c.at(*c.send(20, 1))[1]


def the_highest_sequence_id_is_told(c: Client) -> Any:
    before = c.open_producer().last_sequence_id
    c.send(0, 5)
    c.side.unload()
    c._next(lambda came: False, QUIET_SECONDS)
    return before, c.open_producer().last_sequence_id


TRACES: dict[str, tuple[Callable[[Client], Any], Any]] = {
    trace.__name__: (trace, expected)
    for trace, expected in (
        (start_is_inclusive, (((0, 0), (0, 2), -1), [(0, 1), (0, 2)])),
        (start_right_behind_the_end_waits, [[], []]),
        (start_past_the_end, [((0, 1), []), ((0, -1), [(0, 0), (0, 1)])]),
        (start_too_large_in_a_closed_ledger, ((0, 1), [(1, 0)])),
        (last_message, (((-1, -1), -1), ((0, -1), (0, 0), -1), ((0, -1), (0, 1), 2), ((0, -1), (0, 1), 2))),
        (backlog_falls_with_acknowledgements_only, (3, 3, 1)),
        (flow_sends_whole_entries, 1),
        (
            acknowledging_too_much_or_backwards_changes_nothing,
            [(0, -1), (0, 1), (0, 1), (0, 1), (0, 1)],
        ),
        (a_pin_ignores_its_start, (0, -1)),
        (trimming_moves_a_connected_reader, ([(0, 0)], (2, 1), [(3, 0), (3, 1)])),
        (start_in_a_trimmed_ledger, ((1, -1), [(1, 0), (1, 1)])),
        (truncating_spares_the_current_ledger, ([(0, 2), (0, 0), (0, 2)], [(0, 1), (0, 2)])),
        (truncating_closed_ledgers_leaves_nothing, ([(0, 2), (1, -1), (-1, -1)], [])),
        (seek_by_id_and_time, ((0, 1), (0, 2))),
        (seeking_to_the_first_entry_of_a_ledger, ([(0, 1), (1, -1)], [(1, 0), (1, 1)])),
        (unloading_closes_consumers_and_producers, [-1, -1]),
        (a_name_in_use_is_busy, 16),
        (statistics_of_an_unknown_consumer_drop_the_connection, None),
        (a_duplicate_has_a_receipt_without_place, ((-1, -1), (-1, -1), 2)),
        (the_highest_sequence_id_is_told, (-1, 4)),
    )
}
DEDUPLICATING = {"a_duplicate_has_a_receipt_without_place", "the_highest_sequence_id_is_told"}


@pytest.fixture
def simulated() -> Iterator[None]:
    standins.install()
    yield
    standins.uninstall()


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("name", TRACES)
def test_the_model_does(name: str) -> None:
    trace, expected = TRACES[name]
    world = World(7)
    with world.running():
        found = world.run(lambda: trace(Client(Model(world, deduplicates=name in DEDUPLICATING))))
    assert found == expected


@pytest.mark.parametrize("name", TRACES)
def test_the_real_broker_does(name: str, pulsar: Any) -> None:
    trace, expected = TRACES[name]
    assert trace(Client(Real(pulsar, deduplicates=name in DEDUPLICATING))) == expected
