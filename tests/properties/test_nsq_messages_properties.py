from __future__ import annotations

from array import array

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.nsq.payload import _encode_python, _messages_python
from spark_mq_source.nsq.payload.messages import MessageDecoder, build_body, find_unwritable, open_rows
from spark_mq_source.nsq.protocol.commands import Messages
from spark_mq_source.nsq.protocol.wire import MESSAGE, encode_frame

_messages_native = pytest.importorskip("spark_mq_source.nsq.payload._messages_native", exc_type=ImportError)
pytest.importorskip("spark_mq_source.nsq.payload._encode_native", exc_type=ImportError)

FIELDS = {
    "value": st.sampled_from([pa.binary(), pa.string()]),
    "message_id": st.sampled_from([pa.binary(), pa.string()]),
    "timestamp": st.just(pa.timestamp("us", "UTC")),
    "attempts": st.just(pa.int32()),
    "topic": st.just(pa.string()),
    "channel": st.just(pa.string()),
    "nsqd": st.just(pa.string()),
}
schemas = st.lists(st.sampled_from(sorted(FIELDS)), unique=True).flatmap(
    lambda names: st.tuples(*(FIELDS[name] for name in names)).map(
        lambda types: pa.schema(list(zip(names, types, strict=True)))
    )
)
hex_ids = st.integers(0, 2**64 - 1).map(lambda number: b"%016x" % number)
messages = st.builds(
    lambda nanoseconds, attempts, message_id, body: encode_frame(
        MESSAGE, nanoseconds.to_bytes(8, "big", signed=True) + attempts.to_bytes(2, "big") + message_id + body
    ),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65535),
    st.one_of(hex_ids, hex_ids, hex_ids, st.binary(min_size=16, max_size=16)),
    st.one_of(st.text(max_size=30).map(str.encode), st.binary(max_size=30)),
)
runs = st.lists(messages, max_size=8)


def decoded(impl: str, schema: pa.Schema, parts: list[bytes]) -> tuple[object, ...]:
    """What a decoder makes of runs: rows, ids, sizes, and the errors it says."""
    made = MessageDecoder(schema, topic="t", channel="c", nsqd="n", implementation=impl)
    said: list[object] = []
    for part in parts:
        try:
            said.append(made.append(Messages(memoryview(part), 0)))
        except MQSourceError as error:
            said.append((type(error), str(error)))
        said += (made.rows, made.nbytes)
    batch = made.take_batch()
    batch.validate(full=True)
    times = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return batch.num_rows, [column.to_pylist() for column in times], said


@settings(deadline=None)
@given(schemas, st.lists(runs.map(b"".join), max_size=4))
def test_both_implementations_make_the_same_of_messages(schema: pa.Schema, parts: list[bytes]) -> None:
    assert decoded("native", schema, parts) == decoded("python", schema, parts)


@settings(deadline=None)
@given(schemas, st.lists(st.tuples(runs.map(b"".join), st.data()), min_size=1, max_size=2))
def test_both_implementations_make_the_same_of_damage(
    schema: pa.Schema, drawn: list[tuple[bytes, st.DataObject]]
) -> None:
    parts = []
    for part, data in drawn:
        damaged = bytearray(part)
        for at in data.draw(st.lists(st.integers(0, max(len(part) - 1, 0)), max_size=3)) if part else ():
            damaged[at] = data.draw(st.integers(0, 255))
        parts.append(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    assert decoded("native", schema, parts) == decoded("python", schema, parts)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=200), runs.map(b"".join)), st.integers(0, 10), st.integers(30, 100))
def test_both_implementations_scan_alike(data: bytes, cut: int, limit: int) -> None:
    view = memoryview(data)[: len(data) - cut]
    offset = min(cut, len(view))
    assert _messages_native.scan_messages(view, offset, limit) == _messages_python.scan_messages(view, offset, limit)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=16, max_size=16), max_size=9), st.sampled_from([b"", b" 0", b" 3600000"]))
def test_both_implementations_write_the_same_commands(ids: list[bytes], tail: bytes) -> None:
    joined = b"".join(ids)
    expected = b"".join(b"REQ " + one + tail + b"\n" for one in ids)
    for loops in (_messages_native, _messages_python):
        assert loops.encode_id_commands(b"REQ", joined, tail) == expected
        assert loops.message_ids(memoryview(b"".join(encode_frame(MESSAGE, bytes(10) + one) for one in ids))) == joined


def taken_apart(body: bytes) -> list[bytes]:
    """The messages of an MPUB, read as nsqd reads them."""
    count, at = int.from_bytes(body[:4], "big"), 4
    found = []
    for _ in range(count):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(body[at + 4 : at + 4 + size])
        assert len(found[-1]) == size
        at += 4 + size
    assert at == len(body)
    return found


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=30),
    st.booleans(),
    st.data(),
)
def test_both_implementations_write_the_same_bodies(
    values: list[bytes | None], in_order: bool, data: st.DataObject
) -> None:
    whole = pa.record_batch({"value": pa.array(values, pa.binary())})
    begin = data.draw(st.integers(0, len(values)))
    batch = whole.slice(begin, data.draw(st.integers(0, len(values) - begin)))
    sources = [open_rows(batch, impl) for impl in ("native", "python")]
    assert isinstance(sources[1], _encode_python.RowSource)
    assert not isinstance(sources[0], _encode_python.RowSource)
    limit = data.draw(st.integers(1, 50))
    rows = [find_unwritable(source, limit) for source in sources]
    assert rows[0] == rows[1]
    sound = [row for row, value in enumerate(batch.column(0).to_pylist()) if value]
    order = None if in_order and len(sound) == batch.num_rows else array("i", data.draw(st.permutations(sound)))
    end = batch.num_rows if order is None else len(order)
    max_bytes, max_rows = data.draw(st.integers(49, 200)), data.draw(st.integers(1, 5))
    at, written = 0, []
    while at < end:
        built = [build_body(source, order, at, end, max_bytes=max_bytes, max_rows=max_rows) for source in sources]
        assert built[0] == built[1]
        body, following = built[0]
        assert following > at
        messages = taken_apart(body)
        assert len(body) <= max_bytes
        assert len(messages) == following - at <= max_rows
        written += messages
        at = following
    chosen = range(batch.num_rows) if order is None else order
    assert written == [batch.column(0)[row].as_py() for row in chosen]
