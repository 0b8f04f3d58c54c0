"""Classes of the library `protobuf` for our messages, made from our declarations: an independent encoder and parser.

`pulsar.MessageMetadata` and the like are classes of the library `protobuf`. Some messages are declared only here:
only loops read their fields, by their tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from spark_mq_source.core.protobuf import Int32, Int64, Uint64, _fields_of
from spark_mq_source.pulsar.protocol import codec as pulsar_codec
from spark_mq_source.pulsar.protocol.commands import KeyValue
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata
from spark_mq_source.tubemq.protocol import codec as tubemq_codec
from spark_mq_source.tubemq.protocol.commands import RpcException

_DEFAULTS: Final = {"num_messages_in_batch": 1}
"""Fields with another default than ours."""


class Classes:
    """Protobuf's classes, as attributes, under the names of ours."""

    def __init__(self, package: str, *kinds: type) -> None:
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
        names: dict[type, str] = {}
        for kind in kinds:
            _declare(kind, file, names)
        pool = DescriptorPool()
        pool.AddSerializedFile(file.SerializeToString())
        messages = pool.FindFileByName(file.name).message_types_by_name
        self._classes: dict[str, Any] = {name: GetMessageClass(message) for name, message in messages.items()}
        self.of: Final = {kind: self._classes[name] for kind, name in names.items()}
        """The class of protobuf for each of our classes."""

    def __getattr__(self, name: str) -> Any:
        if name in self._classes:
            return self._classes[name]
        raise AttributeError(name)


def _declare(kind: type, file: FileDescriptorProto, names: dict[type, str]) -> str:
    if kind not in names:
        names[kind] = kind.__name__
        message = DescriptorProto(name=kind.__name__)
        for number, name, label, wire_type, part, default in _fields_of(kind):
            field = message.field.add(name=name, number=number, label=label)
            known = _DEFAULTS.get(name, default)
            if isinstance(known, int | str):
                field.default_value = f"{known}".lower() if isinstance(known, bool) else f"{known}"
            if wire_type is None:
                field.type_name = f".{file.package}.{_declare(part, file, names)}"
            else:
                field.type = wire_type  # type: ignore[assignment]
        file.message_type.append(message)
    return names[kind]


@dataclass(frozen=True, slots=True)
class SingleMessageMetadata:
    """The metadata of a message in a batch."""

    payload_size: Annotated[Int32, 3]
    properties: Annotated[tuple[KeyValue, ...], 1] = ()
    partition_key: Annotated[str | None, 2] = None
    compacted_out: Annotated[bool, 4] = False
    event_time: Annotated[Uint64, 5] = 0
    partition_key_b64_encoded: Annotated[bool, 6] = False
    ordering_key: Annotated[bytes | None, 7] = None
    sequence_id: Annotated[Uint64 | None, 8] = None
    null_value: Annotated[bool, 9] = False
    null_partition_key: Annotated[bool, 10] = False


@dataclass(frozen=True, slots=True)
class BrokerEntryMetadata:
    """The broker's metadata of an entry."""

    broker_timestamp: Annotated[Uint64 | None, 1] = None
    index: Annotated[Uint64 | None, 2] = None


@dataclass(frozen=True, slots=True)
class TransferedMessage:
    """A message in an answer to GET_MESSAGE."""

    message_id: Annotated[Int64, 1]
    check_sum: Annotated[Int32, 2]
    pay_load_data: Annotated[bytes, 3]
    flag: Annotated[Int32, 4]


@dataclass(frozen=True, slots=True)
class TransferedMessages:
    """The same answer without its other fields."""

    messages: Annotated[tuple[TransferedMessage, ...], 4]


pulsar: Final = Classes("pulsar", pulsar_codec.BaseCommand, MessageMetadata, SingleMessageMetadata, BrokerEntryMetadata)
tubemq: Final = Classes(
    "tubemq",
    *tubemq_codec._METHODS,
    RpcException,
    tubemq_codec.RpcConnHeader,
    tubemq_codec.RequestBody,
    tubemq_codec.ResponseHeader,
    tubemq_codec.RspResponseBody,
    TransferedMessages,
)
