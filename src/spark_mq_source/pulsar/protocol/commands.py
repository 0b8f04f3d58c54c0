"""The commands of Pulsar's protocol in use, as frozen values that declare the numbers of their fields.

Numbers, types and defaults are those of `PulsarApi.proto` in apache/pulsar (the protocol of brokers 2.x to 4.x; brokers
4.0 know commands up to type 68). Unused fields are omitted, and skipped when read. Field names are our own: they are
not transmitted. None is not sent; a field that a peer did not send has the default declared here. A 64-bit id of
2^64-1, by which brokers encode "none", is -1 here, in both directions.

Enums are int32 on the wire; a protobuf enum would hide the values that a newer broker adds.

MESSAGE and SEND are plain tuples: one is created for every entry. So are the ids of `AckEntries`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias, TypedDict, TypeVar

from spark_mq_source.core.protobuf import Int32, Int64, Uint32, Uint64

_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[_T], _T]:
        """Leave a decorator as it is: only type checkers read this one."""
        return lambda decorator: decorator


NO_ID: Final = -1
"""The absent id: 2^64-1 on the wire."""

COMMAND_TYPES: Final[dict[type, int]] = {}
"""Every command in use, with its number in `BaseCommand.Type`, which is also the number of its field."""

NEEDED_VERSIONS: Final[dict[type, int]] = {}
"""The protocol versions from which on brokers know the commands that were added later (`ProtocolVersion`)."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _command(command_type: int, *, since: int = 0) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that makes a class the command of this type, and a frozen dataclass.

    `since` is the protocol version that added a command of clients.
    """

    def declare(kind: type[_T]) -> type[_T]:
        declared = dataclass(frozen=True, slots=True)(kind)
        COMMAND_TYPES[declared] = command_type
        if since:
            NEEDED_VERSIONS[declared] = since
        return declared

    return declare


class Handshake:
    """A command that a connection sends and answers itself."""

    __slots__ = ()


class Request:
    """A command that users of a connection send."""

    __slots__ = ()


class Response:
    """The answer to the request `request_id`."""

    __slots__ = ()
    request_id: int | None


class Notice:
    """A command that a broker sends without a request."""

    __slots__ = ()


class SubType(IntEnum):
    """Way in which consumers share a subscription."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3


class InitialPosition(IntEnum):
    """Start of a subscription that is created."""

    Latest = 0
    Earliest = 1


class LookupType(IntEnum):
    """Result of a lookup: ask there, connect there, or an error."""

    Redirect = 0
    Connect = 1
    Failed = 2


class AckType(IntEnum):
    """Scope of an acknowledgement: one message, or everything up to it."""

    Individual = 0
    Cumulative = 1


class ValidationError(IntEnum):
    """Reason why an acknowledged message could not be read, for the broker's log and statistics."""

    UncompressedSizeCorruption = 0
    DecompressionError = 1
    ChecksumMismatch = 2
    BatchDeSerializeError = 3
    DecryptionError = 4


class KeySharedMode(IntEnum):
    """Division of the keys of a Key_Shared subscription: by the broker, or by the consumers' ranges."""

    AUTO_SPLIT = 0
    STICKY = 1


class ProducerAccessMode(IntEnum):
    """Access of other producers to the topic at the same time."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class SchemaType(IntEnum):
    """Type of a topic's values."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOL = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    EXTERNAL = 22


class TxnAction(IntEnum):
    """Outcome of a transaction."""

    COMMIT = 0
    ABORT = 1


class ResourceType(IntEnum):
    """Kind of the id in TOPIC_MIGRATED."""

    Producer = 0
    Consumer = 1


@dataclass(frozen=True, slots=True)
class MessageId:
    """A message id on the wire; (-1, -1) is the earliest one, and the last one of an empty topic."""

    ledger_id: Annotated[Uint64, 1]
    entry_id: Annotated[Uint64, 2]
    partition: Annotated[Int32, 3] = -1
    batch_index: Annotated[Int32, 4] = -1
    ack_set: Annotated[tuple[Int64, ...], 5] = ()


@dataclass(frozen=True, slots=True)
class FeatureFlags:
    """Features of one side beyond its protocol version."""

    supports_auth_refresh: Annotated[bool, 1] = False
    supports_broker_entry_metadata: Annotated[bool, 2] = False
    supports_get_partitioned_metadata_without_auto_creation: Annotated[bool, 5] = False


@dataclass(frozen=True, slots=True)
class AuthData:
    """One step of authentication."""

    auth_method_name: Annotated[str, 1] = ""
    auth_data: Annotated[bytes, 2] = field(default=b"", repr=False)


@_command(2)
class Connect(Handshake):
    """The client's first command."""

    client_version: Annotated[str, 1]
    auth_data: Annotated[bytes | None, 3] = field(default=None, repr=False)
    protocol_version: Annotated[Int32, 4] = 0
    auth_method_name: Annotated[str | None, 5] = None
    proxy_to_broker_url: Annotated[str | None, 6] = None
    feature_flags: Annotated[FeatureFlags | None, 10] = None


@_command(3)
class Connected(Handshake):
    """The broker's answer to CONNECT.

    Attributes:
        max_message_size: in bytes; None if the broker does not report it.
    """

    server_version: Annotated[str, 1]
    protocol_version: Annotated[Int32, 2] = 0
    max_message_size: Annotated[Int32 | None, 3] = None
    feature_flags: Annotated[FeatureFlags | None, 4] = None


@_command(36)
class AuthChallenge(Handshake):
    """The broker requests authentication again, during the handshake or when a token expires."""

    server_version: Annotated[str | None, 1] = None
    challenge: Annotated[AuthData | None, 2] = None
    protocol_version: Annotated[Int32, 3] = 0


@_command(37)
class AuthResponse(Handshake):
    """The answer to AUTH_CHALLENGE."""

    client_version: Annotated[str | None, 1] = None
    response: Annotated[AuthData | None, 2] = None
    protocol_version: Annotated[Int32, 3] = 0


@_command(18)
class Ping(Handshake):
    """Probe whether the peer is alive."""


@_command(19)
class Pong(Handshake):
    """The answer to PING."""


@_command(21, since=7)
class PartitionedMetadata(Request):
    """Request for the number of partitions; without `metadata_auto_creation_enabled=False` it may create the topic."""

    topic: Annotated[str, 1]
    request_id: Annotated[Uint64, 2]
    metadata_auto_creation_enabled: Annotated[bool | None, 6] = None


@_command(22)
class PartitionedMetadataResponse(Response):
    """The answer to PARTITIONED_METADATA.

    Attributes:
        partitions: 0 for a topic without partitions.
        error: the broker's code if the request failed.
    """

    request_id: Annotated[Uint64, 2]
    partitions: Annotated[Uint32, 1] = 0
    error: Annotated[Int32 | None, 4] = None
    message: Annotated[str, 5] = ""


@_command(23, since=7)
class Lookup(Request):
    """Request for the broker that serves a topic."""

    topic: Annotated[str, 1]
    request_id: Annotated[Uint64, 2]
    authoritative: Annotated[bool, 3] = False
    advertised_listener_name: Annotated[str | None, 7] = None


@_command(24)
class LookupResponse(Response):
    """The answer to LOOKUP.

    Attributes:
        authoritative: to be copied into the next LOOKUP after a redirect.
        proxy_through_service_url: connect to the address in use, with `proxy_to_broker_url`, not to the broker.
    """

    request_id: Annotated[Uint64, 4]
    response: Annotated[LookupType, 3] = LookupType.Redirect
    broker_service_url: Annotated[str | None, 1] = None
    broker_service_url_tls: Annotated[str | None, 2] = None
    authoritative: Annotated[bool, 5] = False
    error: Annotated[Int32 | None, 6] = None
    message: Annotated[str, 7] = ""
    proxy_through_service_url: Annotated[bool, 8] = False


@_command(32, since=12)
class GetTopicsOfNamespace(Request):
    """Request for the topics of a namespace (`tenant/name`)."""

    request_id: Annotated[Uint64, 1]
    namespace: Annotated[str, 2]


@_command(33)
class GetTopicsOfNamespaceResponse(Response):
    """Full names, one for each partition; empty if the namespace does not exist (seen on broker 4.0.8)."""

    request_id: Annotated[Uint64, 1]
    topics: Annotated[tuple[str, ...], 2] = ()


class KeyValue(TypedDict):
    """One of the properties of a schema, a subscription or a consumer."""

    key: Annotated[str, 1]
    value: Annotated[str, 2]


def key_values(pairs: Iterable[tuple[str, str]]) -> tuple[KeyValue, ...]:
    """Return properties as they are sent."""
    return tuple(KeyValue(key=key, value=value) for key, value in pairs)


@dataclass(frozen=True, slots=True)
class IntRange:
    """A range of key hashes, both ends included; 0 to 65535."""

    start: Annotated[Int32, 1]
    end: Annotated[Int32, 2]


@dataclass(frozen=True, slots=True)
class KeySharedMeta:
    """The keys of a consumer of a Key_Shared subscription.

    Attributes:
        hash_ranges: of a STICKY consumer; must not overlap those of others.
        allow_out_of_order_delivery: whether a key may move to another consumer while its messages are unacknowledged.
    """

    key_shared_mode: Annotated[KeySharedMode, 1]
    hash_ranges: Annotated[tuple[IntRange, ...], 3] = ()
    allow_out_of_order_delivery: Annotated[bool, 4] = False


@_command(4)
class Subscribe(Request):
    """Request to open a consumer.

    Seen on broker 4.0.8:

    - `start_message_id` is inclusive and names a whole entry; durable subscriptions ignore it.
    - With `initial_position` Earliest, a start past the end restarts at the beginning of the topic; Latest waits.
    - `force_topic_creation` is true unless it is sent as false.

    Attributes:
        priority_level: 0 is the highest: consumers of the next level get messages only while those before have no
            permits (Shared), or are active only if there are none before (Failover).
        subscription_properties: stored if this creates a durable subscription, otherwise ignored.
    """

    topic: Annotated[str, 1]
    subscription: Annotated[str, 2]
    sub_type: Annotated[SubType, 3]
    consumer_id: Annotated[Uint64, 4]
    request_id: Annotated[Uint64, 5]
    consumer_name: Annotated[str | None, 6] = None
    durable: Annotated[bool, 8] = True
    start_message_id: Annotated[MessageId | None, 9] = None
    read_compacted: Annotated[bool | None, 11] = None
    initial_position: Annotated[InitialPosition, 13] = InitialPosition.Latest
    force_topic_creation: Annotated[bool, 15] = True
    priority_level: Annotated[Int32 | None, 7] = None
    key_shared_meta: Annotated[KeySharedMeta | None, 17] = None
    subscription_properties: Annotated[tuple[KeyValue, ...], 18] = ()


@_command(11)
class Flow(Request):
    """Permission for the broker to send this many more messages; 1 to 2^31-1."""

    consumer_id: Annotated[Uint64, 1]
    message_permits: Annotated[Uint32, 2]


class Message(NamedTuple):
    """One entry: a message, or a batch of them.

    Attributes:
        ack_set: 64-bit words; if not empty, a 0 bit marks a message of the batch that is already acknowledged.
        body: everything after the command (see wire.py), a view of the received bytes.
    """

    consumer_id: int
    ledger_id: int
    entry_id: int
    redelivery_count: int
    ack_set: tuple[int, ...]
    body: memoryview


@_command(12)
class Unsubscribe(Request):
    """Request to delete the subscription of a consumer, and close the consumer; refused if it has other consumers."""

    consumer_id: Annotated[Uint64, 1]
    request_id: Annotated[Uint64, 2]


@_command(16)
class CloseConsumer(Request, Notice):
    """Request to close a consumer; from the broker, with `request_id` -1: it is closed, subscribe again.

    Attributes:
        assigned_broker_service_url: the topic's new broker, if known.
    """

    consumer_id: Annotated[Uint64, 1]
    request_id: Annotated[Uint64, 2]
    assigned_broker_service_url: Annotated[str | None, 3] = None
    assigned_broker_service_url_tls: Annotated[str | None, 4] = None


@_command(29, since=12)
class GetLastMessageId(Request):
    """Request for the end of a consumer's topic."""

    consumer_id: Annotated[Uint64, 1]
    request_id: Annotated[Uint64, 2]


@_command(30)
class GetLastMessageIdResponse(Response):
    """The last message that can be delivered now, and the subscription's cursor."""

    last_message_id: Annotated[MessageId, 1]
    request_id: Annotated[Uint64, 2]
    consumer_mark_delete_position: Annotated[MessageId | None, 3] = None


@_command(28)
class Seek(Request):
    """Request to move a subscription to a message or a publish time (ms); the broker closes its consumers first."""

    consumer_id: Annotated[Uint64, 1]
    request_id: Annotated[Uint64, 2]
    message_id: Annotated[MessageId | None, 3] = None
    message_publish_time: Annotated[Uint64 | None, 4] = None


@_command(25, since=8)
class ConsumerStats(Request):
    """Request for the statistics of a consumer; if the consumer is not open, the broker drops the connection."""

    request_id: Annotated[Uint64, 1]
    consumer_id: Annotated[Uint64, 4]


@_command(26)
class ConsumerStatsResponse(Response):
    """Statistics of a consumer and its subscription.

    Attributes:
        msg_backlog: entries from the cursor to the end; only ACK reduces it, not reading (broker 4.0.8).
        blocked_consumer_on_unacked_msgs: the broker sends nothing until some messages are acknowledged.
        error_code: the broker's code if the request failed.
    """

    request_id: Annotated[Uint64, 1]
    error_code: Annotated[Int32 | None, 2] = None
    error_message: Annotated[str, 3] = ""
    consumer_name: Annotated[str, 7] = ""
    available_permits: Annotated[Uint64, 8] = 0
    unacked_messages: Annotated[Uint64, 9] = 0
    blocked_consumer_on_unacked_msgs: Annotated[bool, 10] = False
    msg_backlog: Annotated[Uint64, 15] = 0


@_command(13)
class Success(Response):
    """A request has succeeded."""

    request_id: Annotated[Uint64, 1]


@_command(14)
class Error(Response):
    """A request has failed; `request_id` -1 means the connection itself."""

    request_id: Annotated[Uint64, 1]
    error: Annotated[Int32, 2]
    message: Annotated[str, 3]


@_command(27)
class ReachedEndOfTopic(Notice):
    """The topic is terminated and fully acknowledged."""

    consumer_id: Annotated[Uint64, 1]


@_command(68)
class TopicMigrated(Notice):
    """The topic has moved to another cluster."""

    resource_id: Annotated[Uint64, 1]
    resource_type: Annotated[ResourceType, 2]
    broker_service_url: Annotated[str | None, 3] = None
    broker_service_url_tls: Annotated[str | None, 4] = None


@_command(31)
class ActiveConsumerChange(Notice):
    """A failover subscription has another active consumer."""

    consumer_id: Annotated[Uint64, 1]
    is_active: Annotated[bool, 2] = False


@_command(10, since=17)
class Ack(Request):
    """Acknowledgement of messages; answered only if it has a `request_id` (since 17) and its consumer is open."""

    consumer_id: Annotated[Uint64, 1]
    ack_type: Annotated[AckType, 2]
    message_ids: Annotated[tuple[MessageId, ...], 3] = ()
    request_id: Annotated[Uint64 | None, 8] = None
    validation_error: Annotated[ValidationError | None, 4] = None


class AckEntries(NamedTuple):
    """An ACK of whole entries, each individually; decoded as `Ack`.

    Attributes:
        entries: ledger and entry of each.
    """

    consumer_id: int
    entries: Sequence[tuple[int, int]]
    request_id: int

    def __str__(self) -> str:
        """Return a text for errors, without the entries, of which there may be thousands."""
        return f"AckEntries({len(self.entries)} entries, request_id={self.request_id})"


@_command(38)
class AckResponse(Response):
    """The answer to ACK; never an error on broker 4.0.8, whatever was acknowledged."""

    consumer_id: Annotated[Uint64, 1]
    error: Annotated[Int32 | None, 4] = None
    message: Annotated[str, 5] = ""
    request_id: Annotated[Uint64 | None, 6] = None


@_command(20, since=2)
class RedeliverUnacknowledgedMessages(Request):
    """Request for redelivery of messages, to any consumer of the subscription; not answered.

    Attributes:
        message_ids: empty for all that the consumer has not acknowledged, which Exclusive and Failover always mean.
    """

    consumer_id: Annotated[Uint64, 1]
    message_ids: Annotated[tuple[MessageId, ...], 2] = ()


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a topic's values.

    Attributes:
        name: for people; the broker replaces it by the topic's name.
        schema_data: the definition: empty for a STRING, Avro's JSON for JSON and AVRO.
        type: `SchemaType`; an int, because a newer broker may have more.
    """

    name: Annotated[str, 1]
    schema_data: Annotated[bytes, 3]
    type: Annotated[Int32, 4]
    properties: Annotated[tuple[KeyValue, ...], 5] = ()


@_command(34, since=12)
class GetSchema(Request):
    """Request for the schema of a topic, also by the name of a partition (seen on broker 4.0.8).

    Attributes:
        schema_version: as in a message; None for the latest.
    """

    request_id: Annotated[Uint64, 1]
    topic: Annotated[str, 2]
    schema_version: Annotated[bytes | None, 3] = None


@_command(35)
class GetSchemaResponse(Response):
    """The answer to GET_SCHEMA; TopicNotFound if the topic has no schema, or not this version."""

    request_id: Annotated[Uint64, 1]
    error_code: Annotated[Int32 | None, 2] = None
    error_message: Annotated[str, 3] = ""
    schema: Annotated[Schema | None, 4] = None


@_command(5)
class Producer(Request):
    """Request to open a producer; it creates a missing topic if the broker may (seen on broker 4.0.8).

    Attributes:
        producer_name: None to let the broker generate one, for reuse after a reconnect.
        metadata: of the producer; shown in the broker's statistics.
        epoch: number of reconnects of a producer whose name the broker generated.
        topic_epoch: from PRODUCER_SUCCESS, if an exclusive producer reconnects.
    """

    topic: Annotated[str, 1]
    producer_id: Annotated[Uint64, 2]
    request_id: Annotated[Uint64, 3]
    producer_name: Annotated[str | None, 4] = None
    encrypted: Annotated[bool | None, 5] = None
    metadata: Annotated[tuple[KeyValue, ...], 6] = ()
    schema: Annotated[Schema | None, 7] = None
    epoch: Annotated[Uint64 | None, 8] = None
    user_provided_producer_name: Annotated[bool | None, 9] = None
    producer_access_mode: Annotated[ProducerAccessMode | None, 10] = None
    topic_epoch: Annotated[Uint64 | None, 11] = None
    txn_enabled: Annotated[bool | None, 12] = None


@_command(17)
class ProducerSuccess(Response):
    """The answer to PRODUCER.

    Attributes:
        last_sequence_id: the highest stored from a producer of this name, if the broker deduplicates; -1 for none.
        schema_version: the version to set in messages of the producer's schema; empty if the topic has none.
        producer_ready: False while an exclusive producer waits; the same answer is sent again when it is ready.
    """

    request_id: Annotated[Uint64, 1]
    producer_name: Annotated[str, 2]
    last_sequence_id: Annotated[Int64, 3] = -1
    schema_version: Annotated[bytes, 4] = b""
    topic_epoch: Annotated[Uint64 | None, 5] = None
    producer_ready: Annotated[bool, 6] = True


class Send(NamedTuple):
    """Publication of one entry: a message, a batch of them, or a chunk of one.

    Seen on broker 4.0.8: a SEND on a producer that the broker has closed is ignored silently; on one that the client
    has closed, it makes the broker drop the connection.

    Attributes:
        sequence_id: of the message, or of the first one in the batch.
        num_messages: of the batch; 1 for a message.
        highest_sequence_id: of the last message in the batch; without it a batch counts as its first message only.
        body: checksum, metadata and payload.
    """

    producer_id: Annotated[Uint64, 1]
    sequence_id: Annotated[Uint64, 2]
    body: bytes | bytearray | memoryview
    num_messages: Annotated[Int32, 3] = 1
    highest_sequence_id: Annotated[Uint64 | None, 6] = None
    txnid_least_bits: Annotated[Uint64 | None, 4] = None
    txnid_most_bits: Annotated[Uint64 | None, 5] = None
    is_chunk: Annotated[bool, 7] = False


@_command(7)
class SendReceipt(Notice):
    """The broker has stored an entry.

    Attributes:
        message_id: its id; (-1, -1) for a duplicate, which was dropped.
        highest_sequence_id: of a batch; -1 or 0 if SEND had none.
    """

    producer_id: Annotated[Uint64, 1]
    sequence_id: Annotated[Uint64, 2]
    message_id: Annotated[MessageId | None, 3] = None
    highest_sequence_id: Annotated[Uint64, 4] = 0

    @property
    def is_duplicate(self) -> bool:
        """True if the broker dropped the whole entry because it has stored this or a higher sequence id."""
        return self.message_id is not None and self.message_id.ledger_id == NO_ID


@_command(8)
class SendError(Notice):
    """The broker has not stored an entry.

    Attributes:
        sequence_id: of the message; of a batch, the highest one (seen on broker 4.0.8).
    """

    producer_id: Annotated[Uint64, 1]
    sequence_id: Annotated[Uint64, 2]
    error: Annotated[Int32, 3]
    message: Annotated[str, 4]


@_command(15)
class CloseProducer(Request, Notice):
    """Request to close a producer; from the broker (`request_id` -1): look the topic up again.

    Attributes:
        assigned_broker_service_url: the topic's new broker, if known.
    """

    producer_id: Annotated[Uint64, 1]
    request_id: Annotated[Uint64, 2]
    assigned_broker_service_url: Annotated[str | None, 3] = None
    assigned_broker_service_url_tls: Annotated[str | None, 4] = None


@_command(62, since=19)
class TcClientConnectRequest(Request):
    """Request to load the transaction coordinator whose assignment topic the broker serves; needed once per load."""

    request_id: Annotated[Uint64, 1]
    tc_id: Annotated[Uint64, 2]


@_command(63)
class TcClientConnectResponse(Response):
    """The answer to TC_CLIENT_CONNECT_REQUEST."""

    request_id: Annotated[Uint64, 1]
    error: Annotated[Int32 | None, 2] = None
    message: Annotated[str, 3] = ""


@_command(50)
class NewTxn(Request):
    """Request to begin a transaction; a time to live of 0 or none expires at once (seen on broker 4.0.8)."""

    request_id: Annotated[Uint64, 1]
    txn_ttl_millis: Annotated[Uint64, 2]
    tc_id: Annotated[Uint64, 3]


@dataclass(frozen=True, slots=True)
class _TxnResponse(Response):
    """The fields of all answers about transactions."""

    request_id: Annotated[Uint64, 1]
    txnid_least_bits: Annotated[Uint64, 2] = 0
    txnid_most_bits: Annotated[Uint64, 3] = 0
    error: Annotated[Int32 | None, 4] = None
    message: Annotated[str, 5] = ""


@_command(51)
class NewTxnResponse(_TxnResponse):
    """The answer to NEW_TXN: the transaction's id in two halves; the more significant one is the coordinator."""


@_command(52)
class AddPartitionToTxn(Request):
    """The topic-partitions to which a transaction writes, for the coordinator; the broker does not check it (4.0.8)."""

    request_id: Annotated[Uint64, 1]
    txnid_least_bits: Annotated[Uint64, 2]
    txnid_most_bits: Annotated[Uint64, 3]
    partitions: Annotated[tuple[str, ...], 4]


@_command(53)
class AddPartitionToTxnResponse(_TxnResponse):
    """The answer to ADD_PARTITION_TO_TXN."""


@_command(56)
class EndTxn(Request):
    """Request to commit or abort a transaction; an ended one is TransactionNotFound, whatever its outcome."""

    request_id: Annotated[Uint64, 1]
    txnid_least_bits: Annotated[Uint64, 2]
    txnid_most_bits: Annotated[Uint64, 3]
    txn_action: Annotated[TxnAction, 4]


@_command(57)
class EndTxnResponse(_TxnResponse):
    """The answer to END_TXN."""


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that this package does not use or that a newer broker has."""

    command_type: int


MESSAGE: Final = 9
SEND: Final = 6
COMMAND_TYPES.update({Message: MESSAGE, Send: SEND})
NEEDED_VERSIONS[AckEntries] = NEEDED_VERSIONS[Ack]

Command: TypeAlias = Handshake | Request | Response | Notice | Message | Send | AckEntries | UnknownCommand
