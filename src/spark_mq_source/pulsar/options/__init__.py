"""The options of `pulsar-native`. Names of pulsar-spark are accepted too: a job moves by changing the format name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from spark_mq_source.core.options import READ, STREAM, WRITE, Scope, fields_of, parse_text, warn_of_ignored
from spark_mq_source.core.shared_options import BatchOptions, CorruptOptions, DrainOptions, PaceOptions, parse_one_of
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, TopicPartition, parse_topic
from spark_mq_source.pulsar.options.connection import ConnectionOptions, parse_service_url
from spark_mq_source.pulsar.options.encryption import EncryptionOptions
from spark_mq_source.pulsar.options.keys import PULSAR_SPARK, KeyOptions, KeyValueEncodingType
from spark_mq_source.pulsar.options.queue import (
    SHARED_TYPES,
    AckMode,
    InitialPosition,
    KeySharedMode,
    OnMaxRedeliver,
    QueueOptions,
    SubscriptionOptions,
    SubscriptionType,
    parse_properties,
)
from spark_mq_source.pulsar.options.reading import (
    NEVER,
    RangeOptions,
    ReadOptions,
    TopicOptions,
    TopicsPattern,
    parse_topics_pattern,
)
from spark_mq_source.pulsar.options.writing import DeliveryGuarantee, WriteOptions
from spark_mq_source.pulsar.payload.schema import AVRO, BYTES, JSON, STRING
from spark_mq_source.pulsar.pulsar_spark import translate
from spark_mq_source.values.encodings import PRIMITIVES
from spark_mq_source.values.inlong.options import InlongOptions
from spark_mq_source.values.options import AUTO, DEFINED, INLONG, RAW

__all__ = [
    "PULSAR_SPARK", "SHARED_TYPES", "AckMode", "DeliveryGuarantee", "InitialPosition", "KeySharedMode",
    "KeyValueEncodingType", "OnMaxRedeliver", "PulsarOptions", "SubscriptionType", "TopicsPattern",
    "parse_properties", "parse_service_url", "parse_topics_pattern",
]  # fmt: skip

_READING: Final = READ | STREAM
_NEEDS_STORAGE: Final = (
    "ack_mode",
    "end_at_termination",
    "initial_position",
    "max_redeliver_count",
    "min_rows_per_trigger",
    "read_compacted",
    "retry_topic",
)
"""Fields that have a meaning for topics that store messages only."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PulsarOptions(
    ConnectionOptions,
    EncryptionOptions,
    TopicOptions,
    RangeOptions,
    ReadOptions,
    CorruptOptions,
    InlongOptions,
    KeyOptions,
    PaceOptions,
    SubscriptionOptions,
    QueueOptions,
    BatchOptions,
    WriteOptions,
):
    """Options of `pulsar-native`; made by `from_spark`.

    Example:
        >>> options = PulsarOptions.from_spark({"serviceurl": "pulsar://broker", "topic": "flights"}, READ)
        >>> options.addresses, options.uses_tls
        ((('broker', 6650),), False)
        >>> options.topic
        'persistent://public/default/flights'
        >>> options.subscription_kind
        <SubscriptionType.EXCLUSIVE: 'exclusive'>
    """

    format_name: ClassVar[str] = "pulsar-native"

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "serviceUrl": (
            "service.url",
            "pulsar.client.serviceUrl",
        ),
        "proxyServiceUrl": ("pulsar.client.proxyServiceUrl",),
        "listenerName": ("pulsar.client.listenerName",),
        "adminUrl": ("admin.url",),
        "authIssuerUrl": ("issuerUrl",),
        "authAudience": ("audience",),
        "authScope": ("scope",),
        "operationTimeout": (
            "pollTimeoutMs",
            "pulsar.client.operationTimeoutMs",
        ),
        "connectTimeout": ("pulsar.client.connectionTimeoutMs",),
        "startingTimestamp": ("startingTime",),
        "endingTimestamp": ("endingTime",),
        "subscription": ("predefinedSubscription",),
        "accessMode": ("pulsar.producer.accessMode",),
        "compressionType": ("pulsar.producer.compressionType",),
        "hashingScheme": ("pulsar.producer.hashingScheme",),
        "batching": ("pulsar.producer.batchingEnabled",),
        "batchingMaxBytes": ("pulsar.producer.batchingMaxBytes",),
        "batchingMaxMessages": ("pulsar.producer.batchingMaxMessages",),
        "chunking": ("pulsar.producer.chunkingEnabled",),
        "encryptionKeys": ("pulsar.producer.encryptionKeys",),
        "cryptoFailureAction": ("pulsar.reader.cryptoFailureAction", "pulsar.producer.cryptoFailureAction"),
        "sendTimeout": ("pulsar.producer.sendTimeoutMs",),
        "producerName": ("pulsar.producer.producerName",),
        "readCompacted": ("pulsar.reader.readCompacted",),
        "receiverQueueSize": ("pulsar.reader.receiverQueueSize",),
        "trustCerts": ("pulsar.client.tlsTrustCertsFilePath", "pulsar.client.tlsTrustStorePath"),
        "trustCertsPassword": ("pulsar.client.tlsTrustStorePassword",),
        "clientCert": ("pulsar.client.tlsCertificateFilePath", "pulsar.client.tlsKeyStorePath"),
        "clientKeyPassword": ("pulsar.client.tlsKeyStorePassword",),
        "clientKey": ("pulsar.client.tlsKeyFilePath",),
        "tlsVerifyHostname": ("pulsar.client.tlsHostnameVerificationEnable",),
    }
    notes: ClassVar[Mapping[str, str]] = {
        "failOnDataLoss": " Not for queues, which have no positions.",
        "walDir": " A broker deletes acknowledged messages, so batches of a queue are replayed from here. In a stream "
        "it makes a queue of `subscription`; `shared` and `key_shared` need it.",
        "maxRows": " Rounded down to whole entries, but at least one for each task; received messages that do not fit "
        "are redelivered (those of a `non-persistent://` topic are lost).",
        "maxRowsPerTrigger": " Rounded to whole entries, at least one. Exact to the entry if the broker stores the "
        "message index and exposes it to clients (broker entry metadata). Otherwise estimated from the messages per "
        "entry in the first and last entry of this and earlier triggers: exact if the entries of a partition are "
        "alike, and possibly exceeded if they are not. If several limits are set, the smallest applies.",
        "maxRecordsPerPartition": " Rounded to whole entries, at least one, and estimated from the messages in the "
        "first and last entry of what is split, and in all of them by the broker's message index: exact if the entries "
        "are alike. Not for queues.",
        "waitForTopic": " They are then read from their first message, unless a position or time is given.",
        "minRowsPerTrigger": " Estimated from the entries that wait and the messages per entry in the first one and in "
        "those of earlier triggers. A queue counts the entries themselves, because a broker's backlog has no other "
        "number: a batch of messages counts as one.",
        "sendTimeout": " The time is that of one topic-partition.",
        "maxPendingBytes": " Incomplete batches have at most four times as many in addition (with "
        "`deliveryGuarantee=exactly-once`, those of one topic): with the defaults, the batches of a topic with more "
        "than 64 partitions are smaller than `batchingMaxBytes`.",
        "deadLetterTopic": " Its properties contain the origin and the reason, with the names of the Java client. "
        "`createTopic` determines whether the topic is created.",
        "valueFormat": " `auto`: the topic's registered schema; a read decodes each message by its own version, a "
        "write encodes all rows by the newest one when it is planned. Or one of the "
        f"single values of Pulsar's schemas: {', '.join(f'`{name}`' for name in PRIMITIVES)}. With any but `raw`, "
        "`auto` and `inlong`, a write registers the schema. Or `inlong`: InLong's messages, with one row for each "
        "record, see [InLong](../tubemq/inlong.md).",
    }
    parsers: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "deadLetterTopic": lambda text: parse_topic(parse_text(text)),
        "valueFormat": parse_one_of(*dict.fromkeys((RAW, *DEFINED, "string", AUTO, *PRIMITIVES, INLONG))),
    }

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if scope & _READING:
            gives_up = self.on_max_redeliver is OnMaxRedeliver.DEAD_LETTER
            others = {"onMaxRedeliver=deadLetter": gives_up} if "dead_letter_topic" in given else {}
            yield from self.dead_letter_problems(given, others)
            makes_topics = gives_up or self.retry_topic or self.live_topics
            if "create_topic" in given and "dead_letter_topic" not in given and not makes_topics:
                warn_of_ignored(self.format_name, "createTopic", "reading without deadLetterTopic")
        elif self.topic is not None:
            yield from self.unstorable(self.topic)
        if scope == WRITE and self.value_format == AUTO and "key_format" in given:
            yield "keyFormat has no meaning with valueFormat=auto: the topic's schema says how keys are encoded"
        if scope in (READ, STREAM):
            yield from self._queue_or_range_problems(scope, given)
        if self.schema is not None:
            yield from self._schema_problems(self.schema.type, given)
        if self.failover_service_urls:
            yield from self._cluster_problems(scope, given)

    def _cluster_problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Yield what must stay on one cluster, whose message ids, sequence ids or transactions it contains."""
        if scope == STREAM:
            yield (
                "failoverServiceUrls is not for streams: the message ids in their checkpoint or walDir are those of "
                "other messages on another cluster; start a new stream there"
            )
        if scope == READ and "subscription_type" in given:
            yield "failoverServiceUrls is not for queues: messages are acknowledged on one cluster only"
        if scope == READ:
            yield from (
                f"failoverServiceUrls and the positions in {self.name_of(field)} contradict each other: message ids "
                f"belong to one cluster; use a time"
                for field, offsets in (
                    ("starting_offsets", self.starting_offsets),
                    ("ending_offsets", self.ending_offsets),
                )
                if offsets is not None and not {EARLIEST, LATEST}.issuperset(offsets.named.values())
            )
        if scope == WRITE and self.delivery_guarantee is not DeliveryGuarantee.AT_LEAST_ONCE:
            yield (
                f"failoverServiceUrls and deliveryGuarantee={self.delivery_guarantee.value} contradict each other: "
                f"another cluster does not know what the first one has stored"
            )
        if scope == WRITE and self.access_mode:
            yield "failoverServiceUrls and accessMode contradict each other: exclusive access is on one cluster only"

    def _queue_or_range_problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        kind = self.subscription_kind
        is_queue = ("wal_dir" if scope == STREAM else "subscription_type") in given
        yield from self._non_persistent_problems(given, is_queue=is_queue)
        if is_queue:
            yield from self.queue_problems(kind, given)
            if kind in SHARED_TYPES and self.read_compacted:
                yield f"readCompacted needs subscriptionType=exclusive or failover, not {kind.value}"
            if scope == READ:
                yield from self.drain_problems(given, "a queue")
            return
        if self.read_offloaded != NEVER:
            if self.max_records_per_partition is not None:
                yield "readOffloaded and maxRecordsPerPartition contradict each other: ledgers are split by their size"
            if self.read_compacted:
                yield "readOffloaded and readCompacted contradict each other: brokers alone have the compacted topic"
        if kind in SHARED_TYPES:
            yield (
                f"subscriptionType={kind.value} has no positions from which a query could continue: set walDir, which "
                f"keeps batches until they are processed, or exclusive or failover"
            )
        yield from (
            f"{self.name_of(field)} has no meaning unless subscription is a queue: set "
            + ("walDir" if scope == STREAM else "subscriptionType")
            for field in (*fields_of(DrainOptions), *fields_of(QueueOptions))
            if field in given
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
                f"{self.name_of(field)} has no meaning for {live}: a non-persistent topic stores nothing, so "
                f"no message waits, is returned or redelivered"
                for field in _NEEDS_STORAGE
                if field in given
            )

    def _schema_problems(self, schema_type: str, given: frozenset[str]) -> Iterator[str]:
        fitting = {"json": (JSON, BYTES, ""), "avro": (AVRO, "")}.get(self.value_format, (BYTES, STRING, JSON, AVRO))
        if self.value_format in (*PRIMITIVES, "protobuf", AUTO, INLONG):
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

    def reads_topic(self, topic: str) -> bool:
        """Return whether a read with these options reads a topic, or a part of it."""
        base = TopicPartition.parse(topic).topic
        is_matched = self.topics_pattern is not None and self.topics_pattern.matches(base)
        return is_matched or base in {TopicPartition.parse(name).topic for name in self.topic_names}

    @classmethod
    def translate(cls, given: dict[str, str], scope: Scope) -> Iterator[str]:
        """Translate pulsar-spark's options that are not aliases; return remedies for those without a translation."""
        return translate(given, cls.names(scope), is_read=scope != WRITE)
