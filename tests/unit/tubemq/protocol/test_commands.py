from __future__ import annotations

import dataclasses
import re

import pytest

from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import (
    Broker,
    BrokerPartition,
    TopicMeta,
    parse_failure,
    parse_topic_infos,
    parse_topic_metas,
)
from spark_mq_source.tubemq.protocol.codec import decode_response, encode_request, method_of
from spark_mq_source.tubemq.protocol.hot import is_stored
from spark_mq_source.tubemq.protocol.wire import Frame, take_frame
from tests.protobuf import tubemq as pb
from tests.tubemq_server import decode_request, encode_response
from tests.vectors import RecordedCall, tubemq_calls

# Requests that our client does not send.
FOREIGN = {"exception response (required field missing)", "exception response (unknown method 99)"}
# Recordings of the official Java client and the servers.
JAVA = tubemq_calls("java-client-2.4.0.jsonl")


def frame_of(data: bytes) -> Frame:
    frame = take_frame(memoryview(data), 0)
    assert frame is not None
    return frame


def scalars(text: str) -> set[tuple[str, str]]:
    """Return the numbers and booleans of protobuf's text, by field name in snake_case."""
    found = re.findall(r"(\w+): (-?\d+|true|false)(?=\s|$)", re.sub(r'"(?:[^"\\]|\\.)*"', '""', text))
    return {(re.sub(r"(?=[A-Z])", "_", name).lower(), value) for name, value in found}


def values(command: object) -> set[tuple[str, str]]:
    """Return the numbers and booleans of a command, by field name."""
    found = set()
    names = command._fields if isinstance(command, tuple) else [field.name for field in dataclasses.fields(command)]  # type: ignore[arg-type, attr-defined]
    for name in names:
        value = getattr(command, name)
        if dataclasses.is_dataclass(value):
            found |= values(value)
        elif isinstance(value, int):
            found.add((name, str(value).lower() if isinstance(value, bool) else str(int(value))))
    return found


@pytest.mark.parametrize("recorded", [call for call in tubemq_calls() if call.case not in FOREIGN] + JAVA, ids=str)
def test_a_recorded_request_is_decoded_and_encoded_to_the_same_bytes(recorded: RecordedCall) -> None:
    frame = frame_of(recorded.request)
    request, timeout_ms = decode_request(frame)
    assert encode_request(frame.serial_no, request, timeout_ms=timeout_ms) == recorded.request
    if "=>" in recorded.text:
        assert scalars(recorded.text.partition("=>")[0]) <= values(request)


@pytest.mark.parametrize("recorded", tubemq_calls() + JAVA, ids=str)
def test_a_recorded_answer_is_decoded_as_by_protobuf(recorded: RecordedCall) -> None:
    frame = frame_of(recorded.answer)
    method, response = decode_response(frame)
    text = recorded.text.rpartition("=>")[2]
    # Messages are tested elsewhere, and large ones cut off the text.
    text = text.partition("messages {")[0]
    assert scalars(text) - {("status", "0")} <= values(response)
    if not isinstance(response, c.RpcException):
        request, _ = decode_request(frame_of(recorded.request))
        assert method is method_of(request) is method_of(response)
    again = decode_response(frame_of(encode_response(5, response)))
    assert again == (method, response)


def test_the_body_with_messages_is_unchanged() -> None:
    (recorded,) = [call for call in tubemq_calls() if "(first fetch)" in call.case]
    _, response = decode_response(frame_of(recorded.answer))
    assert isinstance(response, c.GetMessageResponse)
    messages = pb.TransferedMessages.FromString(bytes(response.body)).messages
    assert [len(message.pay_load_data) for message in messages] == [12, 43, 20_000]
    assert (response.curr_offset, response.max_offset) == (34720112, 34720196)


@pytest.mark.parametrize("recorded", [call for call in tubemq_calls() if "sendMessage" in call.case], ids=str)
def test_the_fast_path_recognises_stored_messages(recorded: RecordedCall) -> None:
    frame = frame_of(recorded.answer)
    _, response = decode_response(frame)
    assert is_stored(bytes(frame.payload)) == (response.err_code == 200)  # type: ignore[union-attr]


def test_the_fast_path_accepts_no_other_answer() -> None:
    others = [call for call in tubemq_calls() if "sendMessage" not in call.case]
    assert not any(is_stored(bytes(frame_of(call.answer).payload)) for call in others)


def test_a_message_has_the_newest_credentials() -> None:
    send = c.SendMessage("client", "topic", 0, b"x", 0, 1, 1)
    for token in (1, 2, 1):
        data = encode_request(1, send._replace(auth_info=c.AuthorizedInfo(token)), timeout_ms=1)
        assert decode_request(frame_of(data))[0].auth_info == c.AuthorizedInfo(token)
    assert decode_request(frame_of(encode_request(1, send, timeout_ms=1)))[0] == send


@pytest.mark.parametrize(
    "request_",
    [
        c.CloseProducer(None),  # type: ignore[arg-type]
        c.CloseProducer("\ud800"),
        c.RegisterProducer("client", (1,), "host"),  # type: ignore[arg-type]
        c.RegisterPartition(1 << 40, "client", "group", "topic", 0),
        c.SendMessage("client", "topic", 0, None, 0, 0, 0),  # type: ignore[arg-type]
        c.SendMessage("client", "topic", "0", b"x", 0, 0, 0),  # type: ignore[arg-type]
        c.SendMessage("client", "topic", 0, b"x", 0, 0, 0, "\ud800"),
    ],
)
def test_values_that_do_not_fit_the_protocol_are_refused(request_: c.Request) -> None:
    with pytest.raises(LocalProtocolError, match=f"{type(request_).__name__} cannot be sent"):
        encode_request(1, request_, timeout_ms=1)


HEAD = "020801 0408001803"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        pytest.param("", "ends outside", id="nothing"),
        pytest.param("02", "ends outside", id="cut"),
        pytest.param("ffffffffffffffffffff01", "ends outside", id="a size of 2^64"),
        pytest.param("020800 00 00", "required fields", id="no status"),
        pytest.param("00 0408001803 00", "required fields", id="no flag"),
        pytest.param(f"{HEAD} 00", "required fields", id="no body"),
        pytest.param(f"{HEAD} 04 08631200", "method 99, which nobody called", id="unknown method"),
        pytest.param(f"{HEAD} 04 08031200", "required fields", id="empty answer"),
        pytest.param(f"{HEAD} 06 0803 1202 0fff", "cannot be parsed", id="garbage"),
        pytest.param(f"{HEAD} 0d 0803 1209 0801 10c801 1a02 c328", "cannot be", id="a text that is not UTF-8"),
    ],
)
def test_invalid_answers_are_refused(payload: str, words: str) -> None:
    data = bytes.fromhex(payload)
    with pytest.raises(RemoteProtocolError, match=words):
        decode_response(Frame(1, memoryview(data), len(data)))


def test_fields_in_another_order_are_read_too() -> None:
    data = bytes.fromhex(f"{HEAD} 0d 1209 0801 10c801 1a024f4b 0803")
    assert decode_response(Frame(1, memoryview(data), 0))[1] == c.CloseProducerResponse(True, 200, "OK")


def test_a_port_that_a_master_omits_is_the_default() -> None:
    # Master 2.4.0 omits the port 8123 of a broker; it reports other ports.
    assert Broker.parse("1:127.0.0.1: ") == Broker(1, "127.0.0.1", 8123)
    assert Broker.parse("1:127.0.0.1:8133", 8124) == Broker(1, "127.0.0.1", 8133)


@pytest.mark.parametrize("text", ["", "1", "1:host", "x:host:1", "1:host:x", "1:host:", "1::1", ":h:1"])
def test_invalid_brokers(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="id:host:port"):
        Broker.parse(text)


@pytest.mark.parametrize("text", ["", "demo:1", "1:h:1#demo", "1:h:1#:1", "1:h:1#demo:x", "c@g#1:h#demo:1"])
def test_invalid_partitions(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="topic:partition"):
        BrokerPartition.parse(text)


def test_metadata_of_consumers_and_producers_is_equivalent() -> None:
    # Recorded from master 2.4.0: a topic of 2 stores with 3 partitions each.
    consumer, producer = parse_topic_metas(("tstore#1:2:3:1",)), parse_topic_infos(("tstore#1:3:2#",))
    assert [meta.partition_ids for meta in (*consumer, *producer)] == [(0, 1, 2, 10_000, 10_001, 10_002)] * 2
    assert parse_topic_metas(("t#1:1:1:1,2:1:2:1",)) == [TopicMeta("t", 1, 1, 1, 1), TopicMeta("t", 2, 1, 2, 1)]


@pytest.mark.parametrize("text", ["", "t", "t#", "#1:1:1:1", "t#1:1:1", "t#1:x:1:1", "t#1:-1:1:1", "t#1:99999:99999:1"])
def test_invalid_metadata(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="describes a topic"):
        parse_topic_metas((text,))


def test_a_failure_of_a_heartbeat() -> None:
    assert parse_failure("412:1:127.0.0.1:8133#demo:1") == (
        412,
        BrokerPartition(Broker(1, "127.0.0.1", 8133), "demo", 1),
    )
    with pytest.raises(RemoteProtocolError, match="reports a failure"):
        parse_failure("x:1:127.0.0.1:8133#demo:1")


def test_secrets_are_not_shown() -> None:
    shown = repr(c.AuthorizedInfo(1234567, "token")) + repr(c.MasterCertificateInfo(None, "token"))
    shown += repr(c.AuthenticateInfo("user", 1, 1, "", "sig-nature"))
    assert not any(secret in shown for secret in ("1234567", "token'", "sig-nature"))


def test_every_call_of_the_client_is_recorded() -> None:
    assert {type(decode_request(frame_of(call.request))[0]) for call in JAVA} == {
        c.RegisterProducer, c.ProducerHeartbeat, c.CloseProducer, c.SendMessage,
        c.RegisterConsumer, c.ConsumerHeartbeat, c.CloseConsumer,
        c.RegisterConsumerV2, c.ConsumerHeartbeatV2, c.GetPartMeta,
        c.RegisterPartition, c.GetMessage, c.CommitOffset,
    }  # fmt: skip


def test_types_times_and_attributes_have_the_order_of_the_java_client() -> None:
    sends = [
        request for call in JAVA if isinstance(request := decode_request(frame_of(call.request))[0], c.SendMessage)
    ]
    (typed,) = [send for send in sends if send.flag]
    assert (typed.msg_type, typed.msg_time) == ("a", "202601021504")
    size = int.from_bytes(typed.data[:4], "big")
    attributes = bytes(typed.data[4 : 4 + size]).decode().split(",")
    assert set(attributes) == {"$msgType$=a", "$msgTime$=202601021504", "k=v"}
    assert bytes(typed.data[4 + size :]) == b"typed"
