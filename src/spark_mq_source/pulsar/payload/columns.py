"""The columns of a Pulsar message in a DataFrame."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.columns import Column, ColumnTable

ENCRYPTION_CONTEXT: Final = "encryption_context"
"""The column with what decrypting a message needs; the loops leave it to `encryption`."""

_ENCRYPTION_CONTEXT: Final = (
    "struct<keys:array<struct<key:string,value:binary,metadata:map<string,string>>>,param:binary,algorithm:string,"
    "compression:string,uncompressed_size:bigint,batch_size:int,uuid:string,chunk_id:int,num_chunks:int>"
)

COLUMNS: Final = ColumnTable(
    Column("key", ("binary", "string"), ("binary", "string")),
    Column("value", ("binary", "string"), ("binary", "string", "struct"), required=True),
    Column("topic", ("string",), ("string",)),
    Column("partition", ("int",), ("int",)),
    Column("message_id", ("struct<ledger_id:bigint,entry_id:bigint,batch_index:int>",)),
    Column("publish_time", ("timestamp",)),
    Column("event_time", ("timestamp",), ("timestamp", "timestamp_ntz")),
    Column("properties", ("map<string,string>",), ("map<string,string>",)),
    Column("producer_name", ("string",), by_default=False),
    Column("sequence_id", ("bigint",), by_default=False),
    Column("ordering_key", ("binary",), ("binary",), by_default=False),
    Column("schema_version", ("binary",), by_default=False),
    Column("replicated_from", ("string",), by_default=False),
    Column("broker_publish_time", ("timestamp",), by_default=False),
    Column("broker_index", ("bigint",), by_default=False),
    Column(ENCRYPTION_CONTEXT, (_ENCRYPTION_CONTEXT,), by_default=False),
    Column("deliver_at", written_from=("timestamp", "timestamp_ntz")),
)
