from __future__ import annotations

import tracemalloc
import zlib

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.nsq.protocol import commands as c
from spark_mq_source.nsq.protocol.compression import MAX_INPUT_BYTES, DeflateStream, SnappyStream
from spark_mq_source.nsq.protocol.connection import Event, NsqConnection
from spark_mq_source.nsq.protocol.wire import ERROR, MESSAGE, RESPONSE, encode_frame, take_frame
from tests.properties.messages import split
from tests.unit.nsq.protocol.test_connection import subscribed
from tests.unit.nsq.vectors import FROM_NSQD, received

ids = st.binary(min_size=16, max_size=16)
messages = st.builds(
    lambda head, message_id, body: encode_frame(MESSAGE, head + message_id + body),
    st.binary(min_size=10, max_size=10),
    ids,
    st.binary(max_size=300),
)
failures = st.builds(
    lambda name, message_id: encode_frame(
        ERROR, b"E_%b_FAILED %b %b failed ID not in flight" % (name, name, message_id)
    ),
    st.sampled_from([b"FIN", b"REQ", b"TOUCH"]),
    st.text("0123456789abcdef", min_size=16, max_size=16).map(str.encode),
)
answers = st.sampled_from([encode_frame(RESPONSE, words) for words in (b"OK", b"_heartbeat_", b"CLOSE_WAIT")])
frames = st.lists(st.one_of(messages, failures, answers), max_size=30)


def flat(events: list[Event]) -> list[object]:
    """Return the events with the messages of runs one by one: the ends of runs depend on the pieces of bytes."""
    found: list[object] = []
    for event in events:
        if isinstance(event, c.Messages):
            data, count = event.data, 0
            while data:
                frame = take_frame(data, 0, 1 << 20)
                assert frame is not None
                found.append(bytes(frame.data))
                data, count = data[frame.size :], count + 1
            assert count == event.count
        else:
            found.append(event)
    return found


@settings(deadline=None)
@given(frames, st.lists(st.integers(0), max_size=20))
def test_any_split_of_the_bytes_has_the_same_events(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    whole, cut = subscribed(), subscribed()
    whole.receive_data(stream)
    for piece in split(stream, cuts):
        cut.receive_data(piece)
    assert flat(cut.events_received()) == flat(whole.events_received())
    assert cut.data_to_send() == whole.data_to_send() == b"NOP\n" * parts.count(encode_frame(RESPONSE, b"_heartbeat_"))


@settings(deadline=None)
@given(frames, st.sampled_from(["deflate", "snappy"]), st.integers(1, 2000))
def test_a_compressed_stream_has_the_same_events(parts: list[bytes], kind: str, step: int) -> None:
    theirs = DeflateStream(6) if kind == "deflate" else SnappyStream()
    made = NsqConnection(c.Identify("i", "h", "u", deflate=kind == "deflate", snappy=kind == "snappy"), now=0.0)
    made.receive_data(received(f"{kind} upgrade", 0))
    ok = encode_frame(RESPONSE, b"OK")
    stream = theirs.compress(ok)
    made.receive_data(stream)
    made.send(c.Sub("t", "c"))
    made.events_received()
    stream = b"".join(theirs.compress(part) for part in parts)
    for at in range(0, len(stream), step):
        made.receive_data(stream[at : at + step])
    plain = subscribed()
    plain.receive_data(b"".join(parts))
    assert flat(made.events_received()) == flat(plain.events_received())


@settings(deadline=None)
@given(st.binary(max_size=2000), st.booleans())
@example(b"\x00\x00\x00\x06\x00\x00\x00\x00OK" * 3, True)
def test_garbage_is_refused_or_waited_for(garbage: bytes, after_sub: bool) -> None:
    made = subscribed() if after_sub else NsqConnection(c.Identify("i", "h", "u"), now=0.0)
    try:
        made.receive_data(garbage)
    except MQSourceError:
        assert made.next_timer() is None
    else:
        assert len(made.writable(1)) <= 8 << 20


@settings(deadline=None)
@given(st.sampled_from(FROM_NSQD), st.data())
def test_damaged_frames_are_refused_or_other_frames(frame: bytes, data: st.DataObject) -> None:
    damaged = bytearray(frame)
    for at in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    for made in (subscribed(), NsqConnection(c.Identify("i", "h", "u", tls_v1=True, snappy=True), now=0.0)):
        try:
            made.receive_data(bytes(damaged))
            flat(made.events_received())
        except MQSourceError:
            assert made.next_timer() is None


@settings(deadline=None)
@given(st.binary(max_size=500), st.sampled_from(["deflate", "snappy"]))
def test_garbage_in_a_compressed_stream_is_refused_or_waited_for(garbage: bytes, kind: str) -> None:
    made = NsqConnection(c.Identify("i", "h", "u", deflate=kind == "deflate", snappy=kind == "snappy"), now=0.0)
    made.receive_data(received(f"{kind} upgrade", 0))
    try:
        made.receive_data(garbage)
    except MQSourceError:
        assert made.next_timer() is None


def test_memory_is_bounded_for_any_bytes() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = bomb.compress(b"\x7f\x00\x00\x00" + bytes(100 << 20)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    made = NsqConnection(c.Identify("i", "h", "u", deflate=True), now=0.0)
    made.receive_data(received("deflate upgrade", 0))
    assert len(made.writable(1 << 20)) == MAX_INPUT_BYTES
    tracemalloc.start()
    try:
        made.receive_data(data)
    except MQSourceError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100 << 20
    assert made.next_timer() is None
