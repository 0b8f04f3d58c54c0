"""Where topics are and what they hold: connections, lookup, partitions, consumers and their positions.

One `PulsarClient` holds the connections of one task or of the driver's planning. Requests share them: everything that
can be asked for many topic-partitions is sent at once and gathered, so that planning a thousand partitions takes a few
round trips rather than thousands.
"""

from __future__ import annotations

import base64
import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from spark_mq_source.core.columns import version_name
from spark_mq_source.core.errors import (
    BrokerError,
    MQSourceError,
    RemoteProtocolError,
    RequestTimeoutError,
    ResourceBusyError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.pulsar.client.consumer import BaseConsumer, Bounds, Consumer, Subscription, open_consumer
from spark_mq_source.pulsar.client.queue_consumer import QueueConsumer, open_queue_consumer
from spark_mq_source.pulsar.client.session import (
    Answer,
    ConsumerT,
    ProducerEvents,
    Session,
    accepted,
    authentication_of,
    proof_of,
)
from spark_mq_source.pulsar.client.warm import SessionKey, warm_sessions
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position, TopicPartition, is_persistent
from spark_mq_source.pulsar.options import DeliveryGuarantee, PulsarOptions, TopicsPattern
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.error_codes import error_for_code

T = TypeVar("T")
K = TypeVar("K")

MAX_REDIRECTS = 20
"""Lookups that are redirected more often than this go in circles (the Java client's own limit)."""

MAX_REQUESTS_IN_FLIGHT = 500
"""Requests sent before the first is waited for; a broker allows 5,000 topic loads and 50,000 lookups at once."""

_LONG_SECONDS = 10.0
"""Who has waited longer for its turn than this has had a place in the queue."""

_TOPIC_NOT_FOUND = 11
"""`ServerError.TopicNotFound`, by which a broker also says that a topic has no schema."""

_PRODUCER_FENCED = 25
"""`ServerError.ProducerFenced`: another producer has the topic for itself."""

_REMEDIES = {
    None: ": a read does not create topics",
    False: ", or set createTopic=true to create the topic",
    True: ": createTopic=true creates topics only where the broker permits it, and no namespaces",
}
"""After the error of a topic that does not exist, by whether it was to be created."""

_NOT_ALLOWED = 22
"""`ServerError.NotAllowedError`."""

_SAME_NAME = "Durable subscription with the same name already exists"
"""What a broker says to a subscription that is not durable (4.0.8)."""

COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
"""Its partition N is served by the broker that has transaction coordinator N (seen on broker 4.0.8)."""

_PAST_EVERY_LEDGER = 2**62

_MAX_SCHEMAS = 1000
"""Versions of schemas that a process remembers."""

_SCHEMA_SECONDS = 300.0
"""How long it does."""

_schemas: dict[tuple[object, ...], tuple[commands.Schema, float]] = {}
"""By service, TLS and credentials, topic and version; with the time until when they are remembered."""

_PARTITIONS = accepted(commands.PartitionedMetadataResponse)

MAX_ENTRIES_AT_ONCE = 16
"""Entries looked at together: each is as large as a broker accepts, 5 MiB unless configured."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One ledger of a topic-partition, as the admin interface lists it."""

    ledger_id: int
    entries: int
    stored_bytes: int


class PulsarClient:
    """The connections to one cluster and what is asked over them. Used by one thread; close it when done.

    Args:
        options: addresses, credentials, timeouts.
        role: what the names of its consumers end with, where the option `consumerName` says how they begin.

    Example:
        ::

            with PulsarClient(options) as client:
                for topic_partition in client.fetch_partitions(["persistent://public/default/t"]):
                    ...
    """

    def __init__(self, options: PulsarOptions, role: str = "driver") -> None:
        self._options = options
        self._consumer_name = None if options.consumer_name is None else f"{options.consumer_name}-{role}"
        self._addresses = list(options.addresses)
        self._sessions: dict[tuple[str, int, str | None], Session] = {}

    def __enter__(self) -> PulsarClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection; subscriptions that are not durable go with them."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def hand_over(self) -> None:
        """Leaves the connections to the next client of this process, for a few seconds, where the options are alike.

        Only for a client that has let go of everything it had open.
        """
        while self._sessions:
            where, session = self._sessions.popitem()
            warm_sessions().give(SessionKey.of(self._options, *where), session)

    # -- topics and partitions

    def fetch_topics(self, pattern: TopicsPattern) -> list[str]:
        """The full names of the topics that match, without partition suffixes, in order.

        Topics that Pulsar keeps for itself (`__...`) never match.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """

        def ask() -> Sequence[str]:
            return self._fetch_names(self._service(), [pattern.namespace])

        names = {TopicPartition.parse(name).topic for name in retrying(ask, deadline=self._deadline())}
        return sorted(n for n in names if not n.rpartition("/")[2].startswith("__") and pattern.matches(n))

    def fetch_partitions(self, topics: Sequence[str], *, create: bool | None = None) -> list[TopicPartition]:
        """Every topic-partition of `topics`, in order; a name that ends in `-partition-N` is just that partition.

        Args:
            topics: full names.
            create: whether a topic that does not exist is created, as the broker is configured to: the value of
                `createTopic`. None if this option does not apply, as for a topic that is read.

        Raises:
            TopicNotFoundError: a topic, or its namespace, does not exist, and is not created.
            MQSourceError: no answer in time, or a refusal.
        """

        def ask(names: Sequence[str]) -> Mapping[str, Future[commands.PartitionedMetadataResponse]]:
            session = self._service()
            if not (create or session.asks_without_creating):
                self._check_existing(session, names)
            return {
                name: session.request(
                    partial(commands.PartitionedMetadata, name, metadata_auto_creation_enabled=bool(create)),
                    _PARTITIONS,
                )
                for name in names
            }

        try:
            counts = self._gather(topics, ask, "partition metadata")
        except TopicNotFoundError as error:
            raise error.with_remedy(_REMEDIES[create]) from error
        found: list[TopicPartition] = []
        for topic in topics:
            count = counts[topic].partitions
            found += [TopicPartition(topic, n) for n in range(count)] if count else [TopicPartition.parse(topic)]
        return found

    def _check_existing(self, session: Session, topics: Sequence[str]) -> None:
        """Refuses topics that do not exist, on brokers for which to ask for partitions is to create them.

        Such a broker lists the topics of a namespace that were used; of a partitioned topic these are its partitions.
        One that was never used is known to the admin interface only (both seen on 2.10.1).

        Raises:
            TopicNotFoundError: a topic does not exist, or the broker does not list it and there is no `adminUrl`.
            MQSourceError: no answer in time, or a refusal.
        """
        # That of the coordinators is never used as a topic, and Pulsar's own clients ask for it without a look.
        # A topic that stores nothing is there while somebody uses it, and is not listed.
        asked_for = (name for name in topics if name != COORDINATORS and is_persistent(name))
        parsed = {name: TopicPartition.parse(name) for name in asked_for}
        listed = set(self._fetch_names(session, {_namespace_of(name) for name in parsed}))
        partitioned = {at.topic for at in map(TopicPartition.parse, listed) if at.partition >= 0}
        for name, at in parsed.items():
            if name in listed or (at.partition < 0 and name in partitioned):
                continue
            if at.topic in partitioned:
                answer = session.request(partial(commands.PartitionedMetadata, at.topic), _PARTITIONS)
                count = self.wait(answer, f"partition metadata of {at.topic}").partitions
            else:
                count = self._fetch_partition_count(at.topic)
            if count <= max(at.partition, 0):
                known = "" if self._options.admin_url else "; an unused partitioned one needs adminUrl"
                raise TopicNotFoundError(
                    f"{session.address}: {session.server_version} lists no topic {name}: check the names of topic, "
                    f"namespace and tenant{known}"
                )

    def _fetch_names(self, session: Session, namespaces: Collection[str]) -> list[str]:
        """Return the names of all topics, or of the partitions of topics, in these namespaces."""
        answers = {
            namespace: session.request(
                partial(commands.GetTopicsOfNamespace, namespace=namespace),
                accepted(commands.GetTopicsOfNamespaceResponse),
            )
            for namespace in namespaces
        }
        found = [self.wait(answer, f"the topics of namespace {name}").topics for name, answer in answers.items()]
        return [name for names in found for name in names]

    def _fetch_partition_count(self, topic: str) -> int:
        """How many partitions a topic has, from `adminUrl`; 0 for none, and where there is no such topic or address."""
        if self._options.admin_url is None:
            return 0
        try:
            url, answer = self._ask_admin(TopicPartition(topic, -1), "partitions?checkAllowAutoCreation=false")
        except TopicNotFoundError:
            return 0
        try:
            return int(answer["partitions"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"{url}: not the answer of a Pulsar admin interface ({type(error).__name__}: {error})"
            ) from error

    def fetch_addresses(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        """The broker (`host:port`) that serves each topic-partition now.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """

        def ask() -> dict[TopicPartition, str]:
            return {tp: session.address for tp, session in self._lookup(topic_partitions).items()}

        return retrying(ask, deadline=self._deadline())

    def schema_of(self, topic: str, version: bytes | None = None) -> commands.Schema | None:
        """The schema of a topic, or one of its versions; None where the registry has no such schema.

        A version never changes, so a process asks for it once in a few minutes: not for longer, because a topic that is
        deleted and made anew counts its versions from the beginning.

        Args:
            topic: full name; that of a partition is as good.
            version: as a message carries it; None for the latest, which is asked for each time.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        key = () if version is None else self._schema_key(topic, version)
        known = _schemas.get(key)
        if known is not None and known[1] > time.monotonic():
            return known[0]

        def ask() -> commands.Schema | None:
            answer = self._service().request(
                lambda request_id: commands.GetSchema(request_id, topic, version), accepted(commands.GetSchemaResponse)
            )
            which = "the schema" if version is None else f"schema version {version_name(version)}"
            try:
                return self.wait(answer, f"{which} of {topic}").schema
            except BrokerError as error:
                if error.code == _TOPIC_NOT_FOUND:
                    return None
                raise

        schema = retrying(ask, deadline=self._deadline())
        if version is not None and schema is not None:
            if len(_schemas) >= _MAX_SCHEMAS:
                _schemas.clear()
            _schemas[key] = schema, time.monotonic() + _SCHEMA_SECONDS
        return schema

    def _schema_key(self, topic: str, version: bytes) -> tuple[object, ...]:
        """Everything on which the broker's answer depends: it may refuse another user."""
        options, authentication = self._options, authentication_of(self._options)
        tls = TlsSettings.of(options) if options.uses_tls else None
        return options.service_url, tls, authentication, proof_of(authentication), topic, version

    # -- positions

    def fetch_bounds(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """First and last position of each topic-partition.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        bounds = self._probe(topic_partitions, {})
        ends = self.fetch_terminated_ends({tp: b.first for tp, b in bounds.items() if b.last == EARLIEST})
        return bounds | {tp: Bounds(bounds[tp].first, end) for tp, end in ends.items()}

    def fetch_terminated_ends(self, firsts: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """The end of those topic-partitions, of which the last message is not known, that have messages nevertheless.

        GET_LAST_MESSAGE_ID has no answer for a topic that was terminated while its newest ledger was empty and then
        loaded again (seen on 4.0.8). A subscription past every ledger has its cursor at the beginning of that ledger,
        and an older one is kept only if it has messages.

        Args:
            firsts: just before the first message that is kept.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        ends = self.fetch_stored(dict.fromkeys(firsts, Position(_PAST_EVERY_LEDGER, 0)))
        return {tp: end for tp, end in ends.items() if end.entry < 0 and end.ledger > firsts[tp].ledger}

    def fetch_positions_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        """Just before the first entry published at or after each time (its last position, where there is none).

        Publish times are the producers' clocks and need not be in order; the broker searches as if they were. Where
        it keeps broker entry metadata it compares the broker's own times (both seen on 4.0.8).

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        # Before 1970 there is nothing on the wire: the field has no sign.
        found = self._probe(list(timestamps_ms), {tp: max(0, ms) for tp, ms in timestamps_ms.items()})
        return {topic_partition: bounds.first for topic_partition, bounds in found.items()}

    def fetch_stored(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """The last entry that the broker has at or before each position, delivered or not; after it if that is gone.

        The cursor of a subscription that begins with the entry after a position is there (seen on broker 4.0.8).

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """

        def ask() -> dict[TopicPartition, Position]:
            consumers = self.open_consumers({tp: at.next_entry for tp, at in positions.items()})
            for consumer in consumers.values():
                consumer.leave()
            return {tp: consumer.opened.first for tp, consumer in consumers.items()}

        return retrying(ask, deadline=self._deadline())

    def fetch_backlogs(
        self, starts: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, int]:
        """How many entries there are after each start up to its end, which is the last one; at least 1.

        Across ledgers it is as the broker counts them: what came after the end and markers are counted too.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        # A start within a batch has part of its entry still to be read.
        near = {
            tp: ends[tp].entry - start.entry + (start.batch >= 0)
            for tp, start in starts.items()
            if ends[tp].ledger == start.ledger
        }
        far = {tp: start for tp, start in starts.items() if tp not in near}

        def ask() -> dict[TopicPartition, int]:
            consumers = self.open_consumers(far)
            try:
                backlogs = self.wait_for_backlogs(consumers)
            finally:
                for consumer in consumers.values():
                    consumer.leave()
            # The cursor begins before the entry of the start itself where that is still there.
            return {tp: backlogs[tp] - (consumers[tp].opened.first < far[tp] and far[tp].batch < 0) for tp in far}

        counted = near | retrying(ask, deadline=self._deadline())
        return {tp: max(1, counted[tp]) for tp in starts}

    def fetch_subscription_backlog(self, topic_partition: TopicPartition, subscription: str) -> int:
        """How many entries wait for a subscription of a topic-partition, from `adminUrl`.

        Raises:
            MQSourceError: no answer in time, a refusal, or there is no such subscription.
        """
        url, answer = self._ask_admin(topic_partition, "stats")
        try:
            return int(answer["subscriptions"][subscription]["msgBacklog"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise BrokerError(f"{url}: {topic_partition} has no subscription {subscription}") from error

    def fetch_ledgers(self, topic_partition: TopicPartition) -> list[Ledger]:
        """The ledgers of a topic-partition, oldest first, from `adminUrl`.

        Raises:
            MQSourceError: no answer in time, a refusal, or an answer that is not the admin interface's.
        """
        url, answer = self._ask_admin(topic_partition, "internalStats")
        try:
            ledgers = [Ledger(int(x["ledgerId"]), int(x["entries"]), int(x["size"])) for x in answer["ledgers"]]  # type: ignore[index]
            current = int(answer["currentLedgerEntries"]), int(answer["currentLedgerSize"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"{url}: not the answer of a Pulsar admin interface ({type(error).__name__}: {error})"
            ) from error
        # The list has 0 for the ledger that is being written; its size stands beside it.
        if ledgers and ledgers[-1].entries == 0:
            ledgers[-1] = Ledger(ledgers[-1].ledger_id, *current)
        return ledgers

    def _ask_admin(self, topic_partition: TopicPartition, what: str) -> tuple[str, object]:
        domain, _, rest = str(topic_partition).partition("://")
        path = "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))
        url = f"{self._options.admin_url}/admin/v2/{path}/{what}"
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - a fifth of what a task imports, and few need it

        answer = fetch_json(
            url,
            headers=http_headers(self._options),
            tls=TlsSettings.of(self._options),
            timeout_seconds=self._options.operation_timeout_ms / 1000,
            is_trusted=partial(self._is_trusted, topic_partition),
            remedy="; name it in serviceUrl too, or set adminUrl to a proxy",
        )
        return url, answer

    def _is_trusted(self, topic_partition: TopicPartition, host: str) -> bool:
        """Whether a host may see our credentials: `serviceUrl` or a lookup names it, so it is shown them anyway."""
        if host in (named.lower() for named, _ in self._addresses):
            return True
        self._lookup([topic_partition])
        brokers = [(named, proxy_to) for named, _, proxy_to in self._sessions]
        found = (named if proxy_to is None else proxy_to.rpartition(":")[0] for named, proxy_to in brokers)
        return host in (name.strip("[]").lower() for name in found)

    # -- consumers

    def open_consumer(self, topic_partition: TopicPartition, start: Position) -> Consumer:
        """`open_consumers` for one.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        return self.open_consumers({topic_partition: start})[topic_partition]

    def open_consumers(
        self,
        starts: Mapping[TopicPartition, Position],
        *,
        durable: Subscription | None = None,
        waits_for_turn: bool = True,
    ) -> dict[TopicPartition, Consumer]:
        """Consumers whose first entry is the one of their start itself: skip what is not after it.

        Unless they are `durable` they are exclusive and gone when they are closed, and each has a name that is used
        once only: a name in use joins the older cursor and ignores the start. A durable subscription ignores the start
        (both seen on 4.0.8). One that somebody else holds is waited for, unless told otherwise.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """

        def subscribe(session: Session, tp: TopicPartition) -> Future[Consumer]:
            return self._subscribe(session, tp, durable or self.subscription(start=starts[tp]))

        return self._open_all(list(starts), subscribe, waits_for_turn=waits_for_turn)

    def open_queue_consumer(self, topic_partition: TopicPartition, subscription: Subscription) -> QueueConsumer:
        """`open_queue_consumers` for one.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        return self.open_queue_consumers([topic_partition], subscription)[topic_partition]

    def open_queue_consumers(
        self,
        topic_partitions: Sequence[TopicPartition],
        subscription: Subscription,
        *,
        waits_for_turn: bool = True,
    ) -> dict[TopicPartition, QueueConsumer]:
        """Consumers of a subscription whose messages are acknowledged one by one.

        An Exclusive subscription that somebody else holds is waited for, unless told otherwise.

        Raises:
            ResourceBusyError: others hold the subscription, or keys of it, or use it with another type.
            MQSourceError: no answer in time, or a refusal.
        """
        queue_bytes = self._options.receive_queue_bytes
        return self._open_all(
            topic_partitions,
            lambda session, tp: open_queue_consumer(session, tp, subscription, queue_bytes),
            waits_for_turn=waits_for_turn,
        )

    def _open_all(
        self,
        topic_partitions: Sequence[TopicPartition],
        subscribe: Callable[[Session, TopicPartition], Future[ConsumerT]],
        *,
        waits_for_turn: bool,
    ) -> dict[TopicPartition, ConsumerT]:
        opening: list[Future[ConsumerT]] = []
        consumers: dict[TopicPartition, ConsumerT] = {}

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[ConsumerT]]:
            sessions = self._lookup(names)
            asked = {tp: subscribe(sessions[tp], tp) for tp in names}
            opening.extend(asked.values())
            return asked

        def close_unless_kept(opened: Future[ConsumerT]) -> None:
            if opened.exception() is None and opened.result() not in kept:
                opened.result().leave()

        try:
            final = () if waits_for_turn else (ResourceBusyError,)
            consumers = self._gather(topic_partitions, ask, "SUBSCRIBE", final)
        finally:
            # Whoever comes too late, or for nothing because another one has failed for good, is not left behind.
            kept = set(consumers.values())
            for opened in opening:
                opened.add_done_callback(close_unless_kept)
        return consumers

    def delete_subscription(self, topic_partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
        """Deletes a durable subscription, unless it has a consumer; how many entries waited for it in each.

        What waits is as the broker counts it, across ledgers, with markers. The protocol cannot tell whether there was
        such a subscription: one that there was not has nothing waiting.

        Raises:
            ResourceBusyError: a consumer is connected; nothing is deleted anywhere.
            MQSourceError: no answer in time, or a refusal.
        """
        consumers = self.open_consumers(
            dict.fromkeys(topic_partitions, EARLIEST), durable=self.subscription(name), waits_for_turn=False
        )
        backlogs = self.wait_for_backlogs(consumers)
        self.wait_for({tp: one.request_unsubscribe() for tp, one in consumers.items()}, "UNSUBSCRIBE")
        return backlogs

    def fetch_waiting(self, topic_partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
        """How many entries wait for a durable subscription, as its consumers see it; nothing is taken from them.

        CONSUMER_STATS is answered to a consumer only. So another one joins for a moment, without permits: the broker
        sends nothing to such a consumer of a Shared subscription. In a Failover subscription it is the last of all,
        which the broker does not choose while there are others. With Exclusive there can be no other consumer, and with
        Key_Shared another one would be given a part of the keys (all seen on 4.0.8).

        Raises:
            BrokerError: there is no such durable subscription.
            ResourceBusyError: its type does not allow another consumer.
            MQSourceError: no answer in time, or a refusal.
        """
        self._check_durable(topic_partitions, name)
        waiting: dict[TopicPartition, int] = {}
        for kind in (commands.SubType.Shared, commands.SubType.Failover):
            missing = [tp for tp in topic_partitions if tp not in waiting]
            waiting |= self._ask_beside(missing, self.subscription(name, kind=kind, priority_level=INT32_MAX))
        unknown = [str(tp) for tp in topic_partitions if tp not in waiting]
        if unknown:
            raise ResourceBusyError(
                f"{', '.join(unknown)}: the consumers of subscription {name} are of type Exclusive or Key_Shared, "
                f"which another one cannot join without disturbing them: set adminUrl"
            )
        return waiting

    def _ask_beside(
        self, topic_partitions: Sequence[TopicPartition], durable: Subscription
    ) -> dict[TopicPartition, int]:
        """The backlog of a subscription in those topic-partitions where a consumer of this type may join."""

        def ask() -> dict[TopicPartition, int]:
            sessions = self._lookup(topic_partitions)
            opening = {tp: self._subscribe(sessions[tp], tp, durable) for tp in topic_partitions}
            joined: dict[TopicPartition, Consumer] = {}
            for tp, opened in opening.items():
                with suppress(ResourceBusyError):
                    joined[tp] = self.wait(opened, f"SUBSCRIBE of {tp}")
            found = self.wait_for_backlogs(joined)
            self.wait_for({tp: one.request_close() for tp, one in joined.items()}, "CLOSE_CONSUMER")
            return found

        return retrying(ask, deadline=self._deadline())

    def _check_durable(self, topic_partitions: Sequence[TopicPartition], name: str) -> None:
        """Finds out whether there is a durable subscription in all of these, without making one.

        Raises:
            BrokerError: it is missing somewhere.
            MQSourceError: no answer in time, or a refusal.
        """
        found = self.fetch_subscribed(topic_partitions, name)
        missing = [str(tp) for tp in topic_partitions if tp not in found]
        if missing:
            raise BrokerError(f"{', '.join(missing)}: there is no durable subscription {name}")

    def fetch_subscribed(self, topic_partitions: Sequence[TopicPartition], name: str) -> list[TopicPartition]:
        """Those that have this durable subscription; none is made.

        The broker refuses another one of the same name that is not durable. Where there is none, that one is gone
        again at once (both seen on 4.0.8).

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[bool]]:
            sessions = self._lookup(names)
            return {tp: self._request_is_durable(sessions[tp], tp, name) for tp in names}

        found = self._gather(topic_partitions, ask, "SUBSCRIBE")
        return [tp for tp in topic_partitions if found[tp]]

    def _request_is_durable(self, session: Session, topic_partition: TopicPartition, name: str) -> Future[bool]:
        result: Answer[bool] = Answer(session)

        def settle(opened: Future[Consumer]) -> None:
            error = opened.exception()
            if error is None:
                opened.result().leave()
                result.set_result(False)
            elif (
                isinstance(error, BrokerError)
                and error.code == _NOT_ALLOWED
                and error.broker_message.startswith(_SAME_NAME)
            ):
                result.set_result(True)
            elif isinstance(error, ResourceBusyError):
                result.set_result(False)  # somebody's reader that is not durable, either
            else:
                result.set_exception(error)

        self._subscribe(session, topic_partition, self.subscription(name, start=LATEST)).add_done_callback(settle)
        return result

    def fetch_first_entries(self, starts: Mapping[TopicPartition, Position]) -> dict[TopicPartition, commands.Message]:
        """The first entry at or after each position, of those where one comes within `operationTimeout`.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        found: dict[TopicPartition, commands.Message] = {}

        def look(window: Mapping[TopicPartition, Position]) -> None:
            consumers = self.open_consumers(window)
            try:
                for consumer in consumers.values():
                    consumer.grant(1)
                deadline = self._deadline()
                for tp, consumer in consumers.items():
                    messages = consumer.receive(max_bytes=1, timeout_seconds=deadline.remaining_seconds())
                    if messages:
                        found[tp] = messages[0]
            finally:
                for consumer in consumers.values():
                    consumer.leave()

        names = list(starts)
        for n in range(0, len(names), MAX_ENTRIES_AT_ONCE):
            window = {tp: starts[tp] for tp in names[n : n + MAX_ENTRIES_AT_ONCE]}
            retrying(partial(look, window), deadline=self._deadline())
        return found

    def wait_for_backlogs(self, consumers: Mapping[TopicPartition, BaseConsumer]) -> dict[TopicPartition, int]:
        """Return how many entries the broker has from the cursor of each consumer to the end.

        Raises:
            MQSourceError: no answer in time, a refusal, or a consumer has ended.
        """
        answers = self.wait_for({tp: one.request_stats() for tp, one in consumers.items()}, "backlog")
        return {tp: answer.msg_backlog for tp, answer in answers.items()}

    def wait_for(self, answers: Mapping[TopicPartition, Future[T]], what: str) -> dict[TopicPartition, T]:
        """The answers to what was asked of several topic-partitions, within one `operationTimeout`.

        Raises:
            MQSourceError: no answer in time, a refusal, or a consumer has ended.
        """
        deadline = self._deadline()
        return {tp: self.wait(answer, f"{what} of {tp}", deadline) for tp, answer in answers.items()}

    # -- producers

    def open_producer(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        events: ProducerEvents,
        *,
        name: str | None,
        epoch: int,
        topic_epoch: int | None = None,
        schema: commands.Schema | None = None,
        wait_ms: int | None = None,
    ) -> tuple[Session, commands.ProducerSuccess]:
        """A producer at the broker that serves a topic-partition now, in the `accessMode` of the options.

        Args:
            topic_partition: where it writes. PRODUCER creates a topic that does not exist, where the broker may, so ask
                for it first; one that is gone when a producer is opened again is an error unless `createTopic`.
            producer_id: not in use on any connection of this client.
            events: who is told of receipts, and of its end.
            name: None for one that the broker makes up, to be used when it is opened again.
            epoch: how often it was opened before: the broker lets it take the place of its forerunner.
            topic_epoch: what it was told when it was opened before: a broker that has let another one take over since
                then refuses it.
            schema: of its messages; None for none.
            wait_ms: how long it may wait for its turn with WaitForExclusive; None for ever.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        mode = commands.ProducerAccessMode(self._options.access_mode)
        create = partial(
            self._create_producer,
            topic_partition,
            producer_id,
            name,
            epoch,
            schema=schema,
            # What is the default is not sent, so that brokers that do not know it are not bothered.
            producer_access_mode=mode or None,
            txn_enabled=self._options.delivery_guarantee is DeliveryGuarantee.TRANSACTION or None,
            topic_epoch=topic_epoch,
        )
        waits = mode is commands.ProducerAccessMode.WaitForExclusive
        if epoch and not self._options.create_topic and is_persistent(topic_partition.topic):
            self.fetch_partitions([str(topic_partition)])
        while True:
            asked = time.monotonic()
            session = self._lookup([topic_partition])[topic_partition]
            opened = session.open_producer(producer_id, events, create)
            try:
                if waits:
                    return session, self._wait_for_turn(opened, topic_partition, wait_ms)
                return session, self.wait(opened, f"PRODUCER of {topic_partition}")
            except RequestTimeoutError as error:
                if waits:
                    # Or the broker would not take the same id again (Pulsar binary protocol, Command CloseProducer).
                    session.close_producer(producer_id)
                if schema is None or waits:
                    raise
                raise RequestTimeoutError(
                    f"{error}; a broker does not answer where it cannot read a schema (seen on 4.0.8): check it"
                ) from None
            except MQSourceError as error:
                if name is not None and _is_fenced_by(error, name):
                    # It is in its own way: for the broker, the connection that was lost has not ended yet.
                    raise ServiceNotReadyError(str(error), code=_PRODUCER_FENCED) from error
                # A topic that is unloaded sends away who waits: what was long waited for is waited for again.
                if not (waits and error.retryable and wait_ms is None and time.monotonic() > asked + _LONG_SECONDS):
                    raise

    @staticmethod
    def _wait_for_turn(
        opened: Future[commands.ProducerSuccess], topic_partition: TopicPartition, wait_ms: int | None
    ) -> commands.ProducerSuccess:
        what = f"PRODUCER of {topic_partition}"
        try:
            return opened.result(None if wait_ms is None else wait_ms / 1000)
        except FutureTimeoutError:
            raise RequestTimeoutError(
                f"{what}: others have the topic for themselves since {wait_ms} ms (sendTimeout); it is not waited "
                f"longer by a task that has others for itself, which they may wait for: write to one topic-partition"
            ) from None
        except MQSourceError as error:
            raise error.within(what) from error

    def close_producer(self, session: Session, producer_id: int) -> None:
        """Closes a producer and waits until the broker has; one that is closed already is left alone.

        Raises:
            MQSourceError: no answer in time.
        """
        if not session.closed and session.has_producer(producer_id):
            self.wait(session.close_producer(producer_id), "CLOSE_PRODUCER")

    def fetch_last_sequence_ids(
        self, producers: Mapping[TopicPartition, tuple[int, str]], *, schema: commands.Schema | None
    ) -> dict[TopicPartition, int]:
        """The highest sequence id that the broker has stored of producers that are not open; -1 for none.

        Args:
            producers: the id, not in use on any connection of this client, and the name of each.
            schema: as for `open_producer`: a broker may want one.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        sessions: dict[TopicPartition, Session] = {}

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[commands.ProducerSuccess]]:
            sessions.update(self._lookup(names))
            return {
                at: sessions[at].open_producer(
                    producers[at][0],
                    _NullProducerEvents(),
                    partial(self._create_producer, at, *producers[at], 0, schema=schema),
                )
                for at in names
            }

        found = self._gather(list(producers), ask, "PRODUCER")
        for at in found:
            # Not before it is open; a lost connection has closed it.
            sessions[at].close_producer(producers[at][0])
        return {at: opened.last_sequence_id for at, opened in found.items()}

    @staticmethod
    def _create_producer(
        topic_partition: TopicPartition,
        producer_id: int,
        name: str | None,
        epoch: int,
        request_id: int,
        **more: Any,  # noqa: ANN401
    ) -> commands.Producer:
        return commands.Producer(
            str(topic_partition),
            producer_id,
            request_id,
            producer_name=name,
            epoch=epoch,
            user_provided_producer_name=False,
            **more,
        )

    # -- transactions

    def fetch_coordinators(self) -> int:
        """How many transaction coordinators the cluster has; 0 where transactions are not enabled.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        try:
            found = self.fetch_partitions([COORDINATORS])
        except TopicNotFoundError:
            return 0
        return sum(at.partition >= 0 for at in found)

    def open_coordinator(self, number: int) -> Session:
        """The connection to the broker that has a transaction coordinator, loaded.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        at = TopicPartition(COORDINATORS, number)
        session = self._lookup([at])[at]
        # Once a load would do. Asked each time, the broker that has it since a moment is ready for what comes next.
        loaded = session.request(
            lambda request_id: commands.TcClientConnectRequest(request_id, number),
            accepted(commands.TcClientConnectResponse),
        )
        self.wait(loaded, f"TC_CLIENT_CONNECT of coordinator {number}")
        return session

    # -- how it is asked

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._options.operation_timeout_ms)

    def _service(self) -> Session:
        """A connection to any of the service addresses, tried in random order; a migrated topic brings its own."""
        moved = next((s.migrated_to for s in self._sessions.values() if s.migrated_to is not None), None)
        if moved is not None:
            self._addresses = [split_broker_url(moved)]
        for host, port in self._addresses:
            session = self._sessions.get((host, port, None))
            if session is not None and not session.closed:
                return session
        failures: list[MQSourceError] = []
        for host, port in random.sample(self._addresses, len(self._addresses)):
            try:
                return self._session(host, port, None)
            except TransportError as failure:
                failures.append(failure)
        if len(failures) == 1:
            raise failures[0]
        error = TransportError("; ".join(map(str, failures)))
        error.retryable = any(failure.retryable for failure in failures)
        raise error

    def _session(self, host: str, port: int, proxy_to: str | None) -> Session:
        key = (host, port, proxy_to)
        session = self._sessions.get(key)
        if session is None or session.closed:
            session = warm_sessions().take(SessionKey.of(self._options, *key))
            if session is None:
                session = Session(self._options, host, port, proxy_to=proxy_to)
            self._sessions[key] = session
        return session

    def _lookup(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Session]:
        """The connection to the broker that serves each topic-partition."""
        base = self._service()
        found: dict[TopicPartition, Session] = {}
        asking: dict[TopicPartition, tuple[Session, bool]] = dict.fromkeys(topic_partitions, (base, False))
        for _ in range(MAX_REDIRECTS):
            answers = {
                tp: session.request(
                    partial(
                        commands.Lookup,
                        str(tp),
                        authoritative=authoritative,
                        advertised_listener_name=self._options.listener_name,
                    ),
                    _lookup_of,
                )
                for tp, (session, authoritative) in asking.items()
            }
            asked, asking = asking, {}
            for tp, response in self.wait_for(answers, "LOOKUP").items():
                session = self._session_of(response, asked[tp][0])
                if response.response is commands.LookupType.Redirect:
                    asking[tp] = (session, response.authoritative)
                else:
                    found[tp] = session
            if not asking:
                return found
        raise RemoteProtocolError(f"LOOKUP of {next(iter(asking))} was redirected more than {MAX_REDIRECTS} times")

    def _session_of(self, response: commands.LookupResponse, asked: Session) -> Session:
        url = response.broker_service_url_tls if self._options.uses_tls else response.broker_service_url
        if not url:
            wanted = "pulsar+ssl://" if self._options.uses_tls else "pulsar://"
            raise RemoteProtocolError(
                f"{asked.address}: LOOKUP names a broker without a {wanted} address; use the other kind of serviceUrl"
            )
        host, port = split_broker_url(url)
        if response.proxy_through_service_url:
            # A proxy forwards the connection to the broker it is told; a broker that answers so (standalone does)
            # is that broker itself, and the connection in hand serves.
            service = asked.host_port if asked.host_port in self._addresses else self._addresses[0]
            return self._session(*service, None if service == (host, port) else f"{host}:{port}")
        try:
            return self._session(host, port, None)
        except TransportError as error:
            hint = (
                f"the broker advertises itself as {host}:{port}, which cannot be reached from here; set listenerName, "
                f"or connect through a Pulsar proxy"
            )
            raise error.within(hint) from error

    def subscription(self, name: str | None = None, **how: Any) -> Subscription:  # noqa: ANN401 - as declared there
        """Return a subscription for consumers of this client, under a name that nobody has unless one is given."""
        return Subscription(
            name or f"{self._options.subscription_base}-{uuid.uuid4().hex}",
            consumer_name=self._consumer_name,
            read_compacted=self._options.read_compacted,
            **how,
        )

    def _subscribe(self, session: Session, at: TopicPartition, subscription: Subscription) -> Future[Consumer]:
        return open_consumer(session, at, subscription, self._options.receive_queue_bytes)

    def _probe(
        self, topic_partitions: Sequence[TopicPartition], timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Bounds]:
        """The bounds seen by a consumer opened at the start, or sought to a time, and closed again."""

        def ask(names: Sequence[TopicPartition]) -> Mapping[TopicPartition, Future[Bounds]]:
            sessions = self._lookup(names)
            subscriptions = {tp: self.subscription(start=EARLIEST) for tp in names}
            consumers = self.wait_for(
                {tp: self._subscribe(sessions[tp], tp, subscriptions[tp]) for tp in names}, "SUBSCRIBE"
            )
            sought = {tp: consumers[tp].request_seek(timestamps_ms[tp]) for tp in names if tp in timestamps_ms}
            self.wait_for(sought, "SEEK")
            # The broker has closed the consumers that were sought; under the same name the cursor is kept.
            consumers |= self.wait_for(
                {tp: self._subscribe(sessions[tp], tp, subscriptions[tp]) for tp in sought}, "SUBSCRIBE"
            )
            closed = {tp: consumers[tp].request_close() for tp in names}
            self.wait_for(closed, "CLOSE_CONSUMER")
            return {tp: _already(consumers[tp].opened) for tp in names}

        return self._gather(topic_partitions, ask, "positions")

    def _gather(
        self,
        keys: Sequence[K],
        ask: Callable[[Sequence[K]], Mapping[K, Future[T]]],
        what: str,
        final: tuple[type[MQSourceError], ...] = (),
    ) -> dict[K, T]:
        """Asks for all keys, a bounded number at once, and again for those whose failure may pass (unless `final`)."""
        results: dict[K, T] = {}
        for start in range(0, len(keys), MAX_REQUESTS_IN_FLIGHT):
            window = keys[start : start + MAX_REQUESTS_IN_FLIGHT]

            def attempt(window: Sequence[K] = window) -> None:
                missing = [key for key in window if key not in results]
                failure: MQSourceError | None = None
                deadline = self._deadline()
                for key, answer in ask(missing).items():
                    try:
                        results[key] = self.wait(answer, f"{what} of {key}", deadline)
                    except MQSourceError as error:
                        may_pass = error.retryable or self._is_listed(key, error)
                        error.retryable = may_pass and not isinstance(error, final)
                        if not error.retryable:
                            raise
                        # The first: a request without an answer ends its connection, and the others on it.
                        failure = failure or error
                if failure is not None:
                    raise failure

            retrying(attempt, deadline=self._deadline())
        return results

    def _is_listed(self, key: object, error: MQSourceError) -> bool:
        """Whether what was not found is a partition that is listed: a new one is listed before it is there (4.0.8)."""
        if not isinstance(error, TopicNotFoundError) or not isinstance(key, TopicPartition) or key.partition < 0:
            return False
        return key in self.fetch_partitions([key.topic])

    def wait(self, answer: Future[T], what: str, deadline: Deadline | None = None) -> T:
        """Return an answer that comes before the deadline, or within `operationTimeout`.

        Raises:
            MQSourceError: no answer in time, a refusal, or a consumer has ended.
        """
        try:
            return answer.result((deadline or self._deadline()).remaining_seconds())
        except FutureTimeoutError:
            if isinstance(answer, Answer):
                # Whatever holds the answer back would hold back that to the next try.
                answer.session.close()
            raise RequestTimeoutError(
                f"no answer to {what} within operationTimeout ({self._options.operation_timeout_ms} ms)"
            ) from None
        except MQSourceError as error:
            raise error.within(what) from error


def _is_fenced_by(error: MQSourceError, name: str) -> bool:
    """Whether a producer of this name has the topic for itself (the broker's own words, seen on 4.0.8)."""
    return (
        isinstance(error, BrokerError)
        and error.code == _PRODUCER_FENCED
        and error.broker_message.endswith(f"existing exclusive producer: {name}")
    )


class _NullProducerEvents:
    """Takes what a producer is told that sends nothing."""

    def opened(self) -> None:
        pass

    def deliver(self, event: commands.SendReceipt | commands.SendError) -> None:
        pass

    def fail(self, error: MQSourceError) -> None:
        pass


def http_headers(options: PulsarOptions) -> dict[str, str]:
    """The same for the admin interface."""
    authentication = authentication_of(options)
    if authentication is None or authentication.method_name == "tls":
        return {}
    data = authentication.auth_data(None)
    if authentication.method_name == "basic":
        return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
    return {"Authorization": f"Bearer {data.decode()}"}


def split_broker_url(url: str) -> tuple[str, int]:
    """Host and port of a broker's own URL.

    Raises:
        RemoteProtocolError: not a Pulsar URL.

    Example:
        >>> split_broker_url("pulsar://broker-1.example.com:6650")
        ('broker-1.example.com', 6650)
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme not in {"pulsar", "pulsar+ssl"}:
        raise RemoteProtocolError(f"a lookup answered with the address {url!r}, which is no Pulsar address")
    return host, port


def _lookup_of(response: object) -> commands.LookupResponse:
    answer = accepted(commands.LookupResponse)(response)
    if answer.response is commands.LookupType.Failed:
        raise error_for_code(0, answer.message, "")
    return answer


def _namespace_of(topic: str) -> str:
    """`tenant/namespace` of a topic's full name."""
    return "/".join(topic.partition("://")[2].split("/", 2)[:2])


def _already(value: T) -> Future[T]:
    """A future that is done."""
    future: Future[T] = Future()
    future.set_result(value)
    return future
