"""The columns of an NSQ message in a DataFrame; `defer` is in milliseconds."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.columns import Column, ColumnTable

COLUMNS: Final = ColumnTable(
    Column("value", ("binary", "string"), ("binary", "string"), required=True),
    Column("topic", ("string",), ("string",)),
    Column("channel", ("string",)),
    Column("message_id", ("string", "binary")),
    Column("timestamp", ("timestamp",)),
    Column("attempts", ("int",)),
    Column("nsqd", ("string",)),
    Column("defer", written_from=("bigint", "int")),
)
