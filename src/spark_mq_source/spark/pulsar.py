"""`spark.read.format("pulsar-native")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.spark.base import MQDataSource

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat


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

    @classmethod
    def load_format(cls) -> AnyFormat:
        """Import the format."""
        from spark_mq_source.pulsar.format import PulsarFormat  # noqa: PLC0415 - see `MQDataSource`

        return PulsarFormat()
