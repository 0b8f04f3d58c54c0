"""The ids of the last finished messages: a killed nsqd delivers some of them again, as if for the first time.

nsqd keeps messages beyond its memory in files, one queue per topic and one per channel. It saves the read position of a
queue after 2,500 messages (`--sync-every`) and every 2 s (`--sync-timeout`). A killed nsqd restarts at the last saved
position: messages that were finished since are delivered again, with the same id and attempts of 1. So are those that
the topic's queue had passed to the channel, after the channel's own messages (seen on nsqd 1.3.0).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from itertools import islice
from operator import lt
from typing import Final

from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES

RECENT_IDS: Final = 25_000
"""Number of ids that are remembered for each nsqd.

With nsqd's defaults at most 2,500 messages are repeated from the topic's queue and as many from the channel's, with as
many new ones from its memory in between: 10,000. The rest is for a larger `--sync-every`. An id takes 16 bytes of
a plan.
"""


def split_ids(ids: bytes) -> tuple[bytes, ...]:
    """Split concatenated message ids of 16 bytes each."""
    found: tuple[bytes, ...] = struct.unpack(f"{MESSAGE_ID_BYTES}s" * (len(ids) // MESSAGE_ID_BYTES), ids)
    return found


class RecentIds:
    """Memory of messages, which distinguishes those that were read before from new ones.

    nsqd numbers messages in the order of publishing, so that a message almost always has a larger id than all before
    it, and cannot be one of them: this takes less than 0.1 us a message, with `remember`. Otherwise sets are needed,
    which take about five times as long.

    Args:
        recent: the ids of the last finished messages, oldest first, 16 bytes each.
        others: more ids that may be delivered again; these are never forgotten.

    Example:
        >>> recent = RecentIds(b"000000000000000a", [])
        >>> recent.remember(b"000000000000000b")
        >>> recent.repeated(b"000000000000000c" + b"000000000000000b" + b"000000000000000c")
        {1, 2}
    """

    def __init__(self, recent: bytes, others: Iterable[bytes]) -> None:
        self._before = recent
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self._others = frozenset(others)
        self._largest = max(max(self._others, default=b""), max(split_ids(recent), default=b""))
        # The last finished ids, in two halves: when the newer one is full, the older one is dropped.
        self._older: set[bytes] = set()
        self._newer: set[bytes] | None = None

    @property
    def last(self) -> bytes:
        """The last ids that were finished here, oldest first, 16 bytes each; without `recent`."""
        return b"".join(self._last)[-RECENT_IDS * MESSAGE_ID_BYTES :]

    def repeated(self, ids: bytes) -> set[int]:
        """Return the indices of the messages that were read before, or that are duplicates within `ids`."""
        found = split_ids(ids)
        if self._newer is None:
            if found[0] > self._largest and all(map(lt, found, islice(found, 1, None))):
                return set()
            self._newer = {*split_ids(self._before), *split_ids(self.last)}
        known: set[bytes] = set()
        rows: set[int] = set()
        for row, id_ in enumerate(found):
            if id_ in known or id_ in self._newer or id_ in self._older or id_ in self._others:
                rows.add(row)
            known.add(id_)
        return rows

    def know(self, others: Iterable[bytes]) -> None:
        """Add ids from the log of another attempt, which are never forgotten."""
        more = frozenset(others)
        self._others |= more
        self._largest = max(self._largest, max(more, default=b""))

    def remember(self, ids: bytes) -> None:
        """Remember ids that were read: from now on they are duplicates."""
        self._last.append(ids)
        self._last_bytes += len(ids)
        while self._last_bytes - len(self._last[0]) >= RECENT_IDS * MESSAGE_ID_BYTES:
            self._last_bytes -= len(self._last.popleft())
        if self._newer is None:
            self._largest = max(self._largest, *split_ids(ids))
        else:
            self._newer.update(split_ids(ids))
            if len(self._newer) >= RECENT_IDS:
                self._older, self._newer = self._newer, set()
