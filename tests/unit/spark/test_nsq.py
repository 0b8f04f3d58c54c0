"""What a task of nsq refuses before it reads."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark import TaskContext

from spark_mq_source.core.errors import DataLossError
from spark_mq_source.core.options import READ
from spark_mq_source.nsq.client.client import Nsqd
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.spark.nsq import check_attempt

NSQD = Nsqd("h:4150", "h", 4150, None)


def options(**more: str) -> NsqOptions:
    return NsqOptions.from_spark({"nsqdtcpaddresses": "h", "topic": "t", "channel": "c", "maxrows": "5"} | more, READ)


def in_attempt(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: number))


def test_a_drain_is_not_done_over(monkeypatch: pytest.MonkeyPatch):
    in_attempt(monkeypatch, 0)
    check_attempt(options(), NsqRange(NSQD))
    in_attempt(monkeypatch, 1)
    text = "nsq topic t, channel c, nsqd h:4150: attempt 2 at a read without walDir: .* set walDir and runId"
    with pytest.raises(DataLossError, match=text):
        check_attempt(options(), NsqRange(NSQD))


def test_what_loses_nothing_is_done_over(monkeypatch: pytest.MonkeyPatch):
    in_attempt(monkeypatch, 1)
    check_attempt(options(ackmode="requeue"), NsqRange(NSQD))
    check_attempt(options(waldir="/w", runid="r"), NsqRange(NSQD, folder="run-r"))


def test_outside_of_spark_there_are_no_attempts():
    check_attempt(options(), NsqRange(NSQD))
