"""Inspects NSQ without Spark, for `spark-mq`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from spark_mq_source.core.errors import OptionError, TopicNotFoundError, TransportError
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.nsq.client.client import NsqClient, Nsqd, Source
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import ask_stats, check_all_found, find_sources, topic_not_found, topics_of
from spark_mq_source.nsq.read.reader import NsqRange

logger = logging.getLogger(__name__)


class NsqTail:
    """The messages that one nsqd receives from now on; see `core.ports.Tail`.

    Args:
        task: the read of the tail's own channel.
    """

    def __init__(self, task: NsqRange) -> None:
        self._task = task

    def newest(self, messages: int) -> None:
        """Return None: NSQ keeps no past messages."""
        del messages

    def following(self) -> Iterator[NsqRange]:
        """Yield one range without an end: the nsqd sends each message as it is published."""
        yield self._task


def keep_existing(options: NsqOptions, tasks: Sequence[NsqRange]) -> list[NsqRange]:
    """Return the tasks whose nsqd have the channel; the others would create it.

    Raises:
        TopicNotFoundError: no nsqd has it, or one does not report its channels.
    """
    client = NsqClient(options)
    channel = options.channel or ""
    found = ask_stats(client, options, list(dict.fromkeys(task.source for task in tasks)))
    where = f"{options.topics_text}, channel {channel}"
    remedy = "set createChannel=true (-o createChannel=true) to read it, and to create it if it does not exist"
    for source, stats in found.items():
        if stats is None:
            raise TopicNotFoundError(
                f"{where}: {source.nsqd.name} does not report whether it has the channel "
                f"({client.missing_stats_reason(source.nsqd)}); {remedy}"
            )
    has_it = {source for source, stats in found.items() if stats is not None and stats.exists}
    kept = [task for task in tasks if task.source in has_it]
    if not kept:
        names = ", ".join(dict.fromkeys(source.nsqd.name for source in found))
        raise TopicNotFoundError(f"{where}: {names} has no such channel; {remedy}")
    return kept


class NsqInspector:
    """See `core.ports.Inspector`. Its connections do not subscribe, so no message is received."""

    def __init__(self, options: NsqOptions) -> None:
        self._options = options
        self._client = NsqClient(options)

    def close(self) -> None:
        """Do nothing: no connection stays open between calls."""

    def topics(self) -> Iterator[Mapping[str, object]]:
        """Yield each topic, its number of nsqd, and the channels known to nsqlookupd; without a topic, all topics.

        Raises:
            MQSourceError: no nsqlookupd answers; or for all topics, no nsqd does.
        """
        if not self._options.topic_names and self._options.topics_pattern is None:
            yield from self._all_topics()
            return
        for topic in topics_of(self._client, self._options):
            found = self._client.fetch_topology(topic)
            yield {"topic": topic, "nsqds": len(found.nsqds), "channels": sorted(found.channels)}

    def partitions(self) -> Iterator[Mapping[str, object]]:
        """Yield the nsqd of each topic.

        Raises:
            MQSourceError: no nsqlookupd answers.
        """
        for source in self._sources():
            yield {"topic": source.topic, "nsqd": source.nsqd.name, "http": source.nsqd.http_url}

    def offsets(self) -> Iterator[Mapping[str, object]]:
        """Yield the messages in the channel on each nsqd, since NSQ has no positions.

        The numbers are NULL if the nsqd does not report them, or has no such channel: then `exists` is false.

        Raises:
            MQSourceError: no nsqlookupd answers.
        """
        channel = self._options.channel or ""
        for source, stats in ask_stats(self._client, self._options, self._sources()).items():
            found = stats if stats is not None and stats.exists else None
            yield {
                "topic": source.topic,
                "channel": channel,
                "nsqd": source.nsqd.name,
                "exists": stats and stats.exists,
                "waiting": found and max(found.depth + found.topic_depth, 0),
                "in_flight": found and found.in_flight,
                "deferred": found and found.deferred,
                "paused": found and (found.is_paused or found.is_topic_paused),
            }

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterator[Mapping[str, object]]:
        """Yield the same as `offsets`: the messages waiting in a channel are the lag of its consumers.

        Raises:
            OptionError: a checkpoint is given, which shows no lag.
            MQSourceError: no nsqlookupd answers.
        """
        if checkpoint is not None:
            raise OptionError(
                "nsq: a checkpoint contains no lag: remove --checkpoint to see the messages waiting in the channel"
            )
        return self.offsets()

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises an error."""
        yield from TlsSettings.of(self._options).steps()
        yield "find the nsqd of the topic", self._find_nsqds
        for nsqd in dict.fromkeys(source.nsqd for source in self._sources()):
            yield f"connect to {nsqd.name} and sign in", partial(self._connect, nsqd)
        yield "find the channel", self._find_channel

    def tails(self) -> list[NsqTail]:
        """Return the tail of each nsqd that has the topic; log which channel is created for it.

        Raises:
            TopicNotFoundError: no nsqd has the topic.
            OptionError: the topic has no channel on an nsqd, so the tail would take the messages waiting in the topic.
            MQSourceError: no nsqlookupd answers.
        """
        found = {source: self._client.fetch_channels(source.nsqd, source.topic) for source in self._sources()}
        sources = [source for source, topics in found.items() if topics is None or source.topic in topics]
        if not sources:
            raise topic_not_found(self._options, *self._options.topic_names[:1])
        for source in sources:
            channels = (found[source] or {}).get(source.topic)
            if not channels and not self._options.create_channel:
                why = self._client.missing_stats_reason(source.nsqd) if channels is None else "has no channel"
                raise OptionError(
                    f"nsq topic {source.topic}, nsqd {source.nsqd.name}: {why}: the first channel of a topic takes the "
                    f"messages waiting in it; set createChannel=true (-o createChannel=true) to accept that"
                )
        logger.warning(
            "%s: reading copies from a separate channel, %s, which nsqd deletes when this command ends; "
            "no other channel loses a message",
            self._options.topics_text,
            self._options.channel,
        )
        return [NsqTail(NsqRange(source, None)) for source in sources]

    def _all_topics(self) -> Iterator[Mapping[str, object]]:
        nsqds = self._client.fetch_writable(None)
        found = {nsqd: self._client.fetch_channels(nsqd) for nsqd in nsqds}
        reasons = [f"{nsqd.name}: {self._client.missing_stats_reason(nsqd)}" for nsqd in nsqds if found[nsqd] is None]
        if reasons:
            raise TransportError(f"nsq: cannot list all topics: {'; '.join(reasons)}; name a topic")
        known = [topics for topics in found.values() if topics]
        for name in sorted({name for topics in known for name in topics}):
            places = [topics[name] for topics in known if name in topics]
            channels = sorted({channel for place in places for channel in place})
            yield {"topic": name, "nsqds": len(places), "channels": channels}

    def _sources(self) -> Sequence[Source]:
        topics = topics_of(self._client, self._options)
        return [Source(topic, nsqd) for topic in topics for nsqd in self._client.fetch_topology(topic).nsqds]

    def _find_nsqds(self) -> str:
        found = self._sources()
        check_all_found(self._options, found)
        return ", ".join(dict.fromkeys(source.nsqd.name for source in found))

    def _connect(self, nsqd: Nsqd) -> str:
        with self._client.open_session(nsqd) as session:
            found = f"nsqd {session.identified.version}, {'TLS' if self._options.tls else 'without TLS'}"
            if (authorized := session.authorized) is None:
                return found
            who = " ".join(filter(None, (authorized.identity, authorized.identity_url))) or "no name"
            return f"{found}, authorized as {who} with {authorized.permission_count} permissions"

    def _find_channel(self) -> str:
        found = ask_stats(self._client, self._options, find_sources(self._client, self._options))
        lacking = [source.name for source, stats in found.items() if stats is not None and not stats.exists]
        return f"{self._options.channel} exists" + (f"; a query creates it for {', '.join(lacking)}" if lacking else "")
