"""Frames <-> commands: every command of Pulsar's protocol that is in use, as a frozen value, both ways.

A command has the fields of its protobuf message (`proto/pulsar.proto`) under the same names. What is None is not sent;
what a peer did not send has the default that stands here. A 64-bit id of 2^64-1, by which brokers say "none", is -1
here, in both directions.

MESSAGE is the hot path: it is a plain tuple, and its usual form is read without protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtobufMessage

from spark_mq_source.core.errors import CorruptMessageError, LocalProtocolError, RemoteProtocolError
from spark_mq_source.core.protobuf import FieldPairs
from spark_mq_source.core.varint import take_varint
from spark_mq_source.pulsar.protocol import _pb
from spark_mq_source.pulsar.protocol.wire import (
    BROKER_METADATA_MAGIC,
    CHECKSUM_MAGIC,
    Frame,
    encode_frame,
    encode_frame_head,
)

NO_ID: Final = -1
"""The id of nothing: 2^64-1 on the wire."""

_SIGN: Final = 1 << 63
_UINT64: Final = 1 << 64
_new_tuple = tuple.__new__


class CommandType(IntEnum):
    """`BaseCommand.Type`, the commands in use."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    UNSUBSCRIBE = 12
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    PARTITIONED_METADATA = 21
    PARTITIONED_METADATA_RESPONSE = 22
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    CONSUMER_STATS = 25
    CONSUMER_STATS_RESPONSE = 26
    REACHED_END_OF_TOPIC = 27
    SEEK = 28
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    ACTIVE_CONSUMER_CHANGE = 31
    GET_TOPICS_OF_NAMESPACE = 32
    GET_TOPICS_OF_NAMESPACE_RESPONSE = 33
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    NEW_TXN = 50
    NEW_TXN_RESPONSE = 51
    ADD_PARTITION_TO_TXN = 52
    ADD_PARTITION_TO_TXN_RESPONSE = 53
    END_TXN = 56
    END_TXN_RESPONSE = 57
    TC_CLIENT_CONNECT_REQUEST = 62
    TC_CLIENT_CONNECT_RESPONSE = 63
    TOPIC_MIGRATED = 68


class SubType(IntEnum):
    """How consumers share a subscription."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3


class InitialPosition(IntEnum):
    """Where a subscription begins when nothing else says so."""

    Latest = 0
    Earliest = 1


class PartitionedMetadataType(IntEnum):
    """Whether partition metadata was found."""

    Success = 0
    Failed = 1


class LookupType(IntEnum):
    """What a lookup answers: ask there, connect there, or an error."""

    Redirect = 0
    Connect = 1
    Failed = 2


class AckType(IntEnum):
    """One message, or everything up to it."""

    Individual = 0
    Cumulative = 1


class ProducerAccessMode(IntEnum):
    """Whether a topic takes messages of other producers at the same time."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class SchemaType(IntEnum):
    """What the values of a topic are, as far as this package writes it."""

    NONE = 0
    STRING = 1
    JSON = 2
    AVRO = 4


class TxnAction(IntEnum):
    """How a transaction ends."""

    COMMIT = 0
    ABORT = 1


class ResourceType(IntEnum):
    """Whose id TOPIC_MIGRATED carries."""

    Producer = 0
    Consumer = 1


class Mode(IntEnum):
    """Which topics of a namespace are listed."""

    PERSISTENT = 0
    NON_PERSISTENT = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class MessageId:
    """A message's id on the wire; (-1, -1) is the earliest one, and the last one of an empty topic."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    ack_set: tuple[int, ...] = ()
    batch_size: int | None = None
    first_chunk_message_id: MessageId | None = None


@dataclass(frozen=True, slots=True)
class FeatureFlags:
    """What one side can do beyond its protocol version."""

    supports_auth_refresh: bool = False
    supports_broker_entry_metadata: bool = False
    supports_partial_producer: bool = False
    supports_topic_watchers: bool = False
    supports_get_partitioned_metadata_without_auto_creation: bool = False


@dataclass(frozen=True, slots=True)
class AuthData:
    """One step of authentication."""

    auth_method_name: str = ""
    auth_data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Connect:
    """The client's first command."""

    client_version: str
    auth_data: bytes | None = field(default=None, repr=False)
    protocol_version: int = 0
    auth_method_name: str | None = None
    proxy_to_broker_url: str | None = None
    feature_flags: FeatureFlags | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker's answer to it.

    Attributes:
        max_message_size: in bytes; None where the broker does not say.
    """

    server_version: str
    protocol_version: int = 0
    max_message_size: int | None = None
    feature_flags: FeatureFlags | None = None


@dataclass(frozen=True, slots=True)
class AuthChallenge:
    """The broker asks again who we are, during the handshake or when a token expires."""

    server_version: str | None = None
    challenge: AuthData | None = None
    protocol_version: int = 0


@dataclass(frozen=True, slots=True)
class AuthResponse:
    """The answer to AUTH_CHALLENGE."""

    client_version: str | None = None
    response: AuthData | None = None
    protocol_version: int = 0


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the peer is there."""


@dataclass(frozen=True, slots=True)
class Pong:
    """It is."""


@dataclass(frozen=True, slots=True)
class PartitionedMetadata:
    """How many partitions a topic has; without `metadata_auto_creation_enabled=False` asking may create it."""

    topic: str
    request_id: int
    metadata_auto_creation_enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class PartitionedMetadataResponse:
    """The answer to PARTITIONED_METADATA.

    Attributes:
        partitions: 0 for a topic without partitions.
        error: the broker's code where `response` is Failed.
    """

    request_id: int
    partitions: int = 0
    response: PartitionedMetadataType = PartitionedMetadataType.Success
    error: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Which broker serves a topic."""

    topic: str
    request_id: int
    authoritative: bool = False
    advertised_listener_name: str | None = None


@dataclass(frozen=True, slots=True)
class LookupResponse:
    """The answer to LOOKUP.

    Attributes:
        authoritative: to be passed on when following a redirect.
        proxy_through_service_url: connect to the address in use, with `proxy_to_broker_url`, not to the broker.
    """

    request_id: int
    response: LookupType = LookupType.Redirect
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    authoritative: bool = False
    error: int | None = None
    message: str = ""
    proxy_through_service_url: bool = False


@dataclass(frozen=True, slots=True)
class GetTopicsOfNamespace:
    """Which topics a namespace (`tenant/name`) has."""

    request_id: int
    namespace: str
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class GetTopicsOfNamespaceResponse:
    """Full names, one a partition; none for a namespace that does not exist (seen on broker 4.0.8)."""

    request_id: int
    topics: tuple[str, ...] = ()
    filtered: bool = False
    topics_hash: str | None = None
    changed: bool = True


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Opens a consumer.

    Seen on broker 4.0.8:

    - `start_message_id` is inclusive and names a whole entry; durable subscriptions ignore it.
    - With `initial_position` Earliest a start past the end begins the topic again; Latest waits.
    - `force_topic_creation` is true unless it is sent as false.
    """

    topic: str
    subscription: str
    sub_type: SubType
    consumer_id: int
    request_id: int
    consumer_name: str | None = None
    durable: bool = True
    start_message_id: MessageId | None = None
    read_compacted: bool | None = None
    initial_position: InitialPosition = InitialPosition.Latest
    force_topic_creation: bool = True
    start_message_rollback_duration_sec: int | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """Lets the broker send so many more messages; 1 to 2^31-1."""

    consumer_id: int
    message_permits: int


class Message(NamedTuple):
    """One entry: a message, or a batch of them.

    Attributes:
        ack_set: words of 64 bits; where not empty, a 0 bit marks a message of the batch as acknowledged before.
        body: everything after the command (see wire.py), a view of the received bytes.
    """

    consumer_id: int
    ledger_id: int
    entry_id: int
    redelivery_count: int
    ack_set: tuple[int, ...]
    body: memoryview


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Deletes the subscription of a consumer, which is closed with it; refused while it has other consumers."""

    consumer_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class CloseConsumer:
    """Closes a consumer; from the broker, with `request_id` -1: it is closed, subscribe again.

    Attributes:
        assigned_broker_service_url: where the topic has gone, if the broker knows.
    """

    consumer_id: int
    request_id: int
    assigned_broker_service_url: str | None = None
    assigned_broker_service_url_tls: str | None = None


@dataclass(frozen=True, slots=True)
class GetLastMessageId:
    """Where the topic of a consumer ends."""

    consumer_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class GetLastMessageIdResponse:
    """The last message that can be delivered now, and where the subscription's cursor is."""

    last_message_id: MessageId
    request_id: int
    consumer_mark_delete_position: MessageId | None = None


@dataclass(frozen=True, slots=True)
class Seek:
    """Moves a subscription to a message or a publish time (ms); the broker closes its consumers first."""

    consumer_id: int
    request_id: int
    message_id: MessageId | None = None
    message_publish_time: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Asks for the statistics of a consumer; for one that is not open, the broker drops the connection."""

    request_id: int
    consumer_id: int


@dataclass(frozen=True, slots=True)
class ConsumerStatsResponse:
    """Statistics of a consumer and its subscription.

    Attributes:
        msg_backlog: entries from the cursor to the end; does not fall with reading, only with ACK (broker 4.0.8).
        error_code: the broker's code where the request failed.
    """

    request_id: int
    error_code: int | None = None
    error_message: str = ""
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    consumer_name: str = ""
    available_permits: int = 0
    unacked_messages: int = 0
    address: str = ""
    connected_since: str = ""
    type: str = ""
    msg_backlog: int = 0


@dataclass(frozen=True, slots=True)
class Success:
    """A request has succeeded."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Error:
    """A request has failed; `request_id` -1 means the connection itself."""

    request_id: int
    error: int
    message: str


@dataclass(frozen=True, slots=True)
class ReachedEndOfTopic:
    """The topic is terminated and everything in it acknowledged."""

    consumer_id: int


@dataclass(frozen=True, slots=True)
class TopicMigrated:
    """The topic lives in another cluster now."""

    resource_id: int
    resource_type: ResourceType
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveConsumerChange:
    """A failover subscription has another active consumer."""

    consumer_id: int
    is_active: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledges messages; answered only if it has a `request_id` and its consumer is open."""

    consumer_id: int
    ack_type: AckType
    message_ids: tuple[MessageId, ...] = ()
    request_id: int | None = None


@dataclass(frozen=True, slots=True)
class AckResponse:
    """The answer to ACK; never an error on broker 4.0.8, whatever was acknowledged."""

    consumer_id: int
    error: int | None = None
    message: str = ""
    request_id: int | None = None


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One of a schema's properties."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Schema:
    """What the values of a topic are.

    Attributes:
        name: for people; the broker replaces it by the topic's.
        schema_data: the definition: empty for a STRING, Avro's JSON for JSON and AVRO.
        type: `SchemaType`; a number, because a broker may know more.
    """

    name: str
    schema_data: bytes
    type: int
    properties: tuple[KeyValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Producer:
    """Opens a producer; a topic that does not exist is created where the broker may (seen on broker 4.0.8).

    Attributes:
        producer_name: None for one that the broker makes up, and answers; it is to be used again after a reconnect.
        epoch: counts the reconnects of a producer whose name the broker made up.
        topic_epoch: what PRODUCER_SUCCESS said, of an exclusive producer that reconnects.
    """

    topic: str
    producer_id: int
    request_id: int
    producer_name: str | None = None
    encrypted: bool | None = None
    schema: Schema | None = None
    epoch: int | None = None
    user_provided_producer_name: bool | None = None
    producer_access_mode: ProducerAccessMode | None = None
    topic_epoch: int | None = None
    txn_enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class ProducerSuccess:
    """The answer to PRODUCER.

    Attributes:
        last_sequence_id: the highest that the broker has stored from a producer of this name, where it deduplicates;
            -1 for none.
        schema_version: what messages of the producer's schema are to carry; empty where the topic has none.
        producer_ready: False while an exclusive producer waits for its turn; the same answer comes again then.
    """

    request_id: int
    producer_name: str
    last_sequence_id: int = -1
    schema_version: bytes = b""
    topic_epoch: int | None = None
    producer_ready: bool = True


class Send(NamedTuple):
    """Publishes one entry: a message, a batch of them, or a chunk of one.

    Seen on broker 4.0.8: on a producer that it has closed a SEND is ignored without a word; on one that the client has
    closed the connection is dropped.

    Attributes:
        sequence_id: of the message, or the first one of the batch.
        num_messages: of the batch; 1 for a message.
        highest_sequence_id: of the batch: its last one; without it a batch counts as its first message only.
        body: checksum, metadata and payload.
    """

    producer_id: int
    sequence_id: int
    body: bytes | bytearray | memoryview
    num_messages: int = 1
    highest_sequence_id: int | None = None
    txnid_least_bits: int | None = None
    txnid_most_bits: int | None = None
    is_chunk: bool = False


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """The broker has stored an entry.

    Attributes:
        message_id: where; (-1, -1) for a duplicate, which was dropped.
        highest_sequence_id: of a batch; -1 or 0 where SEND had none.
    """

    producer_id: int
    sequence_id: int
    message_id: MessageId | None = None
    highest_sequence_id: int = 0

    @property
    def is_duplicate(self) -> bool:
        """Whether the broker dropped the entry, whole: it had stored one with this or a higher sequence id."""
        return self.message_id is not None and self.message_id.ledger_id == NO_ID


@dataclass(frozen=True, slots=True)
class SendError:
    """The broker has not stored an entry.

    Attributes:
        sequence_id: of the message; of a batch the highest one (seen on broker 4.0.8).
    """

    producer_id: int
    sequence_id: int
    error: int
    message: str


@dataclass(frozen=True, slots=True)
class CloseProducer:
    """Closes a producer; from the broker (`request_id` -1) it means: look the topic up again.

    Attributes:
        assigned_broker_service_url: where the topic has gone, if the broker knows.
    """

    producer_id: int
    request_id: int
    assigned_broker_service_url: str | None = None
    assigned_broker_service_url_tls: str | None = None


@dataclass(frozen=True, slots=True)
class TcClientConnectRequest:
    """Has a broker load the transaction coordinator whose assignment topic it serves; needed once a load."""

    request_id: int
    tc_id: int


@dataclass(frozen=True, slots=True)
class TcClientConnectResponse:
    """The answer to TC_CLIENT_CONNECT_REQUEST."""

    request_id: int
    error: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class NewTxn:
    """Begins a transaction; a time to live that is 0 or unset has passed at once (seen on broker 4.0.8)."""

    request_id: int
    txn_ttl_millis: int
    tc_id: int


@dataclass(frozen=True, slots=True)
class NewTxnResponse:
    """The answer to NEW_TXN: the transaction's id, in two halves, the coordinator's being the most significant."""

    request_id: int
    txnid_least_bits: int = 0
    txnid_most_bits: int = 0
    error: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class AddPartitionToTxn:
    """Tells the coordinator which topic-partitions a transaction writes to; the broker does not check it (4.0.8)."""

    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddPartitionToTxnResponse:
    """The answer to ADD_PARTITION_TO_TXN."""

    request_id: int
    txnid_least_bits: int = 0
    txnid_most_bits: int = 0
    error: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Commits or aborts a transaction; one that has ended before is TransactionNotFound, however it ended."""

    request_id: int
    txnid_least_bits: int
    txnid_most_bits: int
    txn_action: TxnAction


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """The answer to END_TXN."""

    request_id: int
    txnid_least_bits: int = 0
    txnid_most_bits: int = 0
    error: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command we do not use or that a newer broker invented."""

    command_type: int


Command: TypeAlias = (
    Connect
    | Connected
    | AuthChallenge
    | AuthResponse
    | Ping
    | Pong
    | PartitionedMetadata
    | PartitionedMetadataResponse
    | Lookup
    | LookupResponse
    | GetTopicsOfNamespace
    | GetTopicsOfNamespaceResponse
    | Subscribe
    | Flow
    | Message
    | CloseConsumer
    | Unsubscribe
    | GetLastMessageId
    | GetLastMessageIdResponse
    | Seek
    | ConsumerStats
    | ConsumerStatsResponse
    | Success
    | Error
    | ReachedEndOfTopic
    | TopicMigrated
    | ActiveConsumerChange
    | Ack
    | AckResponse
    | Producer
    | ProducerSuccess
    | Send
    | SendReceipt
    | SendError
    | CloseProducer
    | TcClientConnectRequest
    | TcClientConnectResponse
    | NewTxn
    | NewTxnResponse
    | AddPartitionToTxn
    | AddPartitionToTxnResponse
    | EndTxn
    | EndTxnResponse
    | UnknownCommand
)

_COMMANDS: Final[dict[CommandType, type]] = {
    CommandType.CONNECT: Connect,
    CommandType.CONNECTED: Connected,
    CommandType.SUBSCRIBE: Subscribe,
    CommandType.PRODUCER: Producer,
    CommandType.SEND_RECEIPT: SendReceipt,
    CommandType.SEND_ERROR: SendError,
    CommandType.ACK: Ack,
    CommandType.FLOW: Flow,
    CommandType.SUCCESS: Success,
    CommandType.ERROR: Error,
    CommandType.CLOSE_PRODUCER: CloseProducer,
    CommandType.CLOSE_CONSUMER: CloseConsumer,
    CommandType.UNSUBSCRIBE: Unsubscribe,
    CommandType.PRODUCER_SUCCESS: ProducerSuccess,
    CommandType.PING: Ping,
    CommandType.PONG: Pong,
    CommandType.PARTITIONED_METADATA: PartitionedMetadata,
    CommandType.PARTITIONED_METADATA_RESPONSE: PartitionedMetadataResponse,
    CommandType.LOOKUP: Lookup,
    CommandType.LOOKUP_RESPONSE: LookupResponse,
    CommandType.CONSUMER_STATS: ConsumerStats,
    CommandType.CONSUMER_STATS_RESPONSE: ConsumerStatsResponse,
    CommandType.REACHED_END_OF_TOPIC: ReachedEndOfTopic,
    CommandType.SEEK: Seek,
    CommandType.GET_LAST_MESSAGE_ID: GetLastMessageId,
    CommandType.GET_LAST_MESSAGE_ID_RESPONSE: GetLastMessageIdResponse,
    CommandType.ACTIVE_CONSUMER_CHANGE: ActiveConsumerChange,
    CommandType.GET_TOPICS_OF_NAMESPACE: GetTopicsOfNamespace,
    CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE: GetTopicsOfNamespaceResponse,
    CommandType.AUTH_CHALLENGE: AuthChallenge,
    CommandType.AUTH_RESPONSE: AuthResponse,
    CommandType.ACK_RESPONSE: AckResponse,
    CommandType.NEW_TXN: NewTxn,
    CommandType.NEW_TXN_RESPONSE: NewTxnResponse,
    CommandType.ADD_PARTITION_TO_TXN: AddPartitionToTxn,
    CommandType.ADD_PARTITION_TO_TXN_RESPONSE: AddPartitionToTxnResponse,
    CommandType.END_TXN: EndTxn,
    CommandType.END_TXN_RESPONSE: EndTxnResponse,
    CommandType.TC_CLIENT_CONNECT_REQUEST: TcClientConnectRequest,
    CommandType.TC_CLIENT_CONNECT_RESPONSE: TcClientConnectResponse,
    CommandType.TOPIC_MIGRATED: TopicMigrated,
}
_TYPES: Final = {command: command_type for command_type, command in _COMMANDS.items()}
# In these parts most fields are unset most of the time; in commands, what is set is said.
_PAIRS: Final = FieldPairs(leave_defaults_out={MessageId, FeatureFlags})


def encode_command(command: Command) -> bytes:
    """The frame of a command.

    Raises:
        LocalProtocolError: a field does not fit the protocol.

    Example:
        >>> encode_command(Flow(consumer_id=1, message_permits=1000)).hex(" ", -4)
        '0000000d 00000009 080b5a05 080110e8 07'
    """
    base = _pb.BaseCommand()
    body = None
    try:
        if isinstance(command, Message):
            base.type = CommandType.MESSAGE
            _fill_message(base.message, command)
            body = command.body
        elif isinstance(command, Send):
            return encode_send(command) + command.body
        elif isinstance(command, UnknownCommand):
            base.type = command.command_type
        else:
            command_type = _TYPES[type(command)]
            base.type = command_type
            part: ProtobufMessage = getattr(base, command_type.name.lower())
            part.SetInParent()
            _PAIRS.fill(part, command)
        return encode_frame(base.SerializeToString(), body)
    except (EncodeError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"{type(command).__name__} cannot be sent: {error}") from error


def encode_send(send: Send) -> bytes:
    """The beginning of a SEND's frame, which its body follows: so that a large one need not be copied for it.

    Raises:
        LocalProtocolError: a field does not fit the protocol, or the body is larger than a frame can say.

    Example:
        >>> encode_send(Send(producer_id=1, sequence_id=7, body=b"body")).hex(" ", -4)
        '00000010 00000008 08063204 08011007'
    """
    base = _pb.BaseCommand(type=CommandType.SEND)
    message = base.send
    try:
        message.producer_id = send.producer_id
        message.sequence_id = send.sequence_id % _UINT64
        if send.num_messages != 1:
            message.num_messages = send.num_messages
        if send.txnid_least_bits is not None:
            message.txnid_least_bits = send.txnid_least_bits
        if send.txnid_most_bits is not None:
            message.txnid_most_bits = send.txnid_most_bits
        if send.highest_sequence_id is not None:
            message.highest_sequence_id = send.highest_sequence_id
        if send.is_chunk:
            message.is_chunk = True
        return encode_frame_head(base.SerializeToString(), len(send.body))
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"Send cannot be sent: {error}") from error


def decode_command(frame: Frame) -> Command:
    """The command of a frame.

    Raises:
        RemoteProtocolError: it cannot be parsed, or lacks what the protocol requires.

    Example:
        >>> from spark_mq_source.pulsar.protocol.wire import take_frame
        >>> decode_command(take_frame(memoryview(encode_command(Success(7))), 0, 100))
        Success(request_id=7)
    """
    data = bytes(frame.command)
    body = frame.body
    if body is not None and data[:3] == _MESSAGE_PREFIX:
        message = _decode_usual_message(data, body)
        if message is not None:
            return message
    return _decode_any(data, body)


def count_messages(body: memoryview) -> int:
    """How many messages an entry holds: what the broker charges against the permits of a consumer.

    Not for the hot path. A body that cannot be read counts as one message, which is what it can least be.

    Example:
        >>> metadata = bytes.fromhex("0a0170 1000 1801 5803")  # producer "p", sequence 0, time 1, a batch of 3
        >>> count_messages(memoryview(len(metadata).to_bytes(4, "big") + metadata))
        3
    """
    at = 0
    if body[:2] == BROKER_METADATA_MAGIC:
        at = 6 + int.from_bytes(body[2:6], "big")
    if body[at : at + 2] == CHECKSUM_MAGIC:
        at += 6
    size = int.from_bytes(body[at : at + 4], "big")
    try:
        return _pb.MessageMetadata.FromString(bytes(body[at + 4 : at + 4 + size])).num_messages_in_batch
    except (DecodeError, ValueError):
        return 1


# The usual MESSAGE, 99.99 % of what is received. Fields in order, no redelivery count and no ack_set:
#   08 09                      BaseCommand.type = MESSAGE
#   4a <size>                  BaseCommand.message
#     08 <varint>              consumer_id
#     12 <size>                message_id
#       08 <varint>            ledger_id
#       10 <varint>            entry_id
#       [18 <varint>]          partition; -1 takes ten bytes
# Anything else, whatever it is, goes to protobuf, so nothing here has to be an error.
_MESSAGE_PREFIX: Final = b"\x08\x09\x4a"
_NO_PARTITION: Final = b"\x18" + b"\xff" * 9 + b"\x01"
_CONSUMER_ID, _MESSAGE_ID, _LEDGER_ID, _ENTRY_ID, _PARTITION = 0x08, 0x12, 0x08, 0x10, 0x18
_MORE: Final = 0x80
_MAX_USUAL_BYTES: Final = 64
"""A usual MESSAGE has 50 bytes at most; sizes below 128 are varints of one byte, which is relied upon."""
_MAX_USUAL_SHIFT: Final = 56
"""Longer varints are ids from 2^63 on, which are negative here, or broken."""
_PARTITION_FIELD_BYTES: Final = (2, 3)


def _decode_usual_message(data: bytes, body: memoryview) -> Message | None:  # noqa: PLR0911, PLR0912 - one a doubt
    # A third of the time that protobuf and the reading of its objects take; hence the varints written out.
    size = len(data)
    if size > _MAX_USUAL_BYTES:
        return None
    try:
        if data[3] != size - 4 or data[4] != _CONSUMER_ID:
            return None
        consumer_id = data[5]
        at = 6
        if consumer_id >= _MORE:
            consumer_id, at = take_varint(data, 5, size)
            if consumer_id >> 63:
                return None
        if data[at] != _MESSAGE_ID or data[at + 1] != size - at - 2 or data[at + 2] != _LEDGER_ID:
            return None
        ledger_id = data[at + 3]
        at += 4
        if ledger_id >= _MORE:
            ledger_id &= 0x7F
            shift = 7
            while (byte := data[at]) >= _MORE:
                ledger_id |= (byte & 0x7F) << shift
                shift += 7
                at += 1
            ledger_id |= byte << shift
            at += 1
            if shift > _MAX_USUAL_SHIFT:
                return None
        if data[at] != _ENTRY_ID:
            return None
        entry_id = data[at + 1]
        at += 2
        if entry_id >= _MORE:
            entry_id &= 0x7F
            shift = 7
            while (byte := data[at]) >= _MORE:
                entry_id |= (byte & 0x7F) << shift
                shift += 7
                at += 1
            entry_id |= byte << shift
            at += 1
            if shift > _MAX_USUAL_SHIFT:
                return None
    except (IndexError, CorruptMessageError):
        return None
    if at == size or data[at:] == _NO_PARTITION or _is_partition(data[at:]):
        return _new_tuple(Message, (consumer_id, ledger_id, entry_id, 0, (), body))
    return None


def _is_partition(rest: bytes) -> bool:
    size = len(rest)
    return (
        size in _PARTITION_FIELD_BYTES
        and rest[0] == _PARTITION
        and rest[-1] < _MORE
        and (size == _PARTITION_FIELD_BYTES[0] or rest[1] >= _MORE)
    )


def _decode_any(data: bytes, body: memoryview | None) -> Command:
    base = _pb.BaseCommand()
    try:
        base.MergeFromString(data)
    except (DecodeError, ValueError) as error:
        raise RemoteProtocolError(
            f"a command of {len(data)} bytes cannot be parsed ({error}): a damaged stream, or not Pulsar's protocol"
        ) from error
    if not base.IsInitialized():
        # The Python runtimes parse a message without its required fields, though they refuse to write it.
        missing = base.FindInitializationErrors()  # type: ignore[attr-defined]  # absent from the stubs only
        raise RemoteProtocolError(f"a command without its required fields {', '.join(missing)}")
    try:
        command_type = CommandType(base.type)
    except ValueError:
        return UnknownCommand(base.type)
    name = command_type.name.lower()
    if not base.HasField(name):
        raise RemoteProtocolError(f"a command of type {command_type.name} without its content")
    if command_type in {CommandType.MESSAGE, CommandType.SEND}:
        if body is None:
            raise RemoteProtocolError(f"a {command_type.name} without a message")
        return _message_of(base.message, body) if command_type is CommandType.MESSAGE else _send_of(base.send, body)
    if body is not None:
        raise RemoteProtocolError(
            f"{len(body)} bytes after a command of type {command_type.name}, which has no payload"
        )
    try:
        command: Command = _PAIRS.value_of(getattr(base, name), _COMMANDS[command_type])  # type: ignore[assignment]
    except ValueError as error:
        raise RemoteProtocolError(
            f"a command of type {command_type.name} has a field that cannot be: {error}"
        ) from error
    return command


def _message_of(message: _pb.CommandMessage, body: memoryview) -> Message:
    message_id = message.message_id
    return Message(
        message.consumer_id,
        _signed(message_id.ledger_id),
        _signed(message_id.entry_id),
        message.redelivery_count,
        tuple(message.ack_set),
        body,
    )


def _send_of(send: _pb.CommandSend, body: memoryview) -> Send:
    return Send(
        send.producer_id,
        _signed(send.sequence_id),
        body,
        send.num_messages,
        send.highest_sequence_id if send.HasField("highest_sequence_id") else None,
        send.txnid_least_bits if send.HasField("txnid_least_bits") else None,
        send.txnid_most_bits if send.HasField("txnid_most_bits") else None,
        send.is_chunk,
    )


def _fill_message(message: _pb.CommandMessage, command: Message) -> None:
    message.consumer_id = command.consumer_id
    message.message_id.ledger_id = command.ledger_id % _UINT64
    message.message_id.entry_id = command.entry_id % _UINT64
    if command.redelivery_count:
        message.redelivery_count = command.redelivery_count
    message.ack_set.extend(command.ack_set)


def _signed(value: int) -> int:
    return value - _UINT64 if value >= _SIGN else value
