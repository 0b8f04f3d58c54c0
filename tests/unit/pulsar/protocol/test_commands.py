from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from google.protobuf import text_format

from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.pulsar.protocol import codec, commands, hot
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command, encode_send
from spark_mq_source.pulsar.protocol.commands import (
    Ack,
    AckType,
    AuthData,
    AuthResponse,
    CloseProducer,
    Command,
    Connect,
    FeatureFlags,
    Flow,
    GetTopicsOfNamespace,
    InitialPosition,
    Lookup,
    Message,
    MessageId,
    Producer,
    Send,
    SendReceipt,
    Subscribe,
    SubType,
    Success,
    UnknownCommand,
)
from spark_mq_source.pulsar.protocol.wire import Frame, encode_frame, take_frame
from tests.protobuf import pulsar as pb
from tests.vectors import RecordedFrame, pulsar_frames

LIMIT = 1 << 20
KNOWN = {name.upper() for name in codec._NAMES.values()}
FRAMES = pulsar_frames()

# Commands that no recording contains; their bytes are written by hand from the field numbers.
NOT_RECORDED: set[str] = set()


def frame_of(data: bytes) -> Frame:
    frame = take_frame(memoryview(data), 0, LIMIT)
    assert frame is not None
    assert frame.size == len(data)
    return frame


def decode(data: bytes) -> Command:
    return decode_command(frame_of(data))


def find(case: str, kind: str) -> bytes:
    return find_all(case, kind)[0]


def find_all(case: str, kind: str) -> list[bytes]:
    return [frame.data for frame in FRAMES if frame.case == case and frame.kind == kind]


def decode_all(case: str, kind: str) -> list[Command]:
    return [decode(data) for data in find_all(case, kind)]


@pytest.mark.parametrize("recorded", FRAMES, ids=str)
def test_a_recorded_frame_is_decoded_to_its_command(recorded: RecordedFrame) -> None:
    command = decode(recorded.data)
    if recorded.kind not in KNOWN:
        assert isinstance(command, UnknownCommand)
        return
    assert type(command).__name__.upper() == recorded.kind.replace("_", "")
    base = pb.BaseCommand.FromString(bytes(frame_of(recorded.data).command))
    (content,) = [value for field, value in base.ListFields() if field.name != "type"]
    assert_same_fields(command, content)
    # Protobuf decodes our encoding to the same command, except for defaults that one of the two omits.
    again = frame_of(encode_command(command))
    assert with_defaults(again.command) == with_defaults(without_partition(frame_of(recorded.data).command))
    assert decode_command(again) == command


def assert_same_fields(command: Command, message: Any) -> None:
    """Check that each field of a command has the value of protobuf's field of this name."""
    for name in command._fields if isinstance(command, tuple) else [one.name for one in dataclasses.fields(command)]:
        if name not in message.DESCRIPTOR.fields_by_name:  # the bytes behind the command, and the parts of an id
            continue
        ours, theirs = getattr(command, name), getattr(message, name)
        if ours is None:
            assert not message.HasField(name)
        elif hasattr(theirs, "append"):
            for one, other in zip(ours, theirs, strict=True):
                if dataclasses.is_dataclass(one):
                    assert_same_fields(one, other)
                else:
                    assert one == other
        elif dataclasses.is_dataclass(ours):
            assert_same_fields(ours, theirs)
        else:  # protobuf has no negative ids
            assert theirs in (ours, ours % 2**64 if isinstance(ours, int) else ours)


def without_partition(command: memoryview) -> memoryview:
    """Remove the partition, which a MESSAGE does not store: the subscriber knows it."""
    base = pb.BaseCommand.FromString(bytes(command))
    if base.type == commands.MESSAGE:
        base.message.message_id.ClearField("partition")
    return memoryview(base.SerializeToString())


def with_defaults(command: memoryview) -> str:
    base = pb.BaseCommand.FromString(bytes(command))
    base.DiscardUnknownFields()
    _say_defaults(base)
    return text_format.MessageToString(base)


def _say_defaults(message: object) -> None:
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            for part in value if isinstance(value, list) or hasattr(value, "append") else [value]:
                if hasattr(value, "append") or message.HasField(field.name):
                    _say_defaults(part)
        elif not hasattr(value, "append"):
            setattr(message, field.name, value)


TRANSACTION = "transaction: tc connect, new, add partition, send, commit"

# The same fields as the recorded client sent, and so the same bytes.
SENT = [
    (
        "connect (protocol 19, supports_broker_entry_metadata)",
        "CONNECT",
        Connect("raw-1", protocol_version=19, feature_flags=FeatureFlags(supports_broker_entry_metadata=True)),
    ),
    (
        "subscribe non-durable at earliest",
        "SUBSCRIBE",
        Subscribe(
            "persistent://public/x/vec1795232364067812328",
            "vec-reader",
            SubType.Exclusive,
            consumer_id=1,
            request_id=2,
            durable=False,
            start_message_id=MessageId(-1, -1),
            initial_position=InitialPosition.Latest,
            force_topic_creation=False,
        ),
    ),
    ("producer create", "PRODUCER", Producer("persistent://public/x/vec1795232364067812328", 1, 2)),
    ("producer close", "CLOSE_PRODUCER", CloseProducer(1, 3)),
]


@pytest.mark.parametrize(("case", "kind", "command"), SENT, ids=lambda value: value if isinstance(value, str) else "")
def test_encoded_commands_are_those_that_a_broker_accepted(case: str, kind: str, command: Command) -> None:
    assert encode_command(command).hex() == find(case, kind).hex()


@pytest.mark.parametrize(
    ("case", "send"),
    [
        ("send: single message", Send(1, 0, b"")),
        ("send: batch of 3", Send(1, 1, b"", num_messages=3, highest_sequence_id=3)),
        (TRANSACTION, Send(1, 0, b"", txnid_least_bits=33, txnid_most_bits=0)),
        ("java chunks", Send(0, 0, b"", is_chunk=True)),
    ],
)
def test_a_send_as_a_broker_accepted_it(case: str, send: Send) -> None:
    data = find(case, "SEND")
    recorded = decode(data)
    assert isinstance(recorded, Send)
    assert recorded._replace(body=b"") == send
    assert len(recorded.body) > 0
    # The raw client writes the number of messages even if it is 1, which is omitted here.
    if "num_messages: 1" not in next(f.text for f in FRAMES if f.data == data):
        assert encode_command(recorded) == data
    assert encode_send(recorded) + bytes(recorded.body) == encode_command(recorded)


def test_a_receipt_tells_stored_entries_from_duplicates() -> None:
    case = "send receipt: duplicate (deduplication on)"
    assert [receipt.is_duplicate for receipt in decode_all(case, "SEND_RECEIPT")] == [True]
    stored = [r for r in decode_all("send: batch of 3", "SEND_RECEIPT") if isinstance(r, SendReceipt)]
    assert [receipt.is_duplicate for receipt in stored] == [False]


def test_every_command_is_recorded_except_those_listed() -> None:
    assert KNOWN - {frame.kind for frame in FRAMES} == NOT_RECORDED


# MESSAGE.


def recorded_messages() -> list[RecordedFrame]:
    return [frame for frame in FRAMES if frame.kind == "MESSAGE"]


@pytest.mark.parametrize("recorded", recorded_messages(), ids=str)
def test_the_fast_path_and_protobuf_agree_on_a_recorded_message(recorded: RecordedFrame) -> None:
    frame = frame_of(recorded.data)
    assert frame.body is not None
    fast = hot.decode_usual_message(bytes(frame.command), frame.body)
    either = codec._decode_any(bytes(frame.command), frame.body)
    assert isinstance(either, Message)
    said = re.search(r"message_?id \{ ledger_?id: (\d+) entry_?id: (\d+)", recorded.text, re.IGNORECASE)
    assert said is not None
    assert (either.ledger_id, either.entry_id) == (int(said[1]), int(said[2]))
    # Field 5 is the epoch of the consumer, which the Java client sends and gets back.
    unusual = re.search(r"redelivery_count|ack_set| 5: ", recorded.text.partition("|")[0])
    assert fast == (None if unusual else either)


@pytest.mark.parametrize("partition", [None, -1, 0, 5, 127, 128, 9999])
@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, 2**32, 2**56, 2**63 - 1])
def test_the_fast_path_reads_ids_of_every_length(number: int, partition: int | None) -> None:
    base = pb.BaseCommand(type=commands.MESSAGE)
    base.message.consumer_id = number
    base.message.message_id.ledger_id = number
    base.message.message_id.entry_id = number
    if partition is not None:
        base.message.message_id.partition = partition
    data = base.SerializeToString()
    body = memoryview(b"body")
    expected = Message(number, number, number, 0, (), body)
    assert hot.decode_usual_message(data, body) == expected
    assert codec._decode_any(data, body) == expected


def test_an_unusual_message_is_read_with_protobuf() -> None:
    message = Message(1, 2, 3, 4, (5, -1), memoryview(b"body"))
    frame = frame_of(encode_command(message))
    assert hot.decode_usual_message(bytes(frame.command), memoryview(b"body")) is None
    assert decode_command(frame) == message


@pytest.mark.parametrize("ids", [(-1, -1), (5, -1), (-1, 0)])
def test_an_absent_id_is_minus_one_read_and_written(ids: tuple[int, int]) -> None:
    message = Message(1, *ids, 0, (), memoryview(b"body"))
    assert decode(encode_command(message)) == message


@pytest.mark.parametrize(
    "command",
    [
        # Sizes of 132 and 128, which are no varints of one byte, and a ledger id of 121 bytes.
        pytest.param("08094a84 0801 1280 08" + "80" * 120 + "00" + "1000" + "80" * 3, id="sizes of two bytes"),
        pytest.param("08094a84 0801 1280 08" + "80" * 123 + "00" + "1000", id="sizes of two bytes, whole"),
        pytest.param("08094a17 0801 1213 08" + "80" * 15 + "00" + "1000", id="ledger id of 16 bytes"),
        pytest.param("08094a17 0801 1213 0800 10" + "80" * 15 + "00", id="entry id of 16 bytes"),
        pytest.param("08094a16 08" + "80" * 14 + "00" + "1204 0801 1000", id="consumer id of 15 bytes"),
    ],
)
def test_the_fast_path_refuses_whatever_protobuf_refuses(command: str) -> None:
    data = bytes.fromhex(command)
    assert hot.decode_usual_message(data, memoryview(b"body")) is None
    with pytest.raises(RemoteProtocolError):
        decode_command(Frame(memoryview(data), memoryview(b"body"), 0))


# Invalid commands.


@pytest.mark.parametrize(
    ("command", "body", "words"),
    [
        pytest.param("", None, "required fields type", id="empty"),
        pytest.param("ff", None, "cannot be parsed", id="no protobuf"),
        pytest.param("0812", None, "PING without its content", id="no content"),
        pytest.param(
            "0817ba0100", None, r"required fields lookup\.topic, lookup\.request_id", id="LOOKUP lacks required fields"
        ),
        pytest.param("08094a021001", b"body", "required fields message", id="MESSAGE lacks required fields"),
        pytest.param("08094a0808011204 08011001", None, "MESSAGE without a message", id="MESSAGE without body"),
        pytest.param("0806320408011001", None, "SEND without a message", id="SEND without body"),
        pytest.param("0812920100", b"body", "4 bytes after a command of type PING", id="PING with body"),
        pytest.param("0818c201042001 1809", None, "a field that cannot be", id="unknown kind of lookup answer"),
        pytest.param("0803 1a03 0a01ff", None, "(?i)utf-8", id="text that is not UTF-8"),
    ],
)
def test_invalid_commands_are_refused(command: str, body: bytes | None, words: str) -> None:
    frame = frame_of(encode_frame(bytes.fromhex(command), body))
    with pytest.raises(RemoteProtocolError, match=words):
        decode_command(frame)


@pytest.mark.parametrize("body", [None, b"body"])
@pytest.mark.parametrize("command_type", [0, 1, 39, 54, 69, 82, 1_000_000])
def test_an_unknown_command_is_named_by_its_type(command_type: int, body: bytes | None) -> None:
    data = encode_command(UnknownCommand(command_type))
    frame = frame_of(encode_frame(bytes(frame_of(data).command), body))
    assert decode_command(frame) == UnknownCommand(command_type)


@pytest.mark.parametrize(
    "command",
    [
        Flow(1, -1),
        Flow(1, 2**32),
        Flow(2**64, 1),
        Lookup("t", None),  # type: ignore[arg-type]
        Lookup(7, 1),  # type: ignore[arg-type]
        Ack(1, AckType.Individual, (MessageId(2**70, 1),)),
        GetTopicsOfNamespace(1, "\ud800"),
        Send(2**64, 0, b""),
        Send(1, 0, b"", num_messages=2**31),
    ],
)
def test_values_that_do_not_fit_the_protocol_are_local_errors(command: Command) -> None:
    with pytest.raises(LocalProtocolError, match=f"{type(command).__name__} cannot be sent"):
        encode_command(command)


def test_secrets_are_not_shown() -> None:
    shown = repr(Connect("v", b"s3cret")) + repr(AuthResponse("v", AuthData("token", b"s3cret")))
    assert "s3cret" not in shown


def test_commands_are_frozen_and_compare_by_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Success(1).request_id = 2  # type: ignore[misc]
    assert Success(1) == Success(1) != Success(2)
