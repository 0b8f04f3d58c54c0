"""Where in a TubeMQ topic: topic-partitions, offsets, and their JSON forms.

An offset is a position in the index of a partition's store, in bytes: each message of the store takes 28 of them, and
all partitions of the store share it (TubeMQ 2.4.0). A range is ``[start, end)``; ``end`` is where the next one starts.

Two JSON forms:

- what a user writes as ``startingOffsets`` or ``endingOffsets``, by topic, by ``brokerId:topic:partition``, or both::

      {"flights": "earliest", "1:weather:0": 2800, "1:weather:10000": "latest"}

- what a streaming checkpoint holds, see `encode_offsets`. A user may paste it as ``startingOffsets`` as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_mq_source.core.counters import Lag
from spark_mq_source.core.json_text import load_json_object

OFFSETS_VERSION: Final = 1

INDEX_BYTES: Final = 28
"""What one message takes of its store's index: the unit of offsets (TubeMQ 2.4.0)."""

STORE_PARTITIONS: Final = 10_000
"""Partition ids of one store: ``storeId * 10000 + n`` (TubeMQ 2.4.0)."""

EARLIEST: Final = -1
"""Before the first message that the broker still has: a wish, never sent to a broker."""

LATEST: Final = 2**63 - 1
"""After every message, now and later: a wish, never sent to a broker."""

_INT32_MAX: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
# The form and length that a master gives a topic's name (TubeMQ 2.4.0).
_TOPIC: Final = re.compile(r"[A-Za-z][-\w]{0,63}", re.ASCII)


def parse_topic(text: str) -> str:
    """The name of a topic, checked.

    Raises:
        ValueError: no topic can have this name.

    Example:
        >>> parse_topic("flights-2013")
        'flights-2013'
    """
    if not _TOPIC.fullmatch(text):
        raise ValueError(
            "a topic's name begins with a letter, has letters, digits, - and _ only, and at most 64 of them"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic on one broker.

    Attributes:
        topic: its name.
        broker_id: of the broker that has it.
        partition: its number on that broker, ``storeId * 10000 + n``.

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
        """The inverse of `str`.

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
        """The store on its broker: partitions of one store share its index and so their offsets."""
        return self.partition // STORE_PARTITIONS

    def __str__(self) -> str:
        return f"{self.broker_id}:{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True)
class WantedOffsets:
    """What a user asked for: one offset everywhere, or one for each topic or topic-partition named.

    Attributes:
        everywhere: the offset of each topic-partition, or None where `topics` and `partitions` have them.
        topics: offsets by topic.
        partitions: offsets by topic-partition; they win.

    Example:
        >>> wanted = parse_offsets('{"flights": "earliest", "1:flights:0": 280}')
        >>> [wanted.at(TopicPartition("flights", 1, n)) for n in range(2)], wanted.at(TopicPartition("other", 1, 0))
        ([280, -1], None)
    """

    everywhere: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)

    def at(self, tp: TopicPartition) -> int | None:
        """The offset for a topic-partition; None means that the user named others, and not this one."""
        return self.partitions.get(tp, self.topics.get(tp.topic, self.everywhere))

    @property
    def values(self) -> tuple[int | None, ...]:
        """All the offsets in it."""
        return (self.everywhere, *self.topics.values(), *self.partitions.values())


def _parse_offset(value: object) -> int:
    """One offset of decoded JSON.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str) and value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    if type(value) is not int or not 0 <= value < LATEST or value % INDEX_BYTES:
        raise ValueError(f'expected "earliest", "latest" or an offset, which is a multiple of {INDEX_BYTES}')
    return value


def parse_offsets(text: str) -> WantedOffsets:
    """Offsets from what a user writes: ``earliest``, ``latest`` or JSON (see the module's docstring).

    Raises:
        ValueError: anything else; the message says what and where.

    Example:
        >>> parse_offsets("earliest").everywhere == EARLIEST
        True
        >>> parse_offsets('{"1:flights:0": 280}').partitions
        {TopicPartition(topic='flights', broker_id=1, partition=0): 280}
    """
    if not text.lstrip().startswith("{"):
        if text.lower() in ("earliest", "latest"):
            return WantedOffsets(everywhere=_parse_offset(text))
        raise ValueError("expected earliest, latest or a JSON object that begins with {")
    document = load_json_object(text)
    if type(document.get("version")) is int and "positions" in document:
        return WantedOffsets(partitions=decode_offsets(document).positions)
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
    return WantedOffsets(topics=topics, partitions=partitions)


@dataclass(frozen=True, slots=True)
class Trigger:
    """What a streaming checkpoint says of one trigger.

    Attributes:
        positions: where the query is after it, in every topic-partition it has read.
        begins: where this trigger began in those that it read. That is not always the end of the trigger before:
            another member of the group may have had the partition in between.

    Example:
        >>> tp = TopicPartition("flights", 1, 0)
        >>> decode_offsets(encode_offsets(Trigger({tp: 560}, {tp: 280}))) == Trigger({tp: 560}, {tp: 280})
        True
    """

    positions: Mapping[TopicPartition, int]
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)


def encode_offsets(trigger: Trigger) -> dict[str, object]:
    """The versioned form that a streaming checkpoint holds, sorted by name so that equal offsets are equal text.

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
    """The inverse of `encode_offsets`, from decoded JSON.

    Raises:
        ValueError: an unknown version, or not this form; the message says what and where.
    """
    if not isinstance(document, Mapping) or "version" not in document:
        raise ValueError('offsets without a "version" were not written by this package')
    version = document["version"]
    if type(version) is not int or version != OFFSETS_VERSION:
        raise ValueError(
            f"offsets of version {version!r}, and this release knows version {OFFSETS_VERSION} only; "
            "read them with the release that wrote them"
        )
    if document.keys() != {"version", "positions", "from"}:
        raise ValueError('offsets must have "version", "positions" and "from" and nothing else')
    return Trigger(*(_decode_positions(name, document[name]) for name in ("positions", "from")))


def count_lag(read: object, newest: object, rows: int) -> list[Lag]:
    """How many messages each topic has between two documents of `encode_offsets`.

    The partitions of a store share its offsets, so what is behind in a store is what its slowest partition is.

    Args:
        read: where a query is.
        newest: where it could be.
        rows: how many it has read in between; not needed here.

    Raises:
        ValueError: these are not documents of this form.

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
