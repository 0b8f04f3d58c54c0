"""The columns of an NSQ message in a DataFrame, with the SQL types each can be read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "channel": ("string",),
    "message_id": ("string", "binary"),
    "timestamp": ("timestamp",),
    "attempts": ("int",),
    "nsqd": ("string",),
}
"""Column name to SQL types; the first is the one it has by default."""

DEFAULT_COLUMNS: Final[Sequence[str]] = ("value", "topic", "channel", "message_id", "timestamp", "attempts", "nsqd")
"""What is read where the user names no columns, in order."""

WRITE_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "defer": ("bigint", "int"),
}
"""Column name to the SQL types it can be written from; ``defer`` is in milliseconds."""

REQUIRED_WRITE_COLUMNS: Final[Sequence[str]] = ("value",)
"""Those that a DataFrame must have to be written."""
