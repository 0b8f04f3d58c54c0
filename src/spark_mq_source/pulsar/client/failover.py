"""The choice between several clusters: the first that can be reached, as by Java's AutoClusterFailover.

A client is on one cluster from its beginning to its end, because message ids, sequence ids, versions of schemas and
numbers of partitions may differ between clusters. A check is a connection, which the client then uses.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from spark_mq_source.core.errors import TransportError
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client.connections import Connections
from spark_mq_source.pulsar.options import PulsarOptions

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Choice:
    """The cluster that clients of this process use.

    Attributes:
        number: 0 for the one of `serviceUrl`.
        check_at: monotonic seconds of the next check of that one, while another one is in use.
        back_since: since when all checks of it have succeeded; None if the last one failed.
    """

    number: int = 0
    check_at: float = 0.0
    back_since: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_choices: Final[dict[tuple[str, ...], _Choice]] = {}


def on_available_cluster(options: PulsarOptions) -> PulsarOptions:
    """Return options of a client of one cluster: the one in use in this process, unless it is time for another one.

    Raises:
        MQSourceError: no cluster can be reached, or the one in use refuses the connection.
    """
    if not options.failover_service_urls:
        return options
    urls = (options.service_url, *options.failover_service_urls)
    clusters = [replace(options, service_url=url, failover_service_urls=()) for url in urls]
    choice = _choices.setdefault(urls, _Choice())
    with choice.lock:
        if choice.number:
            _check_first(clusters[0], choice, options.switch_back_delay_ms / 1000)
        try:
            retrying(partial(_connect, clusters[choice.number]), deadline=Deadline.after_ms(options.failover_delay_ms))
        except TransportError as error:
            _fail_over(clusters, choice, error)
        return clusters[choice.number]


def _check_first(first: PulsarOptions, choice: _Choice, delay_seconds: float) -> None:
    """Switch back to the first cluster if it has been reachable for long enough."""
    now = time.monotonic()
    if now < choice.check_at:
        return
    choice.check_at = now + delay_seconds / 2
    try:
        _connect(first)
    except TransportError as error:
        logger.info("%s cannot be reached yet: %s", first.service_url, error)
        choice.back_since = None
        return
    choice.back_since = now if choice.back_since is None else choice.back_since
    if now - choice.back_since >= delay_seconds:
        logger.warning("switching back to %s", first.service_url)
        choice.number, choice.back_since = 0, None


def _fail_over(clusters: list[PulsarOptions], choice: _Choice, reason: TransportError) -> None:
    failures = [f"{clusters[choice.number].service_url}: {reason}"]
    for number, cluster in enumerate(clusters):
        if number == choice.number:
            continue
        try:
            _connect(cluster)
        except TransportError as error:
            failures.append(f"{cluster.service_url}: {error}")
            continue
        logger.warning("failing over to %s: %s", cluster.service_url, failures[0])
        choice.number, choice.back_since = number, None
        choice.check_at = 0.0
        return
    raise TransportError("no cluster of serviceUrl and failoverServiceUrls can be reached: " + "; ".join(failures))


def _connect(cluster: PulsarOptions) -> None:
    """Open a connection to one address of a cluster, and keep it for the client."""
    with Connections(cluster) as connections:
        connections.service()
        connections.hand_over()
