"""A small client of Pulsar's admin REST API (v2), for tests and tools."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

import urllib3

TEST_NAMESPACE = "public/tests"
CONFLICT = 409
NOT_FOUND = 404
TEMPORARY = ("Error while recovering ledger", "Not enough non-faulty bookies", "is being unloaded")
"""Errors after which a repeated request may succeed: the first ones for a topic after a crash, and one to unload a
bundle whose unloading is not complete (4.0.8)."""
RECOVERY_TIMEOUT_S = 60.0
MAX_REDIRECTS = 5


class AdminError(Exception):
    """The broker refused an admin request; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, status)
        self.message = message
        self.status = status

    def __str__(self) -> str:
        return self.message


class PulsarAdmin:
    """Admin requests to one broker. Topics need their full name (`persistent://tenant/namespace/topic`).

    Args:
        url: the broker's web address, e.g. http://127.0.0.1:8080.
        token: the super user's token, if authentication is enabled.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        # Refusals of a restarting broker must be visible to callers. The first request for a topic after a crash waits
        # for the recovery of its ledgers, which can take more than 30 s on a busy machine. In a cluster, a broker
        # redirects to the one that owns the topic or bundle.
        redirects = urllib3.Retry(
            connect=0, read=0, status=0, other=0, redirect=MAX_REDIRECTS, remove_headers_on_redirect=()
        )
        self._http = urllib3.PoolManager(timeout=120.0, retries=redirects)

    def close(self) -> None:
        """Close the idle connections."""
        self._http.clear()

    def request(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever JSON the broker answers
        """Send one request below /admin/v2/ and return the decoded answer (None if empty).

        Raises:
            AdminError: the broker answered with an error status, or not at all.
        """
        payload = None if body is None else json.dumps(body).encode()
        deadline: float | None = None
        while True:
            try:
                answer = self._http.request(method, f"{self.url}/admin/v2/{path}", body=payload, headers=self._headers)
            except urllib3.exceptions.HTTPError as error:
                raise AdminError(f"{method} {path}: no answer from {self.url}: {error}") from error
            text = answer.data.decode(errors="replace")
            if answer.status < 300:
                break
            # Counted from the first refusal: one may take longer than all of the time.
            deadline = deadline or time.monotonic() + RECOVERY_TIMEOUT_S
            if not any(what in text for what in TEMPORARY) or time.monotonic() > deadline:
                raise AdminError(f"{method} {path}: {answer.status} {text[:300]}", answer.status)
            time.sleep(0.2)  # there is no event for it
        try:
            return json.loads(text) if text else None
        except json.JSONDecodeError:
            return text

    def _create(self, path: str, body: object = None) -> None:
        """Create it; a slow broker that has done so may answer that it exists already (seen on 4.0.8)."""
        try:
            self.request("PUT", path, body)
        except AdminError as error:
            if error.status != CONFLICT:
                raise

    # -- transactions

    def open_transactions(self, topics: Collection[str]) -> list[str]:
        """Return the ids of the coordinator's transactions that have written to any of these topics and have not ended.

        A transaction that is being committed or aborted is one of them: until it has ended, the coordinator answers
        another outcome with InvalidTxnStatus, and then with TransactionNotFound.
        """
        known = self.request("GET", "../v3/transactions/slowTransactions/0")
        return [name for name, one in known.items() if not one["producedPartitions"].keys().isdisjoint(topics)]

    # -- broker and namespaces

    def clusters(self) -> list[str]:
        """Return the names of the clusters: ["standalone"] for a ready standalone broker, [] before."""
        found: list[str] = self.request("GET", "clusters")
        return found

    def namespaces(self, tenant: str = "public") -> list[str]:
        """Return the tenant's namespaces, as tenant/namespace."""
        found: list[str] = self.request("GET", f"namespaces/{tenant}")
        return found

    def check_health(self) -> None:
        """Have the broker write and read a message of a topic of its own.

        Raises:
            AdminError: it cannot.
        """
        self.request("GET", "brokers/health")

    def broker_version(self) -> str:
        """Return the broker's own version, e.g. 4.0.8."""
        return str(self.request("GET", "brokers/version"))

    def replicate(self, namespace: str, cluster: str, url: str, service_url: str) -> None:
        """Have the brokers copy what is published in a namespace of the tenant `public` to another cluster."""
        own = self.clusters()
        self.request("PUT", f"clusters/{cluster}", {"serviceUrl": url, "brokerServiceUrl": service_url})
        self.request("POST", "tenants/public", {"allowedClusters": [*own, cluster]})
        self.request("POST", f"namespaces/{namespace}/replication", [*own, cluster])

    def create_namespace(self, namespace: str, *, keep_data: bool = True) -> str:
        """Create a namespace unless it exists, by default with unlimited retention."""
        self._create(f"namespaces/{namespace}", {})
        if keep_data:
            self.set_retention(namespace)
        return namespace

    def set_retention(self, namespace: str, *, minutes: int = -1, megabytes: int = -1) -> None:
        """Set the retention of acknowledged messages (-1: no limit), which also keeps idle topics."""
        policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        self.request("POST", f"namespaces/{namespace}/retention", policy)

    def set_deduplication(self, namespace: str, *, enabled: bool) -> None:
        """Enable or disable deduplication for the namespace's topics."""
        self.request("POST", f"namespaces/{namespace}/deduplication", enabled)

    def require_encryption(self, namespace: str) -> None:
        """Have the brokers refuse producers that do not encrypt."""
        self.request("POST", f"namespaces/{namespace}/encryptionRequired", True)

    def grant(self, namespace: str, role: str, actions: Sequence[str]) -> None:
        """Grant a role some of produce, consume, functions, sources, sinks, packages in the namespace."""
        self.request("POST", f"namespaces/{namespace}/permissions/{role}", list(actions))

    def revoke(self, namespace: str, role: str) -> None:
        """Revoke all of the role's permissions in the namespace."""
        self.request("DELETE", f"namespaces/{namespace}/permissions/{role}")

    # -- topics

    def create_topic(self, topic: str, partitions: int = 0) -> str:
        """Create a topic with this many partitions (0: not partitioned) and return its name."""
        path = self._topic(topic)
        if partitions:
            self._create(f"{path}/partitions", partitions)
        else:
            self._create(path)
        return topic

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Grow a partitioned topic to this many partitions."""
        self.request("POST", f"{self._topic(topic)}/partitions", partitions)

    def delete_topic(self, topic: str, *, partitioned: bool = False, force: bool = True) -> None:
        """Delete a topic; force disconnects its producers and consumers first."""
        suffix = "/partitions" if partitioned else ""
        self.request("DELETE", f"{self._topic(topic)}{suffix}?force={str(force).lower()}")

    def topics(self, namespace: str) -> list[str]:
        """Return the namespace's persistent topics, with each partition as a topic."""
        found: list[str] = self.request("GET", f"persistent/{namespace}")
        return found

    def unload(self, topic: str) -> None:
        """Unload a topic or partition from its broker, as a load balancer does; a new ledger begins."""
        self.request("PUT", f"{self._topic(topic)}/unload")

    def unload_namespace(self, namespace: str) -> None:
        """Unload all bundles of a namespace, so that clients must look their topics up again."""
        self.request("PUT", f"namespaces/{namespace}/unload")

    def terminate(self, topic: str) -> Any:  # noqa: ANN401 - whatever JSON the broker answers
        """Terminate a topic and return its last message id; readers then get REACHED_END_OF_TOPIC."""
        return self.request("POST", f"{self._topic(topic)}/terminate")

    def stats(self, topic: str) -> Any:  # noqa: ANN401 - whatever JSON the broker answers
        """Return the topic's (or one partition's) statistics."""
        return self.request("GET", f"{self._topic(topic)}/stats")

    def partitioned_stats(self, topic: str) -> Any:  # noqa: ANN401 - whatever JSON the broker answers
        """Return the statistics of all partitions of a topic."""
        return self.request("GET", f"{self._topic(topic)}/partitioned-stats")

    def internal_stats(self, topic: str) -> Any:  # noqa: ANN401 - whatever JSON the broker answers
        """Return the topic's ledgers and cursors."""
        return self.request("GET", f"{self._topic(topic)}/internalStats")

    def ledgers(self, topic: str) -> list[tuple[int, int]]:
        """Return the topic's ledgers as (id, entries), oldest first; the last one is open, with its entries so far."""
        stats = self.internal_stats(topic)
        found = [(int(ledger["ledgerId"]), int(ledger["entries"])) for ledger in stats["ledgers"]]
        if found:
            found[-1] = (found[-1][0], max(found[-1][1], int(stats["currentLedgerEntries"])))
        return found

    def subscriptions(self, topic: str) -> list[str]:
        """Return the names of the topic's subscriptions."""
        found: list[str] = self.request("GET", f"{self._topic(topic)}/subscriptions")
        return found

    def create_subscription(self, topic: str, subscription: str) -> None:
        """Create a subscription at the end of a topic."""
        self.request("PUT", f"{self._topic(topic)}/subscription/{quote(subscription, safe='')}")

    def delete_subscription(self, topic: str, subscription: str, *, force: bool = True) -> None:
        """Delete a subscription."""
        self.request(
            "DELETE", f"{self._topic(topic)}/subscription/{quote(subscription, safe='')}?force={str(force).lower()}"
        )

    def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge a subscription's whole backlog."""
        self.request("POST", f"{self._topic(topic)}/subscription/{quote(subscription, safe='')}/skip_all")

    def trim(self, topic: str) -> None:
        """Delete the unretained ledgers of a topic or partition, without waiting for the next scan."""
        self.request("POST", f"{self._topic(topic)}/trim")

    def compact(self, topic: str, timeout_s: float = 60.0) -> None:
        """Compact the topic (or one partition) and wait until the broker reports success.

        Raises:
            AdminError: the compaction failed or timed out.
        """
        self._run_job(topic, "compaction", None, timeout_s)

    def offload(self, topic: str, timeout_s: float = 120.0) -> None:
        """Offload all closed ledgers of the topic (or one partition) and wait until the broker reports success.

        Raises:
            AdminError: the offload failed or timed out.
        """
        ledger, entry = map(int, self.internal_stats(topic)["lastConfirmedEntry"].split(":"))
        self._run_job(topic, "offload", {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}, timeout_s)

    def _run_job(self, topic: str, job: str, body: object, timeout_s: float) -> None:
        """Start a long-running job of the topic (or one partition) and wait until the broker reports success.

        Raises:
            AdminError: the job failed or timed out.
        """
        path = f"{self._topic(topic)}/{job}"
        self.request("PUT", path, body)
        deadline = time.monotonic() + timeout_s
        while (state := self.request("GET", path))["status"] == "RUNNING":
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)  # the broker offers no event for it
        if state["status"] != "SUCCESS":
            raise AdminError(f"{job} of {topic}: {state}")

    @staticmethod
    def _topic(topic: str) -> str:
        """Return the REST path of a topic.

        Raises:
            ValueError: not a full name.
        """
        domain, separator, rest = topic.partition("://")
        if not separator:
            raise ValueError(f"topic {topic!r}: use the full name, such as persistent://public/default/{topic}")
        tenant, namespace, name = rest.split("/", 2)
        return f"{domain}/{tenant}/{namespace}/{quote(name, safe='')}"
