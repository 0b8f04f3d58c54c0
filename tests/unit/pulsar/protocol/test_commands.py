from __future__ import annotations

import dataclasses
import re

import pytest
from google.protobuf import text_format

from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.pulsar.protocol import codec, commands, hot
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command, encode_send
from spark_mq_source.pulsar.protocol.commands import (
    Ack,
    AckType,
    ActiveConsumerChange,
    AddPartitionToTxn,
    AddPartitionToTxnResponse,
    AuthChallenge,
    AuthData,
    AuthResponse,
    CloseConsumer,
    CloseProducer,
    Command,
    Connect,
    Connected,
    ConsumerStats,
    EndTxn,
    EndTxnResponse,
    Error,
    FeatureFlags,
    Flow,
    GetLastMessageId,
    GetLastMessageIdResponse,
    GetTopicsOfNamespace,
    GetTopicsOfNamespaceResponse,
    InitialPosition,
    Lookup,
    LookupResponse,
    LookupType,
    Message,
    MessageId,
    Mode,
    NewTxn,
    NewTxnResponse,
    PartitionedMetadata,
    PartitionedMetadataResponse,
    PartitionedMetadataType,
    Ping,
    Pong,
    Producer,
    ProducerAccessMode,
    ProducerSuccess,
    ReachedEndOfTopic,
    ResourceType,
    Schema,
    SchemaType,
    Seek,
    Send,
    SendError,
    SendReceipt,
    Subscribe,
    SubType,
    Success,
    TcClientConnectRequest,
    TcClientConnectResponse,
    TopicMigrated,
    TxnAction,
    UnknownCommand,
    Unsubscribe,
)
from spark_mq_source.pulsar.protocol.metadata import count_messages
from spark_mq_source.pulsar.protocol.wire import Frame, encode_frame, take_frame
from tests.protobuf import pulsar as pb
from tests.vectors import RecordedFrame, pulsar_frames

LIMIT = 1 << 20
KNOWN = {name.upper() for name in codec._NAMES.values()}
FRAMES = pulsar_frames()

# What no recording holds; bytes of it are to be written from the field numbers by hand.
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
def test_a_recorded_frame_is_the_command_its_recording_says(recorded: RecordedFrame) -> None:
    command = decode(recorded.data)
    if recorded.kind not in KNOWN:
        assert isinstance(command, UnknownCommand)
        return
    assert type(command).__name__.upper() == recorded.kind.replace("_", "")
    # What we encode of it means the same to protobuf, apart from defaults that one of the two leaves unsaid.
    again = frame_of(encode_command(command))
    assert with_defaults(again.command) == with_defaults(without_partition(frame_of(recorded.data).command))
    assert decode_command(again) == command


def without_partition(command: memoryview) -> memoryview:
    """A MESSAGE does not keep its partition: who subscribed knows it."""
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
        "partition metadata: partitioned",
        "PARTITIONED_METADATA",
        PartitionedMetadata("persistent://public/x/part", 1, metadata_auto_creation_enabled=False),
    ),
    ("lookup: tenant absent", "LOOKUP", Lookup("persistent://nope/ns/t", 6)),
    ("topics of namespace", "GET_TOPICS_OF_NAMESPACE", GetTopicsOfNamespace(8, "public/ttl")),
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
    ("get last message id (after null value message)", "GET_LAST_MESSAGE_ID", GetLastMessageId(1, 3)),
    ("consumer stats", "CONSUMER_STATS", ConsumerStats(4, 1)),
    ("flow + messages with 0x0e02", "FLOW", Flow(1, 1000)),
    ("ack cumulative with request_id", "ACK", Ack(1, AckType.Cumulative, (MessageId(142, 1),), request_id=5)),
    ("seek by message id", "SEEK", Seek(1, 7, MessageId(141, 0))),
    ("close consumer by client", "CLOSE_CONSUMER", CloseConsumer(1, 3)),
    ("unsubscribe", "UNSUBSCRIBE", Unsubscribe(0, 1)),
    ("producer create", "PRODUCER", Producer("persistent://public/x/vec1795232364067812328", 1, 2)),
    (
        "producer: ProducerBusy",
        "PRODUCER",
        Producer(
            "persistent://public/x/vec1795232364067812328",
            producer_id=1,
            request_id=2,
            producer_name="pn",
            user_provided_producer_name=True,
        ),
    ),
    (
        "producer create with schema (STRING)",
        "PRODUCER",
        Producer(
            "persistent://public/x/vecs1795232367793016347",
            producer_id=1,
            request_id=2,
            schema=Schema("s", b"", SchemaType.STRING),
        ),
    ),
    (
        "java messages",  # a current client says more of its producers
        "PRODUCER",
        Producer(
            "persistent://public/tests/java",
            producer_id=0,
            request_id=916098650926766540,
            encrypted=False,
            epoch=0,
            user_provided_producer_name=False,
            producer_access_mode=ProducerAccessMode.Shared,
            txn_enabled=False,
        ),
    ),
    ("producer close", "CLOSE_PRODUCER", CloseProducer(1, 3)),
    (TRANSACTION, "TC_CLIENT_CONNECT_REQUEST", TcClientConnectRequest(1, tc_id=0)),
    (TRANSACTION, "NEW_TXN", NewTxn(2, txn_ttl_millis=60_000, tc_id=0)),
    (
        TRANSACTION,
        "ADD_PARTITION_TO_TXN",
        AddPartitionToTxn(3, 33, 0, ("persistent://public/x/vecx1795232367836267258",)),
    ),
    (TRANSACTION, "END_TXN", EndTxn(6, 33, 0, TxnAction.COMMIT)),
    ("ping/pong", "PING", Ping()),
    ("auth challenge (token expired, supports_auth_refresh)", "PONG", Pong()),
    (
        "auth challenge (token expired, supports_auth_refresh)",
        "AUTH_RESPONSE",
        AuthResponse(
            "raw-1",
            AuthData(
                "token",
                b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiAiYWRtaW4iLCAiZXhwIjogMTc5NTIzNjI0OH0."
                b"z7laDcqm8xWZJgD6M0yuhNMgDkGzA-7OoN-_BtMUg0w",
            ),
            19,
        ),
    ),
]

RECEIVED = [
    (
        "partition metadata: partitioned",
        "PARTITIONED_METADATA_RESPONSE",
        PartitionedMetadataResponse(1, 3, PartitionedMetadataType.Success),
    ),
    (
        "partition metadata: topic absent, auto-creation off",
        "PARTITIONED_METADATA_RESPONSE",
        PartitionedMetadataResponse(3, 0, PartitionedMetadataType.Failed, error=11),
    ),
    (
        "lookup",
        "LOOKUP_RESPONSE",
        LookupResponse(
            5,
            LookupType.Connect,
            "pulsar://127.0.0.1:16650",
            "pulsar+ssl://127.0.0.1:16651",
            authoritative=True,
            proxy_through_service_url=True,
        ),
    ),
    (
        "lookup: namespace absent",
        "LOOKUP_RESPONSE",
        LookupResponse(7, LookupType.Failed, error=11, message="Namespace not found"),
    ),
    (
        "topics of namespace: absent",
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        GetTopicsOfNamespaceResponse(9, topics_hash="00000000"),
    ),
    (
        "get last message id: empty topic",
        "GET_LAST_MESSAGE_ID_RESPONSE",
        GetLastMessageIdResponse(MessageId(-1, -1), 3, MessageId(143, -1)),
    ),
    ("close consumer by broker (topic unload)", "CLOSE_CONSUMER", CloseConsumer(1, -1)),
    ("producer create", "PRODUCER_SUCCESS", ProducerSuccess(2, "standalone-0-33")),
    ("producer create: deduplication on, reconnect", "PRODUCER_SUCCESS", ProducerSuccess(2, "dp", last_sequence_id=1)),
    (
        "producer create with schema (STRING)",
        "PRODUCER_SUCCESS",
        ProducerSuccess(2, "standalone-0-36", schema_version=bytes(8)),
    ),
    ("send: batch of 3", "SEND_RECEIPT", SendReceipt(1, 1, MessageId(141, 1), 3)),
    ("send receipt: duplicate (deduplication on)", "SEND_RECEIPT", SendReceipt(1, 1, MessageId(-1, -1), -1)),
    ("send error: bad checksum", "SEND_ERROR", SendError(1, 41, 9, "Checksum failed on the broker")),
    ("close producer by broker (topic unload)", "CLOSE_PRODUCER", CloseProducer(1, -1)),
    (TRANSACTION, "TC_CLIENT_CONNECT_RESPONSE", TcClientConnectResponse(1)),
    (TRANSACTION, "NEW_TXN_RESPONSE", NewTxnResponse(2, 33, 0)),
    (TRANSACTION, "ADD_PARTITION_TO_TXN_RESPONSE", AddPartitionToTxnResponse(3, 33, 0)),
    (TRANSACTION, "END_TXN_RESPONSE", EndTxnResponse(6, 33, 0)),
    (
        "transaction: end again",
        "END_TXN_RESPONSE",
        EndTxnResponse(7, 33, 0, 24, "The transaction with this txdID `(0,33)`not found "),
    ),
    ("reached end of topic (terminated, empty)", "REACHED_END_OF_TOPIC", ReachedEndOfTopic(1)),
    (
        "auth challenge (token expired, supports_auth_refresh)",
        "AUTH_CHALLENGE",
        AuthChallenge(challenge=AuthData("token", b"PulsarAuthRefresh"), protocol_version=19),
    ),
    ("connect: token for another key", "ERROR", Error(-1, 3, "Failed to authenticate")),
    ("ack cumulative with request_id", "ACK_RESPONSE", commands.AckResponse(1, request_id=5)),
    ("seek by message id", "SUCCESS", Success(7)),
    (
        "topics by mode",
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        GetTopicsOfNamespaceResponse(1, ("persistent://public/default/one",), topics_hash="ce3fb625"),
    ),
]


@pytest.mark.parametrize(("case", "kind", "command"), SENT, ids=lambda value: value if isinstance(value, str) else "")
def test_what_we_encode_is_what_a_broker_accepted(case: str, kind: str, command: Command) -> None:
    assert encode_command(command).hex() == find(case, kind).hex()


@pytest.mark.parametrize(
    ("case", "kind", "command"), RECEIVED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_a_broker_sent_is_understood(case: str, kind: str, command: Command) -> None:
    assert decode(find(case, kind)) == command


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
    # The raw client says of a message that it is one, which is left unsaid here.
    if "num_messages: 1" not in next(f.text for f in FRAMES if f.data == data):
        assert encode_command(recorded) == data
    assert encode_send(recorded) + bytes(recorded.body) == encode_command(recorded)


def test_a_receipt_says_whether_the_entry_was_stored() -> None:
    case = "send receipt: duplicate (deduplication on)"
    assert [receipt.is_duplicate for receipt in decode_all(case, "SEND_RECEIPT")] == [True]
    stored = [r for r in decode_all("send: batch of 3", "SEND_RECEIPT") if isinstance(r, SendReceipt)]
    assert [receipt.is_duplicate for receipt in stored] == [False]


def test_connected_and_statistics_as_a_broker_sent_them() -> None:
    connected = decode(find("connect (protocol 19, supports_broker_entry_metadata)", "CONNECTED"))
    assert isinstance(connected, Connected)
    assert (connected.server_version, connected.protocol_version) == ("Pulsar Server4.0.8", 19)
    assert connected.max_message_size == 5242880
    assert connected.feature_flags is not None
    assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    stats = decode(find("consumer stats", "CONSUMER_STATS_RESPONSE"))
    assert isinstance(stats, commands.ConsumerStatsResponse)
    assert (stats.msg_backlog, stats.type, stats.error_code) == (12, "Exclusive", None)


def test_a_failover_subscription_names_its_active_consumer() -> None:
    changes = decode_all("failover", "ACTIVE_CONSUMER_CHANGE")
    assert changes == [
        ActiveConsumerChange(1, is_active=False),
        ActiveConsumerChange(0, is_active=True),
        ActiveConsumerChange(1, is_active=True),
    ]


def test_a_migrated_topic_as_a_broker_announced_it() -> None:
    (migrated,) = decode_all("migrated", "TOPIC_MIGRATED")
    assert isinstance(migrated, TopicMigrated)
    assert (migrated.resource_id, migrated.resource_type) == (0, ResourceType.Consumer)
    assert str(migrated.broker_service_url).startswith("pulsar://127.0.0.1:")
    assert migrated.broker_service_url_tls == "pulsar+ssl://127.0.0.1:6651"


def test_a_seek_by_time_as_an_official_client_sends_it() -> None:
    (seek,) = decode_all("seek by time", "SEEK")
    assert isinstance(seek, Seek)
    assert seek.message_id is None
    assert seek.message_publish_time is not None
    assert encode_command(seek) == find("seek by time", "SEEK")


def test_an_acknowledged_message_of_a_batch_is_left_out_of_the_ack_set() -> None:
    whole, again, reopened = decode_all("batch index", "MESSAGE")
    assert isinstance(whole, Message)
    assert isinstance(again, Message)
    assert isinstance(reopened, Message)
    assert (whole.redelivery_count, whole.ack_set) == (0, ())
    assert (again.redelivery_count, again.ack_set) == (1, (0b101,))
    assert (reopened.redelivery_count, reopened.ack_set) == (0, (0b101,))
    ack = find("batch index", "ACK")
    position = MessageId(whole.ledger_id, whole.entry_id, ack_set=(0b101,))
    assert decode(ack) == Ack(0, AckType.Individual, (position,))
    assert encode_command(decode(ack)) == ack


def test_a_redelivery_as_an_official_client_asks_for_it() -> None:
    asked = commands.RedeliverUnacknowledgedMessages(0, (MessageId(6, 0),))
    assert encode_command(asked) == find("batch index", "REDELIVER_UNACKNOWLEDGED_MESSAGES")


def test_the_priority_of_a_consumer_as_an_official_client_sends_it() -> None:
    first, second = decode_all("failover", "SUBSCRIBE")
    assert isinstance(first, Subscribe)
    assert isinstance(second, Subscribe)
    assert [(one.consumer_name, one.priority_level) for one in (first, second)] == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_of_a_list_of_topics_as_an_official_client_sends_it(mode: Mode) -> None:
    asked = GetTopicsOfNamespace(1, "public/default", mode)
    assert find_all("topics by mode", "GET_TOPICS_OF_NAMESPACE")[mode] == encode_command(asked)


def test_a_proxy_is_told_which_broker() -> None:
    lookup = decode(find("proxy", "LOOKUP_RESPONSE"))
    assert isinstance(lookup, LookupResponse)
    assert lookup.response == LookupType.Connect
    assert lookup.proxy_through_service_url
    # A proxy says so, whatever it is (seen on proxy 4.0.8, without TLS).
    assert lookup.broker_service_url_tls == lookup.broker_service_url
    first, second = decode_all("proxy", "CONNECT")
    assert isinstance(first, Connect)
    assert isinstance(second, Connect)
    assert first.proxy_to_broker_url is None
    assert f"pulsar://{second.proxy_to_broker_url}" == lookup.broker_service_url
    # The proxy itself knows no size of messages; the broker behind it does.
    sizes = [answer.max_message_size for answer in decode_all("proxy", "CONNECTED") if isinstance(answer, Connected)]
    assert sizes == [None, 1024]


def test_a_redirect_is_followed_with_what_it_says() -> None:
    redirect = decode(find("lookup redirect, at the second broker", "LOOKUP_RESPONSE"))
    assert isinstance(redirect, LookupResponse)
    assert redirect.response == LookupType.Redirect
    assert not redirect.authoritative
    assert not redirect.proxy_through_service_url
    assert str(redirect.broker_service_url).startswith("pulsar://127.0.0.1:")
    followed = find("lookup redirect, at the first broker", "LOOKUP")
    lookup = Lookup("persistent://public/fresh/topic", 3, advertised_listener_name="recorded")
    assert decode(followed) == lookup
    connect = decode(find("lookup redirect, at the first broker", "LOOKUP_RESPONSE"))
    assert isinstance(connect, LookupResponse)
    assert (connect.response, connect.authoritative) == (LookupType.Connect, True)


def test_a_broker_that_gives_a_topic_away_names_the_next_one() -> None:
    (close,) = [decode(f.data) for f in FRAMES if f.case.startswith("topic moves") and f.kind == "CLOSE_CONSUMER"]
    assert isinstance(close, CloseConsumer)
    assert (close.consumer_id, close.request_id, close.assigned_broker_service_url_tls) == (0, -1, None)
    assert str(close.assigned_broker_service_url).startswith("pulsar://127.0.0.1:")


def test_every_command_has_been_recorded_but_those_listed() -> None:
    assert KNOWN - {frame.kind for frame in FRAMES} == NOT_RECORDED


# MESSAGE.


def recorded_messages() -> list[RecordedFrame]:
    return [frame for frame in FRAMES if frame.kind == "MESSAGE"]


@pytest.mark.parametrize("recorded", recorded_messages(), ids=str)
def test_the_fast_way_and_protobuf_agree_on_a_recorded_message(recorded: RecordedFrame) -> None:
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


def test_a_body_is_not_copied() -> None:
    data = memoryview(find("flow + messages with 0x0e02", "MESSAGE"))
    frame = take_frame(data, 0, LIMIT)
    assert frame is not None
    message = decode_command(frame)
    assert isinstance(message, Message)
    assert message.body.obj is data.obj


@pytest.mark.parametrize("partition", [None, -1, 0, 5, 127, 128, 9999])
@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, 2**32, 2**56, 2**63 - 1])
def test_ids_of_every_length_are_read_the_fast_way(number: int, partition: int | None) -> None:
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


def test_the_unusual_message_is_read_through_protobuf() -> None:
    message = Message(1, 2, 3, 4, (5, -1), memoryview(b"body"))
    frame = frame_of(encode_command(message))
    assert hot.decode_usual_message(bytes(frame.command), memoryview(b"body")) is None
    assert decode_command(frame) == message


@pytest.mark.parametrize("ids", [(-1, -1), (5, -1), (-1, 0)])
def test_an_id_of_nothing_is_minus_one_both_ways(ids: tuple[int, int]) -> None:
    message = Message(1, *ids, 0, (), memoryview(b"body"))
    assert decode(encode_command(message)) == message


def test_messages_of_an_entry_are_counted() -> None:
    counts = []
    for recorded in recorded_messages():
        body = frame_of(recorded.data).body
        assert body is not None
        counts.append(count_messages(body))
        said = recorded.text.partition("num_messages_in_batch: ")[2]
        assert counts[-1] == int(said[0] if said else 1)
    assert max(counts) == 3
    assert count_messages(memoryview(b"")) == 1
    assert count_messages(memoryview(b"\x0e\x01garbage, whatever it is")) == 1


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
def test_what_protobuf_refuses_the_fast_way_does_not_take(command: str) -> None:
    data = bytes.fromhex(command)
    assert hot.decode_usual_message(data, memoryview(b"body")) is None
    with pytest.raises(RemoteProtocolError):
        decode_command(Frame(memoryview(data), memoryview(b"body"), 0))


# What is wrong.


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
def test_what_cannot_be_a_command_is_refused(command: str, body: bytes | None, words: str) -> None:
    frame = frame_of(encode_frame(bytes.fromhex(command), body))
    with pytest.raises(RemoteProtocolError, match=words):
        decode_command(frame)


@pytest.mark.parametrize("body", [None, b"body"])
@pytest.mark.parametrize("command_type", [0, 1, 39, 54, 69, 82, 1_000_000])
def test_a_command_we_do_not_know_is_named_by_its_type(command_type: int, body: bytes | None) -> None:
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
def test_what_does_not_fit_the_protocol_is_our_error(command: Command) -> None:
    with pytest.raises(LocalProtocolError, match=f"{type(command).__name__} cannot be sent"):
        encode_command(command)


def test_secrets_are_not_shown() -> None:
    shown = repr(Connect("v", b"s3cret")) + repr(AuthResponse("v", AuthData("token", b"s3cret")))
    assert "s3cret" not in shown


def test_commands_are_frozen_and_compare_by_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Success(1).request_id = 2  # type: ignore[misc]
    assert Success(1) == Success(1) != Success(2)
