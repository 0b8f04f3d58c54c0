"""The hot paths of receiving and acknowledging: MESSAGE in its usual form, and ACK of many entries."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.varint import encode_sized, encode_varint, take_varint
from spark_mq_source.pulsar.protocol.commands import AckEntries, Message

_new_tuple = tuple.__new__

_ONE_BYTE: Final = tuple(bytes([value]) for value in range(64))

# The usual MESSAGE, 99.99 % of those received. Fields in order, no redelivery count and no ack_set:
#   08 09                      BaseCommand.type = MESSAGE
#   4a <size>                  BaseCommand.message
#     08 <varint>              consumer_id
#     12 <size>                message_id
#       08 <varint>            ledger_id
#       10 <varint>            entry_id
#       [18 <varint>]          partition; -1 takes ten bytes
# Anything else goes to the codec, so nothing here has to be an error.
MESSAGE_PREFIX: Final = b"\x08\x09\x4a"
_NO_PARTITION: Final = b"\x18" + b"\xff" * 9 + b"\x01"
_CONSUMER_ID, _MESSAGE_ID, _LEDGER_ID, _ENTRY_ID, _PARTITION = 0x08, 0x12, 0x08, 0x10, 0x18
_MORE: Final = 0x80
_MAX_USUAL_BYTES: Final = 64
"""A usual MESSAGE has at most 50 bytes; the decoder relies on sizes below 128, which are one-byte varints."""
_MAX_USUAL_SHIFT: Final = 56
"""Longer varints are ids from 2^63 on, which are negative here, or invalid."""
_PARTITION_FIELD_BYTES: Final = (2, 3)


def decode_usual_message(data: bytes, body: memoryview) -> Message | None:  # noqa: PLR0911, PLR0912 - one a doubt
    """Decode the command of a MESSAGE; return None if it does not have the usual form."""
    # A third of the codec's time; hence the inlined varints.
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


# An ACK:
#   08 0a                      BaseCommand.type = ACK
#   52 <size>                  BaseCommand.ack
#     08 <varint>              consumer_id
#     10 00                    ack_type = Individual
#     1a <size>                message_id, for each entry
#       08 <varint>            ledger_id
#       10 <varint>            entry_id
#     40 <varint>              request_id
_ACK_PREFIX: Final = b"\x08\x0a\x52"
_INDIVIDUAL: Final = b"\x10\x00"


def encode_ack_entries(ack: AckEntries) -> bytes:
    """Return the encoded command of an ACK.

    Example:
        >>> encode_ack_entries(AckEntries(consumer_id=1, entries=[(7, 0), (7, 300)], request_id=5)).hex(" ", -4)
        '080a5213 08011000 1a040807 10001a05 080710ac 024005'
    """
    # A sixth of the codec's time.
    parts = [b"\x08", encode_varint(ack.consumer_id), _INDIVIDUAL]
    last_ledger, head = None, b""
    for ledger_id, entry_id in ack.entries:
        if ledger_id != last_ledger:
            last_ledger, head = ledger_id, b"\x08" + encode_varint(ledger_id) + b"\x10"
        entry = encode_varint(entry_id)
        # Two varints take less than 128 bytes.
        parts += (b"\x1a", _ONE_BYTE[len(head) + len(entry)], head, entry)
    parts += (b"\x40", encode_varint(ack.request_id))
    return _ACK_PREFIX + encode_sized(b"".join(parts))
