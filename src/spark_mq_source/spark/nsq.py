"""`spark.read.format("nsq")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.spark.base import MQDataSource

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat


class NsqDataSource(MQDataSource):
    """Topics of NSQ as DataFrames, over NSQ's own TCP protocol.

    Name: `nsq`

    Options: see docs/reference/nsq.md; `topic`, `topics` or `topicsPattern`, `channel`, and `nsqlookupdHttpAddresses`
    or `nsqdTcpAddresses` are required to read.

    Columns: `value`, `topic`, `channel`, `message_id`, `timestamp`, `attempts`, `nsqd`; `.schema()` chooses among them,
    and can add `timestamp_ns`.

    NSQ has no positions. A batch read drains the channel and needs an end: `maxRows`, `maxSeconds` or `idleTimeout`.
    With `walDir` and `runId` the rows are stored in a write-ahead log, and repeating the read returns the same rows. A
    stream always uses `walDir`.

    Example:
        ::

            query = (
                spark.readStream.format("nsq")
                .option("nsqlookupdHttpAddresses", "localhost:4161")
                .option("topic", "flights")
                .option("channel", "spark")
                .option("walDir", "/data/flights.wal")
                .load()
            )

    Writing: `value` (binary or string) is required; a row's `topic` takes precedence over the option; `defer` delays
    the delivery of a row, in milliseconds.

    Example:
        ::

            (
                df.selectExpr("to_json(struct(*)) as value")
                .write.format("nsq")
                .option("nsqdTcpAddresses", "localhost:4150")
                .option("topic", "flights")
                .mode("append")
                .save()
            )
    """

    format_name = "nsq"

    @classmethod
    def load_format(cls) -> AnyFormat:
        """Import the format."""
        from spark_mq_source.nsq.format import NsqFormat  # noqa: PLC0415 - see `MQDataSource`

        return NsqFormat()
