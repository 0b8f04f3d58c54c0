"""What the official Java client and real servers said to each other: understood, and said by us in the same bytes."""

from __future__ import annotations

import pytest

from spark_mq_source.tubemq.protocol.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from spark_mq_source.tubemq.protocol.commands import (
    CloseConsumer,
    CloseProducer,
    CommitOffset,
    ConsumerHeartbeat,
    ConsumerHeartbeatV2,
    GetMessage,
    GetPartMeta,
    ProducerHeartbeat,
    RegisterConsumer,
    RegisterConsumerV2,
    RegisterPartition,
    RegisterProducer,
    Request,
    RpcException,
    SendMessage,
)
from spark_mq_source.tubemq.protocol.wire import Frame, take_frame
from tests.vectors import RecordedCall, tubemq_calls

CALLS = tubemq_calls("java-client-2.4.0.jsonl")


def frame_of(data: bytes) -> Frame:
    frame = take_frame(memoryview(data), 0)
    assert frame is not None
    assert frame.size == len(data)
    return frame


def request_of(call: RecordedCall) -> Request:
    return decode_request(frame_of(call.request))[0]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_request_is_understood_and_encoded_to_the_same_bytes(call: RecordedCall) -> None:
    frame = frame_of(call.request)
    request, timeout_ms = decode_request(frame)
    assert encode_request(frame.serial_no, request, timeout_ms=timeout_ms).hex() == call.request.hex()


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_an_answer_is_understood_and_encoded_again(call: RecordedCall) -> None:
    frame = frame_of(call.answer)
    _, response = decode_response(frame)
    assert not isinstance(response, RpcException)
    assert decode_response(frame_of(encode_response(frame.serial_no, response)))[1] == response


def test_every_call_of_the_client_is_recorded() -> None:
    assert {type(request_of(call)) for call in CALLS} == {
        RegisterProducer, ProducerHeartbeat, CloseProducer, SendMessage,
        RegisterConsumer, ConsumerHeartbeat, CloseConsumer,
        RegisterConsumerV2, ConsumerHeartbeatV2, GetPartMeta,
        RegisterPartition, GetMessage, CommitOffset,
    }  # fmt: skip


def test_types_times_and_attributes_stand_where_the_client_puts_them() -> None:
    sends = [request for call in CALLS if isinstance(request := request_of(call), SendMessage)]
    (typed,) = [send for send in sends if send.flag]
    assert (typed.msg_type, typed.msg_time) == ("a", "202601021504")
    size = int.from_bytes(typed.data[:4], "big")
    attributes = bytes(typed.data[4 : 4 + size]).decode().split(",")
    assert set(attributes) == {"$msgType$=a", "$msgTime$=202601021504", "k=v"}
    assert bytes(typed.data[4 + size :]) == b"typed"
