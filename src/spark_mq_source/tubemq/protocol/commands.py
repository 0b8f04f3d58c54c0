"""Frames <-> commands: every call of TubeMQ's RPC that is in use, request and answer, as frozen values, both ways.

::

    payload    = conn_header header body     ; protobuf messages, each after its size as a varint
      request  : RpcConnHeader{flag=0}  RequestHeader{service_type,protocol_ver=3} RequestBody{method, timeout, request}
      answer   : RpcConnHeader{flag=1}  ResponseHeader{status=SUCCESS}             RspResponseBody{method, data}
      exception: RpcConnHeader{flag=1}  ResponseHeader{status=ERROR or FATAL}      RspExceptionBody{exception_name}

A command has the fields of its protobuf message (`proto/tubemq.proto`) under the same names. What is None is not sent;
what a peer did not send has the default that stands here. Source: seed "Client RPC", section 2; the vectors of server
2.4.0. ERROR is a handler that threw, FATAL a call that could not be read or has no handler (both seen on 2.4.0).

Messages are the hot path: SEND_MESSAGE is written and GET_MESSAGE read without an object per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtobufMessage

from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.core.protobuf import FieldPairs
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.tubemq.payload import _encode_python
from spark_mq_source.tubemq.payload.messages import encoding, without_messages
from spark_mq_source.tubemq.protocol import _pb
from spark_mq_source.tubemq.protocol.wire import Frame, encode_frame, encode_frame_of

PROTOCOL_VERSION: Final = 3
"""What we speak; servers 2.4.0 answer the same."""

SUCCESS: Final = 200
"""`err_code` of every answer that is none of an error."""


class Method(IntEnum):
    """`RequestBody.method`, the ones in use (server 2.4.0)."""

    REGISTER_PRODUCER = 1
    PRODUCER_HEARTBEAT = 2
    CLOSE_PRODUCER = 3
    REGISTER_CONSUMER = 4
    CONSUMER_HEARTBEAT = 5
    CLOSE_CONSUMER = 6
    SEND_MESSAGE = 13
    REGISTER_PARTITION = 15
    BROKER_HEARTBEAT = 16
    GET_MESSAGE = 17
    COMMIT_OFFSET = 18
    REGISTER_CONSUMER_V2 = 20
    CONSUMER_HEARTBEAT_V2 = 21
    GET_PART_META = 22


class Status(IntEnum):
    """`ResponseHeader.status`."""

    SUCCESS = 0
    ERROR = 1
    FATAL = 2


class RegisterType(IntEnum):
    """`RegisterPartition.op_type`."""

    REGISTER = 31
    UNREGISTER = 32


class ReadStatus(IntEnum):
    """Where a partition is read from when it is registered without `curr_offset` (server 2.4.0).

    When it is unregistered, STORED_OR_MIN commits what was fetched last and STORED_OR_MAX rolls it back.
    """

    STORED_OR_MIN = 0
    STORED_OR_MAX = 1
    MAX = 2


class EventType(IntEnum):
    """`Event.op_type`; a master 2.4.0 sends ONLY_CONNECT and ONLY_DISCONNECT, the others are the seed's."""

    CONNECT = 1
    DISCONNECT = 2
    REPORT = 3
    REFRESH = 4
    STOPREBALANCE = 5
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20
    UNKNOWN = -1


class EventStatus(IntEnum):
    """`Event.status` (seed "Client RPC", section 5.6)."""

    TODO = 0
    PROCESSING = 1
    DONE = 2
    UNKNOWN = -1
    FAILED = -2


# What stands in texts.


_STOCK_BROKER_PORT: Final = 8123


class Broker(NamedTuple):
    """A broker, as masters write it: `id:host:port`.

    Masters leave out the stock port: `1:127.0.0.1: ` is at 8123 (BrokerInfo.getSimpleInfo; seen on 2.4.0).

    Example:
        >>> broker = Broker.parse("1:127.0.0.1:8123")
        >>> broker, str(broker), broker.address
        (Broker(broker_id=1, host='127.0.0.1', port=8123), '1:127.0.0.1:8123', '127.0.0.1:8123')
    """

    broker_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.broker_id}:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Broker:
        """The broker of a text.

        Raises:
            RemoteProtocolError: it is none.
        """
        broker_id, _, address = text.partition(":")
        host, _, port = address.rpartition(":")
        try:
            return cls(int(broker_id), _not_empty(host), _STOCK_BROKER_PORT if port == " " else int(port))
        except ValueError:
            raise RemoteProtocolError(f"the server names a broker {text!r}, which is not id:host:port") from None


class BrokerPartition(NamedTuple):
    """A partition of a topic on a broker, as masters and brokers write it: `id:host:port#topic:partition`.

    Example:
        >>> partition = BrokerPartition.parse("client@group#1:127.0.0.1:8123#demo:2")
        >>> partition.topic, partition.partition_id, str(partition), partition.subscribed("client", "group")
        ('demo', 2, '1:127.0.0.1:8123#demo:2', 'client@group#1:127.0.0.1:8123#demo:2')
    """

    broker: Broker
    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.broker}#{self.topic}:{self.partition_id}"

    def subscribed(self, client_id: str, group_name: str) -> str:
        """The same with who reads it: an item of `subscribe_info`."""
        return f"{client_id}@{group_name}#{self}"

    @classmethod
    def parse(cls, text: str) -> BrokerPartition:
        """The partition of a text, with or without who reads it in front.

        Raises:
            RemoteProtocolError: it is none.
        """
        parts = text.split("#")
        try:
            topic, _, partition_id = parts[-1].rpartition(":")
            return cls(Broker.parse(parts[-2]), _not_empty(topic), int(partition_id))
        except (IndexError, ValueError, RemoteProtocolError):
            raise RemoteProtocolError(
                f"the server names a partition {text!r}, which is not id:host:port#topic:partition"
            ) from None


class TopicMeta(NamedTuple):
    """What a topic is on one broker.

    Attributes:
        stores: files it is kept in; all partitions of one store share an index.
        partitions: of each store.
        status: 1 where it can be read (seen on master 2.4.0); None where it was not said.

    Example:
        >>> TopicMeta("demo", 1, stores=2, partitions=3).partition_ids
        (0, 1, 2, 10000, 10001, 10002)
    """

    topic: str
    broker_id: int
    stores: int
    partitions: int
    status: int | None = None

    @property
    def partition_ids(self) -> tuple[int, ...]:
        """Its partitions: those of store n begin at n * 10000 (server 2.4.0)."""
        return tuple(store * 10_000 + n for store in range(self.stores) for n in range(self.partitions))


def parse_topic_metas(texts: tuple[str, ...]) -> list[TopicMeta]:
    """`topic_meta_info_list` of GET_PART_META: `topic#broker:stores:partitions:status,...` (seen on master 2.4.0).

    Raises:
        RemoteProtocolError: it is none.

    Example:
        >>> parse_topic_metas(("demo#1:2:3:1,2:1:3:1",))[0]
        TopicMeta(topic='demo', broker_id=1, stores=2, partitions=3, status=1)
    """
    return [
        TopicMeta(topic, broker_id, stores, partitions, status)
        for topic, (broker_id, stores, partitions, status) in _parse_metas(texts, 4)
    ]


def parse_topic_infos(texts: tuple[str, ...]) -> list[TopicMeta]:
    """`topic_infos` of a producer's heartbeat: `topic#broker:partitions:stores,...#`: the other way round.

    What may follow the last `#` is a size limit, which master 2.4.0 leaves out: `appd_config` has it.

    Raises:
        RemoteProtocolError: it is none.

    Example:
        >>> parse_topic_infos(("demo#1:3:2#",))
        [TopicMeta(topic='demo', broker_id=1, stores=2, partitions=3, status=None)]
    """
    return [
        TopicMeta(topic, broker_id, stores, partitions)
        for topic, (broker_id, partitions, stores) in _parse_metas(texts, 3)
    ]


MAX_STORES_AND_PARTITIONS: Final = 100_000
"""More partitions than this on one broker are a damaged answer: nobody is to plan a task for each."""


def _parse_metas(texts: tuple[str, ...], numbers: int) -> list[tuple[str, list[int]]]:
    found = []
    for text in texts:
        topic, _, rest = text.partition("#")
        try:
            for item in _not_empty(rest).partition("#")[0].split(","):
                values = [int(number) for number in item.split(":")]
                if len(values) != numbers or not 0 <= values[1] * values[2] <= MAX_STORES_AND_PARTITIONS:
                    raise ValueError  # noqa: TRY301 - the same fault as a number that is none
                found.append((_not_empty(topic), values))
        except ValueError:
            raise RemoteProtocolError(f"the master describes a topic by {text!r}, which cannot be read") from None
    return found


def parse_failure(text: str) -> tuple[int, BrokerPartition]:
    """An item of `failure_info` of a broker's heartbeat: `code:id:host:port#topic:partition` (server 2.4.0).

    Raises:
        RemoteProtocolError: it is none.

    Example:
        >>> parse_failure("411:1:127.0.0.1:8133#demo:1")[0]
        411
    """
    code, _, partition = text.partition(":")
    if not code.isdecimal():
        raise RemoteProtocolError(f"the broker reports a failure {text!r}, which cannot be read")
    return int(code), BrokerPartition.parse(partition)


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError
    return text


# Parts of commands.


@dataclass(frozen=True, slots=True)
class AuthenticateInfo:
    """Who we are, signed; see `authentication`."""

    user_name: str
    timestamp: int
    nonce: int
    oth_params: str
    signature: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MasterCertificateInfo:
    """What a request to a master shows: a signature, or the token that an earlier answer gave."""

    auth_info: AuthenticateInfo | None = None
    authorized_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuthorizedInfo:
    """What a master lets a client have, and what a request to a broker shows.

    Attributes:
        visit_authorized_token: that a client has been at the master; a new one every 4 minutes, the last 6 are taken.
        auth_authorized_token: that it has been accepted.
    """

    visit_authorized_token: int = field(repr=False)
    auth_authorized_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ApprovedClientConfig:
    """What a master prescribes to producers: the largest message in bytes."""

    config_id: int
    max_msg_size: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Partitions that a member of a group is to take or to leave, and its answer.

    Attributes:
        op_type: `EventType`; a number, because a master may know more.
        status: `EventStatus`; masters leave it out.
        subscribe_info: see `BrokerPartition.subscribed`.
    """

    rebalance_id: int = 0
    op_type: int = EventType.UNKNOWN
    status: int | None = None
    subscribe_info: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientSubRepInfo:
    """What a member that chooses its partitions itself tells the master of them, for its statistics.

    Attributes:
        part_sub_info: `topic#broker:partition,broker:partition` each (seen on master 2.4.0).
    """

    broker_config_id: int
    topic_meta_info_id: int
    lst_assigned_time: int | None = None
    report_sub_info: bool | None = None
    part_sub_info: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpsTaskInfo:
    """Flow control of a group, by the version that the client has."""

    group_flow_check_id: int | None = None
    def_flow_check_id: int | None = None
    qry_priority_id: int | None = None
    csm_frm_max_offset_ctrl_id: int | None = None
    require_auth: bool | None = None
    def_flow_control_info: str | None = None
    group_flow_control_info: str | None = None


# Producers and the master.


@dataclass(frozen=True, slots=True)
class RegisterProducer:
    """RegisterRequestP2M.

    Attributes:
        broker_check_sum: of the brokers the client knows; -1 for none.
    """

    client_id: str
    topic_list: tuple[str, ...]
    host_name: str
    broker_check_sum: int = -1
    auth_info: MasterCertificateInfo | None = None
    jdk_version: str | None = None
    appd_config: ApprovedClientConfig | None = None


@dataclass(frozen=True, slots=True)
class RegisterProducerResponse:
    """RegisterResponseM2P: brokers, but no topics: those come with the first heartbeat (seen on master 2.4.0)."""

    success: bool
    err_code: int
    err_msg: str
    broker_check_sum: int = -1
    broker_infos: tuple[str, ...] = ()
    authorized_info: AuthorizedInfo | None = None
    appd_config: ApprovedClientConfig | None = None


@dataclass(frozen=True, slots=True)
class ProducerHeartbeat:
    """HeartRequestP2M."""

    client_id: str
    topic_list: tuple[str, ...]
    host_name: str
    broker_check_sum: int = -1
    auth_info: MasterCertificateInfo | None = None
    appd_config: ApprovedClientConfig | None = None


@dataclass(frozen=True, slots=True)
class ProducerHeartbeatResponse:
    """HeartResponseM2P.

    Attributes:
        topic_infos: see `parse_topic_infos`.
        broker_infos: see `Broker`; none where the client's check sum is the master's.
    """

    success: bool
    err_code: int
    err_msg: str
    broker_check_sum: int = -1
    topic_infos: tuple[str, ...] = ()
    broker_infos: tuple[str, ...] = ()
    require_auth: bool = False
    authorized_info: AuthorizedInfo | None = None
    appd_config: ApprovedClientConfig | None = None


@dataclass(frozen=True, slots=True)
class CloseProducer:
    """CloseRequestP2M."""

    client_id: str
    auth_info: MasterCertificateInfo | None = None


@dataclass(frozen=True, slots=True)
class CloseProducerResponse:
    """CloseResponseM2P."""

    success: bool
    err_code: int
    err_msg: str


# Consumers that the master balances (V1).


@dataclass(frozen=True, slots=True)
class RegisterConsumer:
    """RegisterRequestC2M: joins a group whose partitions the master shares out.

    Attributes:
        topic_condition: `topic#filter,filter` each.
        not_allocated: whether the member has no partitions from before.
    """

    client_id: str
    group_name: str
    host_name: str
    topic_list: tuple[str, ...]
    subscribe_info: tuple[str, ...] = ()
    topic_condition: tuple[str, ...] = ()
    require_bound: bool | None = None
    session_time: int | None = None
    session_key: str | None = None
    total_count: int | None = None
    required_partition: str | None = None
    not_allocated: bool | None = None
    select_big: bool | None = None
    group_flow_check_id: int | None = None
    def_flow_check_id: int | None = None
    qry_priority_id: int | None = None
    auth_info: MasterCertificateInfo | None = None
    jdk_version: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterConsumerResponse:
    """RegisterResponseM2C: no partitions, they come as events.

    Attributes:
        not_allocated: whether the group waits for its first partitions.
    """

    success: bool
    err_code: int
    err_msg: str
    not_allocated: bool | None = None
    def_flow_check_id: int | None = None
    def_flow_control_info: str | None = None
    group_flow_check_id: int | None = None
    group_flow_control_info: str | None = None
    ssd_store_id: int | None = None
    qry_priority_id: int | None = None
    authorized_info: AuthorizedInfo | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """HeartRequestC2M.

    Attributes:
        subscribe_info: every partition the member has, where `report_subscribe_info`.
        event: the one that was answered, with its status.
    """

    client_id: str
    group_name: str
    report_subscribe_info: bool
    subscribe_info: tuple[str, ...] = ()
    event: Event | None = None
    def_flow_check_id: int | None = None
    group_flow_check_id: int | None = None
    qry_priority_id: int | None = None
    auth_info: MasterCertificateInfo | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse:
    """HeartResponseM2C.

    Attributes:
        event: what is to be done; said once and never again (seen on master 2.4.0).
    """

    success: bool
    err_code: int
    err_msg: str
    event: Event | None = None
    not_allocated: bool | None = None
    def_flow_check_id: int | None = None
    def_flow_control_info: str | None = None
    group_flow_check_id: int | None = None
    group_flow_control_info: str | None = None
    ssd_store_id: int | None = None
    qry_priority_id: int | None = None
    require_auth: bool | None = None
    authorized_info: AuthorizedInfo | None = None


@dataclass(frozen=True, slots=True)
class CloseConsumer:
    """CloseRequestC2M, of both kinds of consumers; one that is unknown is closed without an error (master 2.4.0)."""

    client_id: str
    group_name: str
    auth_info: MasterCertificateInfo | None = None


@dataclass(frozen=True, slots=True)
class CloseConsumerResponse:
    """CloseResponseM2C."""

    success: bool
    err_code: int
    err_msg: str


# Consumers that choose their partitions themselves (V2).


@dataclass(frozen=True, slots=True)
class RegisterConsumerV2:
    """RegisterRequestC2MV2.

    Attributes:
        source_count: members that the group has in all; -1 for any number.
        node_id: which of them this is, from 0; -1 where `source_count` is.
        topic_condition: `topic#filter,filter` each.
    """

    client_id: str
    group_name: str
    host_name: str
    topic_list: tuple[str, ...]
    source_count: int = -1
    node_id: int = -1
    topic_condition: tuple[str, ...] = ()
    sub_rep_info: ClientSubRepInfo | None = None
    ops_task_info: OpsTaskInfo | None = None
    auth_info: MasterCertificateInfo | None = None
    jdk_version: str | None = None


@dataclass(frozen=True, slots=True)
class RegisterConsumerV2Response:
    """RegisterResponseM2CV2."""

    err_code: int
    err_msg: str
    broker_config_id: int | None = None
    broker_config_list: tuple[str, ...] = ()
    ops_task_info: OpsTaskInfo | None = None
    authorized_info: AuthorizedInfo | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatV2:
    """HeartRequestC2MV2."""

    client_id: str
    group_name: str
    sub_rep_info: ClientSubRepInfo | None = None
    ops_task_info: OpsTaskInfo | None = None
    auth_info: MasterCertificateInfo | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatV2Response:
    """HeartResponseM2CV2; the lists are there where the client's ids are not the master's."""

    err_code: int
    err_msg: str
    broker_config_id: int | None = None
    broker_config_list: tuple[str, ...] = ()
    topic_meta_info_id: int | None = None
    topic_meta_info_list: tuple[str, ...] = ()
    ops_task_info: OpsTaskInfo | None = None
    authorized_info: AuthorizedInfo | None = None


@dataclass(frozen=True, slots=True)
class GetPartMeta:
    """GetPartMetaRequestC2M; -2 for ids that are not known (seen on master 2.4.0)."""

    client_id: str
    group_name: str
    broker_config_id: int = -2
    topic_meta_info_id: int = -2
    auth_info: MasterCertificateInfo | None = None


@dataclass(frozen=True, slots=True)
class GetPartMetaResponse:
    """GetPartMetaResponseM2C.

    Attributes:
        topic_meta_info_list: see `parse_topic_metas`.
        broker_config_list: see `Broker`.
    """

    err_code: int
    err_msg: str
    broker_config_id: int | None = None
    topic_meta_info_id: int | None = None
    topic_meta_info_list: tuple[str, ...] = ()
    broker_config_list: tuple[str, ...] = ()


# The broker.


@dataclass(frozen=True, slots=True)
class RegisterPartition:
    """RegisterRequestC2B: takes or leaves a partition.

    A second register by the same `client_id` is taken, and moves the cursor of the first without a word.

    Attributes:
        op_type: `RegisterType`.
        read_status: `ReadStatus`.
        filter_cond_str: the message types wanted; more come where their hashes are equal.
        curr_offset: where to begin, a byte position in the index: rounded down to 28, and to what there is; ignored
            where negative.
        qry_priority_id: what is read: flushed data with 1, memory too with 301, filtered with 303.
    """

    op_type: int
    client_id: str
    group_name: str
    topic_name: str
    partition_id: int
    read_status: int = ReadStatus.STORED_OR_MIN
    filter_cond_str: tuple[str, ...] = ()
    curr_offset: int | None = None
    session_key: str | None = None
    session_time: int | None = None
    qry_priority_id: int | None = None
    auth_info: AuthorizedInfo | None = None


@dataclass(frozen=True, slots=True)
class RegisterPartitionResponse:
    """RegisterResponseB2C.

    Attributes:
        curr_offset: where it begins, to be compared with what was asked for; -1 with an error.
        max_offset: where data ends; with memory's, unless `qry_priority_id` was 1.
    """

    success: bool
    err_code: int
    err_msg: str
    curr_offset: int = -1
    max_offset: int = -1


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    """HeartBeatRequestC2B: keeps partitions; a `qry_priority_id` that is left out is reset.

    Attributes:
        partition_info: see `BrokerPartition`.
    """

    client_id: str
    group_name: str
    partition_info: tuple[str, ...]
    read_status: int = ReadStatus.STORED_OR_MIN
    qry_priority_id: int | None = None
    auth_info: AuthorizedInfo | None = None


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatResponse:
    """HeartBeatResponseB2C.

    Attributes:
        failure_info: see `parse_failure`.
    """

    success: bool
    err_code: int
    err_msg: str
    has_part_failure: bool = False
    failure_info: tuple[str, ...] = ()
    require_auth: bool = False


@dataclass(frozen=True, slots=True)
class GetMessage:
    """GetMessageRequestC2B.

    Attributes:
        last_pack_consumed: whether what was fetched before is committed by this.
        manual_commit_offset: whether the cursor moves on and nothing is committed by fetching.
    """

    client_id: str
    partition_id: int
    group_name: str
    topic_name: str
    last_pack_consumed: bool = False
    manual_commit_offset: bool = False
    esc_flow_ctrl: bool | None = None


class GetMessageResponse(NamedTuple):
    """GetMessageResponseB2C.

    404 is the end of what can be read now, and may be before the end of data: what is not flushed yet. 200 without a
    message is normal. Only a position that has reached the end is the end.

    Attributes:
        curr_offset: where this answer began; -1 with an error.
        min_limit_time: ms to wait, to be obeyed with 452 only: 404 has a meaningless one (seen on broker 2.4.0).
        curr_data_dlt: bytes of data behind.
        max_offset: where data ends; -1 with an error.
        body: the answer itself, whose `messages` (field 4) are `TransferedMessage` each; for messages.py.
    """

    success: bool
    err_code: int
    err_msg: str = ""
    curr_offset: int = -1
    min_limit_time: int = -1
    esc_flow_ctrl: bool = False
    curr_data_dlt: int = -1
    require_slow: bool = False
    max_offset: int = -1
    body: memoryview = memoryview(b"")


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """CommitOffsetRequestC2B: has no offset, it commits what was fetched.

    Attributes:
        last_pack_consumed: False rolls it back.
    """

    client_id: str
    topic_name: str
    partition_id: int
    group_name: str
    last_pack_consumed: bool = True


@dataclass(frozen=True, slots=True)
class CommitOffsetResponse:
    """CommitOffsetResponseB2C.

    Attributes:
        curr_offset: the position from here on; -1 with an error.
    """

    success: bool
    err_code: int
    err_msg: str
    curr_offset: int = -1
    max_offset: int = -1


class SendMessage(NamedTuple):
    """SendMessageRequestP2B.

    Attributes:
        data: the body; after the attributes where `flag` is 1 (see messages.py).
        check_sum: CRC-32 of data & 0x7FFFFFFF.
        sent_addr: our IPv4 address as a number.
        msg_type: what readers can filter by; stands in the attributes too.
        msg_time: the same, as yyyyMMddHHmm.
    """

    client_id: str
    topic_name: str
    partition_id: int
    data: bytes | memoryview
    flag: int
    check_sum: int
    sent_addr: int
    msg_type: str | None = None
    msg_time: str | None = None
    auth_info: AuthorizedInfo | None = None


class SendMessageResponse(NamedTuple):
    """SendMessageResponseB2P.

    Attributes:
        message_id: not unique.
        append_offset: where it is in the store's index.
    """

    success: bool
    err_code: int
    err_msg: str = ""
    require_auth: bool = False
    message_id: int = -1
    append_time: int = -1
    append_offset: int = -1


@dataclass(frozen=True, slots=True)
class RpcException:
    """The answer to a call that was not handled.

    Attributes:
        status: ERROR: the handler threw; FATAL: the call could not be read, or has no handler.
        exception_name: a Java class.
        stack_trace: its message.
    """

    status: int
    exception_name: str
    stack_trace: str = ""


MasterRequest: TypeAlias = (
    RegisterProducer
    | ProducerHeartbeat
    | CloseProducer
    | RegisterConsumer
    | ConsumerHeartbeat
    | CloseConsumer
    | RegisterConsumerV2
    | ConsumerHeartbeatV2
    | GetPartMeta
)
BrokerRequest: TypeAlias = RegisterPartition | BrokerHeartbeat | GetMessage | CommitOffset | SendMessage
Request: TypeAlias = MasterRequest | BrokerRequest
Response: TypeAlias = (
    RegisterProducerResponse
    | ProducerHeartbeatResponse
    | CloseProducerResponse
    | RegisterConsumerResponse
    | ConsumerHeartbeatResponse
    | CloseConsumerResponse
    | RegisterConsumerV2Response
    | ConsumerHeartbeatV2Response
    | GetPartMetaResponse
    | RegisterPartitionResponse
    | BrokerHeartbeatResponse
    | GetMessageResponse
    | CommitOffsetResponse
    | SendMessageResponse
    | RpcException
)

_MASTER, _READ, _WRITE = 1, 2, 3
_REQUESTS: Final[dict[type, tuple[Method, int, type[ProtobufMessage]]]] = {
    RegisterProducer: (Method.REGISTER_PRODUCER, _MASTER, _pb.RegisterRequestP2M),
    ProducerHeartbeat: (Method.PRODUCER_HEARTBEAT, _MASTER, _pb.HeartRequestP2M),
    CloseProducer: (Method.CLOSE_PRODUCER, _MASTER, _pb.CloseRequestP2M),
    RegisterConsumer: (Method.REGISTER_CONSUMER, _MASTER, _pb.RegisterRequestC2M),
    ConsumerHeartbeat: (Method.CONSUMER_HEARTBEAT, _MASTER, _pb.HeartRequestC2M),
    CloseConsumer: (Method.CLOSE_CONSUMER, _MASTER, _pb.CloseRequestC2M),
    RegisterConsumerV2: (Method.REGISTER_CONSUMER_V2, _MASTER, _pb.RegisterRequestC2MV2),
    ConsumerHeartbeatV2: (Method.CONSUMER_HEARTBEAT_V2, _MASTER, _pb.HeartRequestC2MV2),
    GetPartMeta: (Method.GET_PART_META, _MASTER, _pb.GetPartMetaRequestC2M),
    RegisterPartition: (Method.REGISTER_PARTITION, _READ, _pb.RegisterRequestC2B),
    BrokerHeartbeat: (Method.BROKER_HEARTBEAT, _READ, _pb.HeartBeatRequestC2B),
    GetMessage: (Method.GET_MESSAGE, _READ, _pb.GetMessageRequestC2B),
    CommitOffset: (Method.COMMIT_OFFSET, _READ, _pb.CommitOffsetRequestC2B),
    SendMessage: (Method.SEND_MESSAGE, _WRITE, _pb.SendMessageRequestP2B),
}
_RESPONSES: Final[dict[Method, tuple[type, type[ProtobufMessage]]]] = {
    Method.REGISTER_PRODUCER: (RegisterProducerResponse, _pb.RegisterResponseM2P),
    Method.PRODUCER_HEARTBEAT: (ProducerHeartbeatResponse, _pb.HeartResponseM2P),
    Method.CLOSE_PRODUCER: (CloseProducerResponse, _pb.CloseResponseM2P),
    Method.REGISTER_CONSUMER: (RegisterConsumerResponse, _pb.RegisterResponseM2C),
    Method.CONSUMER_HEARTBEAT: (ConsumerHeartbeatResponse, _pb.HeartResponseM2C),
    Method.CLOSE_CONSUMER: (CloseConsumerResponse, _pb.CloseResponseM2C),
    Method.REGISTER_CONSUMER_V2: (RegisterConsumerV2Response, _pb.RegisterResponseM2CV2),
    Method.CONSUMER_HEARTBEAT_V2: (ConsumerHeartbeatV2Response, _pb.HeartResponseM2CV2),
    Method.GET_PART_META: (GetPartMetaResponse, _pb.GetPartMetaResponseM2C),
    Method.REGISTER_PARTITION: (RegisterPartitionResponse, _pb.RegisterResponseB2C),
    Method.BROKER_HEARTBEAT: (BrokerHeartbeatResponse, _pb.HeartBeatResponseB2C),
    Method.GET_MESSAGE: (GetMessageResponse, _pb.GetMessageResponseB2C),
    Method.COMMIT_OFFSET: (CommitOffsetResponse, _pb.CommitOffsetResponseB2C),
    Method.SEND_MESSAGE: (SendMessageResponse, _pb.SendMessageResponseB2P),
}
_METHODS: Final = {response: method for method, (response, _) in _RESPONSES.items()}
_METHODS_OF_REQUESTS: Final = {kind: method for kind, (method, _, _) in _REQUESTS.items()}
_PAIRS: Final = FieldPairs()
_new_tuple = tuple.__new__


def method_of(command: Request | Response) -> Method | None:
    """The method a request calls or a response answers; None of an exception."""
    kind = type(command)
    return _METHODS_OF_REQUESTS[kind] if kind in _METHODS_OF_REQUESTS else _METHODS.get(kind)


_MORE: Final = 0x80


# RpcConnHeader{flag=1} and ResponseHeader{SUCCESS, protocol_ver=3}: how a server 2.4.0 begins what it has handled.
_USUAL_HEAD: Final = bytes.fromhex("02080104 08001803")
_METHOD, _DATA = 0x08, 0x12
# RspResponseBody{SEND_MESSAGE, data=SendMessageResponseB2P{success=True, err_code=200, ...}}, each after a size that is
# one byte: before 128 bytes there is no second one.
_STORED_BEGINNINGS: Final = (
    (0, _USUAL_HEAD),
    (len(_USUAL_HEAD) + 1, bytes.fromhex("080d12")),
    (len(_USUAL_HEAD) + 5, bytes.fromhex("080110c801")),
)


def _delimited(message: ProtobufMessage) -> bytes:
    data = message.SerializeToString()
    return encode_varint(len(data)) + data


_REQUEST_HEADS: Final = {
    service_type: _delimited(_pb.RpcConnHeader(flag=0))
    + _delimited(_pb.RequestHeader(service_type=service_type, protocol_ver=PROTOCOL_VERSION))
    for service_type in (_MASTER, _READ, _WRITE)
}


def encode_request(serial_no: int, request: Request, *, timeout_ms: int) -> bytes:
    """The frame of a request.

    Args:
        serial_no: which the answer will have.
        request: what is asked.
        timeout_ms: a server that has not come to it by then drops it without a word; 0 would be dropped at once (both
            seen on server 2.4.0).

    Raises:
        LocalProtocolError: a field does not fit the protocol, or the request is too large.

    Example:
        >>> encode_request(1, CloseProducer("c"), timeout_ms=10_000)[16:].hex(" ", -4)
        '02080004 08011003 0a080310 904e1a03 0a0163'
    """
    if type(request) is SendMessage:
        return _encode_send(serial_no, request, timeout_ms)
    is_repeated = type(request) is GetMessage or type(request) is CommitOffset
    return encode_frame(serial_no, (_repeated_payload_of if is_repeated else _payload_of)(request, timeout_ms))


def encode_sends(calls: Sequence[tuple[int, SendMessage]], *, timeout_ms: int) -> bytes:
    """The frames of messages, one after the other: what `encode_request` makes of each.

    Args:
        calls: serial numbers and messages.
        timeout_ms: of each call.

    Raises:
        LocalProtocolError: a field does not fit the protocol, or a message is too large.

    Example:
        >>> send = SendMessage("c", "demo", 0, b"value", 0, 495922163, 0)
        >>> encode_sends([(1, send), (2, send)], timeout_ms=10_000).count(b"value")
        2
    """
    encoding.warn_of_fallback()
    return encoding.module.encode_sends(  # type: ignore[no-any-return]
        calls, timeout_ms, _encode_send, _before_data, _encode_send_tail
    )


def _payload_of(request: Request, timeout_ms: int) -> bytes:
    method, service_type, kind = _REQUESTS[type(request)]
    message = kind()
    try:
        _PAIRS.fill(message, request)
        body = _pb.RequestBody(method=method, timeout=timeout_ms, request=message.SerializeToString())
    except (EncodeError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"{type(request).__name__} cannot be sent: {error}") from error
    return _REQUEST_HEADS[service_type] + _delimited(body)


_repeated_payload_of = lru_cache(maxsize=64)(_payload_of)
"""The same for requests that a reader repeats without a change."""


def decode_response(frame: Frame) -> tuple[Method | None, Response]:
    """What a server's frame answers, and how; the method is None of an exception.

    Raises:
        RemoteProtocolError: it cannot be parsed, or lacks what the protocol requires.

    Example:
        >>> from spark_mq_source.tubemq.protocol.wire import take_frame
        >>> decode_response(take_frame(memoryview(encode_response(1, CloseProducerResponse(True, 200, "OK!"))), 0))[1]
        CloseProducerResponse(success=True, err_code=200, err_msg='OK!')
    """
    payload = frame.payload
    if payload[: len(_USUAL_HEAD)] == _USUAL_HEAD:
        body = _undelimited(payload, len(_USUAL_HEAD))[0]
    else:
        status, body = _take_response_head(payload)
        if status != Status.SUCCESS:
            exception = _parse(_pb.RspExceptionBody, body)
            return None, RpcException(status, _text(exception.exception_name), _text(exception.stack_trace))
    method, data = _take_response_body(body)
    if method == Method.SEND_MESSAGE:
        return Method.SEND_MESSAGE, _send_response_of(_parse(_pb.SendMessageResponseB2P, data))
    if method == Method.GET_MESSAGE:
        # Its messages are left where they are: protobuf would copy half a MiB of them as an unknown field.
        head = memoryview(without_messages(data))
        return Method.GET_MESSAGE, _get_response_of(_parse(_pb.GetMessageResponseB2C, head), data)
    known = _RESPONSES.get(method)  # type: ignore[call-overload]
    if known is None:
        raise RemoteProtocolError(f"the server answers method {method}, which nobody called")
    kind, message_kind = known
    try:
        return Method(method), _PAIRS.value_of(_parse(message_kind, data), kind)  # type: ignore[return-value]
    except ValueError as error:
        raise RemoteProtocolError(f"an answer of method {method} has a field that cannot be: {error}") from error


STORED: Final = SendMessageResponse(True, SUCCESS)
"""What a message that was stored is answered, as far as `is_stored` looks."""


def is_stored(payload: memoryview) -> bool:
    """Whether this is how a server 2.4.0 begins its answer to a message that it has stored; what is not may be, too."""
    return _encode_python.begins_so(payload, _STORED_BEGINNINGS)


def take_stored(data: memoryview, offset: int) -> tuple[list[int], int]:
    """The answers from `offset` on for which `is_stored` is true, up to the first for which it is not.

    There is one for every row that is written: to take each as a frame took most of the time that answers take.

    Args:
        data: what was received.
        offset: where a frame begins.

    Returns:
        Their serial numbers, and where the next frame begins.

    Example:
        >>> stored = encode_response(7, SendMessageResponse(True, 200, "1", False, 1, 1, 28))
        >>> take_stored(memoryview(stored + encode_response(8, CloseProducerResponse(True, 200, "OK!"))), 0)
        ([7], 45)
    """
    return encoding.module.take_stored(data, offset, _STORED_BEGINNINGS)  # type: ignore[no-any-return]


def decode_request(frame: Frame) -> tuple[Request, int]:
    """What a client's frame asks and its `timeout_ms`: a server's side, for tests and tools.

    Raises:
        RemoteProtocolError: it cannot be parsed, or lacks what the protocol requires.
    """
    _, at = _undelimited(frame.payload, 0)
    _, at = _undelimited(frame.payload, at)
    body = _parse(_pb.RequestBody, _undelimited(frame.payload, at)[0])
    kind = next((kind for kind, (method, _, _) in _REQUESTS.items() if method == body.method), None)
    if kind is None:
        raise RemoteProtocolError(f"a call of method {body.method}, which is not in use")
    data = memoryview(body.request)
    if kind is SendMessage:
        return _send_of(_parse(_pb.SendMessageRequestP2B, data)), body.timeout
    try:
        return _PAIRS.value_of(_parse(_REQUESTS[kind][2], data), kind), body.timeout  # type: ignore[return-value]
    except ValueError as error:
        raise RemoteProtocolError(f"{kind.__name__} has a field that cannot be: {error}") from error


def encode_response(serial_no: int, response: Response) -> bytes:
    """The frame of an answer: a server's side, for tests and tools.

    Raises:
        LocalProtocolError: a field does not fit the protocol.
    """
    try:
        if isinstance(response, RpcException):
            head = _pb.ResponseHeader(status=response.status)
            body: ProtobufMessage = _pb.RspExceptionBody(
                exception_name=response.exception_name, stack_trace=response.stack_trace
            )
        else:
            head = _pb.ResponseHeader(status=Status.SUCCESS, protocol_ver=PROTOCOL_VERSION)
            method = _METHODS[type(response)]
            body = _pb.RspResponseBody(method=method, data=_encode_answer(response, _RESPONSES[method][1]))
        return encode_frame(serial_no, _delimited(_pb.RpcConnHeader(flag=1)) + _delimited(head) + _delimited(body))
    except (EncodeError, TypeError, ValueError) as error:
        raise LocalProtocolError(f"{type(response).__name__} cannot be sent: {error}") from error


def _encode_send(serial_no: int, send: SendMessage, timeout_ms: int) -> bytes:
    # A quarter of the time that protobuf and the filling of its objects take. The fields in protobuf's own order.
    client_id, topic_name, partition_id, data, flag, check_sum, sent_addr, msg_type, msg_time, auth_info = send
    try:
        tail = _encode_send_tail(sent_addr, msg_type, msg_time, auth_info)
        if 1 << 28 <= check_sum < 1 << 31 and 0 <= flag < _MORE:
            sum_and_flag = bytes(
                (
                    0x28,
                    flag,
                    0x30,
                    check_sum & 0x7F | _MORE,
                    check_sum >> 7 & 0x7F | _MORE,
                    check_sum >> 14 & 0x7F | _MORE,
                    check_sum >> 21 & 0x7F | _MORE,
                    check_sum >> 28,
                )
            )
        else:
            sum_and_flag = b"\x28" + encode_varint(flag) + b"\x30" + encode_varint(check_sum)
        before = _before_data(client_id, topic_name, partition_id, len(data), len(sum_and_flag) + len(tail), timeout_ms)
        return encode_frame_of(serial_no, (before, data, sum_and_flag, tail))
    except (EncodeError, TypeError, ValueError, AttributeError) as error:
        raise LocalProtocolError(f"SendMessage cannot be sent: {error}") from error


@lru_cache(maxsize=16_384)
def _before_data(
    client_id: str, topic_name: str, partition_id: int, data_bytes: int, bytes_after: int, timeout_ms: int
) -> bytes:
    """All of the payload before the data: the same for all messages of a size to a partition."""
    request = b"".join(
        (
            b"\x0a",
            _text_field(client_id),
            b"\x12",
            _text_field(topic_name),
            b"\x18",
            encode_varint(partition_id),
            b"\x22",
            encode_varint(data_bytes),
        )
    )
    request_bytes = len(request) + data_bytes + bytes_after
    body = b"\x08\x0d\x10" + encode_varint(timeout_ms) + b"\x1a" + encode_varint(request_bytes)
    return _REQUEST_HEADS[_WRITE] + encode_varint(len(body) + request_bytes) + body + request


def _encode_send_tail(
    sent_addr: int, msg_type: str | None, msg_time: str | None, auth_info: AuthorizedInfo | None
) -> bytes:
    # One is kept, and known by its identity: to hash the token's parts would take longer than all the rest.
    last = _LAST_TAIL[0]
    if last[0] is auth_info and last[1] == sent_addr and last[2] == msg_type and last[3] == msg_time:
        return last[4]
    tail = b"\x38" + encode_varint(sent_addr)
    if msg_type is not None:
        tail += b"\x42" + _text_field(msg_type)
    if msg_time is not None:
        tail += b"\x4a" + _text_field(msg_time)
    if auth_info is not None:
        message = _pb.AuthorizedInfo()
        _PAIRS.fill(message, auth_info)
        tail += b"\x52" + _delimited(message)
    _LAST_TAIL[0] = auth_info, sent_addr, msg_type, msg_time, tail
    return tail


_Tail: TypeAlias = tuple[AuthorizedInfo | None, int, str | None, str | None, bytes]
_LAST_TAIL: Final[list[_Tail]] = [(None, 0, None, None, b"\x38\x00")]


def _text_field(text: str) -> bytes:
    data = text.encode()
    return encode_varint(len(data)) + data


def _encode_answer(response: Response, kind: type[ProtobufMessage]) -> bytes:
    if isinstance(response, GetMessageResponse) and response.body:
        return bytes(response.body)
    message = kind()
    if isinstance(response, GetMessageResponse | SendMessageResponse):
        for name in response._fields:
            if name != "body":
                setattr(message, name, getattr(response, name))
    else:
        _PAIRS.fill(message, response)
    return message.SerializeToString()


def _send_of(message: _pb.SendMessageRequestP2B) -> SendMessage:
    auth = message.auth_info
    return SendMessage(
        message.client_id,
        message.topic_name,
        message.partition_id,
        message.data,
        message.flag,
        message.check_sum,
        message.sent_addr,
        message.msg_type if message.HasField("msg_type") else None,
        message.msg_time if message.HasField("msg_time") else None,
        _PAIRS.value_of(auth, AuthorizedInfo) if message.HasField("auth_info") else None,  # type: ignore[arg-type]
    )


def _send_response_of(message: _pb.SendMessageResponseB2P) -> SendMessageResponse:
    # Once for every row that is written. A server 2.4.0 that has stored it says all of it.
    return _new_tuple(
        SendMessageResponse,
        (
            message.success,
            message.err_code,
            _text(message.err_msg),
            message.require_auth,
            message.message_id,
            message.append_time,
            message.append_offset,
        ),
    )


def _get_response_of(message: _pb.GetMessageResponseB2C, data: memoryview) -> GetMessageResponse:
    return GetMessageResponse(
        message.success,
        message.err_code,
        _text(message.err_msg),
        message.curr_offset if message.HasField("curr_offset") else -1,
        message.min_limit_time if message.HasField("min_limit_time") else -1,
        message.esc_flow_ctrl,
        message.curr_data_dlt if message.HasField("curr_data_dlt") else -1,
        message.require_slow,
        message.max_offset if message.HasField("max_offset") else -1,
        data,
    )


def _take_response_head(payload: memoryview) -> tuple[int, memoryview]:
    """The status of an answer, and the rest of it."""
    conn_header, at = _undelimited(payload, 0)
    _parse(_pb.RpcConnHeader, conn_header)
    header, at = _undelimited(payload, at)
    status = _parse(_pb.ResponseHeader, header).status
    return status, _undelimited(payload, at)[0]


def _take_response_body(body: memoryview) -> tuple[int, memoryview]:
    """Method and data of an answer; the usual form without copying the data."""
    if len(body) > 3 and body[0] == _METHOD and body[1] < _MORE and body[2] == _DATA:
        data, at = _undelimited(body, 3)
        if at == len(body):
            return body[1], data
    message = _parse(_pb.RspResponseBody, body)
    return message.method, memoryview(message.data)


def _undelimited(data: memoryview, at: int) -> tuple[memoryview, int]:
    """What stands at `at` after its size as a varint, and where it ends."""
    size = shift = 0
    try:
        while (byte := data[at]) >= _MORE:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
    except IndexError:
        size, byte, at = len(data), 0, len(data)
    size |= byte << shift
    at += 1
    if shift > 28 or at + size > len(data):
        raise RemoteProtocolError(
            f"a call of {len(data)} bytes cannot be parsed: a part ends outside: a damaged stream"
        )
    return data[at : at + size], at + size


MessageT = TypeVar("MessageT", bound=ProtobufMessage)


def _parse(kind: type[MessageT], data: memoryview) -> MessageT:
    message = kind()
    try:
        message.MergeFromString(bytes(data))
    except (DecodeError, ValueError) as error:
        raise RemoteProtocolError(
            f"{kind.__name__} of {len(data)} bytes cannot be parsed ({error}): a damaged stream"
        ) from error
    if not message.IsInitialized():
        # The Python runtimes parse a message without its required fields, though they refuse to write it.
        missing = message.FindInitializationErrors()  # type: ignore[attr-defined]  # absent from the stubs only
        raise RemoteProtocolError(f"{kind.__name__} without its required fields {', '.join(missing)}")
    return message


def _text(value: object) -> str:
    # Where the bytes are no UTF-8, some Python runtimes of protobuf give the bytes instead of an error.
    return value if isinstance(value, str) else repr(value)
