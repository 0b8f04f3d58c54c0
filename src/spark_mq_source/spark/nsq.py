"""`spark.read.format("nsq")`."""

from __future__ import annotations

from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.spark.base import MQDataSource


class NsqDataSource(MQDataSource):
    """Topics of NSQ as DataFrames, over NSQ's own TCP protocol.

    Name: `nsq`

    Options: see the table in README.md; `topic`, `channel`, and `nsqlookupdHttpAddresses` or `nsqdTcpAddresses` are
    required to read.

    Columns: `value`, `topic`, `channel`, `message_id`, `timestamp`, `attempts`, `nsqd`; `.schema()` chooses among them.

    NSQ has no positions. A batch read takes what is there out of the channel, and needs an end: `maxRows`,
    `maxSeconds` or `idleTimeout`. With `walDir` and `runId` the rows are written down, and the same read gives the same
    rows again. A stream always writes them down, in `walDir`.

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

    Writing: `value` (binary or string) is required; `topic` wins over the option; a row with `defer` (milliseconds) is
    delivered that much later.

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

    format = NsqFormat()
