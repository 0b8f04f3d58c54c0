"""Options of subscriptions, and of queues: subscriptions whose messages are acknowledged one by one."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_mq_source.core.json_text import load_json_object
from spark_mq_source.core.options import (
    INT32_MAX,
    READ,
    STREAM,
    Options,
    Scope,
    Section,
    StrEnum,
    at_least,
    between,
    duration_option,
    fields_of,
    option,
    parse_list,
    parse_text,
)
from spark_mq_source.core.shared_options import DrainOptions, LossOptions
from spark_mq_source.pulsar.options.reading import RangeOptions

_READING: Final = READ | STREAM
_KEY_HASHES: Final = 65536
"""Keys are divided by a hash below this (PersistentStickyKeyDispatcherMultipleConsumers; Key_Shared, Pulsar's docs)."""


class SubscriptionType(StrEnum):
    """Way in which the consumers connected to a subscription at the same time share its messages."""

    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"
    KEY_SHARED = "key_shared"


SHARED_TYPES: Final = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
"""Types whose messages go to several consumers, which therefore have no positions."""


class InitialPosition(StrEnum):
    """Start of a subscription that is created."""

    LATEST = "latest"
    EARLIEST = "earliest"


class AckMode(StrEnum):
    """Treatment of the messages that a batch read of a subscription has read."""

    ACK = "ack"
    NACK = "nack"


class OnMaxRedeliver(StrEnum):
    """Action for a message that was redelivered more than `maxRedeliverCount` times."""

    FAIL = "fail"
    DEAD_LETTER = "deadLetter"


class KeySharedMode(StrEnum):
    """Division of the keys of a Key_Shared subscription among its consumers."""

    AUTO_SPLIT = "auto_split"
    STICKY = "sticky"


def parse_subscription(text: str) -> str:
    """Return the name of a subscription or consumer.

    Raises:
        ValueError: it has control characters.
    """
    if re.search(r"[\x00-\x1f\x7f]", parse_text(text)):
        raise ValueError("contains control characters")
    return text


def parse_properties(text: str) -> tuple[tuple[str, str], ...]:
    """Parse names and values from a JSON object of texts.

    Raises:
        ValueError: not such an object.

    Example:
        >>> parse_properties('{"team": "delays"}')
        (('team', 'delays'),)
    """
    found = load_json_object(text)
    properties = tuple((name, value) for name, value in found.items() if isinstance(value, str))
    if len(properties) < len(found):
        raise ValueError('expected a JSON object of texts, such as {"team": "delays"}')
    return properties


def _parse_key_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ranges of key hashes, as ``0-32767,32768-65535``."""
    ranges: list[tuple[int, int]] = []
    for part in parse_list(text):
        match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", part, re.ASCII)
        if match is None or not int(match[1]) <= int(match[2]) < _KEY_HASHES:
            raise ValueError(f"{part!r} is not a range of hashes from 0 to {_KEY_HASHES - 1}, such as 0-32767")
        ranges.append((int(match[1]), int(match[2])))
    for before, after in itertools.pairwise(sorted(ranges)):
        if after[0] <= before[1]:
            raise ValueError(f"{before[0]}-{before[1]} and {after[0]}-{after[1]} overlap")
    return tuple(ranges)


@dataclass(frozen=True, kw_only=True, repr=False)
class SubscriptionOptions(Options):
    """Options of subscriptions, which retain messages of a stream or are read as queues."""

    subscription: str | None = option(
        "Durable subscription of a query. In a stream it retains messages on the broker until the query has "
        "committed them. If the query is stopped for good, its backlog stays until `spark-mq unsubscribe` deletes the "
        "subscription. The last entry read stays in the backlog until the next entry is read, as proof that nothing "
        "between them was deleted. In a batch: the name shown by the broker, as `NAME-<unique>`; it retains nothing.",
        default=None,
        parse=parse_subscription,
        section=Section.SHARE,
    )
    subscription_type: SubscriptionType | None = option(
        "Type of `subscription`: `exclusive`, `failover`, `shared` or `key_shared`. In a stream without `walDir`, "
        "`exclusive` and `failover` keep the messages of a query that reads them by position. With `exclusive` "
        "another consumer is refused. With `failover` others may stand by, and this query waits up to 90 s (or "
        "`operationTimeout`, if it is longer) until the broker has made it the active one. With `walDir`, and in a "
        "batch, the subscription is a queue: its messages are acknowledged one by one, and with `shared` and "
        "`key_shared` shared with other consumers.",
        default=None,
        default_text="`exclusive`; a batch without it reads by position",
    )
    subscription_properties: tuple[tuple[str, str], ...] = option(
        'Properties of `subscription` if the query creates it, as JSON: `{"team": "delays"}`. The broker\'s '
        "statistics show them; those of an existing subscription do not change.",
        default=(),
        scope=STREAM,
        parse=parse_properties,
    )
    consumer_name: str | None = option(
        "Start of the names of this query's consumers in the broker's statistics: `NAME-driver` for what the driver "
        "asks and for `subscription`, `NAME-0000` and so on for the tasks of a batch or micro-batch, in the order of "
        "their topic-partitions.",
        default=None,
        default_text="no name; for a queue, `subscriptionPrefix`",
        parse=parse_subscription,
    )
    priority_level: int = option(
        "Rank among the consumers of a subscription. With `subscriptionType=failover` the broker chooses the active "
        "consumer among those with the lowest level. Give a query that stands by a higher one: otherwise each is "
        "active in a part of the partitions. With a `shared` queue: consumers of a higher level get messages only "
        "while those of lower ones have as many as they can take.",
        default=0,
        scope=STREAM,
        check=between(0, 1_000_000),
    )
    subscription_prefix: str = option(
        "Start of generated subscription names, if `subscription` is not set.",
        default="spark-mq-source",
        parse=parse_subscription,
    )

    @property
    def subscription_kind(self) -> SubscriptionType:
        """`subscription_type`, or its default."""
        return self.subscription_type or SubscriptionType.EXCLUSIVE

    @property
    def subscription_base(self) -> str:
        """The prefix of a read's subscription names."""
        return self.subscription or self.subscription_prefix

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        kind = self.subscription_kind
        if scope & _READING and self.subscription is None:
            fields = ("subscription_type", "subscription_properties", "wal_dir")
            yield from (f"{self.name_of(field)} needs subscription" for field in fields if field in given)
        if "priority_level" in given and kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.KEY_SHARED):
            yield f"priorityLevel needs subscriptionType=failover or a shared queue, not {kind.value}"


@dataclass(frozen=True, kw_only=True, repr=False)
class QueueOptions(DrainOptions):
    """Options that have a meaning for queues only."""

    initial_position: InitialPosition = option(
        "Start of a queue whose subscription does not exist yet: `latest` or `earliest`. A stream reads topics and "
        "partitions that are created after its start from their first message.",
        default=InitialPosition.LATEST,
        section=Section.SHARE,
    )
    ack_mode: AckMode = option(
        "Whether a batch read removes messages: `ack` removes them from the subscription, `nack` leaves them there, "
        "and limits the read to `maxInFlight` messages of each task; with `retryTopic` it puts them off.",
        default=AckMode.ACK,
        scope=READ,
        section=Section.DRAIN,
    )
    consumers_per_partition: int = option(
        "Number of tasks per topic-partition of a `shared` or `key_shared` queue, with one consumer each. **Above 1, a "
        "redelivered message may be in two tasks of one batch:** a task recognises duplicates of earlier batches and "
        "its own messages, not those of other tasks.",
        default=1,
        check=between(1, 1000),
        section=Section.LIMIT,
    )
    max_in_flight: int = option(
        "Maximum number of unacknowledged messages of each consumer of a queue. Above the broker's "
        "`maxUnackedMessagesPerConsumer` (50,000) it stops sending. For a `non-persistent://` topic, the number of "
        "messages that the broker may send ahead; more are lost.",
        default=40_000,
        check=at_least(1),
    )
    key_shared_mode: KeySharedMode = option(
        "Division of the keys with `key_shared`: `auto_split`, the broker divides the keys among the consumers; "
        "`sticky`, `keyRanges` says which are read.",
        default=KeySharedMode.AUTO_SPLIT,
        section=Section.SHARE,
    )
    key_ranges: tuple[tuple[int, int], ...] = option(
        "Ranges of key hashes that are read with `keySharedMode=sticky`, from 0 to 65535: `0-32767,32768-65535`. A "
        "task reads each.",
        default=(),
        parse=_parse_key_ranges,
    )
    max_redeliver_count: int = option(
        "Maximum number of redeliveries of a message of a `shared` or `key_shared` queue, after which `onMaxRedeliver` "
        "applies; 0 for no limit. A broker counts messages that consumers return (negative acknowledgements), and "
        "forgets the counts when the last consumer leaves the subscription.",
        default=0,
        check=between(0, INT32_MAX),
        section=Section.FAIL,
    )
    on_max_redeliver: OnMaxRedeliver = option(
        "Action after `maxRedeliverCount`: `fail` stops the query; `deadLetter` publishes the message to "
        "`deadLetterTopic`, by default `TOPIC-SUB-DLQ`, acknowledges it and continues. With `ackMode=nack` this needs "
        "`retryTopic`.",
        default=OnMaxRedeliver.FAIL,
    )
    retry_topic: bool = option(
        "Whether the topic `TOPIC-SUB-RETRY` is read too, to which consumers put off messages (`enableRetry` of the "
        "Java client). With `ackMode=nack`, messages that were read are put off: they are published there, to be "
        "delivered after `nackDelay`, and acknowledged; after `maxRedeliverCount` times, `onMaxRedeliver` applies. "
        "Other reads return a message however often it was put off.",
        default=False,
    )
    nack_delay_ms: int = duration_option(
        "Time until a message that was put off is delivered again, with `retryTopic` and `ackMode=nack`; doubled each "
        "time. The broker may deliver it up to `delayedDeliveryTickTimeMillis` (1 s) earlier.",
        "1m",
        scope=READ,
    )
    nack_max_delay_ms: int = duration_option("Maximum of the doubled `nackDelay`.", "10m", scope=READ)

    def queue_problems(self, kind: SubscriptionType, given: frozenset[str]) -> Iterator[str]:
        """Yield the contradictions between the options of a queue of a subscription type."""
        yield from (
            f"{self.name_of(field)} has no meaning for a queue, which has no positions: a subscription begins where it "
            f"was left"
            for field in (*fields_of(LossOptions), *fields_of(RangeOptions))
            if field in given
        )
        if "max_records_per_partition" in given:
            yield "maxRecordsPerPartition has no meaning for a queue, whose tasks share its messages: use maxRows" + (
                "PerTrigger" if "wal_dir" in given and "run_id" not in given else ""
            )
        if kind not in SHARED_TYPES:
            yield from (
                f"{self.name_of(field)} needs subscriptionType=shared or key_shared, not {kind.value}"
                for field in ("consumers_per_partition", "max_redeliver_count", "retry_topic")
                if field in given
            )
        is_sticky = self.key_shared_mode is KeySharedMode.STICKY
        if kind is not SubscriptionType.KEY_SHARED and given & {"key_shared_mode", "key_ranges"}:
            yield "keySharedMode and keyRanges need subscriptionType=key_shared"
        elif is_sticky != ("key_ranges" in given):
            yield "keySharedMode=sticky and keyRanges go together: set both"
        elif is_sticky and "consumers_per_partition" in given:
            yield "consumersPerPartition and keyRanges contradict each other: each range has a task"
        if "on_max_redeliver" in given and not self.max_redeliver_count:
            yield "onMaxRedeliver has no meaning without maxRedeliverCount"
        gives_up = self.on_max_redeliver is OnMaxRedeliver.DEAD_LETTER
        if gives_up and self.ack_mode is AckMode.NACK and not self.retry_topic:
            yield (
                "onMaxRedeliver=deadLetter and ackMode=nack contradict each other without retryTopic=true: the read "
                "acknowledges no message, so each read would publish it to the dead letter topic again"
            )
        if self.ack_mode is AckMode.NACK and "wal_dir" in given:
            yield "ackMode=nack and walDir contradict each other: messages in walDir are acknowledged"
        if given & {"nack_delay_ms", "nack_max_delay_ms"} and not (self.retry_topic and self.ack_mode is AckMode.NACK):
            yield "nackDelay and nackMaxDelay need ackMode=nack and retryTopic=true"
