"""The options of `tubemq`."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import enum
import hashlib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from spark_mq_source.core.options import (
    READ,
    STREAM,
    WRITE,
    Options,
    Scope,
    at_least,
    between,
    duration_option,
    option,
    parse_list,
    parse_text,
    size_option,
)
from spark_mq_source.core.shared_options import (
    EVERYWHERE,
    OnCorrupt,
    client_cert_option,
    client_key_option,
    max_batch_bytes_option,
    max_batch_rows_option,
    on_corrupt_option,
    trust_certs_option,
    verify_hostname_option,
)
from spark_mq_source.tubemq.offsets import EARLIEST, LATEST, WantedOffsets, parse_offsets, parse_topic

_READING: Final = READ | STREAM
_DEFAULT_PORT: Final = 8715


FLUSHED_ONLY: Final = 1
"""The qryPriorityId that shows only what is on a broker's disk (seen on 2.4.0)."""

WITH_MEMORY: Final = 303
"""The qryPriorityId that shows a broker's memory too, to filtered reads as well (seen on 2.4.0)."""


class Assignment(enum.StrEnum):
    """Who decides which partitions a streaming query reads."""

    SERVER = "server"
    CLIENT = "client"


def parse_masters(text: str) -> tuple[tuple[str, int], ...]:
    """The masters, as (host, port).

    Raises:
        ValueError: not ``host:port,host:port``; the message says why.

    Example:
        >>> parse_masters("m1:8715, m2")
        (('m1', 8715), ('m2', 8715))
    """
    masters = tuple(_parse_address(one) for one in parse_list(text))
    for master in masters:
        if masters.count(master) > 1:
            raise ValueError(f"{master[0]}:{master[1]} is there twice")
    return masters


def _parse_address(text: str) -> tuple[str, int]:
    # A broker's address is host:port within texts that colons divide, so there is no IPv6 in TubeMQ 2.4.0.
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
            raise ValueError(f"{topic} is there twice")
    return topics


def _parse_filters(text: str) -> tuple[str, ...]:
    # Java writes a condition as topic#filter,filter;topic... and the broker compares what stands between.
    filters = parse_list(text)
    for one in filters:
        if re.search(r"[#;:@\s]", one):
            raise ValueError(f"{one!r} has a character that no message type can have: # ; : @ or a space")
    return tuple(dict.fromkeys(filters))


def _parse_group(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][-\w]{0,99}", text, re.ASCII):
        raise ValueError(
            "a group's name begins with a letter, has letters, digits, - and _ only, and at most 100 of them"
        )
    return text


def _parse_zone(text: str) -> str:
    try:
        zoneinfo.ZoneInfo(parse_text(text))
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        raise ValueError("no time zone of this name is known here; expected one such as UTC or Asia/Shanghai") from None
    return text


@dataclass(frozen=True, kw_only=True, repr=False)
class TubeMQOptions(Options):
    """Options of `tubemq`; made by `from_spark`.

    Example:
        >>> options = TubeMQOptions.from_spark({"masters": "m1,m2:8000", "topic": "flights"}, READ)
        >>> options.addresses, options.topic_names
        ((('m1', 8715), ('m2', 8000)), ('flights',))
    """

    format_name: ClassVar[str] = "tubemq"

    # -- where, and who we are
    masters: str = option(
        "Addresses of the masters: `host1:8715,host2:8715`. The ports may be left out where they are 8715. The one "
        "that serves is found, and found again when it changes.",
        scope=EVERYWHERE,
        parse=parse_text,
        check=parse_masters,
    )
    tls: bool = option(
        "Whether masters and brokers are spoken to over TLS; `masters` then names their TLS ports.",
        default=False,
        scope=EVERYWHERE,
    )
    trust_certs: str | None = trust_certs_option()
    client_cert: str | None = client_cert_option("masters and brokers, which ask for one")
    client_key: str | None = client_key_option()
    tls_verify_hostname: bool = verify_hostname_option("a")
    auth_user: str | None = option(
        "User name, where the cluster authenticates its clients.", default=None, scope=EVERYWHERE
    )
    auth_password: str | None = option("That user's password.", default=None, scope=EVERYWHERE, secret=True)

    # -- what
    topic: str | None = option(
        "The topic. A read has exactly one of `topic` and `topics`; a write has it where the rows do not say theirs.",
        default=None,
        scope=EVERYWHERE,
        parse=lambda text: parse_topic(parse_text(text)),
    )
    topics: tuple[str, ...] = option("Several topics, with commas between them.", default=(), parse=_parse_topics)
    filters: tuple[str, ...] = option(
        "Message types, with commas between them: others are not read. The broker compares hashes, so what it sends is "
        "compared again here.",
        default=(),
        parse=_parse_filters,
    )
    group: str | None = option(
        "The consumer group. A stream with `assignment=server` is a member of it, shares the topics with its other "
        "members, and needs it; all members have the same topics and filters. Other reads share nothing: they only "
        "show under this name, and a stream's progress with them. A task reads as `GROUP-read-N`, so that several "
        "tasks and members can read one partition. On a topic with group control only the group itself has to be "
        "authorized: masters check it, brokers do not (2.4.0). Brokers apply the cluster's flow-control rule to tasks; "
        "a group's own rule is obeyed by the consumers of the Java client only.",
        default=None,
        default_text="made of topics and filters",
        parse=_parse_group,
    )
    starting_offsets: WantedOffsets | None = option(
        'Read from here: `earliest`, or JSON by topic or partition, `{"flights": "earliest", "1:weather:0": 2800}`, '
        "where a partition is `brokerId:topic:partition`. An offset is a multiple of 28, and partitions of one store "
        "share theirs. A stream starts here only where it has no checkpoint; with `assignment=server` only where the "
        "group has no position either, and only at `earliest` or `latest`.",
        default=None,
        default_text="`earliest`; `latest` in a stream",
        parse=parse_offsets,
    )
    ending_offsets: WantedOffsets | None = option(
        "Read up to here, and not the message at it: `latest` (when the read is planned), or JSON as for "
        "`startingOffsets`.",
        default=None,
        default_text="`latest`",
        scope=READ,
        parse=parse_offsets,
    )

    # -- how
    assignment: Assignment = option(
        "Who decides what a query reads. `server`: the master, which shares the partitions out among the members of "
        "`group`, this query, other queries and Java consumers alike. `client`: the query reads all partitions, "
        "whoever else is in the group.",
        default=Assignment.SERVER,
        scope=STREAM,
    )
    assignment_timeout_ms: int = duration_option(
        "With `assignment=server`, how long a query waits for its first partitions: the master shares out in rounds, "
        "every 30 to 60 s unless it is configured otherwise. `Trigger.AvailableNow` fails then; other queries go on "
        "waiting.",
        "3m",
        scope=STREAM,
    )
    low_latency: bool = option(
        "Whether to read messages that the broker has in memory only. By default what is read is on its disk, which "
        "takes up to the topic's `memCacheFlushIntvl` and 10 s more. **A broker that is killed loses its memory, "
        "gives the same offsets to other messages, and with `true` this can pass unnoticed.**",
        default=False,
    )
    max_rows_per_trigger: int | None = option(
        "Most messages of one trigger, shared out by backlog. Counted in the index, which the partitions of one store "
        "share: exact for a topic whose stores have one partition each; else a bound that is rarely reached, because "
        "each partition's share counts the messages of its whole store. Filters make it less, too.",
        default=None,
        default_text="all there is",
        scope=STREAM,
        check=at_least(1),
    )
    min_partitions: int | None = option(
        "Split partitions until there are at least this many tasks, each with a connection of its own.",
        default=None,
        default_text="one task a partition",
        check=at_least(1),
    )
    fail_on_data_loss: bool = option(
        "Whether to fail where messages of the range are gone from the broker; `false` logs it and goes on.",
        default=True,
    )
    on_corrupt: OnCorrupt = on_corrupt_option()
    message_time_zone: str = option(
        "The zone of message times, which are minutes without one in TubeMQ.",
        default="UTC",
        scope=EVERYWHERE,
        parse=_parse_zone,
    )
    operation_timeout_ms: int = duration_option(
        "How long planning, or a range that makes no progress, may take, retries included.",
        "1m",
        scope=EVERYWHERE,
    )
    request_timeout_ms: int = duration_option(
        "How long one request may take: servers drop some without an answer.",
        "10s",
        scope=EVERYWHERE,
    )
    connect_timeout_ms: int = duration_option(
        "How long a connection may take, TLS included.",
        "10s",
        scope=EVERYWHERE,
    )

    # -- bounds of memory
    fetches_in_flight: int = option(
        "Fetches that a task asks for ahead; the broker answers each with about 512 KiB at most, or one message.",
        default=8,
        check=between(1, 64),
    )
    max_batch_rows: int = max_batch_rows_option()
    max_batch_bytes: int = max_batch_bytes_option()

    # -- writing
    max_pending_messages: int = option(
        "Most messages that a task may have sent to one broker without its receipt.",
        default=2_000,
        scope=WRITE,
        check=between(1, 1 << 20),
    )
    max_pending_bytes: int = size_option(
        "Most bytes that a task may have sent to one broker without its receipt.",
        "16m",
        scope=WRITE,
    )
    send_timeout_ms: int = duration_option(
        "How long a task waits without any receipt of what it has sent, trying again meanwhile.",
        "1m",
        scope=WRITE,
    )
    wait_for_disk: bool = option(
        "Whether a task succeeds only when the brokers have forced its rows to their disks. **By default a broker "
        "acknowledges a row that it has in memory only: if it is killed, acknowledged rows are lost and the write has "
        "succeeded.** With `true` a task that has written its rows waits for the flush, which takes up to the topic's "
        "`memCacheFlushIntvl` and 10 s more, so set `sendTimeout` above that; if a connection breaks before the flush, "
        "the task fails and Spark's retry writes its rows again. The topics must accept readers (acceptSubscribe). The "
        "alternative is a setting of the broker: `enableMemStore=false`, with the topic's `unflushThreshold=1`, forces "
        "each row to the disk before it is acknowledged.",
        default=False,
        scope=WRITE,
    )

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of each master."""
        return parse_masters(self.masters)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """`topic` or `topics`, sorted."""
        return (self.topic,) if self.topic else tuple(sorted(self.topics))

    @property
    def group_name(self) -> str:
        """`group`, or one that is the same for the same topics and filters, because a group must agree on them.

        Example:
            >>> TubeMQOptions.from_spark({"masters": "m", "topic": "flights"}, READ).group_name
            'spark-mq-source-1d9e99c0'
        """
        if self.group is not None:
            return self.group
        text = ",".join(self.topic_names) + "#" + ",".join(sorted(self.filters))
        return f"spark-mq-source-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def read_priority(self) -> int:
        """The qryPriorityId of reads."""
        return WITH_MEMORY if self.low_latency else FLUSHED_ONLY

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """What is wrong between options, one sentence each."""
        if scope != WRITE and len(given & {"topic", "topics"}) != 1:
            yield "set exactly one of topic, topics" + (", not both" if "topic" in given else "")
        if scope == READ:
            yield from self._range_problems()
        if scope == STREAM and self.assignment is Assignment.SERVER:
            if "group" not in given:
                yield (
                    "assignment=server shares the topics with the other members of a group: set group, or set "
                    "assignment=client to read all partitions"
                )
            if self.starting_offsets is not None and self.starting_offsets.everywhere is None:
                yield (
                    "startingOffsets: with assignment=server positions belong to the group; use earliest or latest "
                    "for a group that has none, or assignment=client"
                )
        if ("auth_user" in given) != ("auth_password" in given):
            yield "authUser and authPassword go together: set both"
        if "client_key" in given and "client_cert" not in given:
            yield "clientKey needs clientCert"
        if not self.tls:
            for name, attribute in (("trustCerts", "trust_certs"), ("clientCert", "client_cert")):
                if attribute in given:
                    yield f"{name} has no meaning without tls=true"

    def _range_problems(self) -> Iterator[str]:
        starts, ends = self.starting_offsets, self.ending_offsets
        if starts is not None and LATEST in starts.values:
            yield "startingOffsets: latest would read nothing in a batch; use earliest or an offset"
        if ends is not None and EARLIEST in ends.values:
            yield "endingOffsets: earliest would read nothing; use latest or an offset"
        if starts is not None and ends is not None:
            for tp, start in starts.partitions.items():
                end = ends.partitions.get(tp)
                if end is not None and LATEST != start > end != EARLIEST:
                    yield f"startingOffsets is past endingOffsets for {tp}: {start} and {end}"
