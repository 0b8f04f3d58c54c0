"""The driver's part of a streaming query, see `net.queue_stream`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_mq_source.core.errors import TransportError
from spark_mq_source.net.queue_stream import QueueStream
from spark_mq_source.net.retry import until_found
from spark_mq_source.nsq.client.client import NsqClient, Source
from spark_mq_source.nsq.client.session import Session
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES
from spark_mq_source.nsq.read.planner import (
    EPHEMERAL,
    check_all_found,
    fetch_waiting,
    find_sources,
    topic_not_found,
    trigger_tasks,
)
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.nsq.read.recent import RECENT_IDS

logger = logging.getLogger(__name__)


class NsqStream(QueueStream[Source, NsqRange]):
    """Planner of the triggers of one query."""

    task_type = NsqRange

    def __init__(self, options: NsqOptions) -> None:
        super().__init__("nsq", options.topics_text, options, topic=options.topics_text.removeprefix("nsq topic "))
        self._options = options
        self._client = NsqClient(options)
        # The sources found last, of all topics ever found.
        self._known: dict[str, list[Source]] = {}
        self._held: dict[str, Session] = {}

    def close(self) -> None:
        """Close the connections."""
        while self._held:
            self._held.popitem()[1].close()

    def _await_topics(self) -> Sequence[Source]:
        """Return the topics and their nsqd; with `waitForTopic` wait until all have one, and their channel.

        Raises:
            TopicNotFoundError: there is none after that time, or no channel, which is not to be created.
        """

        def look() -> Sequence[Source]:
            sources = self._sources_found()
            if self._options.wait_for_topic_ms is not None:
                check_all_found(self._options, sources)
            return sources

        return until_found(look, self._options.wait_for_topic_ms)

    def _begin(self) -> None:
        found = {source.topic for source in self._await_topics()}
        if self._options.create_channel:
            return
        if self._options.topics_pattern is not None and not found:
            raise topic_not_found(self._options, is_stream=True)
        for topic in set(self._options.topic_names) - found:
            if not self._client.fetch_topology(topic).is_known:
                raise topic_not_found(self._options, topic, is_stream=True)
            logger.warning("nsq topic %s: none of its nsqd is registered now; the query waits", topic)

    def _sources(self) -> Sequence[Source]:
        sources = self._sources_found()
        self._keep_channel(sources)
        return sources

    def _sources_now(self) -> Sequence[Source]:
        sources = self._await_topics()
        if not self._options.create_channel:
            check_all_found(self._options, sources)
        return sources

    def _waiting(self, sources: Sequence[Source]) -> dict[Source, int | None]:
        return fetch_waiting(self._client, self._options, sources, self._doubts)

    def _unknown_reason(self, source: Source) -> str:
        return self._client.missing_stats_reason(source.nsqd) or "nsqd was restarted"

    def _count_held(self, source: Source) -> int:
        stats = self._client.fetch_stats(source.nsqd, source.topic, self._options.channel or "")
        return stats.in_flight + stats.deferred if stats else 0

    def _check(self, source: Source) -> None:
        self._client.open_session(source.nsqd).close()

    def _tasks(self, waiting: Mapping[Source, int | None], budget: int | None, *, turn: int) -> Sequence[NsqRange]:
        return trigger_tasks(self._options, waiting, budget, turn=turn)

    def _merged(self, recent: str, last: str) -> str:
        return (recent + last)[-RECENT_IDS * MESSAGE_ID_BYTES :]

    def _compact(self, ids: Sequence[str]) -> Sequence[str]:
        # nsqd handles the FINs of a connection in order, and keeps no more than RDY messages in flight there, so those
        # that it redelivers after a lost connection are among the last ones (nsqd 1.3.0, IsReadyForMessages).
        return ids[-RECENT_IDS:]

    def _keep_channel(self, sources: Sequence[Source]) -> None:
        """Prevent nsqd from deleting an ephemeral channel, with its waiting messages, between two triggers."""
        channel = self._options.channel or ""
        if not channel.endswith(EPHEMERAL):
            return
        for source in sources:
            held = self._held.get(source.name)
            if held is None or held.closed:
                try:
                    session = self._client.open_session(source.nsqd)
                    self._held[source.name] = session
                    session.subscribe(source.topic, channel)
                except TransportError as error:
                    logger.warning("%s: the channel %s is not kept there: %s", source.name, channel, error)

    def _sources_found(self) -> Sequence[Source]:
        sources = find_sources(self._client, self._options, self._known)
        self._known = {topic: [] for topic in self._known}
        for source in sources:
            self._known.setdefault(source.topic, []).append(source)
        return sources
