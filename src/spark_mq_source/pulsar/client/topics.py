"""Topics: their partitions and schemas."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from spark_mq_source.core.columns import version_name
from spark_mq_source.core.errors import BrokerError, MQSourceError, OptionError, TopicNotFoundError
from spark_mq_source.net.retry import retrying
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.pulsar.client.admin import Admin
from spark_mq_source.pulsar.client.connections import windows
from spark_mq_source.pulsar.client.session import Session, accepted, authentication_of, proof_of
from spark_mq_source.pulsar.offsets import TopicPartition, is_persistent
from spark_mq_source.pulsar.options import TopicsPattern
from spark_mq_source.pulsar.protocol import commands

T = TypeVar("T")


K = TypeVar("K")

_REMEDIES = {
    None: ": a read does not create topics",
    False: ", or set createTopic=true to create the topic",
    True: ": createTopic=true creates topics only where the broker permits it, and no namespaces",
}
"""Remedies for a missing topic, by whether it should have been created."""

COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
"""The broker that serves its partition N has transaction coordinator N (seen on broker 4.0.8)."""

_MAX_SCHEMAS = 1000
"""Number of schema versions that a process caches."""

_SCHEMA_SECONDS = 300.0
"""Lifetime of cached schema versions."""

_schemas: dict[tuple[object, ...], tuple[commands.Schema, float]] = {}
"""By service, TLS, credentials, topic and version; with the expiry."""

_PARTITIONS = accepted(commands.PartitionedMetadataResponse)


class Topics(Admin):
    """Requests about topics, batched for many topics."""

    def fetch_topics(self, pattern: TopicsPattern) -> list[str]:
        """Return the full names of the topics that match, without partition suffixes, sorted.

        Pulsar's internal topics (`__...`) never match.
        """
        found = retrying(lambda: self._fetch_names(self.service(), pattern.namespaces), deadline=self._deadline())
        names = {TopicPartition.parse(name).topic for name in found}
        return sorted(n for n in names if not n.rpartition("/")[2].startswith("__") and pattern.matches(n))

    def fetch_partitions(self, topics: Sequence[str], *, create: bool | None = None) -> list[TopicPartition]:
        """Return all topic-partitions of `topics`, in order; a name that ends in `-partition-N` is only that partition.

        Args:
            topics: full names.
            create: whether a missing topic is created, with `topicPartitions` or the broker's defaults: the value of
                `createTopic`. None if this option does not apply, as for a topic that is read.

        Raises:
            TopicNotFoundError: a topic, or its namespace, does not exist, and is not created.
            OptionError: a topic exists with another number of partitions than `topicPartitions`.
        """
        if create and self._options.topic_partitions is not None:
            return [tp for topic in topics for tp in self._with_partitions(topic, self._options.topic_partitions)]

        def ask(names: Sequence[str]) -> Mapping[str, Future[commands.PartitionedMetadataResponse]]:
            # A write that opens a migrated topic-partition again names only that.
            session = self.service(names[0])
            if not (create or session.can_avoid_creation):
                self._check_existing(session, names)
            return {
                name: session.request(
                    partial(commands.PartitionedMetadata, name, metadata_auto_creation_enabled=bool(create)),
                    _PARTITIONS,
                )
                for name in names
            }

        try:
            counts = self._gather(topics, ask, "partition metadata")
        except TopicNotFoundError as error:
            raise error.with_remedy(_REMEDIES[create]) from error
        found: list[TopicPartition] = []
        for topic in topics:
            count = counts[topic].partitions
            found += [TopicPartition(topic, n) for n in range(count)] if count else [TopicPartition.parse(topic)]
        return found

    def _with_partitions(self, topic: str, wanted: int) -> list[TopicPartition]:
        """Return the partitions of a topic that is to have so many, and is created with them if it is missing."""
        try:
            found = self.fetch_partitions([topic])
        except TopicNotFoundError:
            self._create_partitioned(topic, wanted)
            found = self.fetch_partitions([topic])
        count = sum(tp.partition >= 0 for tp in found)
        if count != wanted or found[0].topic != topic:
            raise OptionError(
                f"topic {topic} exists and {f'has {count} partitions' if count else 'is not partitioned'}, but "
                f"topicPartitions={wanted}: remove this option to write to the topic as it is"
            )
        return found

    def _check_existing(self, session: Session, topics: Sequence[str]) -> None:
        """Refuse missing topics, on brokers that create a topic in answer to PARTITIONED_METADATA.

        Such a broker lists the topics of a namespace that were used, partitioned ones as partitions. Only the admin API
        lists topics that were never used (both seen on 2.10.1).

        Raises:
            TopicNotFoundError: a topic does not exist, or the broker does not list it and `adminUrl` is not set.
        """
        # The coordinators' topic is never used as a topic, and Pulsar's own clients request it without this check.
        # A non-persistent topic exists while a client uses it, and is not listed.
        asked_for = (name for name in topics if name != COORDINATORS and is_persistent(name))
        parsed = {name: TopicPartition.parse(name) for name in asked_for}
        listed = set(self._fetch_names(session, {_namespace_of(name) for name in parsed}))
        partitioned = {at.topic for at in map(TopicPartition.parse, listed) if at.partition >= 0}
        for name, at in parsed.items():
            if name in listed or (at.partition < 0 and name in partitioned):
                continue
            if at.topic in partitioned:
                answer = session.request(partial(commands.PartitionedMetadata, at.topic), _PARTITIONS)
                count = self.wait(answer, f"partition metadata of {at.topic}").partitions
            else:
                count = self._fetch_partition_count(at.topic)
            if count <= max(at.partition, 0):
                known = "" if self._options.admin_url else "; an unused partitioned one needs adminUrl"
                raise TopicNotFoundError(
                    f"{session.address}: {session.connection.server_version} lists no topic {name}: check the names of "
                    f"topic, namespace and tenant{known}"
                )

    def _fetch_names(self, session: Session, namespaces: Collection[str]) -> list[str]:
        """Return the names of all topics, or of the partitions of topics, in these namespaces."""
        answers = {
            namespace: session.request(
                partial(commands.GetTopicsOfNamespace, namespace=namespace),
                accepted(commands.GetTopicsOfNamespaceResponse),
            )
            for namespace in namespaces
        }
        found = [self.wait(answer, f"the topics of namespace {name}").topics for name, answer in answers.items()]
        return [name for names in found for name in names]

    def schema_of(self, topic: str, version: bytes | None = None) -> commands.Schema | None:
        """Return the schema of a topic, or one of its versions; None if the registry does not have it.

        A version never changes, so a process caches it, but only for a few minutes: a topic that is deleted and created
        again restarts its version numbers.

        Args:
            topic: full name of the topic or a partition.
            version: as in a message; None for the latest, which is not cached.
        """
        key = () if version is None else self._schema_key(topic, version)
        known = _schemas.get(key)
        if known is not None and known[1] > time.monotonic():
            return known[0]

        def ask() -> commands.Schema | None:
            command = partial(commands.GetSchema, topic=topic, schema_version=version)
            answer = self.service().request(command, accepted(commands.GetSchemaResponse))
            which = "the schema" if version is None else f"schema version {version_name(version)}"
            try:
                return self.wait(answer, f"{which} of {topic}").schema
            except BrokerError as error:
                if error.code_name == "TopicNotFound":  # also the answer for a topic without schema
                    return None
                raise

        schema = retrying(ask, deadline=self._deadline())
        if version is not None and schema is not None:
            if len(_schemas) >= _MAX_SCHEMAS:
                _schemas.clear()
            _schemas[key] = schema, time.monotonic() + _SCHEMA_SECONDS
        return schema

    def _schema_key(self, topic: str, version: bytes) -> tuple[object, ...]:
        """Return all that determines the broker's answer: it may refuse another user."""
        options, authentication = self._options, authentication_of(self._options)
        tls = TlsSettings.of(options) if options.uses_tls else None
        return options.service_url, tls, authentication, proof_of(authentication), topic, version

    def _in_windows(self, keys: Sequence[K], ask: Callable[[Sequence[K]], Mapping[K, T]]) -> dict[K, T]:
        """Return what `ask` finds for all keys, a limited number at once; retry it after transient failures."""
        found: dict[K, T] = {}
        for window in windows(keys):
            found |= retrying(partial(ask, window), deadline=self._deadline())
        return found

    def _gather(
        self,
        keys: Sequence[K],
        ask: Callable[[Sequence[K]], Mapping[K, Future[T]]],
        what: str,
        final: tuple[type[MQSourceError], ...] = (),
    ) -> dict[K, T]:
        """Send requests for all keys, a limited number at once, and retry transient failures (unless `final`)."""
        results: dict[K, T] = {}
        for window in windows(keys):

            def attempt(window: Sequence[K] = window) -> None:
                missing = [key for key in window if key not in results]
                failure: MQSourceError | None = None
                deadline = self._deadline()
                for key, answer in ask(missing).items():
                    try:
                        results[key] = self.wait(answer, f"{what} of {key}", deadline)
                    except MQSourceError as error:
                        may_pass = error.retryable or self._is_listed(key, error)
                        error.retryable = may_pass and not isinstance(error, final)
                        if not error.retryable:
                            raise
                        # Keep the first error: a request without an answer ends its connection, and so all others.
                        failure = failure or error
                if failure is not None:
                    raise failure

            retrying(attempt, deadline=self._deadline())
        return results

    def _is_listed(self, key: object, error: MQSourceError) -> bool:
        """Return whether a missing partition is listed: a new one is listed before it can be used (4.0.8)."""
        if not isinstance(error, TopicNotFoundError) or not isinstance(key, TopicPartition) or key.partition < 0:
            return False
        return key in self.fetch_partitions([key.topic])


def _namespace_of(topic: str) -> str:
    return "/".join(topic.partition("://")[2].split("/", 2)[:2])
