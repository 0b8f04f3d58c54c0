"""The columns of a Pulsar message in a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_mq_source.core.columns import CORRUPT_COLUMNS, Column, ColumnTable

ENCRYPTION_CONTEXT: Final = "encryption_context"
"""The column with the keys and parameters for decryption; `encryption` fills it, not the loops."""

_ENCRYPTION_CONTEXT: Final = (
    "struct<keys:array<struct<key:string,value:binary,metadata:map<string,string>>>,param:binary,algorithm:string,"
    "compression:string,uncompressed_size:bigint,batch_size:int,uuid:string,chunk_id:int,num_chunks:int>"
)

COLUMNS: Final = ColumnTable(
    Column("key", ("binary", "string"), ("binary", "string"), note="NULL if the message has none",
           write_note="stored as by the Java client's `keyBytes` or `key`; chooses the partition; see `keyFormat`"),
    Column("value", ("binary", "string"), ("binary", "string"), required=True,
           note="NULL for a tombstone; an empty payload is an empty value; see `valueFormat` for typed values",
           write_note="required; NULL is a tombstone; see `valueFormat` for structs and other types"),
    Column("topic", ("string",), ("string",), note="full name, without the partition",
           write_note="has precedence over the option `topic`"),
    Column("partition", ("int",), ("int",), note="-1 if the topic is not partitioned",
           write_note="has precedence over the key"),
    Column("message_id", ("struct<ledger_id:bigint,entry_id:bigint,batch_index:int>",),
           note="`batch_index` is -1 outside of a batch"),
    Column("publish_time", ("timestamp",)),
    Column("event_time", ("timestamp",), ("timestamp", "timestamp_ntz"), note="NULL if the producer set none",
           write_note="to the millisecond; NULL for none"),
    Column("properties", ("map<string,string>",), ("map<string,string>",)),
    Column("producer_name", ("string",), by_default=False),
    Column("sequence_id", ("bigint",), by_default=False),
    Column("ordering_key", ("binary",), ("binary",), by_default=False, note="NULL if the message has none"),
    Column("schema_version", ("binary",), by_default=False, note="NULL if the message has none"),
    Column("schema_id", ("binary",), by_default=False,
           note="the id in an external registry (PIP-420): the byte FF and the id; for a key and a value: the byte "
           "FE, the size of the key's id (4 bytes) and both ids; NULL if the message has none"),
    Column("replicated_from", ("string",), by_default=False, note="the source cluster; NULL if not replicated"),
    Column("broker_publish_time", ("timestamp",), by_default=False,
           note="NULL if the broker does not expose its entry metadata"),
    Column("broker_index", ("bigint",), by_default=False,
           note="NULL if the broker does not expose its entry metadata"),
    Column("redelivery_count", ("int",), by_default=False,
           note="how often the broker had delivered it before, as far as it remembers; mostly 0 except from queues"),
    Column(ENCRYPTION_CONTEXT, (_ENCRYPTION_CONTEXT,), by_default=False,
           note="with `cryptoFailureAction=CONSUME`: encrypted data keys, IV and how to decompress, unbatch and join "
           "chunks; NULL if not encrypted, or decrypted"),
    *CORRUPT_COLUMNS,
    Column("deliver_at", written_from=("timestamp", "timestamp_ntz"),
           write_note="delayed delivery, for consumers of Shared and Key_Shared subscriptions"),
    position=("message_id",),
    properties="properties",
)  # fmt: skip


def java_message_id(cells: Mapping[str, Any]) -> str:
    """Return the position of a row, as Java's client writes a message id.

    Example:
        >>> java_message_id({"message_id": {"ledger_id": 7, "entry_id": 3, "batch_index": 0}, "partition": -1})
        '7:3:-1:0'
    """
    ledger, entry, batch = cells["message_id"].values()
    return f"{ledger}:{entry}:{cells['partition']}" + (f":{batch}" if batch >= 0 else "")
