"""Options of writes."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_mq_source.core.compression import CODECS
from spark_mq_source.core.options import (
    INT32_MAX,
    WRITE,
    Scope,
    Section,
    StrEnum,
    between,
    duration_option,
    option,
    parse_list,
    parse_text,
    size_option,
)
from spark_mq_source.core.shared_options import SendOptions, parse_one_of
from spark_mq_source.pulsar.offsets import is_persistent
from spark_mq_source.pulsar.options.queue import parse_properties
from spark_mq_source.pulsar.payload.schema import ValueSchema, parse_schema
from spark_mq_source.pulsar.protocol.commands import ProducerAccessMode
from spark_mq_source.pulsar.protocol.metadata import LOCAL


class DeliveryGuarantee(StrEnum):
    """Guarantee about how often a row is stored after failures and retries."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    TRANSACTION = "transaction"


_access_mode_name = parse_one_of(*ProducerAccessMode.__members__)


def _parse_clusters(text: str) -> tuple[str, ...]:
    return (LOCAL,) if text.lower() == "none" else tuple(parse_list(text))


def _parse_hashing(text: str) -> int:
    """Return the number of a key hashing scheme, see `payload/layout.py`."""
    number = {"javastring": 0, "murmur3_32": 1}.get(text.lower().removesuffix("hash"))
    if number is None:
        raise ValueError("expected JavaStringHash or Murmur3_32")
    return number


@dataclass(frozen=True, kw_only=True, repr=False)
class WriteOptions(SendOptions):
    """Options of writes."""

    schema: ValueSchema | None = option(
        'Schema of the values, which the topic must have or accept: `BYTES` (none), `STRING`, or `{"type": "JSON", '
        '"schema": {"type": "record", ...}}`, with `AVRO` for values that are Avro-encoded already. With '
        "`valueFormat=json` or `avro`, the Avro schema alone is enough; `BYTES` with `json` registers none.",
        default=None,
        default_text="`BYTES`; derived from the struct with `valueFormat=json` or `avro`",
        scope=WRITE,
        parse=parse_schema,
        section=Section.VALUES,
    )
    access_mode: ProducerAccessMode = option(
        "Whether other producers may write to a topic-partition at the same time: `Shared` allows them; `Exclusive` "
        "fails if there are others; `WaitForExclusive` waits until there are none; `ExclusiveWithFencing` disconnects "
        "the others (2.10 brokers instead refuse it while others write). Each task is a separate producer: only "
        "`Shared` lets several tasks write to one topic-partition.",
        default=ProducerAccessMode.Shared,
        default_text="`Shared`",
        scope=WRITE,
        parse=lambda text: ProducerAccessMode[_access_mode_name(text)],
        section=Section.WRITE,
    )
    compression_type: str = option(
        "Compression of entries: `NONE`, `LZ4`, `ZLIB`, `ZSTD` or `SNAPPY`. Batches that do not shrink are sent "
        "uncompressed.",
        default="NONE",
        scope=WRITE,
        parse=parse_one_of(*CODECS),
    )
    hashing: int = option(
        "Hash that maps a key to its partition: `JavaStringHash` or `Murmur3_32`; both as in the Java client.",
        default=0,
        default_text="`JavaStringHash`",
        scope=WRITE,
        name="hashingScheme",
        parse=_parse_hashing,
    )
    batching: bool = option(
        "Whether messages are sent in batches.",
        default=True,
        scope=WRITE,
    )
    batching_max_bytes: int = size_option(
        "Maximum bytes of a batch before compression; a larger message is sent alone. Consumers receive batches whole, "
        "so use less for consumers with little memory.",
        "1m",
        scope=WRITE,
        most="1g",
    )
    batching_max_messages: int = option(
        "Maximum number of messages in a batch.",
        default=100_000,
        scope=WRITE,
        check=between(1, INT32_MAX),
    )
    batching_max_publish_delay_ms: int | None = duration_option(
        "Maximum time a row waits for its batch to fill: `10ms`, `1s`. Not with `deliveryGuarantee=exactly-once`.",
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
    )
    delivery_guarantee: DeliveryGuarantee = option(
        "Guarantee after failures and retries: `at-least-once`; `exactly-once`, which needs deduplication enabled on "
        "the broker; or `transaction`, one per task, which needs transactions enabled on the broker. Without "
        "deduplication, a task attempt with a transaction fails if a topic moves to another broker while its rows are "
        "being sent.",
        default=DeliveryGuarantee.AT_LEAST_ONCE,
        scope=WRITE,
        section=Section.FAIL,
    )
    producer_name: str | None = option(
        "Prefix of the producer names. With `exactly-once` it identifies the write: a batch that runs again under the "
        "same name adds only the missing rows, so two different writes must not share a name.",
        default=None,
        default_text="the query's id; generated per batch write",
        scope=WRITE,
        parse=parse_text,
        section=Section.WRITE,
    )
    producer_properties: tuple[tuple[str, str], ...] = option(
        'Properties of the producers, as JSON: `{"team": "delays"}`. The broker\'s statistics show them.',
        default=(),
        scope=WRITE,
        parse=parse_properties,
    )
    replication_clusters: tuple[str, ...] = option(
        "Comma-separated clusters to which the messages are replicated, instead of those of the namespace; `none` for "
        "no replication.",
        default=(),
        default_text="those of the namespace",
        scope=WRITE,
        parse=_parse_clusters,
    )
    transaction_timeout_ms: int = duration_option(
        "Time after which the broker aborts an abandoned transaction; must exceed the duration of a job or "
        "micro-batch. Until then, the transaction of a killed task hides all later messages of its topics.",
        "10m",
        scope=WRITE,
        least="1s",
    )

    def unstorable(self, topic: str) -> Iterator[str]:
        """Yield the settings of these options that a topic (full name) cannot fulfil, one sentence each."""
        if is_persistent(topic):
            return
        if self.delivery_guarantee is not DeliveryGuarantee.AT_LEAST_ONCE:
            yield f"deliveryGuarantee={self.delivery_guarantee.value} needs a topic that stores messages, not {topic}"
        if self.chunking:
            yield f"chunking needs a topic that stores messages, not {topic}"

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if self.delivery_guarantee is DeliveryGuarantee.EXACTLY_ONCE and "batching_max_publish_delay_ms" in given:
            yield (
                "batchingMaxPublishDelay and deliveryGuarantee=exactly-once contradict each other: which rows share "
                "a batch must not depend on the clock"
            )
        if self.delivery_guarantee is not DeliveryGuarantee.TRANSACTION and "transaction_timeout_ms" in given:
            yield "transactionTimeout needs deliveryGuarantee=transaction"
