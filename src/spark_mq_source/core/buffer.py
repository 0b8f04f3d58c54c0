"""A receive buffer without copies: a socket writes into its tail, and readers get views of the received bytes.

A view stays valid for as long as it is referenced, because viewed memory is never overwritten.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK_BYTES = 4 << 20
"""The size of one block: large enough that an unfinished tail is rarely copied into the next block."""

SPARE_BLOCKS = 4
"""The number of blocks without views that are kept for reuse; a new block costs zeroing and page faults."""


class ReceiveBuffer:
    """Received bytes that were not taken yet.

    The bytes are contiguous in one block. When a block is full, its unfinished tail is copied into the next one. Not
    thread-safe.

    Args:
        block_bytes: the size of a block; larger blocks are allocated for larger pieces.

    Example:
        >>> buffer = ReceiveBuffer()
        >>> free = buffer.writable(16)
        >>> free[:5] = b"hello"
        >>> buffer.commit(5)
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
        self._retired: list[bytearray] = []

    def __len__(self) -> int:
        """Return the number of bytes not yet taken."""
        return self._end - self._start

    def writable(self, hint_bytes: int) -> memoryview:
        """Return free space at the tail, at least `hint_bytes` and never empty; valid until the next method call."""
        wanted = max(hint_bytes, 1)
        if len(self._block) - self._end < wanted:
            self._next_block(wanted)
        return self._view[self._end :]

    def commit(self, n: int) -> None:
        """Add the first `n` bytes of `writable()`."""
        self._end += n

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Copy `data` to the tail."""
        n = len(data)
        self.writable(n)[:n] = data
        self._end += n

    def view(self) -> memoryview:
        """Return a read-only view of all bytes that are received and not taken."""
        return self._readable[self._start : self._end]

    def take(self, n: int) -> memoryview:
        """Remove the next `n` bytes, of those in `view()`, and return a read-only view of them."""
        start = self._start
        self._start += n
        return self._readable[start : self._start]

    def trim(self) -> None:
        """Release the memory kept for reuse."""
        self._retired.clear()

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
        if len(self._block) == self._block_bytes:
            self._retired.append(self._block)
        self._block, self._view, self._readable = block, view, view.toreadonly()

    def _take_spare(self) -> bytearray | None:
        """Return the retired block that lost its views last (the warmest memory); None if every block has views."""
        viewed, spare = [], []
        for block in self._retired:
            try:
                # Changing the length raises an error if there are views; Python has no other check for views.
                block.append(block.pop())
                spare.append(block)
            except BufferError:
                viewed.append(block)
        taken = spare.pop() if spare else None
        self._retired = [*spare[-SPARE_BLOCKS:], *viewed]
        return taken


def fill(into: memoryview, read: Callable[[memoryview], int | None]) -> int:
    """Fill memory by reads, until it is full or a read returns nothing; return the number of bytes.

    Example:
        >>> import io
        >>> fill(memoryview(bytearray(9)), io.BytesIO(b"hello").readinto)
        5
    """
    filled = 0
    while filled < len(into) and (size := read(into[filled:])):
        filled += size
    return filled
