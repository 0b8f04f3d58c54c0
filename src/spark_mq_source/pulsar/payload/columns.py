"""The columns of a Pulsar message in a DataFrame, with the SQL types each can be read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "message_id": ("struct<ledger_id:bigint,entry_id:bigint,batch_index:int>",),
    "publish_time": ("timestamp",),
    "event_time": ("timestamp",),
    "properties": ("map<string,string>",),
    "producer_name": ("string",),
    "sequence_id": ("bigint",),
    "ordering_key": ("binary",),
    "schema_version": ("binary",),
    "replicated_from": ("string",),
    "broker_publish_time": ("timestamp",),
    "broker_index": ("bigint",),
    "encryption_context": (
        "struct<keys:array<struct<key:string,value:binary,metadata:map<string,string>>>,param:binary,algorithm:string,"
        "compression:string,uncompressed_size:bigint,batch_size:int,uuid:string,chunk_id:int,num_chunks:int>",
    ),
}
"""Column name to SQL types; the first is the one it has by default."""

DEFAULT_COLUMNS: Final[Sequence[str]] = (
    "key",
    "value",
    "topic",
    "partition",
    "message_id",
    "publish_time",
    "event_time",
    "properties",
)
"""What is read where the user names no columns, in order."""

WRITE_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "value": ("binary", "string", "struct"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "event_time": ("timestamp", "timestamp_ntz"),
    "properties": ("map<string,string>",),
    "ordering_key": ("binary",),
    "partition": ("int",),
    "deliver_at": ("timestamp", "timestamp_ntz"),
}
"""Column name to the SQL types it can be written from; `struct` is any."""

REQUIRED_WRITE_COLUMNS: Final[Sequence[str]] = ("value",)
"""Those that a DataFrame must have to be written."""
