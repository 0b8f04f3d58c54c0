"""Directed fuzzing of TubeMQ's loops: a seed makes answers and rows, which are compared with the oracle."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import CorruptMessageError, MQSourceError, RemoteProtocolError, UnwritableRowError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.tubemq.payload import _messages_python
from spark_mq_source.tubemq.payload.columns import COLUMNS
from spark_mq_source.tubemq.payload.layout import MissingMessagesError
from spark_mq_source.tubemq.payload.messages import MessageDecoder
from spark_mq_source.tubemq.protocol.commands import SendMessage
from spark_mq_source.tubemq.protocol.hot import encode_send
from spark_mq_source.tubemq.write.writer import RowEncoder
from tests.fuzz.directed import compare, random_columns, seeded
from tests.oracles import tubemq_messages as oracle
from tests.oracles.fields import CorruptError, damaged, put_fields, rows_of

ANSWERS = 150
ROWS = 60
TEXTS = ("a", "b", "ä", "type 17", "😀" * 3, "x" * 130, "")
ERRORS = {
    CorruptError: CorruptMessageError,
    oracle.UnreadableError: RemoteProtocolError,
    oracle.CountError: RemoteProtocolError,
    oracle.MissingError: MissingMessagesError,
}


def run_decoder(rng: Random, seed: int, loops: str) -> int:
    """Decode answers, and compare rows, errors and counts."""
    columns = random_columns(rng, COLUMNS.readable)
    filters = rng.choice([(), (), ("a", "ä")])
    how: dict[str, Any] = {
        "on_corrupt": rng.choice(["fail", "skip", "null"]),
        "time_zone": rng.choice(["UTC", "Asia/Shanghai", "Europe/Berlin"]),
    }
    reader = oracle.Reader(
        {name: type_ == "string" for name, type_ in columns.items()}, [one.encode() for one in filters], **how
    )
    decoder = MessageDecoder(
        arrow_schema_of(columns), topic="t", broker_id=1, partition=3, filters=filters, implementation=loops, **how
    )
    expected: list[dict[str, Any]] = []
    origins: list[Any] = []
    module = Implementation(_messages_python, loops).module
    makes_damage = rng.random() < 0.6
    compared = 0
    for number in range(ANSWERS):
        messages = [random_message(rng, makes_damage=makes_damage) for _ in range(rng.choice([0, 1, 2, 5, 12]))]
        body = put_fields(rng, oracle.ANSWER_FIELDS, random_answer(rng, messages))
        if makes_damage and rng.random() < 0.3:
            body = damaged(rng, body)
        stop_at = None
        if messages and rng.random() < 0.2:
            said = oracle.Message()
            said.MergeFromString(sound_message(rng)) if rng.random() < 0.2 else None
            stop_at = (said.messageId, said.checkSum)
            whole = [one for one in messages if is_whole(one)]
            if whole and rng.random() < 0.8:
                said = oracle.Message.FromString(rng.choice(whole))
                stop_at = (said.messageId, said.checkSum)
        count = None if rng.random() < 0.6 else max(0, len(messages) + rng.choice([0, 0, 0, -1, 1]))
        case = (seed, number, loops, columns, filters, how, stop_at, count, body.hex())
        wanted: Any
        try:
            rows = reader.decode(body, 2800 + number, stop_at, count)
            wanted = len(rows)
        except tuple(ERRORS) as error:
            rows, wanted = [], ERRORS[type(error)]
        others: Any
        try:
            others = b"".join(part for is_message, part in oracle.parts_of(body) if not is_message)
        except oracle.UnreadableError:
            others = RemoteProtocolError
        outcome: Any
        try:
            outcome = module.without_messages(body)
        except MQSourceError as error:
            outcome = type(error)
        assert outcome == others, case
        before = decoder.rows
        try:
            outcome = decoder.decode(memoryview(body), 2800 + number, stop_at, count)
            assert decoder.rows == before + outcome, case
        except MQSourceError as error:
            outcome = type(error)
            assert decoder.rows == before, case
        assert (outcome, decoder.corrupt_messages) == (wanted, reader.corrupt_messages), (outcome, wanted, case)
        compared += max(1, len(messages))
        expected += rows
        origins += [case] * len(rows)
    compare(rows_of([decoder.take_batch()]), expected, origins)
    return compared


def is_whole(message: bytes) -> bool:
    """Return whether protobuf's runtime can read a message."""
    try:
        oracle.Message.FromString(message)
    except Exception:  # noqa: BLE001 - the module of its error differs between versions
        return False
    return True


def random_answer(rng: Random, messages: list[bytes]) -> list[tuple[str, Any]]:
    """Return the fields of an answer."""
    contents: list[tuple[str, Any]] = [("success", 1), ("errCode", 200)]
    contents += [("messages", message) for message in messages]
    for name in ("errMsg", "currOffset", "escFlowCtrl", "currDataDlt", "requireSlow", "maxOffset"):
        if rng.random() < 0.3:
            contents.append((name, b"OK" if name == "errMsg" else rng.getrandbits(20)))
    return contents


def random_attributes(rng: Random) -> bytes:
    """Return the text of attributes: some repeated, some without a value, some not UTF-8; sometimes very many."""
    parts = []
    for _ in range(rng.randint(0, 3) if rng.random() < 0.9 else rng.choice([16, 17, 40])):
        key = rng.choice(TEXTS) if rng.random() < 0.7 else f"k{rng.randint(0, 30)}"
        parts.append(key.encode() + rng.choice([b"=", b"=", b"=", b"", b"=="]) + rng.choice(TEXTS).encode())
    if rng.random() < 0.5:
        parts.append(b"$msgType$=" + rng.choice(TEXTS).encode())
    if rng.random() < 0.5:
        minute = rng.choice(
            ["202611231200", "202603290230", "000101010000", "999912312359", "202602300000", "2026", ""]
        )
        parts.append(b"$msgTime$=" + minute.encode())
    rng.shuffle(parts)
    if rng.random() < 0.03:
        parts.append(rng.choice([b"\xff=1", b"k=\xe2\x82", b"$msgType$=\xff", b",,", b"$msgTime$=\xff"]))
    return b",".join(parts)


def sound_message(rng: Random) -> bytes:
    """Return a valid message."""
    data = rng.choice([b"", b"v", rng.randbytes(rng.randint(0, 60)), "wert ä".encode()])
    flag = rng.choice([0, 0, 1, 1, 3, 2**32 + 1])
    if flag & 1:
        text = random_attributes(rng)
        size = len(text) if rng.random() < 0.97 else rng.choice([0, len(text) + 1, 2**31, 2**32 - 1])
        data = size.to_bytes(4, "big") + text + data
        if rng.random() < 0.01:
            data = data[: rng.randint(0, 4)]
    check_sum = zlib.crc32(data) & 0x7FFFFFFF if rng.random() < 0.9 else rng.choice([-1, -1, 5])
    contents = [
        ("messageId", rng.choice([0, 5, rng.getrandbits(64)])), ("checkSum", check_sum), ("payLoadData", data),
        ("flag", flag),
    ]  # fmt: skip
    if rng.random() < 0.02:
        del contents[rng.randint(0, 3)]
    return put_fields(rng, oracle.MESSAGE_FIELDS, contents)


def random_message(rng: Random, *, makes_damage: bool) -> bytes:
    """Return a message, sometimes damaged."""
    message = sound_message(rng)
    return damaged(rng, message) if makes_damage and rng.random() < 0.1 else message


# Encoding


def random_batch(rng: Random) -> pa.RecordBatch:
    """Return rows to write: sliced, with NULLs, sometimes of empty arrays."""
    rows = rng.choice([0, 1, 5, ROWS])
    whole = rows + rng.randint(0, 9)
    risky = rng.random() < 0.2

    def some(make: Any, nulls: float) -> list[Any]:
        return [None if rng.random() < nulls else make() for _ in range(whole)]

    def text() -> str:
        return rng.choice(TEXTS[:-1]) if not risky or rng.random() < 0.98 else rng.choice(["", " ", "a,b", "a=b"])

    def time() -> int:
        # 1900 to 2400.
        return rng.randint(-2_208_988_800, 13_569_465_600) * 1_000_000 if not risky else rng.choice([0, 2**62])

    def pairs() -> list[tuple[str, str | None]]:
        return [(f"{n}{text()}", text()) for n in range(rng.randint(0, 3))]

    is_text = rng.random() < 0.3
    columns = {
        "topic": pa.array(some(lambda: rng.choice(["x", "y"]), 0.2), pa.string()),
        "message_type": pa.array(some(text, 0.3), pa.string()),
        "message_time": pa.array(some(time, 0.3), rng.choice([pa.timestamp("us", "UTC"), pa.timestamp("us")])),
        "attributes": pa.array(some(pairs, 0.3), pa.map_(pa.string(), pa.string())),
    }
    names = rng.sample(list(columns), rng.randint(0, 4))
    value = some(text if is_text else lambda: rng.randbytes(rng.choice([1, 9, 100, 9000])), 0.05 if risky else 0)
    columns["value"] = pa.array(value, pa.string() if is_text else pa.binary())
    names.insert(rng.randint(0, len(names)), "value")
    return pa.record_batch({name: columns[name] for name in names}).slice(rng.randint(0, whole - rows), rows)


def run_encoder(rng: Random, seed: int, _loops: str) -> int:
    """Encode rows to calls, read the calls with protobuf's runtime, and compare."""
    batch = random_batch(rng)
    zone = rng.choice(["UTC", "Asia/Shanghai"])
    is_local = any(pa.types.is_timestamp(type_) and type_.tz is None for type_ in batch.schema.types)
    expected = [call_of(cells, "UTC" if is_local else zone) for cells in rows_of([batch])]
    case = (seed, zone, batch.schema)
    calls = []
    try:
        for topic, data, flag, kind, minute in RowEncoder("t", zone).encode(batch):
            send = SendMessage("client", topic, rng.randint(0, 20_000), data, flag, zlib.crc32(data) & 0x7FFFFFFF,
                               2130706433, kind, minute)  # fmt: skip
            calls.append((rng.choice([len(calls), 2**31 - 1, -1]), send))
    except UnwritableRowError:
        assert len(calls) < len(expected), case
        assert expected[len(calls)] is None, case
    else:
        assert len(calls) == len(expected), case
    timeout_ms = rng.choice([0, 10_000, 2**31])
    frames = b"".join(encode_send(serial_no, send, timeout_ms) for serial_no, send in calls)
    sends = oracle.sends_of(frames)
    assert [serial_no for serial_no, _, _ in sends] == [serial_no for serial_no, _ in calls], case
    for (_, _, send), (_, given), wanted in zip(sends, calls, expected, strict=False):
        assert wanted is not None, case
        topic, data, flag, kind, minute = wanted
        found = (send.topicName, send.data, send.flag, send.msgType, send.msgTime)
        assert found == (topic, data, flag, kind or b"", minute or b""), (found, wanted, case)
        assert (send.HasField("msgType"), send.HasField("msgTime")) == (kind is not None, minute is not None), case
        assert send.checkSum == zlib.crc32(data) & 0x7FFFFFFF, case
        assert (send.clientId, send.partitionId, send.sentAddr) == (b"client", given.partition_id, 2130706433), case
        assert not send.HasField("authInfo"), case
    return max(1, len(sends))


def call_of(cells: dict[str, Any], zone: str) -> tuple[Any, ...] | None:
    """Return topic, data, flag, type and minute of a row; None if it cannot be a message."""
    parts = []
    kind, time_us, minute = cells.get("message_type"), cells.get("message_time"), None
    if kind is not None:
        parts.append((b"$msgType$", kind))
    if time_us is not None:
        try:
            local = (oracle.EPOCH + oracle.timedelta(microseconds=time_us)).astimezone(oracle.ZoneInfo(zone))
        except OverflowError:
            return None
        minute = f"{local.year:04}{local:%m%d%H%M}".encode()
    pairs = [(key.encode(), None if item is None else item.encode()) for key, item in cells.get("attributes") or []]
    for text in [*(one for _, one in parts), *(one for pair in pairs for one in pair)]:
        if text is None or not text.decode().strip() or b"," in text or b"=" in text:
            return None
    if minute is not None:
        parts.append((b"$msgTime$", minute))
    text = b",".join(key + b"=" + (item or b"") for key, item in [*parts, *pairs])
    value = cells["value"]
    topic = cells.get("topic") or b"t"
    if value is None or not value + text:
        return None
    if text:
        return topic, len(text).to_bytes(4, "big") + text + value, 1, kind, minute
    return topic, value, 0, kind, minute


run = seeded(run_decoder, run_encoder)
