"""The options of `nsq`. An option with the same meaning in another format has the same name."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from spark_mq_source.core.options import (
    INT32_MAX,
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
    parse_duration_ms,
    parse_list,
    parse_size_bytes,
    parse_text,
    size_option,
)
from spark_mq_source.core.shared_options import (
    EVERYWHERE,
    TOPIC_FIELDS,
    BatchOptions,
    CorruptOptions,
    DrainOptions,
    PaceOptions,
    SendOptions,
    TlsOptions,
    parse_regex,
)
from spark_mq_source.nsq.protocol.commands import OFF, parse_name
from spark_mq_source.values.options import TypedOptions

_READING: Final = READ | STREAM

DEFAULT_TCP_PORT: Final = 4150
DEFAULT_HTTP_PORT: Final = 4151
DEFAULT_LOOKUPD_HTTP_PORT: Final = 4161


class Compression(StrEnum):
    """Compression of a connection, in both directions."""

    NONE = "none"
    DEFLATE = "deflate"
    SNAPPY = "snappy"


class AckMode(StrEnum):
    """Treatment of the messages that a batch read has read."""

    FIN = "fin"
    REQUEUE = "requeue"


class OnMaxAttempts(StrEnum):
    """Action for a message that was delivered more than `maxAttempts` times."""

    FAIL = "fail"
    DEAD_LETTER = "deadLetter"


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """Parse ``host``, ``host:port`` or ``[v6]:port`` into host and port.

    Raises:
        ValueError: not an address; the message gives the reason.

    Example:
        >>> parse_address("nsq-1", 4150), parse_address("[::1]:5150", 4150)
        (('nsq-1', 4150), ('::1', 5150))
    """
    if "://" in text or "/" in text or "@" in text or re.search(r"\s", text):
        raise ValueError(f"{text!r}: expected host:port")
    # Without brackets, the port of an IPv6 address is ambiguous.
    if text.count(":") > 1 and not text.startswith("["):
        raise ValueError(f"{text!r}: put an IPv6 address in brackets: [::1]:{default_port}")
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not host or port == 0 or text.endswith(":"):
        raise ValueError(f"{text!r}: expected host:port")
    return host, default_port if port is None else port


def _parse_http(text: str, default_port: int) -> str:
    """Return the base URL, without a trailing slash, of a URL or of a bare ``host:port`` as in NSQ's own tools."""
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "http", text
    if scheme.lower() not in ("http", "https"):
        raise ValueError(f"{text!r}: expected host:port, http://host:port or https://host:port")
    host, port = parse_address(rest.rstrip("/"), default_port if not found else 443 if scheme == "https" else 80)
    return f"{scheme.lower()}://{f'[{host}]' if ':' in host else host}:{port}"


def _parse_host_map(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for pair in parse_list(text):
        announced, found, reached = pair.partition("=")
        if not found or not announced.strip() or not reached.strip():
            raise ValueError(
                f"{pair!r}: expected announced=reachable, such as nsqd-1=10.0.0.5 or nsqd-1:4150=localhost:14150"
            )
        for address in (announced.strip(), reached.strip()):
            parse_address(address, DEFAULT_TCP_PORT)
        if (":" in announced) != (":" in reached):
            raise ValueError(f"{pair!r}: give both sides a port, or none")
        pairs.append((announced.strip(), reached.strip()))
    return tuple(pairs)


def _parse_topic(text: str) -> str:
    return parse_name(parse_text(text))


def _parse_topics(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse_name(name) for name in parse_list(text)))


def _or_off(parse: Callable[[str], int]) -> Callable[[str], int]:
    return lambda text: OFF if text == str(OFF) else parse(text)


def _unless_off(least: int, says: str) -> Callable[[int], None]:
    check = between(least, INT32_MAX, f"{says}, or {OFF}")
    return lambda value: None if value == OFF else check(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class NsqOptions(TlsOptions, DrainOptions, CorruptOptions, TypedOptions, PaceOptions, BatchOptions, SendOptions):
    """See docs/reference/nsq.md, which is generated from this class.

    Example:
        >>> options = NsqOptions.from_spark(
        ...     {"nsqdTcpAddresses": "localhost", "topic": "flights", "channel": "spark", "maxRows": "1000"}, READ
        ... )
        >>> options.nsqd_tcp_addresses, options.compression.value
        ((('localhost', 4150),), 'none')
    """

    format_name: ClassVar[str] = "nsq"

    notes: ClassVar[Mapping[str, str]] = {
        "walDir": " NSQ deletes finished messages, so batches are replayed from here. Required for a stream.",
        "maxRecordsPerPartition": " Applies to the messages of an nsqd; with several tasks per nsqd, what "
        "`connectionsPerNsqd` says of redelivered messages applies. A batch needs `maxRows` too.",
        "waitForTopic": " Without this option, a stream with `createChannel=true` waits without limit.",
        "minRowsPerTrigger": " Counted by the HTTP interfaces of the nsqd; if one is unreachable, a trigger does not "
        "wait.",
        "deadLetterTopic": " NSQ's messages have no properties: the log has a dead letter's origin and reason. "
        "With `onMaxAttempts=deadLetter`: the topic for messages with too many attempts, on the nsqd they came "
        "from.",
        "sendTimeout": " Meanwhile it tries other nsqd. While none can be reached, `operationTimeout` applies if it is "
        "shorter.",
    }
    parsers: ClassVar[Mapping[str, Callable[[str], Any]]] = {"deadLetterTopic": _parse_topic}

    # -- connection and authentication
    nsqlookupd_http_addresses: tuple[str, ...] = option(
        "Comma-separated addresses of nsqlookupd: `host1:4161,host2:4161`, or `https://`. All are queried, and their "
        "answers are merged. Either this or `nsqdTcpAddresses` is required.",
        default=(),
        scope=EVERYWHERE,
        parse=lambda text: tuple(
            dict.fromkeys(_parse_http(one, DEFAULT_LOOKUPD_HTTP_PORT) for one in parse_list(text))
        ),
        section=Section.CONNECT,
    )
    nsqd_tcp_addresses: tuple[tuple[str, int], ...] = option(
        "Comma-separated addresses of nsqd: `host1:4150,host2:4150`. Default port: 4150.",
        default=(),
        scope=EVERYWHERE,
        parse=lambda text: tuple(dict.fromkeys(parse_address(one, DEFAULT_TCP_PORT) for one in parse_list(text))),
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        "HTTP addresses of the same nsqd, in the same order. Used to plan by the messages waiting on each nsqd, and to "
        "get nsqd's size limits; optional.",
        default=(),
        default_text="TCP port + 1, if it is the same nsqd",
        scope=EVERYWHERE,
        parse=lambda text: tuple(_parse_http(one, DEFAULT_HTTP_PORT) for one in parse_list(text)),
    )
    host_map: tuple[tuple[str, str], ...] = option(
        "Replacements for announced nsqd addresses that are unreachable: `nsqd-1=10.0.0.5`, or with ports on both "
        "sides `nsqd-1:4150=localhost:14150`; comma-separated.",
        default=(),
        scope=EVERYWHERE,
        parse=_parse_host_map,
    )
    auth_secret: str | None = option(
        "The secret for AUTH.", default=None, scope=EVERYWHERE, secret=True, section=Section.AUTHENTICATE
    )
    lookupd_authorization: bool = option(
        "Whether to send `authSecret` to nsqlookupd as a Bearer token, for an nsqlookupd behind a proxy that requires "
        "it; use `https://` then.",
        default=False,
        scope=EVERYWHERE,
    )
    tls: bool = option("Whether connections use TLS; an nsqd without TLS is an error.", default=False, scope=EVERYWHERE)
    compression: Compression = option(
        "Compression of connections: `none`, `deflate` or `snappy`. If an nsqd does not offer it, the connection stays "
        "uncompressed and a warning is logged.",
        default=Compression.NONE,
        scope=EVERYWHERE,
        section=Section.CONNECT,
    )
    deflate_level: int = option(
        "Compression level of `deflate`; nsqd limits it to its `-max-deflate-level`.",
        default=6,
        scope=EVERYWHERE,
        check=between(1, 9),
    )

    # -- topic and range
    topic: str | None = option(
        "The topic. A read needs exactly one of `topic`, `topics`, `topicsPattern`. Required for writing unless every "
        "row has a `topic`.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_topic,
        section=Section.CHOOSE,
    )
    topics: tuple[str, ...] = option("Comma-separated list of topics.", default=(), parse=_parse_topics)
    topics_pattern: re.Pattern[str] | None = option(
        "All topics whose names match: a regular expression, as in `flights-.*`. nsqlookupd lists them, and the HTTP "
        "interfaces of `nsqdTcpAddresses`. A topic without the channel is left out unless `createChannel=true`. A "
        "stream reads topics that match later, too.",
        default=None,
        parse=lambda text: parse_regex(parse_text(text)),
    )
    channel: str | None = option(
        "Channel to read. Each channel of a topic gets every message once; queries on the same channel share its "
        "messages.",
        default=None,
        default_text="required",
        parse=_parse_topic,
    )
    create_channel: bool = option(
        "Whether a missing channel is created, and whether a stream waits for a missing topic; otherwise either is an "
        "error when the query starts. The first channel of a topic gets the messages waiting in the topic, later "
        "channels only messages published from then on. A channel that exists on one nsqd is always created on the "
        "topic's others.",
        default=False,
    )
    ack_mode: AckMode = option(
        "Whether a batch read removes messages: `fin` removes them from the channel, `requeue` puts them back, which "
        "counts as an attempt, and limits the read to the in-flight messages of each connection (nsqd's "
        "`-max-rdy-count`, 2,500).",
        default=AckMode.FIN,
        scope=READ,
        section=Section.DRAIN,
    )
    max_rows_per_trigger: int | None = option(
        "Maximum number of messages per trigger, distributed over the tasks.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        check=at_least(1),
        section=Section.LIMIT,
    )
    max_attempts: int = option(
        "Maximum delivery attempts of a message, after which `onMaxAttempts` applies; 0 for no limit. Messages are "
        "never discarded.",
        default=0,
        check=between(0, 65535),
        section=Section.FAIL,
    )
    on_max_attempts: OnMaxAttempts = option(
        "Action after `maxAttempts`: `fail` stops the query; `deadLetter` publishes the message to the topic "
        "`deadLetterTopic` and continues.",
        default=OnMaxAttempts.FAIL,
    )
    requeue_delay_ms: int = duration_option(
        "Delay of a message that a failed task puts back, times its attempts, up to `maxRequeueDelay`; `0` for none. "
        "Meanwhile nsqd delivers other messages.",
        "0",
        least="0",
        section=Section.FAIL,
    )
    max_requeue_delay_ms: int = duration_option(
        "Longest delay of a message that is put back; nsqd limits it to its `-max-req-timeout`.", "15m", least="0"
    )
    max_backoff_ms: int = duration_option(
        "Longest pause of a task with `walDir` that runs again after a failure: it waits 2 s, 4 s, 8 s with each "
        "failure, takes one message at a time, and all after as many successes, as go-nsq's consumers do. `0` for no "
        "pause.",
        "2m",
        least="0",
        name="maxBackoffDuration",
    )
    # -- reading
    connections_per_nsqd: int = option(
        "Number of tasks per nsqd and topic, with one connection each. **Above 1, a redelivered message may be in two "
        "tasks of one batch:** a task recognises duplicates of earlier batches and its own messages, not those of "
        "other tasks.",
        default=1,
        check=between(1, 1000),
        section=Section.LIMIT,
    )
    max_in_flight: int | None = option(
        "Maximum number of unacknowledged messages per connection (RDY).",
        default=None,
        default_text="nsqd's `-max-rdy-count`",
        check=at_least(1),
    )
    msg_timeout_ms: int | None = duration_option(
        "Time without an acknowledgement after which nsqd redelivers a message.",
        None,
        default_text="nsqd's `-msg-timeout`",
        check=between(1000, INT32_MAX, "from 1s to nsqd's -max-msg-timeout"),
        section=Section.FAIL,
    )
    sample_rate: int = option(
        "Percentage of the messages to deliver; 0 for all. **The other messages are lost for this channel.**",
        default=0,
        check=between(0, 99),
        section=Section.CHOOSE,
    )
    client_id: str | None = option(
        "Client id shown in nsqd's statistics and nsqadmin.",
        default=None,
        default_text="the host name",
        scope=EVERYWHERE,
        section=Section.CONNECT,
    )
    topology_region: str | None = option(
        "Region of this client, for an nsqd (after 1.3.0) that prefers consumers of its own region.",
        default=None,
        scope=EVERYWHERE,
    )
    topology_zone: str | None = option("Zone of this client; see `topologyRegion`.", default=None, scope=EVERYWHERE)
    heartbeat_interval_ms: int = duration_option(
        "Interval of nsqd's heartbeats; a connection without data for three intervals is closed. Writing: `-1` for no "
        "heartbeats: only `sendTimeout` then detects a dead nsqd, and nsqd keeps connections of machines that died.",
        "30s",
        scope=EVERYWHERE,
        parse=_or_off(parse_duration_ms),
        check=_unless_off(1000, "from 1s to nsqd's -max-heartbeat-interval"),
    )
    output_buffer_bytes: int | None = option(
        "Bytes that nsqd buffers before it sends them; `-1` for no buffer.",
        default=None,
        default_text="nsqd's, `16k`",
        name="outputBufferSize",
        parse=_or_off(parse_size_bytes),
        check=_unless_off(64, "from 64 to nsqd's -max-output-buffer-size"),
    )
    output_buffer_timeout_ms: int | None = duration_option(
        "Maximum time that nsqd buffers bytes before it sends them; `-1` for no limit: nsqd sends them when the buffer "
        "is full, and with its next heartbeat. It must be less than `msgTimeout`. A read waits at least this time for "
        "a message, whatever `idleTimeout` is.",
        None,
        default_text="nsqd's, `250ms`",
        parse=_or_off(parse_duration_ms),
        check=_unless_off(1, "from 1ms to nsqd's -max-output-buffer-timeout"),
    )
    operation_timeout_ms: int = duration_option(
        "Timeout of a request: `30s`, `500ms`, or milliseconds.",
        "30s",
        scope=EVERYWHERE,
        section=Section.FAIL,
    )
    connect_timeout_ms: int = duration_option(
        "Timeout of connecting, including TLS, compression and AUTH.",
        "10s",
        scope=EVERYWHERE,
    )

    # -- memory limits
    receive_queue_bytes: int = size_option(
        "Maximum bytes that a task may hold received and not yet decoded; beyond it, nsqd is paused until half is "
        "decoded.",
        "64m",
        least="1m",
        section=Section.LIMIT,
    )
    max_message_bytes: int | None = size_option(
        "Largest message in bytes: nsqd's `-max-msg-size`. A larger row is an error before anything is sent; a larger "
        "received message is an error too.",
        None,
        default_text="nsqd's, if its HTTP interface is reachable; else `1m` to write, `128m` to read",
        scope=EVERYWHERE,
        most="1g",
    )

    # -- writing
    max_body_bytes: int | None = size_option(
        "Largest MPUB in bytes: nsqd's `-max-body-size`.",
        None,
        default_text="nsqd's, if its HTTP interface is reachable; else `5m`",
        scope=WRITE,
        least="9",
        most="1g",
    )
    batching_max_bytes: int = size_option(
        "Maximum bytes of an MPUB; a larger message is sent alone.",
        "256k",
        scope=WRITE,
        most="1g",
        section=Section.WRITE,
    )
    batching_max_messages: int = option(
        "Maximum number of messages in an MPUB.", default=100_000, scope=WRITE, check=between(1, INT32_MAX)
    )

    @property
    def topic_names(self) -> tuple[str, ...]:
        """`topic` or `topics`; empty if `topics_pattern` is set."""
        return (self.topic,) if self.topic else self.topics

    @property
    def topics_text(self) -> str:
        """The topics that are read, for errors and logs.

        Example:
            >>> NsqOptions.from_spark(
            ...     {"nsqdTcpAddresses": "h", "topicsPattern": "a.*", "channel": "c", "maxRows": "1"}, READ
            ... ).topics_text
            'nsq topics matching a.*'
        """
        if self.topics_pattern is not None:
            return f"nsq topics matching {self.topics_pattern.pattern}"
        return f"nsq topic {', '.join(self.topic_names)}"

    @property
    def has_tls(self) -> bool:
        """True if any connection uses TLS, to nsqd or to an HTTP interface."""
        urls = self.nsqlookupd_http_addresses + self.nsqd_http_addresses
        return self.tls or any(url.startswith("https:") for url in urls)

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if not given & {"nsqlookupd_http_addresses", "nsqd_tcp_addresses"}:
            yield "set nsqlookupdHttpAddresses or nsqdTcpAddresses"
        if self.nsqd_http_addresses and len(self.nsqd_http_addresses) != len(self.nsqd_tcp_addresses):
            yield "nsqdHttpAddresses: give one for each of nsqdTcpAddresses, in their order"
        if scope & _READING:
            yield from self.set_exactly_one(TOPIC_FIELDS, given)
            if "channel" not in given:
                yield "channel: required but not set"
            gives_up = self.on_max_attempts is OnMaxAttempts.DEAD_LETTER
            yield from self.dead_letter_problems(given, {"onMaxAttempts=deadLetter": gives_up})
            if "on_max_attempts" in given and not self.max_attempts:
                yield "onMaxAttempts has no meaning without maxAttempts"
            if self.heartbeat_interval_ms == OFF:
                yield "heartbeatInterval=-1 is for writing: nsqd refuses a consumer without heartbeats"
        if scope == STREAM and "wal_dir" not in given:
            yield "walDir: required but not set: a failed batch is replayed from it"
        if scope == READ:
            yield from self.drain_problems(given, "a topic")
            if "max_records_per_partition" in given and "max_rows" not in given:
                yield "maxRecordsPerPartition needs maxRows: a drain without it has no number of messages to split"
        yield from self._security_problems(given)

    def _security_problems(self, given: frozenset[str]) -> Iterator[str]:
        if self.lookupd_authorization and self.auth_secret is None:
            yield "lookupdAuthorization needs authSecret"
        if "deflate_level" in given and self.compression is not Compression.DEFLATE:
            yield "deflateLevel has no meaning without compression=deflate"
