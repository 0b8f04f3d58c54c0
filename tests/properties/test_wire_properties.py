from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.core.buffer import ReceiveBuffer
from spark_mq_source.core.errors import BrokerError, MQSourceError, RemoteProtocolError
from spark_mq_source.pulsar.client.authentication import TokenAuthentication
from spark_mq_source.pulsar.protocol import codec, hot
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command
from spark_mq_source.pulsar.protocol.connection import PulsarConnection
from spark_mq_source.pulsar.protocol.wire import FRAME_OVERHEAD_BYTES, Frame, encode_frame, take_frame
from tests.oracles.fields import put_varint
from tests.properties.messages import INT64, any_of, split
from tests.vectors import pulsar_frames

MAX_FRAME_BYTES = 1 << 20
FROM_BROKER = [frame.data for frame in pulsar_frames() if frame.from_broker]
SUBSCRIBE = c.Subscribe("t", "s", c.SubType.Exclusive, consumer_id=1, request_id=100, durable=False)

whole = st.integers(0, 2**63 - 1)
body = st.binary(min_size=1, max_size=50).map(memoryview)
ids = st.integers(-1, 2**63 - 1)
commands = st.one_of(
    *(any_of(kind) for kind in c.COMMAND_TYPES if kind not in (c.Send, c.Message, c.AckEntries)),
    st.builds(c.Send, whole, ids, body, st.integers(0, 2**31 - 1), *[st.none() | whole] * 3, st.booleans()),
    st.builds(c.Message, whole, ids, ids, st.integers(0, 2**32 - 1), st.lists(INT64, max_size=3).map(tuple), body),
)


def connected() -> PulsarConnection:
    connection = PulsarConnection(client_version="test", authentication=TokenAuthentication("t"), now=0.0)
    connection.receive_data(encode_command(c.Connected("x", 19, MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES)))
    connection.send(SUBSCRIBE)
    connection.send(c.Producer("t", producer_id=1, request_id=101))
    connection.receive_data(encode_command(c.Success(100)) + encode_command(c.ProducerSuccess(101, "p")))
    connection.events_received()
    connection.data_to_send()
    return connection


def converse(pieces: list[bytes]) -> tuple[list[object], bytes, str]:
    """Return the events and answers of these bytes, and the error that ended the connection."""
    connection = connected()
    events: list[object] = []
    answers = b""
    error = ""
    for piece in pieces:
        try:
            connection.receive_data(piece)
        except MQSourceError as raised:
            error = f"{type(raised).__name__}: {raised}"
            break
        finally:
            events += connection.events_received()
            answers += connection.data_to_send()
    return events, answers, error


@given(commands)
def test_a_command_survives_the_wire(command: c.Command) -> None:
    frame = take_frame(memoryview(encode_command(command)), 0, MAX_FRAME_BYTES)
    assert frame is not None
    assert decode_command(frame) == command


@given(ids, st.lists(st.tuples(ids, ids), max_size=20), ids)
def test_the_fast_path_of_acknowledgements_agrees_with_protobuf(
    consumer_id: int, entries: list[tuple[int, int]], request_id: int
) -> None:
    acknowledged = tuple(c.MessageId(*entry) for entry in entries)
    slow = c.Ack(consumer_id, c.AckType.Individual, acknowledged, request_id)
    assert encode_command(c.AckEntries(consumer_id, entries, request_id)) == encode_command(slow)


@given(st.lists(st.sampled_from(FROM_BROKER) | commands.map(encode_command), max_size=8), st.lists(st.integers(0)))
def test_any_split_of_the_stream_has_the_same_events(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    whole_events, whole_answers, whole_error = converse([data])
    events, answers, error = converse(split(data, cuts))
    assert (events, error) == (whole_events, whole_error)
    # Answers before the end may have been sent already; nothing else may differ.
    assert answers == whole_answers if not error else answers.startswith(whole_answers)


@given(st.binary(max_size=300), st.lists(st.integers(0), max_size=5))
@example(bytes.fromhex("000fffff 000ffffb"), [])
def test_garbage_is_refused_or_waited_for(data: bytes, cuts: list[int]) -> None:
    _, _, error = converse(split(data, cuts))
    assert not error or error.startswith("RemoteProtocolError")


@given(st.data())
@settings(max_examples=300)
def test_a_damaged_frame_is_an_error_of_the_peer_or_another_command(data: st.DataObject) -> None:
    frame = bytearray(data.draw(st.sampled_from(FROM_BROKER)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    connection = connected()
    try:
        connection.receive_data(bytes(frame))
    except (RemoteProtocolError, BrokerError):
        return
    connection.events_received()


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=20))
def test_a_command_of_garbage_is_refused_or_decoded(command: bytes, body: bytes) -> None:
    for part in (None, memoryview(body)):
        try:
            decode_command(Frame(memoryview(command), part, 0))
        except RemoteProtocolError:
            continue


@given(st.binary(max_size=40))
def test_the_fast_path_of_messages_agrees_with_protobuf_on_all_that_it_accepts(rest: bytes) -> None:
    body = memoryview(b"body")
    for command in (b"\x08\x09\x4a" + rest, b"\x08\x09\x4a" + bytes([len(rest)]) + rest):
        fast = hot.decode_usual_message(command, body)
        if fast is not None:
            assert fast == codec._decode_any(command, body)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=4),
)
def test_the_fast_path_agrees_with_protobuf_on_any_message_id(
    consumer_id: int, ledger_id: int, entry_id: int, partition: int, tail: bytes
) -> None:
    inner = b"".join(
        (b"\x08", put_varint(ledger_id), b"\x10", put_varint(entry_id), b"\x18", put_varint(partition % 2**64), tail)
    )
    outer = b"\x08" + put_varint(consumer_id) + b"\x12" + put_varint(len(inner)) + inner
    command = b"\x08\x09\x4a" + put_varint(len(outer)) + outer
    body = memoryview(b"body")
    fast = hot.decode_usual_message(command, body)
    if fast is not None:
        assert fast == codec._decode_any(command, body)


@given(st.binary(max_size=200), st.none() | st.binary(min_size=1, max_size=200), st.binary(max_size=20))
def test_a_frame_survives_the_wire(command: bytes, body: bytes | None, trailing: bytes) -> None:
    data = encode_frame(command, body)
    frame = take_frame(memoryview(data + trailing), 0, MAX_FRAME_BYTES)
    assert frame is not None
    assert (bytes(frame.command), None if frame.body is None else bytes(frame.body)) == (command, body)
    assert frame.size == len(data)


@given(st.integers(1, 40), st.lists(st.tuples(st.binary(max_size=60), st.integers(0, 60))))
def test_the_buffer_returns_received_bytes_and_views_stay(block_bytes: int, steps: list[tuple[bytes, int]]) -> None:
    buffer = ReceiveBuffer(block_bytes)
    model = b""
    held = []
    for data, n in steps:
        buffer.append(data)
        model += data
        size = min(n, len(model))
        held.append((buffer.take(size), model[:size]))
        model = model[size:]
        assert buffer.view() == model
        assert len(buffer) == len(model)
    assert all(bytes(view) == expected for view, expected in held)


@pytest.mark.parametrize("total", [0x7FFFFFFF, 0xFFFFFFFF, MAX_FRAME_BYTES + 1, MAX_FRAME_BYTES])
def test_an_announced_size_allocates_no_memory_beyond_the_limit(total: int) -> None:
    connection = connected()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        try:
            connection.receive_data(total.to_bytes(4, "big"))
            assert total <= MAX_FRAME_BYTES
            connection.writable(1)
        except RemoteProtocolError:
            assert total > MAX_FRAME_BYTES
        used = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert used < 2 * MAX_FRAME_BYTES + (5 << 20)
