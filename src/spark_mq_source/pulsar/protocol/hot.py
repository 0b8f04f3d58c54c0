"""The hot path of receiving: MESSAGE in its usual form."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.varint import take_varint
from spark_mq_source.pulsar.protocol.commands import Message

_new_tuple = tuple.__new__

# The usual MESSAGE, 99.99 % of what is received. Fields in order, no redelivery count and no ack_set:
#   08 09                      BaseCommand.type = MESSAGE
#   4a <size>                  BaseCommand.message
#     08 <varint>              consumer_id
#     12 <size>                message_id
#       08 <varint>            ledger_id
#       10 <varint>            entry_id
#       [18 <varint>]          partition; -1 takes ten bytes
# Anything else, whatever it is, goes to the codec, so nothing here has to be an error.
MESSAGE_PREFIX: Final = b"\x08\x09\x4a"
_NO_PARTITION: Final = b"\x18" + b"\xff" * 9 + b"\x01"
_CONSUMER_ID, _MESSAGE_ID, _LEDGER_ID, _ENTRY_ID, _PARTITION = 0x08, 0x12, 0x08, 0x10, 0x18
_MORE: Final = 0x80
_MAX_USUAL_BYTES: Final = 64
"""A usual MESSAGE has 50 bytes at most; sizes below 128 are varints of one byte, which is relied upon."""
_MAX_USUAL_SHIFT: Final = 56
"""Longer varints are ids from 2^63 on, which are negative here, or broken."""
_PARTITION_FIELD_BYTES: Final = (2, 3)


def decode_usual_message(data: bytes, body: memoryview) -> Message | None:  # noqa: PLR0911, PLR0912 - one a doubt
    """Decodes the command of a MESSAGE; returns None if it does not have the usual form."""
    # A third of the time that the codec takes; hence the varints written out.
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
