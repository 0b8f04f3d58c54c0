"""The driver's part of a streaming query, see `net.queue_stream`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from spark_mq_source.core.errors import TransportError
from spark_mq_source.net.pace import TriggerPace
from spark_mq_source.net.queue_stream import QueueStream
from spark_mq_source.net.retry import until_found
from spark_mq_source.net.write_ahead import open_folder
from spark_mq_source.nsq.client.client import NsqClient, Nsqd
from spark_mq_source.nsq.client.session import Session
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES
from spark_mq_source.nsq.read.planner import fetch_waiting, find_nsqds, topic_not_found, trigger_tasks
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.nsq.read.recent import RECENT_IDS

logger = logging.getLogger(__name__)

EPHEMERAL: Final = "#ephemeral"
"""The suffix of a channel that nsqd deletes with its last consumer (V2 specification, Notes)."""


class NsqStream(QueueStream[Nsqd, NsqRange]):
    """Plans the triggers of one query.

    Args:
        options: the query's options.

    Raises:
        OptionError: `walDir` cannot be written to.
        UnsupportedFeatureError: the file system of `walDir` has no exclusive creation.
    """

    def __init__(self, options: NsqOptions) -> None:
        super().__init__(
            f"nsq topic {options.topic}",
            open_folder("nsq", options.wal_dir or "", probe=True),
            NsqRange,
            topic=options.topic,
            max_rows=options.max_rows_per_trigger,
            pace=TriggerPace(options.min_rows_per_trigger, options.max_trigger_delay_ms),
        )
        self._options = options
        self._client = NsqClient(options)
        self._was_found = False
        self._held: dict[str, Session] = {}

    def close(self) -> None:
        """Close the connections."""
        while self._held:
            self._held.popitem()[1].close()

    def _await_topic(self) -> Sequence[Nsqd]:
        """Return the nsqd with the topic; with `waitForTopic` wait until there is one, and its channel.

        Raises:
            TopicNotFoundError: there is none after that time, or no channel, which is not to be created.
        """

        def look() -> Sequence[Nsqd]:
            nsqds = self._find_nsqds()
            if not nsqds and self._options.wait_for_topic_ms is not None:
                raise topic_not_found(self._options)
            return nsqds

        return until_found(look, self._options.wait_for_topic_ms)

    def _begin(self) -> None:
        if not self._await_topic() and not self._options.create_channel:
            if not self._client.fetch_topology(self._options.topic or "").is_known:
                raise topic_not_found(self._options, is_stream=True)
            logger.warning("%s: none of its nsqd is registered now; the query waits", self._where)

    def _sources(self) -> Sequence[Nsqd]:
        nsqds = self._find_nsqds()
        self._keep_channel(nsqds)
        return nsqds

    def _sources_now(self) -> Sequence[Nsqd]:
        nsqds = self._await_topic()
        if not nsqds and not self._options.create_channel:
            raise topic_not_found(self._options)
        return nsqds

    def _waiting(self, sources: Sequence[Nsqd]) -> dict[Nsqd, int | None]:
        return fetch_waiting(self._client, self._options, sources)

    def _unknown_reason(self, source: Nsqd) -> str:
        return self._client.missing_stats_reason(source)

    def _check(self, source: Nsqd) -> None:
        self._client.open_session(source).close()

    def _tasks(self, waiting: Mapping[Nsqd, int | None], budget: int | None, *, turn: int) -> Sequence[NsqRange]:
        return trigger_tasks(self._options, waiting, budget, turn=turn)

    def _merged(self, recent: str, last: str) -> str:
        return (recent + last)[-RECENT_IDS * MESSAGE_ID_BYTES :]

    def _keep_channel(self, nsqds: Sequence[Nsqd]) -> None:
        """Prevent nsqd from deleting an ephemeral channel, with its waiting messages, between two triggers."""
        topic, channel = self._options.topic or "", self._options.channel or ""
        if not channel.endswith(EPHEMERAL):
            return
        for nsqd in nsqds:
            held = self._held.get(nsqd.name)
            if held is None or held.closed:
                try:
                    session = self._client.open_session(nsqd)
                    self._held[nsqd.name] = session
                    session.subscribe(topic, channel)
                except TransportError as error:
                    logger.warning("%s: the channel %s of %s is not kept there: %s", nsqd.name, channel, topic, error)

    def _find_nsqds(self) -> Sequence[Nsqd]:
        nsqds = find_nsqds(self._client, self._options, was_found=self._was_found)
        self._was_found = self._was_found or bool(nsqds)
        return nsqds
