"""Assembly of chunked messages within a fixed amount of memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from spark_mq_source.core.errors import CorruptMessageError, UnsupportedFeatureError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_OVERHEAD_BYTES: Final = 512
"""Overhead counted for each message under assembly besides its bytes, so that empty chunks count too."""

_REMEMBERED_MESSAGES: Final = 4096
"""Maximum number of complete, and of dropped, chunked messages that are remembered."""

_MAX_REMEMBERED_UUID_BYTES: Final = 1024
"""Limits this memory to a few MiB. A uuid is the producer's name and a number."""


class OrphanChunk(NamedTuple):
    """A chunk without the previous ones: its message began before the range, or was dropped to save memory."""

    uuid: bytes
    ledger_id: int
    entry_id: int
    chunk_id: int
    num_chunks: int
    first: tuple[int, int] | None
    """Ledger and entry of chunk 0, if the message was dropped."""


@dataclass(slots=True)
class _Message:
    """A chunked message of which some chunks have arrived; `data` is None if it is too large to assemble."""

    num_chunks: int
    total_bytes: int
    start: tuple[int, int]
    last: tuple[int, int]
    data: bytearray | None
    next_chunk_id: int = 0
    received_bytes: int = 0


class ChunkAssembly:
    """Assembly of chunked messages, many at a time, within a fixed amount of memory.

    The chunks of one message carry the same uuid, and each is stored after the one before it. A message is the latest
    chunk 0 of a uuid and the chunks that follow it, which is also what the Java client delivers (ConsumerImpl
    ``processMessageChunk``, 3.0 and newer):

    - Chunk 0 at another position begins a new message: a producer that restarts under its old name reuses its sequence
      numbers, so two messages may have the same uuid. The older one can no longer become complete and is dropped.
    - A chunk that was already taken was delivered or sent again, and is ignored; so are chunks of a complete message.
    - A chunk ahead of the next one is ignored. The Java client drops the message here; but a producer whose chunk 1 was
      refused has sent chunk 2 already, and sends both again.

    Nothing shows that a message will never become complete. So when the messages under assembly need more memory than
    `max_bytes`, the one that has waited longest for its next chunk is dropped (the Java client drops the oldest one
    beyond ``maxPendingChunkedMessage``, or after ``expireTimeOfIncompleteChunkedMessage``). If its last chunk arrives
    later, it becomes an `orphan`: the caller can `protect` the message and read it again.

    Args:
        max_bytes: maximum total size of the messages under assembly.

    Attributes:
        orphan: set by an `add` that found one; the caller resets it to None.

    Example:
        >>> chunks = ChunkAssembly(max_bytes=10_000)
        >>> chunks.add(b"p-0", 0, 2, 10, (7, 0), b"hello")
        >>> chunks.pending_start()
        (7, 0)
        >>> chunks.add(b"p-0", 1, 2, 10, (7, 1), b"world")
        bytearray(b'helloworld')
    """

    def __init__(self, *, max_bytes: int, topic: str = "") -> None:
        self._max_bytes = max_bytes
        self._topic = topic
        # In the order of their latest chunks.
        self._pending: dict[bytes, _Message] = {}
        self._completed: dict[bytes, tuple[int, int, tuple[int, int]]] = {}
        self._dropped: dict[bytes, tuple[int, int]] = {}
        self._protected: bytes | None = None
        self.nbytes = 0
        self.orphan: OrphanChunk | None = None

    def add(
        self,
        uuid: bytes,
        chunk_id: int,
        num_chunks: int,
        total_bytes: int,
        position: tuple[int, int],
        payload: bytes | bytearray | memoryview,
    ) -> bytearray | None:
        """Add a chunk; return the whole message if this completes it, else None.

        Args:
            uuid: the same for all chunks of one message.
            chunk_id: from 0.
            num_chunks: number of chunks of the message.
            total_bytes: size of the message, as announced.
            position: ledger and entry of this chunk.
            payload: this chunk's bytes; copied.

        Raises:
            CorruptMessageError: the chunk contradicts itself or the ones before it.
            UnsupportedFeatureError: the message is complete, and alone larger than `max_bytes`.
        """
        if not uuid or not 0 <= chunk_id < num_chunks or total_bytes < 0:
            raise CorruptMessageError(
                f"chunk {chunk_id} of {num_chunks} ({total_bytes} bytes in all, uuid {uuid!r}) is no chunk"
            )
        pending = self._pending.get(uuid)
        if chunk_id == 0:
            if pending is None or pending.start != position:
                pending = self._begin(uuid, num_chunks, total_bytes, position)
        elif pending is None or (pending.num_chunks, pending.total_bytes) != (num_chunks, total_bytes):
            # After a reconnect the last chunk of a complete message can arrive again, and is an orphan then.
            completed = self._completed.get(uuid)
            if completed is None or completed[:2] != (num_chunks, total_bytes) or position <= completed[2]:
                self.orphan = OrphanChunk(uuid, *position, chunk_id, num_chunks, self._dropped.get(uuid))
            return None
        # After a reconnect, the entries since chunk 0 arrive again; a chunk that was ignored is ignored again.
        if chunk_id != pending.next_chunk_id or position < pending.last:
            return None
        # Before any change, so that reading the chunk again shows whether it is stored like this.
        received_bytes = pending.received_bytes + len(payload)
        is_last = chunk_id == num_chunks - 1
        if received_bytes > total_bytes or (is_last and received_bytes != total_bytes):
            raise CorruptMessageError(
                f"{chunk_id + 1} of {num_chunks} chunks hold {received_bytes} bytes where {total_bytes} were announced "
                f"for all of them"
            )
        if not self._make_room(uuid, 0 if pending.data is None else len(payload)):
            self.orphan = OrphanChunk(uuid, *position, chunk_id, num_chunks, self._dropped.get(uuid))
            return None
        if pending.data is not None:
            pending.data += payload
            self.nbytes += len(payload)
        elif is_last:
            self._remove(uuid)
            raise self._too_large(pending)
        pending.received_bytes = received_bytes
        pending.next_chunk_id += 1
        pending.last = position
        # To the end: a message that grows is not abandoned.
        self._pending[uuid] = self._pending.pop(uuid)
        if not is_last:
            return None
        self._remove(uuid)
        _remember(self._completed, uuid, (num_chunks, total_bytes, position))
        return pending.data

    def protect(self, uuid: bytes) -> None:
        """Drop all other messages before this one, until another uuid is protected."""
        self._protected = uuid
        # If chunk 0 is no longer at its position, reading there again would not find it either.
        self._dropped.pop(uuid, None)

    def discard(self, uuid: bytes) -> None:
        """Drop a message if it is under assembly."""
        self._drop(uuid, "it is corrupt")

    def _begin(self, uuid: bytes, num_chunks: int, total_bytes: int, position: tuple[int, int]) -> _Message:
        self._drop(uuid, "another one began under the same uuid")
        self._completed.pop(uuid, None)
        self._dropped.pop(uuid, None)
        overhead = len(uuid) + _OVERHEAD_BYTES
        # Known from the first chunk on, but an error only in a complete message: an abandoned one must not raise.
        fits = total_bytes + overhead <= self._max_bytes
        data = bytearray() if fits else None
        pending = self._pending[uuid] = _Message(num_chunks, total_bytes, position, position, data)
        self.nbytes += overhead
        return pending

    def _too_large(self, pending: _Message) -> UnsupportedFeatureError:
        ledger_id, entry_id = pending.start
        return UnsupportedFeatureError(
            f"a chunked message of {pending.total_bytes} bytes, whose first chunk is {ledger_id}:{entry_id}, is larger "
            f"than maxPendingChunkBytes={self._max_bytes} allows: raise that option"
        )

    def _make_room(self, uuid: bytes, more_bytes: int) -> bool:
        """Drop messages until `more_bytes` fit; return whether `uuid` is still under assembly."""
        while self.nbytes + more_bytes > self._max_bytes:
            victim = next((other for other in self._pending if other not in (uuid, self._protected)), None)
            if victim is None:
                # It fits alone, but not together with the protected one.
                if len(self._pending) > 1:
                    self._drop_for_now(uuid)
                return uuid in self._pending
            self._drop_for_now(victim)
        return True

    def _drop_for_now(self, uuid: bytes) -> None:
        _remember(self._dropped, uuid, self._pending[uuid].start)
        self._drop(uuid, "maxPendingChunkBytes is reached")

    def _drop(self, uuid: bytes, reason: str) -> None:
        pending = self._pending.get(uuid)
        if pending is not None:
            self._remove(uuid)
            logger.info(
                "%s: dropped %d of %d chunks of the message that began at %d:%d: %s",
                self._topic,
                pending.next_chunk_id,
                pending.num_chunks,
                *pending.start,
                reason,
            )

    def _remove(self, uuid: bytes) -> None:
        pending = self._pending.pop(uuid)
        data_bytes = 0 if pending.data is None else len(pending.data)
        self.nbytes -= data_bytes + len(uuid) + _OVERHEAD_BYTES

    def pending_start(self) -> tuple[int, int] | None:
        """Return ledger and entry of the oldest first chunk whose message is incomplete; None if there is none."""
        return min((pending.start for pending in self._pending.values()), default=None)


def _remember(messages: dict[bytes, _T], uuid: bytes, message: _T) -> None:
    if len(uuid) <= _MAX_REMEMBERED_UUID_BYTES:
        messages[uuid] = message
        if len(messages) > _REMEMBERED_MESSAGES:
            del messages[next(iter(messages))]
