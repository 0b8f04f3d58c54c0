"""The options of `pulsar-native`. Names of pulsar-spark are accepted too: a job moves by changing the format name."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import enum
import ipaddress
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from spark_mq_source.core.compression import CODECS
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
    OnCorrupt,
    client_cert_option,
    client_key_option,
    max_batch_bytes_option,
    max_batch_rows_option,
    on_corrupt_option,
    trust_certs_option,
    verify_hostname_option,
)
from spark_mq_source.pulsar.offsets import (
    EARLIEST,
    LATEST,
    PerTopic,
    Position,
    parse_offsets,
    parse_timestamps,
    parse_topic,
    split_partition,
)
from spark_mq_source.pulsar.payload.schema import BYTES, JSON, ValueSchema, parse_schema
from spark_mq_source.pulsar.pulsar_spark import translate

_READING: Final = READ | STREAM
_DEFAULT_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
# Longer than any topic name, and short enough to compile quickly.
_LONGEST_PATTERN: Final = 1000
# Matches (..a+..)* and similar, but not the possessive (..a++..)*; a{3} inside is harmless, a{3,} is not.
_REPEATED_REPETITION: Final = re.compile(
    r"\([^()]*(?:(?<![\\+*?}])[+*](?!\+)|\{[0-9]*,[0-9]*\}(?!\+))[^()]*\)(?:[+*](?!\+)|\{[0-9]*,)"
)


class OnEncrypted(enum.StrEnum):
    """What to do with a message whose payload is encrypted."""

    FAIL = "fail"
    RAW = "raw"


class DeliveryGuarantee(enum.StrEnum):
    """How often a row is stored after failures and retries."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    TRANSACTION = "transaction"


class ValueFormat(enum.StrEnum):
    """How the column `value` is encoded when written."""

    RAW = "raw"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """All topics of one namespace whose name matches.

    Attributes:
        namespace: ``tenant/namespace``.
        regex: must match the topic's whole local name (the part after the namespace).

    Example:
        >>> pattern = parse_topics_pattern("persistent://acme/prod/flights-.*")
        >>> pattern.namespace, pattern.matches("persistent://acme/prod/flights-2013-partition-0")
        ('acme/prod', True)
    """

    namespace: str
    regex: re.Pattern[str]

    def matches(self, topic: str) -> bool:
        """Whether the full name of a topic, or of one of its partitions, matches."""
        prefix = f"persistent://{self.namespace}/"
        name = split_partition(topic)[0]
        return name.startswith(prefix) and self.regex.fullmatch(name[len(prefix) :]) is not None


def parse_service_url(text: str) -> tuple[tuple[tuple[str, int], ...], bool]:
    """The addresses of a service URL, as (host, port), and whether they use TLS.

    Raises:
        ValueError: not a Pulsar service URL; the message says why.

    Example:
        >>> parse_service_url("pulsar+ssl://h1,[::1]:7000")
        ((('h1', 6651), ('::1', 7000)), True)
    """
    scheme, found, rest = text.partition("://")
    if scheme.lower() in ("http", "https"):
        raise ValueError(
            "that is the admin address (adminUrl); the service address begins with pulsar:// (port 6650) or "
            "pulsar+ssl:// (port 6651)"
        )
    if not found or scheme.lower() not in _DEFAULT_PORTS:
        raise ValueError("expected pulsar://host:6650 or pulsar+ssl://host:6651, more hosts after commas")
    if "@" in rest:
        raise ValueError(
            "the address cannot contain a user or password; set authToken, or authBasicUser and authBasicPassword"
        )
    if "://" in rest:
        raise ValueError(f"write the scheme once, at the beginning: {scheme}://host1:port,host2:port")
    addresses = tuple(
        _parse_address(one.strip(), _DEFAULT_PORTS[scheme.lower()]) for one in rest.removesuffix("/").split(",")
    )
    return addresses, scheme.lower() == "pulsar+ssl"


def _parse_address(text: str, default_port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[(?P<v6>[^]]*)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?", text, re.ASCII)
    if not match:
        more = "; put an IPv6 address in brackets" if text.count(":") > 1 else ""
        raise ValueError(f"{text!r} is not host or host:port{more}")
    port = int(match["port"]) if match["port"] else default_port
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is not a port")
    if match["host"]:
        return match["host"], port
    try:
        return str(ipaddress.IPv6Address(match["v6"])), port
    except ValueError:
        raise ValueError(f"{match['v6']!r} is not an IPv6 address") from None


def parse_topics_pattern(text: str) -> TopicsPattern:
    """Parses ``persistent://tenant/namespace/regex``, ``tenant/namespace/regex`` or ``regex``.

    Tenant and namespace are literal, as in pulsar-spark, because a broker lists topics by namespace. The regular
    expression is Python's: the forms that Java reads differently are errors.

    Raises:
        ValueError: not a pattern; the message says why.
    """
    if len(text) > _LONGEST_PATTERN:
        raise ValueError(f"longer than {_LONGEST_PATTERN} characters")
    scheme, found, rest = text.partition("://")
    if found and scheme != "persistent":
        parse_topic(f"{scheme}://t/n/t")  # raises the sentence for this scheme
    rest = rest if found else text
    if found or re.match(r"[-=:.\w]+/[-=:.\w]+/", rest, re.ASCII):
        match = re.fullmatch(r"([-=:.\w]+/[-=:.\w]+)/(.+)", rest, re.ASCII | re.DOTALL)
        if not match:
            raise ValueError("tenant and namespace must be plain names: persistent://tenant/namespace/regex")
        namespace, expression = match[1], match[2]
    else:
        namespace, expression = "public/default", rest
    if "/" in expression:
        raise ValueError("a topic's name has no /; write tenant/namespace/regex with plain names before the regex")
    # Other expressions can backtrack for ever too, but this form is written by accident.
    if _REPEATED_REPETITION.search(expression):
        raise ValueError(
            "a repeated group that contains a repetition can take for ever to match; remove the inner repetition"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # nested sets, which Java reads differently
            regex = re.compile(expression)
    except (re.error, FutureWarning, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return TopicsPattern(namespace, regex)


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(parse_topic(name) for name in parse_list(text))
    for topic in topics:
        base, partition = split_partition(topic)
        if topics.count(topic) > 1:
            raise ValueError(f"duplicate topic {topic}")
        if partition >= 0 and base in topics:
            raise ValueError(f"{topic} is a partition of {base}, which is also listed")
    return topics


def _parse_admin_url(text: str) -> str:
    parts = urlsplit(parse_text(text))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://host:8080 or https://host:8443")
    return _checked_url(text, parts)


def _checked_url(text: str, parts: SplitResult) -> str:
    if "@" in parts.netloc:
        raise ValueError("the address cannot contain a user or password")
    if parts.query or parts.fragment:
        raise ValueError("expected an address without ? and #")
    _ = parts.port  # raises ValueError if it is not a port
    return text.rstrip("/")


def _parse_subscription(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", parse_text(text)):
        raise ValueError("contains control characters")
    return text


def _parse_codec(text: str) -> str:
    """The name of a codec, in any case.

    Raises:
        ValueError: unknown.
    """
    if text.upper() not in CODECS:
        raise ValueError(f"expected {' or '.join(CODECS)}")
    return text.upper()


def _parse_hashing(text: str) -> int:
    """The number of a key hashing scheme, see `_encode_python`.

    Raises:
        ValueError: unknown.
    """
    number = {"javastring": 0, "murmur3_32": 1}.get(text.lower().removesuffix("hash"))
    if number is None:
        raise ValueError("expected JavaStringHash or Murmur3_32")
    return number


_ACCESS_MODES: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
"""The names of `commands.ProducerAccessMode`, by number."""


def _parse_access_mode(text: str) -> int:
    """The number of an access mode, in any case.

    Raises:
        ValueError: unknown.
    """
    for number, name in enumerate(_ACCESS_MODES):
        if text.lower() == name.lower():
            return number
    raise ValueError(f"expected {' or '.join(_ACCESS_MODES)}")


def _parse_function(text: str) -> str:
    """The name of a function, as ``module:function``.

    Raises:
        ValueError: not a function name.
    """
    if not all(part.isidentifier() for name in text.split(":", 1) for part in name.split(".")) or ":" not in text:
        raise ValueError("expected module:function")
    return text


def _parse_issuer_url(text: str) -> str:
    """The URL of a token issuer.

    Raises:
        ValueError: not a URL, or one to which a secret must not be sent.
    """
    parts = urlsplit(parse_text(text))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected https://issuer")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ValueError("the client's secret is sent there, so it must begin with https://")
    return _checked_url(text, parts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True, repr=False)
class PulsarOptions(Options):
    """Options of `pulsar-native`; made by `from_spark`.

    Example:
        >>> options = PulsarOptions.from_spark({"serviceurl": "pulsar://broker", "topic": "flights"}, READ)
        >>> options.addresses, options.uses_tls
        ((('broker', 6650),), False)
        >>> options.topic
        'persistent://public/default/flights'
        >>> options.starting_at("persistent://public/default/flights-partition-0") == EARLIEST
        True
    """

    format_name: ClassVar[str] = "pulsar-native"

    # -- connection and authentication
    service_url: str = option(
        "Address of the brokers or the proxy: `pulsar://host1:6650,host2:6650`, or `pulsar+ssl://` for TLS. Default "
        "ports: 6650 and, with TLS, 6651.",
        scope=EVERYWHERE,
        aliases=("service.url", "pulsar.client.serviceUrl"),
        parse=parse_text,
        check=parse_service_url,
    )
    listener_name: str | None = option(
        "Advertised listener whose addresses the brokers return, on clusters with several listeners.",
        default=None,
        scope=EVERYWHERE,
        aliases=("pulsar.client.listenerName",),
    )
    admin_url: str | None = option(
        "Address of the admin API (`http://host:8080`). `minPartitions` uses it to split a read across ledgers, "
        "`maxBytesPerTrigger` to get ledger sizes. On a broker without PIP-344 (such as 2.10) it also finds "
        "partitioned topics that were never used.",
        default=None,
        scope=EVERYWHERE,
        aliases=("admin.url",),
        parse=_parse_admin_url,
    )
    auth_token: str | None = option("A token (JWT).", default=None, scope=EVERYWHERE, secret=True)
    auth_token_file: str | None = option(
        "File with the token, on every machine that reads or writes; read again each time the broker requests a new "
        "token.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_basic_user: str | None = option("User name of basic authentication.", default=None, scope=EVERYWHERE)
    auth_basic_password: str | None = option(
        "Password of basic authentication.", default=None, scope=EVERYWHERE, secret=True
    )
    auth_token_supplier: str | None = option(
        "Python function that returns the token, as `module:function`, importable on every machine that reads or "
        "writes; called at connect and each time the broker requests a new token.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_function,
    )
    auth_issuer_url: str | None = option(
        "OAuth 2.0 client credentials: the token issuer, `https://...`. Its token endpoint is taken from "
        "`/.well-known/openid-configuration`. A token is reused until shortly before it expires.",
        default=None,
        scope=EVERYWHERE,
        aliases=("issuerUrl",),
        parse=_parse_issuer_url,
    )
    auth_credentials_file: str | None = option(
        "JSON file with `client_id` and `client_secret` for `authIssuerUrl`, on every machine that reads or writes.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_client_id: str | None = option(
        "Client id for `authIssuerUrl`, instead of `authCredentialsFile`.", default=None, scope=EVERYWHERE
    )
    auth_client_secret: str | None = option(
        "Client secret for `authIssuerUrl`, instead of `authCredentialsFile`.",
        default=None,
        scope=EVERYWHERE,
        secret=True,
    )
    auth_audience: str | None = option(
        "Audience of the token, if the issuer requires one.",
        default=None,
        scope=EVERYWHERE,
        aliases=("audience",),
    )
    auth_scope: str | None = option(
        "Scope of the token, if the issuer requires one.",
        default=None,
        scope=EVERYWHERE,
        aliases=("scope",),
    )
    auth_issuer_trust_certs: str | None = option(
        "PEM file of the certificate authorities to trust for the issuer.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
    )
    trust_certs: str | None = trust_certs_option("pulsar.client.tlsTrustCertsFilePath")
    client_cert: str | None = client_cert_option("the broker", "pulsar.client.tlsCertificateFilePath")
    client_key: str | None = client_key_option("pulsar.client.tlsKeyFilePath")
    tls_verify_hostname: bool = verify_hostname_option("the broker's", "pulsar.client.tlsHostnameVerificationEnable")

    # -- topics and range
    topic: str | None = option(
        "The topic: `name`, `tenant/namespace/name` or `persistent://tenant/namespace/name`. `name-partition-0` "
        "selects a single partition. A read needs exactly one of `topic`, `topics`, `topicsPattern`. Required for "
        "writing unless every row has a `topic`.",
        default=None,
        scope=EVERYWHERE,
        parse=lambda text: parse_topic(parse_text(text)),
    )
    topics: tuple[str, ...] = option("Comma-separated list of topics.", default=(), parse=_parse_topics)
    topics_pattern: TopicsPattern | None = option(
        "All matching topics of one namespace: `tenant/namespace/regex`, or `regex` for `public/default`.",
        default=None,
        parse=lambda text: parse_topics_pattern(parse_text(text)),
    )
    starting_offsets: PerTopic[Position] | None = option(
        'Positions to start after: `earliest`, or JSON per topic or partition: `{"flights": {"0": {"ledger": 12, '
        '"entry": 3}, "1": "earliest"}}`. A position is that of the last message already read; its optional '
        "`batch` is an index within the entry's batch, and without it the whole entry counts as read. A stream uses "
        "this only if it has no checkpoint.",
        default=None,
        default_text="`earliest`; `latest` in a stream",
        parse=parse_offsets,
    )
    ending_offsets: PerTopic[Position] | None = option(
        "Positions of the last messages to read: `latest` (as of planning), or JSON as for `startingOffsets`.",
        default=None,
        default_text="`latest`",
        scope=READ,
        parse=parse_offsets,
    )
    starting_timestamp: PerTopic[int] | None = option(
        "Read messages published at or after this time: milliseconds since 1970, ISO-8601 with a zone "
        '(`2013-01-01T05:15:00Z`), or JSON of these per topic or partition: `{"flights": 1357017300000}`.',
        default=None,
        aliases=("startingTime",),
        parse=parse_timestamps,
    )
    ending_timestamp: PerTopic[int] | None = option(
        "Read messages published before this time; same format as `startingTimestamp`.",
        default=None,
        scope=READ,
        aliases=("endingTime",),
        parse=parse_timestamps,
    )
    read_compacted: bool = option(
        "Read the compacted topic: only the last message of each key, in the part that is already compacted.",
        default=False,
        aliases=("pulsar.reader.readCompacted",),
    )

    # -- reading
    max_entries_per_trigger: int | None = option(
        "Maximum number of entries per trigger, distributed by backlog. An entry is a batch of messages as its "
        "producer sent it, or a single message. Exact.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        check=at_least(1),
    )
    max_rows_per_trigger: int | None = option(
        "Maximum number of messages per trigger, distributed by backlog. Rounded to whole entries, at least one. Exact "
        "to the entry if the broker stores the message index and exposes it to clients (broker entry metadata). "
        "Otherwise estimated from the messages per entry in the first and last entry of this and earlier triggers: "
        "exact if the entries of a partition are alike, and possibly exceeded if they are not. If several limits are "
        "set, the smallest applies.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        check=at_least(1),
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
    min_partitions: int | None = option(
        "Minimum number of tasks: topic-partitions are split to reach it, if possible.",
        default=None,
        default_text="one task per topic-partition",
        check=at_least(1),
    )
    fail_on_data_loss: bool = option(
        "Whether to fail if messages of the range are no longer on the broker, or if a position never existed there "
        "(recreated topic, different cluster). `false` logs the loss and continues with the messages that remain.",
        default=True,
    )
    on_encrypted: OnEncrypted = option(
        "An encrypted payload: `fail`, or `raw` for the ciphertext as `value`; the column `encryption_context` then "
        "has the keys and parameters for decryption.",
        default=OnEncrypted.FAIL,
    )
    on_corrupt: OnCorrupt = on_corrupt_option()
    pushdown: bool = option(
        "Accept filters on topic, partition and publish_time from Spark. Needs Spark 4.1 or newer and "
        "`spark.sql.python.filterPushdown.enabled=true`. **Use one filter per `load()`**: Spark plans a loaded "
        "DataFrame once, so a second query on it with another filter silently gets the partitions of the first (seen "
        "on 4.3.0, with any data source).",
        default=False,
        scope=READ,
    )
    publish_time_slack_ms: int = duration_option(
        "With `pushdown`, the margin added on both sides of a filter on publish_time. It must cover publish times that "
        "are out of order within a partition, and their difference from the broker's clock, which brokers with entry "
        "metadata use to look up times.",
        "1m",
        scope=READ,
        least="0ms",
    )
    subscription: str | None = option(
        "In a stream: a durable subscription with this name retains messages on the broker until the query has "
        "committed them. If the query is stopped for good, its backlog stays until `spark-mq unsubscribe` deletes the "
        "subscription. The last entry read stays in the backlog until the next entry is read, as proof that nothing "
        "between them was deleted. In a batch: the name shown by the broker, as `NAME-<unique>`; it retains nothing.",
        default=None,
        aliases=("predefinedSubscription",),
        parse=_parse_subscription,
    )
    subscription_prefix: str = option(
        "Start of generated subscription names, if `subscription` is not set.",
        default="spark-mq-source",
        parse=_parse_subscription,
    )
    operation_timeout_ms: int = duration_option(
        "Timeout of a request, and of the wait for the first message of a range: `30s`, `500ms`, or milliseconds.",
        "30s",
        scope=EVERYWHERE,
        aliases=("pollTimeoutMs", "pulsar.client.operationTimeoutMs"),
    )
    connect_timeout_ms: int = duration_option(
        "Timeout of connecting, including TLS and the broker's CONNECTED.",
        "10s",
        scope=EVERYWHERE,
        aliases=("pulsar.client.connectionTimeoutMs",),
    )
    keep_alive_interval_ms: int = duration_option(
        "After this time without data on a connection, a PING is sent; after as long again without an answer, the "
        "connection is closed. Limited to a quarter of `operationTimeout`, to leave time to reconnect.",
        "30s",
        scope=EVERYWHERE,
        least="100ms",
    )

    # -- memory limits. A FLOW of 0, or permits that sum to more than 2^31, break the connection (broker 4.0.8).
    receiver_queue_messages: int = option(
        "Maximum number of messages that a broker may send ahead.",
        default=100_000,
        name="receiverQueueSize",
        aliases=("pulsar.reader.receiverQueueSize",),
        check=between(1, 2**30),
    )
    receive_queue_bytes: int = size_option(
        "Maximum bytes that a task may hold received and not yet decoded.",
        "64m",
        least="1m",
    )
    max_batch_rows: int = max_batch_rows_option()
    max_batch_bytes: int = max_batch_bytes_option()
    max_message_bytes: int = size_option(
        "Largest entry accepted, in bytes after decompression; larger ones are treated as corrupt.",
        "128m",
    )
    max_pending_chunk_bytes: int = size_option(
        "Maximum bytes of incomplete chunked messages in a task. Beyond it the oldest are dropped, and read again if "
        "their last chunk arrives.",
        "128m",
    )

    # -- writing
    value_format: ValueFormat = option(
        "Format of the column `value`: `raw` (binary or string, sent unchanged) or `json` (a struct, sent as JSON with "
        "a schema derived from its fields).",
        default=ValueFormat.RAW,
        scope=WRITE,
    )
    schema: ValueSchema | None = option(
        'Schema of the values, which the topic must have or accept: `BYTES` (none), `STRING`, or `{"type": "JSON", '
        '"schema": {"type": "record", ...}}`, with `AVRO` for values that are Avro-encoded already. With '
        "`valueFormat=json`, the Avro schema alone is enough.",
        default=None,
        default_text="`BYTES`; derived from the struct with `valueFormat=json`",
        scope=WRITE,
        parse=parse_schema,
    )
    access_mode: int = option(
        "Whether other producers may write to a topic-partition at the same time: `Shared` allows them; `Exclusive` "
        "fails if there are others; `WaitForExclusive` waits until there are none; `ExclusiveWithFencing` disconnects "
        "the others (2.10 brokers instead refuse it while others write). Each task is a separate producer: only "
        "`Shared` lets several tasks write to one topic-partition.",
        default=0,
        default_text="`Shared`",
        scope=WRITE,
        aliases=("pulsar.producer.accessMode",),
        parse=_parse_access_mode,
    )
    compression_type: str = option(
        "Compression of entries: `NONE`, `LZ4`, `ZLIB`, `ZSTD` or `SNAPPY`. Batches that do not shrink are sent "
        "uncompressed.",
        default="NONE",
        scope=WRITE,
        aliases=("pulsar.producer.compressionType",),
        parse=_parse_codec,
    )
    hashing: int = option(
        "Hash that maps a key to its partition: `JavaStringHash` or `Murmur3_32`; both as in the Java client.",
        default=0,
        default_text="`JavaStringHash`",
        scope=WRITE,
        name="hashingScheme",
        aliases=("pulsar.producer.hashingScheme",),
        parse=_parse_hashing,
    )
    batching: bool = option(
        "Whether messages are sent in batches.",
        default=True,
        scope=WRITE,
        aliases=("pulsar.producer.batchingEnabled",),
    )
    batching_max_bytes: int = size_option(
        "Maximum bytes of a batch before compression; a larger message is sent alone. Consumers receive batches whole, "
        "so use less for consumers with little memory.",
        "1m",
        scope=WRITE,
        aliases=("pulsar.producer.batchingMaxBytes",),
        most="1g",
    )
    batching_max_messages: int = option(
        "Maximum number of messages in a batch.",
        default=100_000,
        scope=WRITE,
        aliases=("pulsar.producer.batchingMaxMessages",),
        check=between(1, INT32_MAX),
    )
    batching_max_publish_delay_ms: int | None = duration_option(
        "Maximum time a row waits for its batch to fill: `10ms`, `1s`.",
        None,
        default_text="until the task has no more rows",
        scope=WRITE,
    )
    batching_by_key: bool = option(
        "Whether all messages of a batch have the same ordering key (or, without one, the same key), as consumers of "
        "Key_Shared subscriptions need.",
        default=False,
        scope=WRITE,
    )
    chunking: bool = option(
        "Whether a message above the broker's size limit is split into several entries; otherwise it is an error.",
        default=False,
        scope=WRITE,
        aliases=("pulsar.producer.chunkingEnabled",),
    )
    max_pending_bytes: int = size_option(
        "Maximum bytes that a task may have sent and the broker has not yet acknowledged.",
        "16m",
        scope=WRITE,
    )
    send_timeout_ms: int = duration_option(
        "Maximum time a task waits, while retrying, without any acknowledgement of the messages it sent to a "
        "topic-partition.",
        "1m",
        scope=WRITE,
        aliases=("pulsar.producer.sendTimeoutMs",),
    )
    delivery_guarantee: DeliveryGuarantee = option(
        "What holds after failures and retries: `at-least-once`; `exactly-once`, which needs deduplication enabled on "
        "the broker; or `transaction`, one per task, which needs transactions enabled on the broker. Without "
        "deduplication, a task attempt with a transaction fails if a topic moves to another broker while its rows are "
        "being sent.",
        default=DeliveryGuarantee.AT_LEAST_ONCE,
        scope=WRITE,
    )
    producer_name: str | None = option(
        "Prefix of the producer names. With `exactly-once` it identifies the write: a batch that runs again under the "
        "same name adds only the missing rows, so two different writes must not share a name.",
        default=None,
        default_text="the query's id; generated per batch write",
        scope=WRITE,
        aliases=("pulsar.producer.producerName",),
        parse=parse_text,
    )
    transaction_timeout_ms: int = duration_option(
        "Time after which the broker aborts an abandoned transaction; must exceed the duration of a job or "
        "micro-batch. Until then, the transaction of a killed task hides all later messages of its topics.",
        "10m",
        scope=WRITE,
        least="1s",
    )
    create_topic: bool = option(
        "Whether a missing topic is created, with the broker's defaults; otherwise it is an error.",
        default=False,
        scope=WRITE,
    )

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of each address of `service_url`."""
        return parse_service_url(self.service_url)[0]

    @property
    def uses_tls(self) -> bool:
        """Whether `service_url` is ``pulsar+ssl://``."""
        return parse_service_url(self.service_url)[1]

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The full names of `topic` or `topics`; empty if `topics_pattern` is set."""
        return (self.topic,) if self.topic else self.topics

    @property
    def subscription_base(self) -> str:
        """The prefix of a read's subscription names."""
        return self.subscription or self.subscription_prefix

    def starting_at(self, topic_partition: str) -> Position | int | None:
        """Where a batch read of a topic-partition (full name) starts.

        Returns:
            The last position already read (EARLIEST for the whole topic); or, as an int, the publish time in ms of
            the first message wanted; or None if the user named only other topic-partitions.
        """
        if self.starting_timestamp is not None:
            return self.starting_timestamp.at(topic_partition)
        return EARLIEST if self.starting_offsets is None else self.starting_offsets.at(topic_partition)

    def stream_starting_at(self, topic_partition: str) -> Position | int | None:
        """Where a stream without a checkpoint starts; as `starting_at`, but LATEST by default."""
        if self.starting_offsets is None and self.starting_timestamp is None:
            return LATEST
        return self.starting_at(topic_partition)

    def ending_at(self, topic_partition: str) -> Position | int | None:
        """Where a batch read of a topic-partition (full name) ends.

        Returns:
            The last position to read (LATEST for everything); or, as an int, the publish time in ms of the first
            message not wanted; or None if the user named only other topic-partitions.
        """
        if self.ending_timestamp is not None:
            return self.ending_timestamp.at(topic_partition)
        return LATEST if self.ending_offsets is None else self.ending_offsets.at(topic_partition)

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Contradictions between options, one sentence each."""
        topics = [name for name in ("topic", "topics", "topics_pattern") if name in given]
        if scope != WRITE and len(topics) != 1:
            names = {"topic": "topic", "topics": "topics", "topics_pattern": "topicsPattern"}
            yield "set exactly one of topic, topics, topicsPattern" + (
                f", not {' and '.join(names[name] for name in topics)}" if topics else ""
            )
        if {"starting_offsets", "starting_timestamp"} <= given:
            yield "startingOffsets and startingTimestamp contradict each other: set only one"
        if {"ending_offsets", "ending_timestamp"} <= given:
            yield "endingOffsets and endingTimestamp contradict each other: set only one"
        if scope == READ:
            yield from self._range_problems()
        yield from self._security_problems(given)
        if self.schema is not None:
            yield from self._schema_problems(self.schema.type)
        if self.delivery_guarantee is DeliveryGuarantee.EXACTLY_ONCE and "batching_max_publish_delay_ms" in given:
            yield (
                "batchingMaxPublishDelay and deliveryGuarantee=exactly-once contradict each other: which rows share "
                "a batch must not depend on the clock"
            )
        if self.delivery_guarantee is not DeliveryGuarantee.TRANSACTION and "transaction_timeout_ms" in given:
            yield "transactionTimeout needs deliveryGuarantee=transaction"

    def _schema_problems(self, schema_type: str) -> Iterator[str]:
        if self.value_format is ValueFormat.JSON and schema_type not in (JSON, BYTES, ""):
            yield f"schema: {schema_type} and valueFormat=json contradict each other"
        if self.value_format is ValueFormat.RAW and not schema_type:
            yield (
                'schema: name the encoding of the values, as {"type": "JSON", "schema": ...} or with "AVRO", or set '
                "valueFormat=json and write a struct"
            )

    def _range_problems(self) -> Iterator[str]:
        if self.starting_offsets is not None and LATEST in _values(self.starting_offsets):
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

    def _security_problems(self, given: frozenset[str]) -> Iterator[str]:
        ways = {
            "authToken": "auth_token" in given,
            "authTokenFile": "auth_token_file" in given,
            "authTokenSupplier": "auth_token_supplier" in given,
            "authBasicUser": "auth_basic_user" in given or "auth_basic_password" in given,
            "authIssuerUrl": "auth_issuer_url" in given,
        }
        chosen = [name for name, is_set in ways.items() if is_set]
        if len(chosen) > 1:
            yield f"{' and '.join(chosen)} contradict each other: set only one"
        if ("auth_basic_user" in given) != ("auth_basic_password" in given):
            yield "authBasicUser and authBasicPassword go together: set both"
        yield from self._issuer_problems(given)
        if "client_key" in given and "client_cert" not in given:
            yield "clientKey needs clientCert"
        if self.service_url and not self.uses_tls and not (self.admin_url or "").startswith("https:"):
            for name, field in (("trustCerts", "trust_certs"), ("clientCert", "client_cert")):
                if field in given:
                    yield f"{name} has no meaning without TLS: begin serviceUrl with pulsar+ssl://, or adminUrl with https://"

    @staticmethod
    def _issuer_problems(given: frozenset[str]) -> Iterator[str]:
        pair = {"auth_client_id", "auth_client_secret"} & given
        if "auth_issuer_url" not in given:
            if given & {"auth_credentials_file", "auth_client_id", "auth_client_secret", "auth_audience", "auth_scope"}:
                yield "authCredentialsFile, authClientId, authClientSecret, authAudience, authScope need authIssuerUrl"
        elif "auth_credentials_file" in given:
            if pair:
                yield "authCredentialsFile and authClientId with authClientSecret contradict each other: set only one"
        elif len(pair) < 2:
            yield "authIssuerUrl needs authCredentialsFile, or authClientId and authClientSecret"

    @classmethod
    def translate(cls, given: dict[str, str], scope: Scope) -> Iterator[str]:
        """Translates pulsar-spark's options that are not mere aliases; returns what to do about the others."""
        return translate(given, cls.names(scope))


def _values(wanted: PerTopic[Position]) -> tuple[Position | None, ...]:
    return (wanted.everywhere, *wanted.named.values())
