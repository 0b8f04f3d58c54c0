"""Options that select the topics to read or write, and the range to read."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_mq_source.core.options import (
    READ,
    STREAM,
    WRITE,
    Options,
    Scope,
    Section,
    at_least,
    between,
    duration_option,
    option,
    parse_list,
    parse_size_bytes,
    parse_text,
    size_option,
)
from spark_mq_source.core.shared_options import EVERYWHERE, TOPIC_FIELDS, LossOptions, parse_one_of, parse_regex
from spark_mq_source.pulsar.offsets import (
    EARLIEST,
    LATEST,
    PerTopic,
    Position,
    TopicPartition,
    is_persistent,
    parse_offsets,
    parse_timestamps,
    parse_topic,
)

_NAME: Final = r"[-=:.\w]+"
_NAMES: Final = rf"{_NAME}|\({_NAME}(?:\|{_NAME})*\)"
_PAIR: Final = f"{_NAME}/{_NAME}"
_NAMESPACES: Final = re.compile(
    rf"(?:(?P<both>\({_PAIR}(?:\|{_PAIR})*\))|(?P<tenant>{_NAMES})/(?P<name>{_NAMES}))/(?=.)", re.ASCII | re.DOTALL
)

NEVER: Final = "never"
AUTO: Final = "auto"
ALWAYS: Final = "always"


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """All topics of some namespaces with matching names.

    Attributes:
        namespaces: ``tenant/namespace`` of each.
        regex: must match the topic's whole local name (the part after the namespace).

    Example:
        >>> pattern = parse_topics_pattern("persistent://acme/(prod|test)/flights-.*")
        >>> pattern.namespaces, pattern.matches("persistent://acme/prod/flights-2013-partition-0")
        (('acme/prod', 'acme/test'), True)
    """

    namespaces: tuple[str, ...]
    regex: re.Pattern[str]

    def matches(self, topic: str) -> bool:
        """Return whether the full name of a topic, or of one of its partitions, matches."""
        namespace, _, name = TopicPartition.parse(topic).topic.removeprefix("persistent://").rpartition("/")
        return is_persistent(topic) and namespace in self.namespaces and self.regex.fullmatch(name) is not None


def parse_topics_pattern(text: str) -> TopicsPattern:
    """Parse ``persistent://tenant/namespace/regex``, ``tenant/namespace/regex`` or ``regex``.

    Tenant and namespace are names, because a broker lists topics by namespace, but no namespaces; or lists of names, as
    ``tenant/(one|other)/regex`` or ``(tenant/one|other/two)/regex``. The regular expression is Python's: the forms that
    Java reads differently are errors.

    Raises:
        ValueError: not a pattern; the message gives the reason.
    """
    scheme, found, rest = text.partition("://")
    if found and scheme != "persistent":
        parse_topic(f"{scheme}://t/n/t")  # raises the sentence for this scheme
    rest = rest if found else text
    match = _NAMESPACES.match(rest)
    if found and not match:
        raise ValueError(
            "tenant and namespace must be plain names, or lists of them: persistent://tenant/namespace/regex, "
            "persistent://tenant/(one|other)/regex"
        )
    namespaces, expression = ("public/default",), rest
    if match:
        parts = [
            one.strip("()").split("|") for one in (match["both"] or "", match["tenant"] or "", match["name"] or "")
        ]
        pairs = parts[0] if match["both"] else [f"{tenant}/{name}" for tenant in parts[1] for name in parts[2]]
        namespaces, expression = tuple(dict.fromkeys(pairs)), rest[match.end() :]
    if "/" in expression:
        raise ValueError("a topic's name has no /; write tenant/namespace/regex with plain names before the regex")
    return TopicsPattern(namespaces, parse_regex(expression))


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(parse_topic(name, stored=False) for name in parse_list(text))
    for topic in topics:
        at = TopicPartition.parse(topic)
        if topics.count(topic) > 1:
            raise ValueError(f"duplicate topic {topic}")
        if at.partition >= 0 and at.topic in topics:
            raise ValueError(f"{topic} is a partition of {at.topic}, which is also listed")
    return topics


@dataclass(frozen=True, kw_only=True, repr=False)
class TopicOptions(Options):
    """Options that name topics."""

    topic: str | None = option(
        "The topic: `name`, `tenant/namespace/name` or `persistent://tenant/namespace/name`. `name-partition-0` "
        "selects a single partition. A read needs exactly one of `topic`, `topics`, `topicsPattern`. Required for "
        "writing unless every row has a `topic`. A `non-persistent://` topic stores nothing: it can be written to, and "
        "read as a queue, which gets the messages published while its tasks run; others are lost.",
        default=None,
        scope=EVERYWHERE,
        parse=lambda text: parse_topic(parse_text(text), stored=False),
        section=Section.CHOOSE,
    )
    topics: tuple[str, ...] = option("Comma-separated list of topics.", default=(), parse=_parse_topics)
    topics_pattern: TopicsPattern | None = option(
        "All topics whose names match: `tenant/namespace/regex`, or `regex` for `public/default`; or of several "
        "namespaces: `tenant/(one|other)/regex`, `(tenant/one|other/two)/regex`.",
        default=None,
        parse=lambda text: parse_topics_pattern(parse_text(text)),
    )
    create_topic: bool = option(
        "Whether a missing topic is created, with `topicPartitions` or the broker's defaults; otherwise it is an "
        "error. Reading: whether topics of dead letters and of messages put off are created, and a "
        "`non-persistent://` topic, which exists only while a client uses it.",
        default=False,
        scope=EVERYWHERE,
    )
    topic_partitions: int | None = option(
        "Number of partitions with which `createTopic` creates a missing topic, by the admin API at `adminUrl`. A "
        "topic that exists with another number is an error: for the option `topic` before a task starts, for a row's "
        "topic in its task.",
        default=None,
        default_text="the broker's default",
        scope=WRITE,
        check=at_least(1),
    )

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The full names of `topic` or `topics`; empty if `topics_pattern` is set."""
        return (self.topic,) if self.topic else self.topics

    @property
    def live_topics(self) -> tuple[str, ...]:
        """The topics of the options that are not persistent; a pattern matches none of these."""
        return tuple(topic for topic in self.topic_names if not is_persistent(topic))

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if "topic_partitions" in given:
            if not self.create_topic or "admin_url" not in given:
                yield "topicPartitions needs createTopic=true and adminUrl: the admin API creates the topic"
            if self.topic is not None and TopicPartition.parse(self.topic).partition >= 0:
                yield f"topicPartitions has no meaning for {self.topic}, which is one partition: name the topic"
        if scope != WRITE:
            yield from self.set_exactly_one(TOPIC_FIELDS, given)


@dataclass(frozen=True, kw_only=True, repr=False)
class RangeOptions(LossOptions):
    """Options of a read by position: none of them has a meaning for a queue."""

    starting_offsets: PerTopic[Position] | None = option(
        'Where to start reading: `earliest`, in a stream also `latest`, or JSON per topic or partition: `{"flights": '
        '{"0": {"ledger": 12, "entry": 3}, "1": "earliest"}}`. A position is that of the last message already read; '
        "its optional `batch` is an index within the entry's batch, and without it the whole entry counts as read. A "
        "list of bytes is a message id as in pulsar-spark, whose entry is read. A stream uses this only if it has no "
        "checkpoint.",
        default=None,
        default_text="`earliest`; `latest` in a stream",
        parse=parse_offsets,
        section=Section.CHOOSE,
    )
    ending_offsets: PerTopic[Position] | None = option(
        "Where to end reading: `latest` (as of planning; not in a stream), or JSON as for `startingOffsets`. A "
        "position is that of the last message to read. A stream never reads past it, and ends there as with "
        "`endAtTermination`.",
        default=None,
        default_text="`latest`; a stream has no end",
        parse=partial(parse_offsets, is_end=True),
    )
    starting_timestamp: PerTopic[int] | None = option(
        "Read messages published at or after this time: milliseconds since 1970, ISO-8601 with a zone "
        '(`2013-01-01T05:15:00Z`), or JSON of these per topic or partition: `{"flights": 1357017300000}`.',
        default=None,
        parse=parse_timestamps,
    )
    ending_timestamp: PerTopic[int] | None = option(
        "Read messages published before this time; same format as `startingTimestamp`. A stream ends when every "
        "topic-partition has a later message, or a minute after this time by the driver's clock.",
        default=None,
        parse=parse_timestamps,
    )
    max_entries_per_trigger: int | None = option(
        "Maximum number of entries per trigger, distributed by backlog. An entry is a batch of messages as its "
        "producer sent it, or a single message. Exact.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        check=at_least(1),
        section=Section.LIMIT,
    )
    max_bytes_per_trigger: int | None = option(
        "Maximum number of bytes per trigger (`64m`), as the broker stores them: compressed, with metadata. With "
        "`adminUrl`, estimated from the average entry size of each ledger, at one request per partition with a "
        "backlog; otherwise as exact as `maxRowsPerTrigger` without an index.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        parse=parse_size_bytes,
        check=at_least(1),
    )
    read_offloaded: str = option(
        "Whether offloaded ledgers are read from `offloadStorage` instead of brokers: `never`; `auto`: brokers "
        "send what is not there, what cannot be read there, and what follows a transaction's message in its range; "
        "`always`: those are errors.",
        default=NEVER,
        parse=parse_one_of(NEVER, AUTO, ALWAYS),
        section=Section.CHOOSE,
    )
    offload_storage: str | None = option(
        "The bucket in which the brokers' offloaders put ledgers: `s3://bucket`, `gs://bucket`, `abfss://...` "
        "(`pip install 'spark-mq-source[s3]'`; credentials come from the environment), or an absolute path. The driver "
        "`filesystem` writes other files, which only brokers read.",
        default=None,
    )
    pushdown: bool = option(
        "Accept filters on topic, partition and publish_time from Spark. Needs Spark 4.1 or newer and "
        "`spark.sql.python.filterPushdown.enabled=true`. **Use one filter per `load()`**: Spark plans a loaded "
        "DataFrame once, so a second query on it with another filter silently gets the partitions of the first (seen "
        "on 4.3.0, with any data source).",
        default=False,
        scope=READ,
        section=Section.CHOOSE,
    )
    publish_time_slack_ms: int = duration_option(
        "With `pushdown`, the margin added on both sides of a filter on publish_time. It must cover publish times that "
        "are out of order within a partition, and their difference from the broker's clock, which brokers with entry "
        "metadata use to look up times.",
        "1m",
        scope=READ,
        least="0ms",
    )

    def starting_at(self, topic_partition: str) -> Position | int | None:
        """Return the start of a batch read of a topic-partition (full name).

        Returns:
            The last position already read (EARLIEST for the whole topic); or, as an int, the publish time in ms of
            the first message wanted; or None if the user named only other topic-partitions.
        """
        if self.starting_timestamp is not None:
            return self.starting_timestamp.at(topic_partition)
        return EARLIEST if self.starting_offsets is None else self.starting_offsets.at(topic_partition)

    def stream_starting_at(self, topic_partition: str) -> Position | int | None:
        """Return the start of a stream without a checkpoint; as `starting_at`, but LATEST by default."""
        if self.starting_offsets is None and self.starting_timestamp is None:
            return LATEST
        return self.starting_at(topic_partition)

    def ending_at(self, topic_partition: str) -> Position | int | None:
        """Return the end of a batch read of a topic-partition (full name).

        Returns:
            The last position to read (LATEST for everything); or, as an int, the publish time in ms of the first
            message not wanted; or None if the user named only other topic-partitions.
        """
        if self.ending_timestamp is not None:
            return self.ending_timestamp.at(topic_partition)
        return LATEST if self.ending_offsets is None else self.ending_offsets.at(topic_partition)

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        yield from self.set_one("starting_offsets", "starting_timestamp", given)
        yield from self.set_one("ending_offsets", "ending_timestamp", given)
        if scope in (READ, STREAM):
            yield from self._range_problems(scope)
            if self.read_offloaded == NEVER:
                if "offload_storage" in given:
                    yield "offloadStorage has no meaning unless readOffloaded is auto or always"
            elif not {"offload_storage", "admin_url"} <= given:
                yield "readOffloaded needs offloadStorage, and adminUrl, whose answers name the objects"

    def _range_problems(self, scope: Scope) -> Iterator[str]:
        if scope == STREAM and self.ending_offsets is not None and LATEST in _values(self.ending_offsets):
            yield "endingOffsets: latest is no end of a stream: use Trigger.AvailableNow, or name positions"
        if scope == READ and self.starting_offsets is not None and LATEST in _values(self.starting_offsets):
            yield "startingOffsets: latest would read nothing in a batch; use earliest or a position"
        if self.ending_offsets is not None and EARLIEST in _values(self.ending_offsets):
            yield "endingOffsets: earliest would read nothing; use latest or a position"
        if self.starting_offsets is not None and self.ending_offsets is not None:
            for name, start in self.starting_offsets.named.items():
                end = self.ending_offsets.named.get(name)
                if end is not None and LATEST != start > end != EARLIEST:
                    yield f"startingOffsets is past endingOffsets for {name}: {start} and {end}"
        if self.starting_timestamp is not None and self.ending_timestamp is not None:
            first, last = self.starting_timestamp.everywhere, self.ending_timestamp.everywhere
            if first is not None and last is not None and first > last:
                yield "startingTimestamp is past endingTimestamp"


@dataclass(frozen=True, kw_only=True, repr=False)
class ReadOptions(Options):
    """Options of reads by position and of queues."""

    read_compacted: bool = option(
        "Read the compacted topic: only the last message of each key, in the part that is already compacted. A range "
        "can lack keys if a compaction completes after it was planned, and deleted messages are not reported as data "
        "loss.",
        default=False,
        section=Section.CHOOSE,
    )
    end_at_termination: bool = option(
        "Whether the query ends when all its topics are terminated (`pulsar-admin topics terminate`) and read. Spark "
        "lets a source end a query only by an error, which is `EndOfStreamError`: "
        "`spark_mq_source.spark.progress.await_end` waits for it, and does not raise it.",
        default=False,
        scope=STREAM,
    )
    min_partitions: int | None = option(
        "Minimum number of tasks: topic-partitions are split to reach it, if possible.",
        default=None,
        default_text="one task per topic-partition",
        check=at_least(1),
        section=Section.LIMIT,
    )
    receiver_queue_messages: int = option(
        "Maximum number of messages that a broker may send ahead.",
        default=100_000,
        name="receiverQueueSize",
        check=between(1, 2**30),
        section=Section.LIMIT,
    )
    receive_queue_bytes: int = size_option(
        "Maximum bytes that a task may hold received and not yet decoded.",
        "64m",
        least="1m",
    )
    max_message_bytes: int = size_option(
        "Largest message or entry in bytes: larger ones, after decompression, are treated as corrupt.",
        "128m",
    )
    max_pending_chunk_bytes: int = size_option(
        "Maximum bytes of incomplete chunked messages in a task. Beyond it the oldest are dropped, and read again if "
        "their last chunk arrives.",
        "128m",
    )


def _values(wanted: PerTopic[Position]) -> tuple[Position | None, ...]:
    return (wanted.everywhere, *wanted.named.values())
