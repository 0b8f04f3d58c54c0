"""A Pulsar cluster in the simulated world: brokers that listen, and connections that implement the protocol.

All code runs in callbacks of received bytes (`Connection.received`) and timers (`World.after`). Bytes are read and
written by the package's own codec. The brokers behave as 4.0.8 does, which `test_likeness` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command
from spark_mq_source.pulsar.protocol.commands import KeySharedMode
from spark_mq_source.pulsar.protocol.wire import DEFAULT_MAX_MESSAGE_BYTES, take_frame
from tests.simulation.network import Stream, network
from tests.simulation.pulsar.dispatch import Consumer, Limits, Subscription
from tests.simulation.pulsar.entries import Entry, make_chunks, make_entry
from tests.simulation.pulsar.ledgers import EARLIEST, ManagedLedger, Position
from tests.simulation.pulsar.topic import Producer, Topic
from tests.simulation.pulsar.transactions import INVALID_TXN_STATUS, Coordinators, TransactionBuffer
from tests.simulation.pulsar.writes import WriteFaults
from tests.simulation.world import World

METADATA_ERROR, PERSISTENCE_ERROR, CONSUMER_BUSY, SERVICE_NOT_READY, TOPIC_NOT_FOUND, PRODUCER_BUSY = 1, 2, 5, 6, 11, 16
TOPIC_TERMINATED = 15
ASSIGN_ERROR, NOT_ALLOWED = 19, 22

COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"

KEEP_ALIVE_SECONDS = 30.0
LIVENESS_SECONDS = 5.0
"""`connectionLivenessCheckTimeoutMillis`."""

MAX_FRAME_BYTES = DEFAULT_MAX_MESSAGE_BYTES + (16 << 10)


class Cluster:
    """Brokers, the data on their disks, and the topics that each of them serves.

    Args:
        world: the cluster's world.
        brokers: the number of brokers.
        ledger_entries: entries of a ledger.
        deduplicates: whether deduplication is on.
        coordinators: the number of transaction coordinators; 0 without transactions.
        places_cursors: False for the cursors and the version name of 2.10.1; the rest is as in 4.0.8.
        max_message_bytes: the maximum size of an entry (`maxMessageSize`).
        batch_indexes: whether a part of a batch can be acknowledged (`acknowledgmentAtBatchIndexLevelEnabled`).
        limits: of unacknowledged messages.

    Attributes:
        url: the value of `serviceUrl`.
        partitions: the number of a topic's partitions, by full name; 0 for one that is not partitioned.
        storage: by topic-partition.
        writes: the faults of SENDs and receipts.
        ack_faults: the fault of an ACK, by its number: `lost` or `unanswered` (the connection ends before or after it
            is handled), or `refused`.
    """

    def __init__(
        self,
        world: World,
        *,
        brokers: int = 1,
        ledger_entries: int = 10,
        deduplicates: bool = False,
        coordinators: int = 0,
        places_cursors: bool = True,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        batch_indexes: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.world = world
        self.batch_indexes = batch_indexes
        self.limits = limits or Limits()
        self.places_cursors = places_cursors
        self.max_message_bytes = max_message_bytes
        self.partitions: dict[str, int] = {}
        self.storage: dict[str, ManagedLedger] = {}
        self.buffers: dict[str, TransactionBuffer] = {}
        self.topics: dict[str, Topic] = {}
        self.owners: dict[str, Broker] = {}
        self.writes = WriteFaults()
        self.ack_faults: dict[int, str] = {}
        self.deduplicates = deduplicates
        self.ledger_entries = ledger_entries
        self.coordinators = Coordinators(world, self._loaded_buffer, coordinators, self._stored_by)
        self.coordinators.on_ended.append(self._txn_ended)
        self.unmade: set[str] = set()
        """Topic-partitions that are listed but do not exist yet, and partitioned topics that do not exist yet."""
        self.created: set[str] = set()
        """Topics created by clients."""
        self._dice = world.dice("cluster")
        self._last_ledger = 10
        self.brokers = [Broker(self, n) for n in range(brokers)]
        if coordinators:
            self.partitions[COORDINATORS] = coordinators
        self.url = "pulsar://" + ",".join(broker.address for broker in self.brokers)

    # -- data on disk

    def create(self, topic: str, partitions: int = 0) -> list[str]:
        """Create a topic; return its topic-partitions."""
        self.partitions[topic] = partitions
        names = self.names(topic)
        for name in names:
            self._make(name)
        return names

    def names(self, topic: str) -> list[str]:
        """Return the topic-partitions of a topic."""
        count = self.partitions[topic]
        return [f"{topic}-partition-{n}" for n in range(count)] if count else [topic]

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Run `update-partitioned-topic`: partitions are listed before they are created (seen on broker 4.0.8)."""
        self.partitions[topic] = max(partitions, self.partitions[topic])
        seconds = self.world.dice("partitions").choice((0.0, 0.0, 0.02, 1.0))
        for name in self.names(topic):
            if name not in self.storage:
                self._make(name)
                if seconds:
                    self.unmade.add(name)
                    self.world.after(seconds, partial(self.unmade.discard, name))

    def _make(self, name: str) -> None:
        ledger = ManagedLedger(
            self._next_ledger,
            ledger_entries=self.ledger_entries,
            places_cursors=self.places_cursors,
            batch_indexes=self.batch_indexes,
        )
        self.storage[name] = ledger
        self.buffers[name] = TransactionBuffer(ledger)

    def _next_ledger(self) -> int:
        self._last_ledger += 1
        return self._last_ledger

    def delete(self, name: str) -> None:
        """Delete the topic-partition and disconnect its clients."""
        self.unload(name)
        del self.storage[name], self.buffers[name]

    def rebuild(self, *, first_ledger: int = 0) -> None:
        """Empty all topics and restart ledger ids, as in a rebuilt or another cluster."""
        for name in list(self.topics):
            self.unload(name)
        self._last_ledger = first_ledger
        for name in list(self.storage):
            self._make(name)

    def restore(self, entries: Callable[[int], int]) -> None:
        """Restore all topics and the ids of ledgers from an older copy of the disks.

        Args:
            entries: the number of entries in the copy of a topic-partition, of the number that it has now.
        """
        for name in list(self.topics):
            self.unload(name)
        for name, ledger in self.storage.items():
            ledger.restore(entries(len(ledger.entries)))
            self.buffers[name].restore()
        self._last_ledger = max((p[0] for ledger in self.storage.values() for p in ledger.entries), default=0)

    # -- foreign clients

    def publish(self, name: str, values: Sequence[bytes], *, at_ms: int | None = None, **more: Any) -> Position:
        """Publish an entry as a foreign producer; return its position."""
        when = int(self.world.wall * 1000) if at_ms is None else at_ms
        return self.store(name, make_entry(values, when, **more))

    def publish_chunks(self, name: str, value: bytes, parts: int, *, producer: str, sequence_id: int) -> list[Entry]:
        """Return the entries of a chunked message; the caller chooses which to store with `store`."""
        return make_chunks(value, parts, int(self.world.wall * 1000), producer=producer, sequence_id=sequence_id)

    def store(self, name: str, entry: Entry) -> Position:
        """Store an entry of any producer; return its position."""
        return self.load(name).append(entry)

    def subscribe(self, name: str, subscription: str, *, earliest: bool = True) -> None:
        """Create a foreign durable subscription."""
        self.load(name).ledger.open_durable(subscription, earliest=earliest)

    def acknowledge(self, name: str, subscription: str, upto: Position) -> None:
        """Acknowledge everything up to a position for a subscription; remove ledgers that no cursor needs."""
        topic = self.load(name)
        topic.ledger.cursors[subscription].mark_delete(upto, now=self.world.now)
        self.trim(name)

    def kill_broker(self, number: int, seconds: float) -> None:
        """Kill the broker of this number, modulo the number of brokers; restart it after this time."""
        broker = self.brokers[number % len(self.brokers)]
        broker.kill()
        self.world.after(seconds, broker.start)

    def replace_bookie(self, name: str, count: int) -> None:
        """Store entries in a ledger that does not count them, and again in the next one: see `close_unrecorded`."""
        ledger = self.load(name).ledger
        if ledger.is_terminated:
            return
        when, number = int(self.world.wall * 1000), self.world.count("replaced")
        entries = [make_entry([f"twice-{number}.{i}".encode()], when, sequence_id=8000) for i in range(count)]
        ledger.close_unrecorded(entries)
        self.world.note(f"{name}: {count} entries are uncounted")
        for entry in entries:
            self.store(name, entry)

    # -- operators

    def trim(self, name: str) -> None:
        """Run `pulsar-admin topics trim`, or the broker's own trimming."""
        topic = self.load(name)
        if topic.ledger.trim(now=self.world.now):
            self.world.note(f"{name}: trimmed, the first ledger is {topic.ledger.first[0]}")
        topic.changed()

    def roll_over(self, name: str) -> None:
        """Open the next ledger."""
        self.load(name).ledger.roll_over()

    def compact(self, name: str) -> None:
        """Run `pulsar-admin topics compact`."""
        topic = self.load(name)
        last = topic.last_message_id(compacted=True)
        if (last.ledger_id, last.entry_id) > topic.ledger.horizon:
            topic.ledger.compact((last.ledger_id, last.entry_id), now=self.world.now)
            self.world.note(f"{name}: compacted up to {topic.ledger.horizon}, to {list(topic.ledger.compacted)}")

    def truncate(self, name: str) -> None:
        """Run `pulsar-admin topics truncate`."""
        topic = self.load(name)
        topic.ledger.truncate(now=self.world.now)
        self.world.note(f"{name}: truncated")
        topic.changed()

    def expire(self, name: str, ttl_seconds: float = 0.0) -> None:
        """Expire messages that are older than the time to live."""
        topic = self.load(name)
        topic.ledger.expire(int((self.world.wall - ttl_seconds) * 1000) + 1, now=self.world.now)
        self.world.note(f"{name}: expired")
        topic.changed()

    def terminate(self, name: str) -> None:
        """Run `pulsar-admin topics terminate`."""
        self.load(name).terminate()
        self.world.note(f"{name}: terminated")

    def unload(self, name: str) -> None:
        """Run `pulsar-admin topics unload`: the next lookup may return another broker."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            owner = self.owners.pop(name, None)
            self.world.note(f"{name}: unloaded by {owner and owner.address}")
            topic.unload(lambda: None)

    # -- owners of topics

    def owner(self, name: str) -> Broker | None:
        """Return the broker that serves a topic-partition, and choose it if there is none; None if all are down."""
        broker = self.owners.get(name)
        if broker is None or not broker.is_up:
            up = [broker for broker in self.brokers if broker.is_up]
            if not up:
                return None
            broker = self.owners[name] = up[self._dice.randrange(len(up))]
        return broker

    def load(self, name: str) -> Topic:
        """Return the topic-partition; load it if necessary, even if no broker is up."""
        topic = self.topics.get(name)
        if topic is None:
            self.owner(name)
            topic = self.topics[name] = Topic(
                self.world,
                name,
                self.storage[name],
                self.buffers[name],
                deduplicates=self.deduplicates,
                faults=self.writes,
                limits=self.limits,
            )
        return topic

    def _stored_by(self, name: str) -> float:
        topic = self.topics.get(name)
        return self.world.now if topic is None else topic.stored_by

    def _loaded_buffer(self, name: str) -> TransactionBuffer:
        return self.load(name).buffer

    def _txn_ended(self, name: str) -> None:
        self.load(name).transaction_ended()


class Broker:
    """One broker.

    Attributes:
        address: `host:port`.
        is_up: whether it runs.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.address = f"broker-{number}:6650"
        self.is_up = False
        self.connections: list[Connection] = []
        self.start()

    def start(self) -> None:
        """Listen."""
        if not self.is_up:
            self.is_up = True
            network().listen(self.address, self._accept)

    def _accept(self, stream: Stream) -> Connection:
        connection = Connection(self, stream)
        self.connections.append(connection)
        return connection

    def kill(self) -> None:
        """Kill it as by SIGKILL: its kernel ends the connections."""
        if not self.is_up:
            return
        cluster = self.cluster
        cluster.world.note(f"{self.address} is killed")
        self.is_up = False
        network().unlisten(self.address)
        for name in [name for name, owner in cluster.owners.items() if owner is self]:
            topic = cluster.topics.pop(name, None)
            if topic is not None:
                topic.crash()
            del cluster.owners[name]
        for connection in list(self.connections):
            connection.die()


class Connection:
    """A broker's end of one connection."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        self.broker = broker
        self.cluster = broker.cluster
        self.world = broker.cluster.world
        self.stream = stream
        self.is_open = True
        self.consumers: dict[int, Consumer] = {}
        self.producers: dict[int, Producer] = {}
        self.closed_producers: set[int] = set()
        self._topics: dict[int, Topic] = {}
        self._unread = bytearray()
        self._waits_for_pong = False
        self._on_pong: list[Callable[[], None]] = []
        self._schedule_keep_alive()

    # -- bytes

    def received(self, data: bytes) -> None:
        """See `network.Peer`."""
        if not self.is_open:
            return
        self._unread += data
        at = 0
        whole = bytes(self._unread)
        view = memoryview(whole)
        while self.is_open:
            frame = take_frame(view, at, MAX_FRAME_BYTES)
            if frame is None:
                break
            at += frame.size
            self._waits_for_pong = False
            self._handle(decode_command(frame))
        del self._unread[:at]

    def lost(self) -> None:
        """See `network.Peer`."""
        if not self.is_open:
            return
        self.is_open = False
        if self in self.broker.connections:
            self.broker.connections.remove(self)
        for consumer in list(self.consumers.values()):
            consumer.subscription.topic.remove_consumer(consumer)
        for producer_id, producer in self.producers.items():
            self._topics[producer_id].remove_producer(producer)
        self.consumers.clear()
        self.producers.clear()

    def die(self) -> None:
        """End the connection with the broker's process."""
        self.is_open = False
        self.consumers.clear()
        self.producers.clear()
        if self in self.broker.connections:
            self.broker.connections.remove(self)
        self.stream.close()

    def close(self) -> None:
        """Drop the connection."""
        self.world.note(f"{self.broker.address} drops connection {self.stream.number}")
        self.lost()
        self.stream.close()

    def reply(self, command: commands.Command) -> None:
        """Send a command."""
        if self.is_open:
            self.stream.send(encode_command(command))

    def reply_after(self, seconds: float, command: commands.Command) -> None:
        """Send a command later."""
        if seconds:
            self.world.after(seconds, lambda: self.reply(command))
        else:
            self.reply(command)

    def _error(self, request_id: int, code: int, text: str) -> None:
        self.reply(commands.Error(request_id, code, text))

    # -- keep-alive

    def _schedule_keep_alive(self) -> None:
        self.world.after(KEEP_ALIVE_SECONDS, self._keep_alive)

    def _keep_alive(self) -> None:
        if not self.is_open:
            return
        if self._waits_for_pong:
            self.close()
            return
        self._waits_for_pong = True
        self.reply(commands.Ping())
        self._schedule_keep_alive()

    def check_liveness(self, done: Callable[[bool], None]) -> None:
        """Call `done` with whether the client still answers within 5 s (`checkConnectionLiveness`)."""
        over: list[bool] = []

        def end(alive: bool) -> None:
            if not over:
                over.append(alive)
                if not alive:
                    self.close()
                done(alive)

        if not self.is_open:
            done(False)
            return
        self._on_pong.append(lambda: end(True))
        self.reply(commands.Ping())
        self.world.after(LIVENESS_SECONDS, lambda: end(False))

    # -- callbacks of topics

    def forget_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer that the topic has closed."""
        self.consumers.pop(consumer.consumer_id, None)

    def forget_producer(self, producer: Producer) -> None:
        """Remove a producer that the topic has closed, and ignore later commands for it."""
        if self.producers.pop(producer.producer_id, None) is not None:
            self._topics.pop(producer.producer_id)
            self.closed_producers.add(producer.producer_id)

    # -- commands

    def _handle(self, command: commands.Command) -> None:
        match command:
            case commands.Connect():
                self._connect(command)
            case commands.Ping():
                self.reply(commands.Pong())
            case commands.Pong():
                waiting, self._on_pong = self._on_pong, []
                for call in waiting:
                    call()
            case commands.PartitionedMetadata():
                self._partitioned_metadata(command)
            case commands.Lookup():
                self._lookup(command)
            case commands.Subscribe():
                self._subscribe(command)
            case commands.Flow():
                self._flow(command)
            case commands.Ack():
                self._ack(command)
            case commands.RedeliverUnacknowledgedMessages():
                self._redeliver(command)
            case commands.Seek():
                self._seek(command)
            case commands.GetLastMessageId():
                self._last_message_id(command)
            case commands.ConsumerStats():
                self._consumer_stats(command)
            case commands.CloseConsumer():
                consumer = self.consumers.pop(command.consumer_id, None)
                if consumer is not None:
                    consumer.was_closed = True
                    consumer.subscription.topic.remove_consumer(consumer)
                self.reply(commands.Success(command.request_id))
            case commands.Producer():
                self._producer(command)
            case commands.Send():
                self._send(command)
            case commands.CloseProducer():
                self._close_producer(command)
            case commands.TcClientConnectRequest() | commands.NewTxn() | commands.AddPartitionToTxn():
                self._coordinator(command)
            case commands.EndTxn():
                self._end_txn(command)
            case _:
                self.world.note(f"{self.broker.address} does not know {command}")
                self.close()

    def _connect(self, command: commands.Connect) -> None:
        flags = commands.FeatureFlags(
            supports_auth_refresh=True,
            supports_broker_entry_metadata=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        )
        version = min(command.protocol_version, 21)
        name = "Pulsar Server4.0.8" if self.cluster.places_cursors else "Pulsar Server2.10.1"
        self.reply(commands.Connected(name, version, self.cluster.max_message_bytes, flags))

    def _partitioned_metadata(self, command: commands.PartitionedMetadata) -> None:
        cluster, topic = self.cluster, command.topic
        count = cluster.partitions.get(topic)
        if count is None and topic in cluster.storage:
            count = 0
        if topic in cluster.unmade:
            count = None
        if count is None and command.metadata_auto_creation_enabled is not False:
            cluster.create(topic)
            cluster.created.add(topic)
            count = 0
        if count is None:
            response = commands.PartitionedMetadataResponse(
                command.request_id,
                error=TOPIC_NOT_FOUND,
                message="Topic does not exist",
            )
        else:
            response = commands.PartitionedMetadataResponse(command.request_id, count)
        self.reply(response)

    def _lookup(self, command: commands.Lookup) -> None:
        cluster = self.cluster
        owner = cluster.owner(command.topic)
        dice = self.world.dice("lookup")
        if owner is None or dice.random() < 0.02:
            response = commands.LookupResponse(
                command.request_id,
                commands.LookupType.Failed,
                error=SERVICE_NOT_READY,
                message="The bundle is being unloaded",
            )
        elif owner is not self.broker and not command.authoritative and dice.random() < 0.5:
            response = commands.LookupResponse(
                command.request_id,
                commands.LookupType.Redirect,
                broker_service_url=f"pulsar://{owner.address}",
                authoritative=True,
            )
        else:
            response = commands.LookupResponse(
                command.request_id,
                commands.LookupType.Connect,
                broker_service_url=f"pulsar://{owner.address}",
                authoritative=True,
            )
        self.reply(response)

    def _served(self, name: str, request_id: int, *, create: bool) -> Topic | None:
        """Return the topic-partition if this broker serves it; otherwise send an error and return None."""
        cluster = self.cluster
        if name not in cluster.storage or name in cluster.unmade:
            if not create:
                self._error(request_id, TOPIC_NOT_FOUND, f"Topic {name} does not exist")
                return None
            if name not in cluster.storage:
                cluster.create(name)
                cluster.created.add(name)
            cluster.unmade.discard(name)
        if cluster.owners.get(name) is not self.broker:
            self._error(request_id, SERVICE_NOT_READY, f"{name} not served by this instance. Please redo the lookup.")
            return None
        return cluster.load(name)

    # -- consumers

    def _subscribe(self, command: commands.Subscribe) -> None:
        topic = self._served(command.topic, command.request_id, create=command.force_topic_creation)
        if topic is None:
            return
        meta = command.key_shared_meta
        if meta is not None and meta.key_shared_mode is KeySharedMode.STICKY:
            ranges = [(one.start, one.end) for one in meta.hash_ranges]
            if not ranges or any(start > end for start, end in ranges):
                self._error(command.request_id, ASSIGN_ERROR, f"Ranges for KeyShared policy are wrong: {ranges}")
                return
        subscription = topic.subscriptions.get(command.subscription)
        cursor = topic.ledger.cursors.get(command.subscription)
        if cursor is not None and cursor.durable != command.durable:
            self._error(command.request_id, NOT_ALLOWED, "Durable subscription with the same name already exists.")
            return
        if subscription is not None and subscription.consumers:
            if (refusal := subscription.refusal(command.sub_type, meta)) is not None:
                self._error(command.request_id, *refusal)
                return
            if (held := subscription.holder(command.sub_type, meta)) is not None:
                self._claim(held[0].connection, command, *held[1:])
                return
        if subscription is None:
            ledger = topic.ledger
            earliest = command.initial_position is commands.InitialPosition.Earliest
            if command.durable:
                cursor = ledger.open_durable(command.subscription, earliest=earliest)
            else:
                start = command.start_message_id
                at = EARLIEST if start is None else (start.ledger_id, start.entry_id)
                cursor = ledger.open_non_durable(
                    command.subscription, at, earliest=earliest, compacted=bool(command.read_compacted)
                )
            subscription = topic.subscriptions[command.subscription] = Subscription(topic, cursor)
        consumer = Consumer(
            self,
            command.consumer_id,
            subscription,
            command.consumer_name or f"consumer-{self.world.count('consumers')}",
            command.priority_level or 0,
            [(one.start, one.end) for one in meta.hash_ranges] if meta is not None else [],
            compacted=bool(command.read_compacted),
            from_earliest=not command.durable and command.start_message_id == commands.MessageId(*EARLIEST),
        )
        self.consumers[command.consumer_id] = consumer
        self.reply(commands.Success(command.request_id))
        subscription.join(consumer, command.sub_type, meta)

    def _claim(self, holder: Connection, command: commands.Subscribe, code: int, text: str) -> None:
        """Decide a request for an exclusive right that a consumer holds, by whether the holder's client is alive."""

        def decided(alive: bool) -> None:
            if alive:
                self._error(command.request_id, code, text)
            elif self.is_open:
                self._subscribe(command)

        if holder is self:
            decided(True)
        else:
            holder.check_liveness(decided)

    def _flow(self, command: commands.Flow) -> None:
        if not 1 <= command.message_permits < 1 << 31:
            self.close()
            return
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None and consumer.subscription.dispatcher is not None:
            consumer.subscription.dispatcher.flow(consumer, command.message_permits)

    def _redeliver(self, command: commands.RedeliverUnacknowledgedMessages) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None and consumer.subscription.dispatcher is not None:
            positions = [(one.ledger_id, one.entry_id) for one in command.message_ids]
            consumer.subscription.dispatcher.redeliver(consumer, positions)

    def _ack(self, command: commands.Ack) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is None:
            return
        cluster = self.broker.cluster
        fault = cluster.ack_faults.get(cluster.world.count("acks")) if command.request_id is not None else None
        if fault == "refused":
            self.reply(commands.AckResponse(command.consumer_id, PERSISTENCE_ERROR, "no room", command.request_id))
            return
        if fault != "lost":
            consumer.subscription.acknowledge(consumer, command)
        if fault is not None:
            self.close()
        elif command.request_id is not None:
            self.reply(commands.AckResponse(command.consumer_id, request_id=command.request_id))

    def _seek(self, command: commands.Seek) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is None:
            self._error(command.request_id, METADATA_ERROR, "Consumer not found")
            return
        subscription = consumer.subscription
        topic = subscription.topic
        assert command.message_id is not None  # no scenario seeks by time
        subscription.cursor.reset((command.message_id.ledger_id, command.message_id.entry_id))
        topic.disconnect(subscription)
        self.reply(commands.Success(command.request_id))

    def _last_message_id(self, command: commands.GetLastMessageId) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is None:
            self._error(command.request_id, METADATA_ERROR, "Consumer not found")
            return
        subscription = consumer.subscription
        subscription.cursor.is_known = True
        self.reply(
            commands.GetLastMessageIdResponse(
                subscription.topic.last_message_id(compacted=consumer.compacted),
                command.request_id,
                commands.MessageId(*subscription.cursor.mark),
            )
        )

    def _consumer_stats(self, command: commands.ConsumerStats) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is None:
            self.close()
            return
        self.reply(
            commands.ConsumerStatsResponse(
                command.request_id,
                consumer_name=consumer.name,
                available_permits=consumer.permits,
                unacked_messages=consumer.unacked,
                blocked_consumer_on_unacked_msgs=consumer.is_blocked,
                msg_backlog=consumer.subscription.cursor.backlog,
            )
        )

    # -- producers

    def _producer(self, command: commands.Producer) -> None:
        topic = self._served(command.topic, command.request_id, create=True)
        if topic is None:
            return
        if topic.ledger.is_terminated:
            self._error(command.request_id, TOPIC_TERMINATED, "Topic was already terminated")
            return
        if command.producer_id in self.producers:
            self._error(command.request_id, SERVICE_NOT_READY, "Producer is already present on the connection")
            return
        name = command.producer_name or f"standalone-{self.world.count('producers')}"
        holder = topic.producers.get(name)
        if holder is not None:
            if holder.connection is self:
                if (
                    holder.producer_id == command.producer_id
                    and holder.epoch < (command.epoch or 0)
                    and not holder.is_user_named
                ):
                    topic.remove_producer(holder)
                else:
                    self._busy(command, name)
                    return
            else:

                def decided(alive: bool) -> None:
                    if alive:
                        self._busy(command, name)
                    elif self.is_open:
                        self._producer(command)

                holder.connection.check_liveness(decided)
                return
        producer = Producer(self, command, name)
        topic.producers[name] = producer
        self.producers[command.producer_id] = producer
        self._topics[command.producer_id] = topic
        self.closed_producers.discard(command.producer_id)
        last = -1 if topic.deduplication is None else topic.deduplication.last_sequence_id(name)
        self.reply(commands.ProducerSuccess(command.request_id, name, last))

    def _busy(self, command: commands.Producer, name: str) -> None:
        text = f"Producer with name '{name}' is already connected to topic"
        self._error(command.request_id, PRODUCER_BUSY, text)

    def _send(self, command: commands.Send) -> None:
        assert len(command.body) <= self.cluster.max_message_bytes, f"an entry of {len(command.body)} bytes"
        producer = self.producers.get(command.producer_id)
        if producer is not None:
            self._topics[command.producer_id].publish(producer, command)
        elif command.producer_id not in self.closed_producers:
            self.close()

    def _close_producer(self, command: commands.CloseProducer) -> None:
        producer = self.producers.pop(command.producer_id, None)
        if producer is None:
            self.reply(commands.Success(command.request_id))
            return
        topic = self._topics.pop(command.producer_id)
        topic.close_when_stored(producer, lambda: self.reply(commands.Success(command.request_id)))

    # -- transactions

    def _coordinator(
        self, command: commands.TcClientConnectRequest | commands.NewTxn | commands.AddPartitionToTxn
    ) -> None:
        coordinators = self.cluster.coordinators
        match command:
            case commands.TcClientConnectRequest():
                name = f"{COORDINATORS}-partition-{command.tc_id}"
                if self.cluster.owners.get(name) is self.broker:
                    self.reply(commands.TcClientConnectResponse(command.request_id))
                else:
                    text = f"{name} is not served here"
                    self.reply(commands.TcClientConnectResponse(command.request_id, SERVICE_NOT_READY, text))
            case commands.NewTxn():
                most, least = coordinators.begin(command.tc_id, command.txn_ttl_millis)
                self.reply(commands.NewTxnResponse(command.request_id, least, most))
            case commands.AddPartitionToTxn():
                txn = command.txnid_most_bits, command.txnid_least_bits
                code = coordinators.add(txn, command.partitions)
                text = "" if code is None else f"The transaction {txn} is not open"
                self.reply(commands.AddPartitionToTxnResponse(command.request_id, txn[1], txn[0], code, text))

    def _end_txn(self, command: commands.EndTxn) -> None:
        coordinators = self.cluster.coordinators
        txn = command.txnid_most_bits, command.txnid_least_bits

        def done(code: int | None) -> None:
            text = "" if code is None else f"The transaction {txn} cannot be ended"
            if code == INVALID_TXN_STATUS:
                text += f", but it is in {coordinators.status(txn)} status"
            self.reply(commands.EndTxnResponse(command.request_id, txn[1], txn[0], code, text))

        coordinators.end(txn, command.txn_action is commands.TxnAction.COMMIT, done)
