"""Topic names, topic-partitions and positions of Pulsar: parsing, total order, JSON forms.

A position is that of the last message already read. A range is ``(start, end]`` by the order of positions, so the end
of one range is the start of the next, and neither end has to be an existing entry.

Four JSON forms, all with exact int64 numbers:

- the options ``startingOffsets`` and ``endingOffsets``, any mixture of::

      {"persistent://public/default/t-partition-0": {"ledger": 12, "entry": 3, "batch": -1}}
      {"t": {"0": {"ledger": 12, "entry": 3}, "1": "earliest"}}
      {"t": "latest"}

- the same with message ids as pulsar-spark has them, lists of bytes, see `parse_message_id`;
- the same with times (milliseconds since 1970 or ISO-8601 text) instead of positions;
- the offsets of a streaming checkpoint, see `encode_offsets`; also accepted as ``startingOffsets``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Final, Generic, TypeVar

from spark_mq_source.core import queue_offsets
from spark_mq_source.core.counters import Lag
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.json_text import OFFSETS_VERSION, load_json_object, versioned_offsets
from spark_mq_source.core.protobuf import signed64
from spark_mq_source.core.protobuf_fields import take_fields

T = TypeVar("T")


_INT64_MAX: Final = 2**63 - 1
_LEDGER_TAG, _ENTRY_TAG = 1 << 3, 2 << 3
_INT32_MAX: Final = 2**31 - 1
# A whole entry sorts after each of its messages; no batch has this many (the count is an int32).
_AFTER_EVERY_BATCH_INDEX: Final = 2**31

_PARTITION_SUFFIX: Final = re.compile(r"(?<=.)-partition-(0|[1-9][0-9]{0,9})\Z", re.ASCII)
# Characters allowed in tenant and namespace names (`NamedEntity`, seen on broker 4.0.8).
_NAMED_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


_Key = tuple[int, int, int]
"""Ledger, entry and batch, as they are compared."""


def _comparison(compare: Callable[[_Key, _Key], bool]) -> Callable[[Position, Position], bool]:
    """Return a method that compares the keys of positions."""

    def method(self: Position, other: Position) -> bool:
        return compare(self._key(), other._key()) if isinstance(other, Position) else NotImplemented

    return method


@dataclass(frozen=True, slots=True, order=False)
class Position:
    """The last message already read in one topic-partition.

    The order is (ledger, entry, batch). A `batch` of -1 means the whole entry and sorts after each message of the
    entry. Ledger ids of a topic only grow. Only positions of the same topic-partition are comparable. An entry of -1
    has no batch and a ledger of -1 has no entry, so EARLIEST sorts before all others. The constructor checks nothing,
    for speed; `parse_position` validates user input.

    Attributes:
        ledger: ledger id, int64; -1 is before the first.
        entry: entry id in the ledger, int64; -1 is before the first.
        batch: index in the entry's batch; -1 means the whole entry (or a message that is not in a batch).

    Example:
        >>> EARLIEST < Position(12, 3, batch=0) < Position(12, 3, batch=1) < Position(12, 3) < Position(12, 4, batch=0)
        True
        >>> str(Position(12, 3, batch=1))
        '12:3:1'
    """

    ledger: int
    entry: int
    batch: int = -1

    @property
    def next_entry(self) -> Position:
        """The entry after this one, which need not exist."""
        return Position(self.ledger, self.entry + 1)

    def _key(self) -> _Key:
        return (self.ledger, self.entry, self.batch if self.batch >= 0 else _AFTER_EVERY_BATCH_INDEX)

    # functools.total_ordering makes three of them several times slower.
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)

    def __str__(self) -> str:
        """Return ``ledger:entry``, ``ledger:entry:batch``, ``earliest`` or ``latest``; for errors."""
        if self == EARLIEST:
            return "earliest"
        if self == LATEST:
            return "latest"
        return f"{self.ledger}:{self.entry}" if self.batch < 0 else f"{self.ledger}:{self.entry}:{self.batch}"

    def to_json(self) -> dict[str, int]:
        """Return the JSON object of this position.

        Example:
            >>> Position(12, 3).to_json()
            {'ledger': 12, 'entry': 3, 'batch': -1}
        """
        return {"ledger": self.ledger, "entry": self.entry, "batch": self.batch}


EARLIEST: Final = Position(-1, -1, -1)
"""Before the first message; also the GET_LAST_MESSAGE_ID of an empty topic (seen on broker 4.0.8)."""

LATEST: Final = Position(_INT64_MAX, _INT64_MAX, -1)
"""After every message, present and future: resolved by GET_LAST_MESSAGE_ID, never sent to a broker."""


@dataclass(frozen=True, slots=True)
class PerTopic(Generic[T]):
    """The parsed value of an option: one value for all topic-partitions, or one for each named topic or partition.

    Attributes:
        everywhere: the value of every topic-partition, or None if `named` has the values.
        named: values by full name of a topic (for all its partitions) or topic-partition.

    Example:
        >>> start = parse_offsets('{"t": "earliest", "u": {"0": {"ledger": 12, "entry": 3}}}')
        >>> start.at("persistent://public/default/t-partition-7") == EARLIEST
        True
        >>> start.at("persistent://public/default/u-partition-0")
        Position(ledger=12, entry=3, batch=-1)
        >>> start.at("persistent://public/default/u-partition-1") is None
        True
    """

    everywhere: T | None = None
    named: Mapping[str, T] = field(default_factory=dict)

    def at(self, topic_partition: str) -> T | None:
        """Return the value for a topic-partition (full name): its own, else its topic's, else `everywhere`.

        None if the user named only others.
        """
        value = self.named.get(topic_partition)
        if value is None:
            value = self.named.get(TopicPartition.parse(topic_partition).topic)
        return self.everywhere if value is None else value


NON_PERSISTENT: Final = "non-persistent"
"""The scheme of non-persistent topics."""


def is_persistent(topic: str) -> bool:
    """Return whether the topic of this full name stores its messages.

    Example:
        >>> is_persistent("persistent://public/default/t"), is_persistent("non-persistent://public/default/t")
        (True, False)
    """
    return not topic.startswith(f"{NON_PERSISTENT}://")


def parse_topic(text: str, *, stored: bool = True) -> str:
    """Return the full name of a topic, or of one of its partitions, from user input.

    Raises:
        ValueError: not the name of such a topic; the message gives the reason.

    Example:
        >>> parse_topic("flights")
        'persistent://public/default/flights'
        >>> parse_topic("acme/prod/flights-partition-3")
        'persistent://acme/prod/flights-partition-3'
    """
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme:
        scheme, rest = "persistent", text
    elif scheme == NON_PERSISTENT and not stored:
        pass
    elif scheme == NON_PERSISTENT:
        raise ValueError(
            "non-persistent:// topics do not store messages: nothing can be read back, and an acknowledgement does not "
            "mean that a row is stored"
        )
    elif scheme in ("topic", "segment"):
        raise ValueError(
            f"{scheme}:// is a scalable topic of Pulsar 5, which is not supported; name a persistent:// topic"
        )
    elif scheme != "persistent":
        raise ValueError(
            f"{scheme}:// is not a kind of topic; write name, tenant/namespace/name or persistent://tenant/namespace/name"
        )
    parts = rest.split("/")
    if len(parts) == 1 and not has_scheme:
        parts = ["public", "default", *parts]
    match parts:
        case tenant, namespace, name:
            pass
        case _, _, _, _:
            raise ValueError("names with a cluster (tenant/cluster/namespace/name) are from Pulsar 1 and not supported")
        case _:
            raise ValueError("expected name, tenant/namespace/name or persistent://tenant/namespace/name")
    for kind, part in (("tenant", tenant), ("namespace", namespace)):
        if not _NAMED_ENTITY.fullmatch(part):
            raise ValueError(f"the {kind} must be letters, digits and -=:._ only, and not empty")
    if not name or name != name.strip() or _CONTROL.search(name):
        raise ValueError("the topic's name is empty, contains control characters, or has spaces around it")
    return f"{scheme}://{tenant}/{namespace}/{name}"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic, or an unpartitioned topic.

    Attributes:
        topic: the full name without a partition suffix, `persistent://tenant/namespace/topic`.
        partition: 0 and up; -1 for a topic that is not partitioned.

    Example:
        >>> TopicPartition.parse("persistent://public/default/t-partition-3")
        TopicPartition(topic='persistent://public/default/t', partition=3)
        >>> TopicPartition.parse("persistent://public/default/t").partition
        -1
        >>> str(TopicPartition("persistent://public/default/t", 3))
        'persistent://public/default/t-partition-3'
    """

    topic: str
    partition: int

    @classmethod
    def parse(cls, name: str) -> TopicPartition:
        """Return the topic-partition of a full topic name."""
        match = _PARTITION_SUFFIX.search(name)
        # A partition is an int32 on the wire; a larger number is part of the topic's own name.
        if match is None or int(match[1]) > _INT32_MAX:
            return cls(name, -1)
        return cls(name[: match.start()], int(match[1]))

    def __str__(self) -> str:
        """Return the full name."""
        return self.topic if self.partition < 0 else f"{self.topic}-partition-{self.partition}"


def parse_message_id(value: object) -> Position:
    """Return the whole entry of a message id from decoded JSON, a list of signed bytes as pulsar-spark writes it.

    The bytes are those of the Java client (``MessageId.toByteArray``), ``MessageIdData`` of PulsarApi.proto: its
    earliest id is -1:-1, its latest the largest int64 twice. The index within a batch is left out, as by pulsar-spark,
    which begins and ends only between entries (3.1.1.4).

    Raises:
        ValueError: not such a list, or not a message id.

    Example:
        >>> parse_message_id([8, 11, 16, 101, 24, 1, 32, 1])
        Position(ledger=11, entry=101, batch=-1)
        >>> parse_message_id([8, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 16, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1])
        Position(ledger=-1, entry=-1, batch=-1)
    """
    if not isinstance(value, list) or not all(type(byte) is int and -128 <= byte < 256 for byte in value):
        raise ValueError("expected a message id as a list of bytes, such as [8, 12, 16, 3]")
    data = bytes(byte & 0xFF for byte in value)
    try:
        numbers = {tag: number for tag, number, _ in take_fields(data, 0, len(data))}
    except CorruptMessageError as error:
        raise ValueError(f"the bytes are not a message id: {error}") from error
    try:
        position = Position(signed64(numbers[_LEDGER_TAG]), signed64(numbers[_ENTRY_TAG]))
    except KeyError:
        raise ValueError("the bytes are not a message id: it has a ledger and an entry") from None
    if position not in (EARLIEST, LATEST) and min(position.ledger, position.entry) < 0:
        raise ValueError(f"the bytes are not a message id: {position} does not exist")
    return position


def parse_position(value: object, *, is_end: bool = False) -> Position:
    """Return a position from decoded JSON: ``{"ledger": .., "entry": .., "batch": ..}`` (batch is optional) or a word.

    A list of bytes is a message id of pulsar-spark, which also reads the entry of a starting message id.

    Args:
        value: the JSON.
        is_end: whether it is an `endingOffsets`.

    Raises:
        ValueError: not a position; the message gives the expected forms.

    Example:
        >>> parse_position({"ledger": 12, "entry": 3})
        Position(ledger=12, entry=3, batch=-1)
        >>> parse_position("earliest") == EARLIEST
        True
    """
    if isinstance(value, str) and value.lower() in ("earliest", "latest"):
        return EARLIEST if value.lower() == "earliest" else LATEST
    if isinstance(value, list):
        entry = parse_message_id(value)
        # The position before the entry: 12:-1 is before the first entry of ledger 12.
        return entry if is_end or entry in (EARLIEST, LATEST) else Position(entry.ledger, entry.entry - 1)
    if not isinstance(value, Mapping) or not {"ledger", "entry"} <= value.keys() <= {"ledger", "entry", "batch"}:
        raise ValueError('expected "earliest", "latest" or {"ledger": 12, "entry": 3} with an optional "batch"')
    numbers = [value["ledger"], value["entry"], value.get("batch", -1)]
    for name, number, most in zip(
        ("ledger", "entry", "batch"), numbers, (_INT64_MAX, _INT64_MAX, _INT32_MAX), strict=True
    ):
        if type(number) is not int or not -1 <= number <= most:
            raise ValueError(f'"{name}" must be a whole number from -1 to {most}')
    position = Position(*numbers)
    # No parsed position may sort before EARLIEST.
    if (position.ledger < 0 and position.entry >= 0) or (position.entry < 0 and position.batch >= 0):
        raise ValueError('an "entry" needs a "ledger", and a "batch" needs an "entry"')
    return position


def parse_offsets(text: str, *, is_end: bool = False) -> PerTopic[Position]:
    """Parse ``earliest``, ``latest`` or JSON (see the module's docstring).

    Args:
        text: the option.
        is_end: whether it is `endingOffsets`.

    Raises:
        ValueError: not offsets; the message gives the place and the reason.

    Example:
        >>> parse_offsets("earliest").everywhere == EARLIEST
        True
        >>> parse_offsets('{"t": {"0": {"ledger": 12, "entry": 3}}}').named
        {'persistent://public/default/t-partition-0': Position(ledger=12, entry=3, batch=-1)}
        >>> parse_offsets('{"t": [8, 12, 16, 3]}').named["persistent://public/default/t"]
        Position(ledger=12, entry=2, batch=-1)
    """
    if not text.lstrip().startswith("{"):
        if text.lower() in ("earliest", "latest"):
            return PerTopic(everywhere=parse_position(text))
        raise ValueError("expected earliest, latest or a JSON object that begins with {")
    document = load_json_object(text)
    if type(document.get("version")) is int and "positions" in document:
        return PerTopic(named={str(tp): position for tp, position in decode_offsets(document).items()})
    parse = partial(parse_position, is_end=is_end)
    return PerTopic(named=_parse_per_topic(document, parse, is_value=lambda value: "ledger" in value))


def parse_timestamps(text: str) -> PerTopic[int]:
    """Parse times, in milliseconds since 1970, from a number, ISO-8601 text with a zone, or JSON of these per topic.

    ISO times are rounded up to the millisecond, which is exact for "published at or after". A time without a zone is an
    error: Spark's session time zone is unknown in a Python worker, and another one would shift the range by hours.

    Raises:
        ValueError: not times; the message gives the place and the reason.

    Example:
        >>> parse_timestamps("2013-01-01T05:15:00-05:00").everywhere
        1357035300000
        >>> parse_timestamps('{"t": 1357035300000}').named
        {'persistent://public/default/t': 1357035300000}
    """
    if not text.lstrip().startswith("{"):
        return PerTopic(everywhere=_parse_timestamp(text))
    return PerTopic(named=_parse_per_topic(load_json_object(text), _parse_timestamp, is_value=lambda _: False))


def encode_offsets(
    positions: Mapping[TopicPartition, Position], begins: Mapping[TopicPartition, Position] | None = None
) -> dict[str, object]:
    """Return the versioned form in a streaming checkpoint, sorted by name so that equal offsets are equal text.

    Args:
        positions: the end of a trigger.
        begins: its start, if it is the first one of a query: Spark records that start only once the trigger is done.

    Example:
        >>> encode_offsets({TopicPartition("persistent://public/default/t", -1): Position(12, 3)})
        {'version': 1, 'positions': {'persistent://public/default/t': {'ledger': 12, 'entry': 3, 'batch': -1}}}
    """
    encoded: dict[str, object] = {"version": OFFSETS_VERSION, "positions": _encode_positions(positions)}
    return encoded if begins is None else {**encoded, "from": _encode_positions(begins)}


def _encode_positions(positions: Mapping[TopicPartition, Position]) -> dict[str, object]:
    return {str(tp): positions[tp].to_json() for tp in sorted(positions, key=str)}


def decode_offsets(document: object) -> dict[TopicPartition, Position]:
    """Return the positions of `encode_offsets`, from decoded JSON.

    Raises:
        ValueError: an unknown version, or another form; the message gives the place and the reason.

    Example:
        >>> topic = TopicPartition("persistent://public/default/t", 0)
        >>> decode_offsets(encode_offsets({topic: Position(12, 3)})) == {topic: Position(12, 3)}
        True
    """
    offsets = versioned_offsets(document)
    if offsets.keys() - {"from"} != {"version", "positions"}:
        raise ValueError('offsets must have the keys "version" and "positions", and may have "from"')
    decode_begins(offsets)
    return _decode_positions("positions", offsets["positions"])


def decode_begins(document: Mapping[str, object]) -> Mapping[TopicPartition, Position] | None:
    """Return the start of a trigger, if `encode_offsets` had it; `decode_offsets` checks it too.

    Raises:
        ValueError: the positions have another form; the message gives the place and the reason.
    """
    return _decode_positions("from", document["from"]) if "from" in document else None


def _decode_positions(key: str, positions: object) -> dict[TopicPartition, Position]:
    if not isinstance(positions, Mapping):
        raise ValueError(f'"{key}" must be a JSON object')  # noqa: TRY004 - the document is wrong, not the call
    return {
        TopicPartition.parse(_at(name, parse_topic, name)): _at(name, parse_position, value)
        for name, value in positions.items()
    }


def count_lag(read: object, newest: object, rows: int) -> list[Lag]:
    """Return the number of entries per topic between two documents of `encode_offsets`.

    Entries are countable only within a ledger. If `newest` is in a later ledger than `read`, only the entries of the
    later one are counted, and the result is a lower bound.

    For a queue, it is the backlog of the subscription at planning, less the batch's rows.

    Raises:
        ValueError: not documents of this form.

    Example:
        >>> topic = TopicPartition("persistent://public/default/t", -1)
        >>> read, newest = (encode_offsets({topic: Position(12, entry)}) for entry in (3, 10))
        >>> print(*count_lag(read, newest, 0))
        persistent://public/default/t 7 entries
    """
    if isinstance(read, Mapping) and "wal" in read:
        return queue_offsets.count_lag(read, newest, rows)
    at = decode_offsets(read)
    behind: dict[str, int] = {}
    inexact = set()
    for tp, end in decode_offsets(newest).items():
        topic, begin = tp.topic, at.get(tp, EARLIEST)
        count = 0
        if begin.ledger == end.ledger:
            count = end.entry - begin.entry
        elif begin < end:
            count = end.entry + 1
            inexact.add(topic)
        behind[topic] = behind.get(topic, 0) + max(0, count)
    return [Lag(topic, count, "entries", is_exact=topic not in inexact) for topic, count in behind.items()]


def _parse_per_topic(
    document: Mapping[str, object], parse: Callable[[object], T], *, is_value: Callable[[Mapping[str, object]], bool]
) -> dict[str, T]:
    if not document:
        raise ValueError("an empty JSON object names no topic")
    named: dict[str, T] = {}
    for topic, value in document.items():
        full_name = _at(topic, parse_topic, topic)
        if isinstance(value, dict) and not is_value(value):
            if not value:
                raise ValueError(f'"{topic}": an empty JSON object names no partition')
            for partition, inner in value.items():
                where = f"{topic}, partition {partition}"
                if not re.fullmatch(r"0|[1-9][0-9]{0,9}", partition, re.ASCII):
                    raise ValueError(f'"{topic}": "{partition}" is not the number of a partition')
                _put(named, where, str(TopicPartition(full_name, int(partition))), _at(where, parse, inner))
        else:
            _put(named, topic, full_name, _at(topic, parse, value))
    return named


def _put(named: dict[str, T], where: str, name: str, value: T) -> None:
    if name in named:
        raise ValueError(f'"{where}": duplicate topic or partition {name}')
    named[name] = value


A = TypeVar("A")


def _at(where: str, parse: Callable[[A], T], value: A) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f'"{where}": {error}') from None


def _parse_timestamp(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,19}", value, re.ASCII):
        value = int(value)
    if type(value) is int and 0 <= value <= _INT64_MAX:
        return value
    if not isinstance(value, str):
        raise ValueError("expected milliseconds since 1970 or an ISO-8601 time such as 2013-01-01T05:15:00Z")  # noqa: TRY004 - all of a user's mistakes are ValueErrors
    try:
        # Python 3.10 knows neither Z nor other fractions than of 3 or 6 digits.
        six_digits = re.sub(r"\.([0-9]{1,6})[0-9]*", lambda match: f".{match[1]:0<6}", value)
        time = datetime.fromisoformat(re.sub("Z$", "+00:00", six_digits))
    except ValueError:
        raise ValueError("expected milliseconds since 1970 or an ISO-8601 time such as 2013-01-01T05:15:00Z") from None
    if time.tzinfo is None:
        raise ValueError("a time without a zone is ambiguous; end it with Z or an offset such as +02:00")
    milliseconds = -((datetime(1970, 1, 1, tzinfo=timezone.utc) - time) // timedelta(milliseconds=1))
    if milliseconds < 0:
        raise ValueError("must not be before 1970")
    return milliseconds
