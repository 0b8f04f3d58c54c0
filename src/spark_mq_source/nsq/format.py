"""`nsq`: the interface for Spark and the command line."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from spark_mq_source.base_format import BaseFormat
from spark_mq_source.core.options import INT32_MAX, READ
from spark_mq_source.core.queue_offsets import count_lag
from spark_mq_source.nsq.inspector import NsqInspector, keep_existing
from spark_mq_source.nsq.options import AckMode, NsqOptions
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.read.planner import EPHEMERAL, plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from spark_mq_source.nsq.read.stream import NsqStream
from spark_mq_source.nsq.write.writer import NsqWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate


class NsqFormat(BaseFormat[NsqOptions, NsqRange, int]):
    """NSQ."""

    name = "nsq"
    columns = COLUMNS
    writer_type = NsqWriter
    inspector_type = NsqInspector
    options_type = NsqOptions
    count_lag = staticmethod(count_lag)

    def _parsed_to_look(self, options: Mapping[str, str]) -> NsqOptions:
        """Parse the options of a read that requeues its messages, and by default ends after 2 s without a message."""
        ends = {"maxrows", "maxseconds", "idletimeout"}
        given = dict(options) | {"ackmode": "requeue"} | ({} if ends & options.keys() else {"idletimeout": "2s"})
        return NsqOptions.from_spark(given, READ)

    def parse_list_options(self, options: Mapping[str, str]) -> NsqOptions:
        """Parse options in which topic and channel are optional."""
        return super().parse_list_options({"channel": "every", **options})

    def parse_tail_options(self, options: Mapping[str, str]) -> NsqOptions:
        """Parse the options of a read without end, on its own ephemeral channel, which finishes its messages."""
        channel = f"spark-mq-tail-{uuid.uuid4().hex[:8]}{EPHEMERAL}"
        unused = {"waldir", "runid", "maxrows", "idletimeout"}
        given = {name: text for name, text in options.items() if name not in unused}
        own = {"channel": channel, "ackmode": "fin", "maxseconds": str(INT32_MAX), "maxbatchrows": "1"}
        return NsqOptions.from_spark(given | own, READ)

    def plan_look(self, options: NsqOptions) -> Sequence[NsqRange]:
        """Plan a read of the nsqd that have the channel, or with `createChannel` of all.

        Raises:
            TopicNotFoundError: no nsqd has the topic, or the channel; or one does not report its channels.
        """
        tasks = self.plan(options, ())
        return tasks if options.create_channel else keep_existing(options, tasks)

    def plan(self, options: NsqOptions, predicates: Sequence[Predicate]) -> Sequence[NsqRange]:
        """See `plan_batch`."""
        del predicates
        return plan_batch(options)

    def read_raw(
        self, options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters, tries: int
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`.

        Raises:
            DataLossError: an earlier attempt may have acknowledged messages whose rows are lost.
        """
        if options.ack_mode is not AckMode.REQUEUE:
            topic, nsqd = task.source.topic, task.nsqd.name
            task.check_attempt(f"nsq topic {topic}, channel {options.channel}, nsqd {nsqd}", tries)
        return read_range(options, task, schema, counters, tries=tries)

    def open_stream(self, options: NsqOptions) -> NsqStream:
        """See `NsqStream`."""
        return NsqStream(options)
