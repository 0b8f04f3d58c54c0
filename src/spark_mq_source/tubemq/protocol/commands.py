"""The calls of TubeMQ's RPC in use, requests and answers, as frozen values that declare the numbers of their fields.

Numbers and types are those of TubeMQ's master and broker services (servers 2.4.0; seed "Client RPC"); each docstring
begins with the service's name of the message. Unused fields are omitted, and skipped when read. Field names are those
of the services in snake_case: they are not transmitted. None is not sent; a field that a peer did not send has the
default declared here.

SEND_MESSAGE and the answer to GET_MESSAGE, the hot paths, are plain tuples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, TypeAlias

from spark_mq_source.core.protobuf import Int32, Int64

SUCCESS: Final = 200
"""The `err_code` of every answer that is not an error."""


class Method(IntEnum):
    """`RequestBody.method`: those in use (server 2.4.0)."""

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
    """Start of a partition that is registered without `curr_offset` (server 2.4.0).

    When it is unregistered, STORED_OR_MIN commits the last fetch and STORED_OR_MAX rolls it back.
    """

    STORED_OR_MIN = 0
    STORED_OR_MAX = 1


class EventType(IntEnum):
    """`Event.op_type`; a master 2.4.0 sends ONLY_CONNECT and ONLY_DISCONNECT, the others are the seed's."""

    CONNECT = 1
    DISCONNECT = 2
    REPORT = 3
    STOPREBALANCE = 5
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20
    UNKNOWN = -1


class EventStatus(IntEnum):
    """`Event.status` (seed "Client RPC", section 5.6)."""

    DONE = 2
    FAILED = -2


# Common first fields of commands.


@dataclass(frozen=True, slots=True)
class Answer:
    """First fields of the answers to producers and to members with assigned partitions."""

    success: Annotated[bool, 1]
    err_code: Annotated[Int32, 2]
    err_msg: Annotated[str, 3]


@dataclass(frozen=True, slots=True)
class AnswerV2:
    """First fields of the answers to members that choose their own partitions."""

    err_code: Annotated[Int32, 1]
    err_msg: Annotated[str, 2]


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """First fields of the requests of a group's member."""

    client_id: Annotated[str, 1]
    group_name: Annotated[str, 2]


# Parts of commands.


@dataclass(frozen=True, slots=True)
class AuthenticateInfo:
    """Signed identity; see `authentication`. The time is in ms."""

    user_name: Annotated[str, 1]
    timestamp: Annotated[Int64, 2]
    nonce: Annotated[Int32, 3]
    oth_params: Annotated[str, 4]
    signature: Annotated[str, 5] = field(repr=False)

    @property
    def token(self) -> str:
        """Name, time, nonce and signature as one text, for brokers."""
        return f"{self.user_name} {self.timestamp} {self.nonce} {self.signature}"


@dataclass(frozen=True, slots=True)
class MasterCertificateInfo:
    """Credentials of a request to a master: a signature, or the token of an earlier answer."""

    auth_info: Annotated[AuthenticateInfo | None, 1] = None
    authorized_token: Annotated[str | None, 2] = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuthorizedInfo:
    """Authorization from a master, contained in requests to brokers.

    Attributes:
        visit_authorized_token: proves contact with the master; changes every 4 minutes, the last 6 are accepted.
        auth_authorized_token: proves that the master accepted the client.
    """

    visit_authorized_token: Annotated[Int64, 1] = field(repr=False)
    auth_authorized_token: Annotated[str | None, 2] = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ApprovedClientConfig:
    """Settings that a master prescribes to producers: the largest message in bytes."""

    config_id: Annotated[Int64, 1]
    max_msg_size: Annotated[Int32 | None, 2] = None


@dataclass(frozen=True, slots=True)
class Event:
    """Partitions that a member of a group must take or release, and its answer.

    Attributes:
        op_type: `EventType`; an int, because a newer master may have more.
        status: `EventStatus`; masters omit it.
        subscribe_info: see `BrokerPartition.subscribed`.
    """

    rebalance_id: Annotated[Int64, 1] = 0
    op_type: Annotated[Int32, 2] = EventType.UNKNOWN
    status: Annotated[Int32 | None, 3] = None
    subscribe_info: Annotated[tuple[str, ...], 4] = ()


@dataclass(frozen=True, slots=True)
class ClientSubRepInfo:
    """Partitions of a member that chooses its own, reported for the master's statistics.

    Attributes:
        part_sub_info: items `topic#broker:partition,broker:partition` (seen on master 2.4.0).
    """

    broker_config_id: Annotated[Int64, 1]
    topic_meta_info_id: Annotated[Int64, 2]
    lst_assigned_time: Annotated[Int64 | None, 3] = None
    report_sub_info: Annotated[bool | None, 4] = None
    part_sub_info: Annotated[tuple[str, ...], 5] = ()


@dataclass(frozen=True, slots=True)
class OpsTaskInfo:
    """Flow control of a group: the versions at the client."""

    group_flow_check_id: Annotated[Int64 | None, 1] = None
    def_flow_check_id: Annotated[Int64 | None, 2] = None
    qry_priority_id: Annotated[Int32 | None, 3] = None
    csm_frm_max_offset_ctrl_id: Annotated[Int64 | None, 4] = None
    require_auth: Annotated[bool | None, 5] = None
    def_flow_control_info: Annotated[str | None, 6] = None
    group_flow_control_info: Annotated[str | None, 7] = None


# Producers and the master.


@dataclass(frozen=True, slots=True)
class RegisterProducer:
    """RegisterRequestP2M.

    Attributes:
        broker_check_sum: checksum of the brokers known to the client; -1 for none.
    """

    client_id: Annotated[str, 1]
    topic_list: Annotated[tuple[str, ...], 2]
    host_name: Annotated[str, 4]
    broker_check_sum: Annotated[Int64, 3] = -1
    auth_info: Annotated[MasterCertificateInfo | None, 5] = None
    jdk_version: Annotated[str | None, 6] = None
    appd_config: Annotated[ApprovedClientConfig | None, 7] = None


@dataclass(frozen=True, slots=True)
class RegisterProducerResponse(Answer):
    """RegisterResponseM2P: brokers without topics, which come with the first heartbeat (seen on master 2.4.0)."""

    broker_check_sum: Annotated[Int64, 4] = -1
    broker_infos: Annotated[tuple[str, ...], 5] = ()
    authorized_info: Annotated[AuthorizedInfo | None, 6] = None
    appd_config: Annotated[ApprovedClientConfig | None, 7] = None


@dataclass(frozen=True, slots=True)
class ProducerHeartbeat:
    """HeartRequestP2M."""

    client_id: Annotated[str, 1]
    topic_list: Annotated[tuple[str, ...], 4]
    host_name: Annotated[str, 3]
    broker_check_sum: Annotated[Int64, 2] = -1
    auth_info: Annotated[MasterCertificateInfo | None, 5] = None
    appd_config: Annotated[ApprovedClientConfig | None, 6] = None


@dataclass(frozen=True, slots=True)
class ProducerHeartbeatResponse(Answer):
    """HeartResponseM2P.

    Attributes:
        topic_infos: see `parse_topic_infos`.
        broker_infos: see `Broker`; empty if the client's checksum equals the master's.
    """

    broker_check_sum: Annotated[Int64, 4] = -1
    topic_infos: Annotated[tuple[str, ...], 5] = ()
    broker_infos: Annotated[tuple[str, ...], 6] = ()
    require_auth: Annotated[bool, 7] = False
    authorized_info: Annotated[AuthorizedInfo | None, 8] = None
    appd_config: Annotated[ApprovedClientConfig | None, 9] = None


@dataclass(frozen=True, slots=True)
class CloseProducer:
    """CloseRequestP2M."""

    client_id: Annotated[str, 1]
    auth_info: Annotated[MasterCertificateInfo | None, 2] = None


@dataclass(frozen=True, slots=True)
class CloseProducerResponse(Answer):
    """CloseResponseM2P."""


# Consumers with partitions assigned by the master (V1).


@dataclass(frozen=True, slots=True)
class RegisterConsumer(MemberRequest):
    """RegisterRequestC2M: joins a group whose partitions the master assigns.

    Attributes:
        topic_condition: items `topic#filter,filter`.
        require_bound: whether the group starts a session at given offsets; the next fields belong to it.
        total_count: number of the session's members.
        required_partition: items `broker:topic:partition=offset`, joined by commas.
        not_allocated: whether the member has no partitions yet.
        select_big: whether the highest of several offsets for a partition wins.
    """

    host_name: Annotated[str, 3]
    topic_list: Annotated[tuple[str, ...], 4]
    subscribe_info: Annotated[tuple[str, ...], 5] = ()
    topic_condition: Annotated[tuple[str, ...], 6] = ()
    require_bound: Annotated[bool | None, 7] = None
    session_time: Annotated[Int64 | None, 8] = None
    session_key: Annotated[str | None, 9] = None
    total_count: Annotated[Int32 | None, 10] = None
    required_partition: Annotated[str | None, 11] = None
    not_allocated: Annotated[bool | None, 12] = None
    select_big: Annotated[bool | None, 13] = None
    group_flow_check_id: Annotated[Int64 | None, 14] = None
    def_flow_check_id: Annotated[Int64 | None, 15] = None
    qry_priority_id: Annotated[Int32 | None, 17] = None
    auth_info: Annotated[MasterCertificateInfo | None, 18] = None
    jdk_version: Annotated[str | None, 19] = None


@dataclass(frozen=True, slots=True)
class RegisterConsumerResponse(Answer):
    """RegisterResponseM2C: without partitions, which come as events.

    Attributes:
        not_allocated: whether the group waits for its first partitions.
    """

    not_allocated: Annotated[bool | None, 5] = None
    def_flow_check_id: Annotated[Int64 | None, 6] = None
    def_flow_control_info: Annotated[str | None, 7] = None
    group_flow_check_id: Annotated[Int64 | None, 8] = None
    group_flow_control_info: Annotated[str | None, 9] = None
    ssd_store_id: Annotated[Int64 | None, 10] = None
    qry_priority_id: Annotated[Int32 | None, 11] = None
    authorized_info: Annotated[AuthorizedInfo | None, 12] = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat(MemberRequest):
    """HeartRequestC2M.

    Attributes:
        subscribe_info: all partitions of the member, with `report_subscribe_info`.
        event: the answered event, with its status.
    """

    report_subscribe_info: Annotated[bool, 4]
    subscribe_info: Annotated[tuple[str, ...], 3] = ()
    event: Annotated[Event | None, 5] = None
    def_flow_check_id: Annotated[Int64 | None, 6] = None
    group_flow_check_id: Annotated[Int64 | None, 7] = None
    qry_priority_id: Annotated[Int32 | None, 9] = None
    auth_info: Annotated[MasterCertificateInfo | None, 10] = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse(Answer):
    """HeartResponseM2C.

    Attributes:
        event: the next rebalance event; sent only once (seen on master 2.4.0).
    """

    event: Annotated[Event | None, 4] = None
    not_allocated: Annotated[bool | None, 5] = None
    def_flow_check_id: Annotated[Int64 | None, 6] = None
    def_flow_control_info: Annotated[str | None, 7] = None
    group_flow_check_id: Annotated[Int64 | None, 8] = None
    group_flow_control_info: Annotated[str | None, 9] = None
    ssd_store_id: Annotated[Int64 | None, 10] = None
    qry_priority_id: Annotated[Int32 | None, 11] = None
    require_auth: Annotated[bool | None, 12] = None
    authorized_info: Annotated[AuthorizedInfo | None, 13] = None


@dataclass(frozen=True, slots=True)
class CloseConsumer(MemberRequest):
    """CloseRequestC2M, of both kinds of consumers; an unknown one is no error (master 2.4.0)."""

    auth_info: Annotated[MasterCertificateInfo | None, 3] = None


@dataclass(frozen=True, slots=True)
class CloseConsumerResponse(Answer):
    """CloseResponseM2C."""


# Consumers that choose their own partitions (V2).


@dataclass(frozen=True, slots=True)
class RegisterConsumerV2(MemberRequest):
    """RegisterRequestC2MV2.

    Attributes:
        source_count: total number of members in the group; -1 for any number.
        node_id: index of this member, from 0; -1 if `source_count` is.
        topic_condition: items `topic#filter,filter`.
    """

    host_name: Annotated[str, 3]
    topic_list: Annotated[tuple[str, ...], 6]
    source_count: Annotated[Int32, 4] = -1
    node_id: Annotated[Int32, 5] = -1
    topic_condition: Annotated[tuple[str, ...], 7] = ()
    sub_rep_info: Annotated[ClientSubRepInfo | None, 8] = None
    ops_task_info: Annotated[OpsTaskInfo | None, 9] = None
    auth_info: Annotated[MasterCertificateInfo | None, 10] = None
    jdk_version: Annotated[str | None, 11] = None


@dataclass(frozen=True, slots=True)
class RegisterConsumerV2Response(AnswerV2):
    """RegisterResponseM2CV2."""

    broker_config_id: Annotated[Int64 | None, 3] = None
    broker_config_list: Annotated[tuple[str, ...], 4] = ()
    ops_task_info: Annotated[OpsTaskInfo | None, 5] = None
    authorized_info: Annotated[AuthorizedInfo | None, 6] = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatV2(MemberRequest):
    """HeartRequestC2MV2."""

    sub_rep_info: Annotated[ClientSubRepInfo | None, 3] = None
    ops_task_info: Annotated[OpsTaskInfo | None, 4] = None
    auth_info: Annotated[MasterCertificateInfo | None, 5] = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatV2Response(AnswerV2):
    """HeartResponseM2CV2; it has the lists if the client's ids differ from the master's."""

    broker_config_id: Annotated[Int64 | None, 3] = None
    broker_config_list: Annotated[tuple[str, ...], 4] = ()
    topic_meta_info_id: Annotated[Int64 | None, 5] = None
    topic_meta_info_list: Annotated[tuple[str, ...], 6] = ()
    ops_task_info: Annotated[OpsTaskInfo | None, 7] = None
    authorized_info: Annotated[AuthorizedInfo | None, 8] = None


@dataclass(frozen=True, slots=True)
class GetPartMeta(MemberRequest):
    """GetPartMetaRequestC2M; unknown ids are -2 (seen on master 2.4.0)."""

    broker_config_id: Annotated[Int64, 3] = -2
    topic_meta_info_id: Annotated[Int64, 4] = -2
    auth_info: Annotated[MasterCertificateInfo | None, 5] = None


@dataclass(frozen=True, slots=True)
class GetPartMetaResponse(AnswerV2):
    """GetPartMetaResponseM2C.

    Attributes:
        topic_meta_info_list: see `parse_topic_metas`.
        broker_config_list: see `Broker`.
    """

    broker_config_id: Annotated[Int64 | None, 3] = None
    topic_meta_info_id: Annotated[Int64 | None, 4] = None
    topic_meta_info_list: Annotated[tuple[str, ...], 5] = ()
    broker_config_list: Annotated[tuple[str, ...], 6] = ()


# The broker.


@dataclass(frozen=True, slots=True)
class RegisterPartition:
    """RegisterRequestC2B: registers or unregisters a partition.

    A second registration by the same `client_id` succeeds, and silently moves the cursor of the first.

    Attributes:
        op_type: `RegisterType`.
        read_status: `ReadStatus`.
        filter_cond_str: the wanted message types; the broker compares hashes, so others may be sent too.
        curr_offset: start, a byte position in the index, rounded down to a multiple of 28 and limited to existing data;
            ignored if negative.
        qry_priority_id: data to read: flushed with 1, also in memory with 301, filtered with 303.
    """

    op_type: Annotated[Int32, 1]
    client_id: Annotated[str, 2]
    group_name: Annotated[str, 3]
    topic_name: Annotated[str, 4]
    partition_id: Annotated[Int32, 5]
    read_status: Annotated[Int32, 6] = ReadStatus.STORED_OR_MIN
    filter_cond_str: Annotated[tuple[str, ...], 7] = ()
    curr_offset: Annotated[Int64 | None, 8] = None
    session_key: Annotated[str | None, 9] = None
    session_time: Annotated[Int64 | None, 10] = None
    qry_priority_id: Annotated[Int32 | None, 12] = None
    auth_info: Annotated[AuthorizedInfo | None, 13] = None


@dataclass(frozen=True, slots=True)
class RegisterPartitionResponse(Answer):
    """RegisterResponseB2C.

    Attributes:
        curr_offset: actual start, to be compared with the request; -1 with an error.
        max_offset: end of the data; includes memory, unless `qry_priority_id` was 1.
    """

    curr_offset: Annotated[Int64, 4] = -1
    max_offset: Annotated[Int64, 5] = -1


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat(MemberRequest):
    """HeartBeatRequestC2B: keeps partitions registered; an omitted `qry_priority_id` is reset.

    Attributes:
        partition_info: see `BrokerPartition`.
    """

    partition_info: Annotated[tuple[str, ...], 4]
    read_status: Annotated[Int32, 3] = ReadStatus.STORED_OR_MIN
    qry_priority_id: Annotated[Int32 | None, 6] = None
    auth_info: Annotated[AuthorizedInfo | None, 7] = None


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatResponse(Answer):
    """HeartBeatResponseB2C.

    Attributes:
        failure_info: see `parse_failure`.
    """

    has_part_failure: Annotated[bool, 4] = False
    failure_info: Annotated[tuple[str, ...], 5] = ()
    require_auth: Annotated[bool, 6] = False


@dataclass(frozen=True, slots=True)
class GetMessage:
    """GetMessageRequestC2B.

    Attributes:
        last_pack_consumed: whether this commits the previous fetch.
        manual_commit_offset: whether a fetch moves the cursor without a commit.
    """

    client_id: Annotated[str, 1]
    partition_id: Annotated[Int32, 2]
    group_name: Annotated[str, 3]
    topic_name: Annotated[str, 4]
    last_pack_consumed: Annotated[bool, 5] = False
    manual_commit_offset: Annotated[bool, 6] = False
    esc_flow_ctrl: Annotated[bool | None, 7] = None


class GetMessageResponse(NamedTuple):
    """GetMessageResponseB2C.

    404 means that nothing more can be read now, possibly before the end of the data, which may not be flushed yet. 200
    without a message is normal. Only a position at the end means the end.

    Attributes:
        curr_offset: start of this answer; -1 with an error.
        min_limit_time: ms to wait; valid only with 452, meaningless with 404 (seen on broker 2.4.0).
        curr_data_dlt: bytes of data left.
        max_offset: end of the data; -1 with an error.
        body: the answer itself, whose `messages` (field 4) are `TransferedMessage`; for messages.py.
    """

    success: Annotated[bool, 1]
    err_code: Annotated[Int32, 2]
    err_msg: Annotated[str, 3] = ""
    curr_offset: Annotated[Int64, 5] = -1
    min_limit_time: Annotated[Int32, 6] = -1
    esc_flow_ctrl: Annotated[bool, 7] = False
    curr_data_dlt: Annotated[Int64, 8] = -1
    require_slow: Annotated[bool, 9] = False
    max_offset: Annotated[Int64, 10] = -1
    body: memoryview = memoryview(b"")


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """CommitOffsetRequestC2B: without an offset; it commits the last fetch.

    Attributes:
        last_pack_consumed: False rolls the fetch back.
    """

    client_id: Annotated[str, 1]
    topic_name: Annotated[str, 2]
    partition_id: Annotated[Int32, 3]
    group_name: Annotated[str, 4]
    last_pack_consumed: Annotated[bool, 5] = True


@dataclass(frozen=True, slots=True)
class CommitOffsetResponse(Answer):
    """CommitOffsetResponseB2C.

    Attributes:
        curr_offset: the new position; -1 with an error.
    """

    curr_offset: Annotated[Int64, 4] = -1
    max_offset: Annotated[Int64, 5] = -1


class SendMessage(NamedTuple):
    """SendMessageRequestP2B.

    Attributes:
        data: the body; after the attributes if `flag` is 1 (see messages.py).
        check_sum: CRC-32 of data & 0x7FFFFFFF.
        sent_addr: our IPv4 address as a number.
        msg_type: type for readers' filters; also in the attributes.
        msg_time: yyyyMMddHHmm; also in the attributes.
    """

    client_id: Annotated[str, 1]
    topic_name: Annotated[str, 2]
    partition_id: Annotated[Int32, 3]
    data: Annotated[bytes | memoryview, 4]
    flag: Annotated[Int32, 5]
    check_sum: Annotated[Int32, 6]
    sent_addr: Annotated[Int32, 7]
    msg_type: Annotated[str | None, 8] = None
    msg_time: Annotated[str | None, 9] = None
    auth_info: Annotated[AuthorizedInfo | None, 10] = None


class SendMessageResponse(NamedTuple):
    """SendMessageResponseB2P.

    Attributes:
        message_id: not unique.
        append_offset: its offset in the store's index.
    """

    success: Annotated[bool, 1]
    err_code: Annotated[Int32, 2]
    err_msg: Annotated[str, 3] = ""
    require_auth: Annotated[bool, 4] = False
    message_id: Annotated[Int64, 5] = -1
    append_time: Annotated[Int64, 6] = -1
    append_offset: Annotated[Int64, 7] = -1


@dataclass(frozen=True, slots=True)
class RpcException:
    """The answer to a call that was not handled.

    Attributes:
        status: ERROR: the handler raised an exception; FATAL: the call could not be read, or has no handler.
        exception_name: name of a Java class.
        stack_trace: message of the exception.
    """

    status: int
    exception_name: Annotated[str, 1]
    stack_trace: Annotated[str, 2] = ""


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
