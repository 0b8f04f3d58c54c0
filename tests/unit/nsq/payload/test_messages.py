from __future__ import annotations

import gc
import sys
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.columns import CORRUPT_COLUMNS
from spark_mq_source.core.errors import CorruptMessageError, OptionError, UnsupportedFeatureError
from spark_mq_source.nsq.payload import _messages_python
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.payload.messages import MessageDecoder, encode_id_commands
from spark_mq_source.nsq.protocol.commands import Messages
from spark_mq_source.nsq.protocol.wire import MESSAGE, RESPONSE, encode_frame
from tests.readable import schema_of
from tests.unit.nsq.vectors import FROM_NSQD, sent
from tests.unit.standins import both_loops

impl = both_loops("spark_mq_source.nsq.payload._messages_native")

TIME = pa.timestamp("us", "UTC")
ALL = schema_of(COLUMNS, without=("_corrupt", "_error"))
ID = b"0123456789abcdef"
LIMIT = 1 << 20
RECORDED = [frame for frame in FROM_NSQD if frame[7] == MESSAGE]


@pytest.fixture
def loops(impl: str) -> Any:
    """Return the module, for its separate functions."""
    if impl == "native":
        from spark_mq_source.nsq.payload import _messages_native

        return _messages_native
    return _messages_python


def decoder(impl: str, schema: pa.Schema = ALL) -> MessageDecoder:
    return MessageDecoder(schema, topic="t", channel="c", nsqd="h:4150", implementation=impl)


def frame(body: bytes = b"", *, nanoseconds: int = 0, attempts: int = 1, message_id: bytes = ID) -> bytes:
    head = nanoseconds.to_bytes(8, "big", signed=True) + attempts.to_bytes(2, "big")
    return encode_frame(MESSAGE, head + message_id + body)


def run(*frames: bytes) -> Messages:
    return Messages(memoryview(b"".join(frames)), len(frames))


def rows(impl: str, *frames: bytes, schema: pa.Schema = ALL) -> list[dict[str, Any]]:
    made = decoder(impl, schema)
    made.append(run(*frames))
    batch = made.take_batch()
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return batch.to_pylist()


def test_recorded_messages_have_their_rows(impl: str) -> None:
    got = rows(impl, *RECORDED)
    assert [row["value"] for row in got[:4]] == [b"one", b"two", b"three", b"two"]
    assert [row["attempts"] for row in got[:4]] == [1, 1, 1, 2]
    assert got[0] == {
        "value": b"one",
        "topic": "t",
        "channel": "c",
        "message_id": "18a29bd3a0e69000",
        "timestamp": datetime.fromtimestamp(0x18E9EFC50D3A57EE // 10**9, timezone.utc).replace(
            microsecond=0x18E9EFC50D3A57EE // 1000 % 10**6
        ),
        "timestamp_ns": 0x18E9EFC50D3A57EE,
        "attempts": 1,
        "nsqd": "h:4150",
    }


def test_every_column_can_be_read_as_each_of_its_types(impl: str) -> None:
    arrow = {
        "binary": pa.binary(),
        "string": pa.string(),
        "timestamp": TIME,
        "bigint": pa.int64(),
        "int": pa.int32(),
    }
    # No message of NSQ is corrupt; its value is decoded later.
    names = set(COLUMNS.readable) - {column.name for column in CORRUPT_COLUMNS}
    assert set(COLUMNS.default) == names - {"timestamp_ns"}
    for name in names:
        types = COLUMNS.readable[name]
        for type_ in types:
            ((row),) = rows(impl, frame(b"x"), schema=pa.schema([(name, arrow[type_])]))
            assert list(row) == [name]


def test_without_columns_rows_are_counted(impl: str) -> None:
    made = decoder(impl, pa.schema([]))
    made.append(run(frame(b"a"), frame(b"b")))
    assert made.take_batch().num_rows == 2


def test_batches_do_not_share_buffers(impl: str) -> None:
    made = decoder(impl)
    batches = []
    for number in range(5):
        made.append(run(*(frame(b"%d" % number) for _ in range(number + 1))))
        assert (made.rows, made.nbytes > 0) == (number + 1, True)
        batches.append(made.take_batch())
        assert (made.rows, made.nbytes) == (0, 0)
    del made
    gc.collect()
    for number, batch in enumerate(batches):
        batch.validate(full=True)
        assert batch.column(0).to_pylist() == [b"%d" % number] * (number + 1)
    assert decoder(impl).take_batch().num_rows == 0


def test_the_counted_size_of_a_batch_is_about_its_real_size(impl: str) -> None:
    made = decoder(impl)
    made.append(run(*(frame(b"x" * 100) for _ in range(1000))))
    counted = made.nbytes
    batch = made.take_batch()
    constant = sum(batch.column(index).nbytes for index in (1, 2, 7))
    assert abs(counted - (batch.nbytes - constant)) < 1000


# -- text

TEXT = pa.schema([("value", pa.string()), ("message_id", pa.string())])


@pytest.mark.parametrize(("column", "body"), [("value", bytes(300)), ("message_id", b"")])
def test_a_column_never_exceeds_the_range_of_offsets(
    impl: str, monkeypatch: pytest.MonkeyPatch, column: str, body: bytes
) -> None:
    # Growth doubles the capacity, which once exceeded the bound without an error.
    made = decoder(impl, pa.schema([ALL.field(column)]))
    most = 3 * (len(body) or 64 * len(ID))
    monkeypatch.setattr(sys.modules[type(made._columns).__base__.__module__], "MAX_COLUMN_BYTES", most + 8)
    count = 1 if body else 64
    for _ in range(3):
        made.append(run(*[frame(body)] * count))
    with pytest.raises(UnsupportedFeatureError, match=f"column {column} would pass the 2 GiB"):
        made.append(run(*[frame(body)] * count))
    assert made.take_batch().num_rows == 3 * count


BAD = [b"\xff", b"ok \xc3", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"x" * 40 + b"\xe2\x82"]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_the_error_of_an_invalid_text_names_its_message(impl: str, bad: bytes) -> None:
    made = decoder(impl, TEXT)
    made.append(run(frame(b"before")))
    with pytest.raises(CorruptMessageError) as caught:
        made.append(run(frame(b"good"), frame(bad, message_id=b"18a29bd3a0e69002"), frame(b"\xff")))
    text = str(caught.value)
    assert "nsq topic t, channel c, nsqd h:4150: message 18a29bd3a0e69002: the value is not UTF-8" in text
    assert "read value as binary" in text
    with pytest.raises(UnicodeDecodeError) as python_says:
        bad.decode()
    assert f"(byte {python_says.value.start})" in text
    # The run is dropped, and the decoder continues.
    made.append(run(frame(b"after")))
    assert made.take_batch().column(0).to_pylist() == ["before", "after"]


def test_an_invalid_id_is_an_error_only_as_text(impl: str) -> None:
    bad = frame(b"x", message_id=b"0123456789abcde\xe9")
    with pytest.raises(
        CorruptMessageError, match=r"message 0123456789abcde\\xe9: the message_id is not ASCII \(byte 15"
    ):
        rows(impl, frame(b"y"), bad)
    got = rows(impl, bad, schema=pa.schema([("message_id", pa.binary())]))
    assert got == [{"message_id": b"0123456789abcde\xe9"}]


# -- runs

OK = encode_frame(RESPONSE, b"OK")


@pytest.mark.parametrize(
    "wrong",
    [frame(b"x")[:-1], frame(b"x")[:20], b"\0", OK, encode_frame(MESSAGE, bytes(25)), encode_frame(3, bytes(40))],
    ids=["cut", "cut head", "one byte", "answer", "too short", "unknown type"],
)
def test_invalid_runs_are_refused(impl: str, loops: Any, wrong: bytes) -> None:
    good = frame(b"good")
    with pytest.raises(CorruptMessageError, match=f"no whole message begins at byte {len(good)} "):
        decoder(impl).append(run(good, wrong))
    with pytest.raises(CorruptMessageError, match=f"no whole message begins at byte {len(good)} "):
        loops.message_ids(memoryview(good + wrong))


# -- commands


def test_commands_of_ids_are_the_recorded_ones(loops: Any) -> None:
    assert loops.encode_id_commands(b"FIN", ID) == sent("fin unknown id is not fatal", 2)
    assert loops.encode_id_commands(b"TOUCH", ID) == sent("touch unknown id", 2)
    assert loops.encode_id_commands(b"REQ", ID, b" 0") == sent("req unknown id", 2)


def test_incomplete_ids_are_refused(loops: Any) -> None:
    with pytest.raises(ValueError, match="16 bytes each; 17 are not whole"):
        loops.encode_id_commands(b"FIN", ID + b"x")
    assert encode_id_commands(b"FIN", ID) == b"FIN " + ID + b"\n"


# -- columns


def test_columns_that_cannot_be_built_are_refused(impl: str) -> None:
    with pytest.raises(OptionError, match="column key is unknown"):
        decoder(impl, pa.schema([("key", pa.binary())]))
    with pytest.raises(OptionError, match="column attempts is int64"):
        decoder(impl, pa.schema([("attempts", pa.int64())]))
