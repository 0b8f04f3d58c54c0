"""The options of `nsq`; what means the same as an option of the other formats has the same name."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import urlsplit

from spark_mq_source.core.options import (
    INT32_MAX,
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
    parse_size_bytes,
    parse_text,
    size_option,
)
from spark_mq_source.core.shared_options import (
    EVERYWHERE,
    client_cert_option,
    client_key_option,
    max_batch_bytes_option,
    max_batch_rows_option,
    trust_certs_option,
    verify_hostname_option,
)
from spark_mq_source.nsq.protocol.commands import parse_name

_READING: Final = READ | STREAM

DEFAULT_TCP_PORT: Final = 4150
DEFAULT_HTTP_PORT: Final = 4151
DEFAULT_LOOKUPD_HTTP_PORT: Final = 4161


class Compression(enum.StrEnum):
    """How the bytes of a connection are compressed, both ways."""

    NONE = "none"
    DEFLATE = "deflate"
    SNAPPY = "snappy"


class AckMode(enum.StrEnum):
    """What a batch read does with the messages it has read."""

    FIN = "fin"
    REQUEUE = "requeue"


class OnMaxAttempts(enum.StrEnum):
    """What to do with a message that was delivered more than `maxAttempts` times."""

    FAIL = "fail"
    DEAD_LETTER_TOPIC = "deadLetterTopic"


def parse_address(text: str, default_port: int) -> tuple[str, int]:
    """A host and a port of ``host``, ``host:port`` or ``[v6]:port``.

    Raises:
        ValueError: not an address; the message says why.

    Example:
        >>> parse_address("nsq-1", 4150), parse_address("[::1]:5150", 4150)
        (('nsq-1', 4150), ('::1', 5150))
    """
    if "://" in text or "/" in text or "@" in text or re.search(r"\s", text):
        raise ValueError(f"{text!r}: expected host:port")
    # a bare IPv6 address has several colons and no brackets: its port would be guesswork
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


def _parse_nsqds(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(dict.fromkeys(parse_address(one, DEFAULT_TCP_PORT) for one in parse_list(text)))


def _parse_nsqds_http(text: str) -> tuple[str, ...]:
    return tuple(_parse_http(one, DEFAULT_HTTP_PORT) for one in parse_list(text))


def _parse_lookupds(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_parse_http(one, DEFAULT_LOOKUPD_HTTP_PORT) for one in parse_list(text)))


def _parse_http(text: str, default_port: int) -> str:
    """The base URL, without a slash at its end, of a URL or of a bare ``host:port`` as NSQ's own tools take it."""
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


@dataclass(frozen=True, kw_only=True, repr=False)
class NsqOptions(Options):
    """See the option table in README.md, which is made from this class.

    Example:
        >>> options = NsqOptions.from_spark(
        ...     {"nsqdTcpAddresses": "localhost", "topic": "flights", "channel": "spark", "maxRows": "1000"}, READ
        ... )
        >>> options.nsqd_tcp_addresses, options.compression.value
        ((('localhost', 4150),), 'none')
    """

    format_name: ClassVar[str] = "nsq"

    # -- where and who
    nsqlookupd_http_addresses: tuple[str, ...] = option(
        "Addresses of nsqlookupd, with commas between them: `host1:4161,host2:4161`, or `https://`. All are asked, and "
        "what any of them knows is read. This or `nsqdTcpAddresses` is required.",
        default=(),
        scope=EVERYWHERE,
        parse=_parse_lookupds,
    )
    nsqd_tcp_addresses: tuple[tuple[str, int], ...] = option(
        "Addresses of nsqd: `host1:4150,host2:4150`; the port may be left out where it is 4150.",
        default=(),
        scope=EVERYWHERE,
        parse=_parse_nsqds,
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        "HTTP addresses of the same nsqd, in the same order. Used to plan by what waits where, and to learn the sizes "
        "that nsqd takes; where none answers it goes without.",
        default=(),
        default_text="the TCP port + 1, where that is its",
        scope=EVERYWHERE,
        parse=_parse_nsqds_http,
    )
    host_map: tuple[tuple[str, str], ...] = option(
        "Where nsqd are reached that announce an address unknown here: `nsqd-1=10.0.0.5`, or with ports on both sides "
        "`nsqd-1:4150=localhost:14150`, with commas between them.",
        default=(),
        scope=EVERYWHERE,
        parse=_parse_host_map,
    )
    auth_secret: str | None = option("The secret for AUTH.", default=None, scope=EVERYWHERE, secret=True)
    lookupd_authorization: bool = option(
        "Whether nsqlookupd is sent `authSecret` too, as a Bearer token: for one behind a proxy that wants it, which "
        "should be `https://`.",
        default=False,
        scope=EVERYWHERE,
    )
    tls: bool = option(
        "Whether connections are upgraded to TLS; an nsqd that has none is an error.", default=False, scope=EVERYWHERE
    )
    trust_certs: str | None = trust_certs_option()
    client_cert: str | None = client_cert_option("nsqd")
    client_key: str | None = client_key_option()
    tls_verify_hostname: bool = verify_hostname_option("nsqd's")
    compression: Compression = option(
        "How the bytes on the way are compressed: `none`, `deflate` or `snappy`. An nsqd that does not offer it is "
        "talked to without, and the log says so.",
        default=Compression.NONE,
        scope=EVERYWHERE,
    )
    deflate_level: int = option(
        "Effort of `deflate`; nsqd lowers it to its `-max-deflate-level`.",
        default=6,
        scope=EVERYWHERE,
        check=between(1, 9),
    )

    # -- what
    topic: str | None = option(
        "The topic. A write has it where the rows do not say their topic.",
        default=None,
        default_text="required to read",
        scope=EVERYWHERE,
        parse=_parse_topic,
    )
    channel: str | None = option(
        "The channel: each channel of a topic gets every message once, and the queries on one channel share them.",
        default=None,
        default_text="required",
        parse=_parse_topic,
    )
    create_channel: bool = option(
        "Whether a channel that does not exist is created, and a stream waits for a topic that does not exist; else "
        "either is an error when the query starts. The first channel of a topic gets what waits in the topic, any "
        "other only what is published from then on.",
        default=False,
    )
    wal_dir: str | None = option(
        "A folder that the driver and every executor reach, where a batch is kept until Spark has it: an absolute path "
        "(of one machine, or mounted on all), or `s3://`, `gs://`, `abfss://` (`pip install 'spark-mq-source[s3]'`; "
        "credentials come from the environment). NSQ forgets a message once it is finished, so this is what makes a "
        "replay possible. Required in a stream.",
        default=None,
    )
    run_id: str | None = option(
        "With `walDir`: the name of this read. The same name again gives the same rows again, whatever came meanwhile.",
        default=None,
        scope=READ,
        parse=_parse_topic,
    )
    ack_mode: AckMode = option(
        "`fin` takes the messages out of the channel; `requeue` puts them back, which counts as an attempt, and reads "
        "no more messages on each connection than may be in flight there (nsqd's `-max-rdy-count`, 2,500).",
        default=AckMode.FIN,
        scope=READ,
    )
    max_rows: int | None = option("The read ends with so many messages.", default=None, scope=READ, check=at_least(1))
    max_seconds: int | None = option("The read ends after so long.", default=None, scope=READ, check=at_least(1))
    idle_timeout_ms: int | None = duration_option(
        "The read, or a trigger, ends when no message has come for so long: `2s`, `500ms`, or milliseconds. A read has "
        "at least one of `maxRows`, `maxSeconds`, `idleTimeout`.",
        None,
        default_text="`500ms` in a stream",
    )
    max_rows_per_trigger: int | None = option(
        "Most messages of one trigger, shared out over the tasks.",
        default=None,
        default_text="what is in flight at once",
        scope=STREAM,
        check=at_least(1),
    )
    max_attempts: int = option(
        "What becomes of a message that was delivered more often than this, `onMaxAttempts` says; with 0 it is "
        "delivered for ever. Nothing is ever discarded.",
        default=0,
        check=between(0, 65535),
    )
    on_max_attempts: OnMaxAttempts = option(
        "`fail` stops the query; `deadLetterTopic` publishes the message to `deadLetterTopic` and goes on.",
        default=OnMaxAttempts.FAIL,
    )
    dead_letter_topic: str | None = option(
        "The topic for messages with too many attempts, on the nsqd that they come from.",
        default=None,
        parse=_parse_topic,
    )

    # -- how
    connections_per_nsqd: int = option(
        "Tasks for each nsqd, with a connection each. **Above 1, a message that nsqd delivers again may be in two "
        "tasks of one batch:** a task recognises the messages of earlier batches and its own, not those of others.",
        default=1,
        check=between(1, 1000),
    )
    max_in_flight: int | None = option(
        "Messages that an nsqd may send ahead of our acknowledgements, on each connection (RDY).",
        default=None,
        default_text="nsqd's `-max-rdy-count`",
        check=at_least(1),
    )
    msg_timeout_ms: int | None = duration_option(
        "How long nsqd waits for an acknowledgement before it delivers a message again.",
        None,
        default_text="nsqd's `-msg-timeout`",
        check=between(1000, INT32_MAX, "from 1s to nsqd's -max-msg-timeout"),
    )
    sample_rate: int = option(
        "Percentage of the messages to be delivered. **The others are lost for this channel**, and 0 means all.",
        default=0,
        check=between(0, 99),
    )
    client_id: str | None = option(
        "What nsqd's statistics and nsqadmin show of us.",
        default=None,
        default_text="the host's name",
        scope=EVERYWHERE,
    )
    topology_region: str | None = option(
        "The region we are in; an nsqd built to prefer consumers near it compares it with its own.",
        default=None,
        scope=EVERYWHERE,
    )
    topology_zone: str | None = option("The same of the zone.", default=None, scope=EVERYWHERE)
    heartbeat_interval_ms: int = duration_option(
        "How often nsqd asks for a sign of life; after three such times of silence it is given up.",
        "30s",
        scope=EVERYWHERE,
        check=between(1000, INT32_MAX, "from 1s to nsqd's -max-heartbeat-interval"),
    )
    output_buffer_bytes: int | None = option(
        "Bytes that nsqd collects before it sends them.",
        default=None,
        default_text="nsqd's, `16k`",
        name="outputBufferSize",
        parse=parse_size_bytes,
        check=between(64, INT32_MAX, "from 64 to nsqd's -max-output-buffer-size"),
    )
    output_buffer_timeout_ms: int | None = duration_option(
        "How long nsqd collects them.",
        None,
        default_text="nsqd's, `250ms`",
        check=between(1, INT32_MAX, "from 1ms to nsqd's -max-output-buffer-timeout"),
    )
    operation_timeout_ms: int = duration_option(
        "How long a request may take: `30s`, `500ms`, or milliseconds.",
        "30s",
        scope=EVERYWHERE,
    )
    connect_timeout_ms: int = duration_option(
        "How long a connection may take, with TLS, compression and AUTH.",
        "10s",
        scope=EVERYWHERE,
    )

    # -- bounds of memory
    receive_queue_bytes: int = size_option(
        "When a task holds more than this received and not yet decoded, it asks nsqd to stop until half is decoded.",
        "64m",
        least="1m",
    )
    max_batch_rows: int = max_batch_rows_option()
    max_batch_bytes: int = max_batch_bytes_option()
    max_message_bytes: int | None = size_option(
        "Largest message: nsqd's `-max-msg-size`. A larger row is an error before anything is sent, and a larger "
        "message that arrives is one too.",
        None,
        default_text="asked from nsqd where its HTTP answers; else `1m` to write, `128m` to read",
        scope=EVERYWHERE,
        most="1g",
    )

    # -- writing
    max_body_bytes: int | None = size_option(
        "Largest MPUB: nsqd's `-max-body-size`.",
        None,
        default_text="asked from nsqd where its HTTP answers; else `5m`",
        scope=WRITE,
        least="9",
        most="1g",
    )
    batching_max_bytes: int = size_option(
        "Most bytes of an MPUB; a larger message is sent by itself.",
        "256k",
        scope=WRITE,
        most="1g",
    )
    batching_max_messages: int = option(
        "Most messages of an MPUB.", default=100_000, scope=WRITE, check=between(1, INT32_MAX)
    )
    max_pending_bytes: int = size_option(
        "Most bytes that a task may have sent without nsqd's OK.",
        "16m",
        scope=WRITE,
    )
    send_timeout_ms: int = duration_option(
        "How long a task waits without any OK for what it has sent, trying the other nsqd meanwhile.",
        "1m",
        scope=WRITE,
    )

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """What is wrong between options, one sentence each."""
        if not given & {"nsqlookupd_http_addresses", "nsqd_tcp_addresses"}:
            yield "set nsqlookupdHttpAddresses or nsqdTcpAddresses"
        if self.nsqd_http_addresses and len(self.nsqd_http_addresses) != len(self.nsqd_tcp_addresses):
            yield "nsqdHttpAddresses: give one for each of nsqdTcpAddresses, in their order"
        if scope & _READING:
            yield from (f"{name}: required but not set" for name in ("topic", "channel") if name not in given)
            yield from self._attempts_problems(given)
        if scope == STREAM and "wal_dir" not in given:
            yield "walDir: required but not set: it is what a failed batch is read from again"
        if scope == READ:
            yield from self._drain_problems(given)
        yield from self._security_problems(given)

    def _attempts_problems(self, given: frozenset[str]) -> Iterator[str]:
        dead_letter = self.on_max_attempts is OnMaxAttempts.DEAD_LETTER_TOPIC
        if dead_letter != ("dead_letter_topic" in given):
            yield "onMaxAttempts=deadLetterTopic and deadLetterTopic go together: set both"
        if "on_max_attempts" in given and not self.max_attempts:
            yield "onMaxAttempts has no meaning without maxAttempts"
        if self.dead_letter_topic is not None and self.dead_letter_topic == self.topic:
            yield "deadLetterTopic: the topic that is read would get its own messages back"

    @staticmethod
    def _drain_problems(given: frozenset[str]) -> Iterator[str]:
        if not given & {"max_rows", "max_seconds", "idle_timeout_ms"}:
            yield "a topic has no end: set maxRows, maxSeconds or idleTimeout"
        if "run_id" in given and "wal_dir" not in given:
            yield "runId needs walDir"
        if "wal_dir" in given and "run_id" not in given:
            yield "walDir needs runId, which names what is kept there"

    def _security_problems(self, given: frozenset[str]) -> Iterator[str]:
        if self.lookupd_authorization and self.auth_secret is None:
            yield "lookupdAuthorization needs authSecret"
        if "client_key" in given and "client_cert" not in given:
            yield "clientKey needs clientCert"
        has_https = any(url.startswith("https:") for url in self.nsqlookupd_http_addresses + self.nsqd_http_addresses)
        if not self.tls and not has_https:
            for name, field in (("trustCerts", "trust_certs"), ("clientCert", "client_cert")):
                if field in given:
                    yield f"{name} has no meaning without tls=true"
        if "deflate_level" in given and self.compression is not Compression.DEFLATE:
            yield "deflateLevel has no meaning without compression=deflate"
