"""The data sources of `spark.read.format(name)` and `df.write.format(name)`."""

from __future__ import annotations

from spark_mq_source.spark.base import MQDataSource


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


class PulsarNativeDataSource(MQDataSource):
    """Apache Pulsar topics as DataFrames, over Pulsar's own binary protocol.

    Name: `pulsar-native`

    Options: see docs/reference/pulsar.md; `serviceUrl` and one of `topic`, `topics`, `topicsPattern` are required.

    Columns: `key`, `value`, `topic`, `partition`, `message_id`, `publish_time`, `event_time`, `properties`; more when
    named in `.schema()`, which is the projection: only these columns are built.

    Example:
        ::

            df = (
                spark.read.format("pulsar-native")
                .option("serviceUrl", "pulsar://localhost:6650")
                .option("topic", "flights")
                .schema("value string, publish_time timestamp")
                .load()
            )

    Writing: `value` (binary, string, or with `valueFormat=json` a struct) is required; `key`, `topic`, `event_time`,
    `properties`, `ordering_key`, `partition` and `deliver_at` are optional. A row's `topic` takes precedence
    over the option `topic`.

    Example:
        ::

            (
                df.selectExpr("carrier as key", "to_json(struct(*)) as value")
                .write.format("pulsar-native")
                .option("serviceUrl", "pulsar://localhost:6650")
                .option("topic", "flights")
                .mode("append")
                .save()
            )
    """

    format_name = "pulsar-native"


class TubeMQDataSource(MQDataSource):
    """Apache InLong TubeMQ topics as DataFrames, over TubeMQ's own binary protocol.

    Name: `tubemq`

    Options: see docs/reference/tubemq.md; `masters` and one of `topic`, `topics`, `topicsPattern` are required.

    Columns: `value`, `topic`, `broker_id`, `partition`, `message_id`, `message_time`, `message_type`, `attributes`;
    `fetch_offset` too when named in `.schema()`, which is the projection: only these columns are built.

    Example:
        ::

            df = (
                spark.read.format("tubemq")
                .option("masters", "localhost:8715")
                .option("topic", "flights")
                .schema("value string, message_type string")
                .load()
            )

    Writing: `value` (binary or string) is required; `topic`, `key`, `broker_id`, `partition`, `message_type`,
    `message_time` and `attributes` are optional. A row's `topic` takes precedence over the option `topic`.

    Example:
        ::

            (
                df.selectExpr("carrier as message_type", "to_json(struct(*)) as value")
                .write.format("tubemq")
                .option("masters", "localhost:8715")
                .option("topic", "flights")
                .mode("append")
                .save()
            )
    """

    format_name = "tubemq"
