"""Flow rules: how much of a partition, and how often, a group's consumers may fetch.

A master sends two sets of rules to the members of a group: the group's own, and those of the cluster, which apply where
the group has none. Brokers enforce only the cluster's; a group's rules are obeyed by its consumers. A set is a JSON
array of records, each with a type and its rules (the Java client's `FlowCtrlRuleHandler` and `PartitionExt`, 2.4.0)::

    {"type": 0, "rule": [{"start": "08:00", "end": "24:00", "dltInM": 21, "limitInM": 240, "freqInMs": 500}]}
    {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 1000}]}
    {"type": 3, "rule": [{"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}]}

0: at these times of the day (GMT+8), of a partition with a lag above `dltInM`, a consumer may fetch `limitInM` MiB in a
minute, and a twelfth of it in five seconds; after that it waits for `freqInMs` before each fetch. 1: the wait after
`zeroCnt` fetches in a row that found nothing. 3: the wait after each fetch with messages: without filters, with
filters, and with filters near the end of the data (`require_slow`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.commands import SUCCESS, GetMessageResponse
from spark_mq_source.tubemq.protocol.error_codes import NOT_FOUND

logger = logging.getLogger(__name__)

UNKNOWN: Final = -2
"""The id of rules that are not known, and that a master answers where there are none."""

WINDOW_SECONDS, SAMPLE_SECONDS = 60.0, 5.0
"""Time for which a limit is chosen, by the time of day and the lag; and its part in which a twelfth may be fetched."""

_UNLIMITED: Final = 1 << 62
_ZONE_SECONDS: Final = 8 * 3600


@dataclass(frozen=True, slots=True)
class FlowRules:
    """The rules of a group and of its cluster, as texts, for tasks.

    Attributes:
        group: the group's; empty for none.
        cluster: the cluster's; empty for none.
        priority: the group's qryPriorityId, which limits reads from the broker's memory; `UNKNOWN` for any.
    """

    group: str = ""
    cluster: str = ""
    priority: int = UNKNOWN

    def allows_memory(self, *, filtered: bool) -> bool:
        """Return whether messages may be read that are only in the broker's memory (broker 2.4.0).

        Example:
            >>> [FlowRules(priority=at).allows_memory(filtered=False) for at in (UNKNOWN, 200, 301)]
            [True, False, True]
        """
        return self.priority <= 0 or (self.priority % 100 if filtered else self.priority // 100) > 2


class KnownRules:
    """The newest rules that a master has sent, with their ids: a master sends a set only to those that lack it.

    Attributes:
        group_id: id of the group's.
        cluster_id: id of the cluster's.
    """

    def __init__(self) -> None:
        self.rules = FlowRules()
        self.group_id = self.cluster_id = UNKNOWN

    @property
    def ids(self) -> Mapping[str, Any]:
        """The fields of a request with the ids of the known rules."""
        return {
            "group_flow_check_id": self.group_id,
            "def_flow_check_id": self.cluster_id,
            "qry_priority_id": self.rules.priority,
        }

    def take(self, answer: object) -> None:
        """Take the rules of a master's answer to a member of a group, if it is one."""
        found: commands.OpsTaskInfo | commands.RegisterConsumerResponse | commands.ConsumerHeartbeatResponse
        if isinstance(answer, commands.RegisterConsumerV2Response | commands.ConsumerHeartbeatV2Response):
            # Such an answer leaves out what there is not.
            found = answer.ops_task_info or commands.OpsTaskInfo()
        elif isinstance(answer, commands.RegisterConsumerResponse | commands.ConsumerHeartbeatResponse):
            found = answer
        else:
            return
        if answer.err_code != SUCCESS:
            return
        known = self.rules
        group_id = UNKNOWN if found.group_flow_check_id is None else found.group_flow_check_id
        cluster_id = UNKNOWN if found.def_flow_check_id is None else found.def_flow_check_id
        group = known.group if group_id == self.group_id else found.group_flow_control_info or ""
        cluster = known.cluster if cluster_id == self.cluster_id else found.def_flow_control_info or ""
        priority = UNKNOWN if group_id < 0 or found.qry_priority_id is None else found.qry_priority_id
        if (group_id, cluster_id) != (self.group_id, self.cluster_id):
            logger.info("tubemq: flow rules of the group: %s; of the cluster: %s", group or "none", cluster or "none")
        self.group_id, self.cluster_id = group_id, cluster_id
        self.rules = FlowRules(group.strip(), cluster.strip(), priority)


class _Limit(NamedTuple):
    """A rule of type 0: times as hour * 100 + minute, the lag as the Java client compares it."""

    start: int
    end: int
    above: int
    nbytes: int
    pause_ms: int


_NO_LIMIT: Final = _Limit(0, 2400, -1, _UNLIMITED, 0)
_FIRST_LIMIT: Final = _Limit(0, 2400, -1, (1 << 31) - 1, 20)


class _RuleSet(NamedTuple):
    """One set of rules, parsed.

    Attributes:
        limits: by their start.
        empty: (`zeroCnt`, ms), the largest count first.
        pauses: `normFreqInMs`, `filterFreqInMs` and `minDataFilterFreqInMs`; None without a rule.
    """

    limits: tuple[_Limit, ...] = ()
    empty: tuple[tuple[int, int], ...] = ()
    pauses: tuple[int, int, int] | None = None

    def limit(self, lag: int, at: float) -> _Limit | None:
        """Return the limit for a lag at a time, in seconds since 1970."""
        minutes = (int(at) + _ZONE_SECONDS) // 60
        clock = minutes // 60 % 24 * 100 + minutes % 60
        return next((one for one in self.limits if lag > one.above and one.start <= clock <= one.end), None)


@lru_cache(maxsize=16)
def _parse(text: str) -> _RuleSet:
    """Parse a set of rules; one that cannot be parsed is none, as in the Java client.

    Example:
        >>> rule = {"start": "08:00", "end": "24:00", "dltInM": 21, "limitInM": 240, "freqInMs": 500}
        >>> _parse(json.dumps([{"type": 0, "rule": [rule]}])).limits
        (_Limit(start=800, end=2400, above=21, nbytes=251658240, pause_ms=500),)
    """
    if not text:
        return _RuleSet()
    limits: list[_Limit] = []
    empty: list[tuple[int, int]] = []
    pauses = None
    try:
        for record in json.loads(text):
            for rule in record["rule"]:
                if record["type"] == 0:
                    # The lag is in bytes, and is compared with the number of MiB itself (2.4.0, client and broker).
                    times = _clock(rule["start"]), _clock(rule["end"])
                    limits.append(_Limit(*times, rule["dltInM"], rule["limitInM"] << 20, rule["freqInMs"]))
                elif record["type"] == 1:
                    empty.append((rule["zeroCnt"], rule["freqInMs"]))
                elif record["type"] == 3:
                    names = ("normFreqInMs", "filterFreqInMs", "minDataFilterFreqInMs")
                    pauses = tuple(int(rule.get(name, 0)) for name in names)
    except (KeyError, TypeError, ValueError):
        logger.warning("tubemq: flow rules that cannot be parsed are ignored: %s", text[:500])
        return _RuleSet()
    return _RuleSet(tuple(sorted(limits)), tuple(sorted(empty, reverse=True)), pauses)  # type: ignore[arg-type]


def _clock(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 100 + int(minutes)


class FlowPace:
    """The waits between the fetches of one partition by one task.

    A task does not know what earlier tasks have fetched of the partition just now, so it begins as if that was all that
    may be fetched within five seconds.

    Args:
        filtered: whether the broker filters.
        readers: number of tasks that read this partition at the same time, and share its limits.
    """

    def __init__(self, rules: FlowRules, *, filtered: bool, readers: int = 1) -> None:
        self._group, self._cluster = _parse(rules.group), _parse(rules.cluster)
        self._filtered = filtered
        self._readers = readers
        self._pauses = self._group.pauses or self._cluster.pauses or (0, 0, 0)
        self._limit = _NO_LIMIT
        self._window_ends = self._sample_ends = -1.0
        self._lag = -1
        self._in_window = self._in_sample = 0
        self._is_first = True
        self._empty = 0
        self.has_rules = self._group != _RuleSet() or self._cluster != _RuleSet()

    @property
    def escapes_cluster(self) -> bool:
        """True if the group's rules have a limit now: the broker must not enforce the cluster's limit in its place."""
        return self._group.limit(_UNLIMITED, time.time()) is not None

    def wait_ms(self, got: GetMessageResponse, default_ms: int = 0) -> int:
        """Return the time to wait before the next fetch.

        Args:
            got: the last answer.
            default_ms: the wait after an answer that found nothing.
        """
        size = len(got.body)
        if got.curr_data_dlt >= 0:
            self._lag = got.curr_data_dlt
        self._in_window += size
        self._in_sample += size
        self._choose_limit(time.monotonic())
        if got.err_code not in {SUCCESS, NOT_FOUND}:
            return default_ms
        self._empty = self._empty + 1 if got.err_code == NOT_FOUND and not size else 0
        if self._empty:
            counted = self._group.empty or self._cluster.empty
            return next((ms for count, ms in counted if self._empty >= count), default_ms)
        if got.esc_flow_ctrl:
            return 0
        limit = self._limit
        if self._in_window * self._readers >= limit.nbytes or self._in_sample * self._readers >= limit.nbytes // 12:
            return limit.pause_ms
        normal, filtered, filtered_slow = self._pauses
        return (filtered_slow if got.require_slow else filtered) if self._filtered else normal

    def _choose_limit(self, now: float) -> None:
        if now > self._window_ends:
            at = time.time()
            self._in_window = self._in_sample = 0
            self._limit = _FIRST_LIMIT
            if self._lag >= 0:
                self._limit = self._group.limit(self._lag, at) or self._cluster.limit(self._lag, at) or _NO_LIMIT
                self._window_ends = now + WINDOW_SECONDS
            self._sample_ends = now + SAMPLE_SECONDS
            if self._is_first and self._lag >= 0:
                self._is_first = False
                self._in_sample = 0 if self._limit is _NO_LIMIT else self._limit.nbytes // 12
        elif now > self._sample_ends:
            self._in_sample = 0
            self._sample_ends = now + SAMPLE_SECONDS
