"""The columns of a TubeMQ message in a DataFrame."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.columns import CORRUPT_COLUMNS, Column, ColumnTable

COLUMNS: Final = ColumnTable(
    Column("value", ("binary", "string"), ("binary", "string"), required=True, note="the body without attributes",
           write_note="required; not empty, unless the row has a type, a time or attributes"),
    Column("topic", ("string",), ("string",), write_note="has precedence over the option `topic`"),
    Column("broker_id", ("int",), ("int",),
           write_note="needed with `partition` if several brokers have that partition"),
    Column("partition", ("int",), ("int",),
           write_note="has precedence over `key`; NULL: that of the key, or the next in turn. Rows of one partition "
           "keep their order within a task"),
    Column("key", written_from=("binary", "string"),
           write_note="chooses the partition, by CRC-32 over all partitions of the topic, and is not stored. Rows with "
           "the same key keep their order within a task"),
    Column("message_id", ("bigint",), note="the broker's number; not unique across brokers, nor over time"),
    Column("message_time", ("timestamp",), ("timestamp", "timestamp_ntz"),
           note="the producer's minute in `messageTimeZone`; NULL if the message has none"),
    Column("message_type", ("string",), ("string",), note="what `filters` names; NULL if the message has none"),
    Column("attributes", ("map<string,string>",), ("map<string,string>",), note="the producer's own"),
    Column("fetch_offset", ("bigint",), by_default=False,
           note="offset at which the fetch of the message began; differs between reads"),
    *CORRUPT_COLUMNS,
    position=("broker_id", "partition", "message_id"),
    properties="attributes",
)  # fmt: skip
