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
    Column("key", ("binary", "string"), ("binary", "string"), note="NULL where the message has none",
           write_note="as the Java client's `keyBytes` or `key`; it chooses the partition"),
    Column("value", ("binary", "string"), ("binary", "string", "struct"), required=True,
           note="NULL for a tombstone; an empty payload is empty",
           write_note="required; NULL is a tombstone; a struct with `valueFormat=json`"),
    Column("topic", ("string",), ("string",), note="full name, without the partition",
           write_note="wins over the option `topic`"),
    Column("partition", ("int",), ("int",), note="-1 where the topic is not partitioned",
           write_note="wins over the key"),
    Column("message_id", ("struct<ledger_id:bigint,entry_id:bigint,batch_index:int>",),
           note="`batch_index` is -1 outside of a batch"),
    Column("publish_time", ("timestamp",)),
    Column("event_time", ("timestamp",), ("timestamp", "timestamp_ntz"), note="NULL where the producer set none",
           write_note="to the millisecond; NULL for none"),
    Column("properties", ("map<string,string>",), ("map<string,string>",)),
    Column("producer_name", ("string",), by_default=False),
    Column("sequence_id", ("bigint",), by_default=False),
    Column("ordering_key", ("binary",), ("binary",), by_default=False, note="NULL where the message has none"),
    Column("schema_version", ("binary",), by_default=False, note="NULL where the message has none"),
    Column("replicated_from", ("string",), by_default=False, note="the cluster, NULL where not replicated"),
    Column("broker_publish_time", ("timestamp",), by_default=False,
           note="NULL where the broker does not expose its entry metadata"),
    Column("broker_index", ("bigint",), by_default=False, note="the same"),
    Column(ENCRYPTION_CONTEXT, (_ENCRYPTION_CONTEXT,), by_default=False,
           note="with `onEncrypted=raw`: encrypted data keys, IV and how to decompress, unbatch and join chunks; NULL "
           "where not encrypted"),
    Column("deliver_at", written_from=("timestamp", "timestamp_ntz"),
           write_note="delayed delivery, for consumers of Shared and Key_Shared subscriptions"),
)  # fmt: skip
