"""The model of a broker and a real one, with a common interface for the traces of `test_likeness`.

Ledger ids differ from broker to broker, so they are numbered in the order in which a trace receives them, from 0 on.
"""

from __future__ import annotations

import contextlib
import copy
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from brokers.pulsar_admin import CONFLICT, AdminError
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command
from spark_mq_source.pulsar.protocol.commands import AckType, InitialPosition, MessageId, SubType
from spark_mq_source.pulsar.protocol.wire import DEFAULT_MAX_MESSAGE_BYTES, take_frame
from tests.simulation import network
from tests.simulation.pulsar.broker import Cluster
from tests.simulation.pulsar.dispatch import Limits
from tests.simulation.pulsar.entries import Entry, make_entry
from tests.simulation.world import World

if TYPE_CHECKING:
    from typing_extensions import Self

QUIET_SECONDS = 1.0
"""Seconds of silence after which a trace assumes that nothing more arrives."""

PATIENCE = 5.0
"""Factor of the waiting times in the second try after a difference: the real broker may only have been busy."""


class Model:
    """A cluster of one broker in a world; a trace runs in a fiber of it."""

    token = None
    patience = 1.0

    def __init__(
        self,
        world: World,
        *,
        deduplicates: bool = False,
        partition: int | None = None,
        batch_indexes: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._world = world
        self._cluster = Cluster(
            world,
            ledger_entries=50_000,
            coordinators=1,
            deduplicates=deduplicates,
            batch_indexes=batch_indexes,
            limits=limits,
        )
        names = self._cluster.create("persistent://public/default/t", 0 if partition is None else 4)
        self.topic = names[partition or 0]
        self.reconnect()

    def another(self) -> Self:
        """Return another connection of the same client."""
        other = copy.copy(self)
        other.reconnect()
        return other

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

    def wall(self) -> float:
        return self._world.wall

    def unload(self) -> None:
        self._cluster.unload(self.topic)
        self._world.sleep(0.1)

    def trim(self) -> None:
        self._cluster.trim(self.topic)

    def truncate(self) -> None:
        self._cluster.truncate(self.topic)

    def compact(self) -> None:
        self._cluster.compact(self.topic)

    def terminate(self) -> None:
        self._cluster.terminate(self.topic)

    def kill(self) -> None:
        broker = self._cluster.brokers[0]
        broker.kill()
        broker.start()
        self.reconnect()

    def close(self) -> None:
        self._transport.close()


class Real:
    """A real broker, 4.0.8."""

    def __init__(
        self,
        broker: Any,
        *,
        deduplicates: bool = False,
        partition: int | None = None,
        limits: Limits | None = None,
        patience: float = 1.0,
    ) -> None:
        self.patience = patience
        namespace = broker.new_namespace(keep_data=False)
        self._admin = broker.admin
        self._broker = broker.broker
        self.token = None if broker.broker is None else broker.broker.admin_token
        if deduplicates:
            self._admin.set_deduplication(namespace, enabled=True)
        if limits is not None:
            for name in ("consumer", "subscription"):
                path = f"namespaces/{namespace}/maxUnackedMessagesPer{name.capitalize()}"
                self._admin.request("POST", path, getattr(limits, name))
            delays = {"active": True, "tickTime": int(limits.tick_seconds * 1000)}
            self._admin.request("POST", f"namespaces/{namespace}/delayedDelivery", delays)
        self.topic = f"persistent://{namespace}/t"
        try:
            self._admin.create_topic(self.topic, 0 if partition is None else 4)
        except AdminError as error:
            # The namespace is new, so this call created the topic: a request without an answer is sent again.
            if error.status != CONFLICT:
                raise
        if partition is not None:
            self.topic += f"-partition-{partition}"
        self._address = urlsplit(broker.service_url)
        self._socket: socket.socket | None = None
        self.reconnect()

    def another(self) -> Self:
        """Return another connection of the same client."""
        other = copy.copy(self)
        other._socket = None
        other.reconnect()
        return other

    def kill(self) -> None:
        self._broker.kill()
        self._broker.start()
        self.reconnect()

    def close(self) -> None:
        assert self._socket is not None
        self._socket.close()

    def reconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = socket.create_connection((self._address.hostname, self._address.port), 10)

    def transfer(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def receive(self, seconds: float) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(seconds * self.patience)
        try:
            return self._socket.recv(65536)
        except TimeoutError:
            return b""

    def wall(self) -> float:
        return time.time()

    def unload(self) -> None:
        self._admin.unload(self.topic)

    def trim(self) -> None:
        self._admin.trim(self.topic)
        time.sleep(self.patience)  # the broker answers before it has trimmed

    def truncate(self) -> None:
        self._admin.request("DELETE", f"{self.topic.replace('://', '/')}/truncate")
        time.sleep(self.patience)

    def compact(self) -> None:
        self._admin.compact(self.topic)

    def terminate(self) -> None:
        self._admin.terminate(self.topic)


@dataclass(frozen=True)
class Trace:
    """A fact about a broker.

    Attributes:
        run: performs the steps; returns the observations.
        expected: the expected observations.
        broker: the real broker that it needs: `any`, `featured` or `private`.
        is_slow: whether it waits seconds for timers of the real broker.
        options: of `Model` and `Real`.
    """

    run: Callable[[Client], Any]
    expected: Any
    broker: str
    is_slow: bool
    options: Mapping[str, Any]


TRACES: dict[str, Trace] = {}


def trace(
    expected: object, *, broker: str = "any", is_slow: bool = False, **options: object
) -> Callable[[Callable[[Client], Any]], None]:
    """Register a trace; see `Trace`."""

    def note(run: Callable[[Client], Any]) -> None:
        TRACES[run.__name__] = Trace(run, expected, broker, is_slow, options)

    return note


def done_by(broker: Any, trace: Trace) -> object:
    """Run a trace on a real broker and return its observations; on a difference, repeat it with longer waiting times.

    The broker may also have refused a request: a broker that was just started unloads a topic and loads it again.
    """
    with contextlib.suppress(AssertionError, AttributeError, OSError):
        found = trace.run(Client(Real(broker, **trace.options)))
        if found == trace.expected:
            return found
    return trace.run(Client(Real(broker, patience=PATIENCE, **trace.options)))


class Client:
    """A client that sends single commands to one side."""

    def __init__(self, side: Model | Real) -> None:
        self.side = side
        self._unread = b""
        self._request_id = 0
        self._consumer_id = 0
        self._sequence_id = -1
        self._came: list[Any] = []
        self.bodies: dict[tuple[int, int], Any] = {}
        self._ledgers: dict[int, int] = {-1: -1}
        self._connect()

    def another(self) -> Client:
        """Return a client on another connection, with the same numbers of ledgers."""
        other = Client(self.side.another())
        other._ledgers = self._ledgers
        other._consumer_id = 100
        return other

    def reconnect(self) -> None:
        """Open a new connection after the old one has ended."""
        self._unread, self._came = b"", []
        self._connect()

    def _connect(self) -> None:
        flags = commands.FeatureFlags(supports_broker_entry_metadata=False)
        token = self.side.token
        method, data = (None, None) if token is None else ("token", token.encode())
        self._transmit(commands.Connect("likeness", data, 20, method, feature_flags=flags))
        self._next(lambda came: isinstance(came, commands.Connected))
        self._producer_open = False

    def _transmit(self, command: commands.Command) -> None:
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
                    self._transmit(commands.Pong())
                else:
                    self._came.append(command)

    def ask(self, command: Callable[[int], commands.Command]) -> Any:
        """Send a request; return its answer."""
        self._request_id += 1
        mine = self._request_id
        self._transmit(command(mine))
        return self._next(lambda came: getattr(came, "request_id", None) == mine)

    def lookup(self, topic: str | None = None) -> None:
        """Look up the topic, or another one, until a broker serves it."""
        while True:
            found = self.ask(lambda n: commands.Lookup(topic or self.side.topic, n))
            if found.response is not commands.LookupType.Failed:
                return

    def subscribe(
        self,
        start: tuple[int, int] | None = None,
        *,
        name: str = "",
        initial: InitialPosition = InitialPosition.Latest,
        compacted: bool = False,
    ) -> int:
        """Open a consumer, durable if it has a name; return its id."""
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
                read_compacted=compacted,
                durable=bool(name),
                start_message_id=None if start is None else MessageId(*start),
                initial_position=initial,
                force_topic_creation=False,
            )
        )
        assert isinstance(answer, commands.Success), answer
        return mine

    def open_producer(self, name: str = "p", producer_id: int = 1) -> Any:
        """Send PRODUCER; return the answer."""
        self.lookup()
        return self.ask(
            lambda n: commands.Producer(
                self.side.topic, producer_id, n, producer_name=name, user_provided_producer_name=False
            )
        )

    def send(self, first: int, count: int, producer_id: int = 1) -> tuple[int, int]:
        """Send a batch, or one message; return the position in its receipt."""
        entry = make_entry([f"m{first + i}".encode() for i in range(count)], 1_000, producer="p", sequence_id=first)
        highest = first + count - 1 if count > 1 else None
        self._transmit(commands.Send(producer_id, first, entry.body, count, highest))
        receipt = self._next(lambda came: isinstance(came, commands.SendReceipt | commands.SendError))
        assert isinstance(receipt, commands.SendReceipt), receipt
        return self._placed(receipt)

    def publish(self, *counts: int) -> list[tuple[int, int]]:
        """Publish entries with these numbers of messages; return their positions."""
        if not self._producer_open:
            self.open_producer()
            self._producer_open = True
        found = []
        for count in counts:
            found.append(self.send(self._sequence_id + 1, count))
            self._sequence_id += count
        return found

    def roll_over(self) -> None:
        """Load the topic again, with a new ledger."""
        self.side.unload()
        self._next(lambda came: False, QUIET_SECONDS)
        self._came.clear()
        self._producer_open = False

    def bounds(self, consumer: int) -> tuple[Any, Any, int]:
        """Return the position of the cursor, that of the last message, and its index in the batch."""
        answer = self.ask(lambda n: commands.GetLastMessageId(consumer, n))
        assert isinstance(answer, commands.GetLastMessageIdResponse), answer
        mark, last = answer.consumer_mark_delete_position, answer.last_message_id
        return (
            self.at(mark.ledger_id, mark.entry_id),
            self.at(last.ledger_id, last.entry_id),
            last.batch_index,
        )

    def backlog(self, consumer: int) -> int:
        """Return the backlog from CONSUMER_STATS."""
        answer = self.ask(lambda n: commands.ConsumerStats(n, consumer))
        assert isinstance(answer, commands.ConsumerStatsResponse), answer
        return answer.msg_backlog

    def acknowledge(self, consumer: int, upto: tuple[int, int]) -> None:
        """Acknowledge cumulatively, and wait for the answer."""
        ids = (MessageId(*upto),)
        self.ask(lambda n: commands.Ack(consumer, commands.AckType.Cumulative, ids, n))

    def read(self, consumer: int, permits: int, most: int = 100) -> list[Any]:
        """Send permits; return the positions of the entries that arrive."""
        self._transmit(commands.Flow(consumer, permits))
        found = []
        while len(found) < most:
            message = self._next(
                lambda came: isinstance(came, commands.Message) and came.consumer_id == consumer, QUIET_SECONDS
            )
            if message is None:
                break
            found.append(self.at(message.ledger_id, message.entry_id))
        return found

    def _placed(self, receipt: commands.SendReceipt) -> tuple[int, int]:
        position = receipt.message_id.ledger_id, receipt.message_id.entry_id
        self.at(*position)
        return position

    def at(self, ledger: int, entry: int) -> tuple[int, int]:
        """Return a position with the number of its ledger."""
        return self._ledgers.setdefault(ledger, len(self._ledgers) - 1), entry

    # -- shared subscriptions

    def join(
        self,
        kind: SubType,
        name: str = "",
        *,
        priority: int | None = None,
        meta: commands.KeySharedMeta | None = None,
        durable: bool = True,
    ) -> int:
        """Open a consumer of the subscription `s`; return its id, or the negative error code of a refusal."""
        self.lookup()
        self._consumer_id += 1
        mine = self._consumer_id
        answer = self.ask(
            lambda n: commands.Subscribe(
                self.side.topic,
                "s",
                kind,
                mine,
                n,
                consumer_name=name or None,
                priority_level=priority,
                key_shared_meta=meta,
                durable=durable,
                initial_position=InitialPosition.Earliest,
                force_topic_creation=False,
            )
        )
        return -answer.error if isinstance(answer, commands.Error) else mine

    def consume(self, kind: SubType, name: str = "", *, permits: int = 100, **options: Any) -> int:
        """Open a consumer as `join` does, and send permits."""
        mine = self.join(kind, name, **options)
        self.flow(mine, permits)
        return mine

    def flow(self, consumer: int, permits: int = 100) -> None:
        """Send permits for a consumer; `deliveries` returns the entries that arrive."""
        self._transmit(commands.Flow(consumer, permits))

    def deliveries(self, seconds: float = QUIET_SECONDS, most: float = inf) -> list[tuple[int, tuple[int, int], int]]:
        """Return the consumer, entry and redelivery count of each delivery, until no more arrive."""
        found: list[tuple[int, tuple[int, int], int]] = []
        while (
            len(found) < most
            and (came := self._next(lambda came: isinstance(came, commands.Message), seconds)) is not None
        ):
            self.bodies[came.ledger_id, came.entry_id] = came
            found.append((came.consumer_id, self.at(came.ledger_id, came.entry_id), came.redelivery_count))
        return found

    def of(self, consumer: int) -> list[int]:
        """Return the entries that arrive at a consumer; drop those of others."""
        return [position[1] for to, position, _ in self.deliveries() if to == consumer]

    def ack(self, consumer: int, *ids: tuple[int, int], ack_set: Sequence[int] = (), cumulative: bool = False) -> Any:
        """Acknowledge these ids; return the error code of the answer, or None."""
        kind = AckType.Cumulative if cumulative else AckType.Individual
        sent = tuple(MessageId(*one, ack_set=tuple(ack_set)) for one in ids)
        return self.ask(lambda n: commands.Ack(consumer, kind, sent, n)).error

    def redeliver(self, consumer: int, *ids: tuple[int, int]) -> None:
        """Request the redelivery of these ids, or of all."""
        self._transmit(commands.RedeliverUnacknowledgedMessages(consumer, tuple(MessageId(*one) for one in ids)))

    def ended(self, seconds: float = QUIET_SECONDS) -> list[int]:
        """Return the consumers that receive REACHED_END_OF_TOPIC, once or more often."""
        found = set()
        while (came := self._next(lambda came: isinstance(came, commands.ReachedEndOfTopic), seconds)) is not None:
            found.add(came.consumer_id)
        return sorted(found)

    def close_consumer(self, consumer: int) -> None:
        """Close a consumer."""
        self.ask(lambda n: commands.CloseConsumer(consumer, n))

    def store(self, entry: Entry) -> tuple[int, int]:
        """Publish an entry unchanged; return its position."""
        if not self._producer_open:
            self.open_producer()
            self._producer_open = True
        self._sequence_id += 1
        most, least = entry.txn or (None, None)
        self._transmit(commands.Send(1, self._sequence_id, entry.body, entry.messages, None, least, most))
        receipt = self._next(lambda came: isinstance(came, commands.SendReceipt | commands.SendError))
        assert isinstance(receipt, commands.SendReceipt), receipt
        return self._placed(receipt)

    def delayed(self, seconds: float, key: str | None = None) -> tuple[tuple[int, int], float]:
        """Publish a message with a delivery delay in seconds; return its position and the time of its delivery."""
        deliver_at = int((self.side.wall() + seconds) * 1000)
        entry = make_entry([b"late"], 1_000, producer="p", sequence_id=500, key=key, deliver_at=deliver_at)
        return self.store(entry), deliver_at / 1000

    def stats(self, consumer: int) -> Any:
        """Return the answer to CONSUMER_STATS."""
        return self.ask(lambda n: commands.ConsumerStats(n, consumer))

    def changes(self, seconds: float = QUIET_SECONDS) -> list[tuple[int, bool]]:
        """Return the consumers notified of being active or not, in order, until no more notifications arrive."""
        found = []
        while (came := self._next(lambda came: isinstance(came, commands.ActiveConsumerChange), seconds)) is not None:
            found.append((came.consumer_id, came.is_active))
        return found
