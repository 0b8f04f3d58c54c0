"""The client against scripted brokers on real sockets: redirects, proxies, refusals, silence, order, back-pressure."""

import contextlib
import threading
import time
from concurrent.futures import Future

import pytest

from spark_mq_source.core.buffer import BLOCK_BYTES
from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ConnectionLostError,
    ConnectTimeoutError,
    MQSourceError,
    RemoteProtocolError,
    RequestTimeoutError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.connections import MAX_REQUESTS_IN_FLIGHT, split_broker_url
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.client.subscriptions import MAX_ENTRIES_AT_ONCE
from spark_mq_source.pulsar.client.warm import warm_sessions
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions, parse_topics_pattern
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command
from spark_mq_source.pulsar.protocol.wire import take_frame
from tests import fix_net
from tests.fix_net import HOST, ScriptedServer, close, free_port, stay_silent
from tests.http_server import ScriptedHttpServer

TOPIC = "persistent://public/default/t"
TP = TopicPartition(TOPIC, -1)
PATIENCE = 20.0
NONE_ID = 2**64 - 1
NEWER = c.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)


class Link(fix_net.Link):
    """The broker's side of one connection."""

    @property
    def connect(self):
        """The CONNECT that the connection received."""
        return next((one for one in self.requests if isinstance(one, c.Connect)), None)

    def send(self, *commands):
        self.peer.send(b"".join(map(encode_command, commands)))

    def read(self):
        frame = self.peer.read_frame()
        taken = take_frame(memoryview(frame), 0, 1 << 30)
        assert taken is not None
        return decode_command(taken)

    def answer(self, reply):
        self.send(*(reply if isinstance(reply, list) else [reply]))


class Broker(fix_net.AnsweringServer):
    """A scripted broker; an answer may be a list of commands."""

    link = Link

    def __init__(self, answers=None, *, partitions=0):
        super().__init__(answers)
        self.partitions = partitions
        self.port = self.server.port
        self.url = f"pulsar://{self.server.address}"

    def stop(self):
        for idle in warm_sessions()._idle:
            idle.session.close()  # otherwise the server waits for it
        super().stop()

    def usual(self, link, command):  # noqa: PLR0911 - one line a command
        match command:
            case c.Connect():
                return c.Connected("Pulsar Server test", 19, 5 << 20, NEWER)
            case c.Ping():
                return c.Pong()
            case c.PartitionedMetadata():
                return c.PartitionedMetadataResponse(command.request_id, self.partitions)
            case c.Lookup():
                return c.LookupResponse(command.request_id, c.LookupType.Connect, self.url)
            case c.Subscribe() | c.CloseConsumer() | c.Seek():
                return c.Success(command.request_id)
            case c.GetLastMessageId():
                return c.GetLastMessageIdResponse(c.MessageId(7, 99), command.request_id, c.MessageId(7, 4))
        return None


@pytest.fixture
def broker():
    """Return a function that starts brokers; stop them when the test ends."""
    with contextlib.ExitStack() as stack:

        def start(answers=None, **more):
            started = Broker(answers, **more)
            stack.callback(started.stop)
            return started

        yield start


@pytest.fixture
def client(closing):
    """Return a function that makes clients of these addresses; close them when the test ends."""

    def make(url, scope=READ, **options):
        given = {"serviceUrl": url, "topic": "t", "operationTimeout": "60s", "connectTimeout": "10s"} | options
        return closing(PulsarClient(PulsarOptions.from_spark(given, scope)))

    return make


def found(url, kind=c.LookupType.Connect, **more):
    """Return an answer to LOOKUP."""
    return lambda _, lookup: c.LookupResponse(lookup.request_id, kind, url, **more)


def refuse(code, message="no"):
    return lambda _, command: c.Error(command.request_id, code, message)


# -- connecting


def test_the_fields_of_connect(broker, client):
    one = broker()
    client(one.url, authToken="secret").fetch_partitions([TOPIC])
    (connect,) = one.of(c.Connect)
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"secret")
    assert connect.client_version.startswith("spark-mq-source")
    assert connect.protocol_version == 20
    assert connect.proxy_to_broker_url is None


def test_a_refused_token_ends_at_once(broker, client):
    one = broker({c.Connect: lambda *_: c.Error(-1, 3, "Failed to authenticate")})
    with pytest.raises(AuthenticationError, match="Failed to authenticate") as caught:
        client(one.url, authToken="secret").fetch_partitions([TOPIC])
    assert "secret" not in str(caught.value)
    assert len(one.links) == 1


@pytest.mark.parametrize("silence", [stay_silent, close], ids=["silent", "closing"])
def test_a_port_without_a_broker(client, silence):
    with ScriptedServer([lambda peer: (peer.read(4), None)[1], silence], repeat=True) as server:
        one = client(f"pulsar://{server.address}", operationTimeout="600ms", connectTimeout="300ms")
        with pytest.raises((ConnectTimeoutError, ConnectionLostError), match="binary port") as caught:
            one.fetch_partitions([TOPIC])
        assert server.address in str(caught.value)
        one.close()


def test_the_second_address_is_used_if_the_first_is_unreachable(broker, client):
    one = broker()
    for _ in range(8):  # the order is random
        url = f"pulsar://{HOST}:{free_port()},{HOST}:{one.port}"
        assert client(url, operationTimeout="5s").fetch_partitions([TOPIC]) == [TP]


def test_the_error_of_unreachable_addresses_names_them_all(client):
    ports = [free_port(), free_port()]
    url = f"pulsar://{HOST}:{ports[0]},{HOST}:{ports[1]}"
    with pytest.raises(TransportError) as caught:
        client(url, operationTimeout="300ms").fetch_partitions([TOPIC])
    assert all(f"{HOST}:{port}: cannot connect" in str(caught.value) for port in ports)


def test_a_broker_that_restarts_is_waited_for(broker, client):
    attempts = []

    def flaky(link, _connect):
        attempts.append(1)
        if len(attempts) < 3:
            link.peer.reset()
            return None
        return c.Connected("Pulsar Server test", 19, feature_flags=NEWER)

    one = broker({c.Connect: flaky})
    assert client(one.url).fetch_partitions([TOPIC]) == [TP]
    assert len(attempts) == 3


# -- lookup


@pytest.mark.parametrize("authoritative", [True, False])
def test_a_redirect_is_followed_with_its_flag(broker, client, authoritative):
    serving = broker()
    second = broker({c.Lookup: found(serving.url)})
    first = broker({c.Lookup: found(second.url, c.LookupType.Redirect, authoritative=authoritative)})
    bounds = client(first.url, listenerName="outside").fetch_bounds([TP])
    assert bounds == {TP: Bounds(Position(7, 4), Position(7, 99))}
    assert [(x.authoritative, x.advertised_listener_name) for x in first.of(c.Lookup)] == [(False, "outside")]
    assert [(x.authoritative, x.advertised_listener_name) for x in second.of(c.Lookup)] == [(authoritative, "outside")]
    assert len(serving.of(c.Subscribe)) == 1


def test_circular_redirects(broker, client):
    one = broker()
    one.answers[c.Lookup] = found(one.url, c.LookupType.Redirect)
    with pytest.raises(RemoteProtocolError, match=f"LOOKUP of {TOPIC} was redirected more than 20 times"):
        client(one.url).fetch_bounds([TP])
    assert len(one.of(c.Lookup)) == 20


def test_a_redirect_through_a_proxy(broker, client):
    def answer(link, lookup):
        inside = link.connect.proxy_to_broker_url
        kind = c.LookupType.Redirect if inside is None else c.LookupType.Connect
        url = "pulsar://one.example:6650" if inside is None else "pulsar://two.example:6650"
        return c.LookupResponse(lookup.request_id, kind, url, authoritative=True, proxy_through_service_url=True)

    proxy = broker({c.Lookup: answer})
    client(proxy.url).fetch_bounds([TP])
    asked = [link.connect.proxy_to_broker_url for link in proxy.links]
    assert asked == [None, "one.example:6650", "two.example:6650"]
    assert [x.authoritative for x in proxy.of(c.Lookup)] == [False, True]
    assert [type(x) for x in proxy.links[2].requests[1:3]] == [c.Subscribe, c.GetLastMessageId]


def test_a_standalone_that_names_itself_as_a_proxy_gets_one_connection(broker, client):
    one = broker()
    one.answers[c.Lookup] = found(one.url, proxy_through_service_url=True)
    client(one.url).fetch_bounds([TP])
    assert len(one.links) == 1


def test_an_unreachable_broker(broker, client):
    one = broker({c.Lookup: found(f"pulsar://{HOST}:{free_port()}")})
    with pytest.raises(TransportError, match="the broker advertises itself as") as caught:
        client(one.url, operationTimeout="300ms").fetch_bounds([TP])
    assert "listenerName" in str(caught.value)


@pytest.mark.parametrize("url", ["http://x:8080", "pulsar://", "pulsar://x", "x:6650", "pulsar://x:99999999", "", None])
def test_an_invalid_address(broker, client, url):
    one = broker({c.Lookup: found(url, broker_service_url_tls="pulsar+ssl://x:6651")})
    words = "without a pulsar:// address; use the other kind of serviceUrl|which is no Pulsar address"
    with pytest.raises(RemoteProtocolError, match=words):
        client(one.url).fetch_bounds([TP])


@pytest.mark.parametrize(
    ("code", "kind"), [(4, AuthorizationError), (11, TopicNotFoundError), (17, BrokerError), (999, BrokerError)]
)
def test_a_failed_lookup_is_the_brokers_error(broker, client, code, kind):
    one = broker({c.Lookup: found(None, c.LookupType.Failed, error=code, message="because")})
    with pytest.raises(kind, match="because") as caught:
        client(one.url).fetch_bounds([TP])
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert f"LOOKUP of {TOPIC}" in str(caught.value)
    assert len(one.of(c.Lookup)) == 1


def test_a_retryable_lookup_is_repeated(broker, client):
    one = broker()

    def answer(link, lookup):
        if len(one.of(c.Lookup)) < 3:
            return c.LookupResponse(lookup.request_id, c.LookupType.Failed, error=6, message="loading")
        return one.usual(link, lookup)

    one.answers[c.Lookup] = answer
    assert TP in client(one.url).fetch_bounds([TP])
    assert len(one.of(c.Lookup)) == 3


@pytest.mark.parametrize(
    ("request_", "refusal", "ask"),
    [
        (
            c.PartitionedMetadata,
            lambda one: c.PartitionedMetadataResponse(one.request_id, error=6, message="closing"),
            lambda made: made.fetch_partitions([TOPIC]),
        ),
        (
            c.Lookup,
            lambda one: c.LookupResponse(one.request_id, c.LookupType.Failed, error=6, message="closing"),
            lambda made: made.fetch_addresses([TP]),
        ),
    ],
    ids=["partitions", "lookup"],
)
def test_a_request_that_a_broker_refuses_while_it_shuts_down_is_repeated_at_the_other_addresses(
    broker, client, request_, refusal, ask
):
    brokers = [broker() for _ in range(3)]
    closing = []

    def answer(link, command):
        one = next(one for one in brokers if link in one.links)
        if one not in closing and len(closing) < 2:
            closing.append(one)
        return refusal(command) if one in closing else one.usual(link, command)

    for one in brokers:
        one.answers[request_] = answer
    made = client(f"pulsar://{','.join(one.server.address for one in brokers)}", operationTimeout="5s")
    assert ask(made)
    assert [len(one.of(request_)) for one in closing] == [1, 1]


def test_splitting_urls():
    assert split_broker_url("pulsar+ssl://[::1]:6651") == ("::1", 6651)


# -- partitions and topics


def test_partitions_are_requested_without_creating_the_topic(broker, client):
    one = broker(partitions=3)
    assert client(one.url).fetch_partitions([TOPIC]) == [TopicPartition(TOPIC, n) for n in range(3)]
    assert [x.metadata_auto_creation_enabled for x in one.of(c.PartitionedMetadata)] == [False]


# A proxy answers by `LookupResponse` (4.0.8).
@pytest.mark.parametrize("kind", [c.PartitionedMetadataResponse, c.LookupResponse])
def test_a_topic_that_does_not_exist(broker, client, kind):
    def missing(_, x):
        return kind(x.request_id, error=11, message="Not found")

    one = broker({c.PartitionedMetadata: missing})
    with pytest.raises(TopicNotFoundError, match="Not found") as caught:
        client(one.url).fetch_partitions([TOPIC])
    assert TOPIC in str(caught.value)


def older(listed=()):
    """Return the answers of a broker with these topics that creates topics at a look-up, as 2.10.1 does."""
    return {
        c.Connect: lambda *_: c.Connected("Pulsar Server2.10.1", 19, 5 << 20),
        c.GetTopicsOfNamespace: lambda _, x: c.GetTopicsOfNamespaceResponse(
            x.request_id, tuple(name for name in listed if name.startswith(f"persistent://{x.namespace}/"))
        ),
    }


@pytest.mark.parametrize("name", [TOPIC, f"{TOPIC}-partition-1", "persistent://public/absent/t"])
def test_partitions_of_an_unlisted_topic_are_not_requested_from_an_older_broker(broker, client, name):
    one = broker(older(["persistent://public/default/other", f"{TOPIC}x", "persistent://public/default/a/t"]))
    with pytest.raises(TopicNotFoundError, match=r"Pulsar Server2\.10\.1 lists no topic .* adminUrl") as caught:
        client(one.url).fetch_partitions(["persistent://public/default/other", name])
    assert f" {name}: " in str(caught.value)
    assert one.url.removeprefix("pulsar://") in str(caught.value)
    assert one.of(c.PartitionedMetadata) == []


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        (TOPIC, TOPIC),
        (TOPIC, f"{TOPIC}-partition-7"),
        (f"{TOPIC}-partition-1", f"{TOPIC}-partition-1"),
    ],
)
def test_partitions_of_a_listed_topic_are_requested_from_an_older_broker(broker, client, name, listed):
    one = broker(older([listed]))
    assert client(one.url).fetch_partitions([name]) == [TopicPartition.parse(name)]
    assert [x.namespace for x in one.of(c.GetTopicsOfNamespace)] == ["public/default"]


@pytest.mark.parametrize(("partitions", "is_there"), [(0, False), (1, False), (2, True)])
def test_an_unlisted_partition_of_an_older_broker_exists_if_its_topic_has_enough(broker, client, partitions, is_there):
    def count(_, x):
        return c.PartitionedMetadataResponse(x.request_id, partitions if x.topic == TOPIC else 0)

    one = broker(older([f"{TOPIC}-partition-0"]) | {c.PartitionedMetadata: count})
    with contextlib.nullcontext() if is_there else pytest.raises(TopicNotFoundError):
        assert client(one.url).fetch_partitions([f"{TOPIC}-partition-1"]) == [TopicPartition(TOPIC, 1)]


def test_the_topics_of_a_namespace_are_requested_once_from_an_older_broker(broker, client):
    names = [f"{TOPIC}{n}" for n in range(20)]
    one = broker(older(names))
    assert client(one.url).fetch_partitions(names) == [TopicPartition(name, -1) for name in names]
    assert len(one.of(c.GetTopicsOfNamespace)) == 1


def test_an_older_broker_may_create_a_topic_to_be_created(broker, client):
    one = broker(older(), partitions=2)
    assert len(client(one.url).fetch_partitions([TOPIC], create=True)) == 2
    assert one.of(c.GetTopicsOfNamespace) == []


def test_a_namespace_that_does_not_exist_is_not_waited_for(broker, client):
    def missing(_, x):
        return c.PartitionedMetadataResponse(x.request_id, error=1, message="Namespace not found")

    one = broker({c.PartitionedMetadata: missing})
    with pytest.raises(TopicNotFoundError, match=r"MetadataError.*check the names"):
        client(one.url).fetch_partitions([TOPIC], create=True)
    assert len(one.of(c.PartitionedMetadata)) == 1


def test_topics_of_namespaces(broker, client):
    names = {"public/default": ("b-partition-1", "b-partition-0", "a", "__change_events", "z"), "public/other": ("a",)}

    def listed(_, x):
        return c.GetTopicsOfNamespaceResponse(
            x.request_id, tuple(f"persistent://{x.namespace}/{name}" for name in names[x.namespace])
        )

    found = client(broker({c.GetTopicsOfNamespace: listed}).url).fetch_topics(
        parse_topics_pattern("public/(default|other)/[ab_].*")
    )
    assert found == ["persistent://public/default/a", "persistent://public/default/b", "persistent://public/other/a"]


# -- requests


def test_answers_in_another_order(broker, client):
    held = []

    def hold(_, request):
        held.append(request)
        if len(held) < 4:
            return None
        return [c.PartitionedMetadataResponse(x.request_id, int(x.topic[-1])) for x in reversed(held)]

    one = broker({c.PartitionedMetadata: hold})
    topics = [f"{TOPIC}{n}" for n in range(1, 5)]
    found = client(one.url).fetch_partitions(topics)
    assert found == [TopicPartition(f"{TOPIC}{n}", p) for n in range(1, 5) for p in range(n)]


def test_unexpected_answers_are_ignored(broker, client):
    def more(_, request):
        return [
            c.Success(12345),
            c.Error(12346, 6, "for nobody"),
            c.UnknownCommand(64),
            c.ActiveConsumerChange(77, True),
            c.ReachedEndOfTopic(78),
            c.CloseConsumer(79, -1),
            c.PartitionedMetadataResponse(request.request_id, 2),
            c.PartitionedMetadataResponse(request.request_id, 3),
        ]

    one = broker({c.PartitionedMetadata: more})
    assert len(client(one.url).fetch_partitions([TOPIC])) == 2


def test_commands_to_a_consumer_update_its_state(broker, client):
    # The active consumer is chosen before SUBSCRIBE is answered, as in a broker.
    def subscribe(_, request):
        return [c.ActiveConsumerChange(request.consumer_id, True), c.Success(request.request_id)]

    def notify(_, request):
        return [c.ActiveConsumerChange(request.consumer_id, False), c.ReachedEndOfTopic(request.consumer_id)]

    one = broker({c.Subscribe: subscribe, c.Flow: notify})
    asking = client(one.url)
    consumer = asking.open_consumer(TP, EARLIEST)
    assert (consumer.is_active, consumer.has_ended, consumer.chosen.done()) == (True, False, True)
    consumer.grant(1)
    asking.wait(consumer.request_bounds(), "the bounds")
    assert (consumer.is_active, consumer.has_ended, consumer.chosen.done()) == (False, True, True)


def test_a_consumer_that_is_closed_before_it_becomes_active(broker, client):
    one = broker({c.Flow: lambda _, request: c.CloseConsumer(request.consumer_id, NONE_ID)})
    consumer = client(one.url).open_consumer(TP, EARLIEST)
    assert (consumer.is_active, consumer.has_ended) == (None, False)
    consumer.grant(1)
    with pytest.raises(ServiceNotReadyError, match="the broker closed the consumer"):
        consumer.chosen.result(PATIENCE)


def test_an_answer_of_the_wrong_kind(broker, client):
    one = broker({c.PartitionedMetadata: lambda _, x: c.Success(x.request_id)})
    with pytest.raises(RemoteProtocolError, match="answered Success instead of PartitionedMetadataResponse"):
        client(one.url).fetch_partitions([TOPIC])


@pytest.mark.parametrize("kind", [c.PartitionedMetadata, c.Lookup, c.Subscribe, c.GetLastMessageId])
def test_a_connection_on_which_a_request_was_never_answered_is_not_used_again(broker, client, kind):
    def answer(link, command):
        return None if link is one.links[0] else one.usual(link, command)

    one = broker()
    one.answers[kind] = answer
    asked = client(one.url, operationTimeout="400ms")
    with pytest.raises(RequestTimeoutError, match=r"within operationTimeout \(400 ms\)") as caught:
        asked.fetch_bounds(asked.fetch_partitions([TOPIC]))
    assert caught.value.retryable
    assert TOPIC in str(caught.value)
    assert list(asked.fetch_bounds(asked.fetch_partitions([TOPIC]))) == [TP]
    assert len(one.links) == 2


def test_many_requests_that_are_never_answered_take_no_longer_than_one(broker, client):
    one = broker({c.PartitionedMetadata: lambda *_: None})
    with pytest.raises(RequestTimeoutError):
        client(one.url, operationTimeout="300ms").fetch_partitions([f"{TOPIC}{n}" for n in range(10)])
    one.wait_for(lambda: len(one.of(c.PartitionedMetadata)) == 10)


@pytest.mark.parametrize(("stored", "delivers", "is_empty"), [(-1, True, True), (3, False, True), (3, True, False)])
def test_a_topic_without_a_last_message_must_deliver_none(broker, client, monkeypatch, stored, delivers, is_empty):
    asked = client(broker().url, operationTimeout="100ms")
    found = {Position(7, 0)} if delivers else ()
    monkeypatch.setattr(asked, "fetch_stored", lambda positions: dict.fromkeys(positions, Position(7, stored)))
    monkeypatch.setattr(asked, "fetch_first_entries", lambda starts, _: {tp: at for tp in starts for at in found})
    bounds = {TP: Bounds(Position(7, -1), EARLIEST)}
    if is_empty:
        assert asked.confirmed(lambda: bounds) == bounds
    else:
        with pytest.raises(ServiceNotReadyError, match=r"reports no last message, but delivers 7:0; .*try again then"):
            asked.confirmed(lambda: bounds)


def test_a_last_message_that_the_broker_finds_while_none_is_delivered_is_taken(broker, client, monkeypatch):
    asked = client(broker().url)
    monkeypatch.setattr(asked, "fetch_stored", lambda positions: dict.fromkeys(positions, Position(7, 3)))
    monkeypatch.setattr(asked, "fetch_first_entries", lambda *_: {})
    ends = [EARLIEST, Position(7, 3), Position(7, 3)]
    found = asked.confirmed(lambda: {TP: Bounds(Position(7, -1), ends.pop(0))})
    assert (found[TP].last, ends) == (Position(7, 3), [])


@pytest.mark.parametrize(("read_compacted", "first"), [("false", Position(7, 4)), ("true", EARLIEST)])
def test_the_first_position_includes_the_compacted_ledger(broker, client, read_compacted, first):
    bounds = client(broker().url, readCompacted=read_compacted).fetch_bounds([TP])
    assert bounds == {TP: Bounds(first, Position(7, 99))}


def test_a_topic_that_is_unloaded_after_seek_is_searched_again(broker, client):
    """It forgets the cursor, and the next subscription of that name begins at the start."""
    one = broker()
    cursors: dict[str, int] = {}
    names: dict[int, str] = {}

    def subscribe(_, asked):
        names[asked.consumer_id] = asked.subscription
        cursors.setdefault(asked.subscription, 0)
        return c.Success(asked.request_id)

    def seek(_, asked):
        cursors[names.pop(asked.consumer_id)] = 5
        closed = [c.Success(asked.request_id), c.CloseConsumer(asked.consumer_id, -1)]
        if len(one.of(c.Seek)) == 1:  # the topic is unloaded right after
            closed += [c.CloseConsumer(number, -1) for number in names]
            cursors.clear()
        return closed

    def bounds(_, asked):
        cursor = cursors[names[asked.consumer_id]]
        return c.GetLastMessageIdResponse(c.MessageId(7, 9), asked.request_id, c.MessageId(7, cursor))

    one.answers |= {c.Subscribe: subscribe, c.Seek: seek, c.GetLastMessageId: bounds}
    assert client(one.url).fetch_positions_at({TP: 1}) == {TP: Position(7, 5)}
    assert len(one.of(c.Seek)) == 2


def test_planning_many_partitions_takes_few_round_trips(broker, client):
    count = 200
    one = broker(partitions=count)
    held: dict[type, list[object]] = {}

    def all_at_once(link, command):
        # Answers follow only after all requests: a client that waits for each answer never gets one.
        waiting = held.setdefault(type(command), [])
        waiting.append(one.usual(link, command))
        if len(waiting) < count:
            return None
        replies, waiting[:] = list(waiting), []
        return replies

    for kind in (c.Lookup, c.Subscribe, c.GetLastMessageId, c.CloseConsumer):
        one.answers[kind] = all_at_once
    asked = client(one.url)
    partitions = asked.fetch_partitions([TOPIC])
    bounds = asked.fetch_bounds(partitions)
    assert set(bounds) == set(partitions)
    assert len(one.links) == 1
    assert len({x.subscription for x in one.of(c.Subscribe)}) == count


@pytest.mark.parametrize("refused", [None, 3])
def test_requests_of_many_partitions_are_sent_a_limited_number_at_once(client, refused):
    unanswered, most = set(), 0

    class Asked(Future):
        def __init__(self, number):
            super().__init__()
            unanswered.add(number)
            self.number = number
            self.set_result(number)

        def result(self, timeout=None):
            unanswered.remove(self.number)
            if self.number == refused:
                raise ServiceNotReadyError("moved")
            return self.number

    def asked():
        nonlocal most
        for number in range(3 * MAX_REQUESTS_IN_FLIGHT):
            one = Asked(number)
            most = max(most, len(unanswered))
            yield TopicPartition(TOPIC, number), one

    waiting = client("pulsar://127.0.0.1:1").wait_for
    if refused is None:
        assert list(waiting(asked(), "?").values()) == list(range(3 * MAX_REQUESTS_IN_FLIGHT))
    else:
        with pytest.raises(ServiceNotReadyError, match=r"\? of .*-partition-3: moved"):
            waiting(asked(), "?")
    assert most == MAX_REQUESTS_IN_FLIGHT


def test_first_entries_that_fill_their_queues_do_not_block_each_other(broker, client):
    one = broker(partitions=2 * MAX_ENTRIES_AT_ONCE)
    held: list[c.Message] = []

    def last_first(_, flow):
        held.append(message(4, 2 << 20, flow.consumer_id))
        if len(held) < MAX_ENTRIES_AT_ONCE:
            return None
        return [held.pop()] if len(one.of(c.Flow)) > MAX_ENTRIES_AT_ONCE else held[::-1]

    one.answers[c.Flow] = last_first
    asked = client(one.url, receiveQueueBytes="1m")
    found = asked.fetch_first_entries(dict.fromkeys(asked.fetch_partitions([TOPIC]), EARLIEST))
    assert list(found.values()) == [Position(7, 4)] * 2 * MAX_ENTRIES_AT_ONCE
    one.wait_for(lambda: len(one.of(c.CloseConsumer)) == len(found))


def test_a_lost_connection_fails_every_request_and_is_replaced(broker, client):
    one = broker(partitions=2)

    cut: list[None] = []

    def cut_once(link, command):
        if cut:
            return one.usual(link, command)
        cut.append(link.peer.reset())
        return None

    one.answers[c.GetLastMessageId] = cut_once
    asked = client(one.url)
    assert len(asked.fetch_bounds(asked.fetch_partitions([TOPIC]))) == 2
    assert len(one.links) >= 2


# -- consumers


def message(entry, size=10, consumer_id=1):
    return c.Message(consumer_id, 7, entry, 0, (), memoryview(bytes(size)))


def test_the_fields_of_subscribe(broker, client):
    one = broker()
    consumer = client(one.url, subscription="mine", readCompacted="true").open_consumer(TP, Position(7, 3))
    (subscribe,) = one.of(c.Subscribe)
    assert subscribe.topic == TOPIC
    assert subscribe.subscription.startswith("mine-")
    assert subscribe.durable is False
    assert subscribe.start_message_id == c.MessageId(7, 3)
    assert subscribe.initial_position is c.InitialPosition.Latest
    assert subscribe.force_topic_creation is False
    assert subscribe.read_compacted is True
    assert subscribe.sub_type is c.SubType.Exclusive
    assert consumer.opened == Bounds(Position(7, 4), Position(7, 99))
    assert one.of(c.Flow) == []


def test_a_consumer_that_the_broker_closes_may_be_opened_again(broker, client):
    one = broker({c.Flow: lambda _, x: [message(0), message(1), c.CloseConsumer(x.consumer_id, -1), message(2)]})
    asked = client(one.url)
    consumer = asked.open_consumer(TP, EARLIEST)
    consumer.grant(10)
    got = []
    with pytest.raises(ServiceNotReadyError, match="the broker closed the consumer") as caught:  # noqa: PT012
        for _ in range(10):
            got += consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    assert caught.value.retryable
    assert one.server.address in str(caught.value)
    # Messages before the CLOSE are taken first; later messages have no consumer.
    assert [m.entry_id for m in got] == [0, 1]
    consumer.grant(5)
    consumer.leave()
    assert asked.open_consumer(TP, EARLIEST).opened.last == Position(7, 99)
    assert len(one.links) == 1


@pytest.mark.parametrize("when", [c.Subscribe, c.Flow])
def test_a_read_does_not_follow_a_topic_to_another_cluster(broker, client, when):
    new = broker()
    kind = c.ResourceType.Consumer
    # A broker sends this instead of an answer to SUBSCRIBE.
    old = broker({when: lambda _, x: c.TopicMigrated(x.consumer_id, kind, new.url)})
    asked = client(old.url)

    def read():
        consumer = asked.open_consumer(TP, EARLIEST)
        consumer.grant(10)
        consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)

    with pytest.raises(BrokerError, match=f"has migrated to {new.url}, where messages have other ids") as caught:
        read()
    assert not caught.value.retryable
    assert not new.links


class Events:
    """The events of a producer."""

    topic_partition = TP

    def __init__(self):
        self.failure = Future()

    def opened(self):
        pass

    def fail(self, error):
        self.failure.set_result(error)


def producing(link, command):
    return c.ProducerSuccess(command.request_id, "p")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once", "transaction"])
def test_a_write_follows_a_topic_to_another_cluster_if_it_may_repeat_rows(broker, client, guarantee):
    new = broker({c.Producer: producing})
    old = broker({c.Producer: lambda _, x: c.TopicMigrated(x.producer_id, c.ResourceType.Producer, new.url)})
    asked = client(old.url, WRITE, deliveryGuarantee=guarantee)
    with pytest.raises(ServiceNotReadyError, match=f"has migrated to {new.url}"):
        asked.open_producer(TP, 1, Events(), name=None, epoch=0)
    if guarantee == "at-least-once":
        asked.open_producer(TP, 1, Events(), name=None, epoch=0)
        assert len(new.of(c.Producer)) == 1
    else:
        with pytest.raises(BrokerError, match=f"{guarantee} must not continue there") as caught:
            asked.open_producer(TP, 1, Events(), name=None, epoch=0)
        assert not caught.value.retryable
        assert not new.links


def test_a_write_does_not_follow_one_topic_with_another(broker, client):
    new = broker({c.Producer: producing})

    def open_(link, command):
        if command.topic == TOPIC:
            return c.TopicMigrated(command.producer_id, c.ResourceType.Producer, new.url)
        return producing(link, command)

    old = broker({c.Producer: open_})
    asked = client(old.url, WRITE, deliveryGuarantee="at-least-once", createTopic="true")
    with pytest.raises(ServiceNotReadyError, match="has migrated"):
        asked.open_producer(TP, 1, Events(), name=None, epoch=0)
    other = TopicPartition("persistent://public/other/t", -1)
    assert asked.fetch_partitions([other.topic], create=True) == [other]
    events = Events()
    events.topic_partition = other
    asked.open_producer(other, 2, events, name=None, epoch=0)
    assert not new.links
    asked.open_producer(TP, 1, Events(), name=None, epoch=1)
    assert [one.topic for one in new.of(c.Producer)] == [TOPIC]


@pytest.mark.parametrize("reachable", [True, False])
def test_the_assigned_broker_is_used_without_a_lookup(broker, client, reachable):
    answers = {c.Producer: producing}
    second = broker(answers)
    url = second.url if reachable else f"pulsar://{HOST}:{free_port()}"
    first = broker(answers)
    asked, events = client(first.url, WRITE), Events()
    asked.open_producer(TP, 1, events, name=None, epoch=0)
    first.links[0].send(c.CloseProducer(1, -1, url))
    assert events.failure.result(PATIENCE).retryable
    session, _ = asked.open_producer(TP, 1, Events(), name="p", epoch=0)
    assert session.host_port == (HOST, second.port if reachable else first.port)
    assert (len(first.of(c.Lookup)), len(second.of(c.Lookup))) == (1 if reachable else 2, 0)

    consumer = asked.open_consumer(TP, EARLIEST)
    first.links[0].send(c.CloseConsumer(1, -1, second.url))
    with pytest.raises(ServiceNotReadyError):
        consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    assert asked.open_consumer(TP, EARLIEST).session.host_port == (HOST, second.port)


def test_a_lost_connection_ends_the_consumer(broker, client):
    one = broker({c.Flow: lambda link, _: link.peer.reset()})
    consumer = client(one.url).open_consumer(TP, EARLIEST)
    consumer.grant(10)
    with pytest.raises(ConnectionLostError):
        consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    with pytest.raises(ConnectionLostError):
        consumer.grant(10)


def test_a_refused_subscription(broker, client):
    one = broker({c.Subscribe: refuse(22, "not here")})
    with pytest.raises(BrokerError, match="not here") as caught:
        client(one.url).open_consumer(TP, EARLIEST)
    assert TOPIC in str(caught.value)
    assert len(one.of(c.Subscribe)) == 1


class Flood:
    """A sender of `count` messages of `size` bytes in a thread, which begins at FLOW and counts them."""

    def __init__(self, count, size):
        self.count = count
        self.size = size
        self.sent = 0
        self.thread = threading.Thread()

    def __call__(self, link, _flow):
        if self.sent or self.thread.is_alive():
            return

        def run():
            with contextlib.suppress(OSError):
                for n in range(self.count):
                    link.send(message(n, self.size))
                    self.sent += 1

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def wait_until_held(self):
        """Wait until the broker has sent no message for 100 ms."""
        before = -1
        while self.sent != before:
            before = self.sent
            threading.Event().wait(0.1)
        return before


def test_a_full_queue_pauses_the_broker_and_an_empty_one_resumes_it(broker, client):
    # More than the sockets at both ends can hold: systems let them grow to 32 MiB.
    size, count = 64 << 10, 1_200
    flood = Flood(count, size)
    one = broker({c.Flow: flood})
    consumer = client(one.url, receiveQueueBytes="1m").open_consumer(TP, EARLIEST)
    consumer.grant(count)
    one.wait_for(lambda: one.of(c.Flow))
    held = flood.wait_until_held()
    assert held < count - 10, "the broker was not paused"
    # The bound of the queue, and one receive in addition; the rest is in the sockets of the system.
    assert consumer._inbox._bytes <= (1 << 20) + BLOCK_BYTES
    got: list[c.Message] = []
    while len(got) < count:
        burst = consumer.receive(max_bytes=1 << 18, timeout_seconds=PATIENCE)
        assert burst, f"no message followed the first {len(got)}"
        got += burst
    assert [m.entry_id for m in got] == list(range(count))
    flood.thread.join()


def test_keep_alives_are_answered_while_no_messages_are_taken(broker, client):
    pongs = threading.Event()
    one = broker()

    def ping(link, _flow):
        for _ in range(5):
            link.send(c.Ping())
            if not isinstance(link.read(), c.Pong):
                return
        pongs.set()

    one.answers[c.Flow] = ping
    consumer = client(one.url).open_consumer(TP, EARLIEST)
    consumer.grant(1)
    assert pongs.wait(PATIENCE)


def test_a_silent_broker_loses_the_connection(broker, client):
    one = broker({c.Ping: lambda *_: None})
    consumer = client(one.url, keepAliveInterval="100ms").open_consumer(TP, EARLIEST)
    with pytest.raises(ConnectionLostError, match="was silent"):
        consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    assert len(one.of(c.Ping)) == 1


def full_queue(broker, client, *, first=0):
    """Return a client, and its consumer whose queue is full of messages that are not taken."""
    size, count = 64 << 10, 64
    one = broker()
    one.answers[c.Flow] = lambda *_: [message(n + first, size) for n in range(count)]
    asked = client(one.url, receiveQueueBytes="1m", operationTimeout="2s")
    consumer = asked.open_consumer(TP, EARLIEST)
    consumer.grant(count)
    deadline = time.monotonic() + PATIENCE
    while not consumer._inbox.held and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    return asked, consumer


def test_the_bounds_can_be_requested_while_the_queue_is_full(broker, client):
    # The answer is behind messages that are not taken, because the thread that takes them waits for the answer.
    asked, consumer = full_queue(broker, client)
    assert asked.wait(consumer.request_bounds(), "the bounds") == Bounds(Position(7, 4), Position(7, 99))


@pytest.mark.parametrize(
    ("entries", "gaps"),
    [
        ([(7, 5), (7, 6), (7, 7)], []),
        ([(7, 6)], [(7, 6)]),
        ([(7, 5), (7, 7), (7, 8)], [(7, 7)]),
        ([(7, 5), (9, 0), (9, 1)], [(9, 0)]),
        ([(7, 5), (7, 9), (8, 0), (9, 7)], [(7, 9), (8, 0), (9, 7)]),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_bounds_are_requested_when_a_gap_arrives(broker, client, entries, gaps, at_once):
    # The consumer is opened after 7:4. The answers contain the number of messages sent before the request.
    one = broker()
    sent: list[tuple[int, int]] = []

    def bounds(_, asked):
        place = c.MessageId(7, 4) if not sent else c.MessageId(*sent[-1])
        return c.GetLastMessageIdResponse(c.MessageId(7, 99), asked.request_id, place)

    one.answers[c.GetLastMessageId] = bounds
    asking = client(one.url)
    consumer = asking.open_consumer(TP, EARLIEST)
    messages = [c.Message(1, ledger, entry, 0, (), memoryview(b"x")) for ledger, entry in entries]
    if at_once:
        sent += entries
        one.links[0].send(*messages)
    got: list[c.Message] = []
    for n, each in enumerate(messages):
        if not at_once:
            sent.append(entries[n])
            one.links[0].send(each)
            expected = 1 + sum(gap <= entries[n] for gap in gaps)
            one.wait_for(lambda expected=expected: len(one.of(c.GetLastMessageId)) == expected)
        while len(got) <= n:
            got += consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    assert [(m.ledger_id, m.entry_id) for m in got] == entries
    for gap in gaps:
        first = asking.wait(consumer.bounds_after_gap(*gap), "the cursor").first
        assert first == Position(*(entries[-1] if at_once else gap))
    if not gaps:
        assert len(one.of(c.GetLastMessageId)) == 1


def test_the_bounds_behind_a_gap_are_answered_while_the_queue_is_full(broker, client):
    asked, consumer = full_queue(broker, client, first=100)
    assert asked.wait(consumer.bounds_after_gap(7, 100), "the cursor") == Bounds(Position(7, 4), Position(7, 99))


def test_closing_a_consumer_whose_queue_is_full_frees_its_connection(broker, client):
    asked, consumer = full_queue(broker, client)
    consumer.leave()
    again = asked.open_consumer(TP, EARLIEST)
    assert again.opened.last == Position(7, 99)


def test_a_queue_emptied_while_it_is_being_paused_resumes(broker, client, monkeypatch):
    one = broker()
    consumer = client(one.url, receiveQueueBytes="1m").open_consumer(TP, EARLIEST)
    session = consumer.session
    pausing, emptied = threading.Event(), threading.Event()
    inner = session._set_reading

    def slow(reading):
        # The driver's thread has decided to pause, and is preempted here.
        if not reading:
            pausing.set()
            emptied.wait(1)
        inner(reading)

    monkeypatch.setattr(session, "_set_reading", slow)
    one.links[0].send(*[message(n, 64 << 10) for n in range(17)])
    assert pausing.wait(PATIENCE)
    got: list[c.Message] = []
    while len(got) < 17:
        got += consumer.receive(max_bytes=1 << 30, timeout_seconds=PATIENCE)
    emptied.set()
    one.links[0].send(message(17))
    assert [m.entry_id for m in consumer.receive(max_bytes=1, timeout_seconds=2)] == [17]


def test_credentials_that_cannot_be_read_leave_no_connection_open(broker, client, tmp_path):
    one = broker()
    token = tmp_path / "token"
    token.write_text("x")
    asked = client(one.url, authTokenFile=str(token))
    token.unlink()
    with pytest.raises(MQSourceError, match="token") as caught:
        asked.fetch_partitions([TOPIC])
    # Not even while the error, and with it the frames of its traceback, is kept.
    one.server._accepting.join(0.2)  # time to accept a connection, if one was opened
    for thread in one.server._threads:
        thread.join(3)
        assert not thread.is_alive(), caught.value


@pytest.mark.parametrize("late", [False, True])
def test_consumers_opened_before_a_failure_are_closed(broker, client, late):
    one = broker()
    missing, held = f"{TOPIC}-partition-1", []

    def subscribe(link, x):
        if x.topic == missing:
            return c.Error(x.request_id, 11, "Topic not found")
        if late:
            with one.changed:
                held.append((link, x))
                one.changed.notify_all()
            return None
        return c.Success(x.request_id)

    one.answers[c.Subscribe] = subscribe
    partitions = [TopicPartition(TOPIC, n) for n in range(4)]
    opening = client(one.url)
    with pytest.raises(TopicNotFoundError):
        opening.open_consumers(dict.fromkeys([*partitions[1:2], *partitions] if late else partitions, EARLIEST))
    # The refusal arrived first, perhaps before the broker had read the others.
    one.wait_for(lambda: len(held) == (3 if late else 0))
    for link, x in held:
        link.send(c.Success(x.request_id))
    one.wait_for(lambda: len(one.of(c.CloseConsumer)) == 3)
    opened = {x.consumer_id for x in one.of(c.Subscribe) if x.topic != missing}
    assert {x.consumer_id for x in one.of(c.CloseConsumer)} == opened


# -- the admin interface


LEDGERS = b'{"ledgers": [], "currentLedgerEntries": 0, "currentLedgerSize": 0}'


def tokens_of(server):
    """Return the tokens that a server received."""
    return [headers.get("Authorization") for _, headers in server.asked]


@pytest.mark.parametrize("named_by", ["serviceUrl", "LOOKUP", "nobody"])
def test_a_request_is_redirected_with_the_token_only_to_a_known_broker(broker, client, named_by):
    one = broker()
    if named_by == "LOOKUP":
        one.answers[c.Lookup] = found(f"pulsar://localhost:{one.port}")
    also = f",localhost:{one.port}" if named_by == "serviceUrl" else ""
    with (
        ScriptedHttpServer((200, LEDGERS, {})) as owner,
        ScriptedHttpServer((307, b"", {"Location": f"http://localhost:{owner.port}/x"})) as first,
    ):
        asked = client(f"{one.url}{also}", adminUrl=first.origin, authToken="secret")
        if named_by == "nobody":
            with pytest.raises(RemoteProtocolError, match=r"localhost.*name it in serviceUrl"):
                asked.fetch_ledgers(TP)
            assert owner.asked == []
        else:
            assert asked.fetch_ledgers(TP) == []
            assert tokens_of(owner) == ["Bearer secret"]
        assert tokens_of(first) == ["Bearer secret"]


# -- caches of a process, by credentials


def test_a_cached_schema_is_used_only_with_the_same_credentials(broker, client, tmp_path):
    version = bytes(8)
    schema = c.Schema("t", b"", c.SchemaType.INT32)
    allowed = [b"alice", b"in-the-file"]

    def answer(link, command):
        if link.connect.auth_data in allowed:
            return c.GetSchemaResponse(command.request_id, schema=schema)
        return c.GetSchemaResponse(command.request_id, error_code=4, error_message="no")

    one = broker({c.GetSchema: answer})
    file = tmp_path / "token"
    file.write_text("in-the-file")
    alice, from_file = {"authToken": "alice"}, {"authTokenFile": str(file)}
    for credentials in (alice, alice, from_file, from_file):
        assert client(one.url, **credentials).schema_of(TOPIC, version) == schema
    assert len(one.of(c.GetSchema)) == 2  # alice, and the token in the file, once each
    file.write_text("of-another-user")
    nobody = {}
    for credentials in ({"authToken": "bob"}, from_file, {"authBasicUser": "alice", "authBasicPassword": "x"}, nobody):
        with pytest.raises(AuthorizationError):
            client(one.url, **credentials).schema_of(TOPIC, version)


def test_an_idle_connection_is_reused_only_with_the_same_token(broker, client, tmp_path):
    one = broker()
    file = tmp_path / "token"
    shown = []
    for token in ("a", "a", "b", "a"):
        file.write_text(token)
        asked = client(one.url, authTokenFile=str(file))
        asked.fetch_partitions([TOPIC])
        asked.hand_over()
        shown.append([link.connect.auth_data for link in one.links])
    assert shown == [[b"a"], [b"a"], [b"a", b"b"], [b"a", b"b"]]
    file.unlink()
    with pytest.raises(AuthenticationError, match="cannot be read"):
        client(one.url, authTokenFile=str(file)).fetch_partitions([TOPIC])


@pytest.mark.parametrize(
    ("start", "end", "backlog", "entries"),
    [
        # Within a ledger no request is needed; of a start within a batch, a part of its entry remains.
        (Position(7, 5), Position(7, 6), None, 1),
        (Position(7, 5, 2), Position(7, 5), None, 1),
        (Position(7, 5, 2), Position(7, 6), None, 2),
        # Across ledgers the broker counts, including the entry of the start if its cursor (7:4) is before that.
        (Position(7, 5), Position(9, 0), 3, 2),
        (Position(7, 4), Position(9, 0), 3, 3),
        (Position(7, 5, 2), Position(9, 0), 3, 3),
        # It counts present entries; but entries existed when the end was requested.
        (Position(7, 5), Position(9, 0), 1, 1),
        (Position(7, 5), Position(9, 0), 0, 1),
    ],
)
def test_backlogs_are_entries_after_the_start_and_one_at_least(broker, client, start, end, backlog, entries):
    stats = lambda _, command: c.ConsumerStatsResponse(command.request_id, msg_backlog=backlog)  # noqa: E731
    at = broker({c.ConsumerStats: stats})
    tp = TopicPartition(TOPIC, -1)
    assert client(at.url).fetch_backlogs({tp: start}, {tp: end}) == {tp: entries}
    assert len(at.of(c.ConsumerStats)) == (backlog is not None)
