"""Triggers wait for enough rows, but no longer than the maximum delay."""

from __future__ import annotations

from spark_mq_source.net import pace as pace_module
from spark_mq_source.net.pace import TriggerPace
from tests.unit.standins import Clock

TIMED = pace_module


def test_without_a_minimum_nothing_waits():
    pace = TriggerPace(None, 60_000)
    assert not pace.counts
    assert not any(pace.delays(1) for _ in range(3))


def test_the_first_trigger_does_not_wait():
    assert not TriggerPace(100, 60_000).delays(1)


def test_a_trigger_without_rows_does_not_count():
    pace = TriggerPace(100, 60_000)
    assert not pace.delays(0)
    assert not pace.delays(1)
    assert pace.delays(1)


def test_a_trigger_waits_for_enough_rows(clock: Clock):
    pace = TriggerPace(100, 60_000)
    pace.delays(1)
    assert [pace.delays(rows) for rows in (1, 99, 100, 99, 100)] == [True, True, False, True, False]


def test_a_trigger_waits_no_longer_than_the_delay_after_the_last_one(clock: Clock):
    pace = TriggerPace(100, 60_000)
    pace.delays(1)
    clock.now += 59.9
    assert pace.delays(1)
    clock.now += 0.1
    assert not pace.delays(1)
    clock.now += 59.9
    assert pace.delays(1)
