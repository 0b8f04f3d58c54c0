"""The official Java client behind a pipe: one process for all tests, started by the first request."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brokers.pulsar import distribution
from tests.fix_brokers import PulsarUnderTest
from tests.java_program import JavaProgram


class JavaClient(JavaProgram):
    """Requests to `JavaClient.java`. Message ids come back as (ledger, entry, batch index, partition)."""

    def __init__(self, log: Path) -> None:
        super().__init__("JavaClient.java", distribution() / "lib", log)

    def produce(
        self, broker: PulsarUnderTest, topic: str, messages: Sequence[Mapping[str, Any] | bytes | None], **how: Any
    ) -> list[tuple[int, int, int, int]]:
        """Publish messages in order: a value, None for a tombstone, or a mapping.

        Args:
            broker: the broker to use.
            topic: full name.
            messages: keys of a mapping are value, key, keyBytes, orderingKey, eventTime (ms) and properties.
            how: compression, batching, batchMessages, chunkBytes, producer, transaction, hashing; publicKeys, paths by
                name; schema (PROTOBUF or PROTOBUF_NATIVE) with schemaClass, a class of protobuf in the broker's
                libraries.
        """
        documents = [_document(m if isinstance(m, Mapping) else {"value": m}) for m in messages]
        return [tuple(i) for i in self._ask(broker, do="produce", topic=topic, messages=documents, **how)]

    def produce_typed(
        self, broker: PulsarUnderTest, topic: str, messages: Sequence[object], *, kind: str, pair: str | None = None
    ) -> None:
        """Publish with a schema made of Java classes.

        Args:
            broker: the broker to use.
            topic: full name.
            messages: the fields of `Everything`; or with `pair`, of `Id` and `Change`, a list of two.
            kind: `AVRO` or `JSON`.
            pair: `INLINE` or `SEPARATED`, for a KEY_VALUE schema.
        """
        self._ask(broker, do="produceTyped", topic=topic, messages=list(messages), kind=kind, pair=pair)

    def consume(self, broker: PulsarUnderTest, topic: str, count: int, **how: Any) -> list[dict[str, Any]]:
        """Return the first messages, decrypted with privateKeys, paths by name.

        Each has value, key, isBase64, orderingKey, properties, eventTime (0 for none), sequenceId, and the compression
        of its entry.
        """
        return _messages(self._ask(broker, do="consume", topic=topic, count=count, **how))

    def values(self, broker: PulsarUnderTest, topic: str, count: int, schema: str = "auto") -> list[str]:
        """Return the first values as texts, which the Java client decodes by a schema.

        Args:
            broker: the broker to use.
            topic: full name.
            count: how many.
            schema: `avro` or `json` of the program's class Flight; `inline` or `separated` of pairs of it, with an Avro
                key and a JSON value; `auto` of the topic.
        """
        found: list[str] = self._ask(broker, do="values", topic=topic, count=count, schema=schema)
        return found

    def share(
        self, broker: PulsarUnderTest, topic: str, count: int, *, kind: str, consumers: int = 1
    ) -> list[dict[str, Any]]:
        """Return the messages of the consumers of one new subscription from the first message on, in order of arrival.

        Each message also has its consumer's number and, as receivedAt, the milliseconds since 1970 when it arrived.

        Args:
            broker: the broker to use.
            topic: full name.
            count: how many messages are waited for.
            kind: `Shared` or `Key_Shared`.
            consumers: how many.
        """
        found = self._ask(
            broker, do="share", topic=topic, count=count, type=kind, consumers=consumers, subscription=f"java-{kind}"
        )
        return _messages(found)

    def reject(self, broker: PulsarUnderTest, topic: str, letters: str, count: int) -> list[dict[str, Any]]:
        """Return the messages stored by the client's dead letter policy for unacknowledged ones; see `consume`.

        Args:
            broker: the broker to use.
            topic: full name of the topic whose messages are rejected.
            letters: full name of the dead letter topic.
            count: how many different values are waited for there; the client may store one twice.
        """
        return _messages(self._ask(broker, do="reject", topic=topic, letters=letters, count=count))

    def reconsume(
        self, broker: PulsarUnderTest, topic: str, count: int, *, subscription: str, most: int, delay_ms: int, dead: int
    ) -> list[dict[str, Any]]:
        """Return the messages of a Shared consumer that puts all of them off, and then its dead letters.

        Args:
            broker: the broker to use.
            topic: full name.
            count: how many messages it takes, from its topic and from the retry topic.
            subscription: its name.
            most: how often it puts a message off before that is a dead letter.
            delay_ms: how long it puts it off.
            dead: how many dead letters are waited for.
        """
        how = {"subscription": subscription, "most": most, "delayMs": delay_ms, "dead": dead}
        return _messages(self._ask(broker, do="reconsume", topic=topic, count=count, **how))

    def begin(self, broker: PulsarUnderTest, name: str) -> str:
        """Begin a transaction."""
        self._ask(broker, do="begin", name=name)
        return name

    def commit(self, broker: PulsarUnderTest, name: str) -> None:
        """Commit it, and wait for the markers."""
        self._ask(broker, do="commit", name=name)

    def abort(self, broker: PulsarUnderTest, name: str) -> None:
        """Abort it, and wait for the markers."""
        self._ask(broker, do="abort", name=name)

    def _ask(self, broker: PulsarUnderTest, **request: Any) -> Any:
        request["url"] = broker.service_url
        if broker.broker is not None and broker.broker.credentials:
            request["token"] = broker.broker.admin_token
        return self.ask(request)


def _messages(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for message in found:
        for name in ("value", "key", "orderingKey"):
            if message.get(name) is not None:
                message[name] = base64.b64decode(message[name])
    return found


def _document(message: Mapping[str, Any]) -> dict[str, Any]:
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in message.items()}
