"""What a connection's thread received and another thread has not taken yet: bounded, whatever the peer sends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from spark_mq_source.core.errors import MQSourceError

ItemT = TypeVar("ItemT")


class Inbox(Generic[ItemT]):
    """Items in the order in which they came. One thread puts them in, one takes them out.

    Args:
        most_bytes: when more wait, the peer is held back until half of that is taken.
        size_of: the bytes that an item counts for.
        hold: holds the peer back; called under `lock`, in the thread that puts.
        let_go: lets it send again; called under `lock`.

    Attributes:
        lock: held while anything here changes.
        held: whether the peer is held back.

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
        """Puts items in that count for `nbytes` together; False where nobody takes them any more."""
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
        """Takes at least one item, and about `max_bytes` at most; none after `timeout_seconds`.

        Raises:
            MQSourceError: the peer has ended, once everything that came before is taken.
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
        """What was put in and not taken."""
        with self.lock:
            return tuple(self._items)

    def fail(self, error: MQSourceError) -> None:
        """The peer has ended; the first error counts, and what waits can still be taken."""
        with self.lock:
            self._error = self._error or error
            self.lock.notify()

    def close(self) -> tuple[ItemT, ...]:
        """Nobody takes anything any more; what waited. A peer that is held back stays so."""
        with self.lock:
            self._is_closed = True
            left = tuple(self._items)
            self._items.clear()
            self._bytes = 0
        return left

    def lift(self) -> None:
        """There is no bound until `restore`, which belongs to each call of this: an answer is behind what waits."""
        with self.lock:
            self._lifted += 1
            self._resume()

    def restore(self) -> None:
        """See `lift`."""
        with self.lock:
            self._lifted -= 1

    def _resume(self) -> None:
        if self.held:
            self.held = False
            self._let_go()
