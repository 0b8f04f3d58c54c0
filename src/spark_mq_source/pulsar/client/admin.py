"""Requests to the admin API of brokers, at `adminUrl`."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote
from uuid import UUID

from spark_mq_source.core.errors import BrokerError, RemoteProtocolError, TopicNotFoundError
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.pulsar.client.connections import Connections
from spark_mq_source.pulsar.client.session import authentication_of
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions

_CONFLICT = 409
"""The status of the answer if a topic to create exists."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger of a topic-partition, as the admin API lists it.

    Attributes:
        uuid: the beginning of the names of its objects, if it is completely offloaded; else empty.
    """

    ledger_id: int
    entries: int
    stored_bytes: int
    uuid: str = ""


class Admin(Connections):
    """Requests to the admin API."""

    def fetch_subscription_backlog(self, topic_partition: TopicPartition, subscription: str) -> int:
        """Return the number of entries in the backlog of a subscription of a topic-partition.

        Raises:
            MQSourceError: no answer in time, a refusal, or the subscription does not exist.
        """
        # Otherwise it is the difference of two counters, see `_Backlogs` of queues.
        url, answer = self._http_get(topic_partition, "stats?getPreciseBacklog=true")
        try:
            return int(answer["subscriptions"][subscription]["msgBacklog"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise BrokerError(f"{url}: {topic_partition} has no subscription {subscription}") from error

    def fetch_ledgers(self, topic_partition: TopicPartition, *, with_objects: bool = False) -> list[Ledger]:
        """Return the ledgers of a topic-partition, oldest first.

        Args:
            topic_partition: the topic-partition.
            with_objects: whether to ask for `Ledger.uuid`, which takes another request.

        Raises:
            MQSourceError: no answer in time, a refusal, or an answer that is not the admin API's.
        """
        url, answer = self._http_get(topic_partition, "internalStats")
        uuids: dict[int, str] = {}
        try:
            if with_objects:
                # `internal-info` names the objects also while they are being written (seen on 4.0.8); the statistics
                # tell whether they are complete.
                complete = {int(x["ledgerId"]) for x in answer["ledgers"] if x.get("offloaded")}  # type: ignore[index]
                url, info = self._http_get(topic_partition, "internal-info")
                named = {int(x["ledgerId"]): x.get("offloadedContextUuid") for x in info["ledgers"]}  # type: ignore[index]
                uuids = {ledger: str(UUID(text)) for ledger, text in named.items() if text and ledger in complete}
            ledgers = [
                Ledger(ledger, int(x["entries"]), int(x["size"]), uuids.get(ledger, ""))
                for x in answer["ledgers"]  # type: ignore[index]
                for ledger in [int(x["ledgerId"])]
            ]
            current = int(answer["currentLedgerEntries"]), int(answer["currentLedgerSize"])  # type: ignore[index]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _no_answer(url, error) from error
        # The list has 0 entries for the ledger that is being written; a separate field has its size.
        if ledgers and ledgers[-1].entries == 0:
            ledgers[-1] = Ledger(ledgers[-1].ledger_id, *current)
        return ledgers

    def fetch_offload_driver(self, topic_partition: TopicPartition) -> str:
        """Return the driver by which the brokers offload a topic; empty if there is none, or they do not tell.

        Raises:
            MQSourceError: no answer in time.
        """
        try:
            # Of the topic, its namespace, or the brokers' configuration.
            _, answer = self._http_get(TopicPartition(topic_partition.topic, -1), "offloadPolicies?applied=true")
        except BrokerError:
            return ""  # a right is missing, or the brokers have no policies of topics
        return str((answer.get("managedLedgerOffloadDriver") if isinstance(answer, dict) else None) or "")

    def _fetch_partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if it is unpartitioned or missing, or without `adminUrl`."""
        if self._options.admin_url is None:
            return 0
        try:
            url, answer = self._http_get(TopicPartition(topic, -1), "partitions?checkAllowAutoCreation=false")
        except TopicNotFoundError:
            return 0
        try:
            return int(answer["partitions"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise _no_answer(url, error) from error

    def _create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic; do nothing if the topic exists."""
        try:
            self._http_get(TopicPartition(topic, -1), "partitions", put=partitions)
        except BrokerError as error:
            if error.code != _CONFLICT:
                raise

    def _http_get(self, topic_partition: TopicPartition, what: str, *, put: object = None) -> tuple[str, object]:
        domain, _, rest = str(topic_partition).partition("://")
        path = "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))
        url = f"{self._options.admin_url}/admin/v2/{path}/{what}"
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - a fifth of what a task imports, and few need it

        answer = fetch_json(
            url,
            put=put,
            headers=http_headers(self._options),
            tls=TlsSettings.of(self._options),
            timeout_seconds=self._options.operation_timeout_ms / 1000,
            is_trusted=partial(self._is_trusted, topic_partition),
            remedy="; name it in serviceUrl too, or set adminUrl to a proxy",
        )
        return url, answer

    def _is_trusted(self, topic_partition: TopicPartition, host: str) -> bool:
        """Return whether a host may see our credentials: `serviceUrl` or a lookup names it, so it sees them anyway."""
        if host in (named.lower() for named, _ in self._addresses):
            return True
        self._lookup([topic_partition])
        brokers = [(named, proxy_to) for named, _, proxy_to in self._sessions]
        found = (named if proxy_to is None else proxy_to.rpartition(":")[0] for named, proxy_to in brokers)
        return host in (name.strip("[]").lower() for name in found)


def _no_answer(url: str, error: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"{url}: not the answer of a Pulsar admin interface ({type(error).__name__}: {error})")


def http_headers(options: PulsarOptions) -> dict[str, str]:
    """Return the HTTP headers that authenticate requests to the admin API."""
    authentication = authentication_of(options)
    data = b"" if authentication is None else authentication.auth_data(None)
    match authentication and authentication.method_name:
        case "basic":
            return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
        case "token":
            # The data of `authPlugin` may be any bytes; headers are sent as Latin-1.
            return {"Authorization": f"Bearer {data.strip().decode('latin-1')}"}
    return {}  # a certificate needs none, and for a user's own method there is no common one
