"""The options of `pulsar-native`. Names of pulsar-spark are accepted too: a job moves by changing the format name."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import enum
import ipaddress
import itertools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from spark_mq_source.core.compression import CODECS
from spark_mq_source.core.json_text import load_json_object
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
    AUTO,
    EVERYWHERE,
    RAW,
    OnCorrupt,
    client_cert_option,
    client_key_option,
    dead_letter_problems,
    dead_letter_topic_option,
    drain_problems,
    flatten_option,
    idle_timeout_option,
    key_format_option,
    max_batch_bytes_option,
    max_batch_rows_option,
    max_rows_option,
    max_seconds_option,
    max_trigger_delay_option,
    min_rows_per_trigger_option,
    on_corrupt_option,
    pace_problems,
    run_id_option,
    trust_certs_option,
    typed_problems,
    value_format_option,
    value_message_option,
    value_schema_option,
    verify_hostname_option,
    wal_dir_option,
)
from spark_mq_source.core.values.encodings import PRIMITIVES
from spark_mq_source.pulsar.offsets import (
    EARLIEST,
    LATEST,
    PerTopic,
    Position,
    is_persistent,
    parse_offsets,
    parse_timestamps,
    parse_topic,
    split_partition,
)
from spark_mq_source.pulsar.payload.schema import AVRO, BYTES, JSON, STRING, ValueSchema, parse_schema
from spark_mq_source.pulsar.pulsar_spark import translate

_READING: Final = READ | STREAM
_KEY_HASHES: Final = 65536
"""Keys are divided by a hash below this (PersistentStickyKeyDispatcherMultipleConsumers; Key_Shared, Pulsar's docs)."""
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


class SubscriptionType(enum.StrEnum):
    """How the consumers of a subscription that are connected at the same time share its messages."""

    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"
    KEY_SHARED = "key_shared"


SHARED_TYPES: Final = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
"""Those whose messages go to several consumers, which therefore have no positions."""


class InitialPosition(enum.StrEnum):
    """Where a subscription begins that is created."""

    LATEST = "latest"
    EARLIEST = "earliest"


class AckMode(enum.StrEnum):
    """What a batch read of a subscription does with the messages it has read."""

    ACK = "ack"
    NACK = "nack"


class OnMaxRedeliver(enum.StrEnum):
    """What to do with a message that was redelivered more than `maxRedeliverCount` times."""

    FAIL = "fail"
    DEAD_LETTER = "deadLetter"


class KeySharedMode(enum.StrEnum):
    """Who divides the keys of a Key_Shared subscription among its consumers."""

    AUTO_SPLIT = "auto_split"
    STICKY = "sticky"


class KeyValueEncodingType(enum.StrEnum):
    """Where the key of a KEY_VALUE schema is."""

    SEPARATED = "SEPARATED"
    INLINE = "INLINE"


class DeliveryGuarantee(enum.StrEnum):
    """How often a row is stored after failures and retries."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    TRANSACTION = "transaction"


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
    topics = tuple(parse_topic(name, stored=False) for name in parse_list(text))
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


def parse_properties(text: str) -> tuple[tuple[str, str], ...]:
    """Names and values, from a JSON object of texts.

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
    """Ranges of key hashes, as ``0-32767,32768-65535``.

    Raises:
        ValueError: not such ranges.
    """
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


def _parse_run_id(text: str) -> str:
    """A name that can be a folder's.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"[-.\w]{1,200}", text, re.ASCII) or set(text) == {"."}:
        raise ValueError("expected letters, digits, '.', '_' or '-', at most 200")
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


_QUEUE_OPTIONS: Final = {
    "wal_dir": "walDir",
    "run_id": "runId",
    "max_rows": "maxRows",
    "max_seconds": "maxSeconds",
    "idle_timeout_ms": "idleTimeout",
    "ack_mode": "ackMode",
    "initial_position": "initialPosition",
    "consumers_per_partition": "consumersPerPartition",
    "max_in_flight": "maxInFlight",
    "key_shared_mode": "keySharedMode",
    "key_ranges": "keyRanges",
    "max_redeliver_count": "maxRedeliverCount",
    "on_max_redeliver": "onMaxRedeliver",
    "retry_topic": "retryTopic",
    "nack_delay_ms": "nackDelay",
    "nack_max_delay_ms": "nackMaxDelay",
}
"""What only a queue has."""

_POSITION_OPTIONS: Final = {
    "starting_offsets": "startingOffsets",
    "ending_offsets": "endingOffsets",
    "starting_timestamp": "startingTimestamp",
    "ending_timestamp": "endingTimestamp",
    "max_entries_per_trigger": "maxEntriesPerTrigger",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
    "fail_on_data_loss": "failOnDataLoss",
    "pushdown": "pushdown",
}
"""What a queue has not."""

_STORED_OPTIONS: Final = {
    "ack_mode": "ackMode",
    "end_at_termination": "endAtTermination",
    "initial_position": "initialPosition",
    "max_redeliver_count": "maxRedeliverCount",
    "min_rows_per_trigger": "minRowsPerTrigger",
    "read_compacted": "readCompacted",
    "retry_topic": "retryTopic",
}
"""What only a queue of topics that store messages has."""


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
        "writing unless every row has a `topic`. A `non-persistent://` topic stores nothing: it can be written to, and "
        "read as a queue, which gets what is published while its tasks run; the rest is lost.",
        default=None,
        scope=EVERYWHERE,
        parse=lambda text: parse_topic(parse_text(text), stored=False),
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
    min_rows_per_trigger: int | None = min_rows_per_trigger_option(
        "Estimated from the entries that wait and the messages per entry in the first one and in those of "
        "earlier triggers."
    )
    max_trigger_delay_ms: int = max_trigger_delay_option()
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
    end_at_termination: bool = option(
        "Whether the query ends when all its topics are terminated (`pulsar-admin topics terminate`) and read. Spark "
        "lets a source end a query only by an error, which is `EndOfStreamError`: "
        "`spark_mq_source.spark.progress.await_end` waits for it, and takes it for the end.",
        default=False,
        scope=STREAM,
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
    dead_letter_topic: str | None = dead_letter_topic_option(
        lambda text: parse_topic(parse_text(text)),
        doc="Its properties say where it comes from, and why, with the names of the Java client. `createTopic` says "
        "whether the topic is created.",
    )

    # -- typed columns
    value_format: str = value_format_option(
        AUTO,
        *PRIMITIVES,
        doc=" `auto`: as the topic's registered schema says, each message by its own version. Or one of the single "
        f"values of Pulsar's schemas: {', '.join(f'`{name}`' for name in PRIMITIVES)}. With any but `raw`, a write "
        "registers the schema.",
    )
    value_schema: bytes | None = value_schema_option()
    value_message: str | None = value_message_option()
    key_format: str = key_format_option()
    key_schema: bytes | None = value_schema_option("key")
    key_message: str | None = value_message_option("key")
    key_value_encoding: KeyValueEncodingType = option(
        "With `keyFormat`, where the key is: `SEPARATED`, it is the message's key, by which the topic is partitioned "
        "and compacted; `INLINE`, it is in the payload before the value, and the message has no key.",
        default=KeyValueEncodingType.SEPARATED,
        scope=WRITE,
    )
    flatten: bool = flatten_option()

    # -- more about reading
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
        'Properties of `subscription` where the query creates it, as JSON: `{"team": "delays"}`. The broker\'s '
        "statistics show them; those of an existing subscription stay as they are.",
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
        parse=_parse_subscription,
    )
    priority_level: int = option(
        "With `subscriptionType=failover`: the broker chooses the active consumer among those with the lowest level. "
        "Give a query that stands by a higher one: otherwise each is active in a part of the partitions. With a "
        "`shared` queue: consumers of a higher level get messages only while those of lower ones have as many as "
        "they can take.",
        default=0,
        scope=STREAM,
        check=between(0, 1_000_000),
    )
    initial_position: InitialPosition = option(
        "Where a queue begins whose subscription does not exist yet: `latest` or `earliest`.",
        default=InitialPosition.LATEST,
    )

    # -- queues
    wal_dir: str | None = wal_dir_option(
        "A broker deletes acknowledged messages, so batches of a queue are replayed from here. In a stream it makes a "
        "queue of `subscription`; `shared` and `key_shared` need it."
    )
    run_id: str | None = run_id_option(_parse_run_id)
    max_rows: int | None = max_rows_option(
        " Rounded down to whole entries, but at least one for each task; what was received and does not fit is "
        "delivered again (of a `non-persistent://` topic it is lost)."
    )
    max_seconds: int | None = max_seconds_option()
    idle_timeout_ms: int | None = idle_timeout_option()
    ack_mode: AckMode = option(
        "`ack` removes the messages from the subscription. `nack` leaves them there, and limits the read to "
        "`maxInFlight` messages of each task; with `retryTopic` it puts them off.",
        default=AckMode.ACK,
        scope=READ,
    )
    consumers_per_partition: int = option(
        "Number of tasks per topic-partition of a `shared` or `key_shared` queue, with one consumer each. **Above 1, a "
        "redelivered message may be in two tasks of one batch:** a task recognises duplicates of earlier batches and "
        "its own messages, not those of other tasks.",
        default=1,
        check=between(1, 1000),
    )
    max_in_flight: int = option(
        "Maximum number of unacknowledged messages of each consumer of a queue. Above the broker's "
        "`maxUnackedMessagesPerConsumer` (50,000) it stops sending. Of a `non-persistent://` topic, how many messages "
        "it may be sent ahead; more are lost.",
        default=40_000,
        check=at_least(1),
    )
    key_shared_mode: KeySharedMode = option(
        "With `key_shared`: `auto_split`, the broker divides the keys among the consumers; `sticky`, `keyRanges` says "
        "which are read.",
        default=KeySharedMode.AUTO_SPLIT,
    )
    key_ranges: tuple[tuple[int, int], ...] = option(
        "With `keySharedMode=sticky`: ranges of key hashes from 0 to 65535, `0-32767,32768-65535`. A task reads each.",
        default=(),
        parse=_parse_key_ranges,
    )
    max_redeliver_count: int = option(
        "Maximum number of redeliveries of a message of a `shared` or `key_shared` queue, after which `onMaxRedeliver` "
        "applies; 0 for no limit. A broker counts what consumers give back (negative acknowledgements), and forgets it "
        "when the last consumer leaves the subscription.",
        default=0,
        check=between(0, INT32_MAX),
    )
    on_max_redeliver: OnMaxRedeliver = option(
        "`fail` stops the query; `deadLetter` publishes the message to `deadLetterTopic`, by default `TOPIC-SUB-DLQ`, "
        "acknowledges it and continues.",
        default=OnMaxRedeliver.FAIL,
    )
    retry_topic: bool = option(
        "Whether the topic `TOPIC-SUB-RETRY` is read too, where consumers put messages off (`enableRetry` of the Java "
        "client). With `ackMode=nack`, messages that were read are put off: they are published there, to be delivered "
        "after `nackDelay`, and acknowledged; after `maxRedeliverCount` times, `onMaxRedeliver` applies. "
        "Other reads return a message however often it was put off.",
        default=False,
    )
    nack_delay_ms: int = duration_option(
        "With `retryTopic` and `ackMode=nack`: time until a message is delivered again, doubled each time it is put "
        "off. The broker may deliver it up to `delayedDeliveryTickTimeMillis` (1 s) earlier.",
        "1m",
        scope=READ,
    )
    nack_max_delay_ms: int = duration_option("Maximum of that time.", "10m", scope=READ)
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
    schema: ValueSchema | None = option(
        'Schema of the values, which the topic must have or accept: `BYTES` (none), `STRING`, or `{"type": "JSON", '
        '"schema": {"type": "record", ...}}`, with `AVRO` for values that are Avro-encoded already. With '
        "`valueFormat=json` or `avro`, the Avro schema alone is enough; `BYTES` with `json` registers none.",
        default=None,
        default_text="`BYTES`; derived from the struct with `valueFormat=json` or `avro`",
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
        "Whether a missing topic is created, with the broker's defaults; otherwise it is an error. Reading: whether "
        "`deadLetterTopic` is created, and a `non-persistent://` topic, which exists only while somebody uses it.",
        default=False,
        scope=EVERYWHERE,
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
    def live_topics(self) -> tuple[str, ...]:
        """Those of them that store nothing; a pattern matches none."""
        return tuple(topic for topic in self.topic_names if not is_persistent(topic))

    @property
    def subscription_kind(self) -> SubscriptionType:
        """`subscription_type`, or its default."""
        return self.subscription_type or SubscriptionType.EXCLUSIVE

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
        if scope & _READING:
            gives_up = self.on_max_redeliver is OnMaxRedeliver.DEAD_LETTER
            others = {"onMaxRedeliver=deadLetter": gives_up} if "dead_letter_topic" in given else {}
            yield from dead_letter_problems(self.on_corrupt, given, is_read=self._reads_dead_letters(), others=others)
            makes_topics = gives_up or self.retry_topic or self.live_topics
            if "create_topic" in given and "dead_letter_topic" not in given and not makes_topics:
                yield "createTopic: has no meaning when reading without deadLetterTopic"
            yield from self._subscription_problems(scope, given)
        elif self.topic is not None:
            yield from self.unstorable(self.topic)
        if scope == READ and "subscription_type" in given:
            yield from drain_problems(given, "a queue")
        elif scope == READ:
            yield from self._range_problems()
        yield from self._security_problems(given)
        yield from typed_problems(self, scope, given)
        yield from pace_problems(self, given)
        if self.schema is not None:
            yield from self._schema_problems(self.schema.type, given)
        if "key_value_encoding" in given and self.key_format == RAW:
            yield "keyValueEncoding needs keyFormat"
        if self.delivery_guarantee is DeliveryGuarantee.EXACTLY_ONCE and "batching_max_publish_delay_ms" in given:
            yield (
                "batchingMaxPublishDelay and deliveryGuarantee=exactly-once contradict each other: which rows share "
                "a batch must not depend on the clock"
            )
        if self.delivery_guarantee is not DeliveryGuarantee.TRANSACTION and "transaction_timeout_ms" in given:
            yield "transactionTimeout needs deliveryGuarantee=transaction"

    def _schema_problems(self, schema_type: str, given: frozenset[str]) -> Iterator[str]:
        fitting = {"json": (JSON, BYTES, ""), "avro": (AVRO, "")}.get(self.value_format, (BYTES, STRING, JSON, AVRO))
        if self.value_format in (*PRIMITIVES, "protobuf"):
            yield f"schema has no meaning with valueFormat={self.value_format}: remove it"
        elif schema_type not in fitting and schema_type:
            yield f"schema: {schema_type} and valueFormat={self.value_format} contradict each other"
        elif schema_type not in fitting:
            yield (
                'schema: name the encoding of the values, as {"type": "JSON", "schema": ...} or with "AVRO", or set '
                "valueFormat=json or avro and write a struct"
            )
        if "value_schema" in given:
            yield "schema and valueSchema contradict each other: set only one"
        if self.key_format != RAW and self.value_format == RAW:
            yield "schema: with keyFormat, valueFormat says how values are encoded: set that"

    def _reads_dead_letters(self) -> bool:
        if self.dead_letter_topic is None:
            return False
        base, _ = split_partition(self.dead_letter_topic)
        is_matched = self.topics_pattern is not None and self.topics_pattern.matches(base)
        return is_matched or base in {split_partition(topic)[0] for topic in self.topic_names}

    def _subscription_problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        kind = self.subscription_kind
        is_queue = "wal_dir" in given if scope == STREAM else "subscription_type" in given
        if self.subscription is None:
            names = {
                "subscription_type": "subscriptionType",
                "subscription_properties": "subscriptionProperties",
                "wal_dir": "walDir",
            }
            yield from (f"{name} needs subscription" for field, name in names.items() if field in given)
        if "priority_level" in given and (kind is SubscriptionType.EXCLUSIVE or kind is SubscriptionType.KEY_SHARED):
            yield f"priorityLevel needs subscriptionType=failover or a shared queue, not {kind.value}"
        if scope == READ | STREAM:
            return
        yield from self._non_persistent_problems(given, is_queue=is_queue)
        if is_queue:
            yield from self._queue_problems(given)
            return
        if kind in SHARED_TYPES:
            yield (
                f"subscriptionType={kind.value} has no positions, by which a query could go on: set walDir, where "
                f"batches are kept until they are processed, or exclusive or failover"
            )
        yield from (
            f"{name} has no meaning unless subscription is a queue: set "
            + ("walDir" if scope == STREAM else "subscriptionType")
            for field, name in _QUEUE_OPTIONS.items()
            if field in given and field != "subscription_type"
        )

    def _non_persistent_problems(self, given: frozenset[str], *, is_queue: bool) -> Iterator[str]:
        live = ", ".join(self.live_topics)
        if live and not is_queue:
            yield (
                f"{live}: a non-persistent topic stores nothing, so there are no positions to read from: only a queue "
                f"can read it; set subscription, and walDir (in a batch, subscriptionType)"
            )
        elif live:
            yield from (
                f"{name} has no meaning for {live}: a non-persistent topic stores nothing, so no message waits, is "
                f"given back or comes again"
                for field, name in _STORED_OPTIONS.items()
                if field in given
            )

    def unstorable(self, topic: str) -> Iterator[str]:
        """What these options ask of a write that a topic (full name) cannot do, one sentence each."""
        if is_persistent(topic):
            return
        if self.delivery_guarantee is not DeliveryGuarantee.AT_LEAST_ONCE:
            yield f"deliveryGuarantee={self.delivery_guarantee.value} needs a topic that stores messages, not {topic}"
        if self.chunking:
            yield f"chunking needs a topic that stores messages, not {topic}"

    def _queue_problems(self, given: frozenset[str]) -> Iterator[str]:
        kind = self.subscription_kind
        yield from (
            f"{name} has no meaning for a queue, which has no positions: a subscription begins where it was left"
            for field, name in _POSITION_OPTIONS.items()
            if field in given
        )
        if kind not in SHARED_TYPES:
            names = {
                "consumers_per_partition": "consumersPerPartition",
                "max_redeliver_count": "maxRedeliverCount",
                "retry_topic": "retryTopic",
            }
            for field, name in names.items():
                if field in given:
                    yield f"{name} needs subscriptionType=shared or key_shared, not {kind.value}"
        elif self.read_compacted:
            yield f"readCompacted needs subscriptionType=exclusive or failover, not {kind.value}"
        is_sticky = self.key_shared_mode is KeySharedMode.STICKY
        if kind is not SubscriptionType.KEY_SHARED and given & {"key_shared_mode", "key_ranges"}:
            yield "keySharedMode and keyRanges need subscriptionType=key_shared"
        elif is_sticky != ("key_ranges" in given):
            yield "keySharedMode=sticky and keyRanges go together: set both"
        elif is_sticky and "consumers_per_partition" in given:
            yield "consumersPerPartition and keyRanges contradict each other: each range has a task"
        if "on_max_redeliver" in given and not self.max_redeliver_count:
            yield "onMaxRedeliver has no meaning without maxRedeliverCount"
        if self.ack_mode is AckMode.NACK and "wal_dir" in given:
            yield "ackMode=nack and walDir contradict each other: what is written down there is acknowledged"
        if given & {"nack_delay_ms", "nack_max_delay_ms"} and not (self.retry_topic and self.ack_mode is AckMode.NACK):
            yield "nackDelay and nackMaxDelay need ackMode=nack and retryTopic=true"

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
