"""Plans of a query: the nsqd that have its topic, their backlogs, and the share of each task."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from spark_mq_source.core.errors import BrokerError, MQSourceError, TopicNotFoundError
from spark_mq_source.net.queue_plan import run_tasks, share_drain, share_waiting, split_parts
from spark_mq_source.net.write_ahead import open_folder
from spark_mq_source.nsq.client.client import ChannelStats, NsqClient, Nsqd
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.reader import NsqRange

logger = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 16
"""Maximum number of HTTP interfaces queried at once."""

_TLS_REQUIRED: Final = "TLS_REQUIRED"
"""Text in the body of nsqd's 403 over plain HTTP with `-tls-required` (nsqd 1.3.0)."""

Waiting = Mapping[Nsqd, int | None]
"""The number of waiting messages on each nsqd; None if it does not report it."""


def plan_batch(options: NsqOptions) -> list[NsqRange]:
    """Plan the tasks of one batch read: a drain, or with `walDir` and `runId` the plan of its first read.

    Raises:
        TopicNotFoundError: no nsqd has the topic, or the channel does not exist and must not be created.
        OptionError: `walDir` cannot be used.
        UnsupportedFeatureError: the file system of `walDir` has no exclusive creation.
        MQSourceError: no nsqlookupd answers, or no nsqd can be reached.
    """
    try:
        if options.wal_dir is None or options.run_id is None:
            return _drain(options)
        store = open_folder("nsq", options.wal_dir, probe=True)
        return run_tasks(store, options.run_id, NsqRange, lambda: _drain(options))
    except MQSourceError as error:
        raise error.within("nsq: planning") from error


def _drain(options: NsqOptions) -> list[NsqRange]:
    client = NsqClient(options)
    nsqds = find_nsqds(client, options)
    if not nsqds:
        raise topic_not_found(options)
    return _tasks(options, share_drain(fetch_waiting(client, options, nsqds), options.max_rows))


def topic_not_found(options: NsqOptions, *, is_stream: bool = False) -> TopicNotFoundError:
    """Return the error for a topic that no nsqd has."""
    asked = ", ".join(options.nsqlookupd_http_addresses)
    wait = "; set waitForTopic to wait for it" if is_stream else ""
    return TopicNotFoundError(
        f"nsq topic {options.topic}: {asked}: no nsqd is registered with this topic. Check the topic's name, and that "
        f"its nsqd are up; the first message that is published to a topic creates it{wait}"
    )


def find_nsqds(client: NsqClient, options: NsqOptions, *, was_found: bool = False) -> Sequence[Nsqd]:
    """Return the nsqd that have the topic; check that the channel exists, or create it on each.

    Args:
        client: sends the requests.
        options: options of the query.
        was_found: whether the query has found the channel before: then an nsqd that cannot be checked, because it
            restarts, is no error.

    Raises:
        TopicNotFoundError: the channel does not exist or cannot be checked, and `createChannel` is false.
        MQSourceError: no nsqlookupd answers, or an nsqd cannot be reached to check or create the channel.
    """
    topic, channel = options.topic or "", options.channel or ""
    topology = client.fetch_topology(topic)
    if not topology.nsqds or channel in topology.channels:
        return topology.nsqds
    stats = _ask(client, options, topology.nsqds)
    if any(found is not None and found.exists for found in stats.values()):
        return topology.nsqds
    if was_found and not all(stats.values()):
        return topology.nsqds
    if not options.create_channel:
        raise _no_channel(client, options, stats)
    failures: list[MQSourceError] = []
    for nsqd in topology.nsqds:
        try:
            with client.open_session(nsqd) as session:
                session.subscribe(topic, channel)
        except MQSourceError as error:
            if not error.retryable:
                raise
            logger.warning("%s: the channel %s of %s is not created there: %s", nsqd.name, channel, topic, error)
            failures.append(error)
    if len(failures) == len(topology.nsqds):
        raise failures[0]
    return topology.nsqds


def _no_channel(
    client: NsqClient, options: NsqOptions, stats: Mapping[Nsqd, ChannelStats | None]
) -> TopicNotFoundError:
    """Return the error for a channel that no nsqd is known to have.

    Raises:
        MQSourceError: an nsqd that could have it cannot be reached.
    """
    where = f"nsq topic {options.topic}, channel {options.channel}"
    unknown = [nsqd for nsqd, found in stats.items() if found is None]
    for nsqd in unknown:
        # If its HTTP interface does not answer, its TCP port may have the same problem.
        try:
            client.open_session(nsqd).close()
        except MQSourceError as error:
            raise error.within(f"{where}: looking for the channel on {nsqd.name}") from error
        # It accepts a connection without TLS, and refuses its first command (nsqd 1.3.0).
        if not options.tls and _TLS_REQUIRED in client.missing_stats_reason(nsqd):
            raise BrokerError(
                f"{where}: looking for the channel on {nsqd.name}: this nsqd requires TLS: set tls=true",
                code_name=_TLS_REQUIRED,
            )
    if not unknown:
        why = f"{', '.join(nsqd.name for nsqd in stats)} has no such channel"
    else:
        why = f"no HTTP interface says whether the channel exists ({client.missing_stats_reason(unknown[0])})"
    return TopicNotFoundError(
        f"{where}: {why}; set createChannel=true to create it: the first channel of a topic gets what waits in the "
        f"topic, any other what is published from then on"
    )


def fetch_waiting(client: NsqClient, options: NsqOptions, nsqds: Sequence[Nsqd]) -> dict[Nsqd, int | None]:
    """Return how many messages each nsqd could deliver now: not those of a paused channel, deferred or in flight."""
    return {
        nsqd: None if found is None else 0 if found.is_paused else found.depth
        for nsqd, found in _ask(client, options, nsqds).items()
    }


def trigger_tasks(options: NsqOptions, waiting: Waiting, budget: int | None, *, turn: int) -> list[NsqRange]:
    """Plan the tasks of a trigger: the nsqd of each, and its number of waiting messages, within the total budget.

    An nsqd that does not report its messages is read up to the budget, or completely without one (None).
    """
    return _tasks(options, waiting if budget is None else share_waiting(waiting, budget, turn))


def _tasks(options: NsqOptions, parts: Waiting) -> list[NsqRange]:
    split = split_parts(parts.items(), options.connections_per_nsqd, most=options.max_records_per_partition)
    return [NsqRange(nsqd, rows) for nsqd, rows in split]


def _ask(client: NsqClient, options: NsqOptions, nsqds: Sequence[Nsqd]) -> dict[Nsqd, ChannelStats | None]:
    if not nsqds:
        return {}
    topic, channel = options.topic or "", options.channel or ""
    with ThreadPoolExecutor(min(len(nsqds), MAX_AT_ONCE), thread_name_prefix="nsqd http") as pool:
        return dict(zip(nsqds, pool.map(lambda nsqd: client.fetch_stats(nsqd, topic, channel), nsqds), strict=True))
