"""The options of `pulsar-native`, with pulsar-spark's names beside ours so that a job moves by its format's name."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import enum
import ipaddress
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import urlsplit

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
# Longer than any topic name, and short enough to be compiled at once.
_LONGEST_PATTERN: Final = 1000
# (..a+..)* and its like, but not the possessive (..a++..)*; a{3} inside is harmless, a{3,} is not
_REPEATED_REPETITION: Final = re.compile(
    r"\([^()]*(?:(?<![\\+*?}])[+*](?!\+)|\{[0-9]*,[0-9]*\}(?!\+))[^()]*\)(?:[+*](?!\+)|\{[0-9]*,)"
)


class OnEncrypted(enum.StrEnum):
    """What to do with a message whose payload is encrypted."""

    FAIL = "fail"
    RAW = "raw"


class DeliveryGuarantee(enum.StrEnum):
    """How often a row is there after whatever has gone wrong."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    TRANSACTION = "transaction"


class ValueFormat(enum.StrEnum):
    """What becomes of the column `value` that is written."""

    RAW = "raw"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """All topics of one namespace whose name matches.

    Attributes:
        namespace: ``tenant/namespace``.
        regex: matches the whole of a topic's own name, the part after the namespace.

    Example:
        >>> pattern = parse_topics_pattern("persistent://acme/prod/flights-.*")
        >>> pattern.namespace, pattern.matches("persistent://acme/prod/flights-2013-partition-0")
        ('acme/prod', True)
    """

    namespace: str
    regex: re.Pattern[str]

    def matches(self, topic: str) -> bool:
        """Whether a topic of this full name (or the topic that this partition is of) is meant."""
        prefix = f"persistent://{self.namespace}/"
        name = split_partition(topic)[0]
        return name.startswith(prefix) and self.regex.fullmatch(name[len(prefix) :]) is not None


def parse_service_url(text: str) -> tuple[tuple[tuple[str, int], ...], bool]:
    """The addresses of a service URL, as (host, port), and whether they speak TLS.

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
            "no user or password can be in the address; set authToken, or authBasicUser and authBasicPassword"
        )
    if "://" in rest:
        raise ValueError(f"the scheme stands once, at the beginning: {scheme}://host1:port,host2:port")
    addresses = tuple(
        _parse_address(one.strip(), _DEFAULT_PORTS[scheme.lower()]) for one in rest.removesuffix("/").split(",")
    )
    return addresses, scheme.lower() == "pulsar+ssl"


def _parse_address(text: str, default_port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[(?P<v6>[^]]*)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?", text, re.ASCII)
    if not match:
        more = "; an IPv6 address stands in brackets" if text.count(":") > 1 else ""
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
    """The topics a pattern means: ``persistent://tenant/namespace/regex``, ``tenant/namespace/regex`` or ``regex``.

    Tenant and namespace are literal, as in pulsar-spark, because a broker lists the topics of one namespace. The
    regular expression is Python's, which reads what users write for Java's alike but for a few forms, and refuses
    those.

    Raises:
        ValueError: no such pattern; the message says why.
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
    # Not the only way to write an expression that takes for ever, but the one that happens by accident.
    if _REPEATED_REPETITION.search(expression):
        raise ValueError(
            "a repeated group with a repetition in it can take for ever to match; write it without the inner one"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # sets within sets, which Java reads otherwise
            regex = re.compile(expression)
    except (re.error, FutureWarning, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return TopicsPattern(namespace, regex)


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(parse_topic(name) for name in parse_list(text))
    for topic in topics:
        base, partition = split_partition(topic)
        if topics.count(topic) > 1:
            raise ValueError(f"{topic} is there twice")
        if partition >= 0 and base in topics:
            raise ValueError(f"{topic} is a partition of {base}, which is there as well")
    return topics


def _parse_admin_url(text: str) -> str:
    parts = urlsplit(parse_text(text))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://host:8080 or https://host:8443")
    if "@" in parts.netloc:
        raise ValueError("no user or password can be in the address")
    if parts.query or parts.fragment:
        raise ValueError("expected an address without ? and #")
    _ = parts.port  # raises ValueError where it is no port
    return text.rstrip("/")


def _parse_subscription(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", parse_text(text)):
        raise ValueError("has control characters in it")
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
    """The number of a way to hash keys, see `_encode_python`.

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
        ValueError: it is none.
    """
    if not all(part.isidentifier() for name in text.split(":", 1) for part in name.split(".")) or ":" not in text:
        raise ValueError("expected module:function")
    return text


def _parse_issuer_url(text: str) -> str:
    """The address of an issuer of tokens.

    Raises:
        ValueError: it is none, or one that a secret should not be sent to.
    """
    parts = urlsplit(parse_text(text))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected https://issuer")
    if parts.scheme == "http" and not _is_here(parts.hostname):
        raise ValueError("the client's secret is sent there, so it must begin with https://")
    if "@" in parts.netloc:
        raise ValueError("no user or password can be in the address")
    if parts.query or parts.fragment:
        raise ValueError("expected an address without ? and #")
    _ = parts.port  # raises ValueError where it is no port
    return text.rstrip("/")


def _is_here(host: str) -> bool:
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

    # -- where, and who we are
    service_url: str = option(
        "Address of the brokers or the proxy: `pulsar://host1:6650,host2:6650`, or `pulsar+ssl://` for TLS. "
        "The ports may be left out where they are 6650 and 6651.",
        scope=EVERYWHERE,
        aliases=("service.url", "pulsar.client.serviceUrl"),
        parse=parse_text,
        check=parse_service_url,
    )
    listener_name: str | None = option(
        "The advertised listener to be given addresses of, on clusters that have several.",
        default=None,
        scope=EVERYWHERE,
        aliases=("pulsar.client.listenerName",),
    )
    admin_url: str | None = option(
        "Address of the admin API (`http://host:8080`). `minPartitions` uses it to split across ledgers, and "
        "`maxBytesPerTrigger` to know their sizes. On a broker without PIP-344 (as 2.10) it also finds a partitioned "
        "topic that nobody has used.",
        default=None,
        scope=EVERYWHERE,
        aliases=("admin.url",),
        parse=_parse_admin_url,
    )
    auth_token: str | None = option("A token (JWT).", default=None, scope=EVERYWHERE, secret=True)
    auth_token_file: str | None = option(
        "A file that holds the token, on every machine that reads or writes; read again whenever the broker asks.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_basic_user: str | None = option("User name of basic authentication.", default=None, scope=EVERYWHERE)
    auth_basic_password: str | None = option(
        "Password of basic authentication.", default=None, scope=EVERYWHERE, secret=True
    )
    auth_token_supplier: str | None = option(
        "A Python function that returns the token, as `module:function`, which every machine that reads or writes can "
        "import; called when connecting and whenever the broker asks.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_function,
    )
    auth_issuer_url: str | None = option(
        "OAuth 2.0 client credentials: the issuer of tokens, `https://...`; where it takes requests is asked of its "
        "`/.well-known/openid-configuration`. A token is used until shortly before it expires.",
        default=None,
        scope=EVERYWHERE,
        aliases=("issuerUrl",),
        parse=_parse_issuer_url,
    )
    auth_credentials_file: str | None = option(
        "A JSON file with `client_id` and `client_secret` for it, on every machine that reads or writes.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_client_id: str | None = option(
        "The same without a file: who we are to the issuer.", default=None, scope=EVERYWHERE
    )
    auth_client_secret: str | None = option(
        "What proves it to the issuer.", default=None, scope=EVERYWHERE, secret=True
    )
    auth_audience: str | None = option(
        "Whom the token is for, where the issuer wants it said.",
        default=None,
        scope=EVERYWHERE,
        aliases=("audience",),
    )
    auth_scope: str | None = option(
        "What the token is for, where the issuer wants it said.",
        default=None,
        scope=EVERYWHERE,
        aliases=("scope",),
    )
    auth_issuer_trust_certs: str | None = option(
        "PEM file of the authorities to trust for the issuer.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
    )
    trust_certs: str | None = trust_certs_option("pulsar.client.tlsTrustCertsFilePath")
    client_cert: str | None = client_cert_option("the broker", "pulsar.client.tlsCertificateFilePath")
    client_key: str | None = client_key_option("pulsar.client.tlsKeyFilePath")
    tls_verify_hostname: bool = verify_hostname_option("the broker's", "pulsar.client.tlsHostnameVerificationEnable")

    # -- what
    topic: str | None = option(
        "The topic: `name`, `tenant/namespace/name` or `persistent://tenant/namespace/name`. A partition of one "
        "(`name-partition-0`) is read or written alone. A read has exactly one of `topic`, `topics`, `topicsPattern`; "
        "a write has it where the rows do not say their topic.",
        default=None,
        scope=EVERYWHERE,
        parse=lambda text: parse_topic(parse_text(text)),
    )
    topics: tuple[str, ...] = option("Several topics, with commas between them.", default=(), parse=_parse_topics)
    topics_pattern: TopicsPattern | None = option(
        "All topics of one namespace that match: `tenant/namespace/regex`, or `regex` for `public/default`.",
        default=None,
        parse=lambda text: parse_topics_pattern(parse_text(text)),
    )
    starting_offsets: PerTopic[Position] | None = option(
        "Read what is after this: `earliest`, or JSON per topic or partition: "
        '`{"flights": {"0": {"ledger": 12, "entry": 3}, "1": "earliest"}}`. A position is the last message already '
        "read; `batch` in it is an index within the entry's batch, and without it the whole entry counts as read. A "
        "stream starts here only where it has no checkpoint.",
        default=None,
        default_text="`earliest`; `latest` in a stream",
        parse=parse_offsets,
    )
    ending_offsets: PerTopic[Position] | None = option(
        "Read up to and with this: `latest` (when the read is planned), or JSON as for `startingOffsets`.",
        default=None,
        default_text="`latest`",
        scope=READ,
        parse=parse_offsets,
    )
    starting_timestamp: PerTopic[int] | None = option(
        "Read what was published at this time or after it: milliseconds since 1970, ISO-8601 with a zone "
        '(`2013-01-01T05:15:00Z`), or JSON of these: `{"flights": 1357017300000}`.',
        default=None,
        aliases=("startingTime",),
        parse=parse_timestamps,
    )
    ending_timestamp: PerTopic[int] | None = option(
        "Read what was published before this time; written as `startingTimestamp`.",
        default=None,
        scope=READ,
        aliases=("endingTime",),
        parse=parse_timestamps,
    )
    read_compacted: bool = option(
        "Read the compacted topic: the last message of each key, as far as compaction has come.",
        default=False,
        aliases=("pulsar.reader.readCompacted",),
    )

    # -- how
    max_entries_per_trigger: int | None = option(
        "Most entries (a batch of messages as its producer sent it, or a single message) of one trigger, shared out by "
        "backlog. Exact.",
        default=None,
        default_text="all there is",
        scope=STREAM,
        check=at_least(1),
    )
    max_rows_per_trigger: int | None = option(
        "Most messages of one trigger, shared out the same way. As exact as the broker allows, to the entry, and at "
        "least one entry: by its index where it keeps one and shows it to clients (broker entry metadata); else by the "
        "messages per entry of the first and the last entry of each trigger and of those before, which is exact where "
        "the entries of a partition are alike, and can be passed where they are not. Several limits: the smallest "
        "counts.",
        default=None,
        default_text="all there is",
        scope=STREAM,
        check=at_least(1),
    )
    max_bytes_per_trigger: int | None = option(
        "Most bytes of one trigger (`64m`), as the broker stores them: compressed, with what belongs to the messages. "
        "With `adminUrl` by the average entry of each ledger, which costs a request for each partition that is behind; "
        "else as exact as `maxRowsPerTrigger` is without an index.",
        default=None,
        default_text="all there is",
        scope=STREAM,
        parse=parse_size_bytes,
        check=at_least(1),
    )
    min_partitions: int | None = option(
        "Split topic-partitions until there are at least this many tasks, where that is possible.",
        default=None,
        default_text="one task a topic-partition",
        check=at_least(1),
    )
    fail_on_data_loss: bool = option(
        "Whether to fail when messages of the range are gone from the broker, or a position was never there (a topic "
        "made anew, another cluster); `false` logs it and goes on with what there is.",
        default=True,
    )
    on_encrypted: OnEncrypted = option(
        "An encrypted payload: `fail`, or `raw` for the ciphertext as `value`; the column `encryption_context` has "
        "what decrypting it needs.",
        default=OnEncrypted.FAIL,
    )
    on_corrupt: OnCorrupt = on_corrupt_option()
    pushdown: bool = option(
        "Take filters on topic, partition and publish_time from Spark. Needs Spark 4.1 or newer and "
        "`spark.sql.python.filterPushdown.enabled=true`. **One filter a `load()`**: Spark plans a loaded DataFrame "
        "once, so a second query over it, filtered otherwise, silently gets the first one's partitions (seen on "
        "4.3.0, with any data source).",
        default=False,
        scope=READ,
    )
    publish_time_slack_ms: int = duration_option(
        "With `pushdown`, how much more a filter on publish_time reads on both sides: as far as a partition's publish "
        "times may be out of order, or apart from the broker's clock, by which it looks where it keeps entry metadata.",
        "1m",
        scope=READ,
        least="0ms",
    )
    subscription: str | None = option(
        "In a stream: a durable subscription of this name keeps the messages on the broker until the query has them, "
        "and with them the backlog of a query that is stopped for good, until `spark-mq unsubscribe` deletes the "
        "subscription. The last entry read stays in the backlog until the next one is, as proof that nothing between "
        "them was deleted. In a batch: the name that the broker shows, as `NAME-<unique>`; it keeps nothing.",
        default=None,
        aliases=("predefinedSubscription",),
        parse=_parse_subscription,
    )
    subscription_prefix: str = option(
        "The same where `subscription` is not set.", default="spark-mq-source", parse=_parse_subscription
    )
    operation_timeout_ms: int = duration_option(
        "How long a request, or the first message of a range, may take: `30s`, `500ms`, or milliseconds.",
        "30s",
        scope=EVERYWHERE,
        aliases=("pollTimeoutMs", "pulsar.client.operationTimeoutMs"),
    )
    connect_timeout_ms: int = duration_option(
        "How long a connection may take, TLS and the broker's welcome included.",
        "10s",
        scope=EVERYWHERE,
        aliases=("pulsar.client.connectionTimeoutMs",),
    )
    keep_alive_interval_ms: int = duration_option(
        "A connection that was silent for this long is asked for a sign of life, and given up after as long again. A "
        "quarter of `operationTimeout` where that is less, so that there is time to connect anew.",
        "30s",
        scope=EVERYWHERE,
        least="100ms",
    )

    # -- bounds of memory. A FLOW of 0, or permits whose sum passes 2^31, break the connection (broker 4.0.8).
    receiver_queue_messages: int = option(
        "Messages that a broker may send ahead.",
        default=100_000,
        name="receiverQueueSize",
        aliases=("pulsar.reader.receiverQueueSize",),
        check=between(1, 2**30),
    )
    receive_queue_bytes: int = size_option(
        "Bytes that a task may hold received and not yet decoded.",
        "64m",
        least="1m",
    )
    max_batch_rows: int = max_batch_rows_option()
    max_batch_bytes: int = max_batch_bytes_option()
    max_message_bytes: int = size_option(
        "Largest entry accepted, decompressed; a larger one is treated as corrupt.",
        "128m",
    )
    max_pending_chunk_bytes: int = size_option(
        "Most bytes of chunked messages that a task may hold while they are incomplete; beyond it, those that wait "
        "longest are dropped, and read again if their last chunk comes.",
        "128m",
    )

    # -- writing
    value_format: ValueFormat = option(
        "What `value` is: `raw`, which is binary or string and is sent as it is; or `json`, which is a struct and is "
        "sent as JSON, with a schema that is made of its fields.",
        default=ValueFormat.RAW,
        scope=WRITE,
    )
    schema: ValueSchema | None = option(
        "The schema of the values, which the topic must have or be allowed to take: `BYTES` (none), `STRING`, or "
        '`{"type": "JSON", "schema": {"type": "record", ...}}`, with `AVRO` for values that are so encoded already. '
        "With `valueFormat=json` also the Avro schema alone.",
        default=None,
        default_text="`BYTES`; made of the struct with `valueFormat=json`",
        scope=WRITE,
        parse=parse_schema,
    )
    access_mode: int = option(
        "Whether others may write to a topic-partition meanwhile: `Shared`; `Exclusive` is an error where somebody "
        "does; `WaitForExclusive` waits until nobody does; `ExclusiveWithFencing` cuts the others off (brokers of 2.10 "
        "refuse it instead while others write). Each task is somebody of its own: only `Shared` lets several write to "
        "one topic-partition at once.",
        default=0,
        default_text="`Shared`",
        scope=WRITE,
        aliases=("pulsar.producer.accessMode",),
        parse=_parse_access_mode,
    )
    compression_type: str = option(
        "How entries are compressed: `NONE`, `LZ4`, `ZLIB`, `ZSTD` or `SNAPPY`. What gets no smaller is sent as it is.",
        default="NONE",
        scope=WRITE,
        aliases=("pulsar.producer.compressionType",),
        parse=_parse_codec,
    )
    hashing: int = option(
        "How the hash of a key chooses its partition: `JavaStringHash`, or `Murmur3_32`; both as the Java client does.",
        default=0,
        default_text="`JavaStringHash`",
        scope=WRITE,
        name="hashingScheme",
        aliases=("pulsar.producer.hashingScheme",),
        parse=_parse_hashing,
    )
    batching: bool = option(
        "Whether messages are put together into batches.",
        default=True,
        scope=WRITE,
        aliases=("pulsar.producer.batchingEnabled",),
    )
    batching_max_bytes: int = size_option(
        "Most bytes of a batch, before it is compressed; a larger message is sent by itself. Every consumer gets a "
        "batch whole: for those with little memory, less is better.",
        "1m",
        scope=WRITE,
        aliases=("pulsar.producer.batchingMaxBytes",),
        most="1g",
    )
    batching_max_messages: int = option(
        "Most messages of a batch.",
        default=100_000,
        scope=WRITE,
        aliases=("pulsar.producer.batchingMaxMessages",),
        check=between(1, INT32_MAX),
    )
    batching_max_publish_delay_ms: int | None = duration_option(
        "How long a row may wait for its batch to be full: `10ms`, `1s`.",
        None,
        default_text="until the task has no more rows",
        scope=WRITE,
    )
    batching_by_key: bool = option(
        "Whether the messages of a batch have one ordering key (where they have none, one key), for consumers of a "
        "Key_Shared subscription.",
        default=False,
        scope=WRITE,
    )
    chunking: bool = option(
        "Whether a message larger than the broker takes is cut into several entries; otherwise it is an error.",
        default=False,
        scope=WRITE,
        aliases=("pulsar.producer.chunkingEnabled",),
    )
    max_pending_bytes: int = size_option(
        "Most bytes that a task may have sent without the broker's receipt.",
        "16m",
        scope=WRITE,
    )
    send_timeout_ms: int = duration_option(
        "How long a task waits without any receipt of what it has sent to a topic-partition, trying again meanwhile.",
        "1m",
        scope=WRITE,
        aliases=("pulsar.producer.sendTimeoutMs",),
    )
    delivery_guarantee: DeliveryGuarantee = option(
        "How often a row is there after whatever has gone wrong: `at-least-once`; `exactly-once`, by the broker's "
        "deduplication, which must be on; or `transaction`, one for each task, which must be enabled on the broker. "
        "Without deduplication an attempt at a transaction fails if a topic moves while its rows are under way.",
        default=DeliveryGuarantee.AT_LEAST_ONCE,
        scope=WRITE,
    )
    producer_name: str | None = option(
        "What the names of the producers begin with. With `exactly-once` it says which write this is: a batch that is "
        "run again under the same name adds only what is not there yet, and two different writes must not share one.",
        default=None,
        default_text="the query's id; one made up for each batch",
        scope=WRITE,
        aliases=("pulsar.producer.producerName",),
        parse=parse_text,
    )
    transaction_timeout_ms: int = duration_option(
        "When the broker ends a transaction that nobody has: longer than a job or micro-batch takes. Until then a task "
        "that was killed hides what comes behind it on its topics.",
        "10m",
        scope=WRITE,
        least="1s",
    )
    create_topic: bool = option(
        "Whether a topic that does not exist is created, as the broker is configured to; otherwise it is an error.",
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
        """The full names of `topic` or `topics`; empty where `topics_pattern` is set."""
        return (self.topic,) if self.topic else self.topics

    @property
    def subscription_base(self) -> str:
        """What the names of a read's subscriptions begin with."""
        return self.subscription or self.subscription_prefix

    def starting_at(self, topic_partition: str) -> Position | int | None:
        """Where a batch read of a topic-partition (full name) starts.

        Returns:
            The last position already read (EARLIEST for the whole topic); or, as an int, the publish time in ms of
            the first message wanted; or None where the user named other topic-partitions, and not this one.
        """
        if self.starting_timestamp is not None:
            return self.starting_timestamp.at(topic_partition)
        return EARLIEST if self.starting_offsets is None else self.starting_offsets.at(topic_partition)

    def stream_starting_at(self, topic_partition: str) -> Position | int | None:
        """Where a stream without a checkpoint starts; as `starting_at`, but LATEST where nothing was said."""
        if self.starting_offsets is None and self.starting_timestamp is None:
            return LATEST
        return self.starting_at(topic_partition)

    def ending_at(self, topic_partition: str) -> Position | int | None:
        """Where a batch read of a topic-partition (full name) ends.

        Returns:
            The last position to read (LATEST for all there is); or, as an int, the publish time in ms of the first
            message not wanted; or None where the user named other topic-partitions, and not this one.
        """
        if self.ending_timestamp is not None:
            return self.ending_timestamp.at(topic_partition)
        return LATEST if self.ending_offsets is None else self.ending_offsets.at(topic_partition)

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """What is wrong between options, one sentence each."""
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
                'schema: say how the values are encoded, as {"type": "JSON", "schema": ...} or with "AVRO", or set '
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
        """Puts pulsar-spark's options that are more than another name into ours; says of the others what to do."""
        return translate(given, cls.names(scope))


def _values(wanted: PerTopic[Position]) -> tuple[Position | None, ...]:
    return (wanted.everywhere, *wanted.named.values())
