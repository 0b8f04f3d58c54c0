"""The flow rules of a group, compared with the Java client (`PartitionExt`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_mq_source.tubemq.client import flow
from spark_mq_source.tubemq.client.flow import UNKNOWN, FlowPace, FlowRules, KnownRules
from spark_mq_source.tubemq.protocol import commands as c

NOON = 4 * 3600.0
"""12:00 in GMT+8, in seconds since 1970."""


def ruled(kind: int, *rules: dict[str, object]) -> str:
    return json.dumps([{"type": kind, "rule": list(rules)}])


def limit(mib: int, start: str = "00:00", end: str = "24:00", above: int = 21, ms: int = 500) -> str:
    return ruled(0, {"start": start, "end": end, "dltInM": above, "limitInM": mib, "freqInMs": ms})


def answer(size: int, *, code: int = 200, lag: int = 1 << 30, slow: bool = False, esc: bool = False) -> Any:
    body = memoryview(bytes(size))
    return c.GetMessageResponse(True, code, esc_flow_ctrl=esc, curr_data_dlt=lag, require_slow=slow, body=body)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return NOON + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(flow, "time", made)
    return made


def test_a_twelfth_of_the_limit_in_five_seconds_then_each_fetch_waits(clock: Clock) -> None:
    pace = FlowPace(FlowRules(group=limit(12)), filtered=False)
    clock.now = 1.0
    assert pace.wait_ms(answer(1)) == 500  # the amount that earlier tasks have fetched is unknown
    clock.now = 6.1
    assert [pace.wait_ms(answer(1 << 19)) for _ in range(4)] == [0, 0, 500, 500]
    clock.now = 11.2
    assert pace.wait_ms(answer(9 << 20)) == 0  # the first of five seconds is not counted (Java)
    assert pace.wait_ms(answer(1 << 20)) == 500  # a minute's limit
    clock.now = 62.0
    assert pace.wait_ms(answer(1)) == 0


@pytest.mark.parametrize(
    ("rules", "lag", "expected"),
    [
        (FlowRules(group=limit(0)), 22, 500),
        (FlowRules(group=limit(0)), 21, 0),  # compared with bytes, though it is in MiB
        (FlowRules(group=limit(0, "12:01")), 1 << 30, 0),
        (FlowRules(group=limit(0, "11:00", "12:00")), 1 << 30, 500),
        (FlowRules(cluster=limit(0)), 1 << 30, 500),
        (FlowRules(group=limit(0, ms=200), cluster=limit(0)), 1 << 30, 200),
        (FlowRules(group="[{}]", cluster=limit(0)), 1 << 30, 500),
        (FlowRules(), 1 << 30, 0),
    ],
)
def test_rules_apply_by_lag_time_and_owner(clock: Clock, rules: FlowRules, lag: int, expected: int) -> None:
    assert FlowPace(rules, filtered=False).wait_ms(answer(1, lag=lag)) == expected


def test_tasks_share_the_limit_of_a_partition(clock: Clock) -> None:
    pace = FlowPace(FlowRules(group=limit(12)), filtered=False, readers=2)
    pace.wait_ms(answer(1))
    clock.now = 6.0
    assert [pace.wait_ms(answer(1 << 18)) for _ in range(3)] == [0, 0, 500]


def test_frequencies_depend_on_the_result_of_a_fetch(clock: Clock) -> None:
    seldom = ruled(1, {"zeroCnt": 2, "freqInMs": 700}, {"zeroCnt": 4, "freqInMs": 900})
    pace = FlowPace(FlowRules(group=seldom), filtered=False)
    empty = [pace.wait_ms(answer(0, code=404), 50) for _ in range(4)]
    assert empty == [50, 700, 700, 900]
    assert pace.wait_ms(answer(0), 50) == 0
    often = ruled(3, {"normFreqInMs": 10, "filterFreqInMs": 20, "minDataFilterFreqInMs": 30})
    paces = [FlowPace(FlowRules(group=often), filtered=filtered) for filtered in (False, True)]
    assert [one.wait_ms(answer(1, slow=slow)) for one in paces for slow in (False, True)] == [10, 10, 20, 30]
    assert paces[1].wait_ms(answer(1, esc=True)) == 0


def test_the_broker_does_not_limit_a_group_with_a_separate_limit(clock: Clock) -> None:
    assert FlowPace(FlowRules(group=limit(1)), filtered=False).escapes_cluster
    assert not FlowPace(FlowRules(group=limit(1, "13:00"), cluster=limit(1)), filtered=False).escapes_cluster


def test_rules_are_kept_by_id_and_dropped_when_removed() -> None:
    known = KnownRules()
    usual: dict[str, Any] = {"def_flow_check_id": -2, "def_flow_control_info": " "}
    first = {"group_flow_check_id": 3, "group_flow_control_info": limit(1), "qry_priority_id": 200}
    known.take(c.RegisterConsumerResponse(True, 200, "OK!", **usual, **first))
    same = {"group_flow_check_id": 3, "group_flow_control_info": " ", "qry_priority_id": 200}
    known.take(c.ConsumerHeartbeatResponse(True, 200, "OK!", **usual, **same))
    known.take(c.ConsumerHeartbeatResponse(False, 411, "forgotten"))
    known.take(c.CloseConsumerResponse(True, 200, "OK!"))
    assert (known.rules, known.ids["group_flow_check_id"]) == (FlowRules(limit(1), "", 200), 3)
    ops = c.OpsTaskInfo(def_flow_check_id=4, def_flow_control_info=limit(2))
    known.take(c.ConsumerHeartbeatV2Response(200, "OK!", ops_task_info=ops))
    assert known.rules == FlowRules("", limit(2), UNKNOWN)
    known.take(c.ConsumerHeartbeatV2Response(200, "OK!"))
    assert known.rules == FlowRules()
