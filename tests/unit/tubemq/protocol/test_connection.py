from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_mq_source.core.errors import ConnectionLostError, LocalProtocolError, RemoteProtocolError
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.connection import (
    Answer,
    Call,
    CallTimedOut,
    ConnectionState,
    NotAuthorized,
    PartitionLost,
    TubeMQConnection,
)
from spark_mq_source.tubemq.protocol.hot import STORED
from spark_mq_source.tubemq.protocol.wire import take_frame
from tests.tubemq_server import decode_request, encode_response

BROKER = Broker(1, "127.0.0.1", 8123)
REGISTER = c.RegisterPartition(31, "client", "group", "demo", 0, qry_priority_id=1)
UNREGISTER = c.RegisterPartition(32, "client", "group", "demo", 0)
REGISTERED = c.RegisterPartitionResponse(True, 200, "OK!", 0, 0)
CLOSE, CLOSED = c.CloseProducer("client"), c.CloseProducerResponse(True, 200, "OK!")
SEND = c.SendMessage("client", "demo", 0, b"x", 0, 1, 1)
GET = c.GetMessage("client", 0, "group", "demo")


def connect(
    *, broker: Broker | None = None, authorized: Callable[[], c.AuthorizedInfo] | None = None
) -> TubeMQConnection:
    return TubeMQConnection(
        broker=broker, request_timeout_ms=8_000, heartbeat_ms=10_000, authorized=authorized, now=100.0
    )


def sent(connection: TubeMQConnection) -> list[tuple[int, c.Request]]:
    """Return the requests to be sent now."""
    data = memoryview(connection.data_to_send())
    requests = []
    while data:
        frame = take_frame(data, 0)
        assert frame is not None
        request, timeout_ms = decode_request(frame)
        assert timeout_ms == 8_000
        requests.append((frame.serial_no, request))
        data = data[frame.size :]
    return requests


def registered(authorized: Callable[[], c.AuthorizedInfo] | None = None) -> TubeMQConnection:
    connection = connect(broker=BROKER, authorized=authorized)
    connection.send([(1, REGISTER)])
    connection.receive_data(encode_response(1, REGISTERED))
    assert len(sent(connection)) == len(connection.events_received()) == 1
    return connection


def tick(connection: TubeMQConnection, seconds: float, *, start: float = 100.0) -> None:
    """Advance the time, and call the timers when they are due."""
    now = start
    while (timer := connection.next_timer()) is not None and timer <= start + seconds:
        now = max(now, timer)
        connection.handle_timer(now)


def test_calls_are_sent_in_order_and_answers_have_their_requests() -> None:
    connection = connect()
    connection.send([(1, CLOSE)])
    connection.send([(2, SEND)])
    assert sent(connection) == [(1, CLOSE), (2, SEND)]
    stored = c.SendMessageResponse(True, 200, "1", False, 1, 1, 28)
    connection.receive_data(encode_response(2, stored) + encode_response(1, CLOSED))
    assert connection.events_received() == [Answer(2, SEND, STORED), Answer(1, CLOSE, CLOSED)]
    assert connection.events_received() == []


def test_messages_are_sent_together_and_answered_one_by_one() -> None:
    connection = connect()
    connection.send([(3, SEND), (1, SEND)])
    assert sent(connection) == [(3, SEND), (1, SEND)]
    stored = c.SendMessageResponse(True, 200, "1", False, 1, 1, 28)
    connection.receive_data(encode_response(1, stored))
    assert connection.events_received() == [Answer(1, SEND, STORED)]
    connection.receive_data(encode_response(3, stored))
    assert connection.events_received() == [Answer(3, SEND, STORED)]


@pytest.mark.parametrize("second", [(0, SEND), (7, SEND), (2, SEND._replace(data=None))], ids=str)
def test_one_unsendable_message_prevents_sending_all(second: Call) -> None:
    connection = connect()
    connection.send([(7, CLOSE)])
    sent(connection)
    with pytest.raises(LocalProtocolError):
        connection.send([(1, SEND), second])
    assert connection.data_to_send() == b""
    connection.send([(1, CLOSE)])


def test_a_refused_message_is_decoded_completely() -> None:
    connection = connect()
    connection.send([(1, SEND)])
    refused = c.SendMessageResponse(False, 419, "the store is full")
    connection.receive_data(encode_response(1, refused))
    (event,) = connection.events_received()
    assert isinstance(event, Answer)
    assert isinstance(event.response, c.SendMessageResponse)
    assert event.response[:3] == refused[:3]


def test_an_exception_answers_any_request() -> None:
    connection = connect()
    exception = c.RpcException(c.Status.ERROR, "java.lang.Exception", "no")
    for serial_no, request in enumerate((CLOSE, SEND, GET), start=1):
        connection.send([(serial_no, request)])
        connection.receive_data(encode_response(serial_no, exception))
        assert connection.events_received() == [Answer(serial_no, request, exception)]


@pytest.mark.parametrize("request_", [CLOSE, SEND, GET])
def test_an_answer_of_another_method_ends_the_connection(request_: c.Request) -> None:
    connection = connect()
    connection.send([(1, request_)])
    with pytest.raises(RemoteProtocolError, match="by CloseConsumerResponse"):
        connection.receive_data(encode_response(1, c.CloseConsumerResponse(True, 200, "OK!")))
    assert connection.state is ConnectionState.CLOSED


def test_a_serial_number_is_positive_and_used_by_one_call_at_a_time() -> None:
    connection = connect()
    for serial_no in (0, -1, 1 << 31):
        with pytest.raises(LocalProtocolError, match="in use or invalid"):
            connection.send([(serial_no, CLOSE)])
    connection.send([(1, CLOSE)])
    with pytest.raises(LocalProtocolError, match="CloseProducer has the serial number 1, which is in use"):
        connection.send([(1, CLOSE)])
    connection.receive_data(encode_response(1, CLOSED))
    connection.send([(1, CLOSE)])


def test_a_failed_send_changes_no_state() -> None:
    connection = connect()
    with pytest.raises(LocalProtocolError, match="SendMessage cannot be sent"):
        connection.send([(1, SEND._replace(data=None))])  # type: ignore[arg-type]
    assert connection.data_to_send() == b""
    connection.send([(1, SEND)])
    connection.close()
    assert connection.data_to_send() == b""
    with pytest.raises(LocalProtocolError, match="CloseProducer sent after the connection was closed here"):
        connection.send([(2, CLOSE)])


# Time.


def test_a_call_that_the_server_dropped_fails_and_the_connection_continues() -> None:
    connection = connect()
    connection.send([(1, CLOSE)])
    connection.send([(2, GET)])
    connection.receive_data(encode_response(2, c.GetMessageResponse(True, 200)))
    connection.events_received()
    tick(connection, 7.9)
    assert connection.events_received() == []
    tick(connection, 10.1, start=100.0)
    assert connection.events_received() == [CallTimedOut(1, CLOSE)]
    assert connection.state is ConnectionState.OPEN
    # The answer arrives late: it is ignored.
    connection.receive_data(encode_response(1, CLOSED))
    assert connection.events_received() == []


def test_a_server_that_is_silent_since_a_call_loses_the_connection() -> None:
    connection = connect()
    connection.receive_data(encode_response(9, CLOSED))
    tick(connection, 2.0)
    connection.send([(1, CLOSE)])
    connection.send([(2, GET)])
    with pytest.raises(ConnectionLostError, match="silent for 8000 ms while CloseProducer, GetMessage waited"):
        tick(connection, 20.0)
    assert connection.state is ConnectionState.CLOSED
    assert connection.next_timer() is None


def test_a_call_waits_for_its_whole_timeout_after_an_idle_period() -> None:
    connection = connect()
    tick(connection, 1_001.0)
    assert sent(connection) == []
    connection.receive_data(b"")
    connection.send([(1, CLOSE)])
    tick(connection, 8.0, start=1_101.0)
    assert connection.state is ConnectionState.OPEN
    assert connection.events_received() == []


def test_no_call_fails_while_reading_is_paused() -> None:
    connection = connect()
    connection.send([(1, CLOSE)])
    connection.paused = True
    tick(connection, 1_000.0)
    assert connection.events_received() == []
    connection.paused = False
    connection.receive_data(encode_response(1, CLOSED))
    assert connection.events_received() == [Answer(1, CLOSE, CLOSED)]


def test_timers_do_nothing_before_they_are_due() -> None:
    connection = registered()
    connection.send([(2, GET)])
    sent(connection)
    for _ in range(20):
        connection.handle_timer(101.9)
    assert (sent(connection), connection.events_received()) == ([], [])


# Heartbeats.


def test_registered_partitions_are_kept_by_heartbeats_with_their_options() -> None:
    connection = registered(lambda: c.AuthorizedInfo(7))
    tick(connection, 9.9)
    assert sent(connection) == []
    tick(connection, 10.0)
    ((serial_no, heartbeat),) = sent(connection)
    assert serial_no < 0
    assert heartbeat == c.BrokerHeartbeat(
        "client", "group", ("1:127.0.0.1:8123#demo:0",), qry_priority_id=1, auth_info=c.AuthorizedInfo(7)
    )
    connection.receive_data(encode_response(serial_no, c.BrokerHeartbeatResponse(True, 200, "OK!")))
    assert connection.events_received() == []


def test_one_heartbeat_is_for_all_partitions_of_a_reader() -> None:
    connection = registered()
    for serial_no, request in (
        (2, REGISTER),
        (3, c.RegisterPartition(31, "client", "group", "demo", 1, qry_priority_id=1)),
    ):
        connection.send([(serial_no, request)])
        connection.receive_data(encode_response(serial_no, REGISTERED))
    connection.send([(4, c.RegisterPartition(31, "other", "group", "demo", 2))])
    connection.receive_data(encode_response(4, REGISTERED))
    sent(connection)
    tick(connection, 10.0)
    assert [(beat.client_id, len(beat.partition_info)) for _, beat in sent(connection)] == [("client", 2), ("other", 1)]  # type: ignore[union-attr]


def test_a_partition_registered_again_is_kept_only_with_its_new_priority() -> None:
    """A heartbeat sets the priority (broker 2.4.0): two priorities in turn would hide and show messages in memory."""
    connection = registered()
    connection.send([(2, replace(REGISTER, qry_priority_id=303))])
    connection.receive_data(encode_response(2, REGISTERED))
    sent(connection)
    tick(connection, 10.0)
    ((_, heartbeat),) = sent(connection)
    assert heartbeat.qry_priority_id == 303  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param((UNREGISTER, None), id="unregistered, even before the broker says so"),
        pytest.param((GET, c.GetMessageResponse(False, 411)), id="a fetch says that nobody has it"),
        pytest.param((GET, c.GetMessageResponse(False, 412)), id="a fetch says that another one has it"),
    ],
)
def test_unregistered_partitions_are_not_kept(ending: tuple[c.Request, c.Response | None]) -> None:
    connection = registered()
    request, response = ending
    connection.send([(2, request)])
    if response is not None:
        connection.receive_data(encode_response(2, response))
    sent(connection)
    tick(connection, 9.9)
    connection.receive_data(encode_response(2, REGISTERED) if response is None else b"")
    tick(connection, 10.0)
    assert sent(connection) == []


@pytest.mark.parametrize(
    "response", [c.RegisterPartitionResponse(False, 410, "taken"), c.RpcException(1, "java.lang.Exception")]
)
def test_refused_partitions_are_not_kept(response: c.Response) -> None:
    connection = connect(broker=BROKER)
    connection.send([(1, REGISTER)])
    connection.receive_data(encode_response(1, response))
    sent(connection)
    tick(connection, 10.0)
    assert sent(connection) == []


def test_a_partition_lost_at_a_heartbeat_is_reported_once() -> None:
    connection = registered()
    tick(connection, 10.0)
    ((serial_no, _),) = sent(connection)
    failed = c.BrokerHeartbeatResponse(True, 200, "OK!", True, ("412:1:127.0.0.1:8123#demo:0",))
    connection.receive_data(encode_response(serial_no, failed))
    partition = BrokerPartition(BROKER, "demo", 0)
    assert connection.events_received() == [PartitionLost("client", "group", partition, 412)]
    tick(connection, 20.0, start=110.0)
    assert sent(connection) == []


@pytest.mark.parametrize(
    "answer",
    [
        c.BrokerHeartbeatResponse(False, 415, "too old"),
        c.BrokerHeartbeatResponse(True, 200, "OK!", require_auth=True),
    ],
)
def test_a_heartbeat_refused_for_its_token_names_the_token(answer: c.BrokerHeartbeatResponse) -> None:
    connection = registered(lambda: c.AuthorizedInfo(7))
    tick(connection, 10.0)
    ((serial_no, _),) = sent(connection)
    connection.receive_data(encode_response(serial_no, answer))
    assert connection.events_received() == [NotAuthorized(c.AuthorizedInfo(7))]


def test_a_heartbeat_without_an_answer_fails_no_call() -> None:
    connection = registered()
    tick(connection, 10.0)
    connection.receive_data(encode_response(99, CLOSED))
    tick(connection, 9.9, start=110.0)
    connection.receive_data(encode_response(99, CLOSED))
    tick(connection, 5.0, start=120.0)
    assert connection.events_received() == []


# Ends.


def test_eof_reports_open_calls() -> None:
    connection = connect()
    for serial_no in range(1, 4):
        connection.send([(serial_no, GET)])
    connection.receive_data(encode_response(1, c.GetMessageResponse(True, 200))[:-1])
    words = (
        r"closed the connection while 3 GetMessage waited for an answer \(\d+ bytes of an unfinished frame received\)"
    )
    with pytest.raises(ConnectionLostError, match=words):
        connection.receive_eof()
    connection.receive_eof()


def test_fetched_messages_of_one_block_are_views_of_the_receive_buffer() -> None:
    connection = connect(broker=BROKER)
    connection.send([(1, GET)])
    message = bytes.fromhex("2209 0801 1002 1a0178 2000")
    body = bytes.fromhex("0801 10c801") + message + bytes.fromhex("2800 5000")
    connection.receive_data(encode_response(1, c.GetMessageResponse(True, 200, body=memoryview(body))))
    (event,) = connection.events_received()
    assert isinstance(event, Answer)
    assert isinstance(event.response, c.GetMessageResponse)
    assert bytes(event.response.body) == body
    assert isinstance(event.response.body.obj, bytearray)
