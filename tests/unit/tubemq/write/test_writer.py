"""The writer against scripted servers on real sockets, and rows that cannot be messages."""

from __future__ import annotations

import logging
import pickle
import threading
import time
import zlib
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import (
    BrokerError,
    ConnectionLostError,
    MQSourceError,
    OptionError,
    RequestTimeoutError,
    TopicNotFoundError,
    UnwritableRowError,
)
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.tubemq.format import TubeMQFormat
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker
from spark_mq_source.tubemq.write import writer as writing
from spark_mq_source.tubemq.write.writer import RowEncoder, TubeMQWriter, writable_attributes
from tests.fix_brokers import wait_until
from tests.fix_net import free_port, in_turn
from tests.unit.tubemq.conftest import options_for
from tests.unit.tubemq.scripted import Link, Server, cut

Servers = Callable[..., Server]
STORED = c.SendMessageResponse(True, 200, "1", False, 1, 1, 0)


def refused(code: int) -> c.SendMessageResponse:
    return c.SendMessageResponse(False, code, "no")


@pytest.fixture
def writer(server: Any, closing: Callable[[TubeMQWriter], TubeMQWriter]) -> Callable[..., TubeMQWriter]:
    def make(*servers: Server, turn: int = 0, **options: Any) -> TubeMQWriter:
        given = {"topic": "t", "sendTimeout": "30s"} | options
        return closing(TubeMQWriter(options_for(*servers, **given), TaskAttempt("job", partition=turn)))

    return make


def rows(*values: bytes, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())} | columns)


def attributes(*pairs: list[tuple[str, str | None]] | None) -> pa.Array:
    return pa.array(pairs, pa.map_(pa.string(), pa.string()))


def encoded(batch: pa.RecordBatch, topic: str | None = "t", zone: str = "UTC") -> list[tuple[Any, ...]]:
    return list(RowEncoder(topic, zone).encode(batch))


# -- rows


def test_a_message_without_attributes_is_the_value() -> None:
    assert encoded(rows(b"a", b"b")) == [("t", b"a", 0, None, None), ("t", b"b", 0, None, None)]
    assert encoded(pa.record_batch({"value": ["ä"]})) == [("t", "ä".encode(), 0, None, None)]


def test_type_time_and_attributes_are_before_the_value_as_in_the_java_client_2_4_0() -> None:
    # Recorded: sendMessage with $msgType$/$msgTime$.
    time = pa.array([datetime(2026, 11, 21, 3, 40, 59, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    batch = rows("käse".encode(), message_type=["a"], message_time=time)
    data = bytes.fromhex("00000022") + b"$msgType$=a,$msgTime$=202611210340" + "käse".encode()
    assert encoded(batch) == [("t", data, 1, "a", "202611210340")]
    more = encoded(rows(b"x", message_type=["a"], attributes=attributes([("k", "v"), ("l", "w x")])))
    assert more == [("t", b"\0\0\0\x15$msgType$=a,k=v,l=w xx", 1, "a", None)]


def test_rows_without_type_time_and_attributes_have_no_attributes() -> None:
    batch = rows(b"x", b"y", message_type=pa.array([None, "a"]), attributes=attributes(None, []))
    assert encoded(batch) == [("t", b"x", 0, None, None), ("t", b"\0\0\0\x0b$msgType$=ay", 1, "a", None)]


def test_an_empty_value_with_attributes_is_a_message() -> None:
    assert encoded(rows(b"", message_type=["a"])) == [("t", b"\0\0\0\x0b$msgType$=a", 1, "a", None)]


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=6)))
def test_decoded_attributes_can_be_written(pairs: dict[str, str]) -> None:
    fitting = writable_attributes(pairs | {"REASON": "a=1, b=2"})
    assert fitting["REASON"] == "a:1; b:2"
    text = encoded(rows(b"", attributes=attributes(list(fitting.items()))))[0][1][4:].decode()
    assert dict(pair.split("=") for pair in text.split(",")) == fitting


@pytest.mark.parametrize(
    ("zone", "type_", "minute"),
    [
        pytest.param("UTC", pa.timestamp("us", "UTC"), "202611210340", id="UTC"),
        pytest.param("Asia/Shanghai", pa.timestamp("us", "UTC"), "202611211140", id="another zone"),
        pytest.param("Asia/Shanghai", pa.timestamp("us"), "202611210340", id="a local time is written as it is"),
    ],
)
def test_times_are_minutes_in_the_time_zone(zone: str, type_: pa.DataType, minute: str) -> None:
    times = pa.array([1_795_232_400_000_000 + 59_999_999, None], pa.int64()).cast(type_)
    assert [row[4] for row in encoded(rows(b"x", b"y", message_time=times), zone=zone)] == [minute, None]


def test_a_minute_of_local_mean_time_begins_at_any_second() -> None:
    # Shanghai was 8:05:43 ahead of UTC until 1901. At 01:10:16 and 01:10:17 UTC:
    times = pa.array([-2_191_358_984_000_000, -2_191_358_983_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    found = [row[4] for row in encoded(rows(b"x", b"y", message_time=times), zone="Asia/Shanghai")]
    assert found == ["190007240915", "190007240916"]


def test_years_must_have_four_digits() -> None:
    times = pa.array([-62_135_596_800_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert encoded(rows(b"x", message_time=times))[0][4] == "000101010000"
    with pytest.raises(UnwritableRowError, match="years 1 to 9999"):
        encoded(rows(b"x", message_time=pa.array([1 << 62], pa.int64()).cast(pa.timestamp("us", "UTC"))))


def test_rows_may_name_their_topics() -> None:
    assert [row[0] for row in encoded(rows(b"a", b"b", topic=pa.array(["u", None])))] == ["u", "t"]
    with pytest.raises(UnwritableRowError, match="a row has no topic: set the option topic, or the column"):
        encoded(rows(b"a", topic=pa.array([None], pa.string())), topic=None)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (rows(b""), "NULL value, or an empty one"),
        (pa.record_batch({"value": pa.array([None], pa.binary())}), "NULL value, or an empty one"),
        (rows(b"", message_type=pa.array([None], pa.string())), "NULL value, or an empty one"),
        (
            pa.record_batch({"value": pa.array([None], pa.binary()), "message_type": ["a"]}),
            "NULL value, or an empty one",
        ),
        (rows(b"x", message_type=["a,b"]), "'a,b' as message_type"),
        (rows(b"x", message_type=["a=b"]), "'a=b' as message_type"),
        (rows(b"x", message_type=[" "]), "' ' as message_type"),
        (rows(b"x", message_type=["AA "]), "'AA ' as message_type: no filter would find it"),
        (rows(b"x", attributes=attributes([("x$msgType$", "v")])), "the attribute x$msgType$=v"),
        (rows(b"x", attributes=attributes([("k", "$msgTime$")])), "the attribute k=$msgTime$"),
        (rows(b"x", attributes=attributes([("k=", "v")])), "'k=' as the key of an attribute"),
        (rows(b"x", attributes=attributes([("k", "a,b")])), "'a,b' as the attribute 'k'"),
        (rows(b"x", attributes=attributes([("k", "")])), "'' as the attribute 'k'"),
        (rows(b"x", attributes=attributes([("k", None)])), "None as the attribute 'k'"),
        (rows(b"x", attributes=attributes([("$msgType$", "v")])), r"set the column message_type or message_time"),
    ],
)
def test_rows_that_are_ambiguous_or_refused_by_brokers(batch: pa.RecordBatch, words: str) -> None:
    with pytest.raises(UnwritableRowError, match=words.replace("$", r"\$")):
        encoded(batch)


def test_columns_that_cannot_be_written() -> None:
    with pytest.raises(OptionError, match=r"column kee is unknown \(known: value, topic, broker_id"):
        encoded(rows(b"x", kee=["k"]))
    with pytest.raises(OptionError, match="column value is int64"):
        encoded(pa.record_batch({"value": [1]}))
    with pytest.raises(OptionError, match="there is no column value"):
        encoded(pa.record_batch({"topic": ["t"]}))


# -- the choice of partitions


def test_every_row_is_sent_once_to_the_partitions_of_all_brokers_in_turn(server: Servers, writer: Any) -> None:
    other = server(broker_id=2)
    master = server(brokers=(other.broker,), partitions=2)
    one = writer(master, turn=1)
    one.write(rows(*(b"%d" % n for n in range(600))))
    one.flush()
    first, second = master.of(c.SendMessage), other.of(c.SendMessage)
    assert sorted(int(send.data) for send in first + second) == list(range(600))
    assert [len([s for s in sends if s.partition_id == n]) for sends in (first, second) for n in (0, 1)] == [150] * 4
    # The second task begins with the second partition.
    assert next((s.partition_id, s.data) for s in second) == (0, b"0")
    assert len(other.links) == 1
    assert len(master.links) == 2  # one connection to the master, one to the broker
    assert not master.of(c.RegisterPartition)  # flushed offsets are not fetched
    send = first[0]
    assert send.check_sum == zlib.crc32(send.data) & 0x7FFFFFFF
    assert send.auth_info == c.AuthorizedInfo(7)
    assert send.sent_addr == 0x7F000001
    assert {s.client_id for s in first + second} == {request.client_id for request in master.of(c.RegisterProducer)}


def test_rows_name_their_partition_or_have_a_key_that_chooses_it(server: Servers, writer: Any) -> None:
    other = server(broker_id=2)
    master = server(brokers=(other.broker,), partitions=3)
    one, numbers = writer(master), pa.array([None, None, 2], pa.int32())
    one.write(rows(b"a", b"b", b"c", key=["b"] * 3, partition=numbers, broker_id=numbers))
    one.flush()
    # CRC-32 of b modulo 6 partitions is 5: the last of broker 2.
    assert [(send.data, send.partition_id) for send in other.of(c.SendMessage)] == [(b"a", 2), (b"b", 2), (b"c", 2)]
    for placed, words in (
        ({"partition": [2]}, "partition 2 of topic t, which brokers 1, 2 have: set the column broker_id as well"),
        (
            {"partition": [3], "broker_id": [1]},
            "3 of topic t on broker 1, but its partitions .* are 1:0, 1:1, 1:2, 2:0",
        ),
    ):
        with pytest.raises(UnwritableRowError, match=words):
            one.write(rows(b"x", **{name: pa.array(cells, pa.int32()) for name, cells in placed.items()}))


def test_rows_of_a_partition_keep_their_order_after_retries(server: Servers, writer: Any) -> None:
    """Rows stored after a refused row are stored again after it, so the last copies of all rows are in order."""
    stored: list[int] = []
    refusing = iter([n in {3, 4, 9, 21, 22, 60} for n in range(1000)])

    def answer(_: Link, send: Any) -> object:
        if next(refusing):
            return refused(419 if len(stored) < 9 else 503)
        stored.append(int(send.data))
        return STORED

    task = writer(server({c.SendMessage: answer}), maxPendingMessages="8")
    task.write(rows(*(b"%d" % n for n in range(100)), key=["k"] * 100))
    task.flush()
    assert sorted(range(100), key=lambda n: len(stored) - stored[::-1].index(n)) == list(range(100))
    assert set(stored) == set(range(100))
    assert len(stored) > 100


def test_a_task_reports_the_stored_rows_and_ends_its_producer(server: Servers) -> None:
    one = server()
    batches = iter([rows(b"a", b"b"), rows(), rows(b"c")])
    assert TubeMQFormat().write(options_for(one, topic="t"), batches, TaskAttempt("job")).rows == 3
    assert [send.data for send in one.of(c.SendMessage)] == [b"a", b"b", b"c"]
    one.wait_for(lambda: len(one.of(c.CloseProducer)) == 1)


def test_receipts_are_logged_for_each_partition_when_a_write_is_committed(
    server: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = iter((28, 0, 56))
    one = server({c.SendMessage: lambda *_: c.SendMessageResponse(True, 200, "1", False, 7, 1000, next(offsets))})
    options = options_for(one, topic="t", logReceipts="true")
    batches = [iter([rows(b"a", b"b")]), iter([rows(b"c")])]
    reports = [TubeMQFormat().write(options, some, TaskAttempt("job")) for some in batches]
    with caplog.at_level(logging.INFO):
        TubeMQFormat().commit(options, pickle.loads(pickle.dumps(reports)))  # noqa: S301 - as Spark does
    at = "id 7, 1970-01-01T00:00:01.000+00:00"
    assert caplog.messages[-1:] == [f"tubemq: 1:t:0 has 3 rows, from offset 0, {at}, to offset 56, {at}"]


def test_messages_in_flight_are_limited(server: Servers, writer: Any) -> None:
    held: list[tuple[Link, Any]] = []
    answering = threading.Event()

    def hold(link: Link, send: Any) -> object:
        if not answering.is_set():
            held.append((link, send))
            answering.wait(30)
        return STORED

    one = server({c.SendMessage: hold})
    task = writer(one, maxPendingMessages="10")
    thread = threading.Thread(target=lambda: task.write(rows(*[b"x"] * 25)))
    thread.start()
    one.wait_for(lambda: len(held) == 1)
    assert task._targets[one.broker].pending_rows <= 10
    answering.set()
    thread.join(30)
    task.flush()
    assert len(one.of(c.SendMessage)) == 25


def test_a_row_that_is_too_large_is_not_sent(server: Servers, writer: Any) -> None:
    one = server()
    task = writer(one)
    task.write(rows(bytes(1000)))
    with pytest.raises(UnwritableRowError, match=r"topic t has 1001 bytes with its attributes, .* allows at most 1000"):
        task.write(rows(bytes(1001)))
    with pytest.raises(UnwritableRowError, match="1001 bytes"):
        task.write(rows(bytes(986), message_type=["a"]))
    task.flush()
    assert [len(send.data) for send in one.of(c.SendMessage)] == [1000]


def test_a_topic_without_writable_partitions(server: Servers, writer: Any) -> None:
    """A master that has just become active does not list it at first, so a deployed topic is looked up again."""
    nowhere = c.ProducerHeartbeatResponse(True, 200, "OK!", 1)
    unknown = c.RegisterConsumerV2Response(431, "not deployed")
    one = server({c.ProducerHeartbeat: lambda _, __: nowhere, c.RegisterConsumerV2: lambda _, __: unknown})
    found = server()
    found.answers[c.ProducerHeartbeat] = in_turn(nowhere, nowhere, found.usual)
    task = writer(found)
    task.write(rows(b"x"))
    task.flush()
    assert len(found.of(c.SendMessage)) == 1
    with pytest.raises(TopicNotFoundError, match="tubemq: writing to t: topic t is on no broker that takes messages"):
        writer(one).write(rows(b"x"))


# -- retries


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(refused(419), id="the store is full"),
        pytest.param(refused(503), id="the broker is starting"),
        pytest.param(refused(500), id="the broker fails"),
        pytest.param(c.RpcException(1, "org.apache.inlong.tubemq.corerpc.exception.OverflowException"), id="exception"),
        pytest.param(cut, id="the connection breaks"),
        pytest.param(lambda _, __: None, id="no answer"),
    ],
)
def test_unacknowledged_rows_are_sent_again(server: Servers, writer: Any, failure: object) -> None:
    one = server({c.SendMessage: in_turn(STORED, failure, failure, STORED)})
    task = writer(one, requestTimeout="200ms")
    task.write(rows(*(b"%d" % n for n in range(10))))
    task.flush()
    assert {int(send.data) for send in one.of(c.SendMessage)} == set(range(10))
    assert len(one.of(c.SendMessage)) >= 11
    assert not task._again
    assert all(target.pending_rows == target.pending_bytes == 0 for target in task._targets.values())


def test_a_failing_broker_is_set_aside_and_the_others_continue(
    server: Servers, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MIN_ASIDE_SECONDS", 1000.0)
    monkeypatch.setattr(writing, "MAX_ASIDE_SECONDS", 1000.0)
    dead = Broker(2, "127.0.0.1", free_port())
    one = server(brokers=(dead,))
    task = writer(one)
    for _ in range(10):
        task.write(rows(*[b"x"] * 100))
    task.flush()
    assert len(one.of(c.SendMessage)) == 1000
    assert time.monotonic() < task._targets[dead].aside_until


def test_a_broker_that_was_set_aside_is_tried_again_with_one_message(
    server: Servers, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MIN_ASIDE_SECONDS", 1000.0)
    monkeypatch.setattr(writing, "MAX_ASIDE_SECONDS", 1000.0)
    bad = server({c.SendMessage: in_turn(*[refused(503)] * 7, STORED)}, broker_id=2)
    one = server(brokers=(bad.broker,))
    task = writer(one)
    sent = 0

    def write(count: int) -> None:
        nonlocal sent
        task.write(rows(*[b"%d" % n for n in range(sent, sent + count)]))
        sent += count

    write(10)
    task.flush()
    # The five that were in flight at once, and were all refused.
    assert len(bad.of(c.SendMessage)) == 5
    for tries in (6, 7, 8):
        task._targets[bad.broker].aside_until = 0.0  # its pause is over
        write(10)
        task.flush()
        assert len(bad.of(c.SendMessage)) == tries
    write(100)
    task.flush()
    assert len(bad.of(c.SendMessage)) > 40
    stored = {int(send.data) for send in one.of(c.SendMessage)} | {int(s.data) for s in bad.of(c.SendMessage)[7:]}
    assert stored == set(range(sent))


def test_a_slow_broker_gets_fewer_messages_in_flight_and_later_more(server: Servers, writer: Any) -> None:
    most = 200
    one = server({c.SendMessage: in_turn(*[lambda _, __: None] * 64, STORED)})
    task = writer(one, requestTimeout="3s", maxPendingMessages=str(most))
    task.write(rows(*[b"x"] * 64))
    task.flush()
    (target,) = task._targets.values()
    assert target.most_rows < most
    while target.most_rows < most:
        assert len(one.of(c.SendMessage)) < 100_000
        task.write(rows(*[b"x"] * 200))
        task.flush()


def test_a_token_that_is_refused_is_renewed(server: Servers, writer: Any) -> None:
    tokens = iter(range(100, 200))

    def register(_: Link, request: Any) -> object:
        usual = one.usual(_, request)
        assert isinstance(usual, c.RegisterProducerResponse)
        config = usual.appd_config
        return c.RegisterProducerResponse(
            True, 200, "OK!", 1, usual.broker_infos, c.AuthorizedInfo(next(tokens)), config
        )

    def send(_: Link, request: Any) -> object:
        return STORED if request.auth_info.visit_authorized_token == 101 else refused(415)

    def beat(_: Link, request: Any) -> object:
        usual = one.usual(_, request)
        assert isinstance(usual, c.ProducerHeartbeatResponse)
        return c.ProducerHeartbeatResponse(True, 200, "OK!", 1, usual.topic_infos, usual.broker_infos)

    one = server({c.RegisterProducer: register, c.ProducerHeartbeat: beat, c.SendMessage: send})
    task = writer(one)
    task.write(rows(b"x", b"y"))
    task.flush()
    assert len(one.of(c.RegisterProducer)) == 2
    assert task._client.authorization.given == c.AuthorizedInfo(101)


@pytest.mark.parametrize(
    ("code", "kind"),
    [pytest.param(400, BrokerError, id="not a message"), pytest.param(455, MQSourceError, id="forbidden")],
)
def test_errors_that_are_not_retryable_fail(server: Servers, writer: Any, code: int, kind: type) -> None:
    one = server({c.SendMessage: lambda _, __: refused(code)})
    task = writer(one)
    task.write(rows(b"x"))
    words = rf"tubemq: writing to topic t, partition 0: broker {one.broker}: .*\({code}\): no; "
    with pytest.raises(kind, match=words):
        task.flush()
    assert len(one.of(c.SendMessage)) == 1


def test_a_repeatedly_refused_token_fails(server: Servers, writer: Any) -> None:
    one = server({c.SendMessage: lambda _, __: refused(415)})
    task = writer(one, sendTimeout="1s")
    task.write(rows(b"x"))
    with pytest.raises(RequestTimeoutError, match=r"last error: .*CERTIFICATE_FAILURE \(415\).*check authUser"):
        task.flush()


@pytest.mark.parametrize("failure", [refused(419), cut], ids=["full", "cut"])
def test_the_timeout_ends_the_write(server: Servers, writer: Any, failure: object) -> None:
    one = server({c.SendMessage: in_turn(failure)})
    task = writer(one, sendTimeout="500ms")
    words = r"none of 3 messages was acknowledged within sendTimeout \(500 ms\); last error: .*127\.0\.0\.1:"
    task.write(rows(b"x", b"y", b"z"))
    with pytest.raises(RequestTimeoutError, match=words):
        task.flush()


def test_the_timeout_applies_to_each_answer(server: Servers, writer: Any) -> None:
    def slowly(_: Link, __: Any) -> object:
        threading.Event().wait(0.3)  # a slow broker
        return STORED

    one = server({c.SendMessage: slowly})
    task = writer(one, sendTimeout="2s")
    task.write(rows(*[b"x"] * 9))
    task.flush()
    assert len(one.of(c.SendMessage)) == 9


# -- waiting for the disk


def flushing(*flushed: int) -> Callable[[Link, Any], object]:
    """Return answers that a store ends at 280 and is flushed up to `flushed`: one number for each request."""
    left = list(flushed)

    def answer(_: Link, request: Any) -> object:
        if request.op_type == c.RegisterType.UNREGISTER:
            return c.RegisterPartitionResponse(True, 200, "OK!", -1)
        last = 280 if request.qry_priority_id == WITH_MEMORY else left.pop(0) if len(left) > 1 else left[0]
        return c.RegisterPartitionResponse(True, 200, "OK!", 0, last)

    return answer


def disk_requests(server: Server) -> int:
    registered = [one for one in server.of(c.RegisterPartition) if one.op_type == c.RegisterType.REGISTER]
    return sum(one.qry_priority_id == FLUSHED_ONLY for one in registered)


def test_a_task_waits_until_its_rows_are_on_the_disk(server: Servers, writer: Any) -> None:
    one = server({c.RegisterPartition: flushing(0, 252, 280)})
    made = writer(one, waitForDisk="true")
    made.write(rows(b"1", b"2"))
    made.flush()
    assert disk_requests(one) == 3
    assert len({id(link) for link in one.links if any(isinstance(r, c.SendMessage) for r in link.requests)}) == 1


def test_a_connection_that_ends_before_its_rows_are_on_the_disk_fails_the_task(server: Servers, writer: Any) -> None:
    """After a kill the broker assigns the lost messages' offsets to others, so the awaited end is reached again."""
    usual = flushing(0, 280)

    def answer(link: Link, request: Any) -> object:
        if disk_requests(one) == 2 and not cuts:
            cuts.append(link)
            link.close()
            return None
        return usual(link, request)

    cuts: list[Link] = []
    one = server({c.RegisterPartition: answer})
    made = writer(one, waitForDisk="true")
    made.write(rows(b"1", b"2"))
    with pytest.raises(ConnectionLostError, match="ended before 2 acknowledged rows were on the broker's"):
        made.flush()
    assert cuts


def test_a_broker_lost_while_its_disk_is_awaited_fails_the_task(server: Servers, writer: Any) -> None:
    def answer(link: Link, request: Any) -> object:
        for each in one.links:
            each.close()
        return None

    one = server({c.RegisterPartition: answer})
    made = writer(one, waitForDisk="true", operationTimeout="1s")
    made.write(rows(b"1", b"2"))
    with pytest.raises(ConnectionLostError, match="ended before 2 acknowledged rows were on the broker's"):
        made.flush()


def test_a_broker_restarted_while_rows_are_written_fails_the_task_at_once(server: Servers, writer: Any) -> None:
    one = server()
    made = writer(one, waitForDisk="true")
    made.write(rows(b"1"))
    made._wait_until(lambda: not any(target.pending_rows for target in made._targets.values()))
    for link in one.links:
        if any(isinstance(request, c.SendMessage) for request in link.requests):
            link.close()
    (target,) = made._targets.values()
    wait_until(lambda: target.links[0].session.closed, "the end of the connection is seen", 30)
    with pytest.raises(ConnectionLostError, match="ended before 1 acknowledged rows"):
        made.write(rows(b"2"))


def test_a_slow_disk_is_an_error_that_names_the_option(server: Servers, writer: Any) -> None:
    one = server({c.RegisterPartition: flushing(252)})
    made = writer(one, waitForDisk="true", sendTimeout="1s")
    made.write(rows(b"1"))
    with pytest.raises(RequestTimeoutError, match=r"1:t:0 \(252 of 280\); set sendTimeout above the topic's memCache"):
        made.flush()
