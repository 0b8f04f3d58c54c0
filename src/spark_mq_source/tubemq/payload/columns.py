"""The columns of a TubeMQ message in a DataFrame."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.columns import Column, ColumnTable

COLUMNS: Final = ColumnTable(
    Column("value", ("binary", "string"), ("binary", "string"), required=True, note="the body without attributes",
           write_note="required, and not empty"),
    Column("topic", ("string",), ("string",), write_note="wins over the option `topic`"),
    Column("broker_id", ("int",)),
    Column("partition", ("int",)),
    Column("message_id", ("bigint",), note="what the broker calls it; not unique across brokers and time"),
    Column("message_time", ("timestamp",), ("timestamp", "timestamp_ntz"),
           note="the producer's minute in `messageTimeZone`; NULL where the message has none"),
    Column("message_type", ("string",), ("string",), note="what filters compare; NULL where the message has none"),
    Column("attributes", ("map<string,string>",), ("map<string,string>",), note="the producer's own"),
    Column("fetch_offset", ("bigint",), by_default=False,
           note="where the fetch began that brought it, which differs from read to read"),
)  # fmt: skip
