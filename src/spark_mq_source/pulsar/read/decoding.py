"""The decoder of a read, as its options set it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.pulsar.client.crypto_keys import decryptor_of
from spark_mq_source.pulsar.payload.messages import EntryDecoder

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.pulsar.offsets import TopicPartition
    from spark_mq_source.pulsar.options import PulsarOptions


def decoder_of(
    options: PulsarOptions,
    at: TopicPartition,
    schema: pa.Schema,
    *,
    on_corrupt: str,
    max_batch_rows: int | None = None,
    refuses_transactions: bool = False,
) -> EntryDecoder:
    """Return a decoder of entries of a topic-partition, with the limits and the keys of the options.

    Raises:
        UnsupportedFeatureError: keys are given, and the package cryptography is not installed.
    """
    return EntryDecoder(
        schema,
        topic=at.topic,
        partition=at.partition,
        on_encrypted=options.on_encrypted,
        decryptor=decryptor_of(options),
        on_corrupt=on_corrupt,
        max_message_bytes=options.max_message_bytes,
        max_pending_chunk_bytes=options.max_pending_chunk_bytes,
        max_batch_rows=max_batch_rows or options.max_batch_rows,
        refuses_transactions=refuses_transactions,
    )
