"""Writes of a task's rows to NSQ brokers: delivery, refusals before anything is sent, and retries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    MQSourceError,
    RequestTimeoutError,
    ServiceNotReadyError,
    TransportError,
    UnwritableRowError,
)
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.protocol.wire import ERROR, MAGIC, RESPONSE, encode_frame
from spark_mq_source.nsq.write import writer as writer_module
from spark_mq_source.nsq.write.writer import NsqWriter
from spark_mq_source.testing import Authorization, AuthorizedClient
from tests.behaviours.nsq.clients import Proxies, in_front_of, open_session, take, take_all, write_options
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_net import Fault, Peer, ScriptedServer, Step, expect, free_port, send

Start = Callable[..., NsqUnderTest]


def batch(values: Iterable[bytes | str | None], **columns: Any) -> pa.RecordBatch:
    found = list(values)
    kind = pa.string() if any(isinstance(value, str) for value in found) else pa.binary()
    return pa.record_batch({"value": pa.array(found, kind), **columns})


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def write(options: NsqOptions, *batches: pa.RecordBatch, partition: int = 0) -> int:
    return NsqFormat().write(options, iter(batches), TaskAttempt("job", partition=partition))


def read_all(address: str, topic: str, count: int) -> list[bytes]:
    with open_session(address) as session:
        return take_all(session, topic, count)


def stored(nsq: NsqUnderTest, topic: str) -> int:
    return int(nsq.topic_stats(topic).get("message_count", 0))


@pytest.mark.parametrize("kind", ["binary", "string"])
def test_rows_arrive_each_once(nsq: NsqUnderTest, kind: str):
    topic = nsq.topic("c")
    sent = numbered(5000)
    values = [value.decode() for value in sent] if kind == "string" else sent
    options = write_options(nsq.tcp_address, topic=topic, batchingMaxBytes="1k")
    assert write(options, batch(values[:2000]), batch([]), batch(values[2000:])) == 5000
    assert sorted(read_all(nsq.tcp_address, topic, 5000)) == sent
    assert stored(nsq, topic) == 5000


def test_a_batch_of_messages_stays_within_its_limits(nsq_private: Start):
    nsq = nsq_private(max_msg_size=1000, max_body_size=1200)
    topic = nsq.topic("c")
    values = [bytes([65 + size % 26]) * size for size in (1, 999, 1000, 300, 300, 300, 1000, 584, 600, 1, 1, 1)]
    # The limits of nsqd are read: 4 + 4 + 584 + 4 + 600 are exactly the maximum.
    options = write_options(nsq.tcp_address, topic=topic, nsqdHttpAddresses=nsq.http_address)
    assert write(options, batch(values)) == len(values)
    assert sorted(read_all(nsq.tcp_address, topic, len(values))) == sorted(values)


def test_rows_are_sent_to_their_topic_column(nsq: NsqUnderTest):
    one, two, default = (nsq.topic("c") for _ in range(3))
    topics = pa.array([one, two, None, one, two, None] * 100)
    options = write_options(nsq.tcp_address, topic=default, heartbeatInterval="-1")
    assert write(options, batch(numbered(600), topic=topics)) == 600
    for topic, first in ((one, 0), (two, 1), (default, 2)):
        expected = [value for number, value in enumerate(numbered(600)) if number % 3 == first]
        assert sorted(read_all(nsq.tcp_address, topic, 200)) == expected


@pytest.mark.parametrize(
    ("options", "topic", "words"),
    [
        ({}, None, "a row has no topic"),
        ({}, "bad topic", "for topic 'bad topic'"),
        ({"topic": "t"}, "", "for topic ''"),
    ],
)
def test_rows_without_a_usable_topic_are_refused(
    nsq: NsqUnderTest, options: dict[str, str], topic: str | None, words: str
):
    good = nsq.topic("c")
    rows = batch([b"1", b"2"], topic=pa.array([good, topic], pa.string()))
    with pytest.raises(UnwritableRowError, match=words):
        write(write_options(nsq.tcp_address, **options), rows)
    assert stored(nsq, good) == 0


def test_deferred_rows_are_delivered_later(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    defer = pa.array([None, 3_600_000, 0, 100], pa.int64())
    options = write_options(nsq.tcp_address, topic=topic)
    assert write(options, batch([b"now", b"in an hour", b"at once", b"soon"], defer=defer)) == 4
    with open_session(nsq.tcp_address) as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(9)
        assert sorted(take(consumer, 3)) == [b"at once", b"now", b"soon"]
        stats = nsq.channel_stats(topic, "c")
        assert (stats["depth"], stats["deferred_count"]) == (0, 1)


@pytest.mark.parametrize("wait_ms", [-1, 3_600_001])
def test_a_time_outside_the_brokers_range_is_refused_before_anything_is_sent(nsq: NsqUnderTest, wait_ms: int):
    topic = nsq.topic("c")
    rows = batch([b"1", b"2"], defer=pa.array([0, wait_ms], pa.int32()))
    with pytest.raises(UnwritableRowError, match=rf"row 1 .*defer is {wait_ms} ms.*0 to 3600000"):
        write(write_options(nsq.tcp_address, topic=topic), rows)
    assert stored(nsq, topic) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "its value is NULL"),
        (b"", "its value is empty"),
        (bytes(1025), r"1025 bytes, but nsqd accepts at most 1024"),
    ],
    ids=["null", "empty", "oversize"],
)
@pytest.mark.parametrize(("has_http", "at"), [(True, 20), (False, 0)], ids=["limits asked", "limits given"])
def test_rows_with_an_invalid_message_are_refused_before_anything_is_sent(
    nsq_private: Start, fault_proxy: Proxies, value: bytes | None, words: str, has_http: bool, at: int
):
    nsq = nsq_private(max_msg_size=1024)
    topic = nsq.topic("c")
    given = {"nsqdHttpAddresses": nsq.http_address} if has_http else {"maxMessageBytes": "1k", "maxBodyBytes": "5m"}
    proxy = in_front_of(fault_proxy, nsq)
    options = write_options(proxy.address, topic=topic, **given)
    with pytest.raises(UnwritableRowError, match=words) as caught:
        write(options, batch(numbered(50)), batch([*numbered(at), value, b"x"]))
    assert f"row {50 + at} of the task" in str(caught.value)
    assert stored(nsq, topic) in {0, 50}


def test_batches_go_to_the_brokers_in_turn(nsq_private: Start):
    first = nsq_private()
    second = nsq_private(lookupd=first)
    topic = first.topic("c")
    second.create(topic, "c")
    options = NsqOptions.from_spark(
        {"nsqlookupdHttpAddresses": first.lookupd_address, "topic": topic, "batchingMaxMessages": "10"}, WRITE
    )
    assert write(options, batch(numbered(100))) == 100
    assert (stored(first, topic), stored(second, topic)) == (50, 50)
    # Tasks begin with different brokers.
    assert write(options, batch(numbered(10)), partition=0) + write(options, batch(numbered(10)), partition=1) == 20
    assert (stored(first, topic), stored(second, topic)) == (60, 60)


def test_messages_that_a_lost_broker_did_not_take_are_sent_to_another(
    nsq_private: Start, fault_proxy: Proxies, rng: random.Random
):
    first, second = nsq_private(), nsq_private()
    topic = first.topic("c")
    second.create(topic, "c")
    proxy = in_front_of(fault_proxy, first)
    proxy.add(Fault("cut", "c2b", at=rng.randrange(400, 20_000)))
    options = write_options(f"{proxy.address},{second.tcp_address}", topic=topic, batchingMaxMessages="10")
    assert write(options, *(batch(numbered(5000)[start : start + 500]) for start in range(0, 5000, 500))) == 5000
    assert proxy.happened
    counts = [stored(nsq, topic) for nsq in (first, second)]
    got = read_all(first.tcp_address, topic, counts[0]) + read_all(second.tcp_address, topic, counts[1])
    assert set(got) == set(numbered(5000))
    # Only messages in flight when it broke may be duplicates.
    assert all(times <= 2 for times in Counter(got).values())


def test_a_lost_connection_to_the_only_broker_is_opened_again(
    nsq: NsqUnderTest, fault_proxy: Proxies, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer_module, "_PAUSE_SECONDS", 0.01)
    topic = nsq.topic("c")
    proxy = in_front_of(fault_proxy, nsq)
    proxy.add(Fault("cut", "c2b", at=1000))
    options = write_options(proxy.address, topic=topic, operationTimeout="5s")
    assert write(options, batch(numbered(1000))) == 1000
    assert proxy.happened
    assert read_all(nsq.tcp_address, topic, 1000) == numbered(1000)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sendTimeout": "1500ms"}, r"writing 10 rows to topic flights: .*1500 ms\).*{address}: cannot connect"),
        ({"operationTimeout": "1500ms"}, r"no connection within operationTimeout \(1500 ms\): .*cannot connect"),
    ],
)
def test_no_reachable_broker_is_an_error_in_time(given: dict[str, str], words: str):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(RequestTimeoutError, match=words.format(address=address)):
        write(write_options(address, topic="flights", **given), batch(numbered(10)))


def test_a_batch_that_is_too_large_names_the_option(nsq_private: Start):
    nsq = nsq_private(max_body_size=1000)
    with pytest.raises(BrokerError, match=r"E_BAD_BODY.*maxBodyBytes"):
        write(write_options(nsq.tcp_address, topic="t", maxBodyBytes="5k"), batch(numbered(200)))


def test_a_broker_that_stays_silent_is_an_error_in_time(nsq: NsqUnderTest, fault_proxy: Proxies):
    topic = nsq.topic("c")
    proxy = in_front_of(fault_proxy, nsq)
    options = write_options(proxy.address, topic=topic, sendTimeout="1500ms", connectTimeout="500ms")
    with NsqWriter(options, TaskAttempt("job")) as writer:
        writer.write(batch(numbered(10)))
        writer.flush()
        proxy.stall_now()
        with pytest.raises(RequestTimeoutError, match=rf"writing 10 rows to topic {topic}: no OK within sendTimeout"):
            _write_and_flush(writer)
    proxy.resume()


def _write_and_flush(writer: NsqWriter) -> None:
    writer.write(batch(numbered(10)))
    writer.flush()


def test_a_refused_publish_names_topic_and_rows(nsq_private: Start):
    nsq = nsq_private(authorize=lambda _: AuthorizedClient("me", [Authorization("^allowed$")]))
    with pytest.raises(AuthorizationError, match=r"writing 3 rows to topic denied: .*E_UNAUTHORIZED") as caught:
        write(write_options(nsq.tcp_address, topic="denied", authSecret="s"), batch([b"1", b"2", b"3"]))
    assert nsq.tcp_address in str(caught.value)


def test_a_lost_authorization_server_is_waited_for(
    scripted_server: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer_module, "_PAUSE_SECONDS", 0.01)

    def answer(text: bytes, kind: int = RESPONSE) -> Step:
        return send(encode_frame(kind, text))

    connected = [
        expect(MAGIC + b"IDENTIFY\n"),
        Peer.read_frame,
        answer(b'{"version": "1.3.0", "auth_required": true}'),
        expect(b"AUTH\n"),
        Peer.read_frame,
    ]
    refused = answer(b"E_AUTH_FAILED AUTH failed", ERROR)
    accepted = answer(b'{"identity": "me", "identity_url": "", "permission_count": 1}')
    published = [expect(b"MPUB t\n"), Peer.read_frame]
    server = scripted_server(
        [*connected, accepted, *published, refused],
        [*connected, refused],
        [*connected, accepted, *published, answer(b"OK")],
        [*connected, refused],
    )
    options = write_options(server.address, topic="t", authSecret="s", maxMessageBytes="1m", maxBodyBytes="1m")
    assert write(options, batch([b"x"])) == 1
    with pytest.raises(AuthenticationError, match="E_AUTH_FAILED"):
        write(options, batch([b"x"]))


def test_a_permanent_error_is_not_retried(nsq: NsqUnderTest):
    with pytest.raises(MQSourceError, match=r"writing 1 rows to topic t: .*this nsqd has no TLS") as caught:
        write(write_options(nsq.tcp_address, topic="t", tls="true"), batch([b"x"]))
    assert not isinstance(caught.value, TransportError)


def test_a_lookup_without_brokers_is_an_error(nsq_private: Start):
    nsq = nsq_private()
    lookupd = nsq.lookupd_address
    options = NsqOptions.from_spark({"nsqlookupdHttpAddresses": lookupd, "topic": "t"}, WRITE)
    wait_until(lambda: nsq.ask("GET", lookupd, "/nodes")[1]["producers"] != [], "registered")
    nsq.post("/topic/create", topic="t")
    wait_until(lambda: nsq.ask("GET", lookupd, "/lookup", topic="t")[0] == 200, "known")
    status, _ = nsq.ask(
        "POST", lookupd, "/topic/tombstone", topic="t", node=f"127.0.0.1:{nsq.http_address.split(':')[1]}"
    )
    assert status == 200
    with pytest.raises(ServiceNotReadyError, match="no nsqd to write to"):
        NsqWriter(options, TaskAttempt("job"))
