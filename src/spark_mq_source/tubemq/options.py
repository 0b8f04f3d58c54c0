"""The options of `tubemq`."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from spark_mq_source.core.json_text import load_json_object
from spark_mq_source.core.options import (
    READ,
    STREAM,
    WRITE,
    Scope,
    Section,
    StrEnum,
    at_least,
    between,
    duration_option,
    option,
    parse_list,
    parse_text,
    warn_of_ignored,
)
from spark_mq_source.core.shared_options import (
    EVERYWHERE,
    TOPIC_FIELDS,
    BatchOptions,
    CorruptOptions,
    LossOptions,
    PaceOptions,
    SendOptions,
    TlsOptions,
    parse_one_of,
    parse_regex,
)
from spark_mq_source.core.time_zones import time_zone
from spark_mq_source.core.user_functions import parse_function
from spark_mq_source.tubemq.offsets import EARLIEST, LATEST, OffsetOption, parse_offsets, parse_topic
from spark_mq_source.values.inlong.fields import StreamLayout
from spark_mq_source.values.inlong.options import InlongOptions
from spark_mq_source.values.options import DEFINED, INLONG, RAW

_READING: Final = READ | STREAM
_DEFAULT_PORT: Final = 8715


FLUSHED_ONLY: Final = 1
"""The qryPriorityId that returns only messages on the broker's disk (seen on 2.4.0)."""

WITH_MEMORY: Final = 303
"""The qryPriorityId that also returns messages in the broker's memory, also to filtered reads (seen on 2.4.0)."""


class Assignment(StrEnum):
    """Party that assigns partitions to a streaming query."""

    SERVER = "server"
    CLIENT = "client"


def parse_masters(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the masters, as (host, port).

    Raises:
        ValueError: not ``host:port,host:port``; the message gives the reason.

    Example:
        >>> parse_masters("m1:8715, m2")
        (('m1', 8715), ('m2', 8715))
    """
    masters = tuple(_parse_address(one) for one in parse_list(text))
    for master in masters:
        if masters.count(master) > 1:
            raise ValueError(f"duplicate address {master[0]}:{master[1]}")
    return masters


def _parse_address(text: str) -> tuple[str, int]:
    # TubeMQ 2.4.0 has no IPv6: its messages embed host:port in colon-separated text.
    match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?", text, re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not host or host:port")
    port = int(match[2]) if match[2] else _DEFAULT_PORT
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is not a port")
    return match[1], port


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(parse_topic(name) for name in parse_list(text))
    for topic in topics:
        if topics.count(topic) > 1:
            raise ValueError(f"duplicate topic {topic}")
    return topics


def _parse_filters(text: str) -> tuple[str, ...]:
    # The wire form is topic#filter,filter;topic... as in the Java client, so a filter cannot contain a separator.
    filters = parse_list(text)
    for one in filters:
        if re.search(r"[#;:@\s]", one):
            raise ValueError(f"{one!r} contains a character that a message type cannot have: # ; : @ or a space")
    return tuple(dict.fromkeys(filters))


def _parse_topic_filters(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    parsed = {}
    for name, types in load_json_object(text).items():
        if not isinstance(types, list) or not all(isinstance(one, str) for one in types):
            raise ValueError('expected a list of message types for each topic, as in {"flights": ["AA", "UA"]}')
        parsed[parse_topic(name)] = _parse_filters(",".join(types)) if types else ()
    return tuple(sorted(parsed.items()))


def _parse_web_address(text: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+/?", text):
        raise ValueError("expected http://host:8080")
    return text.rstrip("/")


def _parse_group(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][-\w]{0,99}", text, re.ASCII):
        raise ValueError("expected a letter, followed by letters, digits, - and _, at most 100 characters in all")
    return text


def _parse_session_key(text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,1024}", text):
        raise ValueError("expected at most 1024 printable ASCII characters without spaces")
    return text


def _parse_zone(text: str) -> str:
    time_zone(parse_text(text))
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class TubeMQOptions(TlsOptions, LossOptions, CorruptOptions, InlongOptions, PaceOptions, BatchOptions, SendOptions):
    """Options of `tubemq`; made by `from_spark`.

    Example:
        >>> options = TubeMQOptions.from_spark({"masters": "m1,m2:8000", "topic": "flights"}, READ)
        >>> options.masters, options.topic_names
        ((('m1', 8715), ('m2', 8000)), ('flights',))
    """

    format_name: ClassVar[str] = "tubemq"

    notes: ClassVar[Mapping[str, str]] = {
        "maxRowsPerTrigger": " Counted in the index, which the partitions of one store share: exact if each store has "
        "one partition of the topic; otherwise an upper bound that is rarely reached, because each partition's share "
        "counts all messages of its store. Filters reduce the count further.",
        "maxRecordsPerPartition": " Counted in the index, as for `maxRowsPerTrigger`: an upper bound.",
        "waitForTopic": " They are then read from their first message, unless an offset is given. Only with "
        "`assignment=client`; with `server`, see `assignmentTimeout`.",
        "minRowsPerTrigger": " Counted in the index, before filters.",
        "deadLetterTopic": " Its attributes contain the origin and the reason; `waitForDisk` applies to it as well.",
        "valueFormat": " `inlong`: InLong's messages, with one row for each record, see [InLong](../tubemq/inlong.md).",
        "maxPendingBytes": " The limit is that of one broker.",
        "inlongStreams": " They are the message types of InLong's messages, so the broker filters by them unless "
        "`filters` is set.",
    }
    parsers: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "deadLetterTopic": lambda text: parse_topic(parse_text(text)),
        "valueFormat": parse_one_of(RAW, *DEFINED, "string", INLONG),
        "inlongStreams": _parse_filters,
    }

    # -- connection and authentication
    masters: tuple[tuple[str, int], ...] = option(
        "Addresses of the masters: `host1:8715,host2:8715`. Default port: 8715. The active master is detected, also "
        "after a failover.",
        scope=EVERYWHERE,
        parse=parse_masters,
        section=Section.CONNECT,
    )
    admin_url: str | None = option(
        "Address of a master's web API, such as `http://master:8080`, which lists topics for `topicsPattern` and "
        "`spark-mq topics`: a master lists to clients only topics that they name. With `make brokers`: "
        "`http://localhost:8717`.",
        default=None,
        default_text="port 8080 of `masters`",
        parse=_parse_web_address,
    )
    tls: bool = option(
        "Whether connections use TLS: to masters, whose TLS ports `masters` must then have, and brokers.",
        default=False,
        scope=EVERYWHERE,
        section=Section.AUTHENTICATE,
    )
    auth_user: str | None = option("User name, if the cluster authenticates clients.", default=None, scope=EVERYWHERE)
    auth_password: str | None = option("Password of `authUser`.", default=None, scope=EVERYWHERE, secret=True)
    auth_plugin: str | None = option(
        "Python function that signs requests, as `module:function`, instead of `authUser` and `authPassword`: see "
        "[a signature of your own](../tubemq/security.md#a-signature-of-your-own).",
        default=None,
        scope=EVERYWHERE,
        parse=parse_function,
    )

    # -- topics and range
    topic: str | None = option(
        "The topic. A read needs exactly one of `topic`, `topics`, `topicsPattern`. Required for "
        "writing unless every row has a `topic`.",
        default=None,
        scope=EVERYWHERE,
        parse=lambda text: parse_topic(parse_text(text)),
        section=Section.CHOOSE,
    )
    topics: tuple[str, ...] = option("Comma-separated list of topics.", default=(), parse=_parse_topics)
    topics_pattern: re.Pattern[str] | None = option(
        "All topics whose names match: a regular expression, as in `flights-.*`. `adminUrl` lists them. A stream needs "
        "`assignment=client`, because the members of a group must have the same topics, and reads topics that match "
        "later from their first message.",
        default=None,
        parse=lambda text: parse_regex(parse_text(text)),
    )
    filters: tuple[str, ...] = option(
        "Comma-separated list of message types to read. The broker filters by hash, so messages are filtered again by "
        "type in the task.",
        default=(),
        parse=_parse_filters,
    )
    topic_filters: tuple[tuple[str, tuple[str, ...]], ...] = option(
        'Message types to read of single topics, instead of `filters`: JSON such as `{"flights": ["AA", "UA"], '
        '"weather": []}`, where an empty list reads all types.',
        default=(),
        default_text="`filters` for every topic",
        parse=_parse_topic_filters,
    )
    group: str | None = option(
        "The consumer group. Required for a stream with `assignment=server`, which joins the group and shares the "
        "topics with its other members; all members need the same topics and filters. Other reads share nothing: the "
        "broker shows them, and the progress of a stream, under this name. A task reads as `GROUP-read-N`, so that "
        "several tasks and members can read one partition. On a topic with group control, only the group itself needs "
        "authorization: masters check it, brokers do not (2.4.0). Tasks obey the group's flow-control rules, see "
        "[flow control](../tubemq/read.md#flow-control).",
        default=None,
        default_text="derived from topics and filters",
        parse=_parse_group,
    )
    starting_offsets: OffsetOption | None = option(
        'Where to start reading: `earliest`, in a stream also `latest`, or JSON by topic or partition, `{"flights": '
        '"earliest", "1:weather:0": 2800}`, with a partition as `brokerId:topic:partition`. The message at the offset '
        "is read. An offset is a multiple of 28, and the partitions of one store share its offsets. A stream uses this "
        "only if it has no checkpoint. With `assignment=server`, "
        "`earliest` and `latest` apply to partitions in which the group has no offset; JSON moves the group to these "
        "offsets, also to the `latest`, see [exact offsets in a group](../tubemq/stream.md#exact-offsets-in-a-group).",
        default=None,
        default_text="`earliest`; `latest` in a stream",
        parse=parse_offsets,
    )
    ending_offsets: OffsetOption | None = option(
        "Where to end reading: `latest` (as of planning; not in a stream), or JSON as for `startingOffsets`. The "
        "message at the offset is not read. A stream with `assignment=client` never reads past the offsets, and then "
        "ends: with an error that `spark_mq_source.spark.progress.await_end` does not raise.",
        default=None,
        default_text="`latest`; a stream has no end",
        parse=parse_offsets,
    )

    # -- reading
    assignment: Assignment = option(
        "Party that assigns partitions to the query. `server`: the master, which distributes the partitions over the "
        "members of `group`: this query, other queries and Java consumers. `client`: the query reads all partitions, "
        "regardless of other members.",
        default=Assignment.SERVER,
        scope=STREAM,
    )
    assignment_timeout_ms: int = duration_option(
        "With `assignment=server`, how long a query waits for its first partitions. The master assigns partitions in "
        "rounds, by default every 30 to 60 s. After the timeout `Trigger.AvailableNow` fails; other triggers keep "
        "waiting.",
        "3m",
        scope=STREAM,
    )
    session_key: str | None = option(
        "Key with which all members of the group register, so that they start together: `sessionKey` of the Java "
        "client's `completeSubscribe`. Needs `assignment=server` and JSON in `startingOffsets`. Use another one for "
        "each start; members with the previous key must have left.",
        default=None,
        default_text="a new one for each query",
        scope=STREAM,
        parse=_parse_session_key,
    )
    session_members: int = option(
        "Number of members that start together with `sessionKey`: the master assigns no partition before all are "
        "there (`sourceCount` of the Java client).",
        default=1,
        scope=STREAM,
        check=at_least(1),
    )
    low_latency: bool = option(
        "Whether to read messages that are only in the broker's memory. By default only messages flushed to the "
        "broker's disk are read, which takes up to the topic's `memCacheFlushIntvl` plus 30 s. **A killed broker loses "
        "its memory and reuses the offsets for other messages; with `true` this can go unnoticed.** With `true`, "
        "messages can also be left out if the topic's `maxMsgSizeInMB` is higher than the cluster's.",
        default=False,
    )
    min_partitions: int | None = option(
        "Minimum number of tasks, each with its own connection: partitions are split to reach it.",
        default=None,
        default_text="one task per partition",
        check=at_least(1),
        section=Section.LIMIT,
    )
    message_time_zone: str = option(
        "Time zone of message times, which TubeMQ stores as minutes without a zone. A zone other than UTC needs the "
        "time zones of the operating system or the package `tzdata` on every machine.",
        default="UTC",
        scope=EVERYWHERE,
        parse=_parse_zone,
        section=Section.VALUES,
    )
    operation_timeout_ms: int = duration_option(
        "Timeout of planning, and of a range that makes no progress, including retries.",
        "1m",
        scope=EVERYWHERE,
        section=Section.FAIL,
    )
    request_timeout_ms: int = duration_option(
        "Timeout of one request: servers drop some without an answer.",
        "10s",
        scope=EVERYWHERE,
    )
    connect_timeout_ms: int = duration_option(
        "Timeout of connecting, including TLS.",
        "10s",
        scope=EVERYWHERE,
    )

    # -- memory limits
    fetches_in_flight: int = option(
        "Number of fetches that a task sends ahead. The broker answers each with about 512 KiB at most.",
        default=8,
        check=between(1, 64),
        section=Section.LIMIT,
    )

    # -- writing
    max_pending_messages: int = option(
        "Maximum number of messages that a task may have sent to one broker without an acknowledgement.",
        default=2_000,
        scope=WRITE,
        check=between(1, 1 << 20),
    )
    wait_for_disk: bool = option(
        "Whether a task succeeds only after the brokers have flushed its rows to disk. **By default a broker "
        "acknowledges rows that are only in its memory: if it is killed, acknowledged rows are lost although the write "
        "succeeded.** With `true`, a task waits for the flush after it has sent its rows. The flush takes up to the "
        "topic's `memCacheFlushIntvl` plus 30 s, so set `sendTimeout` above that. If a connection breaks before the "
        "flush, the task fails and Spark's retry writes its rows again. The topics must accept readers "
        "(acceptSubscribe). Alternatively configure the broker: `enableMemStore=false`, with the topic's "
        "`unflushThreshold=1`, flushes each row before it is acknowledged. Reading: applies to dead letters.",
        default=False,
        scope=EVERYWHERE,
        section=Section.WRITE,
    )

    log_receipts: bool = option(
        "Whether the driver logs the brokers' receipts when a write or a micro-batch is committed: for each partition "
        "the number of rows, and offset, message id and time of the first and the last one.",
        default=False,
        scope=WRITE,
    )

    @property
    def topic_names(self) -> tuple[str, ...]:
        """`topic` or `topics`, sorted; empty if `topics_pattern` is set."""
        return (self.topic,) if self.topic else tuple(sorted(self.topics))

    def filters_of(self, topic: str) -> tuple[str, ...]:
        """Return the message types to read of a topic; none for all.

        Example:
            >>> given = {"masters": "m", "topics": "a,b", "filters": "x", "topicFilters": '{"b": ["y", "z"]}'}
            >>> [TubeMQOptions.from_spark(given, READ).filters_of(topic) for topic in "ab"]
            [('x',), ('y', 'z')]
        """
        return dict(self.topic_filters).get(topic, self.filters)

    @property
    def group_name(self) -> str:
        """`group`, or a name derived from topics and filters, because all members of a group need the same ones.

        Example:
            >>> TubeMQOptions.from_spark({"masters": "m", "topic": "flights"}, READ).group_name
            'spark-mq-source-1d9e99c0'
        """
        if self.group is not None:
            return self.group
        text = self.topics_pattern.pattern if self.topics_pattern is not None else ",".join(self.topic_names)
        text += "#" + ",".join(sorted(self.filters))
        text += "".join(f";{topic}#{','.join(sorted(types))}" for topic, types in self.topic_filters)
        return f"spark-mq-source-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def layout(self) -> StreamLayout:
        """The layout of InLong's records; without the streams if the broker has filtered by them.

        It filters by their names, which a message with the numbers of its group and stream does not contain.
        """
        is_filtered = self.filters == self.inlong_streams and not self.topic_filters
        return replace(super().layout, streams=() if is_filtered else self.inlong_streams)

    @property
    def has_tls(self) -> bool:
        """True if connections use TLS."""
        return self.tls

    @classmethod
    def translate(cls, given: dict[str, str], scope: Scope) -> Iterable[str]:
        """Filter by the streams of InLong's messages, which are their types."""
        if scope != WRITE and "inlongstreams" in given:
            given.setdefault("filters", given["inlongstreams"])
        return ()

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if scope != WRITE:
            yield from self.set_exactly_one(TOPIC_FIELDS, given)
        if scope & _READING:
            yield from self.dead_letter_problems(given)
            if "wait_for_disk" in given and "dead_letter_topic" not in given:
                warn_of_ignored(self.format_name, "waitForDisk", "reading without deadLetterTopic")
        if scope in (READ, STREAM):
            unread = sorted(dict(self.topic_filters).keys() - set(self.topic_names)) if self.topic_names else []
            if unread:
                yield f"topicFilters names {', '.join(unread)}, which this query does not read"
            yield from self._range_problems(scope)
        if scope == STREAM and self.assignment is Assignment.SERVER:
            if "group" not in given:
                yield (
                    "assignment=server shares the topics with the other members of a group: set group, or set "
                    "assignment=client to read all partitions"
                )
            if "topics_pattern" in given:
                yield "topicsPattern needs assignment=client: the members of a group must have the same topics"
            if "wait_for_topic_ms" in given:
                yield "waitForTopic needs assignment=client: with assignment=server a query waits for its partitions"
            if self.session_members > 1 and self.session_key is None:
                yield "sessionMembers needs sessionKey, which all members of the group share"
        starts = self.starting_offsets
        is_exact = self.assignment is Assignment.SERVER and starts is not None and starts.everywhere is None
        for name in ("session_key", "session_members"):
            if scope == STREAM and name in given and not is_exact:
                yield f"{self.name_of(name)} needs assignment=server, and startingOffsets as JSON"
        yield from self.set_together("auth_user", "auth_password", given)
        yield from self.set_one("auth_user", "auth_plugin", given)

    def _range_problems(self, scope: Scope) -> Iterator[str]:
        starts, ends = self.starting_offsets, self.ending_offsets
        if scope == STREAM and ends is not None and LATEST in ends.values:
            yield "endingOffsets: latest is no end of a stream: use Trigger.AvailableNow, or name offsets"
        if scope == STREAM and ends is not None and self.assignment is Assignment.SERVER:
            yield "endingOffsets needs assignment=client: with assignment=server offsets belong to the group"
        if scope == READ and starts is not None and LATEST in starts.values:
            yield "startingOffsets: latest would read nothing in a batch; use earliest or an offset"
        if ends is not None and EARLIEST in ends.values:
            yield "endingOffsets: earliest would read nothing; use latest or an offset"
        if starts is not None and ends is not None:
            for tp, start in starts.partitions.items():
                end = ends.partitions.get(tp)
                if end is not None and LATEST != start > end != EARLIEST:
                    yield f"startingOffsets is past endingOffsets for {tp}: {start} and {end}"
