"""Refusals of a task of nsq before it reads."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import DataLossError
from spark_mq_source.nsq.client.client import Nsqd, Source
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.nsq.read.reader import NsqRange

SOURCE = Source("t", Nsqd("h:4150", "h", 4150, None))
SCHEMA = pa.schema([("value", pa.binary())])


def begin(task: NsqRange, *, tries: int, **more: str) -> None:
    """Begin a read without taking a row."""
    given = {"nsqdtcpaddresses": "h", "topic": "t", "channel": "c", "maxrows": "5"} | more
    format_ = NsqFormat()
    format_.read(format_.parse_options(given), task, SCHEMA, tries=tries)


def test_a_second_attempt_of_a_drain_is_refused():
    begin(NsqRange(SOURCE), tries=0)
    text = "nsq topic t, channel c, nsqd h:4150: attempt 2 at a read without walDir: .* set walDir and runId"
    with pytest.raises(DataLossError, match=text):
        begin(NsqRange(SOURCE), tries=1)


def test_a_second_attempt_without_loss_is_allowed():
    begin(NsqRange(SOURCE), tries=1, ackmode="requeue")
    begin(NsqRange(SOURCE, folder="run-r"), tries=1, waldir="/w", runid="r")
