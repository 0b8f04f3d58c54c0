"""`spark.read.format("tubemq")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.spark.base import MQDataSource

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat


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

    @classmethod
    def load_format(cls) -> AnyFormat:
        """Import the format."""
        from spark_mq_source.tubemq.format import TubeMQFormat  # noqa: PLC0415 - see `MQDataSource`

        return TubeMQFormat()
