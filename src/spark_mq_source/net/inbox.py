"""A bounded queue between the thread of a connection, which receives, and the thread that reads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spark_mq_source.core.errors import MQSourceError

ItemT = TypeVar("ItemT")


class Inbox(Generic[ItemT]):
    """Items in order of arrival. One thread puts items in, and one other thread takes them.

    Args:
        most_bytes: above this size the peer is held back, until at most half of it waits.
        size_of: returns the size of an item in bytes.
        hold: holds the peer back; called under `lock` in the receiving thread.
        let_go: lets the peer send again; called under `lock`.

    Example:
        >>> inbox = Inbox[bytes](10, size_of=len, hold=lambda: print("hold"), let_go=lambda: print("let go"))
        >>> inbox.put([b"hello ", b"world"], 11)
        hold
        True
        >>> inbox.take(max_bytes=6, timeout_seconds=1)
        let go
        [b'hello ']
    """

    def __init__(
        self,
        most_bytes: int,
        *,
        size_of: Callable[[ItemT], int],
        hold: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        self.lock = threading.Condition()
        self.held = False
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._hold = hold
        self._let_go = let_go
        self._items: deque[ItemT] = deque()
        self._bytes = 0
        self._lifted = 0
        self._is_closed = False
        self._error: MQSourceError | None = None

    def put(self, items: Sequence[ItemT], nbytes: int) -> bool:
        """Add items of `nbytes` in total and return True; return False after `close`."""
        with self.lock:
            if self._is_closed:
                return False
            self._items.extend(items)
            self._bytes += nbytes
            self.lock.notify()
            if self._bytes > self._most_bytes and not self.held and not self._lifted:
                self.held = True
                self._hold()
        return True

    def take(self, *, max_bytes: int, timeout_seconds: float) -> list[ItemT]:
        """Take at least one item and about `max_bytes` at most; return no items after `timeout_seconds`.

        Raises:
            MQSourceError: the error passed to `fail`, once all items before it are taken.
        """
        items = self._items
        with self.lock:
            self.lock.wait_for(lambda: items or self._error is not None, timeout_seconds)
            if not items and self._error is not None:
                raise self._error
            if self._bytes <= max_bytes:
                taken = list(items)
                items.clear()
                self._bytes = 0
            else:
                taken, budget = [], max_bytes
                while items and budget > 0:
                    taken.append(items.popleft())
                    budget -= self._size_of(taken[-1])
                self._bytes -= max_bytes - budget
            if self._bytes <= self._most_bytes // 2:
                self._resume()
        return taken

    def waiting(self) -> tuple[ItemT, ...]:
        """Return the items that were not taken yet."""
        with self.lock:
            return tuple(self._items)

    def fail(self, error: MQSourceError) -> None:
        """End the queue with an error. Only the first call counts; waiting items can still be taken."""
        with self.lock:
            self._error = self._error or error
            self.lock.notify()

    def close(self) -> tuple[ItemT, ...]:
        """Accept no more items, and return the waiting ones. A peer that is held back stays held back."""
        with self.lock:
            self._is_closed = True
            left = tuple(self._items)
            self._items.clear()
            self._bytes = 0
        return left

    def lift(self) -> None:
        """Suspend the limit until `restore` is called as often, to receive an answer that follows the items."""
        with self.lock:
            self._lifted += 1
            self._resume()

    def restore(self) -> None:
        """Undo one call of `lift`."""
        with self.lock:
            self._lifted -= 1

    def _resume(self) -> None:
        if self.held:
            self.held = False
            self._let_go()
