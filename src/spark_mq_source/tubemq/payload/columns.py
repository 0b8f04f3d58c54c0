"""The columns of a TubeMQ message in a DataFrame."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.columns import Column, ColumnTable

COLUMNS: Final = ColumnTable(
    Column("value", ("binary", "string"), ("binary", "string"), required=True),
    Column("topic", ("string",), ("string",)),
    Column("broker_id", ("int",)),
    Column("partition", ("int",)),
    Column("message_id", ("bigint",)),
    Column("message_time", ("timestamp",), ("timestamp", "timestamp_ntz")),
    Column("message_type", ("string",), ("string",)),
    Column("attributes", ("map<string,string>",), ("map<string,string>",)),
    Column("fetch_offset", ("bigint",), by_default=False),
)
