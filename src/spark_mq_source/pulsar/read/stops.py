"""The stops of a streaming query: the positions of `endingOffsets` and `endingTimestamp`, which it never passes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from spark_mq_source.core.errors import OptionError
from spark_mq_source.net.stops import check_stop
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.subscriptions import DELIVERY_MS
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions

LATE_MS: Final = 60_000
"""Time after `endingTimestamp` in which messages from before it may arrive: of slow producers, of transactions."""


def stored_ends(client: PulsarClient, ends: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
    """Return the ends, moved back to the last entry of a closed ledger that has fewer entries.

    Otherwise a range that is split could have a piece behind its ledger, whose start would look like lost data.

    Raises:
        MQSourceError: the cluster cannot be reached in time, or refuses.
    """
    stored = client.fetch_stored(ends)
    return {tp: stored[tp] if stored[tp] < Position(at.ledger, at.entry, 0) else at for tp, at in ends.items()}


class Stops:
    """The stops of a query, determined once for each topic-partition.

    The stop of a position is known once later messages exist, that of a time when a later message exists,
    or a minute after the time by this machine's clock; until then every existing message is before the time.

    Args:
        client: looks up times; its owner closes it.
        options: the query's options.
    """

    def __init__(self, client: PulsarClient, options: PulsarOptions) -> None:
        self._client = client
        self._options = options
        self._found: dict[TopicPartition, Position] = {}
        # The last message at which there was none after the time.
        self._looked: dict[TopicPartition, Position] = {}

    @property
    def are_set(self) -> bool:
        """True if the query has stops."""
        return self._options.ending_offsets is not None or self._options.ending_timestamp is not None

    def apply(
        self, begins: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        """Return `ends`, moved back to the stops, but not to before `begins`.

        Args:
            begins: start of the trigger; EARLIEST where it is missing.
            ends: the last messages, asked for before this call.

        Raises:
            OptionError: a topic-partition has no stop, or one before its begin.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        if not self.are_set:
            return dict(ends)
        times: dict[TopicPartition, int] = {}
        positions: dict[TopicPartition, Position] = {}
        for tp, end in ends.items():
            wanted = self._options.ending_at(str(tp))
            if wanted is None:
                raise OptionError(f"endingOffsets or endingTimestamp must name every partition; missing: {tp}")
            if isinstance(wanted, int) and tp not in self._found:
                if self._looked.get(tp) != end or self._is_past(wanted):
                    times[tp] = wanted
            elif isinstance(wanted, Position) and tp not in self._found:
                check_stop(f"pulsar-native: {tp}", begins.get(tp, EARLIEST), wanted)
                positions[tp] = wanted
        # Until there are later messages, the ledger of the position may go on.
        passed = {tp: at for tp, at in positions.items() if at < ends[tp]}
        self._found |= {tp: at for tp, at in positions.items() if at == ends[tp]} | stored_ends(self._client, passed)
        past = {tp for tp, at_ms in times.items() if self._is_past(at_ms)}
        found = self._client.fetch_positions_at(times)
        self._looked |= {tp: ends[tp] for tp in found}
        self._found |= {tp: at for tp, at in found.items() if at < ends[tp] or (at == ends[tp] and tp in past)}
        self._found |= self._without_messages(
            {tp: ends[tp] for tp, at in found.items() if at > ends[tp] and tp in past}
        )
        stops = positions | self._found
        return {tp: max(begins.get(tp, EARLIEST), min(end, stops.get(tp, end))) for tp, end in ends.items()}

    def are_reached(self, positions: Mapping[TopicPartition, Position]) -> bool:
        """Return whether a query that has read to these positions has nothing more to read."""
        if not positions:
            until = self._options.ending_timestamp
            return until is not None and until.everywhere is not None and self._is_past(until.everywhere)
        return self.are_set and all(tp in self._found and at >= self._found[tp] for tp, at in positions.items())

    def _without_messages(self, ends: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        """Return those of `ends` after which no message is delivered.

        A time is after the last message of an empty or trimmed topic-partition, and of one that ends with a marker or
        an open transaction (seen on 4.0.8).
        """
        starts = {tp: end if end == EARLIEST else end.next_entry for tp, end in ends.items()}
        delivered = self._client.fetch_first_entries(starts, DELIVERY_MS) if starts else {}
        return {tp: end for tp, end in ends.items() if tp not in delivered}

    def check_begins(
        self, begins: Mapping[TopicPartition, Position], firsts: Mapping[TopicPartition, Position]
    ) -> None:
        """Refuse stops before the start of a new query.

        Args:
            begins: the start.
            firsts: the positions before the first messages: a time before all of them is no error.

        Raises:
            OptionError: there are such stops, or a topic-partition has none.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        self.apply(begins, begins)
        for tp in begins:
            is_timed = self.are_set and isinstance(self._options.ending_at(str(tp)), int)
            if is_timed and begins[tp] > firsts[tp]:
                check_stop(f"pulsar-native: {tp}", begins[tp], self._found.get(tp, begins[tp]))

    @staticmethod
    def _is_past(at_ms: int) -> bool:
        return time.time() * 1000 > at_ms + LATE_MS
