"""Where received bytes wait until they are whole: read in place, never copied out.

A socket fills the buffer's tail directly; views of what arrived are handed out and stay valid for as long as somebody
holds them, because memory that is still looked at is never written to again.
"""

from __future__ import annotations

BLOCK_BYTES = 4 << 20
"""The size of one block: large enough that carrying an unfinished tail into the next one is rare."""

SPARE_BLOCKS = 2
"""How many blocks are kept to be used again; a new one costs its zeroing and its page faults."""


class ReceiveBuffer:
    """Bytes received and not yet taken.

    The bytes lie in one block, one after the other. A block that is full is left to those who hold views of it; what is
    unfinished in it moves to the next one. Not safe to use from several threads at once.

    Args:
        block_bytes: the size of a block; larger ones are made where a single piece needs it.

    Example:
        >>> buffer = ReceiveBuffer()
        >>> free = buffer.writable(16)
        >>> free[:5] = b"hello"
        >>> buffer.commit(5)
        >>> buffer.take(6) is None
        True
        >>> bytes(buffer.take(4)), len(buffer)
        (b'hell', 1)
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._block = bytearray(block_bytes)
        self._view = memoryview(self._block)
        self._readable = self._view.toreadonly()
        self._start = 0
        self._end = 0
        self._spare: list[bytearray] = []

    def __len__(self) -> int:
        """How many bytes wait."""
        return self._end - self._start

    def writable(self, hint_bytes: int) -> memoryview:
        """Free space at the tail, at least `hint_bytes` and never empty; valid until the next call of any method.

        Raises:
            ValueError: `hint_bytes` is negative.
        """
        if hint_bytes < 0:
            raise ValueError(f"hint_bytes must not be negative, not {hint_bytes}")
        wanted = max(hint_bytes, 1)
        if len(self._block) - self._end < wanted:
            self._next_block(wanted)
        return self._view[self._end :]

    def commit(self, n: int) -> None:
        """The first `n` bytes of `writable()` are filled.

        Raises:
            ValueError: `n` is negative or more than was free.
        """
        if not 0 <= n <= len(self._block) - self._end:
            raise ValueError(f"cannot commit {n} bytes: {len(self._block) - self._end} were free")
        self._end += n

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Copies `data` to the tail."""
        n = len(data)
        self.writable(n)[:n] = data
        self._end += n

    def peek(self, n: int) -> memoryview | None:
        """A read-only view of the next `n` bytes, or None while there are fewer."""
        stop = self._start + n
        return self._readable[self._start : stop] if stop <= self._end else None

    def take(self, n: int) -> memoryview | None:
        """The same as `peek`, and they are no longer part of the buffer."""
        view = self.peek(n)
        if view is not None:
            self._start += n
        return view

    def _next_block(self, free_bytes: int) -> None:
        unfinished = self._readable[self._start : self._end]
        size = max(self._block_bytes, len(unfinished) + free_bytes)
        block = self._take_spare() if size == self._block_bytes else None
        if block is None:
            block = bytearray(size)
        view = memoryview(block)
        view[: len(unfinished)] = unfinished
        self._end = len(unfinished)
        self._start = 0
        retired = self._block
        self._block, self._view, self._readable = block, view, view.toreadonly()
        if len(retired) == self._block_bytes and len(self._spare) < SPARE_BLOCKS:
            self._spare.append(retired)

    def _take_spare(self) -> bytearray | None:
        """A retired block of which nobody holds a view any more."""
        for index, block in enumerate(self._spare):
            try:
                # A bytearray refuses to change its length while it is viewed: the one way to ask it whether it is.
                block.append(block.pop())
            except BufferError:
                continue
            return self._spare.pop(index)
        if len(self._spare) == SPARE_BLOCKS:
            # All in use: forget the oldest, its holders keep it alive for as long as they need it.
            del self._spare[0]
        return None
