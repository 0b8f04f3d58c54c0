from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.core.errors import LocalProtocolError, MQSourceError, RemoteProtocolError
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker
from spark_mq_source.tubemq.protocol.codec import decode_response, encode_request
from spark_mq_source.tubemq.protocol.connection import TubeMQConnection
from spark_mq_source.tubemq.protocol.hot import is_stored, take_stored
from spark_mq_source.tubemq.protocol.wire import (
    BEGIN_TOKEN,
    MAX_PAYLOAD_BYTES,
    Frame,
    SeenBlocks,
    encode_frame,
    take_frame,
)
from tests.properties.messages import INT64, TEXT, any_of, split
from tests.tubemq_server import decode_request, encode_response
from tests.vectors import tubemq_calls

ANSWERS = [call.answer for call in tubemq_calls()]
REQUESTS = [
    decode_request(frame)[0]
    for call in tubemq_calls()
    if (frame := take_frame(memoryview(call.request), 0)) and not call.case.startswith("exception response (")
]

requests = st.one_of(*map(any_of, get_args(c.Request)))
responses = st.one_of(
    *(any_of(kind) for kind in get_args(c.Response) if kind not in (c.GetMessageResponse, c.RpcException)),
    st.builds(c.RpcException, st.sampled_from([c.Status.ERROR, c.Status.FATAL]), TEXT, TEXT),
)


def converse(pieces: list[bytes], waiting: int = 8) -> tuple[list[object], str]:
    """Return the events of these bytes, with pending calls of every kind, and the error that ended the connection."""
    connection = TubeMQConnection(broker=Broker(1, "h", 1), request_timeout_ms=1000, now=0.0)
    for serial_no in range(1, waiting + 1):
        connection.send([(serial_no, REQUESTS[serial_no * 5 % len(REQUESTS)])])
    connection.data_to_send()
    events: list[object] = []
    for piece in pieces:
        try:
            connection.receive_data(piece)
        except MQSourceError as raised:
            return events + connection.events_received(), f"{type(raised).__name__}: {raised}"
        events += connection.events_received()
    return events, ""


def renumbered(serial_no: int, answer: bytes) -> bytes:
    return answer[:4] + serial_no.to_bytes(4, "big") + answer[8:]


@given(st.integers(-(2**31), 2**31 - 1), requests, st.integers(0, 2**31 - 1))
@settings(deadline=None)  # a slow machine must not fail it
def test_a_request_survives_the_wire(serial_no: int, request: c.Request, timeout_ms: int) -> None:
    frame = take_frame(memoryview(encode_request(serial_no, request, timeout_ms=timeout_ms)), 0)
    assert frame is not None
    assert (frame.serial_no, decode_request(frame)) == (serial_no, (request, timeout_ms))


@pytest.mark.parametrize(
    ("field", "content"),
    [
        ("client_id", None), ("client_id", "\ud800"), ("topic_name", None), ("topic_name", "a\udcff"),
        ("partition_id", None), ("partition_id", "1"), ("data", None), ("data", "text"), ("flag", None),
        ("check_sum", None), ("sent_addr", None), ("msg_type", "\ud800"), ("msg_type", b"a"), ("msg_time", "\ud800"),
        ("auth_info", "x"),
    ],
)  # fmt: skip
def test_a_message_that_does_not_fit_the_protocol_is_a_local_error(field: str, content: object) -> None:
    sound = c.SendMessage("client", "flights", 1, b"data", 0, 1 << 28, 2130706433, "type", "202611230000", None)
    with pytest.raises(LocalProtocolError, match="SendMessage cannot be sent: "):
        encode_request(1, sound._replace(**{field: content}), timeout_ms=10_000)


@given(responses)
@settings(deadline=None)
def test_an_answer_survives_the_wire(response: c.Response) -> None:
    frame = take_frame(memoryview(encode_response(1, response)), 0)
    assert frame is not None
    assert decode_response(frame)[1] == response
    if is_stored(bytes(frame.payload)):
        assert isinstance(response, c.SendMessageResponse)
        assert response[:2] == (True, 200)


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 255))
@settings(deadline=None)
def test_the_fast_path_accepts_only_answers_of_stored_messages(tail: bytes, at: int, byte: int) -> None:
    data = bytearray.fromhex("02080104 08001803 12 080d12 0e 080110c801 1a034f4b21 2000 2807") + tail
    if at < len(data):
        data[at] = byte
    if is_stored(bytes(data)):
        try:
            method, response = decode_response(Frame(1, memoryview(data), 0))
        except RemoteProtocolError:
            return
        # Of a field that occurs twice, protobuf takes the last; no server writes one twice.
        if method is c.Method.SEND_MESSAGE and not tail and at < 18:
            assert isinstance(response, c.SendMessageResponse)
            assert response[:2] == (True, 200)


stored_answers = st.builds(
    lambda serial_no, *rest: encode_response(serial_no, c.SendMessageResponse(True, 200, *rest)),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=100),
    st.booleans(),
    INT64,
)


@given(
    st.lists(stored_answers | stored_answers | responses.map(lambda one: encode_response(8, one)), max_size=8),
    st.integers(0, 80),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2),
)
@settings(deadline=None)
def test_the_fast_path_recognises_stored_messages_at_the_beginning(
    frames: list[bytes], missing: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(b"x" + b"".join(frames))
    data = data[: max(1, len(data) - missing)]
    for at, byte in changes:
        if len(data) > 1:
            data[1 + at % (len(data) - 1)] = byte
    expected, offset = [], 1
    with contextlib.suppress(RemoteProtocolError):
        while (frame := take_frame(memoryview(data), offset)) is not None:
            # Longer answers may be of stored messages too, and are left to the complete decoder.
            if not is_stored(bytes(frame.payload)) or frame.size != 16 + len(frame.payload) or len(frame.payload) > 127:
                break
            expected.append(frame.serial_no)
            offset += frame.size
    assert take_stored(memoryview(data), 1) == (expected, offset)


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from(ANSWERS)).map(
            lambda one: one[1][:4] + one[0].to_bytes(4, "big") + one[1][8:]
        )
        | st.tuples(st.integers(1, 8), responses).map(lambda one: encode_response(*one)),
        max_size=8,
    ),
    st.lists(st.integers(0)),
)
@settings(deadline=None)
def test_any_split_of_the_stream_has_the_same_events(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    assert converse(split(data, cuts)) == converse([data])


@given(st.binary(max_size=300), st.lists(st.integers(0), max_size=5))
@example(BEGIN_TOKEN + bytes.fromhex("00000001 00000e00 00000000"), [])
@settings(deadline=None)
def test_garbage_is_refused_or_waited_for(data: bytes, cuts: list[int]) -> None:
    for pieces in (split(data, cuts), split(BEGIN_TOKEN + data, cuts)):
        _, error = converse(pieces)
        assert not error or error.startswith("RemoteProtocolError")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_answer_is_an_error_of_the_peer_or_another_answer(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(ANSWERS) - 1))
    answer = bytearray(renumbered(1, ANSWERS[index]))
    for _ in range(data.draw(st.integers(1, 4))):
        answer[data.draw(st.integers(0, min(len(answer), 200) - 1))] = data.draw(st.integers(0, 255))
    connection = TubeMQConnection(broker=Broker(1, "h", 1), request_timeout_ms=1000, now=0.0)
    connection.send([(1, REQUESTS[index % len(REQUESTS)])])
    try:
        connection.receive_data(bytes(answer))
    except RemoteProtocolError:
        return
    connection.events_received()


@given(st.binary(max_size=80))
@settings(deadline=None)
def test_a_call_of_garbage_is_refused_or_decoded(payload: bytes) -> None:
    for data in (payload, bytes.fromhex("0208010408001803") + bytes([len(payload)]) + payload):
        for decode in (decode_response, decode_request):
            try:
                decode(Frame(1, memoryview(data), 0))
            except RemoteProtocolError:
                continue


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.binary(max_size=20))
@settings(deadline=None)
def test_a_payload_survives_any_split_into_blocks(blocks: list[bytes], trailing: bytes) -> None:
    sized = b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    data = BEGIN_TOKEN + (7).to_bytes(4, "big") + len(blocks).to_bytes(4, "big") + sized
    frame = take_frame(memoryview(data + trailing), 0)
    assert frame is not None
    assert (bytes(frame.payload), frame.size, frame.serial_no) == (b"".join(blocks), len(data), 7)
    assert all(take_frame(memoryview(data[:n]), 0) is None for n in range(len(data)))


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(1, 60), max_size=20),
)
@settings(deadline=None)
def test_complete_blocks_are_not_parsed_again(frames: list[list[bytes]], pieces: list[int]) -> None:
    stream = b"".join(
        BEGIN_TOKEN
        + (7).to_bytes(4, "big")
        + len(blocks).to_bytes(4, "big")
        + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
        for blocks in frames
    )
    seen = SeenBlocks()
    offset = 0
    payloads = []
    for received in [*itertools.accumulate(pieces), len(stream)]:
        arrived = bytearray(stream[:received])
        for begin, _ in seen.bounds:
            # Its size: a decoder that read it again would refuse it.
            arrived[offset + begin - 4 : offset + begin] = b"\xff\xff\xff\xff"
        while frame := take_frame(memoryview(bytes(arrived)), offset, seen=seen):
            payloads.append(bytes(frame.payload))
            offset += frame.size
    assert payloads == [b"".join(blocks) for blocks in frames]


@pytest.mark.parametrize("blocks", [1, 3584])
@pytest.mark.parametrize("size", [0x7FFFFFFF, MAX_PAYLOAD_BYTES + 1, MAX_PAYLOAD_BYTES])
def test_an_announced_size_allocates_no_memory(size: int, blocks: int) -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        head = encode_frame(1, b"x")[:8] + blocks.to_bytes(4, "big") + size.to_bytes(4, "big")
        _, error = converse([head])
        assert bool(error) == (size > MAX_PAYLOAD_BYTES)
        used = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert used < 5 << 20
