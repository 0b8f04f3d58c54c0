"""What a query reads: the nsqd that have its topic, what waits on them, and how much each task takes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from spark_mq_source.core.errors import BrokerError, MQSourceError, TopicNotFoundError
from spark_mq_source.core.shares import share_out
from spark_mq_source.nsq.client.client import ChannelStats, NsqClient, Nsqd
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.nsq.read.wal import open_folder, read_plan, write_plan

logger = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 16
"""HTTP interfaces asked at the same time."""

_TLS_REQUIRED: Final = "TLS_REQUIRED"
"""In the body of nsqd's 403 over plain HTTP with `-tls-required` (nsqd 1.3.0)."""

Waiting = Mapping[Nsqd, int | None]
"""How many messages wait on each nsqd; None where it does not say."""


def plan_batch(options: NsqOptions) -> list[NsqRange]:
    """The tasks of one batch read: a drain, or with `walDir` and `runId` what was planned when it was first read.

    Raises:
        TopicNotFoundError: no nsqd has the topic, or the channel is not there and not to be created.
        OptionError: `walDir` cannot be used.
        UnsupportedFeatureError: nothing can be made exclusively in `walDir`.
        MQSourceError: no nsqlookupd answers, or no nsqd can be reached.
    """
    try:
        if options.wal_dir is None or options.run_id is None:
            return [NsqRange(nsqd, rows) for nsqd, rows in _drain(options)]
        store = open_folder(options.wal_dir, probe=True)
        folder = f"run-{options.run_id}"
        if not store.names(folder):
            write_plan(store, folder, plan_document(_drain(options)))
        return tasks_of(folder, read_plan(store, folder))
    except MQSourceError as error:
        raise error.within("nsq: planning") from error


def _drain(options: NsqOptions) -> list[tuple[Nsqd, int | None]]:
    client = NsqClient(options)
    nsqds = find_nsqds(client, options)
    if not nsqds:
        raise nobody_has_it(options)
    return _drain_tasks(options, fetch_waiting(client, options, nsqds))


def nobody_has_it(options: NsqOptions, *, is_stream: bool = False) -> TopicNotFoundError:
    """The error of a topic that no nsqd has."""
    asked = ", ".join(options.nsqlookupd_http_addresses)
    wait = "; set createChannel=true to wait for it" if is_stream else ""
    return TopicNotFoundError(
        f"nsq topic {options.topic}: {asked}: no nsqd is registered with this topic. Check the topic's name, and that "
        f"its nsqd are up; the first message that is published to a topic creates it{wait}"
    )


def find_nsqds(client: NsqClient, options: NsqOptions, *, was_found: bool = False) -> Sequence[Nsqd]:
    """The nsqd that have the topic; makes sure that the channel exists, or creates it on each.

    Args:
        client: finds them.
        options: of the query.
        was_found: whether the query has found the channel before. An nsqd that cannot be checked now, because it
            restarts, is no error then.

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
    """The error of a channel that no nsqd is known to have.

    Raises:
        MQSourceError: an nsqd that could have it cannot be reached.
    """
    where = f"nsq topic {options.topic}, channel {options.channel}"
    unknown = [nsqd for nsqd, found in stats.items() if found is None]
    for nsqd in unknown:
        # Why its HTTP interface does not answer may be why nothing of it can be used.
        try:
            client.open_session(nsqd).close()
        except MQSourceError as error:
            raise error.within(f"{where}: looking for the channel on {nsqd.name}") from error
        # It lets a connection without TLS begin, and refuses its first command (nsqd 1.3.0).
        if not options.tls and _TLS_REQUIRED in client.why_no_stats(nsqd):
            raise BrokerError(
                f"{where}: looking for the channel on {nsqd.name}: this nsqd requires TLS: set tls=true",
                code_name=_TLS_REQUIRED,
            )
    if not unknown:
        why = f"{', '.join(nsqd.name for nsqd in stats)} has no such channel"
    else:
        why = f"no HTTP interface says whether the channel exists ({client.why_no_stats(unknown[0])})"
    return TopicNotFoundError(
        f"{where}: {why}; set createChannel=true to create it: the first channel of a topic gets what waits in the "
        f"topic, any other what is published from then on"
    )


def fetch_waiting(client: NsqClient, options: NsqOptions, nsqds: Sequence[Nsqd]) -> dict[Nsqd, int | None]:
    """How many messages each nsqd could deliver now: none of a paused channel, none that are deferred or in flight."""
    return {
        nsqd: None if found is None else 0 if found.is_paused else found.depth
        for nsqd, found in _ask(client, options, nsqds).items()
    }


def tasks_of(folder: str, plan: Mapping[str, Any]) -> list[NsqRange]:
    """The tasks of a batch that is planned: the same whenever it is asked."""
    nsqds = [Nsqd(**nsqd) for nsqd in plan["nsqds"]]
    duplicates, recent = plan["duplicates"], plan["recent"]
    return [
        NsqRange(
            nsqds[task["nsqd"]],
            task["max_rows"],
            folder,
            number,
            frozenset(duplicates.get(nsqds[task["nsqd"]].name, ())),
            recent.get(nsqds[task["nsqd"]].name, ""),
        )
        for number, task in enumerate(plan["tasks"])
    ]


def plan_document(
    tasks: Sequence[tuple[Nsqd, int | None]],
    duplicates: Mapping[str, Mapping[str, float]] | None = None,
    recent: Mapping[str, str] | None = None,
    *,
    now: float = 0.0,
) -> dict[str, object]:
    """The JSON document of a batch that is planned.

    Args:
        tasks: whom each asks, and for how many messages at most.
        duplicates: ids of messages that may come again, by the nsqd's name, each with for how many seconds that is
            known.
        recent: ids of the messages that were finished last, one after the other, by the nsqd's name.
        now: when it is planned, in seconds since 1970.
    """
    nsqds = list(dict.fromkeys(nsqd for nsqd, _ in tasks))
    return {
        "nsqds": [
            {"name": nsqd.name, "host": nsqd.host, "port": nsqd.port, "http_url": nsqd.http_url} for nsqd in nsqds
        ],
        "tasks": [{"nsqd": nsqds.index(nsqd), "max_rows": rows} for nsqd, rows in tasks],
        "duplicates": duplicates or {},
        "recent": recent or {},
        "planned": now,
    }


def trigger_tasks(
    options: NsqOptions, waiting: Waiting, budget: int | None, *, turn: int
) -> list[tuple[Nsqd, int | None]]:
    """Whom each task of a trigger asks, and for how many messages: for what waits, within the budget of all.

    An nsqd that does not say what waits is asked for as much as the budget allows, or for whatever there is (None).
    """
    parts = waiting if budget is None else _parts(waiting, budget, turn)
    return _by_connection(options, parts.items())


def _drain_tasks(options: NsqOptions, waiting: Waiting) -> list[tuple[Nsqd, int | None]]:
    """The same for a batch read, which waits for more than there is now, where its other limits allow."""
    budget = options.max_rows
    if budget is None:
        return _by_connection(options, ((nsqd, None) for nsqd in waiting))
    parts = _parts(waiting, budget)
    each, odd = divmod(budget - sum(parts.values()), len(parts))
    more = ((nsqd, part + each + (index < odd)) for index, (nsqd, part) in enumerate(parts.items()))
    return _by_connection(options, more)


def _parts(waiting: Waiting, budget: int, turn: int = 0) -> dict[Nsqd, int]:
    """How many messages of each to take; where not all get one, those from number `turn` on come first."""
    nsqds = list(waiting)
    first = turn % max(len(nsqds), 1)
    depths = {nsqd: waiting[nsqd] for nsqd in nsqds[first:] + nsqds[:first]}
    shares = share_out({nsqd: budget if depth is None else depth for nsqd, depth in depths.items()}, budget)
    return {nsqd: shares[nsqd] for nsqd in nsqds}


def _by_connection(options: NsqOptions, parts: Iterable[tuple[Nsqd, int | None]]) -> list[tuple[Nsqd, int | None]]:
    connections = options.connections_per_nsqd
    tasks: list[tuple[Nsqd, int | None]] = []
    for nsqd, rows in parts:
        for connection in range(connections):
            if rows is None:
                tasks.append((nsqd, None))
            elif part := rows // connections + (connection < rows % connections):
                tasks.append((nsqd, part))
    return tasks


def _ask(client: NsqClient, options: NsqOptions, nsqds: Sequence[Nsqd]) -> dict[Nsqd, ChannelStats | None]:
    if not nsqds:
        return {}
    topic, channel = options.topic or "", options.channel or ""
    with ThreadPoolExecutor(min(len(nsqds), MOST_AT_ONCE), thread_name_prefix="nsqd http") as pool:
        return dict(zip(nsqds, pool.map(lambda nsqd: client.fetch_stats(nsqd, topic, channel), nsqds), strict=True))
