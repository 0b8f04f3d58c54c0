"""The official pulsar-client: publishes flights with receipts, and reads topics."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from brokers.pulsar import PulsarStandalone
from demo.data import Flight

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Publisher", "read_all"]


class Publisher:
    """A producer of one topic; the key is the carrier, the event time the hour of departure.

    Args:
        broker: the broker.
        topic: an existing topic.
    """

    def __init__(self, broker: PulsarStandalone, topic: str) -> None:
        import pulsar

        self._receipts = _Receipts()
        self._sent = 0
        self._client = broker.client()
        self._producer = self._client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=2000,
            batching_max_allowed_size_in_bytes=256 * 1024,
            batching_max_publish_delay_ms=20,
            block_if_queue_full=True,
            max_pending_messages=20_000,
            max_pending_messages_across_partitions=80_000,
            compression_type=pulsar.CompressionType.LZ4,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def send(self, flight: Flight) -> None:
        """Send one flight without waiting for its receipt."""
        self._sent += 1
        self._producer.send_async(
            flight.line.encode(), self._receipts.take, partition_key=flight.carrier, event_timestamp=flight.hour_ms
        )

    def flush(self) -> None:
        """Wait until the broker has stored all messages.

        Raises:
            RuntimeError: it did not acknowledge all messages.
        """
        self._producer.flush()
        self._receipts.wait_for(self._sent, timeout_s=60)


class _Receipts:
    """Counts the broker's receipts, which arrive in the client's threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stored = 0
        self._refusal: object = None

    def take(self, result: Any, _message_id: object) -> None:  # noqa: ANN401 - the client's enumeration is not annotated
        """Count a receipt, as the client's callback: one message was stored or refused."""
        with self._changed:
            if str(result).rpartition(".")[2] == "Ok":
                self._stored += 1
            else:
                self._refusal = result
            self._changed.notify()

    def wait_for(self, count: int, timeout_s: float) -> None:
        """Wait for this many receipts.

        Raises:
            RuntimeError: a message was refused, or receipts are missing after the timeout.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stored >= count or self._refusal is not None, timeout_s)
            if self._refusal is not None or self._stored != count:
                raise RuntimeError(f"{self._stored:,} of {count:,} messages were stored; last refusal: {self._refusal}")


def read_all(broker: PulsarStandalone, topic: str) -> Counter[tuple[str, str, int]]:
    """Count the messages of a topic by value, key and event time (milliseconds since 1970).

    Ends after a second without a message: the topic must not be written at the same time.
    """
    import pulsar

    client = broker.client()
    consumer = client.subscribe(
        topic, "official-reader", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=10_000
    )
    found: Counter[tuple[str, str, int]] = Counter()
    try:
        timeout_ms = 30_000
        while True:
            message = consumer.receive(timeout_ms)
            found[message.data().decode(), message.partition_key(), message.event_timestamp()] += 1
            timeout_ms = 1000
    except pulsar.Timeout:
        pass
    consumer.unsubscribe()
    client.close()
    return found
