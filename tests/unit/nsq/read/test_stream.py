"""The part of a plan's memory that is specific to NSQ."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_mq_source.nsq.read import stream


def test_a_plan_keeps_the_last_messages_of_a_lost_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RECENT_IDS", 2)
    assert stream.NsqStream._compact(SimpleNamespace(), ["d", "c", "a"]) == ["c", "a"]
