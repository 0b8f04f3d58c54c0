"""Clients and members against scripted servers on real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq_source.core.errors import TopicNotFoundError, TransportError
from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.client import client as client_module
from spark_mq_source.tubemq.client import group_members
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.group_members import GroupMember, GroupSession
from spark_mq_source.tubemq.client.masters import Masters
from spark_mq_source.tubemq.client.members import ProducerMember, unique_client_id
from spark_mq_source.tubemq.client.session import PartitionConsumer
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from tests.fix_brokers import wait_until
from tests.fix_net import free_port, in_turn
from tests.unit.tubemq.scripted import STANDBY, Link, Server, cut

Servers = Callable[..., Server]
Clients = Callable[..., TubeMQClient]


def consumer_of(client: TubeMQClient, server: Server) -> PartitionConsumer:
    return client.consumer(BrokerPartition(server.broker, "t", 0), client_id="client", group="group")


def registered(server: Server, read_at: float) -> c.RegisterProducerResponse:
    """Return a master's answer to a producer; the master has read its brokers at that time."""
    return c.RegisterProducerResponse(True, 200, "OK!", int(1000 * read_at), (str(server.broker),))


# -- masters


def test_a_standby_master_is_skipped_and_the_active_one_used_first_afterwards(server: Servers, client: Clients) -> None:
    standby = server({c.RegisterConsumerV2: lambda _, __: STANDBY})
    serving = server()
    made = client(standby, serving)
    for _ in range(3):
        assert made.fetch_topics(["t"], group="g").brokers == {1: serving.broker}
    assert len(standby.of(c.RegisterConsumerV2)) == 1


def test_the_error_without_an_active_master_has_all_reasons(server: Servers, client: Clients) -> None:
    standby = server({c.RegisterConsumerV2: lambda _, __: STANDBY})
    dead = free_port()
    made = client(standby, masters=f"{standby.address},127.0.0.1:{dead}", operationTimeout="300ms")
    with pytest.raises(TransportError, match="no active master") as raised:
        made.fetch_topics(["t"], group="g")
    assert "StandbyException" in str(raised.value)
    assert f":{dead}" in str(raised.value)
    assert raised.value.retryable


def test_a_master_that_becomes_active_is_waited_for(server: Servers, client: Clients) -> None:
    made = client(server({c.RegisterConsumerV2: in_turn(STANDBY, STANDBY, c.RegisterConsumerV2Response(200, "OK!"))}))
    assert made.fetch_topics(["t"], group="g").partitions()


def test_a_call_to_one_master_outlives_a_call_to_another(server: Servers, client: Clients) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer_late(_: Link, __: Any) -> object:
        asked.set()
        go_on.wait(30)
        return c.GetPartMetaResponse(200, "OK!", 7)

    slow, other = server({c.GetPartMeta: answer_late}), server()
    made = client(slow, other)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(made.masters.ask, c.GetPartMeta("client", "g"))
        assert asked.wait(30)
        # As the heartbeat of another member that the first master refused.
        made.masters._ask((other.broker.host, other.broker.port), c.CloseProducer("client"))
        go_on.set()
        assert answer.result(30).broker_config_id == 7  # type: ignore[union-attr]
    assert not other.of(c.GetPartMeta)


@pytest.mark.parametrize(("tls", "port"), [("false", 8123), ("true", 8124)])
def test_the_port_of_a_broker_that_the_master_omits_is_the_default_of_tls_or_not(
    server: Servers, client: Clients, monkeypatch: pytest.MonkeyPatch, tls: str, port: int
) -> None:
    texts = ("1:h: ", "2:h:9000")
    answers = {
        c.GetPartMeta: c.GetPartMetaResponse(200, "OK!", 1, 1, ("t#1:1:1:1",), texts),
        c.RegisterProducer: c.RegisterProducerResponse(True, 200, "OK!", 1, texts),
    }
    one = server()
    monkeypatch.setattr(Masters, "ask", lambda _, request: answers.get(type(request)) or one.usual(None, request))
    made = client(one, tls=tls)
    brokers = {1: Broker(1, "h", port), 2: Broker(2, "h", 9000)}
    assert made.fetch_topics(["t"], group="g").brokers == brokers
    assert made.fetch_brokers() == brokers


def test_a_topic_without_partitions(server: Servers, client: Clients) -> None:
    made = client(server({c.GetPartMeta: lambda _, __: c.GetPartMetaResponse(200, "OK!", 1, 1, (), ("1:h:8123",))}))
    with pytest.raises(TopicNotFoundError, match="topic t, u is on no broker"):
        made.fetch_topics(["t", "u"], group="g")


@pytest.mark.parametrize(
    "ask",
    [
        lambda made: made.fetch_brokers(),
        lambda made: made.fetch_topics(["t"], group="g").partitions(),
        lambda made: join(made).close() or True,
    ],
)
def test_a_request_to_a_master_that_reads_its_configuration_is_repeated(
    server: Servers, client: Clients, ask: Callable[[TubeMQClient], object]
) -> None:
    one = server()
    one.answers[c.RegisterProducer] = in_turn(*2 * [c.RegisterProducerResponse(True, 200, "OK!", 1)], one.usual)
    # The third refusal is from before the master knows the brokers.
    refused, refused_v2 = c.RegisterConsumerResponse(False, 431, "?"), c.RegisterConsumerV2Response(431, "?")
    one.answers[c.RegisterConsumer] = in_turn(*3 * [refused], one.usual)
    one.answers[c.RegisterConsumerV2] = in_turn(*3 * [refused_v2], one.usual)
    nothing = c.GetPartMetaResponse(200, "OK!", 1, 1)
    one.answers[c.GetPartMeta] = in_turn(nothing, one.usual)
    assert ask(client(one))


@pytest.mark.parametrize(
    ("read_seconds_ago", "options", "most"),
    [(1, {}, 9), (1, {"operationTimeout": "2s"}, 2), (-3, {}, 10), (60, {}, None), (-60, {}, None)],
)
def test_a_new_master_has_time_to_read_its_topics(
    server: Servers,
    client: Clients,
    monkeypatch: pytest.MonkeyPatch,
    read_seconds_ago: int,
    options: dict[str, str],
    most: int | None,
) -> None:
    """The master's checksum of brokers is the time at which it has read them, by its clock."""
    one = server()
    one.answers[c.RegisterProducer] = lambda _, __: registered(one, time.time() - read_seconds_ago)
    slept: list[float] = []
    monkeypatch.setattr(client_module, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    client(one, **options).wait_until_settled()
    assert [0 < seconds <= (most or 0) for seconds in slept] == [True] * (most is not None)


@pytest.mark.parametrize(
    ("ask", "request_", "times"),
    [
        (lambda made: made.fetch_topics(["t"], group="g").partitions(), c.RegisterConsumerV2, 4),
        (lambda made: made.enter(ProducerMember(made.masters, ["t"])).close(), c.ProducerHeartbeat, 3),
    ],
)
def test_a_topic_that_a_master_has_not_read_yet_is_requested_again(
    server: Servers, client: Clients, ask: Callable[[TubeMQClient], object], request_: type, times: int
) -> None:
    one = server()
    one.answers[c.RegisterProducer] = lambda _, __: registered(one, time.time())
    one.answers[c.RegisterConsumerV2] = in_turn(*3 * [c.RegisterConsumerV2Response(431, "?")], one.usual)
    unread = c.ProducerHeartbeatResponse(True, 200, "OK!", int(1000 * time.time()), (), (str(one.broker),))
    one.answers[c.ProducerHeartbeat] = in_turn(unread, unread, one.usual)
    ask(client(one))
    assert len(one.of(request_)) == times


def test_topics_of_a_pattern_whose_brokers_are_down(server: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    def topic(name: str, accepts: object, status: int = 0) -> dict[str, object]:
        place = {"runInfo": {"acceptSubscribe": accepts}, "topicStatusId": status}
        return {"topicName": name, "topicInfo": [place | {"numPartitions": 1, "numTopicStores": 1}]}

    # "-" is the answer for a broker that is not registered, and 1 the status of a topic that was deleted (2.4.0).
    rows = [topic("up", True), topic("down", "-"), topic("deleted", "-", 1), topic("never read", "-")]
    monkeypatch.setattr("spark_mq_source.net.http.fetch_json", lambda *_, **__: {"data": rows})
    with TubeMQClient(TubeMQOptions.from_spark({"masters": server().address, "topicsPattern": ".*"}, READ)) as made:
        assert made.matched().topic_names == ("up",)
        assert made.matched({"down", "deleted"}).topic_names == ("down", "up")


def test_a_topic_that_a_master_with_its_configuration_does_not_know(server: Servers, client: Clients) -> None:
    one = server({c.RegisterConsumerV2: lambda _, __: c.RegisterConsumerV2Response(431, "?")})
    with pytest.raises(TopicNotFoundError, match="TOPIC_NOT_DEPLOYED"):
        client(one).fetch_topics(["t"], group="g")
    assert len(one.of(c.RegisterConsumerV2)) == 2


def test_unused_connections_are_closed(server: Servers, client: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "IDLE_SECONDS", 0.0)
    one, two, three = (server(broker_id=n) for n in (1, 2, 3))
    made = client(one)
    idle = made.broker(one.broker)
    held = consumer_of(made, two)
    made.wait(held.register(curr_offset=0), "register")
    assert made.broker(three.broker) is not idle
    assert idle.closed
    assert not held.session.closed
    made.wait(held.unregister(), "unregister")
    made.broker(three.broker)
    assert held.session.closed


def test_client_ids_are_unique() -> None:
    ids = {unique_client_id("g") for _ in range(1000)}
    assert len(ids) == 1000
    assert not any(set("@#, ") & set(one) for one in ids)


# -- members


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_members, "GROUP_HEARTBEAT_SECONDS", 0.02)


def join(client: TubeMQClient, **more: Any) -> Any:
    """Return a member that takes and releases partitions as the master asks."""
    given = {"filters": (), "on_connect": list, "on_disconnect": list} | more
    return client.enter(GroupMember(client.masters, "g", ["t"], **given))


def events_of(*events: c.Event | None) -> Callable[[Link, Any], object]:
    left = list(events)

    def answer(_: Link, __: Any) -> object:
        event = left.pop(0) if left else None
        return c.ConsumerHeartbeatResponse(True, 200, "OK!", event)

    return answer


def subscribed(*partition_ids: int) -> tuple[str, ...]:
    return tuple(f"client@g#1:127.0.0.1:8123#t:{n}" for n in partition_ids)


def test_a_member_answers_each_event_with_its_current_partitions(server: Servers, client: Clients) -> None:
    one = server(
        {c.ConsumerHeartbeat: events_of(c.Event(3, 10, None, subscribed(0, 1)), c.Event(4, 20, None, subscribed(0)))}
    )
    calls: list[tuple[str, list[int]]] = []

    def note(what: str, partitions: Sequence[BrokerPartition]) -> Sequence[BrokerPartition]:
        calls.append((what, [p.partition_id for p in partitions]))
        return partitions

    member = join(
        client(one),
        filters=["a", "b"],
        on_connect=partial(note, "takes"),
        on_disconnect=partial(note, "leaves"),
    )
    one.wait_for(lambda: len([beat for beat in one.of(c.ConsumerHeartbeat) if beat.event is not None]) == 2)
    assert calls == [("takes", [0, 1]), ("leaves", [0])]
    (registered,) = one.of(c.RegisterConsumer)
    assert (registered.topic_list, registered.topic_condition, registered.not_allocated) == (("t",), ("t#a,b",), True)
    answers = [beat for beat in one.of(c.ConsumerHeartbeat) if beat.event is not None]
    assert [(beat.event.rebalance_id, beat.event.op_type, beat.event.status) for beat in answers] == [
        (3, 10, c.EventStatus.DONE),
        (4, 20, c.EventStatus.DONE),
    ]
    names = [[BrokerPartition.parse(text).partition_id for text in beat.subscribe_info] for beat in answers]
    assert all(beat.report_subscribe_info for beat in answers)
    assert names[-1] == [1]
    assert {p.partition_id for p in member.assignment} == {1}
    member.close()
    one.wait_for(lambda: len(one.of(c.CloseConsumer)) == 1)


def test_a_partition_that_cannot_be_released_is_still_reported(server: Servers, client: Clients) -> None:
    """Otherwise the master would assign it to no member, or to another member while this one reads it."""
    events = c.Event(3, 10, None, subscribed(0, 1, 2)), c.Event(4, 20, None, subscribed(0, 2))
    one = server({c.ConsumerHeartbeat: events_of(*events)})
    member = join(client(one), on_connect=lambda held: held, on_disconnect=lambda held: held[:1])
    one.wait_for(lambda: len([beat for beat in one.of(c.ConsumerHeartbeat) if beat.event is not None]) == 2)
    answer = [beat for beat in one.of(c.ConsumerHeartbeat) if beat.event is not None][-1]
    assert (answer.event.rebalance_id, answer.event.status) == (4, c.EventStatus.FAILED)
    assert answer.report_subscribe_info
    assert [BrokerPartition.parse(text).partition_id for text in answer.subscribe_info] == [1, 2]
    member.close()


def test_partitions_are_taken_even_if_others_cannot_be(server: Servers, client: Clients) -> None:
    one = server({c.ConsumerHeartbeat: events_of(c.Event(3, 10, None, subscribed(0, 1, 2)))})
    member = join(client(one), on_connect=lambda held: held[1:], on_disconnect=lambda held: held)
    assert member.assigned.wait(30)
    (answer,) = [beat for beat in one.of(c.ConsumerHeartbeat) if beat.event is not None]
    assert answer.event.status == c.EventStatus.FAILED
    assert [BrokerPartition.parse(text).partition_id for text in answer.subscribe_info] == [1, 2]
    member.close()


def test_a_member_reports_on_request_and_refuses_unknown_events(server: Servers, client: Clients) -> None:
    first = [c.Event(3, 10, None, subscribed(0))]

    def answer(_: Link, request: Any) -> object:
        if request.event is not None:
            event = c.Event(4, c.EventType.REPORT) if request.event.rebalance_id == 3 else None
        elif request.report_subscribe_info:
            event = c.Event(6, 99)
        else:
            event = first.pop() if first else c.Event(5, c.EventType.STOPREBALANCE)
        return c.ConsumerHeartbeatResponse(True, 200, "OK!", event)

    one = server({c.ConsumerHeartbeat: answer})
    member = join(client(one))
    one.wait_for(lambda: any(beat.event and beat.event.rebalance_id == 6 for beat in one.of(c.ConsumerHeartbeat)))
    told = [beat for beat in one.of(c.ConsumerHeartbeat) if beat.report_subscribe_info][:3]
    assert [beat.event and (beat.event.rebalance_id, beat.event.status) for beat in told] == [
        (3, c.EventStatus.DONE),
        None,
        (6, c.EventStatus.FAILED),
    ]
    assert {len(beat.subscribe_info) for beat in told} == {1}
    member.close()


@pytest.mark.parametrize("was_allocated", [False, True])
def test_only_the_first_partitions_of_a_session_start_at_the_given_offsets(
    server: Servers, client: Clients, was_allocated: bool
) -> None:
    """Another member may have answered its event of the same round already; the same heartbeat reports that."""
    events = [c.Event(3, 10, None, subscribed(0)), c.Event(4, 10, None, subscribed(1))]

    def answer(_: Link, request: Any) -> object:
        event = events.pop(0) if events and (len(events) == 2 or request.event is not None) else None
        return c.ConsumerHeartbeatResponse(True, 200, "OK!", event, False)

    registered = c.RegisterConsumerResponse(True, 200, "OK!", not was_allocated)
    one = server({c.ConsumerHeartbeat: answer, c.RegisterConsumer: lambda _, __: registered})
    session = GroupSession("key", 2, {"1:t:0": 280, "1:t:1": 560})
    starts: list[bool] = []

    def take(held: Sequence[BrokerPartition]) -> Sequence[BrokerPartition]:
        starts.append(session.is_starting)
        return held

    member = join(client(one), on_connect=take, on_disconnect=take, session=session)
    wait_until(lambda: len(starts) == 2, "both partitions are taken", 30)
    assert (starts, session.is_counted) == ([not was_allocated, False], not was_allocated)
    (request,) = one.of(c.RegisterConsumer)
    assert (request.require_bound, request.session_key, request.total_count) == (True, "key", 2)
    assert request.required_partition == "1:t:0=280,1:t:1=560"
    member.close()


def test_a_lost_answer_to_an_event_is_sent_again(server: Servers, client: Clients) -> None:
    heard = threading.Event()
    failures = [cut, cut]

    def beat(link: Link, request: Any) -> object:
        if request.event is None:
            event = None if heard.is_set() else c.Event(3, 10, None, subscribed(0))
            return c.ConsumerHeartbeatResponse(True, 200, "OK!", event if not beats else None)
        beats.append(request)
        if failures:
            failures.pop()(link, request)
            return None
        heard.set()
        return c.ConsumerHeartbeatResponse(True, 200, "OK!")

    beats: list[Any] = []
    one = server({c.ConsumerHeartbeat: beat})
    member = join(client(one))
    assert heard.wait(30)
    assert member.assigned.wait(30)
    assert len(beats) >= 3
    member.close()


def test_heartbeats_continue_while_an_event_is_handled(server: Servers, client: Clients) -> None:
    one = server({c.ConsumerHeartbeat: events_of(c.Event(3, 10, None, subscribed(0)))})
    release = threading.Event()

    def take_long(partitions: Sequence[BrokerPartition]) -> Sequence[BrokerPartition]:
        release.wait(30)
        return partitions

    member = join(client(one), on_connect=take_long, on_disconnect=lambda held: held)
    one.wait_for(lambda: len(one.of(c.ConsumerHeartbeat)) > 5)
    assert not any(beat.event for beat in one.of(c.ConsumerHeartbeat))
    assert not member.assigned.is_set()
    release.set()
    assert member.assigned.wait(30)
    member.close()


def test_a_permanently_refused_member_reports_the_error(server: Servers, client: Clients) -> None:
    one = server({c.ConsumerHeartbeat: lambda _, __: c.ConsumerHeartbeatResponse(False, 450, "no")})
    member = join(client(one))
    wait_until(lambda: member.error is not None, "the member has ended", 30)
    assert "CONSUME_GROUP_FORBIDDEN (450)" in str(member.error)
    member.close()


def test_a_heartbeat_that_fails_in_a_master_is_sent_again(server: Servers, client: Clients) -> None:
    failed = c.RpcException(c.Status.ERROR, "java.lang.NullPointerException", "half a master")
    usual = c.ConsumerHeartbeatResponse(True, 200, "OK!")
    one = server({c.ConsumerHeartbeat: in_turn(failed, failed, usual)})
    member = join(client(one))
    one.wait_for(lambda: len(one.of(c.ConsumerHeartbeat)) > 4)
    assert member.error is None
    member.close()


def test_a_producer_keeps_its_topics_while_a_new_master_has_none(server: Servers, client: Clients) -> None:
    not_ready = c.ProducerHeartbeatResponse(True, 201, "not ready")
    one = server()
    made = client(one)
    producer = made.enter(ProducerMember(made.masters, ["t"]))
    before = producer.meta
    one.answers[c.ProducerHeartbeat] = lambda _, __: not_ready
    producer.send_heartbeat()
    assert producer.meta is before
    one.answers[c.ProducerHeartbeat] = in_turn(c.ProducerHeartbeatResponse(False, 411, "unknown"), one.usual)
    producer.send_heartbeat()
    assert len(one.of(c.RegisterProducer)) == 2
    assert producer.meta.partitions("t") == before.partitions("t")
    producer.close()


def test_a_producer_sends_its_checksum_and_keeps_what_the_master_omits(server: Servers, client: Clients) -> None:
    one = server()
    same = c.ProducerHeartbeatResponse(True, 200, "OK!", 1, ("t#1:1:1#5000",), appd_config=c.ApprovedClientConfig(1))
    one.answers[c.ProducerHeartbeat] = lambda _, __: same
    made = client(one)
    producer = made.enter(ProducerMember(made.masters, ["t"]))
    first, (beat,) = one.of(c.RegisterProducer)[0], one.of(c.ProducerHeartbeat)
    assert [(sent.broker_check_sum, sent.appd_config) for sent in (first, beat)] == [
        (-1, c.ApprovedClientConfig(-2)),
        (1, c.ApprovedClientConfig(1)),
    ]
    assert producer.meta.brokers == {1: one.broker}
    assert (producer.max_bytes("t"), producer.max_bytes("u")) == (5000, 1000)
    producer.close()
