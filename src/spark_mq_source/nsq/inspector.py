"""Inspects NSQ without Spark, for `spark-mq`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from spark_mq_source.core.errors import OptionError
from spark_mq_source.nsq.client.client import NsqClient, Nsqd
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import find_nsqds, topic_not_found


class NsqInspector:
    """See `core.ports.Inspector`. Its connections do not subscribe, so no message is received.

    Args:
        options: options of a read.

    Example:
        ::

            inspector = NsqInspector(options)
            try:
                print(list(inspector.offsets()))
            finally:
                inspector.close()
    """

    def __init__(self, options: NsqOptions) -> None:
        self._options = options
        self._client = NsqClient(options)

    def close(self) -> None:
        """Do nothing: no connection stays open between calls."""

    def topics(self) -> Iterator[Mapping[str, object]]:
        """Yield the topic, its number of nsqd, and the channels known to nsqlookupd.

        Raises:
            MQSourceError: no nsqlookupd answers.
        """
        found = self._client.fetch_topology(self._topic)
        yield {"topic": self._topic, "nsqds": len(found.nsqds), "channels": sorted(found.channels)}

    def partitions(self) -> Iterator[Mapping[str, object]]:
        """Yield the nsqd of the topic.

        Raises:
            MQSourceError: no nsqlookupd answers.
        """
        for nsqd in self._nsqds():
            yield {"topic": self._topic, "nsqd": nsqd.name, "http": nsqd.http_url}

    def offsets(self) -> Iterator[Mapping[str, object]]:
        """Yield the messages in the channel on each nsqd, since NSQ has no positions; NULL if an nsqd reports none.

        Raises:
            MQSourceError: no nsqlookupd answers.
        """
        channel = self._options.channel or ""
        for nsqd in self._nsqds():
            stats = self._client.fetch_stats(nsqd, self._topic, channel)
            yield {
                "topic": self._topic,
                "channel": channel,
                "nsqd": nsqd.name,
                "waiting": stats and stats.depth,
                "in_flight": stats and stats.in_flight,
                "deferred": stats and stats.deferred,
                "paused": stats and stats.is_paused,
            }

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterator[Mapping[str, object]]:
        """Yield what `offsets` yields: the messages waiting in a channel are the lag of its consumers.

        Raises:
            OptionError: a checkpoint is given, which contains no lag.
            MQSourceError: no nsqlookupd answers.
        """
        if checkpoint is not None:
            raise OptionError(
                "nsq: a checkpoint contains no lag: remove --checkpoint to see the messages waiting in the channel"
            )
        return self.offsets()

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises an error."""
        yield "find the nsqd of the topic", self._find_nsqds
        for nsqd in self._nsqds():
            yield f"connect to {nsqd.name} and sign in", partial(self._connect, nsqd)
        yield "find the channel", self._find_channel

    @property
    def _topic(self) -> str:
        return self._options.topic or ""

    def _nsqds(self) -> Sequence[Nsqd]:
        return self._client.fetch_topology(self._topic).nsqds

    def _find_nsqds(self) -> str:
        found = self._nsqds()
        if not found:
            raise topic_not_found(self._options)
        return ", ".join(nsqd.name for nsqd in found)

    def _connect(self, nsqd: Nsqd) -> str:
        with self._client.open_session(nsqd) as session:
            return f"nsqd {session.identified.version}, {'TLS' if self._options.tls else 'without TLS'}"

    def _find_channel(self) -> str:
        find_nsqds(self._client, self._options)
        return f"{self._options.channel} exists"
