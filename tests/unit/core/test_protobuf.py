from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pytest

from spark_mq_source.core.protobuf import FieldPairs
from spark_mq_source.pulsar.protocol import _pb


class Kind(IntEnum):
    NONE = 0
    LZ4 = 1


@dataclass(frozen=True)
class Pair:
    key: str
    value: str = "default"


@dataclass(frozen=True)
class Metadata:
    """Some fields of `MessageMetadata`."""

    producer_name: str
    sequence_id: int
    publish_time: int = 0
    properties: tuple[Pair, ...] = ()
    compression: Kind | None = None
    partition_key: str | None = None


@dataclass(frozen=True)
class Id:
    """Some fields of `MessageIdData`, one of which is a message in a message."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    ack_set: tuple[int, ...] = ()
    first_chunk_message_id: Id | None = None


def test_every_kind_of_field_goes_there_and_back() -> None:
    pairs = FieldPairs()
    metadata = Metadata("p", 7, 8, (Pair("k", "v"), Pair("l", "")), Kind.LZ4, "ä")
    message = _pb.MessageMetadata()
    pairs.fill(message, metadata)
    again = _pb.MessageMetadata.FromString(message.SerializeToString())
    assert (again.compression, [(p.key, p.value) for p in again.properties]) == (1, [("k", "v"), ("l", "")])
    assert pairs.value_of(again, Metadata) == metadata
    nested = Id(1, 2, 3, (-1, 5), Id(4, 5))
    chunk = _pb.MessageIdData()
    pairs.fill(chunk, nested)
    assert pairs.value_of(chunk, Id) == nested


def test_none_is_not_written_and_what_is_not_there_has_the_default() -> None:
    message = _pb.MessageMetadata()
    FieldPairs().fill(message, Metadata("p", 7))
    assert not message.HasField("compression")
    assert not message.HasField("partition_key")
    assert message.HasField("publish_time")
    message.ClearField("publish_time")
    assert FieldPairs().value_of(message, Metadata) == Metadata("p", 7)


def test_unsigned_numbers_from_2_to_the_63_on_are_negative() -> None:
    message = _pb.MessageIdData()
    FieldPairs().fill(message, Id(-1, 2**63 - 1))
    assert (message.ledger_id, message.entry_id) == (2**64 - 1, 2**63 - 1)
    assert FieldPairs().value_of(message, Id) == Id(-1, 2**63 - 1)


def test_defaults_are_left_out_of_the_classes_that_say_so() -> None:
    for pairs, written in ((FieldPairs(), True), (FieldPairs({Id}), False)):
        message = _pb.MessageIdData()
        pairs.fill(message, Id(1, 2, partition=-1))
        assert message.HasField("partition") is written


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (Metadata(None, 7), None),  # type: ignore[arg-type]
        (Metadata(7, 7), TypeError),  # type: ignore[arg-type]
        (Metadata("p", 2**64), ValueError),
        (Metadata("\ud800", 1), ValueError),
    ],
)
def test_what_does_not_fit(value: Metadata, error: type[Exception] | None) -> None:
    if error is None:
        FieldPairs().fill(_pb.MessageMetadata(), value)
        return
    with pytest.raises(error):
        FieldPairs().fill(_pb.MessageMetadata(), value)


def test_a_number_that_is_none_of_an_enum() -> None:
    message = _pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, compression=9)
    with pytest.raises(ValueError, match="9 is not a valid Kind"):
        FieldPairs().value_of(message, Metadata)


def test_a_field_that_has_no_default_has_to_be_there() -> None:
    with pytest.raises(ValueError, match="entry_id"):
        FieldPairs().value_of(_pb.MessageIdData(ledger_id=1), Id)
