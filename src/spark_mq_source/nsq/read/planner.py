"""Plans of a query: the nsqd that have its topic, their backlogs, and the share of each task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from spark_mq_source.core.errors import BrokerError, MQSourceError, TopicNotFoundError
from spark_mq_source.net.queue_plan import Doubts, plan_once, share_drain, share_waiting, split_parts
from spark_mq_source.nsq.client.client import ChannelStats, NsqClient, Nsqd, Source, Topology
from spark_mq_source.nsq.options import AckMode, NsqOptions
from spark_mq_source.nsq.read.reader import NsqRange

logger = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 16
"""Maximum number of HTTP interfaces queried at once."""

EPHEMERAL: Final = "#ephemeral"
"""The suffix of a channel that nsqd deletes, with its messages, after its last consumer (V2 specification, Notes)."""

_TLS_REQUIRED: Final = "TLS_REQUIRED"
"""Text in the body of nsqd's 403 over plain HTTP with `-tls-required` (nsqd 1.3.0)."""

Waiting = Mapping[Source, int | None]
"""The number of waiting messages of each source; None if its nsqd does not report it."""


def plan_batch(options: NsqOptions) -> list[NsqRange]:
    """Plan the tasks of one batch read, see `plan_once`.

    Raises:
        TopicNotFoundError: no nsqd has the topic, or the channel does not exist and must not be created.
        MQSourceError: no nsqlookupd answers, or no nsqd can be reached; or `walDir` cannot be used.
    """
    return plan_once("nsq", options, NsqRange, lambda: _drain(options))


def _drain(options: NsqOptions) -> list[NsqRange]:
    client = NsqClient(options)
    sources = find_sources(client, options)
    check_all_found(options, sources)
    return _tasks(options, share_drain(fetch_waiting(client, options, sources), options.max_rows))


def check_all_found(options: NsqOptions, sources: Sequence[Source]) -> None:
    """Check that each topic, or one that matches the pattern, has an nsqd.

    Raises:
        TopicNotFoundError: it has none.
    """
    found = {source.topic for source in sources}
    missing = [topic for topic in options.topic_names if topic not in found]
    if missing or not sources:
        raise topic_not_found(options, *missing[:1])


def topic_not_found(options: NsqOptions, topic: str = "", *, is_stream: bool = False) -> TopicNotFoundError:
    """Return the error for a topic that no nsqd has; without one, for a pattern that no topic matches."""
    asked = ", ".join(options.nsqlookupd_http_addresses) or ", ".join(options.nsqd_http_addresses)
    wait = "; set waitForTopic to wait for it" if is_stream else ""
    what = f"nsq topic {topic}" if topic else options.topics_text
    return TopicNotFoundError(
        f"{what}: {asked}: no nsqd is registered with this topic. Check the topic's name, and that "
        f"its nsqd are up; the first message that is published to a topic creates it{wait}"
    )


def topics_of(client: NsqClient, options: NsqOptions) -> Sequence[str]:
    """Return the topics of the options, or those that match the pattern now.

    Raises:
        MQSourceError: the topics cannot be listed.
    """
    pattern = options.topics_pattern
    if pattern is None:
        return options.topic_names
    return [topic for topic in client.fetch_topics() if pattern.fullmatch(topic)]


def find_sources(
    client: NsqClient, options: NsqOptions, known: Mapping[str, Sequence[Source]] | None = None
) -> Sequence[Source]:
    """Return the topics and their nsqd; check that the channel exists on one of them, or create it on each.

    Args:
        client: sends the requests.
        options: options of the query.
        known: the sources that the query found last, by topic. They are returned if no nsqlookupd answers. An nsqd of
            such a topic that cannot be checked, because it restarts, is no error.

    Raises:
        TopicNotFoundError: the channel does not exist or cannot be checked, and `createChannel` is false. With a
            pattern: no topic that matches has the channel.
        MQSourceError: no nsqlookupd answers and nothing is known, or an nsqd cannot be reached to check or create the
            channel.
    """
    known = known or {}
    try:
        topologies = {topic: client.fetch_topology(topic) for topic in topics_of(client, options)}
    except MQSourceError as error:
        if not (known and error.retryable):
            raise
        logger.warning("%s: reading from the nsqd that are known: %s", options.topics_text, error)
        return [source for sources in known.values() for source in sources]
    found: list[Source] = []
    without_channel: list[TopicNotFoundError] = []
    for topic, topology in topologies.items():
        try:
            _check_channel(client, options, topic, topology, was_found=topic in known)
        except TopicNotFoundError as error:
            if options.topics_pattern is None:
                raise
            logger.info("left out: %s", error)
            without_channel.append(error)
        else:
            found += [Source(topic, nsqd) for nsqd in topology.nsqds]
    if without_channel and not found and not known:
        raise without_channel[0]
    return found


def _check_channel(client: NsqClient, options: NsqOptions, topic: str, topology: Topology, *, was_found: bool) -> None:
    channel = options.channel or ""
    if not topology.nsqds or channel in topology.channels:
        return
    stats = ask_stats(client, options, [Source(topic, nsqd) for nsqd in topology.nsqds])
    if any(found is not None and found.exists for found in stats.values()):
        return
    if was_found and not all(stats.values()):
        return
    if not options.create_channel:
        raise _no_channel(client, options, topic, {source.nsqd: found for source, found in stats.items()})
    failures = _create_channel(client, channel, stats)
    if len(failures) == len(topology.nsqds):
        raise failures[0]


def _create_channel(client: NsqClient, channel: str, sources: Iterable[Source]) -> list[MQSourceError]:
    """Create the channel on nsqd that lack it; return the errors of those that cannot be reached.

    An ephemeral channel is left to its reader: nsqd would delete it, with the messages of the topic, after a
    subscription that ends here.

    Raises:
        MQSourceError: an nsqd refuses.
    """
    failures: list[MQSourceError] = []
    for source in () if channel.endswith(EPHEMERAL) else sources:
        try:
            with client.open_session(source.nsqd) as session:
                session.subscribe(source.topic, channel)
        except MQSourceError as error:
            if not error.retryable:
                raise
            logger.warning("%s: the channel %s is not created there: %s", source.name, channel, error)
            failures.append(error)
    return failures


def _no_channel(
    client: NsqClient, options: NsqOptions, topic: str, stats: Mapping[Nsqd, ChannelStats | None]
) -> TopicNotFoundError:
    """Return the error for a channel that no nsqd is known to have.

    Raises:
        MQSourceError: an nsqd that could have it cannot be reached.
    """
    where = f"nsq topic {topic}, channel {options.channel}"
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


def fetch_waiting(
    client: NsqClient, options: NsqOptions, sources: Sequence[Source], doubts: Doubts | None = None
) -> dict[Source, int | None]:
    """Return how many messages each nsqd could deliver now: not those held back by a pause, deferred or in flight.

    The channel is created on an nsqd that lacks it, whatever `createChannel` says: find_sources has found it on another
    nsqd, or in nsqlookupd, and without a channel an nsqd passes its messages only to the other channels. Reads that put
    their messages back (`ackMode=requeue`) leave that to their tasks, and so do reads of an ephemeral channel.

    None if unknown: nsqd does not answer, or is doubted because it has restarted, or counts less than none. A killed
    nsqd does not count messages that it wrote to disk since its last sync, until the channel was read to its end (seen
    on 1.3.0).

    Args:
        client: the client.
        options: the query's.
        sources: whom to ask.
        doubts: the query's, updated.

    Raises:
        MQSourceError: an nsqd refuses to create the channel.
    """
    found = ask_stats(client, options, sources)
    doubts = doubts or Doubts()
    is_look = options.ack_mode is AckMode.REQUEUE
    without = [source for source, stats in found.items() if stats is not None and not (stats.exists or is_look)]
    for source in without:
        logger.warning(
            "%s: no channel %s: creating it; it receives what is published from now on, and if it is the topic's first "
            "channel, what waits in the topic",
            source.name,
            options.channel,
        )
    _create_channel(client, options.channel or "", without)
    return {source: _count(source.name, stats, doubts) for source, stats in found.items()}


def _count(name: str, stats: ChannelStats | None, doubts: Doubts) -> int | None:
    if stats is None:
        return None
    count = doubts.count(name, stats.depth + stats.topic_depth, stats.started_s)
    if stats.is_paused:
        return 0
    return count and max(0, count - stats.topic_depth) if stats.is_topic_paused else count


def trigger_tasks(options: NsqOptions, waiting: Waiting, budget: int | None, *, turn: int) -> list[NsqRange]:
    """Plan the tasks of a trigger: the source of each, and its number of waiting messages, within the total budget.

    An nsqd that does not report its messages is read up to the budget, or completely without one (None).
    """
    return _tasks(options, waiting if budget is None else share_waiting(waiting, budget, turn))


def _tasks(options: NsqOptions, parts: Waiting) -> list[NsqRange]:
    split = split_parts(parts.items(), options.connections_per_nsqd, most=options.max_records_per_partition)
    return [NsqRange(source, rows) for source, rows in split]


def ask_stats(client: NsqClient, options: NsqOptions, sources: Sequence[Source]) -> dict[Source, ChannelStats | None]:
    """Return the statistics of the channel on each nsqd, asked at once; None if its HTTP interface does not answer."""
    if not sources:
        return {}

    def ask(source: Source) -> ChannelStats | None:
        return client.fetch_stats(source.nsqd, source.topic, options.channel or "")

    with ThreadPoolExecutor(min(len(sources), MAX_AT_ONCE), thread_name_prefix="nsqd http") as pool:
        return dict(zip(sources, pool.map(ask, sources), strict=True))
