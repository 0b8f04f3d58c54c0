"""A store of a topic on a TubeMQ broker: its index and messages, in memory and on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENTRY_BYTES: Final = 28
"""The size of a message's entry in the index, which all partitions of a store share."""


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message.

    Attributes:
        partition: the id of its partition.
        message_id: not unique.
        payload: attributes and value.
        flag: 1 if there are attributes.
        check_sum: of the payload.
        type: compared by filters; None for none.
        sent_by: the connection that sent it; None for a foreign producer.
    """

    partition: int
    message_id: int
    payload: bytes
    flag: int
    check_sum: int
    type: str | None = None
    sent_by: int | None = None


class Store:
    """One store of a topic on one broker. A position is 28 times the number of a message.

    Messages go from memory to the file, and the file is forced to the disk later. A kill loses the messages in memory,
    and other messages get their positions; messages in the file survive it, forced or not.

    Attributes:
        first: the position of the first message that is not removed.
        data_first: the position of the first message with data; messages before it are only in the index.
        file: every message that was ever in the file.
        memory: messages that are not in the file yet.
        forced: the position up to which the file was forced.
        lost: messages that kills have lost, in order.
    """

    def __init__(self) -> None:
        self.first = self.data_first = 0
        self.file: list[Message] = []
        self.memory: list[Message] = []
        self.forced = 0
        self.lost: list[Message] = []

    @property
    def file_end(self) -> int:
        """The position after the file's last message."""
        return ENTRY_BYTES * len(self.file)

    @property
    def end(self) -> int:
        """The position after the last message in file or memory."""
        return ENTRY_BYTES * (len(self.file) + len(self.memory))

    def append(self, message: Message) -> int:
        """Keep a message in memory; return its position."""
        self.memory.append(message)
        return self.end - ENTRY_BYTES

    def write(self) -> None:
        """Move the messages in memory to the file."""
        self.file += self.memory
        self.memory = []

    def force(self) -> None:
        """Force the file to the disk."""
        self.forced = self.file_end

    def lose_memory(self) -> None:
        """Lose the messages in memory; at the next start, all of the file counts as forced."""
        self.lost += self.memory
        self.memory = []
        self.force()

    def remove(self, before: int, *, with_index: bool = True) -> None:
        """Remove old messages, as the delete policy does: a file of the index may outlive files of the data."""
        self.data_first = max(self.data_first, min(before, self.forced))
        if with_index:
            self.first = max(self.first, self.data_first)

    def scan(self, start: int, entries: int, *, from_file: bool) -> list[Message]:
        """Return the messages of this number of entries from a position on."""
        number = start // ENTRY_BYTES
        messages = self.file if from_file else self.file + self.memory
        return messages[number : number + entries]
