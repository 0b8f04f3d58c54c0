"""Requests to the HTTP interface of brokers, at `adminUrl`."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from spark_mq_source.core.errors import (
    BrokerError,
    RemoteProtocolError,
    TopicNotFoundError,
)
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.pulsar.client.connections import Connections
from spark_mq_source.pulsar.client.session import (
    authentication_of,
)
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions


@dataclass(frozen=True, slots=True)
class Ledger:
    """One ledger of a topic-partition, as the admin interface lists it."""

    ledger_id: int
    entries: int
    stored_bytes: int


class Admin(Connections):
    """Requests to `adminUrl`."""

    def fetch_subscription_backlog(self, topic_partition: TopicPartition, subscription: str) -> int:
        """How many entries wait for a subscription of a topic-partition, from `adminUrl`.

        Raises:
            MQSourceError: no answer in time, a refusal, or there is no such subscription.
        """
        url, answer = self._ask_admin(topic_partition, "stats")
        try:
            return int(answer["subscriptions"][subscription]["msgBacklog"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise BrokerError(f"{url}: {topic_partition} has no subscription {subscription}") from error

    def fetch_ledgers(self, topic_partition: TopicPartition) -> list[Ledger]:
        """The ledgers of a topic-partition, oldest first, from `adminUrl`.

        Raises:
            MQSourceError: no answer in time, a refusal, or an answer that is not the admin interface's.
        """
        url, answer = self._ask_admin(topic_partition, "internalStats")
        try:
            ledgers = [Ledger(int(x["ledgerId"]), int(x["entries"]), int(x["size"])) for x in answer["ledgers"]]  # type: ignore[index]
            current = int(answer["currentLedgerEntries"]), int(answer["currentLedgerSize"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"{url}: not the answer of a Pulsar admin interface ({type(error).__name__}: {error})"
            ) from error
        # The list has 0 for the ledger that is being written; its size stands beside it.
        if ledgers and ledgers[-1].entries == 0:
            ledgers[-1] = Ledger(ledgers[-1].ledger_id, *current)
        return ledgers

    def _fetch_partition_count(self, topic: str) -> int:
        """How many partitions a topic has, from `adminUrl`; 0 for none, and where there is no such topic or address."""
        if self._options.admin_url is None:
            return 0
        try:
            url, answer = self._ask_admin(TopicPartition(topic, -1), "partitions?checkAllowAutoCreation=false")
        except TopicNotFoundError:
            return 0
        try:
            return int(answer["partitions"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(
                f"{url}: not the answer of a Pulsar admin interface ({type(error).__name__}: {error})"
            ) from error

    def _ask_admin(self, topic_partition: TopicPartition, what: str) -> tuple[str, object]:
        domain, _, rest = str(topic_partition).partition("://")
        path = "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))
        url = f"{self._options.admin_url}/admin/v2/{path}/{what}"
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - a fifth of what a task imports, and few need it

        answer = fetch_json(
            url,
            headers=http_headers(self._options),
            tls=TlsSettings.of(self._options),
            timeout_seconds=self._options.operation_timeout_ms / 1000,
            is_trusted=partial(self._is_trusted, topic_partition),
            remedy="; name it in serviceUrl too, or set adminUrl to a proxy",
        )
        return url, answer

    def _is_trusted(self, topic_partition: TopicPartition, host: str) -> bool:
        """Whether a host may see our credentials: `serviceUrl` or a lookup names it, so it is shown them anyway."""
        if host in (named.lower() for named, _ in self._addresses):
            return True
        self._lookup([topic_partition])
        brokers = [(named, proxy_to) for named, _, proxy_to in self._sessions]
        found = (named if proxy_to is None else proxy_to.rpartition(":")[0] for named, proxy_to in brokers)
        return host in (name.strip("[]").lower() for name in found)


def http_headers(options: PulsarOptions) -> dict[str, str]:
    """The same for the admin interface."""
    authentication = authentication_of(options)
    if authentication is None or authentication.method_name == "tls":
        return {}
    data = authentication.auth_data(None)
    if authentication.method_name == "basic":
        return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
    return {"Authorization": f"Bearer {data.decode()}"}
