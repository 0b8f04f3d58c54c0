"""The columns of an NSQ message in a DataFrame; `defer` is in milliseconds."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.columns import CORRUPT_COLUMNS, Column, ColumnTable

COLUMNS: Final = ColumnTable(
    Column("value", ("binary", "string"), ("binary", "string"), required=True,
           write_note="required; NSQ has neither NULL nor empty messages, so such a row is an error"),
    Column("topic", ("string",), ("string",), write_note="has precedence over the option `topic`"),
    Column("channel", ("string",)),
    Column("message_id", ("string", "binary")),
    Column("timestamp", ("timestamp",), note="when nsqd took the message"),
    Column("timestamp_ns", ("bigint",), by_default=False, note="the same in nanoseconds since 1970, as nsqd sent it"),
    Column("attempts", ("int",), note="how often nsqd has delivered the message, this time included"),
    Column("nsqd", ("string",), note="the address of the nsqd that delivered it"),
    Column("defer", written_from=("bigint", "int"),
           write_note="milliseconds until the message is delivered; NULL or 0 for at once"),
    *CORRUPT_COLUMNS,
    position=("nsqd", "message_id"),
)  # fmt: skip
