"""The calls of TubeMQ's RPC that are in use, requests and answers, as frozen values that declare their fields' numbers.

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
    """Start of a partition that is registered without `curr_offset` (server 2.4.0).

    When it is unregistered, STORED_OR_MIN commits the last fetch and STORED_OR_MAX rolls it back.
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


# Beginnings of commands.


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields with which answers to producers and to members that the master balances begin."""

    success: Annotated[bool, 1]
    err_code: Annotated[Int32, 2]
    err_msg: Annotated[str, 3]


@dataclass(frozen=True, slots=True)
class AnswerV2:
    """The same for members that choose their partitions themselves."""

    err_code: Annotated[Int32, 1]
    err_msg: Annotated[str, 2]


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """The fields with which requests of a member of a group begin."""

    client_id: Annotated[str, 1]
    group_name: Annotated[str, 2]


# Parts of commands.


@dataclass(frozen=True, slots=True)
class AuthenticateInfo:
    """Signed identity; see `authentication`."""

    user_name: Annotated[str, 1]
    timestamp: Annotated[Int64, 2]
    nonce: Annotated[Int32, 3]
    oth_params: Annotated[str, 4]
    signature: Annotated[str, 5] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MasterCertificateInfo:
    """Credentials of a request to a master: a signature, or the token of an earlier answer."""

    auth_info: Annotated[AuthenticateInfo | None, 1] = None
    authorized_token: Annotated[str | None, 2] = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuthorizedInfo:
    """Authorization that a master gives a client, which requests to brokers contain.

    Attributes:
        visit_authorized_token: proves a visit at the master; changes every 4 minutes, the last 6 are accepted.
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
    """Partitions that a member of a group is to take or to leave, and its answer.

    Attributes:
        op_type: `EventType`; a number, because a master may know more.
        status: `EventStatus`; masters leave it out.
        subscribe_info: see `BrokerPartition.subscribed`.
    """

    rebalance_id: Annotated[Int64, 1] = 0
    op_type: Annotated[Int32, 2] = EventType.UNKNOWN
    status: Annotated[Int32 | None, 3] = None
    subscribe_info: Annotated[tuple[str, ...], 4] = ()


@dataclass(frozen=True, slots=True)
class ClientSubRepInfo:
    """Partitions of a member that chooses them itself, reported to the master for its statistics.

    Attributes:
        part_sub_info: `topic#broker:partition,broker:partition` each (seen on master 2.4.0).
    """

    broker_config_id: Annotated[Int64, 1]
    topic_meta_info_id: Annotated[Int64, 2]
    lst_assigned_time: Annotated[Int64 | None, 3] = None
    report_sub_info: Annotated[bool | None, 4] = None
    part_sub_info: Annotated[tuple[str, ...], 5] = ()


@dataclass(frozen=True, slots=True)
class OpsTaskInfo:
    """Flow control of a group, by the version that the client has."""

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
        broker_check_sum: of the brokers the client knows; -1 for none.
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
    """RegisterResponseM2P: brokers, but no topics: those come with the first heartbeat (seen on master 2.4.0)."""

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
        broker_infos: see `Broker`; none where the client's check sum is the master's.
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


# Consumers that the master balances (V1).


@dataclass(frozen=True, slots=True)
class RegisterConsumer(MemberRequest):
    """RegisterRequestC2M: joins a group whose partitions the master shares out.

    Attributes:
        topic_condition: `topic#filter,filter` each.
        not_allocated: whether the member has no partitions from before.
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
    """RegisterResponseM2C: no partitions, they come as events.

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
        subscribe_info: every partition the member has, where `report_subscribe_info`.
        event: the one that was answered, with its status.
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
        event: what is to be done; said once and never again (seen on master 2.4.0).
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
    """CloseRequestC2M, of both kinds of consumers; one that is unknown is closed without an error (master 2.4.0)."""

    auth_info: Annotated[MasterCertificateInfo | None, 3] = None


@dataclass(frozen=True, slots=True)
class CloseConsumerResponse(Answer):
    """CloseResponseM2C."""


# Consumers that choose their partitions themselves (V2).


@dataclass(frozen=True, slots=True)
class RegisterConsumerV2(MemberRequest):
    """RegisterRequestC2MV2.

    Attributes:
        source_count: members that the group has in all; -1 for any number.
        node_id: which of them this is, from 0; -1 where `source_count` is.
        topic_condition: `topic#filter,filter` each.
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
    """HeartResponseM2CV2; the lists are there where the client's ids are not the master's."""

    broker_config_id: Annotated[Int64 | None, 3] = None
    broker_config_list: Annotated[tuple[str, ...], 4] = ()
    topic_meta_info_id: Annotated[Int64 | None, 5] = None
    topic_meta_info_list: Annotated[tuple[str, ...], 6] = ()
    ops_task_info: Annotated[OpsTaskInfo | None, 7] = None
    authorized_info: Annotated[AuthorizedInfo | None, 8] = None


@dataclass(frozen=True, slots=True)
class GetPartMeta(MemberRequest):
    """GetPartMetaRequestC2M; -2 for ids that are not known (seen on master 2.4.0)."""

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
        curr_offset: where it begins, to be compared with what was asked for; -1 with an error.
        max_offset: where data ends; with memory's, unless `qry_priority_id` was 1.
    """

    curr_offset: Annotated[Int64, 4] = -1
    max_offset: Annotated[Int64, 5] = -1


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat(MemberRequest):
    """HeartBeatRequestC2B: keeps partitions; a `qry_priority_id` that is left out is reset.

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
        last_pack_consumed: whether what was fetched before is committed by this.
        manual_commit_offset: whether the cursor moves on and nothing is committed by fetching.
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

    404 is the end of what can be read now, and may be before the end of data: what is not flushed yet. 200 without a
    message is normal. Only a position that has reached the end is the end.

    Attributes:
        curr_offset: where this answer began; -1 with an error.
        min_limit_time: ms to wait, to be obeyed with 452 only: 404 has a meaningless one (seen on broker 2.4.0).
        curr_data_dlt: bytes of data behind.
        max_offset: where data ends; -1 with an error.
        body: the answer itself, whose `messages` (field 4) are `TransferedMessage` each; for messages.py.
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
    """CommitOffsetRequestC2B: has no offset, it commits what was fetched.

    Attributes:
        last_pack_consumed: False rolls it back.
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
        curr_offset: the position from here on; -1 with an error.
    """

    curr_offset: Annotated[Int64, 4] = -1
    max_offset: Annotated[Int64, 5] = -1


class SendMessage(NamedTuple):
    """SendMessageRequestP2B.

    Attributes:
        data: the body; after the attributes where `flag` is 1 (see messages.py).
        check_sum: CRC-32 of data & 0x7FFFFFFF.
        sent_addr: our IPv4 address as a number.
        msg_type: what readers can filter by; stands in the attributes too.
        msg_time: the same, as yyyyMMddHHmm.
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
        append_offset: where it is in the store's index.
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
        status: ERROR: the handler threw; FATAL: the call could not be read, or has no handler.
        exception_name: a Java class.
        stack_trace: its message.
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
