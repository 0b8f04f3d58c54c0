"""The columns of a TubeMQ message in a DataFrame, with the SQL types each can be read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "broker_id": ("int",),
    "partition": ("int",),
    "message_id": ("bigint",),
    "message_time": ("timestamp",),
    "message_type": ("string",),
    "attributes": ("map<string,string>",),
    "fetch_offset": ("bigint",),
}
"""Column name to SQL types; the first is the one it has by default."""

DEFAULT_COLUMNS: Final[Sequence[str]] = (
    "value",
    "topic",
    "broker_id",
    "partition",
    "message_id",
    "message_time",
    "message_type",
    "attributes",
)
"""What is read where the user names no columns, in order."""

WRITE_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "message_type": ("string",),
    "message_time": ("timestamp", "timestamp_ntz"),
    "attributes": ("map<string,string>",),
}
"""Column name to the SQL types it can be written from."""

REQUIRED_WRITE_COLUMNS: Final[Sequence[str]] = ("value",)
"""Those that a DataFrame must have to be written."""
