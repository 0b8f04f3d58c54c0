"""Topic-partitions and offsets of TubeMQ, and their JSON forms.

An offset is a byte position in the index of a partition's store: each message of the store takes 28 bytes, and all
partitions of the store share the index (TubeMQ 2.4.0). A range is ``[start, end)``; the next range starts at ``end``.

Two JSON forms:

- the options ``startingOffsets`` and ``endingOffsets``, by topic, by ``brokerId:topic:partition``, or both::

      {"flights": "earliest", "1:weather:0": 2800, "1:weather:10000": "latest"}

- the offsets of a streaming checkpoint, see `encode_offsets`; also accepted as ``startingOffsets``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_mq_source.core.counters import Lag
from spark_mq_source.core.json_text import OFFSETS_VERSION, load_json_object, versioned_offsets

INDEX_BYTES: Final = 28
"""Index bytes per message: the unit of offsets (TubeMQ 2.4.0)."""

STORE_PARTITIONS: Final = 10_000
"""Stride of partition ids between stores: ``storeId * 10000 + n`` (TubeMQ 2.4.0)."""

EARLIEST: Final = -1
"""The broker's first stored message; never sent to a broker."""

LATEST: Final = 2**63 - 1
"""After every message, present and future; never sent to a broker."""

_INT32_MAX: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
# The topic names that a master accepts (TubeMQ 2.4.0).
_TOPIC: Final = re.compile(r"[A-Za-z][-\w]{0,63}", re.ASCII)


def parse_topic(text: str) -> str:
    """Check the name of a topic, and return it.

    Raises:
        ValueError: no topic can have this name.

    Example:
        >>> parse_topic("flights-2013")
        'flights-2013'
    """
    if not _TOPIC.fullmatch(text):
        raise ValueError(
            "a topic's name begins with a letter, contains only letters, digits, - and _, and has at most 64 characters"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic on one broker.

    Attributes:
        partition: id on that broker, ``storeId * 10000 + n``.

    Example:
        >>> TopicPartition.parse("1:flights:10002")
        TopicPartition(topic='flights', broker_id=1, partition=10002)
        >>> str(TopicPartition("flights", 1, 10002)), TopicPartition("flights", 1, 10002).store
        ('1:flights:10002', 1)
    """

    topic: str
    broker_id: int
    partition: int

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Parse the text of a topic-partition; the inverse of `str`.

        Raises:
            ValueError: not ``brokerId:topic:partition``.
        """
        broker_id, _, rest = text.partition(":")
        topic, _, partition = rest.partition(":")
        if not all(_NUMBER.fullmatch(n) and int(n) <= _INT32_MAX for n in (broker_id, partition)):
            raise ValueError("expected brokerId:topic:partition, such as 1:flights:0")
        return cls(parse_topic(topic), int(broker_id), int(partition))

    @property
    def store(self) -> int:
        """Id of the store on its broker; the partitions of a store share its index, and so its offsets."""
        return self.partition // STORE_PARTITIONS

    def __str__(self) -> str:
        return f"{self.broker_id}:{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """The parsed value of an option: one offset for all topic-partitions, or offsets by topic and topic-partition.

    Attributes:
        everywhere: the offset of every topic-partition, or None if `topics` and `partitions` have the offsets.
        topics: offsets by topic.
        partitions: offsets by topic-partition, with precedence over `topics`.

    Example:
        >>> wanted = parse_offsets('{"flights": "earliest", "1:flights:0": 280}')
        >>> [wanted.at(TopicPartition("flights", 1, n)) for n in range(2)], wanted.at(TopicPartition("other", 1, 0))
        ([280, -1], None)
    """

    everywhere: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)

    def at(self, tp: TopicPartition) -> int | None:
        """Return the offset for a topic-partition; None if the user named only others."""
        return self.partitions.get(tp, self.topics.get(tp.topic, self.everywhere))

    @property
    def values(self) -> tuple[int | None, ...]:
        """All offsets."""
        return (self.everywhere, *self.topics.values(), *self.partitions.values())


def _parse_offset(value: object) -> int:
    """Parse one offset of decoded JSON."""
    if isinstance(value, str) and value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    if type(value) is not int or not 0 <= value < LATEST or value % INDEX_BYTES:
        raise ValueError(f'expected "earliest", "latest" or an offset, a multiple of {INDEX_BYTES}')
    return value


def parse_offsets(text: str) -> OffsetOption:
    """Parse ``earliest``, ``latest`` or JSON (see the module's docstring).

    Raises:
        ValueError: not offsets; the message gives the place and the reason.

    Example:
        >>> parse_offsets("earliest").everywhere == EARLIEST
        True
        >>> parse_offsets('{"1:flights:0": 280}').partitions
        {TopicPartition(topic='flights', broker_id=1, partition=0): 280}
    """
    if not text.lstrip().startswith("{"):
        if text.lower() in ("earliest", "latest"):
            return OffsetOption(everywhere=_parse_offset(text))
        raise ValueError("expected earliest, latest or a JSON object that begins with {")
    document = load_json_object(text)
    if type(document.get("version")) is int and "positions" in document:
        return OffsetOption(partitions=decode_offsets(document).positions)
    if not document:
        raise ValueError("an empty JSON object names no topic")
    topics: dict[str, int] = {}
    partitions: dict[TopicPartition, int] = {}
    for name, value in document.items():
        try:
            if ":" in name:
                partitions[TopicPartition.parse(name)] = _parse_offset(value)
            else:
                topics[parse_topic(name)] = _parse_offset(value)
        except ValueError as error:
            raise ValueError(f'"{name}": {error}') from None
    return OffsetOption(topics=topics, partitions=partitions)


@dataclass(frozen=True, slots=True)
class Trigger:
    """The offsets of one trigger in a streaming checkpoint.

    Attributes:
        positions: the query's offsets after the trigger, for every topic-partition it has read.
        begins: the start offsets of this trigger, for the topic-partitions that it read. They can differ from the end
            of the previous trigger if another member of the group had the partition in between.

    Example:
        >>> tp = TopicPartition("flights", 1, 0)
        >>> decode_offsets(encode_offsets(Trigger({tp: 560}, {tp: 280}))) == Trigger({tp: 560}, {tp: 280})
        True
    """

    positions: Mapping[TopicPartition, int]
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)


def encode_offsets(trigger: Trigger) -> dict[str, object]:
    """Return the versioned form in a streaming checkpoint, sorted by name so that equal offsets are equal text.

    Example:
        >>> tp = TopicPartition("flights", 1, 0)
        >>> encode_offsets(Trigger({tp: 560}, {tp: 280}))
        {'version': 1, 'positions': {'1:flights:0': 560}, 'from': {'1:flights:0': 280}}
    """
    return {
        "version": OFFSETS_VERSION,
        "positions": {str(tp): trigger.positions[tp] for tp in sorted(trigger.positions)},
        "from": {str(tp): trigger.begins[tp] for tp in sorted(trigger.begins)},
    }


def decode_offsets(document: object) -> Trigger:
    """Parse offsets from decoded JSON; the inverse of `encode_offsets`.

    Raises:
        ValueError: an unknown version, or not this form; the message gives the place and the reason.
    """
    offsets = versioned_offsets(document)
    if offsets.keys() != {"version", "positions", "from"}:
        raise ValueError('offsets must have exactly the keys "version", "positions" and "from"')
    return Trigger(*(_decode_positions(name, offsets[name]) for name in ("positions", "from")))


def count_lag(read: object, newest: object, rows: int) -> list[Lag]:
    """Return the number of messages per topic between two documents of `encode_offsets`.

    The partitions of a store share its offsets, so the lag of a store is that of its slowest partition.

    Raises:
        ValueError: not documents of this form.

    Example:
        >>> partitions = [TopicPartition("flights", 1, n) for n in range(3)]
        >>> read, newest = (encode_offsets(Trigger(dict.fromkeys(partitions, at))) for at in (280, 560))
        >>> print(*count_lag(read, newest, 0))
        flights 10 messages
    """
    del rows
    at = decode_offsets(read).positions
    stores: dict[tuple[str, int, int], int] = {}
    for tp, end in decode_offsets(newest).positions.items():
        store = tp.topic, tp.broker_id, tp.store
        stores[store] = max(stores.get(store, 0), (end - at.get(tp, end)) // INDEX_BYTES)
    behind: dict[str, int] = {}
    for (topic, _, _), count in stores.items():
        behind[topic] = behind.get(topic, 0) + count
    return [Lag(topic, count, "messages") for topic, count in behind.items()]


def _decode_positions(name: str, positions: object) -> dict[TopicPartition, int]:
    if not isinstance(positions, Mapping):
        raise ValueError(f'"{name}" is not a JSON object')  # noqa: TRY004 - all of a user's mistakes are ValueErrors
    decoded = {}
    for key, value in positions.items():
        try:
            decoded[TopicPartition.parse(key)] = _parse_offset(value)
        except ValueError as error:
            raise ValueError(f'"{key}": {error}') from None
    return decoded
